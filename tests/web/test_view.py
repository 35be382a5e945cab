"""What is shown of a job, built from its records."""

import msgspec
from msgspec import structs

from sentinel.core.health import Finding
from sentinel.core.model import JobState, Launch, Phase, Placed, RankPlace
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.status import job_show
from sentinel.web import page
from sentinel.web.view import (
    LOOP_LIMIT_S,
    MAX_EVENTS,
    MAX_INCIDENTS,
    Protector,
    View,
    build_view,
    open_incident,
)
from tests.samples import killed_for_memory
from tests.web import samples


def test_the_jobs_pace_is_that_of_its_slowest_rank() -> None:
    view = samples.view()
    assert view.step == 41_874
    assert view.step_ms == 3330.0
    assert view.ratio is not None
    assert round(view.ratio, 3) == round(2201.5 / 3330.0, 3)


def test_without_live_ranks_the_saved_record_speaks() -> None:
    view = build_view(samples.job(), now=samples.NOW, boot_id="boot-a")
    assert (view.step, view.step_ms, view.ratio, view.protector) == (41_200, None, None, None)


def test_of_a_log_that_names_no_steps_it_is_shown_how_many_iterations_were_made() -> None:
    rows = tuple(samples.rank_row(rank, step=None, iterations=104 - rank) for rank in range(2))
    view = build_view(samples.job(steps_told=False), now=samples.NOW, ranks=rows)
    assert (view.step, view.iterations) == (None, 104)
    shown = page.page(view)
    assert "Iterations since its start" in shown
    assert ">Iterations<" in shown
    lines = "\n".join(job_show.details(view, "nobody"))
    assert "104 since its start" in lines
    assert "STEPS" in lines


def test_time_left_counts_this_and_earlier_incarnations_and_what_was_granted() -> None:
    assert samples.view().time_left_s == 30 * 3600 - 40_000 - 7000
    assert samples.view(extra_s=100.0).time_left_s == 30 * 3600 - 40_000 - 7000 + 100
    assert samples.view(run_s=1e9).time_left_s == 0
    assert samples.view(policy=Policy()).time_left_s is None


def test_a_start_in_another_boot_or_a_job_that_stands_does_not_run_on() -> None:
    before_reboot = build_view(samples.job(), now=samples.NOW, boot_id="boot-b")
    assert before_reboot.run_s == 40_000
    assert samples.view(state=JobState.QUEUED).run_s == 40_000


def test_lists_are_bounded_and_newest_first() -> None:
    incidents = [samples.incident(number) for number in range(50)]
    events = [event for event in samples.events() for _ in range(100)]
    view = build_view(samples.job(), now=samples.NOW, incidents=incidents, events=events)
    assert [item.id for item in view.incidents][:2] == ["llama-7b-0049", "llama-7b-0048"]
    assert (len(view.incidents), len(view.events)) == (MAX_INCIDENTS, MAX_EVENTS)
    assert view.events[0].reason == "Recovered"


def test_the_newest_unfinished_incident_is_the_open_one() -> None:
    incidents = [samples.incident(1, Phase.STARTING), samples.incident(2)]
    view = build_view(samples.job(), now=samples.NOW, incidents=incidents)
    found = open_incident(view)
    assert found is not None
    assert found.id == "llama-7b-0001"


def test_the_environment_of_the_job_is_never_shown() -> None:
    assert b"secret-token" not in msgspec.json.encode(samples.view())


def test_a_view_survives_json() -> None:
    view = samples.view()
    assert msgspec.json.decode(msgspec.json.encode(view), type=View) == view


def test_health_is_the_age_of_the_control_loops_last_turn() -> None:
    assert Protector(pid=1, loop_age_s=LOOP_LIMIT_S).healthy
    assert not Protector(pid=1, loop_age_s=LOOP_LIMIT_S + 1).healthy
    assert not Protector(pid=1).healthy


def test_degraded_modes_are_named_once() -> None:
    view = build_view(samples.job(), now=Now(mono_s=0, wall_s=0), degraded=samples.job().degraded)
    assert view.degraded == samples.job().degraded


def test_another_jobs_process_that_was_killed_for_memory_is_not_shown_as_a_finding_of_this_job() -> None:
    def killed(pid: int | None, cgroup: str = "", job: str = "") -> Finding:
        return killed_for_memory(pid, cgroup=cgroup, job=job)

    def shown(found: Finding, **more: object) -> bool:
        given = {"ranks": samples.ranks(), "processes": (4811,), "incidents": (samples.incident(1),)} | more
        job = given.pop("job", samples.job())
        card = samples.finding()
        view = build_view(job, now=samples.NOW, findings=(found, card), **given)  # type: ignore[arg-type]
        assert card in view.findings, "what is about the machine is told to all"
        return found in view.findings

    assert shown(killed(99)), "perhaps a child of a rank: nothing says whose"
    assert shown(killed(99, "/system.slice/own.service")), "its own is not known"
    own = ("/system.slice/own.service",)
    assert shown(killed(99, "/system.slice/own.service"), groups=own)
    assert shown(killed(99, "/system.slice/own.service/ranks"), groups=own)
    assert not shown(killed(None, "/system.slice/other.service"), groups=own)
    assert not shown(killed(99, "/slurm/uid_0/job_4711/step_0", "slurm 4711"))
    assert not shown(killed(99, "", "pod research/llama-0"))
    assert shown(killed(4712)), "a rank"
    assert shown(killed(4811)), "a rank that a launcher has started"
    told = samples.incident(1)
    verdict = structs.replace(told.verdict, evidence=("kernel: Out of memory: Killed process 99 (python3)",))
    assert shown(killed(99), incidents=(structs.replace(told, verdict=verdict),)), "an incident rests on it"
    place = RankPlace(0, "77f06c5c-aa11-4a7b-9f3e-0123456789ab", "node-1")
    on_cluster = samples.job(placed=Placed(3, (place,)))
    pod = "/kubepods.slice/kubepods-pod77f06c5c_aa11_4a7b_9f3e_0123456789ab.slice/cri-containerd-ab.scope"
    assert shown(killed(99, pod), job=on_cluster)
    assert not shown(killed(99, pod.replace("77f06c5c", "88f06c5c")), job=on_cluster)
    slurm = samples.job(launch=Launch(command=("a",), cwd="/", env={"SLURM_JOB_ID": "471"}, nproc=4))
    assert shown(killed(99, "/slurm/uid_0/job_471/step_0", "slurm 471"), job=slurm)
    assert not shown(killed(99, "/slurm/uid_0/job_4711/step_0", "slurm 4711"), job=slurm)
