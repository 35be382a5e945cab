"""Reads what flight recorders of torch.distributed wrote: one file a rank, a pickle or JSON. No code of a file is run.

Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of PyTorch, versions 1.x and 2.x of the dump.
"""

import gzip
import io
import json
import os
import pickle
import re
import resource
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.cluster.local.flight import in_folder
from sentinel.core.flight_record import Dump, Entry, Group, stuck

MOST_BYTES = 256 << 20  # of one dump; 2,000 operations with their stacks are some 3 MB
MOST_MEMORY = 4 << 30  # of the child that reads those of a job
GZIP = b"\x1f\x8b"
STALE_S = 3600.0  # a dump that ends so long before the others is of another run: the longest time-outs are half an hour
WORLD = "default_pg"
# Lists of numbers as the TorchScript pickler writes them, torch/csrc/jit/serialization/pickler.cpp.
_HARMLESS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch.jit._pickle", f"build_{kind}list"): list for kind in ("int", "double", "bool")
} | {("torch.jit._pickle", "restore_type_tag"): lambda value, _tag: value}
_WORDS = (b"pg_config", b"collective_seq_id", b"nccl_comm_state", b"pg_status")
_RANK = re.compile(
    r"(?:rank|worker|task|proc)[-_. ]?(\d{1,5})(?!\d)|(\d{1,5})(?=(?:\.(?:json|pkl|pickle|bin))?(?:\.gz)?$)",
    re.IGNORECASE,
)
_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")
# Frames of these are not the program's own.
_LIBRARY = re.compile(r"-packages/|(?:^|/)torch/|/lib(?:64)?/python3|^<|\.(?:cpp|cc|cxx|c|h|hpp)$")


class DumpError(ValueError):
    """It is no dump of a flight recorder, or cannot be read; the message says why."""


class _RawEntry(Struct):
    profiling_name: str = ""
    record_id: int = 0
    pg_id: int = 0
    process_group: Any = None
    collective_seq_id: int | None = None
    seq_id: int = 0  # of version 1.x
    p2p_seq_id: int = 0
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    time_created_ns: int = 0
    input_sizes: Any = ()
    input_dtypes: Any = ()
    frames: Any = ()


class _RawDump(Struct):
    version: Any = ""
    pg_config: Any = {}
    pg_status: Any = {}
    entries: list[_RawEntry] = []


class Read(Struct):
    """`notes`: what was left out, and why. `paths`: those that were read."""

    dumps: list[Dump]
    paths: list[str]
    notes: list[str]


# ---------------------------------------------------------------- which files


def is_dump(head: bytes) -> bool:
    """By the first bytes of a file; 64 KiB tell."""
    return head[:1] in (b"\x80", b"{") and any(word in head for word in _WORDS)


def rank_of_dump(path: str) -> int | None:
    """The prefix that the job chose, and its rank: nccl_trace_rank_3, trace_12, comm_lib_trace_rank_0.json."""
    match = _RANK.search(os.path.basename(path))
    return None if match is None else int(match[1] or match[2])


def read_dumps(paths: Iterable[str]) -> Read:
    """Never raises for a file: what cannot be read is noted. Of several of one rank the newest counts."""
    read = Read([], [], [])
    newest: dict[int, tuple[float, str, Dump]] = {}
    for path in paths:
        rank = rank_of_dump(path)
        if rank is None:
            read.notes.append(f"{path}: its name tells no rank")
            continue
        try:
            dump = read_dump(_bytes(path), rank)
        except (OSError, DumpError) as error:
            read.notes.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            continue
        end_s = _end_s(dump)
        if rank in newest:
            older = min((newest[rank][0], newest[rank][1]), (end_s, path))
            read.notes.append(f"{older[1]}: older than another of rank {rank}")
        if rank not in newest or newest[rank][0] < end_s:
            newest[rank] = (end_s, path, dump)
    last_s = max((end_s for end_s, _, _ in newest.values()), default=0.0)
    for _, (end_s, path, dump) in sorted(newest.items()):
        if 0.0 < end_s < last_s - STALE_S:
            hours = round((last_s - end_s) / 3600)
            read.notes.append(f"{path}: ends {hours} h before the others, so it is of another run; left out")
            continue
        read.dumps.append(dump)
        read.paths.append(path)
    return read


