"""Block devices by what sysfs says: errors that their driver counted, drives that died or went, degraded RAID."""

from pathlib import Path

from msgspec import Struct

from sentinel.checks.base import Absent, Look, Source, Unknown
from sentinel.checks.disk.nvme import drives, read_text
from sentinel.checks.sysfs import names
from sentinel.core.health import Component, Finding, Severity

_SOURCE = Source("block", Component.DISK)

RESETTING_SAMPLES = 3  # a controller is reset within seconds; longer, it does not come back
_PSEUDO = ("loop", "ram", "zram", "dm-", "nbd", "sr", "fd")


class Memory(Struct):
    resetting: dict[str, int] = {}  # controller -> samples in a row in which it was being reset


def _errors(folder: Path, name: str, before: int | None) -> tuple[int | None, list[Finding]]:
    """Commands that a SCSI disk failed (Documentation/ABI/testing/sysfs-block-device). Only an increase counts."""
    try:
        now = int(read_text(folder / "device/ioerr_cnt"), 16)
    except ValueError:
        return None, []
    if before is None or now <= before:  # the first look, or a driver that was loaded anew
        return now, []
    more = now - before
    text = f"{name}: {more} more commands failed, {now} since the disk was attached"
    summary = "Commands to a disk failed"
    return now, [
        _SOURCE.finding(
            name, "disk-io-errors", Severity.WARNING, "CHECK_DISK", summary, text, event=True, count=more
        )
    ]


def _raid(folder: Path, name: str) -> list[Finding]:
    """Linux Documentation/admin-guide/md.rst: `degraded` counts missing members, `broken` takes no more writes."""
    state, missing = read_text(folder / "md/array_state"), read_text(folder / "md/degraded")
    if state == "broken":
        severity, text = Severity.DEGRADED, "The array has lost more members than it can"
    elif missing.isdigit() and int(missing):
        severity, text = Severity.WARNING, "The array has lost members"
    else:
        return []
    said = f"{name}: array_state {state}, degraded {missing}"
    return [_SOURCE.finding(name, "raid-degraded", severity, "REPLACE_DISK", text, said)]


def _controllers(
    folder: Path, there: dict[str, str], before: dict[str, str], resetting: dict[str, int]
) -> list[Finding]:
    """NVMe controllers that are dead, do not end a reset, or were there before in this boot."""
    found = []
    for name in there:
        state = read_text(folder / name / "state")
        lasting = state in ("resetting", "connecting")
        resetting[name] = resetting.get(name, 0) + 1 if lasting else 0
        if state == "dead" or resetting[name] >= RESETTING_SAMPLES:
            text = "The drive's controller does not answer"
            found.append(
                _SOURCE.finding(
                    name, "nvme-state", Severity.DEGRADED, "CHECK_DISK", text, f"{name}: state {state}"
                )
            )
    for name in sorted(before.keys() - there.keys()):
        text = f"{name} (serial number {before[name]}): was there before in this boot"
        found.append(
            _SOURCE.finding(
                name, "nvme-gone", Severity.DEGRADED, "CHECK_DISK", "A drive has gone", text, event=True
            )
        )
    return found


def check(look: Look) -> list[Finding]:
    root = Path(look.settings.sysfs, "block")
    saved = look.kept.saved or {}
    before_drives: dict[str, str] = saved.get("drives", {})
    try:
        disks = [name for name in names(str(root)) if not name.startswith(_PSEUDO)]
        there = drives(look.settings.sysfs)
    except OSError as error:
        raise Unknown(f"{error.filename}: {error.strerror}") from None
    if not disks and not there and not before_drives:
        raise Absent("no block device")
    found: list[Finding] = []
    errors: dict[str, int] = {}
    for name in disks:
        count, more = _errors(root / name, name, saved.get("errors", {}).get(name))
        if count is not None:
            errors[name] = count
        found += more + _raid(root / name, name)
    controllers = Path(look.settings.sysfs, "class/nvme")
    found += _controllers(controllers, there, before_drives, look.kept.own(Memory).resetting)
    look.kept.saved = {"errors": errors, "drives": there}
    return found
