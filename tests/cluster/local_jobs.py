"""What the tests of the local cluster share: a cluster over a temporary folder, and programs to run on it."""

import asyncio
import os
import shutil
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

from sentinel.cluster.base import RankProcess
from sentinel.cluster.local.cluster import LocalCluster
from sentinel.cluster.local.processes import is_same, read_proc
from sentinel.core.model import Launch
from sentinel.core.reports import RankExit
from tests.waits import eventually

DEADLINE_S = 120.0


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-u", "-c", textwrap.dedent(code))


class Site:
    """A LocalCluster and what it has told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.exits: list[RankExit] = []
        self.lost: list[str] = []
        self.cluster = LocalCluster(
            root, lambda job, exit: self.exits.append(exit), self.lost.append, stuck_after_s=DEADLINE_S
        )

    async def start(
        self, command: tuple[str, ...], incarnation: int = 1, nproc: int | None = 1, **env: str
    ) -> list[RankProcess]:
        launch = Launch(command=command, cwd=str(self.root), env=dict(os.environ), nproc=nproc)
        return await self.cluster.start("job", launch, incarnation, nproc or 1, env)

    def log(self, incarnation: int = 1, rank: int = 0) -> str:
        path = Path(self.cluster.log_path("job", incarnation, rank))
        return path.read_text() if path.exists() else ""

    async def logged(self, text: str, incarnation: int = 1, rank: int = 0) -> str:
        await eventually(lambda: text in self.log(incarnation, rank), f"{text!r} in the log of rank {rank}")
        return self.log(incarnation, rank)

    def supervisor_pid(self) -> int:
        tracked = self.cluster._tracked["job"]
        assert tracked.link
        return tracked.link.supervisor_pid

    def exit_of(self, rank: int) -> RankExit | None:
        return next((exit for exit in self.exits if exit.rank == rank), None)

    async def ended(self, rank: int = 0) -> RankExit:
        return await eventually(lambda: self.exit_of(rank), f"the end of rank {rank}")


def srun(site: Site, code: str) -> tuple[str, ...]:
    """A program of this name that runs the code."""
    copied = shutil.copy(os.path.realpath(sys.executable), site.root / "srun")
    return (str(copied), *python(code)[1:])


def with_site(test: Callable[[Site], Awaitable[None]]) -> Callable[[Path], None]:
    """An async test with a cluster of its own, of which nothing is left running."""

    def run(tmp_path: Path) -> None:
        async def whole() -> None:
            site = Site(tmp_path)
            try:
                await test(site)
            finally:
                tracked = site.cluster._tracked.get("job")
                if tracked:
                    await site.cluster.stop("job", tracked.incarnation, 0.0)
                await site.cluster.release("job")
                site.cluster.close()

        asyncio.run(whole())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def ticks(pid: int) -> int:
    proc = read_proc(pid)
    return proc.start_ticks if proc else 0


def alive(pid: int) -> bool:
    return is_same(pid, ticks(pid))
