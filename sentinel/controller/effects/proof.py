"""Proof of a save by files: one that appears and is complete, or one that goes. Where they lie the cluster knows."""

import asyncio
import glob
import os
from collections.abc import Awaitable, Callable

from sentinel.core.policy_model import Proof
from sentinel.core.reports import Files
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError

# A file that is still written changes its size, but a writer may pause (for the next tensor, a busy disk): unchanged
# for so long it is called complete.
STABLE_S = 2.0
LOOK_S = 5.0  # a file system that answers no sooner tells nothing this time
PAUSE = 4.0  # times what a look took: a slow file system, or an agent far away, is not asked without end

Look = Callable[
    [str], Awaitable[Files]
]  # a path or glob -> what it names now; raises what Cluster.files does


def checkpoint_folder(cwd: str, proof: Proof | None) -> str:
    """Where the owner's checkpoints are written, as far as a file that proves them tells; else ""."""
    path = (proof.file_appears or proof.file_gone) if proof is not None else ""
    return _folder(os.path.join(cwd, path)) if path else ""


def _folder(path: str) -> str:
    folder = os.path.dirname(path)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder


class FileProof:
    """Looks at what the owner's path or glob names. A look may hang: it is waited for, never doubled, and holds up
    nothing else."""

    def __init__(self, look: Look, cwd: str, proof: Proof, clock: Clock) -> None:
        self._look, self._clock, self._proof = look, clock, proof
        self._path = proof.file_appears or proof.file_gone
        self._shown = os.path.normpath(os.path.join(cwd, self._path))
        self._known: Files | None = (
            None  # what stood before the signal, and, for a file that goes, was seen since
        )
        self._last: tuple[str, int, int] | None = None
        self._last_s = 0.0  # since when it is so
        self._under_way: asyncio.Task[Files] | None = None
        self._asked_s, self._next_s = 0.0, 0.0
        self._problem = ""

    async def begin(self) -> None:
        """Before the signal: what stands already proves nothing by standing there."""
        self._known = await self._files()

    async def proved(self, ended: bool) -> str:
        """What proves the save, or an empty text while nothing does. `ended`: nobody writes any more."""
        if not ended and self._clock().mono_s < self._next_s:
            return ""
        now = await self._files()
        if now is None:
            return ""
        if self._known is None:  # the first look did not come in time: this one takes its place
            self._known = now
            return ""
        if self._proof.file_gone:
            self._known.update(now)  # a marker that a save makes and removes counts as much as one that stood
            gone = sorted(path for path in self._known if path not in now)
            return f"{gone[0]}, which went" if gone else ""
        fresh = [(path, *stat) for path, stat in now.items() if self._known.get(path) != stat]
        if not fresh:
            return ""
        newest = max(fresh, key=lambda entry: entry[2])
        now_s = self._clock().mono_s
        if newest != self._last:
            self._last, self._last_s = newest, now_s
        complete = ended or now_s - self._last_s >= STABLE_S
        return f"{newest[0]} ({newest[1]} bytes, complete)" if complete else ""

    async def missing(self) -> str:
        """Said where no save can be proved: nobody can look, or the folder is not there."""
        if self._under_way is not None and not self._under_way.done():
            return f": the file system of {self._shown} does not answer"
        if self._problem:
            return f": {self._problem}"
        folder = os.path.dirname(self._path)
        if not self._proof.file_appears or not folder or glob.has_magic(folder):
            return ""
        there = await self._files(folder)
        return f": {os.path.dirname(self._shown)} does not exist" if there == {} else ""

    def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()

    async def _files(self, path: str = "") -> Files | None:
        """None: no answer, or none in time."""
        if self._under_way is None:
            self._asked_s = self._clock().mono_s
            self._under_way = asyncio.ensure_future(_asked(self._look, path or self._path))
        done, _ = await asyncio.wait((self._under_way,), timeout=LOOK_S)
        if not done:
            return None
        task, self._under_way = self._under_way, None
        now_s = self._clock().mono_s
        self._next_s = now_s + PAUSE * (now_s - self._asked_s)
        try:
            found = task.result()
        except (TemporaryError, PermanentError) as error:
            self._problem = str(error)
            return None
        self._problem = ""
        return found


async def _asked(look: Look, path: str) -> Files:
    return await look(path)
