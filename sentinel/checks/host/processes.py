"""Process ids, descriptors, zombies, and processes that are stuck in the kernel."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from sentinel.checks.base import Look, Measure, Source, Unknown
from sentinel.checks.proc_scan import Process, Scan, scan
from sentinel.core.health import Component, Finding, Severity

_SOURCE = Source("processes", Component.SYSTEM)

# Shares of the limit: (warning, degraded). Zombies: as GPUd has them.
FULL = (0.80, 0.95)
ZOMBIES = (0.20, 0.80)
STUCK_SAMPLES = 5
LASTS_SAMPLES = 20  # ten minutes: a storage stall, which meets all nodes at once, is over by then
MAX_NAMED = 8  # findings or names in one finding: a dead file server can block hundreds of processes

_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_SOFT_FDS = re.compile(r"^Max open files\s+(\d+)", re.MULTILINE)
_NVIDIA_FRAME = re.compile(r"\[nvidia\w*\]")  # "[<0>] uvm_ioctl+0x12/0x40 [nvidia_uvm]"


class Stuck(Struct, frozen=True):
    """A thread that was seen blocked, and how often in a row without having run in between."""

    process: Process
    tid: int
    switches: int
    samples: int


class Memory(Struct):
    stuck: dict[int, Stuck] = {}  # by thread


class Limits(Struct, frozen=True):
    """Of the whole node. A process id counts for each thread."""

    threads: int
    max_threads: int
    fds: int
    max_fds: int


# ---------------------------------------------------------------- reading


def read_limits(procfs: Path) -> Limits:
    """Raises OSError, ValueError, IndexError."""
    threads = int((procfs / "loadavg").read_text().split()[3].partition("/")[2])  # "0.10 0.20 0.30 2/345 678"
    kernel = procfs / "sys/kernel"
    most = min(int((kernel / name).read_text()) for name in ("pid_max", "threads-max"))
    used, _, max_fds = (procfs / "sys/fs/file-nr").read_text().split()
    return Limits(threads, most, int(used), int(max_fds))


def _read(path: Path) -> str:
    """Empty where the process ended, or root is needed."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _blocked_thread(procfs: Path, process: Process) -> int:
    """The thread that is in D: the leader itself, or one that keeps a dead leader from going. 0: none."""
    if process.state == "D":
        return process.pid
    for task in sorted((procfs / str(process.pid) / "task").glob("*")):
        if re.search(r"\) D ", _read(task / "stat")):
            return int(task.name)
    return 0


def follow(procfs: Path, blocked: list[Process], before: dict[int, Stuck]) -> dict[int, Stuck]:
    """Thread -> what is known of it. One that ran in between (disk at work is in D most of the time) starts anew."""
    now: dict[int, Stuck] = {}
    for process in blocked:
        tid = _blocked_thread(procfs, process)
        if not tid:
            continue
        found = _SWITCHES.search(_read(procfs / str(process.pid) / f"task/{tid}/status"))
        switches = int(found[1]) if found else -1
        old = before.get(tid)
        same = (
            old is not None
            and old.process.started_ticks == process.started_ticks
            and old.switches == switches
            and switches >= 0
        )
        now[tid] = Stuck(process, tid, switches, old.samples + 1 if same and old else 1)
    return now


# ---------------------------------------------------------------- judging


def _severity(share: float, limits: tuple[float, float]) -> Severity | None:
    if share > limits[1]:
        return Severity.DEGRADED
    return Severity.WARNING if share > limits[0] else None


def judge_limits(limits: Limits) -> list[Finding]:
    found = []
    for entity, code, used, most, what in (
        ("process ids", "pids", limits.threads, limits.max_threads, "processes and threads"),
        ("descriptors", "fds", limits.fds, limits.max_fds, "open files"),
    ):
        share = used / most if most else 0.0
        if severity := _severity(share, FULL):
            summary = f"The node runs out of {entity}: soon nothing can be {'started' if code == 'pids' else 'opened'}"
            found.append(
                _SOURCE.finding(
                    entity,
                    code,
                    severity,
                    "CHECK_PROCESSES",
                    summary,
                    f"{used} of {most} {what} ({share:.0%})",
                )
            )
    return found


def judge_zombies(zombies: list[Process], limits: Limits, name: Callable[[int], str]) -> list[Finding]:
    """Against the descriptor limit, or the limit of process ids, of which each holds one, where that is lower.

    (The descriptor limit of today's hosts is 2^63: it alone would never tell.)
    """
    most = min(limits.max_fds, limits.max_threads)
    share = len(zombies) / most if most else 0.0
    severity = _severity(share, ZOMBIES)
    if severity is None:
        return []
    parents = Counter(zombie.parent for zombie in zombies).most_common(3)
    who = ", ".join(f"{count} of {name(pid)} (pid {pid})" for pid, count in parents)
    return [
        _SOURCE.finding(
            "zombies",
            "zombies",
            severity,
            "CHECK_PROCESSES",
            "Dead processes that their parents do not collect take up the process ids",
            f"{len(zombies)} zombies, {share:.0%} of {most}; {who}",
        )
    ]


