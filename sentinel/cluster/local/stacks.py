"""Where ranks stand: Python stacks by py-spy; where they cannot be had, what the kernel says, and why.

py-spy reads a process's memory from outside; `--nonblocking` never stops it, so that a stopped (SIGSTOP)
or uninterruptible (D) process cannot hold us. A process that runs may change under such a reading; then it is read
once more the pausing way. Whether it runs in circles or waits for the GPU, which spins too, samples tell.

Where a rank waits for processes that it has started (workers of a data loader, a compiler), a few of them are looked
at too.
"""

import asyncio
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from sentinel import rights
from sentinel.cluster.local.processes import (
    Proc,
    descendants,
    is_launcher,
    program,
    read_io_bytes,
    read_proc,
    read_text,
    scan,
    where,
)
from sentinel.core.stacks.process_states import STOPPED
from sentinel.core.stacks.reading import HELPER_FRAME, own_frames, read
from sentinel.util.children import ChildError, OutOfTime, SaidTooMuch, ask

EACH_S = 4.0
TOTAL_S = 12.0
AT_ONCE = 2  # each py-spy takes tens of MiB for a moment
MAX_CHARS = 8000
KERNEL_STACK_CHARS = 2000
VALUES_CHARS = 1_000_000
SAMPLES_S, SAMPLES_PER_S = 1, 100
# Ranks of one machine whose helpers are looked at, helpers of each, and frames of each. A rank may have hundreds.
MOST_WAITING, MOST_HELPERS, HELPER_FRAMES, MOST_READ = 2, 4, 12, 256
HELPERS_CHARS = 3000
SPAWNS_RANKS = re.compile(r"\b(?:start_processes|join) \((?:\S*/)?torch/multiprocessing/spawn\.py\b")


# Values of kernel.yama.ptrace_scope (Documentation/admin-guide/LSM/Yama.rst). Ranks are not below Sentinel, but below
# their supervisor: what is left to ancestors is not left to it.
ANYBODY, NOBODY = 0, 3
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.M)


