"""One read of a thing at a time, for all who ask for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRead(Generic[T]):
    """What wakes several who look at one thing makes all of them read it. Each gets what was read after it asked: who
    asks while a read is under way waits for the next one, and shares it with whoever asks until that begins."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._newest: asyncio.Task[T] | None = None
        self._begun = True  # has the newest?

    async def __call__(self) -> T:
        """Raises what the read raises, to each who waits for it. Who is cancelled ends it for nobody else."""
        if self._newest is None or self._begun:
            self._begun = False
            self._newest = asyncio.create_task(self._after(self._newest))
            self._newest.add_done_callback(_nobody_may_wait)
        return await asyncio.shield(self._newest)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait({before})
        self._begun = True
        return await self._read()


def _nobody_may_wait(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()
