"""How tests wait for what others do: until a condition holds, never for longer than a deadline."""

import asyncio
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Why = Callable[[], str] | str  # what did not come: called only where it is needed
# A look costs whoever is asked, often the API server that all share: what has taken ten seconds is seen a fifth of a
# second late.
LATE, LATEST_S = 0.02, 0.5


def until(
    what: Callable[[], T],
    why: Why = "it did not come true",
    deadline_s: float = 120.0,
    every_s: float = 0.02,
    error: type[Exception] = AssertionError,
) -> T:
    """The first truthy answer of `what`; `error` with `why` where none comes in time."""
    began_s = time.monotonic()
    while not (found := what()):
        waited_s = time.monotonic() - began_s
        if waited_s > deadline_s:
            raise error(vain(why, deadline_s))
        time.sleep(pause_s(waited_s, every_s))
    return found


def pause_s(waited_s: float, every_s: float) -> float:
    """Until the next look: at first `every_s`, then a part of what the wait has taken so far."""
    return max(every_s, min(LATEST_S, LATE * waited_s))


async def eventually(
    what: Callable[[], Any],
    why: Why = "it did not come true",
    deadline_s: float = 120.0,
    every_s: float = 0.01,
) -> Any:
    """`until` for a test within a loop, which turns meanwhile; `what` may have to be awaited."""
    began_s = time.monotonic()
    while not (found := await answer(what)):
        waited_s = time.monotonic() - began_s
        assert waited_s < deadline_s, vain(why, deadline_s)
        await asyncio.sleep(pause_s(waited_s, every_s))
    return found


async def turns() -> None:
    """Whatever can go on in this loop goes on: what has not happened then waits for something."""
    for _ in range(100):
        await asyncio.sleep(0)


def runs(pid: int) -> bool:
    """Is this process there? A zombie is not; one that ends while it is read is ESRCH, not ENOENT."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def answer(what: Callable[[], Any]) -> Any:
    found = what()
    return await found if inspect.isawaitable(found) else found


def vain(why: Why, deadline_s: float) -> str:
    return f"waited {deadline_s:.0f} s in vain: {why if isinstance(why, str) else why()}"
