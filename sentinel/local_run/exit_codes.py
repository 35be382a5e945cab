"""Exit codes of `sentinel` that are not the job's own; docs/exit-codes.md explains them."""

from sentinel.core.model import JobState, ProtectedJob

EXIT_EXPIRED = 124
EXIT_GAVE_UP = 125
EXIT_WARNED = 75
EXIT_STOPPED = 130
EXIT_CANNOT_START = 69


def ended_code(job: ProtectedJob) -> int:
    """The exit code of `sentinel` for a job that has ended."""
    if job.state == JobState.SUCCEEDED:
        return 0
    if job.state == JobState.EXPIRED:
        return EXIT_EXPIRED
    if job.exit_code is not None:
        return job.exit_code
    return EXIT_STOPPED if job.state == JobState.STOPPED else EXIT_GAVE_UP
