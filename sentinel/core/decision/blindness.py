"""A job whose output goes on and tells no iteration that can be read: nobody would learn that it is slow or hangs."""

from sentinel.core.decision.picture import JobPicture
from sentinel.core.now import Now

UNSEEN = "no iterations are seen in its output"  # so begins the note of older versions too, in a job's record
BLIND = (
    f"{UNSEEN} so far: until one is, nothing tells slow steps, nor a hang unless the policy "
    "names hang.after; "
)
NO_FORMAT = (
    BLIND
    + "if it trains already, the policy's timingFormats can name the format of its lines (docs/timing.md)"
)
NO_LINE = BLIND + "no line has been of the policy's timingFormats (docs/timing.md)"


NO_STACKS = "a hang can only be told and not ended, since the stacks of the ranks cannot be read: "


def needs_stacks(picture: JobPicture) -> bool:
    """Is it a hang that would be ended, and only where stacks show that the ranks stand still?"""
    policy = picture.job.policy
    if policy.hang.action != "RestartAndAlert" or policy.mode == "observe":
        return False
    unsure = any(rank.unsure for rank in picture.timing.ranks.values() if rank.count)
    blind = any(note.startswith(UNSEEN) for note in picture.job.degraded)
    return policy.hang.after_s is None or unsure or blind


def degraded(picture: JobPicture, now: Now) -> tuple[str, ...]:
    """The degraded modes of the job, with this one where it is blind."""
    job, timing = picture.job, picture.timing
    known = [note for note in job.degraded if note.startswith(UNSEEN)]
    if timing.has_timing and known:
        return tuple(note for note in job.degraded if note not in known)
    if not timing.has_timing and not known and timing.hang.unread(now):
        return (*job.degraded, NO_LINE if job.policy.timing_formats else NO_FORMAT)
    return job.degraded
