"""May the job start again, when, and at whose cost: one pure function with a reason for every answer."""

from collections.abc import Sequence

from msgspec import structs

from sentinel.core.model import (
    HANG,
    LONGEST_ALLOWANCE_S,
    UNSTEPPED_S,
    Budget,
    Cause,
    Failure,
    Incident,
    IncidentKind,
    ProtectedJob,
    Restartable,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.recovery.events import Plan
from sentinel.core.recovery.moves import RETRY_PRECHECK_S, START_TRIES
from sentinel.core.signals import how_far

# A fault at the same step with no newer checkpoint: the third start would only repeat it.
SAME_STEP_LIMIT = 3
# Of hangs so many: programs evaluate before they save, and such a pause may have been taken for one. Each is given
# twice as long as the one before (core.hang), up to an hour. Who was seen in such a pause has the hour by the second.
SAME_STEP_HANGS = 6
# A server or a network that is away comes back by itself: three starts within minutes say nothing of the job.
OUTAGE_S = 1800.0
_OUTSIDE = frozenset({Cause.NETWORK, Cause.STORAGE})
BACKOFF_FIRST_S = 5.0
BACKOFF_MAX_S = 300.0
# Restarts within an hour: who fails each 3 minutes is not well. The second: of those that no budget limits.
MOST_PER_HOUR, FREE_PER_HOUR = 20, 12
KEPT_FAILURES = MOST_PER_HOUR
HOUR_S = 3600.0


def plan(job: ProtectedJob, incident: Incident, verdict: Verdict, last_step: int | None, now: Now) -> Plan:
    """What follows the stop of `incident`. `verdict` and `last_step` are what the whole evidence gives."""
    if incident.kind == IncidentKind.CHOSEN:
        return Plan(restart=True, reason="Moves", sentence="All ranks ended; starts again.", verdict=verdict)
    if incident.paid:
        return _start_again(incident)
    step = incident.failed_step if last_step is None else last_step
    return structs.replace(_of_fault(job, incident, verdict, step, now), failed_step=step)


def _of_fault(
    job: ProtectedJob, incident: Incident, verdict: Verdict, failed_step: int | None, now: Now
) -> Plan:
    if _blames_size(incident, verdict):
        return Plan(
            restart=True,
            reason="ResizeFailed",
            sentence=f"The first start with {incident.size} ranks failed: back to {incident.from_size}, "
            f"and the size is not changed again. {verdict.sentence}",
            verdict=structs.replace(verdict, budget=Budget.FREE),
            avoid=_avoid(verdict),
        )
    return plan_after_stop(job, verdict, failed_step, now)


def _start_again(incident: Incident) -> Plan:
    """A start that did not come up is tried again at no cost, with a pause that grows, but not for ever."""
    failed = incident.failed_starts
    if failed >= START_TRIES:
        sentence = f"Given up: {failed} starts in a row did not come up."
        return Plan(restart=False, reason="StartFailed", sentence=sentence, verdict=incident.verdict)
    delay_s = min(RETRY_PRECHECK_S * 2 ** max(0, failed - 1), BACKOFF_MAX_S)
    return Plan(
        restart=True,
        reason="StartsAgain",
        sentence=f"Starts again at no cost in {delay_s:.0f} s: the last start did not come up.",
        verdict=incident.verdict,
        delay_s=delay_s,
    )


def _blames_size(incident: Incident, verdict: Verdict) -> bool:
    """An error at the first start of a new size. A smaller one is blamed only for what the program did."""
    if not incident.attempt or incident.size == incident.from_size:
        return False
    return incident.size > incident.from_size or verdict.budget == Budget.JOB


def _avoid(verdict: Verdict) -> str:
    blamed = verdict.follows == "node" or (verdict.cause == Cause.GPU and verdict.scope == "node")
    return verdict.entity if blamed else ""


def plan_after_stop(job: ProtectedJob, verdict: Verdict, failed_step: int | None, now: Now) -> Plan:
    """What follows a forced stop. `job.failures` does not hold the present failure yet."""
    reason, sentence, exhausted = _refusal(job, verdict, failed_step, now)
    if reason:
        return Plan(restart=False, reason=reason, sentence=sentence, verdict=verdict, exhausted=exhausted)
    delay_s = backoff_s(job, verdict, failed_step, now)
    hourly_s, hourly = hourly_wait(job, verdict, now)
    left = restarts_left(job, now)
    cost = (
        "free of cost"
        if verdict.budget == Budget.FREE
        else f"{left - 1} of {job.policy.max_starts} left after it"
    )
    wait = f", after a back-off of {delay_s:.0f} s" if delay_s else ""
    if hourly_s > delay_s:
        delay_s = hourly_s
        wait = f", in {delay_s:.0f} s: it did {hourly}"
    return Plan(
        restart=True,
        reason="Restart",
        sentence=f"Starts again ({cost}){wait}.",
        verdict=verdict,
        delay_s=delay_s,
        avoid=_avoid(verdict),
    )


def _refusal(job: ProtectedJob, verdict: Verdict, failed_step: int | None, now: Now) -> tuple[str, str, bool]:
    """(reason, sentence, exhausted), the reason empty where nothing speaks against a start."""
    policy = job.policy
    if verdict.failure == "exit-unknown" and not _restart_unknown(policy):
        return (
            "ExitUnknown",
            "How the job ended is not known (its supervisor was killed), and the policy does not restart such a job.",
            False,
        )
    if verdict.restart == Restartable.NO:
        return (
            "NotRestartable",
            f"Not started again: a restart would fail in the same way. {verdict.advice}",
            False,
        )
    if verdict.restart == Restartable.ONCE and _seen_since_progress(
        _stuck(job, verdict, now), verdict, failed_step
    ):
        return (
            "FollowsTheJob",
            "Not started again: the same ambiguous fault came back after a restart, so it follows the job.",
            False,
        )
    in_pause = bool(job.failures) and job.failures[-1].pause != ""
    patient = verdict.failure == HANG and failed_step is not None and not in_pause
    limit = SAME_STEP_HANGS if patient else SAME_STEP_LIMIT
    same = _same_step(job, verdict, failed_step, now)
    if len(same) >= limit - 1 and verdict.budget != Budget.FREE and not _may_be_outage(verdict, same, now):
        where = (
            f"at step {failed_step}" if job.steps_told else f"after {how_far(failed_step or 0, told=False)}"
        )
        if failed_step is None:  # of those before this start nothing is said, nor of what a log does not tell
            where = "before its log told of a step after the start,"
        return (
            "NoProgress",
            f"Not started again: it failed {max(limit, len(same) + 1)} times {where} with no newer checkpoint.",
            False,
        )
    if verdict.budget == Budget.FREE:
        return "", "", False
    if policy.resume is None and policy.restart is None:
        return "NoRestartPolicy", "The policy asks for no restart.", False
    spent = spent_budget(job, verdict.budget, now)
    return ("BudgetExhausted", spent, True) if spent else ("", "", False)


def spent_budget(job: ProtectedJob, budget: Budget, now: Now) -> str:
    """Why one more start at the cost of `budget` is not allowed; empty where it is."""
    limits = job.policy.resume or job.policy.restart
    if budget == Budget.FREE:
        return ""
    if limits is None or restarts_left(job, now) <= 0:
        return f"All {job.policy.max_starts} restarts that the policy allows are used."
    infrastructure = budget == Budget.INFRASTRUCTURE
    own = limits.max_infrastructure if infrastructure else limits.max_job
    used = job.used_infrastructure if infrastructure else job.used_job
    if own is not None and used >= own and not budget_is_reset(job, now):
        return f"All {own} restarts for {budget.value} faults are used."
    return ""


def _restart_unknown(policy: Policy) -> bool:
    if policy.unknown_exit == "auto":
        return policy.resume is not None
    return policy.unknown_exit == "restart"


def restarts_left(job: ProtectedJob, now: Now) -> int:
    """`maxResumes` is absolute unless `resetAfter` is set and the job has run so long since its last failure."""
    limits = job.policy.resume or job.policy.restart
    if limits is None:
        return 0
    ran_s = job.run_time_s(now) - job.failures[-1].run_s if job.failures else 0.0
    if limits.reset_after_s and ran_s > limits.reset_after_s:
        return job.policy.max_starts
    return max(0, job.policy.max_starts - job.used)


def budget_is_reset(job: ProtectedJob, now: Now) -> bool:
    return job.used > 0 and restarts_left(job, now) > job.left


def _seen_since_progress(failures: Sequence[Failure], verdict: Verdict, failed_step: int | None) -> bool:
    """The same class struck before, and the job did not come further since."""
    for failure in reversed(failures):
        if failure.failure == verdict.failure and not failure.is_behind(failed_step):
            return True
    return False


def _stuck(job: ProtectedJob, verdict: Verdict, now: Now) -> Sequence[Failure]:
    """The past failures since which nothing shows that the job came further; newest last."""
    if job.steps_told:
        return job.failures
    since, later_s, later = len(job.failures), job.run_time_s(now), verdict.failure
    while since and later_s - job.failures[since - 1].run_s <= _least_s(later):
        since -= 1
        later_s, later = job.failures[since].run_s, job.failures[since].failure
    return job.failures[since:]


def _least_s(failure: str) -> float:
    """The silence in which a hang is recognised is no progress, and grows with each."""
    return UNSTEPPED_S + (LONGEST_ALLOWANCE_S if failure == HANG else 0.0)


def _same_step(job: ProtectedJob, verdict: Verdict, failed_step: int | None, now: Now) -> list[Failure]:
    """Those of the last failures in a row that were at this very step with this very checkpoint, newest first: hangs of
    a hang, others of any other."""
    checkpoint = job.checkpoint.step if job.checkpoint else None
    same = []
    for failure in reversed(_stuck(job, verdict, now)):
        if (
            failure.step != failed_step
            or failure.checkpoint_step != checkpoint
            or failure.budget == Budget.FREE
        ):
            break
        if (failure.failure == HANG) == (verdict.failure == HANG):
            same.append(failure)
    return same


def _may_be_outage(verdict: Verdict, same: Sequence[Failure], now: Now) -> bool:
    """Of what is outside of job and nodes, and may be over soon: then the budget decides, with pauses that grow."""
    outside = (
        verdict.budget is Budget.INFRASTRUCTURE and verdict.cause in _OUTSIDE and verdict.failure != HANG
    )
    return outside and now.wall_s - same[-1].wall_s < OUTAGE_S


def hourly_wait(job: ProtectedJob, verdict: Verdict, now: Now) -> tuple[float, str]:
    """Seconds until there were fewer restarts within an hour than may be (0: there were), and which limit it is."""
    waits = [(0.0, "")]
    if verdict.budget == Budget.FREE:
        free = [one for one in job.failures if one.budget == Budget.FREE]
        said = f"{FREE_PER_HOUR} times within the hour, the limit of what costs nothing"
        waits.append((_hourly_s_left(free, FREE_PER_HOUR, now), said))
    said = f"{MOST_PER_HOUR} times within the hour, the limit"
    waits.append((_hourly_s_left(job.failures, MOST_PER_HOUR, now), said))
    return max(waits)


def _hourly_s_left(failures: Sequence[Failure], limit: int, now: Now) -> float:
    within = [one.wall_s for one in failures if 0.0 <= now.wall_s - one.wall_s < HOUR_S]
    return within[-limit] + HOUR_S - now.wall_s if len(within) >= limit else 0.0


def backoff_s(job: ProtectedJob, verdict: Verdict, failed_step: int | None, now: Now) -> float:
    """None for the first failure or after progress; then 5 s, doubled up to 5 min."""
    stuck = 0
    best = failed_step
    for failure in reversed(_stuck(job, verdict, now)):
        if failure.is_behind(best):
            break
        stuck += 1
        best = failure.step
    return min(BACKOFF_FIRST_S * 2 ** (stuck - 1), BACKOFF_MAX_S) if stuck else 0.0
