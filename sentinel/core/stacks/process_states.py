"""Processes that cannot go on, by their states as in /proc/PID/stat. Pure."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

HALTED = "T"  # until somebody lets it go on it does nothing at all
STOPPED = {
    HALTED: "stopped by a signal",
    "t": "stopped by a tracer",
    "D": "stuck in the kernel",
    "Z": "a zombie",
}


def stopped(states: Iterable[tuple[Key, str]]) -> dict[Key, str]:
    """Those that cannot go on, and why."""
    return {key: STOPPED[state] for key, state in states if state in STOPPED}
