"""Whether the agent itself is well: what /healthz says, and the heartbeat behind it."""

import asyncio
import contextlib
import faulthandler
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

BEAT_S = 1.0
LAG_LIMIT_S = 5.0  # a loop that was held up so long cannot be trusted to see a fault in time
LAG_KEPT_S = 60.0
FROZEN_S = 60.0
EXIT_FROZEN = 70
STACKS_S = 5.0


class Health:
    """Troubles of the agent by name, and how late its event loop was within the last minute."""

    def __init__(self) -> None:
        self.troubles: dict[str, str] = {}
        self._lags: deque[tuple[float, float]] = deque()  # (when, seconds late)

    def trouble(self, name: str, text: str) -> None:
        self.troubles[name] = text

    def well(self, name: str) -> None:
        self.troubles.pop(name, None)

    @staticmethod
    def now_s() -> float:
        """CLOCK_MONOTONIC, as the loop's own timers use: a machine that slept was not held up."""
        return time.monotonic()

    def beat(self, now_s: float, late_s: float) -> None:
        self._lags.append((now_s, late_s))
        while self._lags[0][0] < now_s - LAG_KEPT_S:
            self._lags.popleft()

    def lag_s(self, now_s: float) -> float:
        """The longest delay of the loop within the last minute, the one that goes on included."""
        going_on_s = now_s - self._lags[-1][0] - BEAT_S if self._lags else 0.0
        return max([late_s for _, late_s in self._lags] + [going_on_s, 0.0])

    def problems(self, now_s: float, late_checks: Iterable[str]) -> list[str]:
        """Why the agent is not well; empty where it is."""
        found = list(self.troubles.values())
        found += [f"the check {name} is not run any more" for name in late_checks]
        lag_s = self.lag_s(now_s)
        if lag_s > LAG_LIMIT_S:
            found.append(f"the event loop was held up for {lag_s:.1f} s within the last minute")
        return found


class LagMeter:
    """Beats once a second and notes how late it was."""

    def __init__(self, health: Health, on_beat: Callable[[], None]) -> None:
        self._health = health
        self._on_beat = on_beat

    async def run(self) -> None:
        while True:
            before_s = self._health.now_s()
            await asyncio.sleep(BEAT_S)
            now_s = self._health.now_s()
            self._health.beat(now_s, now_s - before_s - BEAT_S)
            self._on_beat()


class Watchdog:
    """Ends this process when its event loop has not beaten for `frozen_s`, with the stacks of its threads in `path`:
    whoever started it starts it again, and then it knows what it knew.

    It counts seconds in which it ran itself: a machine that slept, or a process that was stopped, is not frozen.
    """

    def __init__(self, path: Path, frozen_s: float = FROZEN_S, tick_s: float = BEAT_S) -> None:
        self._path, self._most, self._tick_s = path, frozen_s / tick_s, tick_s
        self._ticks = 0
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        self._ticks = 0

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._tick_s):
            self._ticks += 1
            if self._ticks > self._most:
                # The disk under it may be what hangs.
                leaves = threading.Thread(target=self._leave_stacks, name="watchdog-stacks", daemon=True)
                try:
                    leaves.start()
                    leaves.join(STACKS_S)
                finally:
                    os._exit(EXIT_FROZEN)

    def _leave_stacks(self) -> None:
        with contextlib.suppress(OSError), open(self._path, "w") as file:
            faulthandler.dump_traceback(file)
