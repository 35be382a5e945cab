"""`sentinel status` of a cluster's jobs: what matters first, the rest counted; and which job a name means."""

import pytest
from msgspec import structs

from sentinel.core.model import (
    FollowedOrder,
    Incident,
    IncidentKind,
    JobState,
    Phase,
    ProvedCheckpoint,
    Step,
    StoredJob,
    Symptom,
)
from sentinel.core.now import Now
from sentinel.core.people.policy_words import policy_words
from sentinel.core.policy_model import Policy, Resume
from sentinel.status import jobs_read, jobs_show
from sentinel.status.job_target import Target, missing, parse
from sentinel.status.jobs_read import JobView
from sentinel.util.documents import to_document
from sentinel.web.fleet_view import JobRow
from tests.core.recovery_events import verdict

NOW = Now(500.0, 1_700_000_000.0)
POLICY = Policy(name="nlp", emails=("anna@example.com",), resume=Resume(max_resumes=5), restart=None)


def a_job(name: str, **more: object) -> StoredJob:
    given = {
        "name": f"research/pytorchjob.kubeflow.org/{name}",
        "policy": POLICY,
        "state": JobState.RUNNING,
        "sentence": "The job runs.",
        "incarnation": 2,
        "size": 8,
        "original_size": 8,
        "used_infrastructure": 1,
        "last_step": 41,
        "steps_told": True,
        "created_wall_s": NOW.wall_s - 7200.0,
        **more,
    }
    return StoredJob(**given)  # type: ignore[arg-type]


def an_incident(job: StoredJob, **more: object) -> Incident:
    given = {
        "id": f"{job.name}-0001",
        "job": job.name,
        "kind": IncidentKind.FORCED,
        "verdict": verdict(sentence="GPU 3 fell off the bus."),
        "phase": Phase.PRECHECKING,
        "sentence": "No room for 8 ranks.",
        "opened_wall_s": NOW.wall_s - 60.0,
        "steps": (
            Step(phase=Phase.STOPPING, wall_s=NOW.wall_s - 60.0, reason="RankLost", sentence="Rank 3."),
        ),
        **more,
    }
    return Incident(**given)  # type: ignore[arg-type]


def recovering(name: str) -> StoredJob:
    job = a_job(name, state=JobState.QUEUED)
    return structs.replace(job, incident=an_incident(job))


def rows(*jobs: StoredJob, **notes: dict[str, str]) -> list[JobRow]:
    return [
        jobs_read.row(jobs_read.here(job, NOW), job.incident, notes.get(job.name.rpartition("/")[2], {}), NOW)
        for job in jobs
    ]


def test_of_two_thousand_jobs_those_that_matter_are_shown_and_the_rest_counted() -> None:
    many = [a_job(f"j{number:04d}") for number in range(1990)]
    many += [recovering("hit"), a_job("given-up", state=JobState.ERROR, sentence="All restarts are used.")]
    many += [a_job("asked"), a_job("done", state=JobState.SUCCEEDED)]
    view = jobs_read.view(rows(*many, asked={"sentinel.dev/retry": ""}), [])
    lines = jobs_show.overview(view, every=False)
    assert lines[0] == (
        "1994 protected jobs: 1 with an order that waits for a controller, 1 being recovered, 1 given up, "
        "1990 running, 1 succeeded."
    )
    shown = [line.split() for line in lines if line.startswith("research")]
    assert len(shown) == jobs_show.MOST_ROWS
    assert [line[2] for line in shown[:3]] == ["asked", "hit", "given-up"]
    assert [line[3] for line in shown[:4]] == ["ordered", "Prechecking", "error", "running"]
    assert lines[-1] == "… and 1964 more: `sentinel status --all`"
    assert len(jobs_show.overview(view, every=True)) == 1994 + 3


def test_a_row_has_what_a_person_asks_first() -> None:
    (row,) = rows(recovering("llama"))
    assert (row.namespace, row.kind, row.name) == ("research", "pytorchjob.kubeflow.org", "llama")
    assert (row.phase, row.sentence) == ("Prechecking", "No room for 8 ranks.")
    assert (row.restarts_used, row.restarts_left, row.step, row.incarnation) == (1, 4, 41, 2)
    line = jobs_show.overview(jobs_read.view([row], []), every=False)[-1]
    assert line.split()[:8] == ["research", "pytorchjob", "llama", "Prechecking", "8", "2", "41", "1"]
    assert "1 used, 4 left" in line
    assert line.endswith("No room for 8 ranks.")


def test_a_job_that_waits_for_its_first_start_is_queued_and_says_why() -> None:
    fresh = a_job("fresh", state=JobState.QUEUED, incarnation=0)
    waits = an_incident(fresh, verdict=verdict(Symptom.FIRST_START))
    (row,) = rows(structs.replace(fresh, incident=waits))
    assert (row.state, row.phase, row.sentence) == ("queued", "Prechecking", "No room for 8 ranks.")


