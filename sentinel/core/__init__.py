"""The pure core: no clock, no I/O. What it knows it is told, what it wants it returns."""
