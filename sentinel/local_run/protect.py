"""What `run`, `attach` and `stop` share: open the state, take the job's lock, run a session, maybe detached."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import ProtectedJob
from sentinel.core.recovery.events import EndRequested
from sentinel.service.control import Lock, ask_holder
from sentinel.settings import Settings
from sentinel.util import journal

HANDOVER_S = 20.0


def say(text: str) -> None:
    print(f"sentinel: {text}", file=sys.stderr, flush=True)


def protect(
    job: ProtectedJob,
    settings: Settings,
    store: LocalStore,
    lock: Lock,
    *,
    fresh: bool,
    quiet: bool = False,
    end: EndRequested | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Run a session to its end in the foreground. Returns the exit code."""
    from sentinel.console.terminal import Terminal
    from sentinel.local_run.session import Quiet, Session

    # A terminal set to `tostop` would stop a Sentinel that writes from the background.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    folder = settings.state_path / "jobs" / job.name
    journal.configure(folder / "sentinel.log")
    terminal = Quiet() if quiet else Terminal(sys.stdout, sys.stderr, job.size)

    async def main() -> int:
        session = Session(
            job, settings, store, lock, terminal, fresh=fresh, on_ready=on_ready, end_at_once=end
        )
        return await session.run()

    try:
        return asyncio.run(main())
    finally:
        terminal.close()


def detached(settings: Settings, name: str, work: Callable[[Callable[[], None]], int]) -> int:
    """Run `work(on_ready)` in a process of its own session; return when the job is up, or with its failure.

    The child's own messages go to JOB_DIR/console.log.
    """
    folder = settings.state_path / "jobs" / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        console = os.open(folder / "console.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(null, 0)
        os.dup2(null, 1)  # the job's output is in its own logs
        os.dup2(console, 2)

        def on_ready() -> None:
            os.write(tell, b"ready")
            os.close(tell)

        code = 125
        try:
            code = work(on_ready)
        finally:
            with contextlib.suppress(OSError):
                os.write(tell, str(code).encode())
            os._exit(code)
    os.close(tell)
    said = os.read(ready, 64)
    os.close(ready)
    if said.startswith(b"ready"):
        print(f"{name} runs and is protected by pid {child}. `sentinel attach {name}` shows it here.")
        return 0
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        sys.stderr.write((folder / "console.log").read_text(errors="replace"))
    return os.waitstatus_to_exitcode(status)


def take_over(settings: Settings, name: str) -> Lock | None:
    """The job's lock; a Sentinel that holds it is asked to let go. None: it does not, and why was said."""
    folder = settings.state_path / "jobs" / name
    lock = Lock(folder)
    if lock.take():
        return lock
    answer = ask_holder(folder, {"do": "handover"}, lock)
    if lock.held:
        return lock
    if answer is None:
        say(
            f"{name} is protected by another Sentinel that does not answer; end it first (kill -9 leaves the job alone)"
        )
        return None
    if lock.take(wait_s=HANDOVER_S):
        return lock
    say(f"{name}: the other Sentinel did not let go within {HANDOVER_S:.0f} s")
    return None


def open_store(settings: Settings) -> LocalStore | None:
    """None where the state cannot be used at all; why was said."""
    from sentinel.util.errors import PermanentError

    journal.configure(None)  # what the store logs must not land in what the command prints
    try:
        settings.state_path.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = LocalStore(settings.state_path / "state.db")
    except (OSError, PermanentError) as error:
        say(f"the state directory {settings.state_path} cannot be used: {error}")
        return None
    for sentence in store.degraded:
        say(sentence)
    return store


def now_wall_s() -> float:
    return time.time()
