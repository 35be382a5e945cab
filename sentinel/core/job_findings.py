"""Which findings of its machines a job is shown: those about hardware, and of killed processes its own. Pure."""

from collections.abc import Collection, Iterable, Iterator

from sentinel.core.health import Finding
from sentinel.core.model import Incident, ProtectedJob
from sentinel.core.triage_rows import clean

OF_A_PROCESS = "oom-kill"  # whatever else is found is about a machine, and so about all that runs there


def concerning(
    job: ProtectedJob, findings: Iterable[Finding], processes: Collection[int], incidents: Iterable[Incident]
) -> Iterator[Finding]:
    """Another's process that was killed for memory says nothing of this job. `processes`: the pids of this job's."""
    cited = {line for incident in incidents for line in incident.verdict.evidence}
    own = _owners(job)
    for finding in findings:
        where = f"{finding.job} {finding.cgroup.replace('_', '-')}"
        of_this = finding.pid in processes or any(name in where for name in own)
        if finding.code != OF_A_PROCESS or of_this or _is_cited(finding, cited):
            yield finding


def _owners(job: ProtectedJob) -> tuple[str, ...]:
    """How a control group names what runs the job: pods by their uid, a job of Slurm by its number."""
    pods = tuple(place.uid for place in job.placed.ranks if place.uid) if job.placed is not None else ()
    slurm = job.launch.env.get("SLURM_JOB_ID") if job.launch is not None else None
    return (*pods, f"slurm {slurm} ") if slurm else pods


def _is_cited(finding: Finding, cited: Collection[str]) -> bool:
    return any(f"{finding.check}: {clean(text)}" in cited for text in finding.evidence or (finding.summary,))
