"""Processes as /proc shows them: who descends from whom, who catches a signal, who is a rank.

A pid alone names nothing: it is reused. Everything here that acts on a process checks pid and start time
(field 22 of /proc/PID/stat, in clock ticks since boot) and then acts through a pidfd.
"""

import os
import re
import signal
from collections.abc import Iterable, Mapping

from msgspec import Struct

from sentinel.core.job import hold

# Programs that pass no signal on to what they run: what is meant for them is meant for their children.
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox"})
# Programs that run one other program: never a rank themselves. Those that are no shells, but `time`, pass SIGTERM on.
WRAPPERS = SHELLS | {"uv", "timeout", "time", "tini", "dumb-init", "catatonit", "sudo"}
SRUN, SLURMSTEPD = "srun", "slurmstepd"  # who starts tasks and who is their parent
DEAD_STATES = "ZX"
GONE = "gone"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Proc(Struct, frozen=True, gc=False):
    """One line of /proc/PID/stat. `cpu_s`: user and system time, without children; `waited_cpu_s`: of those that have
    ended and were waited for; `name`: of the program that it runs, 15 bytes of it."""

    pid: int
    ppid: int
    sid: int
    state: str
    start_ticks: int
    cpu_s: float
    waited_cpu_s: float = 0.0
    name: str = ""

    @property
    def dead(self) -> bool:
        return self.state in DEAD_STATES


class Use(Struct, frozen=True, gc=False):
    """What a rank and its descendants have used. `io_bytes` counts reads and writes of every kind."""

    io_bytes: int = 0
    cpu_s: float = 0.0
    processes: int = 0


def parse_stat(line: str) -> Proc:
    """The command's name may hold spaces and brackets: fields are counted from the last bracket."""
    head, _, tail = line.rpartition(")")
    f = tail.split()
    cpu_s, waited_s = ((int(f[k]) + int(f[k + 1])) / TICKS_PER_S for k in (11, 13))
    pid, _, name = head.partition(" (")
    return Proc(int(pid), int(f[1]), int(f[3]), f[0], int(f[19]), cpu_s, waited_s, name)


def read_proc(pid: int, of: str = "") -> Proc | None:
    """None: gone. `of`: of one of its threads ("task/42/"), whose number stands for the pid then."""
    try:
        with open(f"/proc/{pid}/{of}stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, IndexError, ValueError):
        return None


def scan() -> dict[int, Proc]:
    """Every process of the machine that we can see, zombies included."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (proc := read_proc(int(name))):
            found[proc.pid] = proc
    return found


def children_of(table: Mapping[int, Proc]) -> dict[int, list[Proc]]:
    children: dict[int, list[Proc]] = {}
    for proc in table.values():
        children.setdefault(proc.ppid, []).append(proc)
    return children


def descendants(table: Mapping[int, Proc], roots: Iterable[int]) -> list[Proc]:
    """All that descends from `roots`, without the roots, parents before children."""
    children = children_of(table)
    found: list[Proc] = []
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            found.append(child)
            todo.append(child.pid)
    return found


def is_same(pid: int, start_ticks: int) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    proc = read_proc(pid)
    return proc is not None and proc.start_ticks == start_ticks and not proc.dead


def open_pidfd(pid: int, start_ticks: int) -> int | None:
    """A pidfd of that very process; None where it is gone. The caller closes it."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    proc = read_proc(pid)  # read after opening: from here on the descriptor names what we looked at
    if proc is None or proc.start_ticks != start_ticks:
        os.close(fd)
        return None
    return fd


def send_signal(pid: int, start_ticks: int, *signos: int) -> bool:
    """False: it is gone, or not ours."""
    return not why_not_sent(pid, start_ticks, *signos)


def why_not_sent(pid: int, start_ticks: int, *signos: int) -> str:
    """Sends them. Else why not: it is gone, or not ours."""
    fd = open_pidfd(pid, start_ticks)
    if fd is None:
        return GONE
    try:
        for signo in signos:
            signal.pidfd_send_signal(fd, signo)
    except PermissionError:
        return "not permitted: a process of another user needs CAP_KILL"
    except OSError:
        return GONE
    finally:
        os.close(fd)
    return ""


def environ(pid: int) -> dict[str, str]:
    """The environment with which the process was executed; empty where it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def has_entry(pid: int, entry: bytes) -> bool:
    """Whether `NAME=value` stands in the environment with which the process was executed."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:
        return False


def program(pid: int) -> str:
    """Base name of the executable; empty where it may not be read."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
    except OSError:
        return ""


def cmdline(pid: int) -> list[str]:
    """The command line; empty where it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def is_shell(pid: int) -> bool:
    return program(pid) in SHELLS


def is_srun(proc: Proc) -> bool:
    """Not a script of that name that runs it."""
    return proc.name == SRUN and program(proc.pid) == SRUN


def catches(status_text: str, signo: int) -> bool:
    """Whether `SigCgt` of a /proc/PID/status has the signal: bit N-1 of a hexadecimal mask."""
    for line in status_text.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signo - 1) & 1)
    return False


