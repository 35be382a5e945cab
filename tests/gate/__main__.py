"""All tests, and those that failed again, alone and up to twice: what CI runs behind the linters.

    python -m tests.gate [--folder build/gate]        # which gets the reports and unsteady.json

Exits 0 where every test passed in one of the goes, and then notes the tree that passed. docs/development.md.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests.gate.report import Report, failed, read, unsteady, verdict

GOES = 3
SLOWEST = 30  # tests that are printed
# A go that has not ended by then hangs: all tests take less than half of the first one on two cores.
FIRST_GO_S, LATER_GO_S = 7200.0, 1800.0
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)


def run(command: list[str], options: list[str], limit_s: float, settle_s: float) -> int:
    """The exit status of one go. All that it started has ended when this returns."""
    env = {**os.environ, "PYTEST_ADDOPTS": shlex.join(options)}
    go = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    signal.signal(signal.SIGALRM, partial(time_is_up, go.pid, limit_s))
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    ended, status = os.wait()
    while ended != go.pid:  # an orphan, which is gone only when its new parent has waited for it
        ended, status = os.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    go.returncode = os.waitstatus_to_exitcode(status)
    end_all(settle_s)
    return go.returncode


def time_is_up(group: int, limit_s: float, *_: object) -> None:
    print(f"gate: not over after {limit_s:.0f} s", flush=True)
    os.killpg(group, signal.SIGKILL)


def end_all(settle_s: float) -> None:
    """Every process below this one is gone afterwards: those that do not end by themselves are killed and named."""
    deadline = time.monotonic() + settle_s
    while descendants() and time.monotonic() < deadline:
        time.sleep(0.1)
    named: set[int] = set()
    while left := descendants():
        for pid, command in left.items():
            if pid not in named:
                print(f"gate: killed {pid}, left behind: {command}", flush=True)
                named.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def descendants() -> dict[int, str]:
    """pid -> command line of all below this process, which as a subreaper is the parent of orphans too."""
    reap()
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        below.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    look = [os.getpid()]
    while look:
        for pid in below.get(look.pop(), ()):
            look.append(pid)
            try:
                words = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            found[pid] = words.strip()
    return found


def reap() -> None:
    """Orphans that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def gate(folder: Path, command: list[str], limits_s: tuple[float, float], settle_s: float) -> bool:
    goes: list[Report] = []
    cache = ["-o", f"cache_dir={folder / 'cache'}"]  # where pytest keeps which tests failed last
    for number in range(1, GOES + 1):
        path = folder / f"go-{number}.json"
        options = ["-p", "tests.gate.report", f"--gate-report={path}", *cache]
        if number == 1:
            status = run(command, [*options, f"--durations={SLOWEST}"], limits_s[0], settle_s)
        else:
            earlier = [f"--gate-earlier={folder / f'go-{n}.json'}" for n in range(1, number)]
            status = run([*command, "args=--last-failed"], [*options, *earlier], limits_s[1], settle_s)
        if not path.exists():
            print(f"gate: the tests ended with {status} and without a report", flush=True)
            return False
        goes.append(read(path))
        if status == 0:
            break
        if verdict(goes[-1]):
            return False
    found = unsteady(goes)
    (folder / "unsteady.json").write_text(json.dumps(found, indent=1))
    return status == 0 and len(found) == len(failed(goes[0]))


def note_passed() -> None:
    """One line for a tree that passed as it is committed: its hash and the time. Nothing is left out because of it.

    A tree that is no checkout, or a cache that cannot be written, takes nothing from what has passed.
    """
    words = (["status", "--porcelain"], ["rev-parse", "HEAD^{tree}"])
    try:
        changed, tree = (subprocess.check_output(["git", *one], text=True) for one in words)
        if changed:
            return
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentinel" / "ci-passed"
        cache.parent.mkdir(parents=True, exist_ok=True)
        with open(cache, "a") as file:
            file.write(f"{tree.strip()} {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"gate: not noted as passed: {error}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gate", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/gate"))
    parser.add_argument(
        "--settle-s", type=float, default=60.0, help="for what ends by itself, as wardens of rigs"
    )
    parser.add_argument("--first-go-s", type=float, default=FIRST_GO_S, help="ended and red after so long")
    parser.add_argument("--later-go-s", type=float, default=LATER_GO_S, help="the same for each later go")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("go-*.json"), *folder.glob("unsteady.json")]:
        old.unlink()
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if not gate(folder, ["make", "test"], (asked.first_go_s, asked.later_go_s), asked.settle_s):
        return 1
    note_passed()
    return 0


if __name__ == "__main__":
    sys.exit(main())
