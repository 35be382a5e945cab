"""Disks that are no part of the node: USB, also as a management controller has it, and mounted files (loop).

They are pulled out, or their server goes, and the kernel then says of them what it says of a disk that dies. The disk
of a node that boots from USB is told apart by what is mounted from it.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sentinel.checks.disk.mounts import NEEDED_PATHS, holding, read_mounts, resolve
from sentinel.checks.sysfs import names
from sentinel.core.health import Component, Finding, Severity

CODE = "media-error"
EVERY_S = 10.0
_LOOP = re.compile(r"loop\d+(p\d+)?")


class Media:
    """Block devices by where they are attached. One that has gone is what it was, until its name is another's.

    `root`: of the node whose mounts count, where it is not ours.
    """

    def __init__(self, sysfs: str, procfs: str = "/proc", root: str = "") -> None:
        self._sysfs, self._procfs, self._root = sysfs, procfs, root
        self._folder = os.path.join(sysfs, "class/block")
        self._places: dict[str, str] = {}  # where each device hangs: ../../devices/…/block/sdb/sdb1
        self._own: set[str] = set()  # where disks hang that hold what jobs need
        self._looked_s = float("-inf")

    def look(self, mono_s: float) -> None:
        """Every few seconds: when the kernel complains of a disk it may be gone."""
        if mono_s - self._looked_s < EVERY_S:
            return
        self._looked_s = mono_s
        with contextlib.suppress(OSError):  # no descriptor is left: faults are told without it
            for name in names(self._folder):
                self._see(name)
            if any(map(_by_usb, self._places.values())):
                self._own |= set(self._disks_of_node())  # it stays one: a disk that dies is unmounted, too

    def holds(self, name: str) -> bool:
        self._see(name)  # a disk may have got the name of a stick since the last look
        place = self._places.get(name, "")
        return _by_usb(place) and _disk(place) not in self._own

    def _see(self, name: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # gone, or no name of a device
            self._places[name] = os.readlink(os.path.join(self._folder, name))

    def _disks_of_node(self) -> Iterator[str]:
        """The disks below the file systems that jobs need, also through LVM, encryption and RAID."""
        mounts = read_mounts(self._procfs, self._root)
        needed = {holding(resolve(path, mounts), mounts) for path in NEEDED_PATHS}
        for mount in needed:
            if mount is None or mount.network:
                continue
            numbered = os.path.join(self._sysfs, "dev/block", mount.device)
            yield from self._below(numbered if os.path.exists(numbered) else self._named(mount.source))

    def _named(self, source: str) -> str:
        """A device by its name in /dev: of btrfs the number is no disk's."""
        name = os.path.basename(source)
        for mapped in names(self._folder):
            with contextlib.suppress(OSError):
                if (
                    mapped.startswith("dm-")
                    and Path(self._folder, mapped, "dm/name").read_text().strip() == name
                ):
                    return os.path.join(self._folder, mapped)
        return os.path.join(self._folder, name)

    def _below(self, device: str) -> Iterator[str]:
        real = os.path.realpath(device)
        yield _disk(real)
        whole = os.path.dirname(real) if os.path.exists(os.path.join(real, "partition")) else real
        with contextlib.suppress(OSError):  # gone meanwhile
            for name in names(os.path.join(whole, "slaves")):
                yield from self._below(os.path.join(self._folder, name))


def _by_usb(place: str) -> bool:
    return "/usb" in place


def _disk(place: str) -> str:
    """Where the whole disk hangs, from the bus on: the same for a link and for what it leads to."""
    before, block, name = place.partition("/block/")
    return before.partition("devices/")[2] + block + name.partition("/")[0]


def on_media(finding: Finding, media: Media | None = None) -> Finding:
    """What the kernel says of a disk that is no part of the node is told, and never grows to more. `media`: None where
    only names are known."""
    if finding.component is not Component.DISK or finding.severity is Severity.INFO:
        return finding
    if not _LOOP.fullmatch(finding.entity) and not (media is not None and media.holds(finding.entity)):
        return finding
    kind = "a mounted file" if _LOOP.fullmatch(finding.entity) else "USB or virtual media"
    summary = f"{finding.summary} ({kind}: no part of this node)"
    return msgspec.structs.replace(finding, code=CODE, severity=Severity.WARNING, summary=summary)
