"""Files of the jobs on an agent's node, as their ranks see them: a child process per job looks into their mounts."""

import asyncio
import json
import sys
from pathlib import Path

from sentinel.checks.child import ChildBroke, ChildHangs, LineChild
from sentinel.cluster.local import files
from sentinel.cluster.local.processes import Proc, is_same
from sentinel.core.reports import Files

LOOK_S = 5.0  # then the child is killed: it hangs in a file system that does not answer
IDLE_S = 60.0  # a child that is not asked for so long ends
MOST = 500  # files in one answer
MOST_BYTES = 128 << 10  # of their names in one answer: a report has an end (transport.wire.MAX_RECORD_BYTES)
MOST_JOBS = 16  # whose file systems may hang at a time


class NodeFiles:
    """At most one look of a job is under way; one that hangs holds up no other job."""

    def __init__(self) -> None:
        self._children: dict[str, LineChild] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._idle: dict[str, asyncio.TimerHandle] = {}

    async def look(self, job: str, proc: Proc, pattern: str) -> Files | str:
        """What the pattern names, or why that cannot be told."""
        if job not in self._children and len(self._children) >= MOST_JOBS:
            return f"files of {MOST_JOBS} jobs are looked at already"
        lock = self._locks.setdefault(job, asyncio.Lock())
        async with lock:
            child = self._children.setdefault(
                job, LineChild([sys.executable, "-I", "-S", str(Path(files.__file__).absolute())])
            )
            request = json.dumps({"pid": proc.pid, "pattern": pattern, "most": MOST}).encode()
            self._forget_later(job)
            try:
                answer = json.loads(await asyncio.to_thread(child.ask, request, LOOK_S))
            except ChildHangs:
                return f"the file system of {pattern} does not answer"
            except (ChildBroke, ValueError) as error:
                return f"nobody can look for {pattern}: {error}"
        if not is_same(proc.pid, proc.start_ticks):
            return "gone"
        if "unseen" in answer:
            return str(answer["unseen"])
        found = {_text(path): (size, mtime_ns) for path, (size, mtime_ns) in answer["files"].items()}
        if sum(len(path.encode()) for path in found) > MOST_BYTES:
            return f"{pattern} names too many files for one answer"
        return found

    def _forget_later(self, job: str) -> None:
        if (before := self._idle.pop(job, None)) is not None:
            before.cancel()
        self._idle[job] = asyncio.get_running_loop().call_later(IDLE_S, self.forget, job)

    def forget(self, job: str) -> None:
        if (timer := self._idle.pop(job, None)) is not None:
            timer.cancel()
        lock = self._locks.get(job)
        if lock is not None and lock.locked():  # a look is under way, and bounded
            self._forget_later(job)
            return
        self._locks.pop(job, None)
        if (child := self._children.pop(job, None)) is not None:
            child.close()

    def close(self) -> None:
        for job in list(self._children):
            self._children.pop(job).close()
        for timer in self._idle.values():
            timer.cancel()


def _text(path: str) -> str:
    """Names of files are bytes; what is no text is shown with marks in its place."""
    return path.encode("utf-8", "replace").decode()