def judge_stuck(stuck: list[Stuck], where: dict[int, str]) -> list[Finding]:
    """`where` maps threads to the kernel's stack or the function that they wait in, as far as it can be read."""
    nvidia = [
        one
        for one in stuck
        if one.process.name.startswith("nvidia") or _NVIDIA_FRAME.search(where.get(one.tid, ""))
    ]
    others = [one for one in stuck if one not in nvidia]
    users = [one for one in others if not one.process.kernel_thread]
    groups = (
        ("NVIDIA driver", "d-state-nvidia", Severity.DEGRADED, "RESTART_BM", nvidia),
        (
            "processes",
            "d-state",
            Severity.DEGRADED if any(one.samples >= LASTS_SAMPLES for one in users) else Severity.WARNING,
            "CHECK_STORAGE",
            users,
        ),
        # Some drivers' threads wait in D by design: these are told only.
        (
            "kernel threads",
            "d-state",
            Severity.WARNING,
            "CHECK_STORAGE",
            [one for one in others if one.process.kernel_thread],
        ),
    )
    return [
        _SOURCE.finding(
            entity,
            code,
            severity,
            action,
            f"Stuck in the kernel: {len(those)} cannot run, nor be killed",
            *(_tell(one, where) for one in those[:MAX_NAMED]),
        )
        for entity, code, severity, action, those in groups
        if those
    ]


def _tell(one: Stuck, where: dict[int, str]) -> str:
    frames = re.findall(r"^(?:\[<\w+>\] )?([^\s+]+)", where.get(one.tid, ""), re.MULTILINE)
    waits = f" in {' < '.join(frames[:4])}" if frames and frames != ["0"] else ""
    return f"pid {one.process.pid} {one.process.name}: D in {one.samples} looks in a row{waits}"


def judge_fds(many: list[tuple[Process, int]], procfs: Path) -> list[Finding]:
    found: dict[str, Finding] = {}
    for process, fds in sorted(many, key=lambda item: -item[1]):
        limit = _SOFT_FDS.search(_read(procfs / str(process.pid) / "limits"))
        share = fds / int(limit[1]) if limit else 0.0
        entity = f"process {process.name}"
        if share > FULL[0] and entity not in found and len(found) < MAX_NAMED and limit:
            found[entity] = _SOURCE.finding(
                entity,
                "process-fds",
                Severity.WARNING,  # it harms that program alone
                "RAISE_LIMIT",
                "Close to its own limit of open files",
                f"pid {process.pid}: {fds} of {limit[1]} ({share:.0%})",
            )
    return list(found.values())


# ---------------------------------------------------------------- the check


def _measures(limits: Limits, seen: Scan) -> tuple[Measure, ...]:
    """In the names of node_exporter."""
    states = (("D", len(seen.blocked)), ("Z", len(seen.zombies)))
    return (
        Measure("node_processes_threads", (), limits.threads),
        Measure("node_processes_max_threads", (), limits.max_threads),
        Measure("node_filefd_allocated", (), limits.fds),
        Measure("node_filefd_maximum", (), limits.max_fds),
        *(Measure("node_processes_state", (("state", state),), count) for state, count in states),
    )


def _where(procfs: Path, tid: int, pid: int) -> str:
    """The kernel stack (root), else the function that it waits in."""
    task = procfs / str(pid) / f"task/{tid}"
    return _read(task / "stack") or _read(task / "wchan")


def check(look: Look) -> list[Finding]:
    procfs = Path(look.settings.procfs)
    try:
        limits, seen = read_limits(procfs), scan(look.settings.procfs)
    except (OSError, ValueError, IndexError) as error:
        raise Unknown(f"{procfs}: {error}") from None
    memory = look.kept.own(Memory)
    look.kept.measures = _measures(limits, seen)
    memory.stuck = follow(procfs, seen.blocked, memory.stuck)
    stuck = [one for one in memory.stuck.values() if one.samples >= STUCK_SAMPLES]
    where = {one.tid: _where(procfs, one.tid, one.process.pid) for one in stuck}
    # A parent that waits for the child of vfork() shows D until the child has started its program.
    stuck = [one for one in stuck if "vfork" not in where[one.tid]]
    blocked = len(memory.stuck) - len(stuck)
    look.kept.detail = f"{blocked} in D, judged after {STUCK_SAMPLES} looks" if blocked else ""
    return [
        *judge_limits(limits),
        *judge_zombies(seen.zombies, limits, lambda pid: _read(procfs / f"{pid}/comm").strip() or "?"),
        *judge_stuck(stuck, where),
        *judge_fds(seen.many_fds, procfs),
    ]
