"""Which findings of its machines a job is shown: those about hardware, and of killed processes its own. Pure."""

from collections.abc import Collection, Iterable, Iterator

from sentinel.core.health import Finding
from sentinel.core.model import Incident, ProtectedJob
from sentinel.core.triage.rows import clean

OF_A_PROCESS = "oom-kill"  # whatever else is found is about a machine, and so about all that runs there


def concerning(
    job: ProtectedJob,
    findings: Iterable[Finding],
    processes: Collection[int],
    incidents: Iterable[Incident],
    groups: Collection[str] = (),
) -> Iterator[Finding]:
    """A process killed for memory that is known to be another's says nothing of this job; a child of a rank may be
    known by nothing. `processes`: the pids of this job's; `groups`: their control groups, where known."""
    cited = {line for incident in incidents for line in incident.verdict.evidence}
    for finding in findings:
        of_this = finding.code != OF_A_PROCESS or finding.pid in processes or _is_cited(finding, cited)
        if of_this or not _is_anothers(finding, job, groups):
            yield finding


def _is_anothers(finding: Finding, job: ProtectedJob, groups: Collection[str]) -> bool:
    """Does a pod, a job of Slurm or a control group name it that is not this job's?"""
    where = f"{finding.job} {finding.cgroup.replace('_', '-')}"
    own = _owners(job)
    if any(name in where for name in own):
        return False
    if own and (finding.job or finding.cgroup):
        return True
    if finding.cgroup and groups:
        return not any(f"{finding.cgroup}/".startswith(f"{group}/") for group in groups)
    kind = finding.job.partition(" ")[0]
    in_a_pod = job.launch is not None and "KUBERNETES_SERVICE_HOST" in job.launch.env
    return kind == "slurm" or (kind == "pod" and not in_a_pod)


def _owners(job: ProtectedJob) -> tuple[str, ...]:
    """How a control group names what runs the job: pods by their uid, a job of Slurm by its number."""
    pods = tuple(place.uid for place in job.placed.ranks if place.uid) if job.placed is not None else ()
    slurm = job.launch.env.get("SLURM_JOB_ID") if job.launch is not None else None
    return (*pods, f"slurm {slurm} ") if slurm else pods


def _is_cited(finding: Finding, cited: Collection[str]) -> bool:
    return any(f"{finding.check}: {clean(text)}" in cited for text in finding.evidence or (finding.summary,))
