"""What people and schedulers ask of a session while it runs: signals, and requests over its control socket."""

import signal
import time
from collections.abc import Callable
from typing import Any

from msgspec import to_builtins

from sentinel.checks.runner import CheckRunner
from sentinel.core.model import JobState
from sentinel.core.policy_model import Policy
from sentinel.core.recovery.events import EndRequested
from sentinel.core.units import duration_text
from sentinel.local_run.controller import MachineController
from sentinel.local_run.exit_codes import EXIT_STOPPED, EXIT_WARNED

# One Ctrl-C may come twice: from the terminal, and from a program that runs Sentinel and passes it on.
ONE_CTRL_C_S = 0.3


def _interrupted(policy: Policy) -> str:
    """What the first Ctrl-C does, and what the next one would."""
    checkpoint = policy.resume.checkpoint if policy.resume else None
    grace = duration_text(policy.graceful_stop_s)
    if checkpoint is None:
        return f"Stopped by Ctrl-C: {grace} to end; Ctrl-C again kills it."
    saves = duration_text(checkpoint.timeout_s)
    return f"Stopped by Ctrl-C: saves first, at most {saves}, then {grace} to end; Ctrl-C again kills it at once."


class SessionOrders:
    """`hand_over`: let another Sentinel protect the job."""

    def __init__(
        self,
        job: str,
        controller: MachineController,
        checks: CheckRunner,
        terminal: Any,
        view: Callable[[], Any],
        hand_over: Callable[[], None],
    ) -> None:
        self._job, self._controller, self._checks, self._terminal = job, controller, checks, terminal
        self._view, self._hand_over = view, hand_over
        self._interrupts = 0
        self._interrupted_s = float("-inf")

    def signalled(self, number: signal.Signals) -> None:
        policy = self._controller.pictures[self._job].job.policy
        if number == signal.SIGHUP:
            self._terminal.say("detached: the job goes on, and so does its protection")
            self._terminal.detach()
            return
        if number == signal.SIGINT:
            now_s = time.monotonic()
            if now_s - self._interrupted_s < ONE_CTRL_C_S:
                return
            self._interrupted_s = now_s
            self._interrupts += 1
            if self._interrupts > 1:
                text, grace_s, save = "Stopped by Ctrl-C, twice: killed.", 0.0, False
            else:
                text, grace_s, save = _interrupted(policy), policy.graceful_stop_s, True
            self._request(JobState.STOPPED, "Stopped", text, grace_s, save=save, code=EXIT_STOPPED)
            return
        text = f"{number.name} was sent to Sentinel: saves, stops, and leaves nothing behind."
        self._request(JobState.STOPPED, "Warned", text, policy.graceful_stop_s, save=True, code=EXIT_WARNED)

    def _request(
        self, state: JobState, reason: str, text: str, grace_s: float, *, save: bool, code: int | None
    ) -> None:
        self._controller.request_end(
            self._job, EndRequested(state, reason, text, grace_s, save=save, code=code)
        )

    async def asked(self, request: dict[str, Any]) -> dict[str, Any]:
        """What `stop`, `extend`, `attach` and, where there is no page, `status` ask over the control socket."""
        what = request.get("do")
        policy = self._controller.pictures[self._job].job.policy
        if what == "stop":
            grace_s = float(request.get("grace_s", policy.graceful_stop_s))
            save = bool(request.get("save", True))
            self._request(
                JobState.STOPPED, "Stopped", "Stopped by a person.", grace_s, save=save, code=EXIT_STOPPED
            )
            return {"ok": True, "text": f"{self._job} is being stopped"}
        if what == "extend":
            job = self._controller.extend(self._job, float(request["seconds"]))
            return {
                "ok": True,
                "text": f"{self._job} may run {job.extra_s:.0f} s longer than its maxDuration",
            }
        if what == "release":
            entity = str(request.get("entity", ""))
            ended, text = self._checks.book.release(entity)
            if ended:
                self._controller.release(entity)
            return {"ok": ended, "text": text}
        if what == "view":
            return {"ok": True, "view": to_builtins(self._view())}
        if what == "ping":
            return {"ok": True, "text": f"{self._job} is protected"}
        if what == "handover":
            self._hand_over()
            return {"ok": True, "text": "handed over"}
        return {"ok": False, "text": f"unknown request {what!r}"}
