"""Text that tells where a rank stands → what it waits for, and where the processes stand that it waits for. Pure."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile

from msgspec import Struct

from sentinel.core.stacks import pauses

# As cluster/local/stacks.py heads it, and what it writes below it.
_RANK = re.compile(
    r"rank (\d+): (?:pid (?P<pid>\d+) \((?P<state>\S)(?: in (?P<channel>[^)]*))?\))?(?P<more>.*)"
)
_USED = re.compile(
    r"CPU ([\d.]+) s \(main thread ([\d.]+) s\), helpers' CPU ([\d.]+) s, I/O (\d+) bytes, "
    r"(\d+) sleeps \((\d+) of all threads\)"
)
_PLACES = re.compile(r"samples in (\d+) place")
# As py-spy prints a stack: `Thread 812 (active): "MainThread"`, then `    all_reduce (torch/distributed/….py:2501)`.
_THREAD = re.compile(r'^Thread (?P<state>.*?)(?:: "(?P<name>[^"]*)")?$')
# It holds the interpreter: it runs Python. Who waits for a GPU has let go of it, as a rule: in `loss.item()` too.
_RUNS_PYTHON = "+gil)"
_SLEEPS = "(idle)"
_FRAME = re.compile(r"^ {4}(?P<function>\S+) \((?P<file>[^()]*?)(?::\d+)?\)$")
# A rank waits for others where its innermost frames, before any of another program, are of a library that does it.
_LIBRARY = re.compile(r"(?:^|/)(?:(?:torch|deepspeed|horovod|mpi4py)/|sentinel/integrations/agreement\b)")
# There in files of such names. In the backward pass and at the GPU it may wait for others too, or for itself.
_WAITS_IN = re.compile(r"/(?:distributed|comm)/|horovod/|mpi4py/|sentinel/integrations/agreement\b")
_RUN_BACKWARD = "_engine_run_backward"
_MAY_WAIT = frozenset({_RUN_BACKWARD, "synchronize"})
# The backward pass of a torch that has no frame of that name yet, as 1.13.
_BACKWARD = re.compile(r"^ {4}(?:backward|grad) \((?:\S*/)?torch/autograd/__init__\.py\b")
# Who waits here waits for no rank.
_LOADS = re.compile(r"(?:^|/)torch/utils/data/")
# Libraries that talk to other hosts, or run programs.
_TALKS = re.compile(
    r"(?:^|/)(?:socket|ssl|subprocess|asyncio|http|urllib3?|requests|httpx|httpcore|aiohttp|botocore|s3transfer|grpc)\b"
)
# A launcher of the rank's own stands in such a folder too.
_RUNS = re.compile(r"distributed/(?:run|launch|launcher|elastic)\b")
# What a program calls and did not write: where the line of the program itself is looked for.
_OF_OTHERS = re.compile(
    r"^(?:accelerate|apex|composer|datasets|deepspeed|horovod|joblib|lightning|lightning_fabric|megatron/core|mpi4py"
    r"|numpy|peft|pytorch_lightning|ray|sentinel|torch|torchvision|transformer_engine|transformers|trl|webdataset)/"
    r"|/(?:site|dist)-packages/|^<frozen"
)
# Who is here gets work from processes that it has started.
_BY_OTHERS = re.compile(
    r"(?:^|/)(?:subprocess\.py|multiprocessing/|concurrent/futures/|joblib/|torch/utils/data/)"
)
# Through with its program, or with the process group: it comes to no collective again.
_ENDS = re.compile(
    r"^ {4}(?:\S+\.)?(?:_shutdown \(threading\.py|_python_exit \(concurrent/futures/"
    r"|(?:_exit_function|_run_finalizers) \(multiprocessing/util\.py"
    r"|(?:destroy_process_group|_shutdown_backend) \((?:\S*/)?torch/distributed/)"
)
# Ranks of a pipeline, and of groups smaller than the job, wait in different calls of a program that is right.
_SENDS = re.compile(r"(?:^|[._])i?(?:send|recv)(?:_|$)|p2p|_communicate$")
_STAGES = re.compile(
    r"p2p|pipelin|/pipe/|/moe/|/mpu/|tensor/parallel|(?:tensor|model|expert|sequence|context)_parallel"
    r"|_functional_collectives"
)
# Below the stack of a rank: a process that it has started. Its frames are further in than those of a rank's threads.
_HELPER = re.compile(
    r"^helper pid (?P<pid>\d+) \((?P<state>\S)(?: in (?P<channel>[^)]*))?\)(?:, (?P<program>\S+))?"
)
HELPER_FRAME = " " * 6
_STARTS = re.compile(r"^ {4}(?:\S+\.)?_bootstrap \(multiprocessing/process\.py")
_HAS_NO_TASK = "_worker_loop"  # of torch.utils.data


class Helper(Struct, frozen=True):
    """A process that a rank has started, and may wait for."""

    pid: int
    state: str  # as in /proc/PID/stat
    channel: str  # where in the kernel it waits
    program: str
    place: str  # the innermost frame that is not of Python's own library; "": not known
    waits_for_work: bool  # a worker of a data loader without a task, or nothing of its program runs


class Stack(Struct, frozen=True):
    """Of one rank's main thread; frames are told innermost first."""

    number: int
    place: str  # the innermost frame that is not of Python's own library: "spin (train.py:12)"
    waits: str  # the frame in which it waits for others, or may; "": it does not
    surely: bool  # it does wait for others, or does not
    frames: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # of its other threads
    talks: bool = False  # one of those does network requests, or runs a program
    asks: bool = False  # it does so itself
    runs: bool = False  # it runs Python at this moment
    pause: str = ""  # the frame of an evaluation, a save or a preparation of data in which it is
    called: str = ""  # the line of the program that led there, where that is another one: "train.py:88"
    ends: str = ""  # the frame in which it ends, or leaves the process group
    sends: bool = False  # it sends to one other rank, or waits for one
    staged: bool = False  # one of a pipeline, or of a group that is smaller than the job
    loads: bool = False  # it waits for a batch of a data loader
    awaits: bool = False  # it may wait for processes that it has started
    helpers: tuple[Helper, ...] = ()  # those that were looked at, the most telling first
    idle: bool = False  # it sleeps