def _bytes(path: str) -> bytes:
    """Packed ones too. Raises OSError, DumpError."""
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        try:
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
        except (EOFError, zlib.error) as error:
            raise DumpError(f"cut off or damaged: {error}") from None
    if len(data) > MOST_BYTES:
        raise DumpError(f"larger than {MOST_BYTES >> 20} MiB")
    return data


def _end_s(dump: Dump) -> float:
    return max((entry.created_s for entry in dump.entries), default=0.0)


# ---------------------------------------------------------------- one file


class _Unpickler(pickle.Unpickler):
    """Knows data alone."""

    def find_class(self, module: str, name: str) -> Any:
        known = _HARMLESS.get((module, name))
        if known is None:
            raise DumpError(f"it asks for {module}.{name}, which no flight recorder writes: not read")
        return known

    def persistent_load(self, _pid: Any) -> Any:
        raise DumpError("it refers to something outside of it, which no flight recorder does: not read")


def read_dump(data: bytes, rank: int) -> Dump:
    """Raises DumpError."""
    try:
        found = json.loads(data) if data[:1] == b"{" else _Unpickler(io.BytesIO(data)).load()
        raw = msgspec.convert(found, _RawDump)
        return _dump(raw, rank)
    except DumpError:
        raise
    except msgspec.ValidationError as error:
        raise DumpError(f"not what a flight recorder writes: {error}") from None
    except (EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DumpError(f"cut off or damaged: {error}") from None
    except (
        pickle.UnpicklingError,
        ValueError,
        IndexError,
        KeyError,
        AttributeError,
        TypeError,
        ImportError,
        MemoryError,
        OverflowError,
        RecursionError,
    ) as error:  # whatever a pickle of rubbish can do
        raise DumpError(f"not what a flight recorder writes: {error}") from None


def _dump(raw: _RawDump, rank: int) -> Dump:
    groups: dict[tuple[str, str], Group] = {}
    places: dict[int, str] = {}
    numbers: dict[str, Group] = {}
    entries: list[Entry] = []
    flight: list[_RawEntry] = []
    for one in raw.entries:
        group = _group(raw.pg_config, one, groups)
        numbers[str(one.pg_id)] = group
        if flight and (_launch(flight[0]) != _launch(one)):
            entries += _launched(flight, groups, places)
            flight = []
        flight.append(one)
    entries += _launched(flight, groups, places)
    last: dict[Group, int] = {}
    status = raw.pg_status if isinstance(raw.pg_status, dict) else {}
    for number, told in status.items():
        enqueued = told.get("last_enqueued_collective") if isinstance(told, dict) else None
        if str(number) in numbers and isinstance(enqueued, int | str) and str(enqueued).isdigit():
            last[numbers[str(number)]] = int(enqueued)
    whole = not raw.entries or raw.entries[0].record_id == 0
    return Dump(rank, tuple(entries), last, whole)


def _group(config: Any, entry: _RawEntry, known: dict[tuple[str, str], Group]) -> Group:
    named = entry.process_group
    name, desc = (named, "") if isinstance(named, str) else (str(entry.pg_id), "")
    if isinstance(named, list | tuple) and len(named) == 2:
        name, desc = str(named[0]), str(named[1])
    if (name, desc) not in known:
        config = config if isinstance(config, dict) else {}
        told = config.get(name, config.get(entry.pg_id))
        if told is None and desc == WORLD:
            told = config.get("")  # gloo's groups have no names there
        if isinstance(told, dict):
            told = told.get("ranks")
        ranks = re.findall(r"\d+", told) if isinstance(told, str) else told
        known[name, desc] = Group(name, desc, tuple(int(one) for one in ranks or ()))
    return known[name, desc]


def _launch(entry: _RawEntry) -> tuple[object, ...]:
    """Operations that one launch holds have one number."""
    return (entry.pg_id, entry.is_p2p, entry.p2p_seq_id if entry.is_p2p else _seq(entry))


def _seq(entry: _RawEntry) -> int:
    return entry.seq_id if entry.collective_seq_id is None else entry.collective_seq_id


def _launched(
    flight: Sequence[_RawEntry], groups: dict[tuple[str, str], Group], places: dict[int, str]
) -> Iterable[Entry]:
    """Only the launch as a whole, which is told last (`coalesced`), knows how far it is."""
    if not flight:
        return
    first, last = flight[0], flight[-1]
    whole = last if _op(last) == "coalesced" else None
    own = [one for one in flight if one is not whole] or [last]
    several = len(own) > 1
    for one in own if first.is_p2p else own[:1]:
        group = _group({}, one, groups)
        yield Entry(
            group=group,
            op=f"{_op(one)} coalesced" if several and not one.is_p2p else _op(one),
            seq=one.p2p_seq_id if one.is_p2p else _seq(one),
            done=all(map(_done, [whole or one] if one.is_p2p or whole else own)),
            started=(whole or one).state == "started",
            created_s=one.time_created_ns / 1e9,
            shapes="" if several else _shapes(one),
            peers=_peers(one, group),
            place=_place(one.frames, places),
        )


def _done(entry: _RawEntry) -> bool:
    """Gloo has no events to ask: what it has retired is done. NCCL retires what has timed out, too."""
    return entry.state == "completed" or (entry.retired and entry.profiling_name.startswith("gloo:"))


def _op(entry: _RawEntry) -> str:
    """ "nccl:send 1->2": "send"."""
    return entry.profiling_name.rpartition(":")[2].partition(" ")[0]


def _peers(entry: _RawEntry, group: Group) -> tuple[int, int] | None:
    match = _PEERS.search(entry.profiling_name) if entry.is_p2p else None
    if match is None:
        return None
    sides = [int(match[1]), int(match[3])]
    if all(side < len(group.ranks) for side in sides):
        sides = [group.ranks[side] for side in sides]
    return (sides[0], sides[1]) if match[2] == "->" else (sides[1], sides[0])


def _shapes(entry: _RawEntry) -> str:
    sizes = entry.input_sizes if isinstance(entry.input_sizes, list | tuple) else ()
    types = entry.input_dtypes if isinstance(entry.input_dtypes, list | tuple) else ()
    kinds = [str(types[place]) if place < len(types) else "" for place in range(len(sizes))]
    said = [f"{kind} {list(size)}".strip() for kind, size in zip(kinds, sizes, strict=True)]
    return ", ".join(said[:2]) + (f" and {len(said) - 2} more" if len(said) > 2 else "")


def _place(frames: Any, known: dict[int, str]) -> str:
    """The innermost frame of the program."""
    if not isinstance(frames, list | tuple):
        return ""
    first = ""
    for frame in frames:
        if id(frame) not in known:  # the dump holds each frame once
            known[id(frame)] = _frame(frame)
        text = known[id(frame)]
        first = first or text
        if text and not _LIBRARY.search(str(frame.get("filename", ""))):
            return text
    return first


def _frame(frame: Any) -> str:
    if not isinstance(frame, dict):
        return ""
    folder, _, file = str(frame.get("filename", "")).rpartition("/")
    short = f"{folder.rpartition('/')[2]}/{file}" if folder else file
    return f"{frame.get('name', '')} ({short}:{frame.get('line', 0)})"


# ---------------------------------------------------------------- in a child


def main() -> None:
    """Beside other jobs: rubbish that unfolds to more is refused."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    found = stuck(read_dumps(in_folder(sys.argv[1])).dumps)
    sys.stdout.buffer.write(msgspec.json.encode(found))
