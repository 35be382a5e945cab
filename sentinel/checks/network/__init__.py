"""InfiniBand, RoCE and Ethernet, and the kernel's table of connections."""
