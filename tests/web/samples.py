"""One job in the middle of its life, with everything that the page and the tables can show."""

from msgspec import structs

from sentinel.core.health import Finding
from sentinel.core.model import (
    Budget,
    Cause,
    Incident,
    IncidentKind,
    JobEvent,
    JobState,
    Launch,
    Lost,
    Phase,
    ProtectedJob,
    ProvedCheckpoint,
    Restartable,
    SaveResult,
    Step,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy, Resume
from sentinel.core.timing.course import CoursePoint
from sentinel.web.view import Protector, RankRow, View, build_view
from tests.samples import lost_gpu

WALL_S = 1_760_000_000.0
NOW = Now(mono_s=9000.0, wall_s=WALL_S)
HOSTILE = "<script>alert(1)</script> \x1b[2J\x1b]0;owned\x07 \u202egnp.exe & \"quoted\" 'it'"


def job(**changes: object) -> ProtectedJob:
    fields: dict[str, object] = {
        "name": "llama-7b",
        "policy": Policy(resume=Resume(max_resumes=5), restart=None, max_duration_s=30 * 3600.0),
        "state": JobState.RUNNING,
        "reason": "Recovered",
        "sentence": "The job steps again on 4 ranks after GPU 0000:18:00.0 fell off the bus.",
        "launch": Launch(
            command=("python", "train.py", "--model", "llama-7b", "--data", "/data/c4"),
            cwd="/home/u",
            env={"WANDB_API_KEY": "secret-token"},
            nproc=4,
        ),
        "incarnation": 3,
        "size": 4,
        "original_size": 4,
        "created_wall_s": WALL_S - 90_000,
        "started_mono_s": 2000.0,
        "run_s": 40_000.0,
        "used_infrastructure": 1,
        "used_job": 1,
        "used_free": 1,
        "last_step": 41_200,
        "steps_told": True,
        "best_step": 41_873,
        "checkpoint": ProvedCheckpoint(step=41_000, proof="saved checkpoint", wall_s=WALL_S - 7200),
        "boot_id": "boot-a",
        "degraded": ("The state file cannot be written: no space left on device.",),
    }
    return ProtectedJob(**(fields | changes))  # type: ignore[arg-type]


def incident(number: int = 2, phase: Phase = Phase.RECOVERED, line: str = HOSTILE) -> Incident:
    opened_s = WALL_S - 8000 + 100 * number
    return Incident(
        id=f"llama-7b-{number:04d}",
        job="llama-7b",
        kind=IncidentKind.FORCED,
        phase=phase,
        verdict=Verdict(
            symptom=Symptom.RANK_LOST,
            cause=Cause.GPU,
            failure="gpu-lost",
            scope="node",
            sentence="GPU 0000:18:00.0 fell off the bus (XID 79), which ended rank 2.",
            rank=2,
            entity="GPU 0000:18:00.0",
            evidence=(
                "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                line,
            ),
            advice="Reset or reseat the GPU; the node needs a cold boot.",
            budget=Budget.INFRASTRUCTURE,
            restart=Restartable.YES,
        ),
        reason="Recovered",
        sentence="All 4 ranks step again from iteration 41000.",
        opened_wall_s=opened_s,
        steps=(
            Step(
                phase=Phase.DETECTED,
                wall_s=opened_s,
                reason="RankLost",
                sentence="Rank 2 was killed by signal 9.",
            ),
            Step(
                phase=Phase.STOPPING,
                wall_s=opened_s + 1,
                reason="RankLost",
                sentence="The other ranks get 2 s.",
            ),
            Step(
                phase=Phase.STARTING, wall_s=opened_s + 4, reason="RoomFound", sentence="3 GPUs are healthy."
            ),
            Step(phase=phase, wall_s=opened_s + 60, reason="Stepping", sentence="Iteration 41001 was seen."),
        ),
        save=SaveResult(skipped="rank 2 is lost: a collective save would hang"),
        lost=Lost(steps=873, seconds=64.0, gpu_seconds=256.0, resumed_from=41_000),
        stacks=("rank 0 pid 4711\n  allreduce (torch/distributed.py:2050)\n  train (train.py:88)",),
    )


def finding() -> Finding:
    return lost_gpu(check="kmsg", last_seen_wall_s=WALL_S - 7700)


def rank_row(rank: int, **changes: object) -> RankRow:
    row = RankRow(
        rank=rank,
        state="running",
        step=41_873 + rank % 2,
        step_ms=3300.0 + 10 * rank,
        hardware_ms=2201.5,
        e2e_ms=3300.0 + 10 * rank,
        ratio=2201.5 / (3300.0 + 10 * rank),
        rate=0.303,
        last_age_s=1.2,
    )
    return structs.replace(row, **changes)


def ranks() -> tuple[RankRow, ...]:
    return tuple(rank_row(rank, pid=4711 + rank) for rank in range(4))


def events() -> tuple[JobEvent, ...]:
    return (
        JobEvent(
            job="llama-7b", wall_s=WALL_S - 90_000, reason="Started", sentence="4 ranks run.", incarnation=1
        ),
        JobEvent(job="llama-7b", wall_s=WALL_S - 7790, reason="RankLost", sentence=HOSTILE, warning=True),
        JobEvent(
            job="llama-7b", wall_s=WALL_S - 7700, reason="Recovered", sentence="Back at 41000.", incarnation=3
        ),
    )


def course(until_s: float = WALL_S) -> tuple[CoursePoint, ...]:
    """Of three hours: it gets a little slower, one step was very slow, and nothing stepped for a while."""
    points = []
    for k in range(180):
        wall_s = until_s - 60 * (180 - k)
        if 49 < k < 57:
            continue
        step_ms = 3250 + 40 * (k % 5) + 2 * k + (9000 if k == 120 else 0)
        points.append(CoursePoint(wall_s, step_ms, 2201.5 / step_ms, 18))
    return tuple(points)


def view(*, loop_age_s: float | None = 0.1, **changes: object) -> View:
    return build_view(
        job(**changes),
        now=NOW,
        boot_id="boot-a",
        incidents=(incident(1, Phase.EXHAUSTED), incident(2)),
        events=events(),
        ranks=ranks(),
        findings=(finding(),),
        degraded=("The log of rank 3 vanished.",),
        course=course(),
        protector=Protector(pid=99, url="http://127.0.0.1:9810", loop_age_s=loop_age_s),
    )
