"""Recent, unexpected and repeated boots.

The system's own log of boots (wtmp) tells whether the last one was orderly. Where it is missing, as in a container
or with a C library that gave it up, boots are remembered in the state directory, without how they ended.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from sentinel.checks.base import Look, Measure, Source, Unknown
from sentinel.checks.node_root import HIDDEN, is_hidden
from sentinel.core.health import Component, Finding, Severity

_SOURCE = Source("reboot", Component.SYSTEM)

HOLD_S = 600.0  # what a node does right after a boot says little
TOLD_S = 24 * 3600.0
REPEATED = 3  # boots without an orderly end in a day
MAX_BOOTS = 16
SAME_BOOT_S = 300.0  # the wall clock may be set right after wtmp was written

FILE = "boots.json"  # in the state directory
# Without hostPID, or without root, the second is what can be seen.
SEEN_AS = ("1", "self")  # processes of /proc
WTMP = "root/var/log/wtmp"  # as one of them sees it
WTMP_BYTES = 400 * 384 * 2  # its end is enough; whole records of either size

# struct utmp of glibc, see utmp(5): (size of a record, where its time is, bytes of the time)
_LAYOUTS = ((384, 340, 4), (400, 344, 8))  # x86-64; aarch64
_RUN_LVL, _BOOT_TIME = 1, 2


class Boot(Struct, frozen=True):
    """`orderly`: the boot before it ended with a shutdown. None: not known."""

    boot_id: str
    at_wall_s: float
    orderly: bool | None = None


class Memory(Struct):
    boots: list[Boot] | None = None  # None: this agent has not looked yet
    dumps: list[str] = []  # names of what the kernel saved of its end


def parse_wtmp(data: bytes) -> list[Boot]:
    """Boots, the oldest first. Empty for a file that is none of ours."""
    fitting = (
        layout
        for layout in _LAYOUTS
        if len(data) % layout[0] == 0 and all(data[at] < 10 for at in range(0, len(data), layout[0]))
    )
    size, offset, width = next(fitting, (1, 0, 0))
    if not width:
        return []
    boots: list[Boot] = []
    orderly: bool | None = None  # before the first boot that is in the file anything may have been
    for at in range(0, len(data), size):
        kind = int.from_bytes(data[at : at + 2], "little")
        wall_s = int.from_bytes(data[at + offset : at + offset + width], "little")
        if kind == _RUN_LVL and data[at + 44 : at + 52] == b"shutdown":
            orderly = True
        elif kind == _BOOT_TIME:
            boots.append(Boot("", float(wall_s), orderly))
            orderly = False
    return boots


def _read_wtmp(procfs: Path) -> list[Boot]:
    for process in SEEN_AS:
        try:
            with open(procfs / process / WTMP, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - WTMP_BYTES))
                return parse_wtmp(file.read(WTMP_BYTES))
        except OSError:
            continue
    return []


def _remembered(path: Path, now: Boot) -> tuple[list[Boot], str]:
    """The boots that were seen from here, this one included, and what keeps them from being remembered."""
    try:
        boots = msgspec.json.decode(path.read_bytes(), type=list[Boot])
    except FileNotFoundError:
        boots = []
    except (OSError, ValueError) as error:
        boots = []
        if isinstance(error, OSError):
            return [now], f"boots are not remembered: {path}: {error.strerror}"
    if boots and boots[-1].boot_id == now.boot_id:
        return boots, ""
    boots = [*boots, now][-MAX_BOOTS:]
    draft = path.with_name(f"{FILE}.new-{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.encode(boots))
        draft.replace(path)
    except FileNotFoundError:
        return boots, f"boots are not remembered: there is no {path.parent}"
    except OSError as error:
        return boots, f"boots are not remembered: {path}: {error.strerror}"
    return boots, ""


def history(look: Look, booted_wall_s: float) -> tuple[list[Boot], str]:
    """Boots up to this one, by wtmp where it knows this one, else as remembered."""
    own, problem = _remembered(look.settings.state_path / FILE, Boot(look.boot_id, booted_wall_s))
    logged = _read_wtmp(Path(look.settings.procfs))
    if logged and abs(logged[-1].at_wall_s - booted_wall_s) <= SAME_BOOT_S:
        return logged, ""
    return own, problem


def judge_boots(boots: list[Boot], uptime_s: float, dumps: list[str]) -> list[Finding]:
    """`boots` ends with this one. `dumps`: what the kernel saved of its end, in pstore."""
    found = []
    this = boots[-1]
    if uptime_s < HOLD_S:
        summary = "The node has just booted: it is not given work at once"
        found.append(_finding("recent-boot", Severity.INFO, "HOLD", summary, f"booted {uptime_s:.0f} s ago"))
    if uptime_s > TOLD_S:
        return found
    orderly = False if dumps else this.orderly
    if orderly is False:
        evidence = f"booted {uptime_s / 60:.0f} min ago; no shutdown was recorded before"
        if dumps:
            evidence = f"the kernel saved its last messages: {', '.join(dumps[:4])}"
        summary = "The node went down without a shutdown: a crash, or its power was cut"
        found.append(_finding("unexpected-reboot", Severity.WARNING, "CHECK_NODE", summary, evidence))
    elif len(boots) > 1 and orderly is None:
        evidence = f"booted {uptime_s / 60:.0f} min ago; whether it was shut down before is not recorded"
        summary = "The node was booted since it was last looked at"
        found.append(_finding("rebooted", Severity.INFO, "", summary, evidence))
    # The first one known is no reboot.
    recent = [boot for boot in boots[1:] if this.at_wall_s - boot.at_wall_s < TOLD_S and not boot.orderly]
    if len(recent) >= REPEATED:
        proved = sum(boot.orderly is False for boot in recent)
        severity = Severity.DEGRADED if proved >= REPEATED else Severity.WARNING
        evidence = f"{len(recent)} boots within a day, {proved} of them certainly without a shutdown before"
        summary = "The node goes down again and again"
        found.append(_finding("repeated-reboots", severity, "CHECK_HARDWARE", summary, evidence))
    return found


def _finding(code: str, severity: Severity, action: str, summary: str, evidence: str) -> Finding:
    return _SOURCE.finding("node", code, severity, action, summary, evidence)


def _dumps(sysfs: Path) -> list[str]:
    """Records of a crash that firmware kept. systemd-pstore moves them away some time after the boot."""
    try:
        return sorted(name for name in os.listdir(sysfs / "fs/pstore") if name.startswith("dmesg-"))
    except OSError:
        return []


def check(look: Look) -> list[Finding]:
    path = Path(look.settings.procfs, "uptime")
    try:
        uptime_s = float(path.read_text().split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise Unknown(f"{path}: {error}") from None
    memory = look.kept.own(Memory)
    if memory.boots is None:  # a boot does not change while we run
        memory.boots, look.kept.detail = history(look, look.now.wall_s - uptime_s)
        memory.dumps = _dumps(Path(look.settings.sysfs))
    look.kept.measures = (Measure("node_boot_time_seconds", (), look.now.wall_s - uptime_s),)
    found = judge_boots(memory.boots, uptime_s, memory.dumps)
    if is_hidden(look.root):
        raise Unknown(
            f"{HIDDEN}: whether the node was shut down before its last boot is not known", tuple(found)
        )
    return found
