"""What a restarted program is told through annotations of its pods and a ConfigMap."""

import copy
from typing import Any

import pytest

from sentinel.core.decision import incidents
from sentinel.core.job import resume as job_resume
from sentinel.core.job.change import changeable
from sentinel.core.job.kinds import KeepOff, Means
from sentinel.core.job.resume import ASKS_FOR_MAP, VARIABLES, annotation_of
from sentinel.core.job.start import keep_off_nodes, start
from sentinel.core.job.state import SENTINEL, Seen, standing
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Plan, Verb, Write
from sentinel.core.model import BadSteps, IncidentKind, ProtectedJob, ProvedCheckpoint
from sentinel.core.policy_model import Policy
from tests.core import recovery_events as ev
from tests.core.job_objects import OBJECTS, Json, applied, gone, row_named, seen, writes

INDEXED, PYTORCH = "Job.batch/v1 (Indexed)", "PyTorchJob.kubeflow.org/v1"
JOBSET = "JobSet.jobset.x-k8s.io/v1alpha2"
TOLD = {"SENTINEL_RESUME": "1", "SENTINEL_RESTARTS": "2", "SENTINEL_CHECKPOINT_STEP": "70"}
NOTES = {"sentinel.dev/resume": "1", "sentinel.dev/restarts": "2", "sentinel.dev/checkpoint-step": "70"}
LATER = {"SENTINEL_RESUME": "1", "SENTINEL_RESTARTS": "3", "SENTINEL_CAUSE": "gpu"}
OF_TEMPLATES = [
    title for title in OBJECTS if row_named(title).keep_off in (KeepOff.TEMPLATE, KeepOff.STOPPED, KeepOff.UNSTARTED)
]  # fmt: skip


def notes(seen: Seen) -> list[dict[str, str]]:
    return [one.get("metadata", {}).get("annotations", {}) for one in changeable(seen.row, seen.job)]


def stopped(title: str) -> Seen:
    """By Sentinel, with no pod left."""
    before = seen(title)
    return gone(applied(before, stop(before, "inc-1")))


def test_the_names_are_those_that_a_program_on_one_machine_knows() -> None:
    proved = ProvedCheckpoint(step=70, proof="saved", wall_s=1.0)
    job = ProtectedJob(
        name="x", policy=Policy(), incarnation=2, checkpoint=proved, bad_steps=BadSteps(80, 90)
    )
    env = incidents.resume_env(job, ev.incident(IncidentKind.FORCED, incarnation=2))
    assert set(env) == set(VARIABLES)
    assert job_resume.told({**env, "PATH": "/bin"}) == env
    assert annotation_of("SENTINEL_CHECKPOINT_PROOF") == "sentinel.dev/checkpoint-proof"


@pytest.mark.parametrize("title", OF_TEMPLATES)
def test_a_start_tells_the_pods_and_a_later_one_tells_anew(title: str) -> None:
    row = row_named(title)
    before = stopped(title) if row.holds and row.stop is not Means.EVICT else seen(title)
    own = {"team": "nlp", "sentinel.dev/mine": "kept"}
    for template in changeable(row, before.job):
        template["metadata"] = {"annotations": dict(own)}
    first = _go(before, TOLD)
    assert notes(first)
    assert all(one == own | NOTES for one in notes(first))
    again = _go(first if row.stop is Means.EVICT else _stopped_again(first), LATER)
    later = {annotation_of(name): value for name, value in LATER.items()}
    assert all(one == own | later for one in notes(again))


def _go(seen: Seen, told: dict[str, str]) -> Seen:
    if seen.row.stop is Means.EVICT:
        return applied(seen, keep_off_nodes(seen, (), told=told))
    return applied(seen, start(seen, told=told))


def _stopped_again(one: Seen) -> Seen:
    there = Seen(row=one.row, job=one.job, pods=one.pods)
    return there if standing(there).stopped_by == SENTINEL else gone(applied(there, stop(there, "inc-2")))


