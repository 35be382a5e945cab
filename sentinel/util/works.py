"""Works on the API server: of each key one after the other, and none waits for another key's that hangs or fails.

What has failed is not tried again here: whoever wanted it decides anew, after a rest that grows with each failure.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Set

import structlog
from msgspec import Struct

from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

AT_ONCE = 16
LATER_AT_ONCE = 8  # of what is not urgent, so that it leaves room for what is
REST_S, MAX_REST_S = 0.5, 30.0
REMEMBERED = 10_000  # failures
FAILS_S = 2 * MAX_REST_S  # what was not tried again for so long is wanted no more
MAX_ERROR = 300  # characters
STATES = WAITING, RUNNING, RESTING = "waiting", "running", "resting"

# key, effect, what it failed of
Ended = Callable[[str, str, Exception | None], None]


class Failing(Struct, frozen=True):
    """What failed `number` times in a row, the last time with this error. `at_s`: by the loop's clock."""

    key: str
    effect: str
    number: int
    error: str
    at_s: float


class Standing(Struct, frozen=True):
    """A work as it stands: `state` is one of STATES, for `for_s` now."""

    effect: str
    state: str
    for_s: float


class _Work(Struct):
    key: str
    effect: str
    make: Callable[[], Awaitable[None]]
    urgent: bool
    since_s: float  # it waits, or is under way; by the loop's clock
    task: asyncio.Task[None] | None = None


class Works:
    """`ended` is called after each work that was not cancelled, `rested` when a key may be asked for an effect again.

    A key is a node's name, say; an effect is what is done to it, and rests by itself.
    """

    def __init__(self, ended: Ended, rested: Callable[[str], None]) -> None:
        self._ended, self._rested = ended, rested
        self._works: dict[str, _Work] = {}  # by key: those that wait or are under way
        self._urgent: deque[_Work] = deque()
        self._later: deque[_Work] = deque()
        self._running = self._later_running = 0
        self._room = asyncio.Event()  # nothing urgent waits
        self._room.set()
        self._failures: dict[tuple[str, str], Failing] = {}
        self._rests: dict[tuple[str, str], tuple[asyncio.TimerHandle, float]] = {}  # since when

    @property
    def keys(self) -> Set[str]:
        """Of which something waits or is under way."""
        return self._works.keys()

    @property
    def full(self) -> bool:
        """Does something urgent wait for another to end?"""
        return bool(self._urgent)

    async def room(self) -> None:
        """Until nothing urgent waits for another to end."""
        await self._room.wait()

    def of(self, effect: str) -> int:
        """How many of this effect wait or are under way."""
        return sum(work.effect == effect for work in self._works.values())

    def resting(self, *effects: str) -> set[str]:
        """Keys of which one of these failed a short while ago."""
        return {key for key, effect in self._rests if effect in effects}

    @property
    def failing(self) -> Iterator[Failing]:
        """What has failed last, and is still tried."""
        now_s = asyncio.get_running_loop().time()
        return (one for one in self._failures.values() if now_s - one.at_s < FAILS_S)

    def standing(self) -> Iterator[Standing]:
        """All that wait, are under way or rest. What rests is what failed, and is not asked for before its time."""
        now_s = asyncio.get_running_loop().time()
        for work in self._works.values():
            yield Standing(work.effect, WAITING if work.task is None else RUNNING, now_s - work.since_s)
        for (_, effect), (_, since_s) in self._rests.items():
            yield Standing(effect, RESTING, now_s - since_s)

    def may(self, key: str, effect: str) -> bool:
        return key not in self._works and (key, effect) not in self._rests

    def go(
        self,
        key: str,
        effect: str,
        make: Callable[[], Awaitable[None]],
        *,
        urgent: bool = False,
        next: bool = False,
    ) -> bool:
        """False: not now. What is urgent waits only for what is urgent too and has not failed before. `next`: it goes
        on with what has just ended."""
        if not self.may(key, effect):
            return False
        since_s = asyncio.get_running_loop().time()
        work = _Work(key, effect, make, urgent and (key, effect) not in self._failures, since_s)
        self._works[key] = work
        queue = self._urgent if work.urgent else self._later
        (queue.appendleft if next else queue.append)(work)
        self._start()
        if self._urgent:
            self._room.clear()
        return True

    def _failed(self, key: str, effect: str, error: Exception) -> None:
        """Let it rest: longer each time, until it has gone well once."""
        before = self._failures.pop((key, effect), None)
        number = 1 if before is None else before.number + 1
        while len(self._failures) >= REMEMBERED:
            del self._failures[next(iter(self._failures))]
        loop = asyncio.get_running_loop()
        text = (str(error) or type(error).__name__)[:MAX_ERROR]
        self._failures[key, effect] = Failing(key, effect, number, text, loop.time())
        rest_s = error.delay_s if isinstance(error, TemporaryError) else REST_S
        if number > 1:
            rest_s = max(rest_s, min(MAX_REST_S, REST_S * 2.0 ** min(number - 2, 10)))
        if rest_s > 0.0:
            timer = loop.call_later(rest_s, self._rest_over, key, effect)
            self._rests[key, effect] = (timer, loop.time())

    async def stop(self) -> None:
        """Nothing goes on after this; what was under way is cancelled and has ended."""
        tasks = [work.task for work in self._works.values() if work.task is not None]
        for queue in (self._urgent, self._later):
            queue.clear()
        self._room.set()
        for timer, _ in self._rests.values():
            timer.cancel()
        self._works.clear()
        self._rests.clear()
        self._failures.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._running = self._later_running = 0  # some had not begun

    # ------------------------------------------------------------ inside

    def _start(self) -> None:
        while self._running < AT_ONCE:
            if self._urgent:
                work = self._urgent.popleft()
                if not self._urgent:
                    self._room.set()
            elif self._later and self._later_running < LATER_AT_ONCE:
                work = self._later.popleft()
                self._later_running += 1
            else:
                return
            self._running += 1
            work.since_s = asyncio.get_running_loop().time()
            work.task = asyncio.create_task(self._do(work), name=f"{work.effect} {work.key}")

    async def _do(self, work: _Work) -> None:
        error: Exception | None = None
        try:
            await work.make()
        except (TemporaryError, PermanentError) as failed:
            error = failed
        except Exception as failed:  # boundary: what one key breaks holds up no other
            log.exception("work_broke", effect=work.effect, key=work.key)
            error = failed
        finally:
            self._running -= 1
            self._later_running -= not work.urgent
            stopped = self._works.get(work.key) is not work
            if not stopped:
                del self._works[work.key]
        if stopped:
            return
        if error is None:
            self._failures.pop((work.key, work.effect), None)
        else:
            self._failed(work.key, work.effect, error)
        self._ended(work.key, work.effect, error)
        self._start()

    def _rest_over(self, key: str, effect: str) -> None:
        del self._rests[key, effect]
        self._rested(key)
