"""What each rank's flight recorder of torch.distributed tells → who is missing in the collective operation in which the
others wait. Pure.

What the fields of a dump mean: torch/csrc/distributed/c10d/FlightRecorder{,Detail}.hpp of PyTorch.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from sentinel.core.signals import names

MOST_PLACES = 4  # lines of evidence of each side
# Here ranks may give and take as much as they like.
_UNEVEN = ("gather", "scatter", "all_to_all", "alltoall", "coalesced")


class Group(Struct, frozen=True):
    """A process group: groups of one name with other ranks are others."""

    name: str
    desc: str
    ranks: tuple[int, ...]  # of the job, in the order of the group; empty: not told

    @property
    def title(self) -> str:
        """ "default_pg", "3 (DP)"."""
        plain = self.desc in ("", "undefined", self.name)
        return (
            self.name if plain else self.desc if self.desc == "default_pg" else f"{self.name} ({self.desc})"
        )


class Entry(Struct, frozen=True):
    """One operation that a rank has begun to wait for, or has handed to its GPU."""

    group: Group
    op: str  # "all_reduce"
    seq: int  # within its group; collectives and sends are counted apart
    done: bool
    started: bool  # its GPU has begun it, as far as it was asked
    created_s: float  # Unix seconds
    shapes: str = ""  # "Float [4, 1024]"
    amount: str = ""  # "Float 4096": what must be the same on all ranks, where anything must
    batched: bool = False  # a send or a receive that was launched with others
    peers: tuple[int, int] | None = None  # of a send or a receive: (from, to), ranks of the job
    place: str = ""  # where the program called it: "step (train.py:88)"; "": not told


class Dump(Struct, frozen=True):
    """Of one rank, the oldest entry first."""

    rank: int
    entries: tuple[Entry, ...]
    last: Mapping[Group, int] = {}  # the last collective that it entered in each group, where that is told
    whole: bool = True  # nothing was dropped from it for want of room
    written_s: float = 0.0  # Unix seconds; 0: not known


class Kind(StrEnum):
    ABSENT = "absent"  # one or more ranks did not enter it, and wait for nothing that is recorded
    SILENT = "silent"  # ranks left no dump, and all others wait
    DIFFERENT = "different"  # they entered different operations
    CROSSED = "crossed"  # groups wait for each other
    LATE = "late"  # all are in it; the GPU of one has not begun it
    INSIDE = "inside"  # nothing tells for whom


ADVICE = {
    Kind.ABSENT: "Look at what the missing rank did instead: its log, its data, its GPU and its node.",
    Kind.SILENT: "Look at the rank without a record: whether its process died or was stopped, and at its node.",
    Kind.DIFFERENT: (
        "Let all ranks of a group call the same operations in the same order; a condition, a batch or an evaluation "
        "that not all of them have is the usual cause."
    ),
    Kind.CROSSED: "Let all ranks call the operations of different groups in one order.",
    Kind.LATE: "Look at the GPU of that rank, and at what it was given before this operation.",
    Kind.INSIDE: "Look at the links, network cards and GPUs of these ranks; NCCL_DEBUG=INFO names them.",
}


class Stuck(Struct, frozen=True, kw_only=True):
    """The operation in which ranks wait, and for whom."""

    kind: Kind
    ranks: tuple[int, ...]  # for which the others wait; empty: for none that can be told
    group: str
    op: str
    seq: int
    waiting: tuple[int, ...]
    since_s: float  # Unix seconds: when the first of them began to wait
    sentence: str
    evidence: tuple[str, ...] = ()  # where the ranks called what they are in
    advice: str = ""

    @property
    def rank(self) -> int | None:
        """Where it is one alone."""
        return self.ranks[0] if len(self.ranks) == 1 else None


class _Wait(Struct):
    """An operation of one group that was entered and is not done."""

    group: Group
    seq: int
    entries: dict[int, Entry]  # of the ranks that wait in it
    entered: dict[int, Entry]  # of all that tell of it, done or not
    missing: tuple[int, ...] = ()  # members that were in the group before, and did not come
    untold: tuple[int, ...] = ()  # members of which it is not known whether they came
    unseen: tuple[int, ...] = ()  # members that left no dump
    numbered: bool = True  # the same number is the same operation on all ranks

    @property
    def first(self) -> Entry:
        return min(self.entries.values(), key=lambda entry: entry.created_s)


def stuck(dumps: Sequence[Dump], unread: Collection[int] = ()) -> Stuck | None:
    """None: nobody waits. `unread`: ranks that left a dump which does not count."""
    of = {dump.rank: dump for dump in dumps}
    waits = [*_collectives(of), *_peers(of)]
    waits.sort(key=lambda wait: (-len(wait.entries), wait.first.created_s))
    if not waits:
        return None
    if len(of) == 1:
        return _alone(waits[0])
    busy = {dump.rank for dump in dumps if not all(entry.done for entry in dump.entries)}
    absent = [(wait, tuple(rank for rank in wait.missing if rank not in busy)) for wait in waits]
    if named := [(wait, ranks) for wait, ranks in absent if ranks]:
        return _absent(_clearest(named), sorted({rank for _, ranks in named for rank in ranks}), of)
    roots = [wait for wait in waits if not wait.missing]
    if not roots and not any(wait.unseen or wait.untold for wait in waits):
        return _crossed(waits)
    roots = roots or waits
    wait = next((wait for wait in roots if _odd(wait)), None)
    if wait is not None:
        return _different(wait)
    if unseen := sorted({rank for wait in waits for rank in wait.unseen}):
        return _silent(next(wait for wait in waits if wait.unseen), unseen, unread)
    return _inside(roots[0], of)


def _clearest(named: Sequence[tuple[_Wait, tuple[int, ...]]]) -> _Wait:
    """The wait for the fewest, and of those the one that no other wait explains in part, in which the most wait."""
    return min(named, key=lambda one: (len(one[1]), len(one[0].missing), -len(one[0].entries)))[0]


# ---------------------------------------------------------------- who waits in what


def _collectives(of: Mapping[int, Dump]) -> Iterable[_Wait]:
    told: dict[Group, dict[int, dict[int, Entry]]] = {}
    # Some versions of torch count a batch of sends as a collective of those that send.
    batched: set[Group] = set()
    for rank, dump in of.items():
        for entry in dump.entries:
            if entry.peers is None:
                told.setdefault(entry.group, {}).setdefault(rank, {})[entry.seq] = entry
            elif entry.batched:
                batched.add(entry.group)
    for group, by_rank in told.items():
        open_ = {
            rank: min(seq for seq, entry in entries.items() if not entry.done)
            for rank, entries in by_rank.items()
            if not all(entry.done for entry in entries.values())
        }
        if not open_:
            continue
        members = group.ranks or tuple(sorted(by_rank))
        unseen = tuple(rank for rank in members if rank not in of)
        if group in batched:
            own = {rank: by_rank[rank][first] for rank, first in open_.items()}
            yield _Wait(group, min(open_.values()), own, own, unseen=unseen, numbered=False)
            continue
        seq = min(open_.values())
        entries = {rank: by_rank[rank][seq] for rank, first in open_.items() if first == seq}
        since_s = min(entry.created_s for entry in entries.values())
        reached = {rank: _reached(of[rank], group, by_rank.get(rank, {})) for rank in members if rank in of}
        late = {rank for rank in reached if 0.0 < of[rank].written_s < since_s}  # written before they waited
        yield _Wait(
            group,
            seq,
            entries,
            {rank: by_rank[rank][seq] for rank in by_rank if seq in by_rank[rank]},
            missing=tuple(rank for rank, last in reached.items() if 0 < last < seq and rank not in late),
            untold=tuple(rank for rank, last in reached.items() if not last or (rank in late and last < seq)),
            unseen=unseen,
        )


def _reached(dump: Dump, group: Group, entries: Mapping[int, Entry]) -> int:
    """The last operation of the group that it entered; 0: it tells of none, and may be in the group's set-up, which is
    not recorded."""
    return max(dump.last.get(group, 0), max(entries, default=0))


def _peers(of: Mapping[int, Dump]) -> Iterable[_Wait]:
    """Sends and receives whose other side has not come."""
    told: dict[tuple[Group, tuple[int, int]], dict[int, list[Entry]]] = {}
    first: dict[tuple[Group, int], int] = {}  # of each rank in the group
    for rank, dump in of.items():
        for entry in dump.entries:
            if entry.peers is not None:
                told.setdefault((entry.group, entry.peers), {}).setdefault(rank, []).append(entry)
                key = (entry.group, rank)
                first[key] = min(entry.seq, first.get(key, entry.seq))
    for (group, peers), sides in told.items():
        for rank, entries in sides.items():
            place = next((place for place, entry in enumerate(entries) if not entry.done), None)
            if place is None:
                continue
            other = peers[1] if rank == peers[0] else peers[0]
            # The first of one side belongs to the first of the other: that holds where none was dropped.
            both = (rank, other) if other in of else ()
            sure = bool(both) and all(
                of[one].whole and of[one].entries and first.get((group, one), 1) <= 1 for one in both
            )
            entry = entries[place]
            came = len(sides.get(other, ())) > place
            yield _Wait(
                group,
                entry.seq,
                {rank: entry},
                {rank: entry},
                missing=(other,) if sure and not came else (),
                untold=(other,) if both and not sure and not came else (),
                unseen=() if other in of else (other,),
            )


def _odd(wait: _Wait) -> dict[int, Entry]:
    """Those that entered another operation than most did; of two sides of a size the later one. Empty: none."""
    kinds = Counter(_kind(entry) for entry in wait.entered.values())
    if len(kinds) < 2 or not wait.numbered:
        return {}
    most = kinds.most_common(1)[0][0]
    return {rank: entry for rank, entry in wait.entered.items() if _kind(entry) != most}


def _kind(entry: Entry) -> tuple[str, str]:
    uneven = any(word in entry.op for word in _UNEVEN)
    return entry.op, "" if uneven else entry.amount


# ---------------------------------------------------------------- what is said of it


def _absent(wait: _Wait, ranks: Sequence[int], of: Mapping[int, Dump]) -> Stuck:
    last = [(rank, _last(of[rank])) for rank in ranks]
    told, evidence = "", [f"rank {rank}: last entered {_called(entry)}" for rank, entry in last if entry]
    if len(evidence) == 1 and last[0][1] is not None:
        told, evidence = f" The last that it entered was {_called(last[0][1])}.", []
    here = [rank for rank in ranks if rank in wait.missing]
    who, there = names(here).capitalize(), f"{_operation(wait)}, in which {_are(wait)}{_at(wait)}"
    others = [rank for rank in ranks if rank not in here]
    more = f", nor did {names(others)} in that of another" if others else ""
    return _stuck(
        Kind.ABSENT, ranks, wait, f"{who} did not take part in {there}{more}.{told}", evidence[:MOST_PLACES]
    )


def _silent(wait: _Wait, unseen: Sequence[int], unread: Collection[int]) -> Stuck:
    sentence = (
        f"There is no record of {names([*unseen])}, and {_are(wait)} in {_operation(wait)}{_at(wait)}: a rank that had "
        "died, was stopped or could not be reached writes none, or its file is elsewhere."
    )
    alone = len(unseen) == 1 and not unread and not wait.untold
    return _stuck(Kind.SILENT, unseen if alone else (), wait, sentence)


def _alone(wait: _Wait) -> Stuck:
    where = f"{_operation(wait)}{_at(wait)}"
    sentence = f"{_are(wait).capitalize()} in {where}; the record of one rank does not tell for whom."
    return _stuck(Kind.INSIDE, (), wait, sentence)


def _different(wait: _Wait) -> Stuck:
    odd = _odd(wait)
    others = {rank: entry for rank, entry in wait.entered.items() if rank not in odd}
    sides: dict[tuple[str, str], list[int]] = {}
    for rank, entry in wait.entered.items():
        sides.setdefault(_kind(entry), []).append(rank)
    what = "; ".join(
        f"{names(ranks)} in {_called(wait.entered[ranks[0]], numbered=False)}"
        for ranks in sorted(sides.values(), key=len, reverse=True)[:MOST_PLACES]
    )
    sentence = f"Ranks of group {wait.group.title} went different ways at operation {wait.seq}: {what}."
    alone = len(odd) == 1 and len(others) > 1
    return _stuck(Kind.DIFFERENT, tuple(odd) if alone else (), wait, sentence)


def _crossed(waits: Sequence[_Wait]) -> Stuck:
    parts = [
        f"{names([*wait.entries])} in {_called(wait.first, wait.group)} for {names([*wait.missing])}"
        for wait in waits[:MOST_PLACES]
    ]
    sentence = f"Groups wait for each other: {'; '.join(parts)}."
    return _stuck(Kind.CROSSED, (), waits[0], sentence)


def _inside(wait: _Wait, of: Mapping[int, Dump]) -> Stuck:
    begun = [rank for rank, entry in wait.entries.items() if entry.started]
    late = [rank for rank in wait.entries if rank not in begun]
    where = f"{_operation(wait)}{_at(wait)}"
    if (
        len(late) == 1
        and len(begun) > 1
        and wait.numbered
        and not _waits_before(of[late[0]], wait.entries[late[0]])
    ):
        sentence = (
            f"{names(late).capitalize()} entered {where} as all others did, but its GPU has not begun it: it is busy, "
            "or stuck, in what it was given before."
        )
        return _stuck(Kind.LATE, late, wait, sentence)
    done = [rank for rank in wait.entered if rank not in wait.entries]
    over = f", which {names(done)} left" if done else ""
    if wait.untold:
        why = f"whether {names([*wait.untold])} came there is not recorded"
    else:
        why = "none that was seen is missing: a link, a network card or a GPU does not do its part, or it takes long"
    return _stuck(Kind.INSIDE, (), wait, f"{_are(wait).capitalize()} in {where}{over}; {why}.")


def _waits_before(dump: Dump, than: Entry) -> bool:
    return any(not entry.done and entry.created_s < than.created_s for entry in dump.entries)


def _stuck(
    kind: Kind, ranks: Iterable[int], wait: _Wait, sentence: str, evidence: Sequence[str] = ()
) -> Stuck:
    places: dict[str, list[int]] = {}
    for rank, entry in wait.entries.items():
        places.setdefault(entry.place, []).append(rank)
    waits = [
        f"{names(own)} in {_called(wait.entries[own[0]])}"
        for own in sorted(places.values(), key=len, reverse=True)
    ]
    return Stuck(
        kind=kind,
        ranks=tuple(sorted(ranks)),
        group=wait.group.title,
        op=wait.first.op,
        seq=wait.seq,
        waiting=tuple(sorted(wait.entries)),
        since_s=wait.first.created_s,
        sentence=sentence,
        evidence=(*evidence, *waits[:MOST_PLACES]),
        advice=ADVICE[kind],
    )


def _last(dump: Dump) -> Entry | None:
    return max(dump.entries, key=lambda entry: entry.created_s, default=None)


def _operation(wait: _Wait) -> str:
    entry = wait.first
    if entry.peers is not None:
        return f"the {entry.op} from rank {entry.peers[0]} to rank {entry.peers[1]}"
    return f"{entry.op} {wait.seq} of group {wait.group.title}"


def _called(entry: Entry, group: Group | None = None, *, numbered: bool = True) -> str:
    of_group = f" of group {group.title}" if group is not None else ""
    shapes = f" of {entry.shapes}" if not numbered and entry.shapes else ""
    number = f" {entry.seq}" if numbered else ""
    return f"{entry.op}{number}{shapes}{of_group}" + (f" at {entry.place}" if entry.place else "")


def _are(wait: _Wait) -> str:
    """ "15 ranks wait", "rank 0 waits"."""
    ranks = [*wait.entries]
    return f"{len(ranks)} ranks wait" if len(ranks) > 1 else f"{names(ranks)} waits"


def _at(wait: _Wait) -> str:
    """Where the program called it, where most of them did so."""
    places = Counter(entry.place for entry in wait.entries.values())
    place, count = places.most_common(1)[0]
    return f", called at {place}" if place and 2 * count > len(wait.entries) else ""
