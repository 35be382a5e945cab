"""Slow work by the clock: done again and again, soon again after a failure, and at times of a week."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sentinel.controller.daemon import slow_work
from sentinel.controller.daemon.slow_work import Every, SlowWork, Times
from tests.waits import eventually, turns

BERLIN = ZoneInfo("Europe/Berlin")
OFTEN_S, NEVER_S = 0.02, 86_400.0


class Doing:
    """A slow work that counts."""

    def __init__(self, does: Callable[[int], Any] = lambda count: True) -> None:
        self.count, self.under_way, self.most = 0, 0, 0
        self._does = does

    async def work(self) -> bool:
        self.count += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            done = self._does(self.count)
            return bool(await done if asyncio.iscoroutine(done) else done)
        finally:
            self.under_way -= 1


def go(story: Callable[[SlowWork, list[str]], Any]) -> None:
    async def whole() -> None:
        broke: list[str] = []
        await story(SlowWork(broke.append), broke)

    asyncio.run(whole())


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_it_is_done_again_and_again_until_it_ends() -> None:
    async def story(slow: SlowWork, broke: list[str]) -> None:
        doing = Doing()
        slow.every("often", OFTEN_S, doing.work)
        running = asyncio.create_task(slow.run())
        await eventually(lambda: doing.count >= 3)
        await ended(running)
        await turns()
        count = doing.count
        await turns()
        assert (doing.count, broke) == (count, [])

    go(story)


@pytest.mark.parametrize("raises", [True, False])
def test_what_could_not_be_done_is_tried_soon_and_what_raises_is_told(
    monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    monkeypatch.setattr(slow_work, "AGAIN_S", OFTEN_S)

    def does(count: int) -> bool:
        if raises and count < 3:
            raise RuntimeError("a bug")
        return count >= 3

    async def story(slow: SlowWork, broke: list[str]) -> None:
        doing = Doing(does)
        slow.every("seldom", NEVER_S, doing.work)
        running = asyncio.create_task(slow.run())
        await eventually(lambda: doing.count == 3)
        await turns()
        assert doing.count == 3, "it was done: then as it was to be"
        slow.soon("seldom")
        await eventually(lambda: doing.count == 4)
        assert broke == (["seldom"] * 2 if raises else [])
        await ended(running)

    go(story)


def test_one_that_takes_long_is_not_begun_twice_and_holds_up_no_other() -> None:
    async def story(slow: SlowWork, broke: list[str]) -> None:
        gate = asyncio.Event()
        long, other = Doing(lambda count: gate.wait()), Doing()
        slow.every("long", OFTEN_S, long.work)
        slow.every("other", OFTEN_S, other.work)
        running = asyncio.create_task(slow.run())
        await eventually(lambda: long.count == 1)
        before = other.count
        await eventually(lambda: other.count >= before + 5)
        assert (long.count, long.most) == (1, 1)
        gate.set()
        await eventually(lambda: long.count >= 2)
        await ended(running)

    go(story)


def test_what_is_under_way_ends_with_it() -> None:
    async def story(slow: SlowWork, broke: list[str]) -> None:
        never = asyncio.Event()
        doing = Doing(lambda count: never.wait())
        slow.every("long", OFTEN_S, doing.work)
        running = asyncio.create_task(slow.run())
        await eventually(lambda: doing.under_way)
        await ended(running)
        await eventually(lambda: not doing.under_way)
        assert broke == []

    go(story)


def test_a_clock_that_was_set_back_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_work, "LOOK_S", OFTEN_S)

    async def story(slow: SlowWork, broke: list[str]) -> None:
        doing = Doing()
        slow.every("often", OFTEN_S, doing.work)
        running = asyncio.create_task(slow.run())
        await eventually(lambda: doing.count >= 1)
        assert slow._scheduler is not None
        ahead = datetime.now(UTC) + timedelta(days=400)  # as it was planned by a clock that was so far ahead
        slow._scheduler.get_job("often").modify(next_run_time=ahead)
        before = doing.count
        await eventually(lambda: doing.count >= before + 2)
        await ended(running)

    go(story)


def test_what_a_clock_that_was_set_ahead_has_missed_is_not_counted_through() -> None:
    since, now = datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 27, tzinfo=UTC)
    for trigger in (Every(0.2), EVERY_DAY):
        assert trigger.get_next_fire_time(since, now) > now


def test_what_comes_late_is_done_all_the_same() -> None:
    async def story(slow: SlowWork, broke: list[str]) -> None:
        slow.every("often", OFTEN_S, Doing().work)
        running = asyncio.create_task(slow.run())
        await eventually(lambda: slow._scheduler)
        assert slow._scheduler is not None
        assert slow._scheduler.get_job("often").misfire_grace_time is None, "its own default is a second"
        await ended(running)

    go(story)


def test_soon_is_nothing_where_it_is_not_known_or_nothing_runs() -> None:
    async def story(slow: SlowWork, broke: list[str]) -> None:
        slow.soon("unknown")
        running = asyncio.create_task(slow.run())
        await turns()
        slow.soon("unknown")
        await ended(running)
        slow.soon("unknown")

    go(story)


# ---------------------------------------------------------------- times


def berlin(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


EVERY_DAY = Times("08:00", (), "Europe/Berlin")
WEEKDAYS = Times("08:00", ("mon", "tue", "wed", "thu", "fri"), "Europe/Berlin")
IN_THE_FOLD = Times("02:30", (), "Europe/Berlin")  # 25 Oct 2026 has it twice, 29 Mar 2026 not at all


@pytest.mark.parametrize(
    ("times", "after", "until", "last"),
    [
        (EVERY_DAY, "2026-11-26T08:00", "2026-11-27T07:59", None),
        (EVERY_DAY, "2026-11-26T08:00", "2026-11-27T08:00", "2026-11-27T08:00"),
        (EVERY_DAY, "2026-11-20T08:00", "2026-11-27T12:00", "2026-11-27T08:00"),  # of several the newest
        (EVERY_DAY, "2026-11-27T12:00", "2026-11-26T12:00", None),  # the clock was set back
        (WEEKDAYS, "2026-11-27T08:00", "2026-11-29T23:00", None),  # a weekend
        (WEEKDAYS, "2026-11-27T08:00", "2026-11-30T08:00", "2026-11-30T08:00"),
        (EVERY_DAY, "2026-10-24T08:00", "2026-10-25T08:00", "2026-10-25T08:00"),  # 25 hours long
        (EVERY_DAY, "2026-03-28T08:00", "2026-03-29T08:00", "2026-03-29T08:00"),  # 23 hours long
    ],
)
def test_the_last_of_the_times(times: Times, after: str, until: str, last: str | None) -> None:
    assert times.last(berlin(after), berlin(until)) == (None if last is None else berlin(last))


def test_an_hour_that_the_clock_goes_twice_counts_once() -> None:
    first, again = berlin("2026-10-25T02:30"), berlin("2026-10-25T02:30", fold=1)
    assert again - first == 3600
    assert IN_THE_FOLD.last(first - 60, first + 60) == first
    assert IN_THE_FOLD.last(first, again + 60) is None
    assert following(IN_THE_FOLD, first - 1) == first
    for at_s in (first, first + 1, again, again + 1):
        assert following(IN_THE_FOLD, at_s) == berlin("2026-10-26T02:30")


def test_an_hour_that_the_clock_leaves_out_is_an_hour_later() -> None:
    assert following(IN_THE_FOLD, berlin("2026-03-29T01:00")) == berlin("2026-03-29T03:30")


def test_each_of_the_times_follows_the_one_before() -> None:
    at_s, seen = berlin("2026-11-26T07:00"), []
    for _ in range(4):
        at_s = following(WEEKDAYS, at_s)
        seen.append(f"{datetime.fromtimestamp(at_s, BERLIN):%a %H:%M}")
    assert seen == ["Thu 08:00", "Fri 08:00", "Mon 08:00", "Tue 08:00"]


def following(times: Times, at_s: float) -> float:
    found = times.get_next_fire_time(None, datetime.fromtimestamp(at_s, BERLIN))
    assert found is not None
    return found.timestamp()
