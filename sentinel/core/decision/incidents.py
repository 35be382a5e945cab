"""One incident of a job: how it is opened, what the next incarnation gets, and how it is told in a line."""

from msgspec import structs

from sentinel.core.decision.picture import JobPicture
from sentinel.core.decision.policy import Open
from sentinel.core.model import Incident, IncidentKind, Phase, ProtectedJob, Symptom
from sentinel.core.now import Now
from sentinel.core.recovery.budget import restarts_left
from sentinel.core.stacks import verdict as stack_verdict

MOST_STACKS = 64  # kept of a job that is only told of


def open_incident(picture: JobPicture, decision: Open, now: Now, boot_id: str) -> Incident:
    job, end = picture.job, decision.end
    checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
    whole = len(picture.alive) >= job.size
    before = picture.refused.get(decision.key)
    incident = Incident(
        id=f"{job.name}-{job.incidents + 1:04d}",
        job=job.name,
        kind=decision.kind,
        verdict=decision.verdict,
        opened_wall_s=now.wall_s,
        opened_mono_s=now.mono_s,
        phase_mono_s=now.mono_s,
        incarnation=job.incarnation,
        size=decision.size if decision.size is not None else job.size,
        from_size=job.size,
        excluded=decision.excluded if decision.excluded is not None else job.excluded,
        boot_id=boot_id,
        key=decision.key,
        refusals=before.incident.refusals + 1 if before is not None else 0,
        bad_steps=decision.bad_steps,
        failed_step=picture.reached if picture.reached is not None else job.last_step,
    )
    if decision.verdict.symptom == Symptom.HANG:
        incident = _with_looks(picture, incident)
    if end is None:
        return incident
    return structs.replace(
        incident,
        end_state=end.state,
        end_code=end.code,
        reason_of_end=end.reason,
        sentence_of_end=end.sentence,
        grace_s=end.grace_s,
        save_wanted=end.save and checkpoint is not None and whole,
    )


def _with_looks(picture: JobPicture, incident: Incident) -> Incident:
    """Where nothing is stopped, no stacks are taken any more; of ranks that stand still they would be the same."""
    looks = picture.timing.hang.looks
    if looks is None or (incident.kind != IncidentKind.NOTICE and not looks.still_s):
        return incident
    verdict = stack_verdict.named(incident.verdict, looks.texts, incident.from_size)
    kept = looks.texts[:MOST_STACKS] if incident.kind == IncidentKind.NOTICE else looks.texts
    return structs.replace(incident, stacks=kept, verdict=verdict)


def ends(picture: JobPicture) -> bool:
    """Is it being stopped for good?"""
    return picture.incident is not None and picture.incident.end_state is not None


def wanted(picture: JobPicture, incident: Incident) -> tuple[int, tuple[str, ...]]:
    """(ranks, entities to avoid) of the next incarnation. An elastic job comes back as large as there is room; after a
    start that did not come up no larger than it was."""
    job = picture.job
    back = job.excluded if picture.entities_back else ()  # what this incident flees stays out
    back = (*back, picture.pinned)  # it waits for the one node on which it can run
    excluded = tuple(entity for entity in incident.excluded if entity not in back)
    if incident.kind == IncidentKind.CHOSEN:
        return incident.size, incident.excluded
    if job.elastic_frozen:
        return incident.from_size, incident.excluded
    if job.policy.elastic is not None and job.policy.elastic.allow_grow and not incident.failed_starts:
        return job.original_size, excluded
    return incident.from_size, excluded


def too_small(incident: Incident, size: int) -> str:
    """Why room for `size` ranks is no reason to stop a job that steps; empty where it is one.

    Only a failing GPU is worth coming back smaller: a slow job would be slower, one that grows must be larger.
    """
    if incident.kind != IncidentKind.CHOSEN:
        return ""
    slow = incident.verdict.symptom == Symptom.SLOW and size < incident.size
    grows = incident.verdict.symptom == Symptom.RESIZE and size <= incident.from_size
    return f"There is room for {size} of {incident.size} ranks only." if slow or grows else ""


def resume_env(job: ProtectedJob, incident: Incident) -> dict[str, str]:
    """What the restarted program is told in its environment; nothing at its first start."""
    if incident.verdict.symptom == Symptom.FIRST_START:
        return {}
    env = {
        "SENTINEL_RESUME": "1",
        "SENTINEL_RESTARTS": str(incident.incarnation - job.first_incarnation),
        "SENTINEL_CAUSE": incident.verdict.cause.value,
    }
    bad = job.bad_steps
    if bad is not None:
        env["SENTINEL_BAD_STEPS"] = f"{bad.first}-{bad.last}"
    saved = job.checkpoint.step if job.checkpoint is not None else None
    lost = bad is not None and saved is not None and bad.first <= saved <= bad.last
    if job.checkpoint is not None and not lost:
        env["SENTINEL_CHECKPOINT_PROOF"] = job.checkpoint.proof
        if job.checkpoint.step is not None:
            env["SENTINEL_CHECKPOINT_STEP"] = str(job.checkpoint.step)
    return env


def tell(job: ProtectedJob, incident: Incident, now: Now) -> str:
    """One line for the terminal: where the incident stands. A recovery is told with all that it cost."""
    if incident.phase == Phase.RECOVERED and incident.verdict.symptom != Symptom.FIRST_START:
        return recovered_sentence(job, incident, now)
    line = f"{incident.id} {incident.phase.value}: {incident.sentence}"
    if incident.phase == Phase.STOPPING and incident.failed_step is not None and job.steps_told:
        line += f" Last step {incident.failed_step}."
    return line


def recovered_sentence(job: ProtectedJob, incident: Incident, now: Now) -> str:
    """Cause, rank, last step, checkpoint resumed from, steps and time lost, restarts used and left."""
    verdict, lost = incident.verdict, incident.lost
    parts = [f"{incident.id} recovered: {verdict.sentence}", f"Cause: {verdict.cause.value}."]
    if verdict.who is not None:
        parts.append(f"Rank {verdict.who}.")
    if incident.failed_step is not None and job.steps_told:
        parts.append(f"Last step {incident.failed_step}.")
    if lost is not None:
        if lost.resumed_from is not None:
            parts.append(f"Resumed from step {lost.resumed_from}.")
        repeated = f"{lost.steps} steps and " if lost.steps is not None else ""
        parts.append(f"Lost {repeated}{lost.seconds:.1f} s.")
    used = job.policy.max_starts - restarts_left(job, now)
    parts.append(f"Restarts: {used} used, {restarts_left(job, now)} left.")
    return " ".join(parts)
