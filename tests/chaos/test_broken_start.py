"""A start that breaks off with its supervisor: what it left is found and ended, by whoever comes next."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sentinel.util.errors import TemporaryError
from tests.cluster.local_jobs import Site, alive, python, with_site
from tests.waits import eventually

SAY_PID = python("import os, time; print(os.getpid()); time.sleep(600)")
SIZE = 2


async def half_start(site: Site) -> int:
    """Incarnation 2 gets its first rank, then its supervisor is killed. Returns the rank's pid."""
    await site.start(SAY_PID, nproc=SIZE)
    assert (await site.cluster.stop("job", 1, 0.0)).gone
    second = Path(site.cluster.log_path("job", 2, 1))
    second.parent.mkdir(parents=True)
    os.mkfifo(second)  # opening it to write waits for a reader, so the second rank does not come
    start = asyncio.create_task(site.start(SAY_PID, incarnation=2, nproc=SIZE))
    pid = int(await eventually(lambda: site.log(incarnation=2), "the first rank"))
    os.kill(site.supervisor_pid(), signal.SIGKILL)
    with pytest.raises(TemporaryError):
        await start
    second.unlink()
    return pid


@with_site
async def test_a_stop_right_after_it_ends_what_it_left(site: Site) -> None:
    pid = await half_start(site)
    assert (await site.cluster.stop("job", 2, 0.0)).gone
    assert not alive(pid)


@with_site
async def test_a_stop_of_the_next_one_ends_what_it_left(site: Site) -> None:
    pid = await half_start(site)
    with pytest.raises(TemporaryError, match="still run"):
        await site.start(SAY_PID, incarnation=3, nproc=SIZE)
    assert (await site.cluster.stop("job", 3, 0.0)).gone
    assert not alive(pid)
    assert len(await site.start(SAY_PID, incarnation=3, nproc=SIZE)) == SIZE


@with_site
async def test_starting_it_again_says_that_it_broke(site: Site) -> None:
    pid = await half_start(site)
    with pytest.raises(TemporaryError, match="while it started"):
        await site.start(SAY_PID, incarnation=2, nproc=SIZE)
    assert alive(pid)
