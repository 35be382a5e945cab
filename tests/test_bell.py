"""Who waits for something to happen the next time."""

import asyncio

import pytest

from sentinel.util.bell import Bell
from tests.waits import turns


def test_one_ring_wakes_all_who_wait_and_nobody_later() -> None:
    async def story() -> None:
        bell = Bell()
        bell.ring()
        waiting = [asyncio.create_task(bell.next()) for _ in range(3)]
        await turns()
        assert not any(one.done() for one in waiting), "it rang before"
        bell.ring()
        later = asyncio.create_task(bell.next())
        await asyncio.wait_for(asyncio.gather(*waiting), 120.0)
        await turns()
        assert not later.done()
        bell.ring()
        await asyncio.wait_for(later, 120.0)

    asyncio.run(story())


def test_who_gives_up_leaves_the_others_waiting_and_nothing_behind() -> None:
    async def story() -> None:
        bell = Bell()
        patient = asyncio.create_task(bell.next())
        await turns()
        await bell.next(0.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):  # that of who calls is not taken for its own
                await bell.next(3600.0)
        assert not patient.done()
        bell.ring()
        await asyncio.wait_for(patient, 120.0)
        await bell.next(0.0)
        assert bell._rung is None

    asyncio.run(story())
