"""NVIDIA's cards: `nvml*` ask the driver in a child process, the others judge what it says."""
