"""Reads that are shared by whoever asks for the same thing."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable

import pytest

from sentinel.cluster.kubernetes.shared_read import SharedRead
from tests.waits import eventually, turns


class Shelf:
    """What is on it is read when `open` is set."""

    def __init__(self) -> None:
        self.value, self.reads, self.broken = 0, 0, False
        self.open = asyncio.Event()

    async def read(self) -> int:
        self.reads += 1
        value = self.value
        await self.open.wait()
        if self.broken:
            raise ValueError(f"cannot read {value}")
        return value


def run(story: Callable[[Shelf, SharedRead[int]], Awaitable[None]]) -> None:
    async def whole() -> None:
        shelf = Shelf()
        async with asyncio.timeout(60):
            await story(shelf, SharedRead(shelf.read))

    asyncio.run(whole())


def asked(read: SharedRead[int]) -> "asyncio.Task[int]":
    return asyncio.create_task(read())


def test_who_asks_in_the_same_moment_shares_one_read() -> None:
    async def story(shelf: Shelf, read: SharedRead[int]) -> None:
        shelf.open.set()
        assert await asyncio.gather(*(asked(read) for _ in range(5))) == [0] * 5
        assert shelf.reads == 1
        shelf.value = 7
        assert await read() == 7

    run(story)


def test_who_asks_while_a_read_is_under_way_gets_what_is_there_then() -> None:
    async def story(shelf: Shelf, read: SharedRead[int]) -> None:
        first = asked(read)
        await eventually(lambda: shelf.reads == 1, "no read begins")
        shelf.value = 1
        later = [asked(read) for _ in range(3)]
        shelf.open.set()
        assert await first == 0
        assert await asyncio.gather(*later) == [1, 1, 1]
        assert shelf.reads == 2

    run(story)


def test_who_is_cancelled_ends_it_for_nobody_else() -> None:
    async def story(shelf: Shelf, read: SharedRead[int]) -> None:
        first, second = asked(read), asked(read)
        await eventually(lambda: shelf.reads == 1, "no read begins")
        first.cancel()
        shelf.open.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == 0

    run(story)


def test_a_read_that_fails_is_told_to_each_and_the_next_one_is_another() -> None:
    async def story(shelf: Shelf, read: SharedRead[int]) -> None:
        shelf.open.set()
        shelf.broken = True
        for one in [asked(read), asked(read)]:
            with pytest.raises(ValueError, match="cannot read 0"):
                await one
        assert shelf.reads == 1
        shelf.broken = False
        assert await read() == 0

    run(story)


def test_a_read_for_which_nobody_waits_any_more_is_given_up() -> None:
    """One that hangs would hold up all that come after it."""

    async def story(shelf: Shelf, read: SharedRead[int]) -> None:
        first = asked(read)
        await eventually(lambda: shelf.reads == 1, "no read begins")
        second = asked(read)
        first.cancel()
        await eventually(lambda: shelf.reads == 2, "the next read does not begin")
        second.cancel()
        await asyncio.wait({first, second})
        shelf.value = 5
        shelf.open.set()
        assert await read() == 5

    run(story)


def test_who_gives_up_before_its_read_has_begun_ends_none() -> None:
    async def story(shelf: Shelf, read: SharedRead[int]) -> None:
        first = asked(read)
        await eventually(lambda: shelf.reads == 1, "no read begins")
        second = asked(read)
        await asyncio.wait({asyncio.create_task(read_never(second))})
        third = asked(read)
        shelf.open.set()
        assert await asyncio.gather(first, third) == [0, 0]
        assert shelf.reads == 2

    async def read_never(task: "asyncio.Task[int]") -> None:
        await asyncio.wait({task}, timeout=0.01)
        task.cancel()
        await asyncio.wait({task})

    run(story)


def test_what_was_read_is_not_kept() -> None:
    class Pods:
        pass

    made = list[weakref.ref[Pods]]()

    async def fetched() -> Pods:
        pods = Pods()
        made.append(weakref.ref(pods))
        await turns()
        return pods

    async def whole() -> None:
        read = SharedRead(fetched)
        first = asyncio.create_task(read())
        await eventually(lambda: len(made) == 1, "no read begins")
        asked_meanwhile = [asyncio.create_task(read()) for _ in range(2)]
        assert isinstance(await first, Pods)
        one, other = await asyncio.gather(*asked_meanwhile)
        assert one is other
        del first, asked_meanwhile, one, other
        await eventually(lambda: [pods() for pods in made] == [None, None], "what was read is kept")

    asyncio.run(whole())
