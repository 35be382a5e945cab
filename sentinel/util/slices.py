"""Long work on the event loop, cut into slices: nothing else waits for all of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

SLICE_S = 0.005

T = TypeVar("T")


async def in_slices(items: Iterable[T], now_s: Callable[[], float] = time.monotonic) -> AsyncIterator[T]:
    """Each of `items`; others on the loop have their turn after each SLICE_S of work on them. What the work rests on
    may change meanwhile."""
    begun_s = now_s()
    for item in items:
        yield item
        if now_s() - begun_s > SLICE_S:
            await asyncio.sleep(0)
            begun_s = now_s()
