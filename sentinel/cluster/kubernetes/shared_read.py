"""One read of a thing at a time, for all who ask for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Read(Generic[T]):
    def __init__(self, read: Callable[[], Awaitable[T]], before: "asyncio.Task[T] | None") -> None:
        self.open = True  # to whoever asks now: it has not begun
        self._waiting = 0
        self.task = asyncio.create_task(self._run(read, before))

    async def _run(self, read: Callable[[], Awaitable[T]], before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait({before})
        self.open = False
        return await read()

    async def result(self) -> T:
        """Whoever is cancelled ends it for nobody else; the last one ends it."""
        self._waiting += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.open = False
                self.task.cancel()


class SharedRead(Generic[T]):
    """What wakes several who look at one thing makes all of them read it. Each gets what was read after it asked: who
    asks while a read is under way waits for the next one, and shares it with whoever asks until that begins. What was
    read is not kept: of thousands of jobs the pods are hundreds of megabytes."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._newest: _Read[T] | None = None

    async def __call__(self) -> T:
        """Raises what the read raises, to each who waits for it."""
        newest = self._newest
        if newest is None or not newest.open:
            newest = self._newest = _Read(self._read, None if newest is None else newest.task)
        try:
            return await newest.result()
        finally:
            if self._newest is newest and newest.task.done():
                self._newest = None
