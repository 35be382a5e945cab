"""Times of iterations, in milliseconds. On a GPU they are its own, taken by events that are read when they have passed:
what is printed may lag a few iterations behind, and nothing waits for it."""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sentinel.integrations.agreement import gpu

MOST_OPEN = 64  # iterations that a GPU may lag behind before it is waited for


class Times:
    """`prints`: asked at each iteration, since a rank is not known before its process group is."""

    def __init__(self, prints: Callable[[], bool]) -> None:
        self._prints = prints
        self._begun: Any = None
        self._ready: Any = None
        self._open: deque[tuple[int, Any, Any, Any]] = deque()
        self._gpu: Any = None
        self._broken = False

    def begin(self) -> None:
        self._begun, self._ready = self._mark(), None

    def batch_ready(self) -> None:
        if self._ready is None:
            self._ready = self._mark()

    def end(self, step: int) -> None:
        ended = self._mark()
        begun, ready = self._begun, self._ready
        self._begun, self._ready = ended, None
        if not self._prints():
            return
        if type(begun) is type(ended):  # else it has no begin, or none on the GPU, which was not used before
            self._open.append((step, begun, ready if type(ready) is type(ended) else begun, ended))
        try:
            self._print()
        except (RuntimeError, ValueError) as error:  # of CUDA: a training must not end for a number
            self._broken = True
            self._open.clear()
            print(f"times of iterations are the host's from now on: {error}", file=sys.stderr, flush=True)

    def _print(self) -> None:
        while self._open and (_has_passed(self._open[0][3]) or len(self._open) > MOST_OPEN):
            step, begun, ready, ended = self._open.popleft()
            hardware_ms, e2e_ms = _between_ms(ready, ended), _between_ms(begun, ended)
            print(
                f"step {step}: this iteration hardware time is {hardware_ms:.3f} and e2e time is {e2e_ms:.3f} ms.",
                flush=True,
            )

    def _mark(self) -> Any:
        """Now: on the GPU that this program uses, else on the host (seconds)."""
        if self._gpu is None and not self._broken:
            self._gpu = gpu()
        if self._gpu is None or self._broken:
            return time.perf_counter()
        torch = sys.modules["torch"]
        with torch.cuda.device(self._gpu):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return event


def _has_passed(mark: Any) -> bool:
    return isinstance(mark, float) or mark.query()


def _between_ms(first: Any, second: Any) -> float:
    if isinstance(first, float):
        return (second - first) * 1000
    first.synchronize()
    second.synchronize()
    return float(first.elapsed_time(second))