def find_py_spy() -> str | None:
    """Beside our Python, else in PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def unreadable(procfs: str = "/proc") -> str:
    """Why no stack of a rank can be read, and what to do; empty: nothing is known that forbids it."""
    if find_py_spy() is None:
        return "py-spy is not there: pip install py-spy"
    scope = read_text(f"{procfs}/sys/kernel/yama/ptrace_scope").strip()
    if not scope.isdigit() or int(scope) == ANYBODY:
        return ""
    if int(scope) >= NOBODY:
        return f"kernel.yama.ptrace_scope is {scope}: start the machine with another value"
    if rights.may(rights.SYS_PTRACE, procfs=procfs):
        return ""
    return (
        f"kernel.yama.ptrace_scope is {scope} and Sentinel has no CAP_SYS_PTRACE: "
        "sysctl kernel.yama.ptrace_scope=0, or give it that capability"
    )


async def collect(ranks: Mapping[int, Proc | None]) -> tuple[str, ...]:
    """One text per rank, at most MAX_CHARS each, all within TOTAL_S."""
    gate = asyncio.Semaphore(AT_ONCE)
    until_s = asyncio.get_running_loop().time() + TOTAL_S
    table = scan()
    texts = await asyncio.gather(*(_one(rank, proc, table, gate, until_s) for rank, proc in ranks.items()))
    waiting = [
        (k, proc.pid)
        for k, (proc, text) in enumerate(zip(ranks.values(), texts, strict=True))
        if proc is not None and _awaits(text)
    ]
    for k, pid in waiting[:MOST_WAITING]:
        if below := await _helpers(_telling(pid, table), gate, until_s):
            texts[k] = f"{texts[k][: MAX_CHARS - len(below) - 1]}\n{below}"
    return tuple(texts)


def _awaits(text: str) -> bool:
    """Does it wait for what it has started? Not where that are ranks, which get texts of their own."""
    stack = read(text)
    if stack is None or not stack.awaits or stack.runs:
        return False
    return not any(map(SPAWNS_RANKS.search, own_frames(text)))


def _telling(pid: int, table: Mapping[int, Proc]) -> list[Proc]:
    """Of what a rank has started: those that are stuck or busy first, then those that wait where few others do."""
    below = [
        proc
        for known in descendants(table, [pid])[:MOST_READ]
        if (proc := read_proc(known.pid)) is not None and not proc.dead
    ]
    channels = {proc.pid: read_text(f"/proc/{proc.pid}/wchan", 100) for proc in below}
    like = Counter(channels.values())

    def telling(proc: Proc) -> tuple[int, int, float]:
        return (
            0 if proc.state in STOPPED else 1 if proc.state == "R" else 2,
            like[channels[proc.pid]],
            -proc.cpu_s,
        )

    return sorted(below, key=telling)[:MOST_HELPERS]


async def _helpers(procs: Sequence[Proc], gate: asyncio.Semaphore, until_s: float) -> str:
    async def look(proc: Proc) -> str:
        async with gate:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0.1:
                return ""
            dump, reason = await _python_stack(proc.pid, min(EACH_S, left_s))
        now = read_proc(proc.pid)
        if now is None:
            return ""
        name = "".join(c if c.isprintable() and not c.isspace() else "?" for c in program(proc.pid))
        frames = own_frames(dump)[:HELPER_FRAMES] if dump else (f"not read: {reason}",)
        return "\n".join((f"helper {where(now)}, {name}", *(f"{HELPER_FRAME}{frame}" for frame in frames)))

    texts = await asyncio.gather(*map(look, procs))
    return "\n".join(filter(None, texts))[:HELPERS_CHARS]


async def _one(
    rank: int, proc: Proc | None, table: Mapping[int, Proc], gate: asyncio.Semaphore, until_s: float
) -> str:
    if proc is None:
        return f"rank {rank}: gone"
    used = _used(proc.pid, table)
    async with gate:
        left_s = until_s - asyncio.get_running_loop().time()
        text, reason = "", "not looked at: the time for stacks was used up"
        if left_s > 0.1:
            text, reason = await _python_stack(proc.pid, min(EACH_S, left_s))
        now = read_proc(proc.pid)
        left_s = until_s - asyncio.get_running_loop().time()
        places = await _places(proc.pid, left_s) if now is not None and now.state == "R" else 0
    if now is None:
        return f"rank {rank}: gone"
    sampled = f", samples in {places} place{'s' * (places > 1)}" if places else ""
    # It stands still in any case, which tells nothing of its ranks: so this is not read as a look at one.
    unseen = "its launcher, below which no rank is seen: " if is_launcher(proc.pid) else ""
    head = f"rank {rank}: {unseen}{where(now)}{used}{sampled}"
    body = text or f"no Python stack: {reason}\n{_kernel_stack(proc.pid)}"
    return f"{head}\n{body}".strip()[:MAX_CHARS]


def _used(pid: int, table: Mapping[int, Proc]) -> str:
    """Since its start. Two looks tell by it what a stack does not: that it computes, reads, writes or goes round."""
    tree = [proc for proc in (table.get(pid), *descendants(table, [pid])) if proc is not None]
    own_s = tree[0].cpu_s if tree else 0.0
    helpers_s = sum(proc.cpu_s + proc.waited_cpu_s for proc in tree) - own_s
    io_bytes = sum(read_io_bytes(proc.pid) for proc in tree)
    main_s = main.cpu_s if (main := read_proc(pid, f"task/{pid}/")) else 0.0
    main_sleeps = _sleeps(pid, str(pid))
    all_sleeps = sum(_sleeps(pid, task) for task in _tasks(pid))
    return (
        f", CPU {own_s:.2f} s (main thread {main_s:.2f} s), helpers' CPU {helpers_s:.2f} s, I/O {io_bytes} bytes, "
        f"{main_sleeps} sleeps ({all_sleeps} of all threads)"
    )


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _sleeps(pid: int, task: str) -> int:
    found = _SWITCHES.search(read_text(f"/proc/{pid}/task/{task}/status"))
    return int(found.group(1)) if found else 0


async def _places(pid: int, limit_s: float) -> int:
    """In how many places of the program its main thread is seen within SAMPLES_S; 0: it cannot be told."""
    py_spy = find_py_spy()
    if py_spy is None or limit_s < SAMPLES_S:
        return 0
    sample = [
        py_spy,
        "record",
        "--nonblocking",
        "--idle",
        "--threads",
        "--format",
        "raw",
        "--output",
        "/dev/stdout",
    ]
    sample += ["--duration", str(SAMPLES_S), "--rate", str(SAMPLES_PER_S), "--pid", str(pid)]
    code, output, _ = await _run(sample, min(limit_s, SAMPLES_S + EACH_S))
    seen = [line for line in output.splitlines() if line.startswith("thread (")]
    # Threads have names where `threading` is imported, and else there is one.
    return len([line for line in seen if "): MainThread;" in line] or seen) if code == 0 else 0


def _kernel_stack(pid: int) -> str:
    stack = read_text(f"/proc/{pid}/stack", KERNEL_STACK_CHARS).strip()
    return f"kernel stack:\n{stack}" if stack else ""


async def _python_stack(pid: int, limit_s: float) -> tuple[str, str]:
    """(stack, "") or ("", why not)."""
    py_spy = find_py_spy()
    if py_spy is None:
        return "", "py-spy is not installed"
    try:
        os.readlink(f"/proc/{pid}/exe")
    except PermissionError:  # py-spy would say that it does not run
        return "", "not permitted: needs CAP_SYS_PTRACE"
    except OSError:
        pass
    code, output, errors = await _run([py_spy, "dump", "--nonblocking", "--pid", str(pid)], limit_s / 2)
    proc = read_proc(pid)
    if code != 0 and proc and proc.state in "RS":
        code, output, errors = await _run([py_spy, "dump", "--pid", str(pid)], limit_s / 2)
    if code == 0 and output.strip():
        return output.strip(), ""
    return "", (errors.strip().partition("\n")[0] or f"py-spy ended with {code}")[:300]


async def with_values(pid: int, limit_s: float) -> str:
    """Its stacks, with the values of arguments; empty where they cannot be had. Not to be kept: they may be secret."""
    py_spy = find_py_spy()
    if py_spy is None:
        return ""
    command = [py_spy, "dump", "--locals", "--pid", str(pid)]
    code, output, _ = await _run([*command, "--nonblocking"], limit_s / 2, VALUES_CHARS)
    if code != 0 and (proc := read_proc(pid)) and proc.state in "RS":
        code, output, _ = await _run(command, limit_s / 2, VALUES_CHARS)
    return output if code == 0 else ""


async def _run(command: list[str], limit_s: float, most: int = MAX_CHARS) -> tuple[int, str, str]:
    """Exit code (-1: killed after `limit_s`), and what was printed: at most `most` bytes, and the end of its errors."""
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        ended = await ask(command, limit_s=limit_s, most_bytes=most, env=env)
    except OutOfTime:
        return -1, "", f"py-spy did not answer within {limit_s:.1f} s"
    except SaidTooMuch as error:
        return 0, error.begun.decode(errors="replace"), error.complaint
    except ChildError as error:
        return -1, "", str(error)
    return ended.code, ended.answer.decode(errors="replace"), ended.complaint
