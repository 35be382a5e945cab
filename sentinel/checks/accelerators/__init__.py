"""Accelerators of other makers, asked through their makers' tools: one file for each family."""
