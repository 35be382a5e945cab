"""Do the processes of a silent job stand still? Looks at the stacks of all ranks, each compared with the last. Pure."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from sentinel.core.signals import names
from sentinel.core.stacks.reading import Head, Stack, paused_in, read, read_head

# CPU seconds in a second: what sleeps uses next to none, what computes a whole one.
BUSY = 0.05
# A thread that goes round fetches data, takes locks: it gives its CPU away. One that waits in one call does not.
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
        self.stood_s = 0.0  # when anybody last looked, also where that proves nothing
        self.stood_in = ""  # in which pause a rank was then
        self.reset()

    def reset(self) -> None:
        self.count = 0
        self.first_s = self.last_s = 0.0
        self.texts: tuple[str, ...] = ()
        self.doubt = ""  # why it was not so the last time
        self.pause = ""  # where a rank evaluates, saves or prepares data, as of the last one
        self._seen: dict[int, Seen] = {}

    @property
    def still_s(self) -> float:
        """For how long nothing has moved, as far as looks can tell."""
        return self.last_s - self.first_s if self.count > 1 else 0.0

    def stand(self, texts: Sequence[str], at_s: float) -> None:
        """Any look, whatever it is for."""
        self.stood_s, self.stood_in = at_s, paused_in(map(read, texts))

    def fold(
        self,
        texts: Sequence[str],
        at_s: float,
        since_s: float,
        *,
        ranks: int,
        going: Collection[int] = (),
        named: bool = False,
    ) -> None:
        """What a look has brought. `since_s`: the silence began; `ranks`: so many must be seen, without `going`, those
        that still make iterations. `named`: its owner says how long a silence is a hang, so who uses no CPU time stands
        still, unless it asks another host or a program of its own."""
        found = [one for text in texts if (one := _read(text)) is not None and one.head.number not in going]
        seen = {one.head.number: one for one in found if one.head.pid}
        if len(found) > len({one.head.number for one in found}):
            doubt = "two processes call themselves by the same number"
        elif len(seen) < ranks:
            doubt = f"only {len(seen)} of {ranks} ranks could be looked at"
        elif not self.count or self.first_s < since_s:
            doubt = ""
        elif self._seen.keys() != seen.keys():
            doubt = "its ranks have not all been silent for long"
        else:
            doubt = _difference(self._seen, seen, at_s - self.last_s, named)
        if not self.count or self.first_s < since_s or doubt:
            self.count, self.first_s, self.doubt = 0, at_s, doubt
        self.count += 1
        self.last_s, self.texts, self._seen = at_s, tuple(texts), seen
        stacks = [one.stack for one in seen.values()]
        # Who stands where it stood, and could not be read this time, is where it was.
        kept = self.pause if self.count > 1 and None in stacks else ""
        self.pause = paused_in(stacks) or kept

    def words(self) -> str:
        ranks = names(list(self._seen))
        return f"{self.count} looks at the stacks of {ranks}: none has moved"


def _read(text: str) -> Seen | None:
    head = read_head(text)
    if head is None:
        return None
    _, _, why = text.partition("no Python stack: ")
    return Seen(head, read(text), why.partition("\n")[0])


def _difference(before: Mapping[int, Seen], now: Mapping[int, Seen], span_s: float, named: bool) -> str:
    """Why this is not a job that stands still; empty where it is."""
    for number, new in now.items():
        old = before[number]
        if what := _moved(old, new) or _at_work(old, new, span_s, named):
            return f"rank {number} {what}"
    return ""


def _moved(old: Seen, new: Seen) -> str:
    if old.head.pid != new.head.pid:
        return "is another process than before"
    if old.stack is None or new.stack is None or old.stack.frames == new.stack.frames:
        return ""
    if old.stack.place == new.stack.place:
        return f"moves: it comes to {new.stack.place} by different ways"
    return f"moves: it stood in {old.stack.place}, then in {new.stack.place}"


def _at_work(old: Seen, new: Seen, span_s: float, named: bool) -> str:
    """Why a rank whose stack is the same may be well."""
    was, used = old.head.used, new.head.used
    if was is None or used is None:
        return "is on a node whose agent does not tell enough"
    if used.io_bytes - was.io_bytes > IO_BYTES_PER_S * span_s:
        return "reads or writes"
    if used.helpers_cpu_s - was.helpers_cpu_s > BUSY * span_s:
        return "has helper processes that compute"
    rests = used.sleeps - was.sleeps <= SLEEPS_PER_S * span_s
    waits = old.stack is not None and new.stack is not None and new.stack.waits
    if used.main_cpu_s - was.main_cpu_s <= BUSY * span_s:
        if waits and rests:
            return ""
        idle = named and old.stack is not None and new.stack is not None and not new.stack.asks
        locked = "futex" in new.head.channel
        sleeps = rests and used.cpu_s - was.cpu_s <= BUSY * span_s
        if (locked or idle) and sleeps and _others_rest(old, new, SLEEPS_PER_S * span_s):
            return ""
        return f"may wait for something outside the job{_place(old, new)}"
    if not waits:
        return f"may compute{_place(old, new)}"
    # Who waits for the GPU spins as one who computes does, in one call; one who goes round passes other places too.
    if new.head.places == 0:
        return f"could not be sampled{_place(old, new)}"
    return f"may go round{_place(old, new)}" if new.head.places > 1 or not rests else ""


def _others_rest(old: Seen, new: Seen, sleeps: float) -> bool:
    """Its other threads, which may open the lock that the main one waits for. Libraries' own poll now and then;
    where no stack tells them apart, none may do anything."""
    if old.stack is None or new.stack is None:
        was, used = old.head.used, new.head.used
        return was is not None and used is not None and used.all_sleeps - was.all_sleeps <= sleeps
    return old.stack.others == new.stack.others and not new.stack.talks


def _place(old: Seen, new: Seen) -> str:
    stack = new.stack if old.stack else None
    return f", in {stack.place}" if stack else f"; no stack can be had ({new.why or old.why})"
