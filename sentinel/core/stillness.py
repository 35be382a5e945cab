"""Do the processes of a silent job stand still? Looks at the stacks of all ranks, each compared with the last. Pure."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from sentinel.core.signals import names
from sentinel.core.stack_reading import Head, Stack, read, read_head

# CPU seconds in a second: what sleeps uses next to none, what computes a whole one.
BUSY = 0.05
# A thread that goes round fetches data, takes locks: it gives its CPU away. One that spins in one call does not.
SLEEPS_PER_S = 0.2
# What trackers of experiments and a job's own monitors write is less: bytes in a second.
IO_BYTES_PER_S = 1 << 20


class Seen(Struct, frozen=True):
    """One rank at one look."""

    head: Head
    stack: Stack | None
    why: str  # there is no stack


class Looks:
    """Of one incarnation. `count` looks in a row, from `first_s` to `last_s`, have found the same."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = 0
        self.first_s = self.last_s = 0.0
        self.texts: tuple[str, ...] = ()
        self.doubt = ""  # why it was not so the last time
        self._seen: dict[int, Seen] = {}

    @property
    def still_s(self) -> float:
        """For how long nothing has moved, as far as looks can tell."""
        return self.last_s - self.first_s if self.count > 1 else 0.0

    def fold(self, texts: Sequence[str], at_s: float, since_s: float, going: Collection[int] = ()) -> None:
        """What a look has brought. `since_s`: the silence began; `going`: ranks that still make iterations."""
        seen = {one.head.number: one for text in texts if (one := _read(text)) is not None}
        seen = {number: one for number, one in seen.items() if number not in going}
        if not self.count or self.first_s < since_s:
            self.count, self.first_s, self.doubt = 0, at_s, ""
        elif moved := _difference(self._seen, seen, at_s - self.last_s):
            self.count, self.first_s, self.doubt = 0, at_s, moved
        self.count += 1
        self.last_s, self.texts, self._seen = at_s, tuple(texts), seen

    def words(self) -> str:
        ranks = names(list(self._seen))
        return f"{self.count} looks at the stacks of {ranks}: none has moved"


def _read(text: str) -> Seen | None:
    head = read_head(text)
    if head is None:
        return None
    _, _, why = text.partition("no Python stack: ")
    return Seen(head, read(text), why.partition("\n")[0])


def _difference(before: Mapping[int, Seen], now: Mapping[int, Seen], span_s: float) -> str:
    """Why this is not a job that stands still; empty where it is."""
    if not any(one.head.pid for one in now.values()):
        return "nobody tells where its processes stand"
    if before.keys() != now.keys():
        return "other processes than before are there"
    places = {one.stack.place if one.stack else "" for one in now.values()}
    together = len(now) > 1 and len(places) == 1
    for number, new in now.items():
        if what := _moved(before[number], new, span_s) or _doubt(before[number], new, span_s, together):
            return f"rank {number} {what}"
    return ""


def _moved(old: Seen, new: Seen, span_s: float) -> str:
    if old.head.pid != new.head.pid:
        return "is another process than before"
    if old.stack and new.stack and old.stack.frames != new.stack.frames:
        if old.stack.place == new.stack.place:
            return f"moves: it comes to {new.stack.place} by different ways"
        return f"moves: it stood in {old.stack.place}, then in {new.stack.place}"
    if _grows(old.head.io_bytes, new.head.io_bytes, IO_BYTES_PER_S * span_s):
        return "reads or writes"
    if _grows(old.head.helpers_cpu_s, new.head.helpers_cpu_s, BUSY * span_s):
        return "has helper processes that compute"
    return ""


def _doubt(old: Seen, new: Seen, span_s: float, together: bool) -> str:
    """Its stack is the same, but that may be so in a program that is well. `together`: all ranks stand in one place."""
    if not new.head.pid:
        return ""  # it was gone before
    told = old.head.cpu_s is not None and new.head.cpu_s is not None
    sleeps = told and not _grows(old.head.cpu_s, new.head.cpu_s, BUSY * span_s)
    if sleeps and "futex" in new.head.channel:
        return ""
    stack = new.stack if old.stack else None
    if stack is None:
        return f"shows no stack ({new.why or old.why})"
    if sleeps:
        if stack.waits or stack.inner_waits or stack.surely:
            return ""
        return f"may wait for something outside the job, in {stack.place}"
    # Who waits for the GPU spins as one who computes does, in one call; one who goes round passes other places too.
    round_and_round = new.head.places is None or new.head.places > 1
    if round_and_round or _grows(old.head.sleeps, new.head.sleeps, SLEEPS_PER_S * span_s):
        return f"may go round, through {stack.place}"
    if stack.waits or stack.inner_waits or together:
        return ""
    return f"may compute, in {stack.place}"


def _grows(old: float | None, new: float | None, least: float) -> bool:
    return old is not None and new is not None and new - old > least
