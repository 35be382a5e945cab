"""What administrators let owners ask at most. Pure: a policy goes in, and comes out within the caps, with notes."""

from typing import Protocol, TypeVar

from msgspec import structs

from sentinel.core.policy_model import Checkpoint, Policy, Restart, Resume
from sentinel.core.units import duration_text

B = TypeVar("B", Resume, Restart)


class Caps(Protocol):
    """`sentinel.settings.Caps`."""

    @property
    def max_resumes(self) -> int: ...
    @property
    def max_restarts(self) -> int: ...
    @property
    def graceful_stop_s(self) -> float: ...
    @property
    def checkpoint_timeout_s(self) -> float: ...
    @property
    def debug_hold_s(self) -> float: ...
    @property
    def reset_after_min_s(self) -> float: ...


def capped(policy: Policy, caps: Caps) -> Policy:
    """Defaults, too, become what administrators allow. Its `capped` says what is not as it was asked, and by which
    cap."""
    desk = _Desk(caps)
    resume, restart, hold_s = policy.resume, policy.restart, policy.debug_hold_s
    if resume is not None:
        allowed = desk.count(resume.max_resumes, caps.max_resumes, "resume.maxResumes")
        resume = desk.budget(structs.replace(resume, max_resumes=allowed), allowed, "resume")
        resume = structs.replace(resume, checkpoint=desk.checkpoint(resume.checkpoint))
    if restart is not None:
        allowed = desk.count(restart.max_restarts, caps.max_restarts, "restart.maxRestarts")
        restart = desk.budget(structs.replace(restart, max_restarts=allowed), allowed, "restart")
    if hold_s is not None:
        hold_s = desk.at_most(hold_s, caps.debug_hold_s, "debugHold")
    notes = (*policy.capped, *desk.notes)
    return structs.replace(policy, resume=resume, restart=restart, debug_hold_s=hold_s, capped=notes)


class _Desk:
    """Each cap has the name of the field that it caps, but for those that say so."""

    def __init__(self, caps: Caps) -> None:
        self.caps, self.notes = caps, list[str]()

    def budget(self, asked: B, allowed: int, section: str) -> B:
        """`allowed`: restarts of all kinds; parts of them that are larger mean all of them."""
        reset_s, least_s = asked.reset_after_s, self.caps.reset_after_min_s
        if reset_s is not None and reset_s < least_s:
            self._note(
                f"{section}.resetAfter", duration_text(least_s), duration_text(reset_s), "resetAfterMin"
            )
            reset_s = least_s
        grace_s = self.at_most(asked.graceful_stop_s, self.caps.graceful_stop_s, f"{section}.gracefulStop")
        parts = {
            "max_infrastructure": _within(asked.max_infrastructure, allowed),
            "max_job": _within(asked.max_job, allowed),
        }
        return structs.replace(asked, reset_after_s=reset_s, graceful_stop_s=grace_s, **parts)

    def checkpoint(self, asked: Checkpoint | None) -> Checkpoint | None:
        if asked is None:
            return None
        most_s, path = self.caps.checkpoint_timeout_s, "resume.checkpoint.timeout"
        return structs.replace(
            asked, timeout_s=self.at_most(asked.timeout_s, most_s, path, "checkpointTimeout")
        )

    def count(self, asked: int, most: int, path: str) -> int:
        if asked > most:
            self._note(path, str(most), str(asked))
        return min(asked, most)

    def at_most(self, asked_s: float, most_s: float, path: str, cap: str = "") -> float:
        if asked_s > most_s:
            self._note(path, duration_text(most_s), duration_text(asked_s), cap)
        return min(asked_s, most_s)

    def _note(self, path: str, is_now: str, asked: str, cap: str = "") -> None:
        cap = cap or path.rpartition(".")[2]
        self.notes.append(f"{path} is {is_now}, not {asked} (caps.{cap} of the administrators' settings)")


def _within(asked: int | None, allowed: int) -> int | None:
    return None if asked is None else min(asked, allowed)
