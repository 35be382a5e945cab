"""For training programs: save when Sentinel asks, prove it, and print how long each iteration took.

    saver = SaveOnSignal()                    # before the process group is made
    for step, batch in enumerate(saver.batches(loader), first_step):
        train(batch)
        if saver.should_save(step):           # on every rank, after every step
            save_checkpoint(step)             # yours
            saver.saved(step)

`sentinel.integrations.transformers` and `sentinel.integrations.lightning` do it in their trainers. Nothing but Python
is needed here: no other part of Sentinel is imported, and PyTorch is used only by a program that has imported it.
"""

import signal
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

from sentinel.integrations.agreement import Vote, group, is_first_here, rank
from sentinel.integrations.checkpoints import may_resume_from
from sentinel.integrations.times import Times

T = TypeVar("T")
LIFE_S = 5.0  # between two lines of an evaluation

__all__ = ["SaveOnSignal", "may_resume_from"]


class SaveOnSignal:
    """Ranks that are asked by a signal all save after the same step.

    The handler only notes the signal: a collective or a save within a handler could run in the middle of another one.
    The ranks agree by one number after each step, which is read a step later: all save at the latest two steps after
    the signal.

    `number`: the policy's `resume.checkpoint.signal`. `times`: which ranks print their iterations, "first" (of each
    machine), "all" (where each has a log of its own, as under `sentinel run --nproc`: then a slow rank can be named) or
    "none". Raises ValueError for anything else, and outside of the main thread, where Python allows no handler.
    """

    def __init__(self, number: int = signal.SIGUSR1, *, times: str = "first") -> None:
        if times not in ("first", "all", "none"):
            raise ValueError(f'times: expected "first", "all" or "none", found {times!r}')
        self.number = number
        self._asked = False
        self._vote: Vote | None = None
        self._who_prints = times
        self._times = Times(self._prints)
        self._alive_s = -LIFE_S
        self._before = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if callable(self._before) and self._before is not signal.default_int_handler:
            self._before(number, frame)  # who had a handler before goes on getting the signal

    def _prints(self) -> bool:
        return self._who_prints == "all" or (self._who_prints == "first" and is_first_here())

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The same batches. What they take to come counts as end-to-end time and not as hardware time."""
        self.begin()
        for batch in loader:
            self.batch_ready()
            yield batch

    def begin(self) -> None:
        """The next iteration begins now: what came before it, an evaluation or a save, is no part of it."""
        self._times.begin()

    def batch_ready(self) -> None:
        """`batches` does it. Where loops are others', called when the first batch of an iteration is there."""
        self._times.batch_ready()

    def evaluating(self, step: int, done: int, total: int | None = None) -> None:
        """After each batch of an evaluation, `done` of `total`: a line now and then says that it is no hang."""
        now_s = time.monotonic()
        if now_s - self._alive_s >= LIFE_S and self._prints():
            self._alive_s = now_s
            print(f"evaluating step {step}: batch {done}{f'/{total}' if total else ''}", flush=True)

    def should_save(self, step: int) -> bool:
        """Whether all ranks are to save now, since one was asked. Every rank calls it once after every step."""
        self._times.end(step)
        now = self._agreed()
        if now:
            self.saving(step)
        return now

    def _agreed(self) -> bool:
        asked = self._asked
        if asked:  # a signal between these two lines asks for the save that is about to be made
            self._asked = False
        last, self._vote = self._vote, None
        if (world := group()) is None:
            return asked
        if last is not None and last.group is not world:  # the ranks of another process group never answered
            asked, last = asked or last.wish, None
        self._vote = Vote(asked)
        return last is not None and last.result()

    def saving(self, step: int) -> None:
        """Before a save that nobody asked for: it may take its time, and is no hang. Those asked for are told."""
        if rank() == 0:
            print(f"saving checkpoint step {step}", flush=True)

    def saved(self, step: int, *, proved: bool = True) -> None:
        """Every rank calls it when its part is written. When all are, the first one prints the proof.

        Whatever was asked until now has its save. `proved`, of the first rank: False, where what it wrote is not there.
        """
        self._asked, self._vote = False, None
        if group() is not None:
            Vote(False).result()
        if rank() == 0 and proved:
            print(f"saved checkpoint step {step}", flush=True)
        self.begin()
