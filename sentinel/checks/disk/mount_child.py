"""Calls that a dead file server may hang, in a process of its own: `statvfs`, and a timed write of a tiny file.

Each call has a thread, at most one per mount is under way, and the answer names those that did not return. A
process with a thread that hangs in the kernel may not end even when it is killed: hence not Sentinel's own.
Reads one JSON request per line and answers each with one line. Imports only what every Python has loaded.
"""

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

NAME = f".sentinel-probe-{os.uname().nodename}-{os.getuid()}"


def stat_of(path: str) -> list[int]:
    """Block size, blocks, blocks that users can take, inodes, inodes that users can take, flags."""
    stats = os.statvfs(path)
    return [stats.f_frsize, stats.f_blocks, stats.f_bavail, stats.f_files, stats.f_favail, stats.f_flag]


def write_to(folder: str) -> list[int]:
    """Make a tiny file, have the server write it, remove it."""
    path = os.path.join(folder, NAME)
    try:
        os.unlink(path)  # of a probe that was killed
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except FileExistsError:  # another Sentinel is just doing the same
        return []
    try:
        os.write(descriptor, b"sentinel\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
    return []


CALLS: dict[str, Callable[[str], list[int]]] = {"stat": stat_of, "write": write_to}


class Call:
    """One call in a thread of its own."""

    def __init__(self, kind: str, path: str) -> None:
        self.begun_s = time.monotonic()
        self.done = threading.Event()
        self.answer: dict[str, Any] = {}
        self._kind, self._path = kind, path
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.answer = {"values": CALLS[self._kind](self._path)}
        except OSError as error:
            self.answer = {"error": error.errno or errno.EIO}
        self.answer["took_s"] = time.monotonic() - self.begun_s
        self.done.set()


def answer(request: dict[str, Any], under_way: dict[tuple[str, str], Call]) -> dict[str, dict[str, Any]]:
    """{"stat /nfs": {"values": [...]} or {"error": errno} or {"hangs_s": seconds}}.

    What has hung for longer than the deadline already is not waited for again.
    """
    deadline_s: float = request["deadline_s"]
    calls: dict[tuple[str, str], Call] = {}
    for kind in CALLS:
        for path in request.get(kind, ()):
            call = under_way.get((kind, path))
            if call is None or call.done.is_set():  # what came too late is old
                call = Call(kind, path)
            calls[kind, path] = under_way[kind, path] = call
    found = {}
    for (kind, path), call in calls.items():
        if call.done.wait(max(0.0, call.begun_s + deadline_s - time.monotonic())):
            found[f"{kind} {path}"] = call.answer
            del under_way[kind, path]
        else:
            found[f"{kind} {path}"] = {"hangs_s": time.monotonic() - call.begun_s}
    return found


def main() -> None:
    under_way: dict[tuple[str, str], Call] = {}
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answer(json.loads(line), under_way)).encode() + b"\n")
        sys.stdout.buffer.flush()
    os._exit(0)  # threads that hang are not waited for


if __name__ == "__main__":
    main()
