"""Disks that are no part of the node: USB, also as a management controller has it, and mounted files (loop).

They are pulled out, or their server goes, and the kernel then says of them what it says of a disk that dies.
"""

import contextlib
import os
import re

import msgspec

from sentinel.checks.sysfs import names
from sentinel.core.health import Component, Finding, Severity

CODE = "media-error"
EVERY_S = 10.0
_LOOP = re.compile(r"loop\d+(p\d+)?")


class Media:
    """Block devices by where they are attached. One that has gone is what it was, until its name is another's."""

    def __init__(self, sysfs: str) -> None:
        self._folder = os.path.join(sysfs, "class/block")
        self._by_usb: dict[str, bool] = {}
        self._looked_s = float("-inf")

    def look(self, mono_s: float) -> None:
        """Every few seconds: when the kernel complains of a disk it may be gone."""
        if mono_s - self._looked_s < EVERY_S:
            return
        self._looked_s = mono_s
        with contextlib.suppress(OSError):  # no descriptor is left: faults are told without it
            for name in names(self._folder):
                with contextlib.suppress(OSError):  # gone meanwhile
                    self._by_usb[name] = "/usb" in os.readlink(os.path.join(self._folder, name))

    def holds(self, name: str) -> bool:
        return self._by_usb.get(name, False)


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
