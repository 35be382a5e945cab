"""The machine itself: memory, CPUs, clocks, processes, services, modules, and its management controller."""
