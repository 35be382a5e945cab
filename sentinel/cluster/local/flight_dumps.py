"""Reads what flight recorders of torch.distributed wrote: one file a rank, a pickle or JSON. No code of a file is run.

Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of PyTorch, version 2.x of the dump (torch 2.4 and later).
"""

import gzip
import io
import json
import math
import os
import pickle
import re
import resource
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.cluster.local.flight import Records
from sentinel.core.stacks.flight_record import Dump, Entry, Group, stuck

MOST_BYTES = 256 << 20  # of one dump; 2,000 operations with their stacks are some 3 MB
MOST_MEMORY, MOST_CPU_S = 4 << 30, 600  # of the child that reads them
MOST_CHARS = 200
GZIP = b"\x1f\x8b"
STALE_S = 3600.0  # a dump that ends so long before the others is of another run: the longest time-outs are half an hour
WORLD = "default_pg"
# Lists of numbers as the TorchScript pickler writes them, torch/csrc/jit/serialization/pickler.cpp.
_HARMLESS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch.jit._pickle", f"build_{kind}list"): list for kind in ("int", "double", "bool")
} | {("torch.jit._pickle", "restore_type_tag"): lambda value, _tag: value}
_PICKLE, _WORDS = b"\x80", (b"pg_config", b"collective_seq_id", b"pg_status")
_JSON = ((b'"entries"', b'"collective_seq_id"'), (b'"pg_config"', b'"pg_status"', b'"version"'))
# The prefix is the job's choice, the rank stands behind it; where a time is added, behind a word.
_RANK = (
    re.compile(r"(?<!\d)(\d{1,5})(?:\.(?:json|pkl|pickle|bin))?(?:\.gz)?$", re.IGNORECASE),
    re.compile(r"(?:rank|worker|task|proc)[-_. ]?(\d{1,5})(?!\d)", re.IGNORECASE),
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
    """`unread`: ranks of which there is a file that does not count. `notes`: what was left out, and why."""

    dumps: list[Dump]
    paths: list[str]
    unread: set[int]
    notes: list[str]


# ---------------------------------------------------------------- which files


def is_dump(head: bytes) -> bool:
    """By the first bytes of a file; 64 KiB tell."""
    if head[:1] == _PICKLE:
        return any(word in head for word in _WORDS)
    return head[:1] == b"{" and any(all(word in head for word in words) for words in _JSON)


def rank_of_dump(path: str) -> int | None:
    """The prefix that the job chose, and its rank: nccl_trace_rank_3, trace_12, comm_lib_trace_rank_0.json."""
    found = (pattern.search(os.path.basename(path)) for pattern in _RANK)
    return next((int(match[1]) for match in found if match is not None), None)


def read_dumps(paths: Iterable[str]) -> Read:
    """Never raises for a file: what cannot be read is noted. Of several of one rank the newest counts."""
    read = Read([], [], set(), [])
    newest: dict[int, tuple[float, str, Dump]] = {}
    for path in paths:
        rank = rank_of_dump(path)
        if rank is None:
            read.notes.append(f"{path}: its name tells no rank")
            continue
        try:
            dump = read_dump(_bytes(path), rank, os.stat(path).st_mtime)
        except (OSError, DumpError, MemoryError) as error:
            read.unread.add(rank)
            read.notes.append(f"{path}: {getattr(error, 'strerror', None) or error}")
            continue
        end_s = _end_s(dump)
        if rank in newest:
            older = min((newest[rank][0], newest[rank][1]), (end_s, path))
            read.notes.append(f"{older[1]}: older than another of rank {rank}")
        if rank not in newest or newest[rank][0] < end_s:
            newest[rank] = (end_s, path, dump)
    last_s = max((end_s for end_s, _, _ in newest.values()), default=0.0)
    for rank, (end_s, path, dump) in sorted(newest.items()):
        if 0.0 < end_s < last_s - STALE_S:
            hours = round((last_s - end_s) / 3600)
            read.notes.append(f"{path}: ends {hours} h before the others, as one of another run: left out")
            read.unread.add(rank)
            continue
        read.dumps.append(dump)
        read.paths.append(path)
    return read


def _bytes(path: str) -> bytes:
    """Packed ones too. Raises OSError, DumpError."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise DumpError("no file")
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


def read_dump(data: bytes, rank: int, written_s: float = 0.0) -> Dump:
    """Raises DumpError."""
    try:
        found = json.loads(data) if data[:1] == b"{" else _Unpickler(io.BytesIO(data)).load()
        raw = msgspec.convert(found, _RawDump)
        return _dump(raw, rank, written_s)
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


def _dump(raw: _RawDump, rank: int, written_s: float) -> Dump:
    groups: dict[tuple[str, str], Group] = {}
    places: dict[int, str] = {}
    numbers: dict[str, Group] = {}
    launches: dict[tuple[object, ...], list[_RawEntry]] = {}
    for one in raw.entries:
        if one.collective_seq_id is None:
            raise DumpError(
                "of a torch before 2.4, whose records do not tell which operations belong together"
            )
        numbers[str(one.pg_id)] = _group(raw.pg_config, one, groups)
        launches.setdefault(_launch(one), []).append(one)
    entries = [entry for launch in launches.values() for entry in _launched(launch, groups, places)]
    last: dict[Group, int] = {}
    status = raw.pg_status if isinstance(raw.pg_status, dict) else {}
    for number, told in status.items():
        enqueued = told.get("last_enqueued_collective") if isinstance(told, dict) else None
        if str(number) in numbers and isinstance(enqueued, int | str) and str(enqueued).isdigit():
            last[numbers[str(number)]] = int(enqueued)
    whole = not raw.entries or raw.entries[0].record_id == 0
    return Dump(rank, tuple(entries), last, whole, written_s)


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
        known[name, desc] = Group(_clean(name), _clean(desc), tuple(int(one) for one in ranks or ()))
    return known[name, desc]


def _launch(entry: _RawEntry) -> tuple[object, ...]:
    """Operations that one launch holds have one number; what another thread records may stand between them."""
    return (entry.pg_id, entry.is_p2p, entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id)


def _launched(
    launch: Sequence[_RawEntry], groups: dict[tuple[str, str], Group], places: dict[int, str]
) -> Iterable[Entry]:
    """Only the launch as a whole, which is told last (`coalesced`), knows how far it is."""
    last = launch[-1]
    whole = last if _op(last) == "coalesced" else None
    own = [one for one in launch if one is not whole] or [last]
    several, sends = len(own) > 1, last.is_p2p
    for one in own if sends else own[:1]:
        group = _group({}, one, groups)
        yield Entry(
            group=group,
            op=f"{_op(one)} coalesced" if several and not sends else _op(one),
            seq=one.p2p_seq_id if sends else one.collective_seq_id or 0,
            done=all(map(_done, [whole or one] if sends or whole else own)),
            started=(whole or one).state == "started",
            created_s=one.time_created_ns / 1e9,
            shapes="" if several else _shapes(one),
            amount="" if several else _amount(one),
            batched=whole is not None,
            peers=_peers(one, group),
            place=_place(one.frames, places),
        )


def _done(entry: _RawEntry) -> bool:
    """Gloo has no events to ask: what it has retired is done. NCCL retires what has timed out, too."""
    return entry.state == "completed" or (entry.retired and entry.profiling_name.startswith("gloo:"))


def _op(entry: _RawEntry) -> str:
    """ "nccl:send 1->2": "send"."""
    return _clean(entry.profiling_name.rpartition(":")[2].partition(" ")[0])


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


def _amount(entry: _RawEntry) -> str:
    """Types and how many numbers: the same ones in another shape are the same to NCCL."""
    sizes = entry.input_sizes if isinstance(entry.input_sizes, list | tuple) else ()
    counts = [math.prod(size) for size in sizes if isinstance(size, list | tuple)]
    return f"{entry.input_dtypes} {counts}" if counts else ""


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
    return _clean(f"{frame.get('name', '')} ({short}:{frame.get('line', 0)})")


def _clean(text: str) -> str:
    return text[:MOST_CHARS].encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- in a child


def main() -> None:
    """Of the paths that come as JSON on standard input. A file is anybody's: one that unfolds to too much, or makes the
    unpickler go round or break, ends this process and no other."""
    for limit, most in ((resource.RLIMIT_AS, MOST_MEMORY), (resource.RLIMIT_CPU, MOST_CPU_S)):
        hard = resource.getrlimit(limit)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (allowed, hard))
    read = read_dumps(msgspec.json.decode(sys.stdin.buffer.read(), type=list[str]))
    records = Records(
        files=read.paths,
        ranks=[dump.rank for dump in read.dumps],
        stuck=stuck(read.dumps, read.unread),
        notes=read.notes,
    )
    sys.stdout.buffer.write(msgspec.json.encode(records))
