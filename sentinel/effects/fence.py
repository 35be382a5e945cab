"""Calls the administrators' program that powers a machine off: bounded in time, output and number.

It runs beside the leader's loop, in a session and process group of its own, in /, without input. It is killed with its
group at its time limit, when its record waits for it no more (its node is heard), and when this controller leads no
more; whatever it left in its group when it ended is, too.
"""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from typing import IO

import structlog

from sentinel.core.fleet_hook import FenceCall, waits
from sentinel.core.fleet_model import FenceOutcome, NodeQuarantine
from sentinel.core.fleet_settings import FenceHook
from sentinel.metrics import Metrics

log = structlog.get_logger(__name__)

AT_ONCE = 4
MAX_TAIL_BYTES = 4096  # that are kept of stderr: its end
MAX_LINE = 200  # characters
MAX_LEFT_BYTES = 1 << 20  # that are read of stderr when it has ended
READ_BYTES = 1 << 16
REAP_S = 0.2  # a process that outlives SIGKILL so long hangs in the kernel


def unfit(path: str) -> str:
    """Why the program cannot be called here; "": it can."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        return f"{path}: not an executable file"
    if mode & stat.S_IWOTH:
        return f"{path}: may be written by everybody"
    return ""


class Fencer:
    """Of one leader. `hook` None: there is no program to call.

    `outcomes` stand until `settle` finds that their records do not wait for them any more.
    """

    def __init__(self, hook: FenceHook | None, metrics: Metrics) -> None:
        self._hook, self._metrics = hook, metrics
        self._running: dict[str, tuple[FenceCall, asyncio.Task[None]]] = {}  # by node
        self._outcomes: dict[tuple[str, int], FenceOutcome] = {}
        if hook is not None:
            metrics.fence_calls_begin()

    @property
    def outcomes(self) -> tuple[FenceOutcome, ...]:
        return tuple(self._outcomes.values())

    def settle(self, records: Mapping[str, NodeQuarantine]) -> None:
        """Also kill what runs and is waited for no more: it would power off a node that is heard again."""
        for key in [*self._outcomes]:
            if not waits(records.get(key[0]), key[1]):
                del self._outcomes[key]
        for call, task in self._running.values():
            if not waits(records.get(call.record), call.number):
                task.cancel()

    def may_call(self, call: FenceCall) -> bool:
        """Not where it runs already or has just ended, nor too many at once: those wait for another round."""
        ended = (call.record, call.number) in self._outcomes
        return not ended and call.node not in self._running and len(self._running) < AT_ONCE

    def call(self, call: FenceCall) -> None:
        if self._hook is not None and self.may_call(call):
            task = asyncio.create_task(self._call(call, self._hook), name=f"fence {call.node}")
            self._running[call.node] = call, task
            task.add_done_callback(lambda _: self._running.pop(call.node))

    def stop(self) -> None:
        """Kill what runs. The next leader calls it again."""
        for _, task in self._running.values():
            task.cancel()
        self._outcomes.clear()

    async def _call(self, call: FenceCall, hook: FenceHook) -> None:
        log.warning("fence_called", node=call.node, record=call.record, number=call.number)
        begun_s = time.monotonic()
        outcome, how = "stopped", "its node is heard again, or this controller leads no more"
        try:
            try:
                outcome, how = await self._run(call, hook)
            except OSError as error:
                outcome, how = "not-started", f"{hook.command[0]}: {error.strerror}"
            one = FenceOutcome(call.record, call.number, outcome == "off", how)
            self._outcomes[call.record, call.number] = one
        finally:
            self._metrics.fence_call(outcome)
            took_s = round(time.monotonic() - begun_s, 1)
            log.warning(
                "fence_ended", node=call.node, record=call.record, outcome=outcome, how=how, took_s=took_s
            )

    async def _run(self, call: FenceCall, hook: FenceHook) -> tuple[str, str]:
        """The outcome as the metric names it, and in words. Raises OSError: it could not be started."""
        process = _start(call, hook)
        assert process.stderr is not None
        errors = _Tail(process.stderr)
        in_time = False
        code: int | None = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(hook.timeout_s):
                    await _ended(process, errors)
                in_time = True
        finally:
            # Before it is reaped: its number, which is the group's, is not given to another until then.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(REAP_S)
            said = errors.last_line()
        if in_time and code == 0:
            return "off", "exit code 0"
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if not in_time:
            how = f"no end within {hook.timeout_s:g} s, killed"
        return "failed" if in_time else "timed-out", f"{how}: {said}" if said else how


def _start(call: FenceCall, hook: FenceHook) -> subprocess.Popen[bytes]:
    about = {
        "SENTINEL_NODE": call.node,
        "SENTINEL_NODE_UID": call.node_uid,
        "SENTINEL_PROVIDER_ID": call.provider_id,
        "SENTINEL_RECORD": call.record,
    }
    return subprocess.Popen(
        [*hook.command, call.node],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        env={**os.environ, **about},
    )


async def _ended(process: subprocess.Popen[bytes], errors: "_Tail") -> None:
    """Until the process itself has ended: what its children still hold open is not waited for."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(process.pid)

    def read() -> None:
        if not errors.read():
            loop.remove_reader(errors.descriptor)

    loop.add_reader(pidfd, ended.set)
    loop.add_reader(errors.descriptor, read)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(errors.descriptor)
        loop.remove_reader(pidfd)
        os.close(pidfd)


class _Tail:
    """The end of what a process writes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self.descriptor = stream.fileno()
        os.set_blocking(self.descriptor, False)

    def read(self) -> int:
        """How many bytes there were; 0: it is closed, or there are none now."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        self._kept = (self._kept + data)[-MAX_TAIL_BYTES:]
        return len(data)

    def last_line(self) -> str:
        """With what is left, as printable text. Closes the stream."""
        left = MAX_LEFT_BYTES
        while left > 0 and (count := self.read()):
            left -= count
        self._stream.close()
        text = "\n".join(line for line in self._kept.decode(errors="replace").splitlines() if line.strip())
        plain = "".join(c if c.isprintable() else " " for c in text.rpartition("\n")[2])
        return " ".join(plain.split())[:MAX_LINE]
