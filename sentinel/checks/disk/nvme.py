"""Wear, spare blocks and media errors of NVMe drives, from the health log that `nvme` or `smartctl` reads.

The log is page 02h of the NVM Express Base Specification ("SMART / Health Information").
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sentinel import rights
from sentinel.checks.base import Absent, Look, Measure, Source, Unknown
from sentinel.checks.command import CommandHangs, run
from sentinel.checks.sysfs import names
from sentinel.core.health import Component, Finding, Severity

_SOURCE = Source("nvme", Component.DISK)

COMMAND_S = 5.0
WARN_USED_PERCENT, WORN_PERCENT = 80, 100  # of what the vendor gives the drive; it may go on beyond
MAX_DRIVES = 64
# Both print the same log. Administrators' programs are often not in a service's PATH.
TOOLS = (("nvme", ("smart-log", "-o", "json")), ("smartctl", ("-j", "-A")))
_SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
# Bits of "critical warning" that no other field tells: code, severity, what it means.
_WARNINGS = (
    (0x02, "nvme-temperature", Severity.WARNING, "The drive is too hot or too cold"),
    (0x04, "nvme-unreliable", Severity.DEGRADED, "The drive calls itself unreliable: too many media errors"),
    (0x08, "nvme-read-only", Severity.DEGRADED, "The drive takes no more writes"),
    (0x10, "nvme-backup", Severity.WARNING, "What keeps the drive's cache when power fails has failed"),
)


# Volumes of clouds that show as drives, and are taken away whenever their pod moves.
VOLUMES = (
    "Amazon Elastic Block Store",
    "nvme_card-pd",  # Google's; "nvme_card" is a local drive
    "MSFT NVMe Accelerator",
    "Alibaba Cloud Elastic Block Storage",
)


class Health(Struct, frozen=True):
    """None: not in the log of this tool's version."""

    used_percent: int | None = None
    spare_percent: int | None = None
    spare_threshold_percent: int | None = None
    critical_warning: int = 0
    media_errors: int | None = None


class Memory(Struct):
    """Tools that did not end, by drive; None: SIGKILL ended it."""

    stuck: dict[str, subprocess.Popen[bytes] | None] = {}


class ToolFailed(Exception):
    """No health log was printed; the text is what was."""


def parse_health(text: bytes) -> Health:
    """The JSON of `nvme smart-log -o json` or of `smartctl -j -A`. Raises ToolFailed."""
    try:
        data: Any = json.loads(text)
    except ValueError:
        raise ToolFailed("no JSON was printed") from None
    log = data.get("nvme_smart_health_information_log", data) if isinstance(data, dict) else None
    if not isinstance(log, dict):
        raise ToolFailed("no health log was printed")
    health = Health(
        _number(log, "percent_used", "percentage_used"),
        _number(log, "avail_spare", "available_spare"),
        _number(log, "spare_thresh", "available_spare_threshold"),
        _number(log, "critical_warning") or 0,
        _number(log, "media_errors"),
    )
    if health.used_percent is None and health.spare_percent is None:
        raise ToolFailed(_message(data) or "no health log was printed")
    return health


def _number(log: Mapping[str, Any], *keys: str) -> int | None:
    """A count; versions of nvme-cli print large ones as text, and flags as an object with their `value`."""
    value = next((log[key] for key in keys if key in log), None)
    if isinstance(value, dict):
        value = value.get("value")
    try:
        return None if value is None else int(float(str(value).replace(",", "")))
    except (ValueError, OverflowError):
        return None


def _message(data: Mapping[str, Any]) -> str:
    """What smartctl says of a device that it could not open."""
    tool = data.get("smartctl")
    messages = tool.get("messages") if isinstance(tool, dict) else None
    if isinstance(messages, list) and messages and isinstance(messages[0], dict):
        return str(messages[0].get("string", ""))[:200]
    return ""


def judge(drive: str, health: Health, errors_before: int | None) -> list[Finding]:
    """`errors_before`: media errors in the sample before; fewer now means another count, and no fault."""
    found = []
    used, spare, threshold = health.used_percent, health.spare_percent, health.spare_threshold_percent
    if used is not None and used > WARN_USED_PERCENT:
        worn = used >= WORN_PERCENT
        text = "The drive is worn out by its vendor's count" if worn else "The drive is nearly worn out"
        severity = Severity.DEGRADED if worn else Severity.WARNING
        found.append(_finding(drive, "nvme-wear", severity, text, f"{used} % used"))
    if (spare is not None and threshold and spare < threshold) or health.critical_warning & 0x01:
        said = f"{spare} % of the spare blocks left, the drive's threshold is {threshold} %"
        found.append(_finding(drive, "nvme-spare", Severity.DEGRADED, "Spare blocks run out", said))
    for bit, code, severity, text in _WARNINGS:
        if health.critical_warning & bit:
            said = f"critical warning {health.critical_warning:#04x}"
            found.append(_finding(drive, code, severity, text, said))
    now = health.media_errors
    if now is not None and errors_before is not None and now > errors_before:
        said = f"{now - errors_before} more media errors, {now} in all"
        found.append(
            _finding(drive, "nvme-media-errors", Severity.WARNING, "Data was not readable", said, True)
        )
    return found


