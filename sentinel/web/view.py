"""What a person is shown of one protected job: the page, `sentinel status` and its JSON show this."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct

from sentinel import __version__
from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import Finding
from sentinel.core.model import Incident, JobEvent, JobState, ProtectedJob, ProvedCheckpoint
from sentinel.core.now import Now
from sentinel.core.recovery.budget import restarts_left
from sentinel.core.signals import times
from sentinel.core.timing.course import CoursePoint
from sentinel.core.triage.findings import concerning

MAX_INCIDENTS = 20
MAX_EVENTS = 100
MAX_FINDINGS = 100

# A control loop that has not turned for so long is not healthy. The loop turns several times a second;
# one full garbage collection, a slow disk or a machine under load may cost it a few seconds.
LOOP_LIMIT_S = 10.0


class RankRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank as it is now. Numbers that are not known are None.

    `step`: as the program calls its newest iteration; None where its log names none. `iterations`: how many it made
    since its start. `rate` is in iterations per second, `last_age_s` counts from its newest iteration.
    """

    rank: int
    state: str
    pid: int | None = None
    step: int | None = None
    iterations: int | None = None
    step_ms: float | None = None
    hardware_ms: float | None = None
    e2e_ms: float | None = None
    ratio: float | None = None
    rate: float | None = None
    last_age_s: float | None = None
    node: str = ""  # of a cluster


class Restarts(Struct, frozen=True, kw_only=True):
    used: int
    left: int
    allowed: int
    used_infrastructure: int = 0
    used_job: int = 0
    used_free: int = 0


class Protector(Struct, frozen=True, kw_only=True):
    """The process that protects the job. `loop_age_s`: since its control loop last turned."""

    pid: int
    url: str = ""
    loop_age_s: float | None = None

    @property
    def healthy(self) -> bool:
        return self.loop_age_s is not None and self.loop_age_s <= LOOP_LIMIT_S


class View(Struct, frozen=True, kw_only=True):
    """One job, everything about it that is shown. The environment of the job is never part of it.

    `protector` None: nobody protects the job, and the numbers are those of the last saved record.
    `step` and `iterations` are the largest of its ranks. Incidents, events and findings are bounded, newest or worst
    first.
    """

    name: str
    state: JobState
    reason: str
    sentence: str
    mode: str
    command: tuple[str, ...]
    incarnation: int
    size: int
    original_size: int
    step: int | None
    iterations: int | None
    best_step: int | None
    step_ms: float | None
    hardware_ms: float | None
    ratio: float | None
    rate: float | None
    restarts: Restarts
    run_s: float
    time_left_s: float | None
    exit_code: int | None
    checkpoint: ProvedCheckpoint | None
    save_note: str
    notes: tuple[str, ...]
    excluded: tuple[str, ...]
    degraded: tuple[str, ...]
    created_wall_s: float
    at_wall_s: float
    protector: Protector | None
    ranks: tuple[RankRow, ...]
    incidents: tuple[Incident, ...]
    events: tuple[JobEvent, ...]
    findings: tuple[Finding, ...]
    course: tuple[CoursePoint, ...] = ()  # of its step time, the oldest first
    version: str = __version__


def inner_restarts(job: ProtectedJob) -> str:
    if not job.inner_restarts:
        return ""
    return f"A launcher inside its pods has started its ranks again {times(job.inner_restarts)} in this run."


