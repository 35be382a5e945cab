"""Calls the administrators' program that powers a machine off: bounded in time, output and number.

It runs beside the leader's loop, in /, without input. It is killed with its group at its time limit, when its record
waits for it no more (its node is heard), and when this controller leads no more; whatever it left in its group when it
ended is, too.
"""

import asyncio
import os
import stat
import time
from collections.abc import Mapping

import structlog

from sentinel.core.fleet.hook import FenceCall, waits
from sentinel.core.fleet.model import FenceOutcome, NodeQuarantine
from sentinel.core.fleet.settings import FenceHook
from sentinel.metrics.registry import Metrics
from sentinel.util.children import ChildError, NotStarted, OutOfTime, ask

log = structlog.get_logger(__name__)

AT_ONCE = 4
MAX_LINE = 200  # characters


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
            outcome, how = await _run(call, hook)
            one = FenceOutcome(call.record, call.number, outcome == "off", how)
            self._outcomes[call.record, call.number] = one
        finally:
            self._metrics.fence_call(outcome)
            took_s = round(time.monotonic() - begun_s, 1)
            log.warning(
                "fence_ended", node=call.node, record=call.record, outcome=outcome, how=how, took_s=took_s
            )


async def _run(call: FenceCall, hook: FenceHook) -> tuple[str, str]:
    """The outcome as the metric names it, and in words."""
    about = {
        "SENTINEL_NODE": call.node,
        "SENTINEL_NODE_UID": call.node_uid,
        "SENTINEL_PROVIDER_ID": call.provider_id,
        "SENTINEL_RECORD": call.record,
    }
    command = [*hook.command, call.node]
    try:
        ended = await ask(command, limit_s=hook.timeout_s, env={**os.environ, **about}, cwd="/")
    except NotStarted as error:
        return "not-started", str(error)
    except OutOfTime as error:
        return "timed-out", _with(f"no end within {hook.timeout_s:g} s, killed", error.complaint)
    except ChildError as error:
        return "failed", _with(str(error), error.complaint)
    if ended.code == 0:
        return "off", "exit code 0"
    how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    return "failed", _with(how, ended.complaint)


def _with(how: str, complaint: str) -> str:
    """And the last line of its errors, as printable text."""
    plain = "".join(c if c.isprintable() else " " for c in (complaint.splitlines() or [""])[-1])
    said = " ".join(plain.split())[:MAX_LINE]
    return f"{how}: {said}" if said else how