class Used(Struct, frozen=True, gc=False):
    """By one process since its start. A sleep: a thread gave its CPU away."""

    cpu_s: float
    main_cpu_s: float  # by its main thread
    helpers_cpu_s: float  # by its descendants, those included that it has waited for
    io_bytes: float
    sleeps: float  # of its main thread
    all_sleeps: float


class Head(Struct, frozen=True, gc=False):
    """The first line. `pid` 0: gone."""

    number: int
    pid: int = 0
    channel: str = ""  # where in the kernel it waits
    state: str = ""  # as in /proc/PID/stat
    used: Used | None = None  # None: not told
    places: int = 0  # in the program in which samples have seen the main thread; 0: not sampled


def read_head(text: str) -> Head | None:
    """None: not the text of a rank."""
    head = _RANK.match(text)
    if head is None:
        return None
    used, places = _USED.search(head["more"]), _PLACES.search(head["more"])
    return Head(
        int(head.group(1)),
        int(head["pid"] or 0),
        head["channel"] or "",
        head["state"] or "",
        Used(*map(float, used.groups())) if used else None,
        int(places.group(1)) if places else 0,
    )


def read(text: str) -> Stack | None:
    """None: not the Python stack of a rank."""
    head = _RANK.match(text)
    state, frames, others = _threads(text.splitlines()) if head else ("", [], [])
    if head is None or not frames:
        return None
    inner = takewhile(lambda frame: _LIBRARY.search(frame["file"]), frames)
    waits = next((frame for frame in inner if _is_wait(frame)), None)
    place = next((frame for frame in frames if not _is_standard(frame)), frames[0])
    loads = _LOADS.search(place["file"]) is not None
    sure = _is_sure(waits) if waits else loads
    program = next((frame for frame in frames if _is_programs(frame)), None)
    library = list(takewhile(lambda frame: not _is_programs(frame), frames))
    ends = next((frame for frame in frames if _ENDS.match(frame.string)), None)
    return Stack(
        int(head.group(1)),
        place[0].strip(),
        waits[0].strip() if waits else "",
        sure,
        tuple(frame[0].strip() for frame in frames),
        tuple(frame[0].strip() for frame in others),
        any(_TALKS.search(frame["file"]) for frame in others),
        any(_TALKS.search(frame["file"]) for frame in frames),
        state.endswith(_RUNS_PYTHON),
        pauses.frame_of(frames),
        _line(program) if program is not None and program is not (waits or place) else "",
        ends[0].strip() if ends else "",
        _sends(waits or place),
        any(_sends(frame) or _STAGES.search(frame["file"]) for frame in frames),
        loads and not waits,
        not waits and any(_BY_OTHERS.search(frame["file"]) for frame in library),
        tuple(_helpers(text.splitlines())),
        state.endswith(_SLEEPS),
    )