def read_text(path: str, limit: int = 65536) -> str:
    """A small file of /proc; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def catches_signal(pid: int, signo: int) -> bool:
    return catches(read_text(f"/proc/{pid}/status"), signo)


def runs_no_more(pid: int) -> bool:
    """Is SIGKILL pending? Such a process may stand in the kernel for ever, and runs no line of its own again."""
    status = read_text(f"/proc/{pid}/status")
    masks = (line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in masks)


def find_ranks(root: Proc, table: Mapping[int, Proc]) -> dict[int, Proc]:
    """The ranks at or below a started process, by their numbers: its workers where it is a launcher, else itself."""
    top = below_wrappers(root, table)
    if workers := find_workers(top, table):
        return workers
    if is_launcher(top.pid):  # one process without numbers: `accelerate launch` of one
        children = [child for child in children_of(table).get(top.pid, ()) if not child.dead]
        # That of srun only ends its tasks, which run elsewhere: srun itself passes signals on to them.
        if len(children) == 1 and not is_srun(children[0]):
            return find_ranks(children[0], table)
    own = rank_pair(top.pid)
    return {own[0] if own else 0: top}


def find_workers(top: Proc, table: Mapping[int, Proc]) -> dict[int, Proc]:
    """The ranks that a program, then a launcher, has started, by their numbers; empty where it is none.

    They are the topmost processes below it that carry numbers of their own. What a rank starts (data loaders, compile
    workers) inherits its variables and is not a rank. A launcher may have inherited some too, and may be started by
    another. Of what is not a launcher by its name RANK and LOCAL_RANK count alone; of a program that is no shell they
    must be several, since a rank may set them for itself, and a helper of it inherits that.
    """
    children = children_of(table)
    if is_srun(top):
        return _tasks(top, table, children)
    by_name = is_launcher(top.pid)
    own = _numbers(top.pid, by_name)
    tops: dict[int, Proc] = {}
    alone = True  # all that was found is below one other launcher
    todo = first = [child for child in children.get(top.pid, ()) if not child.dead]
    while todo:
        proc, *todo = todo
        its = _numbers(proc.pid, by_name)
        below = _below_wrappers(proc, children)
        inner = find_workers(below, table) if is_launcher(below.pid) or is_shell(below.pid) else {}
        if inner:
            tops |= inner
        elif its is not None and its != own:
            tops.setdefault(int(its[1]), below)
            alone = False
        else:
            todo += [child for child in children.get(proc.pid, ()) if not child.dead]
    sure = by_name or is_shell(top.pid) or len(tops) > 1 or (alone and len(first) == 1)
    if not tops and not (by_name or is_shell(top.pid)):
        return _with_itself(top, first)
    return tops if sure else {}


def _with_itself(top: Proc, started_by_it: Iterable[Proc]) -> dict[int, Proc]:
    """The ranks of a program that is the first of its machine itself, and has started the others: Lightning's launcher.
    They get no RANK. What it starts besides inherits its own LOCAL_RANK, 0, or has none; where a rank 0 is among the
    others, which run the same, it is none itself."""
    if "LOCAL_RANK" in environ(top.pid):
        return {}
    found: dict[int, Proc] = {0: top}
    nodes = set()
    firsts = []
    for proc in started_by_it:
        variables = environ(proc.pid)
        numbers = [variables.get(name, "") for name in ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")]
        if not all(n.isascii() and n.isdecimal() for n in numbers):
            continue
        local, node, world = map(int, numbers)
        if local == 0:
            firsts.append(cmdline(proc.pid))
            continue
        if local in found:
            return {}
        found[local] = proc
        nodes.add((node, world))
    each = max(found) + 1
    if len(nodes) != 1 or cmdline(found[each - 1].pid) in firsts:
        return {}
    ((node, world),) = nodes
    return {node * each + local: proc for local, proc in sorted(found.items())} if world % each == 0 else {}


def _tasks(srun: Proc, table: Mapping[int, Proc], children: Mapping[int, list[Proc]]) -> dict[int, Proc]:
    """The ranks that Slurm's daemons have started for srun, by their numbers in the job; empty where some of them run
    elsewhere, or may be those of another srun of the same run.

    Their environment is srun's and what Slurm adds (srun(1), "OUTPUT ENVIRONMENT VARIABLES"): of all processes that
    inherit it, the task itself has the number SLURM_TASK_PID.
    """
    run = environ(srun.pid).get("SENTINEL_RUN")
    for proc in table.values():
        parent = table.get(proc.ppid)
        if proc.pid == srun.pid or not is_srun(proc) or (parent is not None and is_srun(parent)):
            continue  # who is below srun is its helper
        if environ(proc.pid).get("SENTINEL_RUN") == run:
            return {}
    found: dict[int, Proc] = {}
    ranks, steps = 0, set()
    for proc in table.values() if run else ():
        parent = table.get(proc.ppid)
        if proc.dead or parent is None or parent.name != SLURMSTEPD:
            continue
        its = environ(proc.pid)
        if its.get("SENTINEL_RUN") != run or its.get("SLURM_TASK_PID") != str(proc.pid):
            continue
        steps.add(
            tuple(its.get(f"SLURM_{name}") for name in ("JOB_ID", "STEP_ID", "STEP_NUM_NODES", "HET_SIZE"))
        )
        below = _below_wrappers(proc, children)
        inner = find_workers(below, table) if is_launcher(below.pid) or is_shell(below.pid) else {}
        own = inner or {_number(its.get("SLURM_PROCID", "")): below}
        ranks += len(own)
        found |= own
    here = len(steps) == 1 and next(iter(steps))[2:] == ("1", None)
    return found if here and len(found) == ranks else {}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


_FORK_SERVER = "from multiprocessing.forkserver import main"


def started(top: Proc, table: Mapping[int, Proc]) -> list[Proc]:
    """What a Python program has started by itself or by its fork server, the oldest first."""
    children = children_of(table)
    found: list[Proc] = []
    for child in children.get(top.pid, ()):
        serves = any(_FORK_SERVER in word for word in cmdline(child.pid))
        found += children.get(child.pid, ()) if serves else [child]
    return sorted((proc for proc in found if not proc.dead), key=age)


def below_wrappers(proc: Proc, table: Mapping[int, Proc]) -> Proc:
    """The program that a started process runs, where that is a shell or the like."""
    return _below_wrappers(proc, children_of(table))


_LAUNCHERS = frozenset(
    {
        "torchrun",
        "accelerate",
        "deepspeed",
        "mpirun",
        "mpiexec",
        "mpiexec.hydra",
        "orterun",
        "prterun",
        SRUN,
        "horovodrun",
        "colossalai",
        "composer",
    }
)
_MODULES = re.compile(
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.\w+|deepspeed\.launcher\.\w+|paddle\.distributed\.launch"
)


def is_launcher(pid: int) -> bool:
    """By its name: one that starts ranks and is none."""
    words = cmdline(pid)[:12]
    if words and os.path.basename(words[0]) in SHELLS:  # Intel's mpirun is a script
        del words[0]
    elif words and os.path.basename(words[0]).startswith("python"):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[: 2 if words[0] in ("-W", "-X") else 1]
        if words[:1] == ["-m"]:
            return len(words) > 1 and _MODULES.fullmatch(words[1]) is not None
    return bool(words) and os.path.basename(words[0]) in _LAUNCHERS


def starts_ranks(pid: int) -> bool:
    """By its name: one below which ranks may be, and which is none."""
    return program(pid) in WRAPPERS or is_launcher(pid)


# How launchers number what they start, in the whole job and on its machine; what a rank starts inherits it: torchrun
# and all that do as it does; Open MPI; MPICH and Intel MPI (hydra); Slurm.
_VARIABLES = (
    ("RANK", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_LOCALID"),
)
# A launcher may give the number that it was given itself, to a process of another world.
_WORLD = ("WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def rank_pair(pid: int) -> tuple[int, int] | None:
    """RANK and LOCAL_RANK, as launchers set them; what a rank starts inherits them. A RANK alone may be that of a
    machine, as platforms set it for a launcher: KubeDL, Kubeflow."""
    variables = environ(pid)
    try:
        return int(variables["RANK"]), int(variables["LOCAL_RANK"])
    except (KeyError, ValueError):
        return None


def numbered(pid: int) -> bool:
    """Has a launcher of any kind given it a number?"""
    return _numbers(pid, True) is not None


def _numbers(pid: int, by_launcher: bool) -> tuple[str, ...] | None:
    """What told a process its number, that, and more by which it differs from another's. `by_launcher`: of any kind."""
    variables = environ(pid)
    for whole, local in _VARIABLES[: None if by_launcher else 1]:
        number = variables.get(whole, "")
        if number.isascii() and number.isdecimal() and (local in variables or whole != "RANK"):
            world = (variables.get(name, "") for name in _WORLD if by_launcher)
            return whole, number, variables.get(local, ""), *world
    return None


