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

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
LIFE_S = 5.0  # between two lines of an evaluation
MOST_OPEN = 64  # iterations that a GPU may lag behind before it is waited for
# The newest numbers that ranks voted with. A thread of gloo that were the last to hold one would wait for the GIL,
# which the program holds where it ends the process group and waits for that thread (seen with PyTorch 1.13).
_KEPT: deque[Any] = deque(maxlen=8)

__all__ = ["SaveOnSignal"]


class SaveOnSignal:
    """Ranks that are asked by a signal all save after the same step.

    The handler only notes the signal: a collective or a save within a handler could run in the middle of another one.
    The ranks agree by one number after each step. The answer is read a step later, when it has long been there, so that
    no rank waits for the others or for its GPU: all save at the latest two steps after the signal.

    `number`: the policy's `resume.checkpoint.signal`. `times`: which ranks print their iterations, "first" (of each
    machine), "all" (where each has a log of its own, as under `sentinel run --nproc`: then a slow rank can be named) or
    "none". Raises ValueError for anything else, and outside of the main thread, where Python allows no handler.
    """

    def __init__(self, number: int = signal.SIGUSR1, *, times: str = "first") -> None:
        if times not in ("first", "all", "none"):
            raise ValueError(f'times: expected "first", "all" or "none", found {times!r}')
        self._asked = False
        self._vote: _Vote | None = None
        self._prints = times == "all" or (times == "first" and os.environ.get("LOCAL_RANK", "0") == "0")
        self._times = _Times(self._prints)
        self._alive_s = -LIFE_S
        self._before = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if callable(self._before) and self._before is not signal.default_int_handler:
            self._before(number, frame)  # who had a handler before goes on getting the signal

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The same batches. What they take to come counts as end-to-end time and not as hardware time."""
        self.begin()
        for batch in loader:
            self.batch_ready()
            yield batch

    def begin(self) -> None:
        """The next iteration begins now: what came before it, an evaluation or a save, is no part of it."""
        self._times.begin()

    def evaluating(self, step: int, done: int, total: int | None = None) -> None:
        """After each batch of an evaluation, `done` of `total`: a line now and then says that it is no hang."""
        now_s = time.monotonic()
        if self._prints and now_s - self._alive_s >= LIFE_S:
            self._alive_s = now_s
            print(f"evaluating step {step}: batch {done}{f'/{total}' if total else ''}", flush=True)

    def batch_ready(self) -> None:
        """`batches` does it. Where loops are others', called when the first batch of an iteration is there."""
        self._times.batch_ready()

    def should_save(self, step: int) -> bool:
        """Whether all ranks are to save now, since one was asked. Every rank calls it once after every step."""
        self._times.end(step)
        asked = self._asked
        if asked:  # a signal between these two lines asks for the save that is about to be made
            self._asked = False
        if not _is_distributed():
            return asked
        last, self._vote = self._vote, _Vote(asked)
        return last is not None and last.result()

    def saved(self, step: int) -> None:
        """Every rank calls it when its part is written. When all are, the first one prints the proof."""
        rank = int(os.environ.get("RANK", "0"))
        if _is_distributed():
            _Vote(False).result()
            rank = sys.modules["torch"].distributed.get_rank()
        if rank == 0:
            print(f"saved checkpoint step {step}", flush=True)
        self.begin()


def _is_distributed() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


class _Vote:
    """One number of each rank, of which all get the largest. A collective: all ranks make it at the same place."""

    def __init__(self, wish: bool) -> None:
        torch = sys.modules["torch"]
        # NCCL takes what lies on a GPU. The device that was chosen, else the one that LOCAL_RANK names.
        on_gpu = torch.distributed.get_backend() not in ("gloo", "mpi") and torch.cuda.is_available()
        device = torch.device("cpu")
        if on_gpu:
            local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            device = torch.device("cuda", torch.cuda.current_device() or local)
        self._number = torch.full((1,), int(wish), dtype=torch.int32, device=device)
        _KEPT.append(self._number)
        largest = torch.distributed.ReduceOp.MAX
        self._work = torch.distributed.all_reduce(self._number, op=largest, async_op=True)
        self._copied: Any = None
        if on_gpu:  # in the order of the GPU's work, for which the host does not wait here
            with torch.cuda.device(device):
                self._work.wait()
                self._number = torch.empty(1, dtype=torch.int32, pin_memory=True).copy_(
                    self._number, non_blocking=True
                )
                self._copied = torch.cuda.Event()
                self._copied.record()

    def result(self) -> bool:
        if self._copied is None:
            self._work.wait()
        else:
            self._copied.synchronize()
        return bool(self._number.item())


class _Times:
    """Times of iterations, in milliseconds. On a GPU they are its own, taken by events that are read when they have
    passed: what is printed may lag a few iterations behind, and nothing waits for it."""

    def __init__(self, prints: bool) -> None:
        self._prints = prints
        self._begun: Any = None
        self._ready: Any = None
        self._open: deque[tuple[int, Any, Any, Any]] = deque()

    def begin(self) -> None:
        if self._prints:
            self._begun, self._ready = _mark(), None

    def batch_ready(self) -> None:
        if self._prints and self._ready is None:
            self._ready = _mark()

    def end(self, step: int) -> None:
        if not self._prints:
            return
        ended = _mark()
        if type(self._begun) is type(
            ended
        ):  # else it has no begin, or none on the GPU, which was not used before
            ready = self._ready if type(self._ready) is type(ended) else self._begun
            self._open.append((step, self._begun, ready, ended))
        self._begun, self._ready = ended, None
        while self._open and (_has_passed(self._open[0][3]) or len(self._open) > MOST_OPEN):
            number, begun, ready, end = self._open.popleft()
            hardware_ms, e2e_ms = _between_ms(ready, end), _between_ms(begun, end)
            print(
                f"step {number}: this iteration hardware time is {hardware_ms:.3f} and e2e time is {e2e_ms:.3f} ms.",
                flush=True,
            )


def _mark() -> Any:
    """Now: on the GPU that this program uses, else on the host (seconds)."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _has_passed(mark: Any) -> bool:
    return isinstance(mark, float) or mark.query()


def _between_ms(first: Any, second: Any) -> float:
    if isinstance(first, float):
        return (second - first) * 1000
    second.synchronize()
    return float(first.elapsed_time(second))