def in_backward(frame: str) -> bool:
    """Of one in which a rank waits, or may."""
    return frame.startswith(f"{_RUN_BACKWARD} (") or _BACKWARD.match(f"    {frame}") is not None


def own_frames(dump: str) -> tuple[str, ...]:
    """Of the main thread in what py-spy printed of a process that a rank has started, innermost first, without those
    that a fork keeps of its parent."""
    frames = takewhile(lambda frame: not _STARTS.match(frame.string), _threads(dump.splitlines())[1])
    return tuple(frame[0].strip() for frame in frames)


def paused_in(stacks: Iterable[Stack | None]) -> str:
    """Where the first rank stands that evaluates, saves or prepares data; the others may wait for it. "": none does."""
    return next((stack.pause for stack in stacks if stack is not None and stack.pause), "")


def _threads(lines: Sequence[str]) -> tuple[str, list[re.Match[str]], list[re.Match[str]]]:
    """State and frames of the main thread, else of the first, innermost first; and the frames of all others."""
    threads: list[tuple[str, str, list[re.Match[str]]]] = []
    for line in lines:
        if (thread := _THREAD.match(line)) is not None:
            threads.append((thread.group("name") or "", thread["state"], []))
        elif threads and (frame := _FRAME.match(line)) is not None:
            threads[-1][2].append(frame)
    threads.sort(key=lambda thread: thread[0] != "MainThread")
    if not threads:
        return "", [], []
    return threads[0][1], threads[0][2], [frame for _, _, frames in threads[1:] for frame in frames]


def _is_standard(frame: re.Match[str]) -> bool:
    return frame["file"].partition("/")[0].removesuffix(".py") in sys.stdlib_module_names


def _is_wait(frame: re.Match[str]) -> bool:
    if _RUNS.search(frame["file"]):
        return False
    may = frame["function"].rpartition(".")[2] in _MAY_WAIT or _BACKWARD.match(frame.string) is not None
    return may or _is_sure(frame)


def _is_sure(frame: re.Match[str]) -> bool:
    return _WAITS_IN.search(frame["file"]) is not None


def _is_programs(frame: re.Match[str]) -> bool:
    return not _is_standard(frame) and _OF_OTHERS.search(frame["file"]) is None


def _line(frame: re.Match[str]) -> str:
    return frame[0].strip().partition(" (")[2].removesuffix(")")


def _sends(frame: re.Match[str]) -> bool:
    by_name = _SENDS.search(frame["function"]) is not None and _TALKS.search(frame["file"]) is None
    return by_name or "p2p" in frame["file"]


def _helpers(lines: Sequence[str]) -> Iterator[Helper]:
    starts = [k for k, line in enumerate(lines) if _HELPER.match(line)]
    for start, end in pairwise((*starts, len(lines))):
        head = _HELPER.match(lines[start])
        # As of a rank's own thread, which they must not be taken for.
        told = (line[2:] for line in lines[start + 1 : end] if line.startswith(HELPER_FRAME))
        frames = [frame for line in told if (frame := _FRAME.match(line)) is not None]
        place = next((frame for frame in frames if not _is_standard(frame)), None)
        if head is not None:
            yield Helper(
                int(head["pid"]),
                head["state"],
                head["channel"] or "",
                head["program"] or "",
                place[0].strip() if place else "",
                bool(frames) and (place is None or place["function"] == _HAS_NO_TASK),
            )