def test_it_goes_in_the_patch_of_the_start_and_nothing_to_tell_changes_nothing() -> None:
    before = stopped(PYTORCH)
    (patch,) = writes(start(before, told=TOLD))
    assert patch.body["spec"]["runPolicy"] == {"suspend": False}
    assert patch.body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] == {
        "metadata": {"annotations": NOTES}
    }
    assert start(before, told={}) == start(before)


def test_a_batch_job_that_had_started_has_its_start_time_cleared_first() -> None:
    before = stopped(INDEXED)
    before.job["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    clear, patch = writes(start(before, told=TOLD))
    assert (clear.part, clear.body) == ("status", {"status": {"startTime": None}})
    assert patch.follows


def test_the_jobs_of_a_jobset_are_told_whatever_nodes_they_keep_off() -> None:
    before = stopped(JOBSET)
    child = copy.deepcopy(OBJECTS[INDEXED])
    child["metadata"] |= {"name": "train-workers-0", "uid": "u-child"}
    with_child = Seen(row=before.row, job=before.job, children=(child,))
    first, *_ = writes(start(with_child, told=TOLD))
    assert (first.name, first.body) == (
        "train-workers-0",
        {"spec": {"template": {"metadata": {"annotations": NOTES}}}},
    )
    assert isinstance(start(before, told=TOLD), Plan)  # its Jobs are not known: it starts untold


@pytest.mark.parametrize("title", ["TrainJob.trainer.kubeflow.org/v1alpha1", "Job.batch.volcano.sh/v1alpha1"])
def test_a_kind_whose_templates_stay_is_started_untold(title: str) -> None:
    before = seen(title)
    if title.startswith("TrainJob"):
        before = stopped(title)
        assert start(before, told=TOLD) == start(before)
    assert changeable(before.row, before.job) == []


# ---------------------------------------------------------------- the ConfigMap


def asking(**more: Any) -> Seen:
    before = stopped(INDEXED)
    before.job["metadata"].setdefault("annotations", {})[ASKS_FOR_MAP] = "true"
    return Seen(row=before.row, job=before.job, **more)


def config_map(**labels: str) -> Json:
    meta = {
        "name": "train-sentinel",
        "namespace": "lab",
        "uid": "u-map",
        "resourceVersion": "5",
        "labels": labels,
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"SENTINEL_CAUSE": "gpu"}}


def first_write(seen: Seen) -> Write:
    return writes(start(seen, told=TOLD))[0]


def test_a_job_that_asks_gets_a_config_map_that_goes_with_it() -> None:
    made = first_write(asking())
    assert (made.verb, made.plural, made.name, made.optional) == (
        Verb.CREATE,
        "configmaps",
        "train-sentinel",
        True,
    )
    assert made.body["data"] == TOLD
    (owner,) = made.body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", "u-train")
    assert "blockOwnerDeletion" not in owner


def test_the_next_start_brings_it_up_to_date_under_its_preconditions() -> None:
    ours = config_map(**{"app.kubernetes.io/managed-by": "sentinel"})
    changed = first_write(asking(config_map=ours))
    assert (changed.verb, changed.uid, changed.resource_version) == (Verb.PATCH, "u-map", "5")
    assert changed.body["data"] == {**TOLD, "SENTINEL_CAUSE": None}


def test_what_somebody_else_made_under_its_name_is_left_alone() -> None:
    assert first_write(asking(config_map=config_map())).plural == "jobs"
    assert (
        first_write(asking(config_map=config_map(**{"app.kubernetes.io/managed-by": "Helm"}))).plural
        == "jobs"
    )


@pytest.mark.parametrize("value", ["", "false", "other-name"])
def test_nobody_gets_one_unasked(value: str) -> None:
    before = asking()
    before.job["metadata"]["annotations"][ASKS_FOR_MAP] = value
    assert first_write(before).plural == "jobs"