def test_one_job_is_told_with_its_policy_its_budget_its_checkpoint_and_its_story() -> None:
    job = structs.replace(
        recovering("llama"),
        checkpoint=ProvedCheckpoint(step=40, proof="saved checkpoint 40", wall_s=NOW.wall_s - 100.0),
        policy=structs.replace(POLICY, max_duration_s=36_000.0),
        run_s=3600.0,
        incidents=1,
        order=FollowedOrder("1", "It was extended."),
    )
    assert job.incident is not None
    shown = JobView(
        job=jobs_read.row(jobs_read.here(job, NOW), job.incident, {}, NOW),
        policy=policy_words(job.policy),
        told=list(job.policy.emails),
        answer={"done": True, "sentence": "It was extended."},
        record=to_document(job),
        incidents=[to_document(job.incident)],
    )
    text = "\n".join(jobs_show.details(shown, NOW))
    for part in (
        "research/pytorchjob.kubeflow.org/llama",
        "nlp: resumes up to 5 times from checkpoints that the job makes by itself",
        "anna@example.com",
        "It was extended.",
        "1 used, 4 left of 5",
        "ran 1h 00m, left 9h 00m",
        "iteration 40, proved by saved checkpoint 40",
        "Incident research/pytorchjob.kubeflow.org/llama-0001 · Prechecking",
        "GPU 3 fell off the bus.",
        "Stopping",
        "Rank 3.",
        "No controller has led here",
    ):
        assert part in text, part


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.ERROR])
def test_the_first_lines_of_a_job_in_trouble_say_what_is_wrong_and_what_to_do(state: JobState) -> None:
    job = a_job("llama", state=state, sentence="All restarts are used.", incidents=1)
    over = {"phase": Phase.EXHAUSTED} if state is JobState.ERROR else {}
    broken = verdict(sentence="GPU 3 fell off the bus.", advice="Reseat the GPU.")
    incident = an_incident(job, verdict=broken, **over)
    shown = JobView(
        job=jobs_read.row(jobs_read.here(job, NOW), incident, {}, NOW),
        policy="",
        told=[],
        answer=None,
        record=to_document(job),
        incidents=[to_document(incident)],
    )
    first = "\n".join(jobs_show.details(shown, NOW)[:5])
    for part in ("llama", state.value, "GPU 3 fell off the bus.", "Reseat the GPU."):
        assert part in first, jobs_show.details(shown, NOW)


def test_the_time_that_it_runs_now_counts_though_its_controllers_clock_is_another() -> None:
    runs = a_job("llama", started_mono_s=9e6, started_wall_s=NOW.wall_s - 600.0, run_s=50.0)
    assert jobs_read.here(runs, NOW).run_time_s(NOW) == 650.0
    stopped = structs.replace(runs, state=JobState.QUEUED, run_s=0.0)
    assert jobs_read.here(stopped, NOW).run_time_s(NOW) == 0.0


def test_no_text_of_a_job_steers_the_terminal() -> None:
    job = a_job("llama", sentence="\x1b[2Jgone")
    assert "\x1b" not in "\n".join(jobs_show.overview(jobs_read.view(rows(job), []), every=False))


@pytest.mark.parametrize(
    ("text", "namespace", "expected"),
    [
        ("research/llama", "", Target("research", "", "llama")),
        ("research/PyTorchJob/llama", "", Target("research", "PyTorchJob", "llama")),
        ("llama", "research", Target("research", "", "llama")),
        ("pytorchjob.kubeflow.org/llama", "research", Target("research", "pytorchjob.kubeflow.org", "llama")),
        ("llama", "", Target("", "", "llama")),
    ],
)
def test_a_job_is_named_in_each_of_these_ways(text: str, namespace: str, expected: Target) -> None:
    found = parse(text, namespace)
    assert found == expected
    assert found.fits("research/pytorchjob.kubeflow.org/llama")
    assert not found.fits("research/pytorchjob.kubeflow.org/llama2")
    assert not Target("other", "", "llama").fits("research/pytorchjob.kubeflow.org/llama")
    assert not Target("research", "job", "llama").fits("research/pytorchjob.kubeflow.org/llama")


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a/b/c/d", "a//b"])
def test_what_names_no_job_is_told_how_to(text: str) -> None:
    with pytest.raises(ValueError, match="NAMESPACE/NAME or NAMESPACE/KIND/NAME"):
        parse(text, "")


def test_a_name_that_fits_no_job_or_several_says_which_there_are() -> None:
    there = ["research/job.batch/a", "research/job.batch/b"]
    assert missing(Target("research", "", "x"), there, []) == (
        "there is no protected job research/x; protected there: research/job.batch/a, research/job.batch/b"
    )
    assert missing(Target("", "", "x"), [], []).endswith("no protected job x, nor any other in the cluster")
    assert missing(Target("research", "", "a"), there, there).startswith(
        "research/a is the name of more than one job: "
    )
