"""File systems and mounts, block devices and NVMe drives."""
