"""Ends and removes everything of one rig as soon as the process that made it has ended, however it ended.

    python warden.py FOLDER < pipe

The other end of the pipe is held by that process alone, so its end, by SIGKILL too, is the end of the file. Then every
process that carries the rig's mark in its environment is killed, and cgroups, network links, mounts and the folder are
removed.
A regular end takes the same way. Imports nothing of the project: it must work whatever is broken there.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "SENTINEL_TEST_RIG"
DEADLINE_S = 30.0


def marked(folder: Path) -> dict[int, str]:
    """Living processes of a rig: pid -> command line."""
    wanted = f"{MARK}={folder}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found


def cgroup_roots(name: str) -> list[Path]:
    """The folders of this name below the top of each cgroup hierarchy, v1 or v2."""
    top = Path("/sys/fs/cgroup")
    return [path for path in [top / name, *top.glob(f"*/{name}")] if path.is_dir()]


def _end_processes(folder: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and (pids := marked(folder)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove_cgroups(name: str) -> None:
    """These folders with all below them, once their last processes have been reaped."""
    end = time.monotonic() + DEADLINE_S
    while (roots := cgroup_roots(name)) and time.monotonic() < end:
        for root in roots:
            for path, _, _ in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
        time.sleep(0.02)


def _remove_links(name: str) -> None:
    """The bridge NAME and the cables NAME-1, ...: an orphaned connection can keep a network namespace for minutes."""
    for path in Path("/sys/class/net").glob(f"{name}*"):
        words = ["ip", "link", "delete", path.name]
        subprocess.run(
            words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=DEADLINE_S
        )


def unmount_below(folder: Path) -> None:
    """What is mounted there, the innermost first."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in reversed([place for place in places if place.startswith(f"{folder}/")]):
        words = ["umount", "--lazy", place]
        subprocess.run(
            words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=DEADLINE_S
        )


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    print("watching", flush=True)
    sys.stdin.buffer.read()
    _end_processes(folder)
    remove_cgroups(folder.name)
    _remove_links(folder.name)
    unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
