"""Long work lets others on the loop have their turn."""

import asyncio

from sentinel.util.slices import SLICE_S, in_slices


def test_others_have_their_turn_after_each_slice_and_nothing_is_left_out() -> None:
    done, turns = list[int](), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def clock() -> float:
        return len(done) * SLICE_S * 0.75

    async def story() -> None:
        beside = asyncio.create_task(others())
        async for item in in_slices(range(99), clock):
            done.append(item)
        beside.cancel()

    asyncio.run(story())
    assert done == list(range(99))
    assert turns == 49