def _below_wrappers(proc: Proc, children: Mapping[int, list[Proc]]) -> Proc:
    while program(proc.pid) in WRAPPERS:
        alive = [child for child in children.get(proc.pid, ()) if not child.dead]
        if not alive or (len(alive) > 1 and not hold.runs(cmdline(proc.pid))):
            break
        proc = min(alive, key=age)  # of the hold wrapper the others are orphans that it took in
    return proc


def age(proc: Proc) -> tuple[int, int]:
    return proc.start_ticks, proc.pid


def through_shells(roots: Iterable[Proc], table: Mapping[int, Proc]) -> list[Proc]:
    """The processes that SIGTERM is meant for: each root and, where it is a shell, what it runs."""
    children = children_of(table)
    found = []
    todo = list(roots)
    while todo:
        proc = todo.pop()
        found.append(proc)
        if is_shell(proc.pid):
            todo += [child for child in children.get(proc.pid, ()) if not child.dead]
    return found


def read_io_bytes(pid: int) -> int:
    """rchar + wchar + read_bytes of /proc/PID/io, the last for files that are mapped; 0 where it may not be read."""
    lines = read_text(f"/proc/{pid}/io").splitlines()
    return sum(int(line.partition(":")[2]) for line in (*lines[:2], *lines[4:5]))


def tree_use(roots: Mapping[int, int], table: Mapping[int, Proc]) -> dict[int, Use]:
    """`roots` maps rank to pid. One number per rank for it and its living descendants; it can fall when one ends."""
    uses = {}
    for rank, pid in roots.items():
        members = [proc for proc in (table.get(pid), *descendants(table, [pid])) if proc and not proc.dead]
        uses[rank] = Use(
            io_bytes=sum(read_io_bytes(proc.pid) for proc in members),
            cpu_s=sum(proc.cpu_s for proc in members),
            processes=len(members),
        )
    return uses


def where(proc: Proc) -> str:
    """For people: "pid 42 (D in nvidia_close)"."""
    channel = read_text(f"/proc/{proc.pid}/wchan", 100).strip()
    place = f" in {channel}" if channel not in ("", "0") else ""
    return f"pid {proc.pid} ({proc.state}{place})"
