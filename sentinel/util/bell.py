"""Wakes all who wait for the next time that something happens."""

import asyncio


class Bell:
    """Unlike an asyncio.Event it need not be cleared, and costs nothing while nobody waits: there are thousands."""

    __slots__ = ("_rung", "_waiting")

    def __init__(self) -> None:
        self._rung: asyncio.Event | None = None
        self._waiting = 0

    def ring(self) -> None:
        if self._rung is not None:
            self._rung.set()
            self._rung = None

    async def next(self, within_s: float | None = None) -> None:
        """Until it rings, at most so long; None: however long that takes."""
        rung = self._rung = self._rung or asyncio.Event()
        self._waiting += 1
        try:
            async with asyncio.timeout(within_s):
                await rung.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._rung = None
