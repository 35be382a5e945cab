"""What a policy asks, in words: for `sentinel validate`, the status of a JobPolicy, and `sentinel status`."""

from sentinel.core.policy_model import NO_MAILS, Policy
from sentinel.core.units import duration_text


def policy_words(policy: Policy) -> str:
    """What a policy protects, as a sentence."""
    words: list[str] = []
    if policy.resume:
        words.append(f"resumes up to {_times(policy.resume.max_resumes)}{_save_words(policy)}")
    elif policy.restart and policy.restart.max_restarts:
        words.append(f"restarts up to {_times(policy.restart.max_restarts)}")
    else:
        words.append("never restarts")
    if policy.elastic:
        words.append(f"may shrink to {policy.elastic.min_nodes}")
    hang = "by itself" if policy.hang.after_s is None else f"after {duration_text(policy.hang.after_s)}"
    words.append(f"detects a hang {hang} and " + ("tells" if policy.hang.action == "Alert" else "restarts"))
    speed = policy.performance
    if speed.max_hardware_ratio is not None or speed.max_step_growth is not None:
        limits = []
        if speed.max_hardware_ratio is not None:
            limits.append(f"a hardware ratio above {speed.max_hardware_ratio:g}")
        if speed.max_step_growth is not None:
            limits.append(f"steps {speed.max_step_growth:g} times the baseline")
        does = "tells of" if speed.action == "Alert" else "moves at"
        words.append(f"{does} {' or '.join(limits)} over {speed.over} iterations")
    if policy.max_duration_s is not None:
        words.append(f"expires after {duration_text(policy.max_duration_s)}")
    of = f" of {', '.join(policy.mails)}" if policy.mails else ""
    if NO_MAILS in policy.mails:
        words.append("mails nobody")
    else:  # who is not named here may be by the job, its namespace or the settings
        words.append(
            f"mails {', '.join(policy.emails)}{of}" if policy.emails else f"names no owner to mail{of}"
        )
    if policy.mode == "observe":
        words.append("only observes")
    said = f"policy {policy.name}: {', '.join(words)}"
    return f"{said}. Not as it was asked: {'; '.join(policy.capped)}" if policy.capped else said


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _save_words(policy: Policy) -> str:
    checkpoint = policy.resume.checkpoint if policy.resume else None
    if checkpoint is None:
        return " from checkpoints that the job makes by itself"
    if checkpoint.proof is None:
        return f" after a save that nothing proves ({checkpoint.signal})"
    proof = checkpoint.proof
    kind = "log pattern" if proof.log_pattern else "file appears" if proof.file_appears else "file gone"
    return f" after a proved save ({checkpoint.signal}, {kind})"
