"""Proof of a save by files: one that appears and is complete, or one that goes."""

import asyncio
import glob
import os
import threading
from typing import TypeAlias

from sentinel.core.model import Proof

# A file that is still written changes its size, but a writer may pause (for the next tensor, a busy disk): this
# many equal looks in a row, 2 s, call it complete.
STABLE_LOOKS = 20
LOOK_S = 5.0  # a file system that answers no sooner tells nothing this time
MAX_ENTRIES = 20_000  # of a checkpoint that is a folder

Files: TypeAlias = dict[
    str, tuple[int, int]
]  # path -> (bytes, newest mtime in ns); a folder with all that is in it


def checkpoint_folder(cwd: str, proof: Proof | None) -> str:
    """Where the owner's checkpoints are written, as far as a file that proves them tells; else ""."""
    path = (proof.file_appears or proof.file_gone) if proof is not None else ""
    if not path:
        return ""
    folder = os.path.dirname(os.path.join(cwd, path))
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder


class FileProof:
    """Looks at what the owner's path or glob names, from threads: a file system that hangs must not hold up
    the loop that protects the job. At most one look is under way."""

    def __init__(self, cwd: str, proof: Proof) -> None:
        self._proof = proof
        self._path = os.path.join(cwd, proof.file_appears or proof.file_gone)
        self._known: Files | None = (
            None  # what stood before the signal, and, for a file that goes, was seen since
        )
        self._last: tuple[str, int, int] | None = None
        self._equal = 0
        self._look: asyncio.Future[Files] | None = None

    async def begin(self) -> None:
        """Before the signal: what stands already proves nothing by standing there."""
        self._known = await self._files()

    async def proved(self, ended: bool) -> str:
        """What proves the save, or an empty text while nothing does. `ended`: nobody writes any more."""
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
        self._equal = self._equal + 1 if newest == self._last else 0
        self._last = newest
        return f"{newest[0]} ({newest[1]} bytes, complete)" if ended or self._equal >= STABLE_LOOKS else ""

    def missing(self) -> str:
        """Said where no save can be proved: the file system does not answer, or the folder is not there."""
        if self._look is not None and not self._look.done():
            return f": the file system of {self._path} does not answer"
        folder = os.path.dirname(self._path)
        gone = self._proof.file_appears and not glob.has_magic(folder) and not os.path.isdir(folder)
        return f": {folder} does not exist" if gone else ""

    async def _files(self) -> Files | None:
        """None: no answer in time. A look that hangs is waited for again, never doubled."""
        if self._look is None:
            self._look = _in_thread(self._path)
        done, _ = await asyncio.wait((self._look,), timeout=LOOK_S)
        if not done:
            return None
        found, self._look = self._look.result(), None
        return found


def _in_thread(path: str) -> "asyncio.Future[Files]":
    """A daemon thread: one that hangs in the kernel must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Files] = loop.create_future()

    def tell(found: Files) -> None:
        if not answer.done():
            answer.set_result(found)

    def work() -> None:
        found = files(path)
        try:
            loop.call_soon_threadsafe(tell, found)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=work, name="save-proof", daemon=True).start()
    return answer


def files(pattern: str) -> Files:
    found: Files = {}
    for path in glob.glob(pattern):
        try:
            stat = os.stat(path)
            found[path] = _folder(path) if os.path.isdir(path) else (stat.st_size, stat.st_mtime_ns)
        except OSError:  # gone between the listing and the look
            continue
    return found


def _folder(path: str) -> tuple[int, int]:
    """A checkpoint that is a folder grows by what is put into it: the sum of sizes, the newest of the times."""
    size, newest, entries = 0, os.stat(path).st_mtime_ns, 0
    for folder, _, names in os.walk(path):
        for name in names:
            stat = os.lstat(os.path.join(folder, name))
            size, newest = size + stat.st_size, max(newest, stat.st_mtime_ns)
        entries += len(names)
        if entries > MAX_ENTRIES:
            break
    return size, newest
