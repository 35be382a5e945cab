"""Works on the API server: what hangs or fails holds up its own key alone."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from sentinel.util import works
from sentinel.util.errors import PermanentError, TemporaryError
from sentinel.util.works import AT_ONCE, LATER_AT_ONCE, Works
from tests.waits import eventually, turns


class Tried:
    """Works that hang until they are told to go on, and fail of what they are told to."""

    def __init__(self) -> None:
        self.works = Works(self._ended, lambda key: self.rested.append(key))
        self.begun: list[str] = []
        self.ended: list[tuple[str, str, str]] = []
        self.rested: list[str] = []
        self.rests_s: list[float] = []
        self._hangs: dict[str, asyncio.Event] = {}
        self._timers: list[Callable[[], None]] = []
        loop = asyncio.get_running_loop()
        later = loop.call_later

        def call_later(delay_s: float, what: Callable[..., None], *how: Any) -> asyncio.TimerHandle:
            if what != self.works._rest_over:  # the test's own waits
                return later(delay_s, what, *how)
            self.rests_s.append(delay_s)
            self._timers.append(partial(what, *how))
            return later(3600.0, turns)

        loop.call_later = call_later  # type: ignore[method-assign,assignment]

    def _ended(self, key: str, effect: str, error: Exception | None) -> None:
        self.ended.append((key, effect, type(error).__name__ if error else ""))

    def go(
        self, key: str, effect: str = "save", *, hangs: bool = False, of: Exception | None = None, **how: bool
    ) -> bool:
        async def make() -> None:
            self.begun.append(key)
            if hangs:
                await self._hangs.setdefault(key, asyncio.Event()).wait()
            if of is not None:
                raise of

        return self.works.go(key, effect, make, **how)

    def time_passes(self) -> None:
        """As much as rests take."""
        timers, self._timers = self._timers, []
        for timer in timers:
            timer()

    def on(self, key: str) -> None:
        self._hangs[key].set()


def tried(test: Callable[[Tried], Coroutine[Any, Any, None]]) -> None:
    async def story() -> None:
        one = Tried()
        await asyncio.wait_for(test(one), 120)
        await one.works.stop()

    asyncio.run(story())


AWAY = TemporaryError("the API server is away", 0.0)


def test_a_work_that_hangs_or_fails_holds_up_its_own_key_alone() -> None:
    async def test(one: Tried) -> None:
        assert one.go("a", hangs=True)
        assert one.go("b", of=AWAY)
        assert one.go("c", of=KeyError("a bug"))
        assert one.go("d")
        await eventually(lambda: len(one.ended) == 3)
        assert sorted(one.ended) == [
            ("b", "save", "TemporaryError"),
            ("c", "save", "KeyError"),
            ("d", "save", ""),
        ]
        assert not one.go("a", "show"), "of each key one at a time"
        assert one.go("d", "show")
        one.on("a")
        await eventually(lambda: ("a", "save", "") in one.ended)
        assert one.go("a", "show")

    tried(test)


def test_what_failed_rests_longer_each_time_until_it_has_gone_well() -> None:
    async def test(one: Tried) -> None:
        async def again(error: Exception | None) -> None:
            count = len(one.ended)
            assert one.go("a", of=error)
            await eventually(lambda: len(one.ended) > count)
            one.time_passes()

        for _ in range(10):
            await again(PermanentError("403", "Forbidden"))
        assert one.rests_s == [0.5, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        assert one.rested == ["a"] * 10
        await again(None)
        one.rests_s.clear()
        await again(AWAY)
        assert one.rests_s == [], "it said that it may be tried at once"
        await again(AWAY)
        await again(TemporaryError("429", 20.0))
        assert one.rests_s == [0.5, 20.0]

    tried(test)


def test_what_rests_is_one_effect_of_one_key() -> None:
    async def test(one: Tried) -> None:
        one.go("a", of=PermanentError("422", "Refused"))
        await eventually(lambda: one.ended)
        assert not one.works.may("a", "save")
        assert one.works.may("a", "show")
        assert one.works.may("b", "save")
        assert (one.works.resting("save"), one.works.resting("show")) == ({"a"}, set())
        one.time_passes()
        assert one.rested == ["a"]
        assert one.works.may("a", "save")

    tried(test)


def test_what_is_not_urgent_leaves_room_for_what_is() -> None:
    async def test(one: Tried) -> None:
        for number in range(50):
            one.go(f"later-{number}", hangs=True)
        await turns()
        assert len(one.begun) == LATER_AT_ONCE
        for number in range(50):
            one.go(f"urgent-{number}", hangs=True, urgent=True)
        await turns()
        assert len(one.begun) == AT_ONCE
        one.on("later-0")
        await eventually(lambda: len(one.begun) == AT_ONCE + 1)
        assert one.begun[-1] == f"urgent-{AT_ONCE - LATER_AT_ONCE}"
        assert one.works.of("save") == 99
        for number in range(1, 50):
            one.go(f"last-{number}", "show")
        for number in range(AT_ONCE - LATER_AT_ONCE + 1):
            one.on(f"urgent-{number}")
        await eventually(lambda: len(one.begun) == AT_ONCE + 1 + 9)
        assert [key for key in one.begun if key.startswith("later")] == [f"later-{n}" for n in range(8)]

    tried(test)


def test_what_has_failed_takes_no_room_of_what_is_urgent_until_it_has_gone_well() -> None:
    async def test(one: Tried) -> None:
        one.go("a", urgent=True, of=AWAY)
        await eventually(lambda: one.ended)
        for number in range(LATER_AT_ONCE):
            one.go(f"later-{number}", hangs=True)
        one.go("a", urgent=True)
        one.go("b", urgent=True)
        await eventually(lambda: "b" in one.begun)
        await turns()
        assert one.begun.count("a") == 1
        one.on("later-0")
        await eventually(lambda: one.begun.count("a") == 2)
        one.go("a", urgent=True)
        await eventually(lambda: one.begun.count("a") == 3)

    tried(test)


def test_what_goes_on_with_what_has_ended_comes_next() -> None:
    async def test(one: Tried) -> None:
        for number in range(AT_ONCE):
            one.go(f"urgent-{number}", hangs=True, urgent=True)
        one.go("a", urgent=True)
        one.go("b", urgent=True, next=True)
        await turns()
        one.on("urgent-0")
        await eventually(lambda: len(one.begun) == AT_ONCE + 2)
        assert one.begun[-2:] == ["b", "a"]

    tried(test)


def test_there_is_room_when_nothing_urgent_waits_for_another() -> None:
    async def test(one: Tried) -> None:
        await asyncio.wait_for(one.works.room(), 60)
        for number in range(AT_ONCE + 2):
            one.go(f"urgent-{number}", hangs=True, urgent=True)
        waits = asyncio.ensure_future(one.works.room())
        await turns()
        one.on("urgent-0")
        await eventually(lambda: len(one.begun) == AT_ONCE + 1)
        await turns()
        assert not waits.done()
        assert one.works.full
        one.on("urgent-1")
        await asyncio.wait_for(waits, 60)
        assert not one.works.full
        one.go("urgent-again", urgent=True)
        waits = asyncio.ensure_future(one.works.room())
        await turns()
        assert not waits.done()
        await one.works.stop()
        await asyncio.wait_for(waits, 60)

    tried(test)


def test_nothing_goes_on_after_a_stop_and_all_may_begin_anew() -> None:
    async def test(one: Tried) -> None:
        for number in range(40):
            one.go(f"n{number}", hangs=True, urgent=number % 2 == 0)
        one.go("f", "show", of=AWAY, urgent=True)
        await turns()
        begun = len(one.begun)
        await one.works.stop()
        await turns()
        assert (len(one.begun), one.ended) == (begun, [])
        assert not one.works.keys
        for number in range(AT_ONCE):
            assert one.go(f"n{number}", hangs=True, urgent=True)
        await turns()
        assert len(one.begun) == begun + AT_ONCE

    tried(test)


def test_it_is_told_what_waits_is_under_way_or_rests_and_for_how_long() -> None:
    async def test(one: Tried) -> None:
        def standing() -> list[tuple[str, str]]:
            return sorted((found.effect, found.state) for found in one.works.standing())

        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number in range(LATER_AT_ONCE):
            one.go(f"n{number}", hangs=True)
        one.go("waits", "show")
        one.go("fails", "isolate", urgent=True, of=AWAY)
        one.go("rests", "isolate", urgent=True, of=PermanentError("403", "Forbidden"))
        await eventually(lambda: len(one.ended) == 2)
        running = [("save", "running")] * LATER_AT_ONCE
        assert standing() == [("isolate", "resting"), *running, ("show", "waiting")]
        early = {found.state: found.for_s for found in one.works.standing()}
        at_s = loop.time()
        await eventually(lambda: loop.time() > at_s + 0.05)
        late = {found.state: found.for_s for found in one.works.standing()}
        assert all(early[state] + 0.05 <= for_s <= loop.time() - began_s for state, for_s in late.items())
        at_s = loop.time()
        for number in range(LATER_AT_ONCE):
            one.on(f"n{number}")
        one.time_passes()
        await eventually(lambda: not one.works.keys)
        assert standing() == []
        one.go("waited", hangs=True)
        await turns()
        (found,) = one.works.standing()
        assert 0.0 <= found.for_s <= loop.time() - at_s, "no time of an earlier work counts"

    tried(test)


def test_failures_are_remembered_of_so_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "REMEMBERED", 3)

    async def test(one: Tried) -> None:
        for number in range(10):
            one.go(f"n{number}", of=AWAY)
        await eventually(lambda: len(one.ended) == 10)
        assert len(one.works._failures) == 3

    tried(test)