def _finding(
    drive: str, code: str, severity: Severity, summary: str, evidence: str, event: bool = False
) -> Finding:
    replace = severity is Severity.DEGRADED or code == "nvme-wear"
    action = "REPLACE_DISK" if replace else "CHECK_DISK"
    return _SOURCE.finding(drive, code, severity, action, summary, f"{drive}: {evidence}", event=event)


def drives(sysfs: str) -> dict[str, str]:
    """NVMe controllers on the PCI bus, with their serial numbers: those of file servers wear out elsewhere.

    Raises OSError where they cannot be listed.
    """
    folder = Path(sysfs, "class/nvme")
    return {
        name: read_text(folder / name / "serial") or name
        for name in names(str(folder))[:MAX_DRIVES]
        if read_text(folder / name / "transport") in ("pcie", "")
        and not read_text(folder / name / "model").startswith(VOLUMES)
    }


def read_text(path: Path) -> str:
    """ "" for what is not there or cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def read_health(drive: str) -> Health:
    """Ask each tool that is installed until one prints the log. Raises ToolFailed and CommandHangs."""
    said = []
    where = os.pathsep.join((os.environ.get("PATH", ""), *_SBIN))
    for tool, arguments in TOOLS:
        path = shutil.which(tool, path=where)
        if path is None:
            continue
        try:
            output = run([path, *arguments, f"/dev/{drive}"], COMMAND_S)
        except OSError as error:
            said.append(f"{tool}: {error.strerror}")
            continue
        try:
            return parse_health(output.stdout)
        except (
            ToolFailed
        ) as failed:  # also where the tool's status says that something is wrong with the drive
            said.append(f"{tool}: {output.first_line() if output.stderr else failed}")
    raise ToolFailed("; ".join(said) or "neither nvme (nvme-cli) nor smartctl (smartmontools) is installed")


def check(look: Look) -> list[Finding]:
    try:
        there = drives(look.settings.sysfs)
    except OSError as error:
        raise Unknown(f"{error.filename}: {error.strerror}") from None
    if not there:
        raise Absent("no NVMe drive on the PCI bus")
    before: dict[str, int] = look.kept.saved or {}
    tools = look.kept.own(Memory).stuck
    after: dict[str, int] = {}
    found: list[Finding] = []
    unread: dict[str, list[str]] = {}  # why -> drives
    measures: list[Measure] = []
    for drive, serial in there.items():
        stuck = tools.get(drive)
        if stuck is not None and stuck.poll() is None:  # another would hang beside it
            found.append(_hangs(drive, f"pid {stuck.pid} hangs in the kernel"))
            continue
        try:
            health = read_health(drive)
        except CommandHangs as hang:
            tools[drive] = hang.stuck
            found.append(_hangs(drive, str(hang)))
            continue
        except ToolFailed as failed:
            unread.setdefault(str(failed), []).append(drive)
            if serial in before:
                after[serial] = before[serial]
            continue
        found += judge(drive, health, before.get(serial))
        if health.media_errors is not None:
            after[serial] = health.media_errors
        measures += _measures(drive, health)
    look.kept.saved = after
    look.kept.measures = tuple(measures)
    if unread:
        text = "; ".join(f"{', '.join(silent)}: {why}" for why, silent in unread.items())
        needs = f"root, CAP_SYS_ADMIN and /dev/nvme*: {rights.DEVICES}"
        raise Unknown(f"wear and media errors are not seen (that needs {needs}): {text}", tuple(found))
    return found


def _hangs(drive: str, said: str) -> Finding:
    return _finding(drive, "nvme-hangs", Severity.WARNING, "The drive does not give its health log", said)


def _measures(drive: str, health: Health) -> list[Measure]:
    """In the names of smartctl_exporter."""
    values = {
        "percentage_used": health.used_percent,
        "available_spare": health.spare_percent,
        "available_spare_threshold": health.spare_threshold_percent,
        "critical_warning": health.critical_warning,
        "media_errors": health.media_errors,
    }
    return [
        Measure(f"smartctl_device_{name}", (("device", drive),), float(value))
        for name, value in values.items()
        if value is not None
    ]
