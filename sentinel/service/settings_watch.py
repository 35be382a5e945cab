"""Settings that change under a running agent: noticed by the file's identity, or by SIGHUP; validated in a child."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator

from msgspec import Struct

from sentinel.checks import shape
from sentinel.config.child import begin
from sentinel.config.client import ConfigProblem, finish
from sentinel.settings import Settings

LOOK_S = 5.0

Print = tuple[int, int, int] | None  # inode, size, time of change; None: not there


class Outcome(Struct, frozen=True, kw_only=True):
    what: str  # "applied", "unchanged", "refused"
    settings: Settings
    problem: str = ""


class SettingsWatch:
    """What a person changes of the settings: the file, and the expected hardware that was learnt or confirmed."""

    def __init__(self, file: str | None, settings: Settings) -> None:
        self.file = file
        self._settings = settings
        self._asked = asyncio.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._seen = self._prints()

    def wake(self) -> None:
        """Read again now, whatever the file looks like (SIGHUP)."""
        self._asked.set()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()

    async def changes(self) -> AsyncIterator[Outcome]:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            prints = self._prints()
            if prints == self._seen and not self._asked.is_set():
                continue
            learnt = prints[1] != self._seen[1]
            self._asked.clear()
            self._seen = prints
            yield await self._read(learnt)

    async def _read(self, learnt: bool) -> Outcome:
        settings = Settings()
        if self.file is not None:
            try:
                self._child = begin(None, self.file)
                settings = (await asyncio.to_thread(finish, self._child))[1]
            except (ConfigProblem, OSError) as problem:
                return Outcome(what="refused", settings=self._settings, problem=str(problem))
            finally:
                self._child = None
        same = settings == self._settings and not learnt
        self._settings = settings
        return Outcome(what="unchanged" if same else "applied", settings=settings)

    def _prints(self) -> tuple[Print, Print]:
        return _print(self.file), _print(self._settings.state_path / shape.FILE)


def _print(path: str | os.PathLike[str] | None) -> Print:
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found is not None else None
