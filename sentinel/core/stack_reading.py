"""Text that tells where a rank stands → what it waits for, and of all ranks the one for which the others wait. Pure."""

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec import Struct, structs

from sentinel.core import pauses
from sentinel.core.model import Symptom, Verdict
from sentinel.core.process_states import HALTED, STOPPED

# As cluster/local/stacks.py heads it.
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
_FRAME = re.compile(r"^ {4}(?P<function>\S+) \((?P<file>[^()]*?)(?::\d+)?\)$")
# A rank waits for others where its innermost frames, before any of another program, are of a library that does it.
_LIBRARY = re.compile(r"(?:^|/)(?:(?:torch|deepspeed|horovod|mpi4py)/|sentinel/integrations/agreement\b)")
# There in files of such names. In the backward pass and at the GPU it may wait for others too, or for itself.
_WAITS_IN = re.compile(r"/(?:distributed|comm)/|horovod/|mpi4py/|sentinel/integrations/agreement\b")
_MAY_WAIT = frozenset({"_engine_run_backward", "synchronize"})
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
    sure = _is_sure(waits) if waits else _LOADS.search(place["file"]) is not None
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
    )


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


def named(verdict: Verdict, stacks: Sequence[str], size: int) -> Verdict:
    """Of a hang of which logs do not tell who stopped first: with that rank, where all others wait for it. `size`: of
    the job; where it is one launcher, the stacks are those of the ranks that it has started."""
    if (
        verdict.symptom != Symptom.HANG
        or verdict.worker is not None
        or (size > 1 and verdict.rank is not None)
    ):
        return verdict
    heads = [read_head(text) for text in stacks]
    stopped = [head for head in heads if head is not None and head.state == HALTED]
    if len(stopped) == 1 and len(heads) > 1:
        return _blaming(
            verdict,
            stopped[0].number,
            f"Rank {stopped[0].number} (pid {stopped[0].pid}) is {STOPPED[HALTED]}.",
            size,
            len(heads),
        )
    read_all = [read(text) for text in stacks]
    found = [stack for stack in read_all if stack is not None]
    away = [stack for stack in found if not stack.waits]
    if len(found) != len(read_all) or len(found) < 2 or len(away) != 1:
        return verdict
    one, others = away[0], [stack for stack in found if stack.waits]
    # A number that is fetched from the GPU (`loss.item()`) shows no frame of torch, and waits for the others' work too.
    if not (one.surely or one.runs or all(stack.surely for stack in others)):
        return verdict
    other = others[0]
    why = (
        f"Rank {one.number} stands in {one.place}; {'all others wait' if len(found) > 2 else 'the other waits'} for it "
        f"in {other.waits}."
    )
    return _blaming(verdict, one.number, why, size, len(found))


def _blaming(verdict: Verdict, number: int, why: str, size: int, seen: int) -> Verdict:
    of_launcher = size == 1
    return structs.replace(
        verdict,
        rank=0 if of_launcher else number if seen == size else None,
        worker=number if of_launcher else None,
        sentence=f"{verdict.sentence} {why}",
    )
