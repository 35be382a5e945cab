"""May the job start again, when, and at whose cost: one pure function with a reason for every answer."""

from collections.abc import Sequence

from sentinel.core.model import Budget, Cause, Failure, Now, Policy, ProtectedJob, Restartable, Verdict
from sentinel.core.recovery import Plan

# A fault at the same step with no newer checkpoint: the third start would only repeat it.
SAME_STEP_LIMIT = 3
BACKOFF_FIRST_S = 5.0
BACKOFF_MAX_S = 300.0
KEPT_FAILURES = 20


def plan_after_stop(job: ProtectedJob, verdict: Verdict, failed_step: int | None, now: Now) -> Plan:
    """What follows a forced stop. `job.failures` does not hold the present failure yet."""
    reason, sentence, exhausted = _refusal(job, verdict, failed_step, now)
    if reason:
        return Plan(restart=False, reason=reason, sentence=sentence, verdict=verdict, exhausted=exhausted)
    delay_s = backoff_s(job, failed_step)
    left = restarts_left(job, now)
    cost = (
        "free of cost"
        if verdict.budget == Budget.FREE
        else f"{left - 1} of {job.policy.max_starts} left after it"
    )
    wait = f", after a back-off of {delay_s:.0f} s" if delay_s else ""
    return Plan(
        restart=True,
        reason="Restart",
        sentence=f"Starts again ({cost}){wait}.",
        verdict=verdict,
        delay_s=delay_s,
        wait_s=job.policy.precheck.wait_s,
        avoid=verdict.entity if verdict.cause == Cause.GPU and verdict.scope == "node" else "",
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
    if verdict.restart == Restartable.ONCE and _seen_since_progress(job.failures, verdict, failed_step):
        return (
            "FollowsTheJob",
            "Not started again: the same ambiguous fault came back after a restart, so it follows the job.",
            False,
        )
    if _same_step(job, failed_step) >= SAME_STEP_LIMIT - 1 and verdict.budget != Budget.FREE:
        where = "before its first step" if failed_step is None else f"at step {failed_step}"
        return (
            "NoProgress",
            f"Not started again: it failed {SAME_STEP_LIMIT} times {where} with no newer checkpoint.",
            False,
        )
    if verdict.budget == Budget.FREE:
        return "", "", False
    if restarts_left(job, now) <= 0:
        return "BudgetExhausted", f"All {policy.max_starts} restarts that the policy allows are used.", True
    limits = policy.resume or policy.restart
    if limits is None:
        return "NoRestartPolicy", "The policy asks for no restart.", False
    own = limits.max_infrastructure if verdict.budget == Budget.INFRASTRUCTURE else limits.max_job
    used = job.used_infrastructure if verdict.budget == Budget.INFRASTRUCTURE else job.used_job
    if own is not None and used >= own:
        return "BudgetExhausted", f"All {own} restarts for {verdict.budget.value} faults are used.", True
    return "", "", False


def _restart_unknown(policy: Policy) -> bool:
    if policy.unknown_exit == "auto":
        return policy.resume is not None
    return policy.unknown_exit == "restart"


def restarts_left(job: ProtectedJob, now: Now) -> int:
    """`maxResumes` is absolute unless `resetAfter` is set and the last failure is older than that."""
    limits = job.policy.resume or job.policy.restart
    if limits is None:
        return 0
    if limits.reset_after_s and job.failures and now.wall_s - job.failures[-1].wall_s > limits.reset_after_s:
        return job.policy.max_starts
    return max(0, job.policy.max_starts - job.used)


def budget_is_reset(job: ProtectedJob, now: Now) -> bool:
    return job.used > 0 and restarts_left(job, now) > job.left


def _seen_since_progress(failures: Sequence[Failure], verdict: Verdict, failed_step: int | None) -> bool:
    """The same class struck before, and the job did not come further since."""
    for failure in reversed(failures):
        if failure.failure == verdict.failure and not _is_further(failed_step, failure.step):
            return True
    return False


def _is_further(step: int | None, before: int | None) -> bool:
    return step is not None and (before is None or step > before)


def _same_step(job: ProtectedJob, failed_step: int | None) -> int:
    """How many of the last failures in a row were at this very step with this very checkpoint."""
    checkpoint = job.checkpoint.step if job.checkpoint else None
    count = 0
    for failure in reversed(job.failures):
        if (
            failure.step != failed_step
            or failure.checkpoint_step != checkpoint
            or failure.budget == Budget.FREE
        ):
            break
        count += 1
    return count


def backoff_s(job: ProtectedJob, failed_step: int | None) -> float:
    """None for the first failure or after progress; then 5 s, doubled up to 5 min."""
    stuck = 0
    best = failed_step
    for failure in reversed(job.failures):
        if _is_further(best, failure.step):
            break
        stuck += 1
        best = failure.step
    return min(BACKOFF_FIRST_S * 2 ** (stuck - 1), BACKOFF_MAX_S) if stuck else 0.0
