"""Reading sysfs: files that are empty, return EINVAL or block are no reason to know nothing about the rest."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from sentinel.checks.base import Kept

T = TypeVar("T")

MAX_BYTES = 4096  # an attribute of sysfs is at most one page
PATIENCE_S = 2.0

_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def text(path: str) -> str:
    """The file without surrounding space; "" where it cannot be read or is empty."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        return os.read(fd, MAX_BYTES).decode(errors="replace").strip()
    except OSError:  # EINVAL of a port that is down, EIO of a card that just left
        return ""
    finally:
        os.close(fd)


def number(path: str) -> int | None:
    """A whole number in decimal or, with 0x, in hexadecimal; None where there is none."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


def names(folder: str) -> list[str]:
    """What is in a folder, sorted; nothing where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def leading_number(words: str) -> float | None:
    """The number that a text begins with: "400 Gb/sec (4X NDR)" is 400."""
    found = _NUMBER.match(words)
    return float(found[0]) if found else None


# ---------------------------------------------------------------- PCI


class PcieLink(Struct, frozen=True):
    """Speed in GT/s and width in lanes of a card's link: as it is, and the most that card and slot can do."""

    speed_gts: float
    width: int
    max_speed_gts: float
    max_width: int

    @property
    def limited(self) -> bool:
        return self.speed_gts < self.max_speed_gts or self.width < self.max_width

    def __str__(self) -> str:
        return (
            f"{self.speed_gts:g} GT/s x{self.width}, card and slot can do "
            f"{self.max_speed_gts:g} GT/s x{self.max_width}"
        )


def pcie_link(folder: str) -> PcieLink | None:
    """Of the PCI function at `folder`; None where it has no link or is not readable ("Unknown").

    A card in a slot that is slower than itself is as fast as it can be: the bridge above it counts too.
    """
    folder = os.path.realpath(folder)
    current = _link(folder, "current")
    most = _link(folder, "max")
    if current is None or most is None:
        return None
    slot = _link(os.path.dirname(folder), "max") or most
    return PcieLink(*current, min(most[0], slot[0]), min(most[1], slot[1]))


def _link(folder: str, which: str) -> tuple[float, int] | None:
    speed = leading_number(text(f"{folder}/{which}_link_speed"))  # "16.0 GT/s PCIe"
    width = number(f"{folder}/{which}_link_width")
    if speed is None or not width or width >= 255:  # 255: the link does not answer
        return None
    return speed, width


# ---------------------------------------------------------------- files that block


class StuckReads(Struct):
    """Reads of earlier samples that have not come back."""

    threads: dict[str, threading.Thread] = {}  # by entity


def read_each(
    entities: Iterable[str], read: Callable[[str], T], kept: Kept, patience_s: float = PATIENCE_S
) -> tuple[dict[str, T], list[str]]:
    """`read` of each entity, and those that did not answer within `patience_s`.

    A read that hangs in a card's firmware cannot be ended. It keeps its thread, in `kept`, and its entity is
    not asked again before it has come back, so that one card neither hides the others nor costs a thread
    for every sample.
    """
    stuck = kept.own(StuckReads).threads
    found: dict[str, T] = {}
    late: list[str] = []
    threads: dict[str, threading.Thread] = {}

    def work(entity: str, into: dict[str, T]) -> None:
        into[entity] = read(entity)

    for entity in entities:
        if entity in stuck and stuck[entity].is_alive():
            late.append(entity)
            continue
        stuck.pop(entity, None)
        threads[entity] = threading.Thread(
            target=work, args=(entity, found), name=f"sysfs-{entity}", daemon=True
        )
        threads[entity].start()
    deadline = time.monotonic() + patience_s
    for entity, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            stuck[entity] = thread
            late.append(entity)
    return {entity: value for entity, value in list(found.items()) if entity not in late}, sorted(late)
