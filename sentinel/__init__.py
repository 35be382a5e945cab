"""Sentinel keeps GPU training jobs running."""

__version__ = "0.1.0"