def build_view(
    job: ProtectedJob,
    *,
    now: Now,
    boot_id: str = "",
    incidents: Iterable[Incident] = (),
    events: Iterable[JobEvent] = (),
    ranks: Iterable[RankRow] = (),
    findings: Iterable[Finding] = (),
    processes: Iterable[int] = (),
    groups: Iterable[str] = (),
    degraded: Iterable[str] = (),
    phase: str = "",
    protector: Protector | None = None,
    course: Iterable[CoursePoint] = (),
) -> View:
    """Join a job's records with its live numbers. Pure. `processes`: pids of the job's besides those of `ranks`;
    `groups`: the control groups of its processes, where known; `phase`: of `HangWatch`.

    The job's own numbers are those of its slowest rank: the ranks of one job step together, and the
    slowest one is the pace. `boot_id` is this machine's: the start of an incarnation that ran in an
    earlier boot is not comparable with `now` and is left out.
    """
    rows, incidents = tuple(sorted(ranks, key=lambda row: row.rank)), tuple(incidents)
    pids = {*processes, *(row.pid for row in rows if row.pid is not None and not row.node)}
    run_s = job.run_s + _running_s(job, now, boot_id)
    slowest = max(
        (row for row in rows if _pace(row) is not None), key=lambda row: _pace(row) or 0, default=None
    )
    steps = [row.step for row in rows if row.step is not None]
    limit_s = job.policy.max_duration_s
    return View(
        name=job.name,
        state=job.state,
        reason=job.reason,
        sentence=job.sentence,
        mode=job.policy.mode,
        command=job.launch.command if job.launch else (),
        incarnation=job.incarnation,
        size=job.size,
        original_size=job.original_size,
        step=max(steps) if steps else job.last_step if job.steps_told else None,
        iterations=max((row.iterations for row in rows if row.iterations is not None), default=None),
        best_step=job.best_step,
        step_ms=_pace(slowest) if slowest else None,
        hardware_ms=slowest.hardware_ms if slowest else None,
        ratio=_job_ratio(rows, slowest),
        rate=slowest.rate if slowest else None,
        restarts=Restarts(
            used=job.used,
            left=restarts_left(job, now),
            allowed=job.policy.max_starts,
            used_infrastructure=job.used_infrastructure,
            used_job=job.used_job,
            used_free=job.used_free,
        ),
        run_s=run_s,
        time_left_s=None if limit_s is None else max(0.0, limit_s + job.extra_s - run_s),
        exit_code=job.exit_code,
        checkpoint=job.checkpoint,
        save_note=job.save_note,
        notes=tuple(
            note
            for note in (
                phase,
                inner_restarts(job),
                job.performance_frozen,
                job.elastic_frozen,
                *job.policy.capped,
            )
            if note
        ),
        excluded=job.excluded,
        degraded=tuple(dict.fromkeys((*job.degraded, *degraded, *_mail_troubles(incidents)))),
        created_wall_s=job.created_wall_s,
        at_wall_s=now.wall_s,
        protector=protector,
        ranks=rows,
        incidents=tuple(
            sorted(incidents, key=lambda incident: (incident.opened_wall_s, incident.id), reverse=True)
        )[:MAX_INCIDENTS],
        events=tuple(sorted(events, key=lambda event: event.wall_s, reverse=True))[:MAX_EVENTS],
        course=tuple(course),
        findings=tuple(sorted(concerning(job, findings, pids, incidents, tuple(groups)), key=_worst_first))[
            :MAX_FINDINGS
        ],
    )


def rank_rows(
    picture: JobPicture, now: Now, nodes: Mapping[int, str] = MappingProxyType({})
) -> list[RankRow]:
    """One row for each rank of the running incarnation. `nodes`: where they run, on a cluster."""
    rows = []
    for rank in range(picture.job.size):
        timing = picture.timing.ranks.get(rank)
        gone = picture.exits.get(rank)
        state = gone.describe() if gone else "running" if rank in picture.alive else "not running"
        if timing is None:
            rows.append(RankRow(rank=rank, state=state, pid=picture.pids.get(rank), node=nodes.get(rank, "")))
            continue
        rows.append(
            RankRow(
                rank=rank,
                state=state,
                pid=picture.pids.get(rank),
                step=timing.last_step if timing.steps_told else None,
                iterations=timing.reached or None,
                step_ms=timing.step_ms,
                hardware_ms=timing.hardware_ms,
                e2e_ms=timing.e2e_ms,
                ratio=timing.ratio,
                rate=timing.rate_per_s,
                last_age_s=None if timing.last_at_s is None else now.mono_s - timing.last_at_s,
                node=nodes.get(rank, ""),
            )
        )
    return rows


def _mail_troubles(incidents: Iterable[Incident]) -> list[str]:
    """Mails that their receivers do not have, and why."""
    what = {"waiting": "waits", "failed": "was not sent"}
    return [
        f"the mail of {incident.id} ({mail.stage.value}) {what[mail.state]}: {mail.error}"
        for incident in incidents
        for mail in incident.mails
        if mail.state in what and mail.error
    ]


def open_incident(view: View) -> Incident | None:
    """The newest incident that is still worked on."""
    return next((incident for incident in view.incidents if not incident.phase.final), None)


def matter(view: View) -> Incident | None:
    """What is the matter with the job now: what is worked on, or what it was given up for."""
    failed = view.state is JobState.ERROR and view.incidents
    return open_incident(view) or (view.incidents[0] if failed else None)


def _running_s(job: ProtectedJob, now: Now, boot_id: str) -> float:
    other_boot = bool(boot_id and job.boot_id and boot_id != job.boot_id)
    if job.state is not JobState.RUNNING or job.started_mono_s is None or other_boot:
        return 0.0
    return max(0.0, now.mono_s - job.started_mono_s)


def _pace(row: RankRow) -> float | None:
    return row.e2e_ms if row.e2e_ms is not None else row.step_ms


def _job_ratio(rows: tuple[RankRow, ...], slowest: RankRow | None) -> float | None:
    if slowest is not None and slowest.ratio is not None:
        return slowest.ratio
    known = sorted(row.ratio for row in rows if row.ratio is not None)
    return known[len(known) // 2] if known else None


def _worst_first(finding: Finding) -> tuple[int, float]:
    return (-finding.severity.order, -finding.last_seen_wall_s)
