"""Runs a program, and looks at what its event loop does in one go.

    python -m tests.bench.fleet_slices FILE -m MODULE WORDS

SIGRTMIN begins a look and the next one ends it: then FILE says what the longest callback between them took, how long
a full garbage collection takes now, and how many there were by themselves since the program began.
"""

import asyncio
import gc
import json
import os
import runpy
import signal
import sys
import time
from asyncio.events import Handle
from pathlib import Path
from typing import Any

_bare: Any = Handle._run


class Look:
    """Two holds are kept: by the clock, which others on the machine make longer, and by the CPU time of the thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._on = False
        self._full_s, self._fulls = 0.0, 0
        self._collects_s = 0.0
        gc.callbacks.append(self._collection)
        self._begin()

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2:
            return
        now_s = time.thread_time()
        if phase == "start":
            self._collects_s = now_s
        else:
            self._fulls += 1
            self._full_s = max(self._full_s, now_s - self._collects_s)

    def _begin(self) -> None:
        self.clock_s = self.cpu_s = 0.0
        self.what = ""

    def turn(self, *_: object) -> None:
        self._on = not self._on
        if self._on:
            self._begin()
            Handle._run = self._timed()  # type: ignore[method-assign]
            return
        Handle._run = _bare  # type: ignore[method-assign]
        fulls, longest_s = self._fulls, self._full_s
        begun_s = time.thread_time()
        gc.collect()
        said = {
            "full_collections": fulls,
            "longest_collection_ms": longest_s * 1000,
            "clock_ms": self.clock_s * 1000,
            "cpu_ms": self.cpu_s * 1000,
            "what": self.what,
            "full_collection_ms": (time.thread_time() - begun_s) * 1000,
        }
        made = self._path.with_suffix(".new")
        made.write_text(json.dumps(said))
        made.rename(self._path)

    def _timed(self) -> Any:
        def run(handle: Handle) -> None:
            begun_s, before_s = time.perf_counter(), time.thread_time()
            _bare(handle)
            used_s = time.thread_time() - before_s
            self.clock_s = max(self.clock_s, time.perf_counter() - begun_s)
            if used_s > self.cpu_s:
                self.cpu_s, self.what = used_s, name(handle)

        return run


def name(handle: Any) -> str:
    task = getattr(handle._callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", task.get_name()))
    return str(getattr(handle._callback, "__qualname__", handle._callback))


class Looked:
    """What the bench sees of a program that runs so."""

    def __init__(self, path: Path) -> None:
        said = json.loads(path.read_text())
        path.unlink()
        self.full_collections: int = said["full_collections"]
        self.longest_collection_ms: float = said["longest_collection_ms"]
        self.clock_ms: float = said["clock_ms"]
        self.cpu_ms: float = said["cpu_ms"]
        self.what: str = said["what"]
        self.full_collection_ms: float = said["full_collection_ms"]


def turn(pid: int) -> None:
    """Begin a look, or end it."""
    os.kill(pid, signal.SIGRTMIN)


if __name__ == "__main__":
    file, module, words = Path(sys.argv[1]), sys.argv[3], sys.argv[4:]
    signal.signal(signal.SIGRTMIN, Look(file).turn)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
