"""Details of reading and changing jobs that hold for every kind."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sentinel.core.job.kinds import KeepOff, Role
from sentinel.core.job.paths import merge_patch, numbers, read, write
from sentinel.core.job.ranks import RankPod, ended_early, ranks
from sentinel.core.job.start import keep_off_nodes, settle, start
from sentinel.core.job.state import Seen, asks_gpu, chosen_last, ended_before, standing
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Reason, Refusal, Verb, Write
from sentinel.rules.job_kinds import job_table
from tests.core.job_objects import (
    CPU,
    Json,
    applied,
    gone,
    merged,
    obj,
    pod,
    row_named,
    seen,
    template,
    writes,
)

PYTORCH, INDEXED = "PyTorchJob.kubeflow.org/v1", "Job.batch/v1 (Indexed)"
JOBSET, TF = "JobSet.jobset.x-k8s.io/v1alpha2", "TFJob.kubeflow.org/v1"
REQUIRED = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PREFERRED = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
WORKER = "spec.pytorchReplicaSpecs.Worker.template"

# ---------------------------------------------------------------- patches

values = some.recursive(
    some.booleans() | some.integers() | some.text("ab", max_size=2),
    lambda below: (
        some.lists(below, max_size=2) | some.dictionaries(some.sampled_from("abcd"), below, max_size=3)
    ),
    max_leaves=8,
)
objects = some.dictionaries(some.sampled_from("abcd"), values, max_size=4)


@given(objects, objects)
def test_a_merge_patch_makes_the_one_object_the_other(before: Json, after: Json) -> None:
    assert merged(before, merge_patch(before, after)) == after
    assert merge_patch(before, before) == {}


def test_a_patch_without_its_preconditions_is_never_sent() -> None:
    bare = Write(
        verb=Verb.PATCH, group="batch", version="v1", plural="jobs", namespace="lab", name="a", body={}
    )
    with pytest.raises(ValueError, match="preconditions"):
        bare.request()
    follows = Write(
        verb=Verb.PATCH,
        group="batch",
        version="v1",
        plural="jobs",
        namespace="lab",
        name="a",
        uid="u",
        follows=True,
    )
    with pytest.raises(ValueError, match="preconditions"):
        follows.request()
    assert follows.request("9")["metadata"] == {"uid": "u", "resourceVersion": "9"}


def test_nothing_that_was_read_is_changed_by_deciding_about_it() -> None:
    for title in (PYTORCH, INDEXED, "Job.batch.volcano.sh/v1alpha1"):
        one = seen(title)
        before = copy.deepcopy(one)
        stop(one, "m"), start(one), keep_off_nodes(one, ["n1"])
        assert one == before


@pytest.mark.parametrize(
    ("listed", "found"),
    [("", set()), ("3", {3}), ("0,2-4", {0, 2, 3, 4}), ("x,1-y,-,5", {5})],
)
def test_indexes_are_read_as_a_job_lists_them(listed: str, found: set[int]) -> None:
    assert numbers(listed) == found


@pytest.mark.parametrize("strange", [None, 7, "text", [], {"a": []}, [None, 3], {"conditions": "x"}])
@pytest.mark.parametrize("part", ["spec", "status", "metadata"])
def test_fields_of_other_types_are_as_if_they_were_not_there(part: str, strange: Any) -> None:
    for title in (PYTORCH, INDEXED, JOBSET, "Job.batch.volcano.sh/v1alpha1", "RayJob.ray.io/v1"):
        job = {**seen(title).job, part: strange}
        bad = Seen(
            row=row_named(title), job=job, pods=({"metadata": strange, "spec": strange, "status": strange},)
        )
        standing(bad), ranks(bad)
        stop(bad, "m"), start(bad, size=3, hosts=["n1"])


# ---------------------------------------------------------------- affinity


def terms_after(terms: Any, hosts: list[str]) -> tuple[Any, Any]:
    """Of a template with these terms: what they become, and what they are when it is kept off nothing again."""
    one = seen(PYTORCH)
    if terms is not None:
        write(one.job, f"{WORKER}.{REQUIRED}", terms)
    kept = applied(one, keep_off_nodes(one, hosts))
    back = applied(kept, keep_off_nodes(kept, []))
    before, after = (read(each.job, "spec") for each in (one, back))
    assert before == after
    return read(kept.job, f"{WORKER}.{REQUIRED}"), standing(back).kept_off


OFF = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


@pytest.mark.parametrize(
    ("terms", "become"),
    [
        (None, [{"matchExpressions": [OFF]}]),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE, OFF]}]),
        ([{"matchExpressions": [OFF]}], [{"matchExpressions": [OFF, OFF]}]),
        (
            [{"matchExpressions": [ZONE]}, {"matchFields": [ZONE]}],
            [{"matchExpressions": [ZONE, OFF]}, {"matchFields": [ZONE], "matchExpressions": [OFF]}],
        ),
        ([{}], [{}]),
    ],
    ids=[
        "none",
        "one",
        "the owner wrote the same",
        "alternatives",
        "an empty term fits no node and stays so",
    ],
)
def test_affinity_joins_that_of_the_owner_and_leaves_it_again(terms: Any, become: Any) -> None:
    assert terms_after(terms, ["n2", "n1", "n1"]) == (become, ())


def test_another_list_of_nodes_takes_the_place_of_the_first() -> None:
    one = seen(PYTORCH)
    first = applied(one, keep_off_nodes(one, ["n1"]))
    second = applied(first, keep_off_nodes(first, ["n2"]))
    assert standing(second).kept_off == ("n2",)
    (term,) = read(second.job, f"{WORKER}.{REQUIRED}")
    assert [expression["values"] for expression in term["matchExpressions"]] == [["n2"]]
    assert writes(keep_off_nodes(second, ["n2"])) == ()


def test_hosts_that_are_chosen_last_are_a_preference_beside_those_of_the_owner() -> None:
    one = seen(PYTORCH)
    own = {"weight": 5, "preference": {"matchExpressions": [ZONE]}}
    ours = {"weight": 100, "preference": {"matchExpressions": [OFF]}}
    write(one.job, f"{WORKER}.{PREFERRED}", [ours, own])  # by chance the owner asks for the same
    last = applied(one, keep_off_nodes(one, ["n3"], last=["n2", "n1"]))
    assert read(last.job, f"{WORKER}.{PREFERRED}") == [ours, own, ours]
    assert read(last.job, "spec.pytorchReplicaSpecs.Master.template." + PREFERRED) == [ours]
    assert (standing(last).kept_off, chosen_last(last.job)) == (("n3",), ("n1", "n2"))
    assert writes(keep_off_nodes(last, ["n3"], last=["n1", "n2"])) == ()
    other = applied(last, keep_off_nodes(last, [], last=["n4"]))
    assert [one["weight"] for one in read(other.job, f"{WORKER}.{PREFERRED}")] == [100, 5, 100]
    assert standing(other).kept_off == ()
    back = applied(other, keep_off_nodes(other, []))
    assert read(back.job, "spec") == read(one.job, "spec")


def test_kinds_whose_pods_nothing_keeps_off_a_node_have_none_that_is_chosen_last() -> None:
    none = [row.title for row in job_table().rows if row.keep_off is KeepOff.NONE]
    assert none
    for title in none:
        assert writes(keep_off_nodes(seen(title), [], last=["n1"])) == ()


# ---------------------------------------------------------------- who stopped it


def suspended(**meta: Any) -> Seen:
    one = seen(PYTORCH, pods=(), spec__runPolicy={"suspend": True})
    one.job["metadata"].update(meta)
    return one


def test_what_somebody_else_stopped_is_not_started_unless_its_owner_asks_for_it() -> None:
    fields = {"f:spec": {"f:runPolicy": {"f:suspend": {}}}}
    managed = [
        {"manager": "kubectl-create", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields},
        {"manager": "kubectl-edit", "time": "2026-01-02T00:00:00Z", "fieldsV1": fields},
        {"manager": "training-operator", "time": "2026-01-03T00:00:00Z", "fieldsV1": {"f:status": {}}},
    ]
    by_hand = suspended(managedFields=managed)
    assert standing(by_hand).stopped_by == "kubectl-edit"
    said = start(by_hand)
    assert isinstance(said, Refusal)
    assert said.reason is Reason.NOT_OURS
    assert "kubectl-edit" in said.sentence
    by_hand.job["metadata"]["annotations"] = {"sentinel.dev/precheck": "true"}
    (only,) = writes(start(by_hand))
    assert only.body["spec"]["runPolicy"]["suspend"] is False
    assert only.body["metadata"]["annotations"] == {"sentinel.dev/precheck": "started"}, "once"
    by_hand.job["metadata"]["annotations"] = {"sentinel.dev/precheck": "started"}
    assert isinstance(start(by_hand), Refusal), "who stops it later does not ask for another start"
    assert standing(suspended()).stopped_by == ""
    assert writes(stop(by_hand, "lab.train-0001")) == (), (
        "it is stopped: the mark of its stop is not ours to set"
    )


def test_a_job_that_a_person_started_again_only_loses_the_mark() -> None:
    one = seen(PYTORCH, metadata__annotations={"sentinel.dev/stopped": "lab.train-0001", "team": "nlp"})
    (only,) = writes(start(one))
    assert only.body == {"metadata": {"annotations": {"sentinel.dev/stopped": None}}}


def test_a_job_that_a_person_started_before_sentinel_did_asks_for_no_start_any_more() -> None:
    one = seen(PYTORCH, metadata__annotations={"sentinel.dev/precheck": "true"})
    (only,) = writes(settle(one))
    assert only.body == {"metadata": {"annotations": {"sentinel.dev/precheck": "started"}}}


def test_a_job_that_is_stopped_keeps_the_mark_of_its_stop() -> None:
    one = seen(PYTORCH)
    stopped = gone(applied(one, stop(one, "lab.train-0001")))
    assert writes(settle(stopped)) == ()
    assert standing(stopped).mark == "lab.train-0001"


def test_pods_that_go_already_are_neither_evicted_nor_deleted_again() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    owner = seen("Pod/v1", pods=(pod("stays", {}), pod("goes", {}, **going)))
    assert [one.name for one in writes(stop(owner, "m"))] == ["stays"]
    blocked = seen("MPIJob.kubeflow.org/v2beta1", pods=(pod("w", {}, phase="Succeeded", **going),))
    assert ended_early(blocked) == []


def test_nothing_is_written_to_an_owner_that_is_not_known_where_its_queue_starts_it() -> None:
    meta = {"name": "w", "namespace": "lab", "uid": "u-w", "resourceVersion": "1"}
    queued = {"apiVersion": "kueue.x-k8s.io/v1beta1", "metadata": meta, "spec": {"active": True}}
    one = seen("Pod/v1", workload=queued, kueue=True)
    told = applied(one, stop(one, "m"))
    failed = pod("old", {}, phase="Failed", creationTimestamp="2026-01-01T00:00:00Z")
    stopped = Seen(row=told.row, job=told.job, pods=(failed,), workload=told.workload, kueue=True)
    assert [only.plural for only in writes(start(stopped))] == ["workloads"]


def test_a_workload_that_a_person_deactivated_is_his() -> None:
    meta = {"name": "w", "namespace": "lab", "uid": "u-w", "resourceVersion": "1"}
    workload = {"apiVersion": "kueue.x-k8s.io/v1beta1", "metadata": meta, "spec": {"active": False}}
    one = seen(PYTORCH, pods=(), workload=workload)
    assert standing(one).stopped
    refused = start(one)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NOT_OURS


# ---------------------------------------------------------------- start in one patch


def test_size_affinity_and_start_are_one_patch() -> None:
    one = seen(PYTORCH, spec__runPolicy={"schedulingPolicy": {"minAvailable": 4}})
    stopped = gone(applied(one, stop(one, "m")))
    (only,) = writes(start(stopped, size=3, hosts=["n1"]))
    spec = only.body["spec"]
    assert spec["runPolicy"] == {"suspend": False, "schedulingPolicy": {"minAvailable": 3}}
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
    assert "affinity" in spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]


def test_a_job_whose_size_stands_elsewhere_is_started_as_it_was() -> None:
    """A TrainJob that leaves its size to its runtime."""
    one = seen("TrainJob.trainer.kubeflow.org/v1alpha1", spec__trainer=None)
    stopped = gone(applied(one, stop(one, "m")))
    assert standing(stopped).size is None
    (only,) = writes(start(stopped, size=4))
    assert only.body["spec"] == {"suspend": False}


def test_a_job_whose_pods_are_left_is_not_started() -> None:
    one = seen(PYTORCH)
    told = applied(one, stop(one, "m"))
    refused = start(told)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.STILL_RUNNING
    assert "and" not in refused.sentence
    many = Seen(row=told.row, job=told.job, pods=tuple(pod(f"worker-{n}", {}) for n in range(9)))
    said = start(many)
    assert isinstance(said, Refusal)
    assert said.sentence.endswith("worker-4 and 4 more.")


def test_the_pods_that_had_ended_before_a_start_are_known_after_it_from_the_job_alone() -> None:
    first, last = (
        pod(name, {}, phase="Failed", creationTimestamp=f"2026-01-0{day}T00:00:00Z")
        for name, day in (("old", 1), ("late", 2))
    )
    one = seen(PYTORCH)
    told = applied(one, stop(one, "m"))
    stopped = Seen(row=told.row, job=told.job, pods=(first, last))
    assert ended_before(stopped) == [first, last]
    job = applied(stopped, start(stopped)).job
    new = pod("new", {}, phase="Failed", creationTimestamp="2026-01-03T00:00:00Z")
    runs = pod("runs", {}, creationTimestamp="2026-01-02T00:00:00Z")
    assert ended_before(Seen(row=one.row, job=job, pods=(first, last, new, runs))) == [first, last]
    runs_again = Seen(row=one.row, job=job, pods=one.pods)
    (only,) = writes(start(gone(applied(runs_again, stop(runs_again, "m")))))
    assert only.body["metadata"]["annotations"] is None, "none is left"


# ---------------------------------------------------------------- ranks


def ranked(title: str, *pods: Json, **changes: Any) -> dict[str, RankPod]:
    return {one.name: one for one in ranks(seen(title, pods=pods, **changes))}


def torch_pod(kind: str, index: int, name: str, **more: Any) -> Json:
    labels = {"training.kubeflow.org/replica-type": kind, "training.kubeflow.org/replica-index": str(index)}
    return pod(name, labels, **more)


def test_the_variable_of_the_rank_goes_before_counting() -> None:
    one = torch_pod("worker", 0, "w")
    one["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "7"}]
    assert ranked(PYTORCH, one)["w"].rank == 7
    one["spec"]["containers"][0]["env"] = [{"name": "RANK", "valueFrom": {}}]
    assert ranked(PYTORCH, one)["w"].rank == 1, "a master before it"


def test_without_a_master_workers_count_from_0() -> None:
    """Elastic jobs have no master, and no RANK."""
    workers = {"Worker": {"replicas": 2, "template": template()}}
    assert ranked(PYTORCH, torch_pod("worker", 0, "w"), spec__pytorchReplicaSpecs=workers)["w"].rank == 0


def test_the_index_is_read_from_json_in_a_variable_where_the_label_is_missing() -> None:
    one = pod("w", {"training.kubeflow.org/replica-type": "worker"})
    one["spec"]["containers"][0]["env"] = [
        {"name": "TF_CONFIG", "value": '{"task": {"type": "worker", "index": 1}}'}
    ]
    assert ranked(TF, one)["w"].rank == 2, "a chief, worker 0, and this one"
    one["spec"]["containers"][0]["env"][0]["value"] = "{"
    assert ranked(TF, one)["w"].by_order


def test_of_two_pods_of_one_rank_the_one_that_lives_counts_else_the_newest() -> None:
    index = {"batch.kubernetes.io/job-completion-index": "1"}
    old = pod("a", index, phase="Failed", creationTimestamp="2026-01-01T00:00:00Z")
    new = pod("b", index, creationTimestamp="2026-01-01T00:01:00Z")
    newest = pod("c", index, phase="Failed", creationTimestamp="2026-01-01T00:02:00Z")
    assert list(ranked(INDEXED, old, new)) == ["b"]
    assert list(ranked(INDEXED, old, new, newest)) == ["b"]
    assert list(ranked(INDEXED, old, newest)) == ["c"]


def test_pods_that_nothing_numbers_are_numbered_by_their_names_and_say_so() -> None:
    found = ranked("Job.batch/v1", pod("x-b", {}), pod("x-a", {}))
    assert [(one.name, one.rank, one.by_order) for one in found.values()] == [
        ("x-a", 0, True),
        ("x-b", 1, True),
    ]


def test_beside_groups_with_gpus_a_group_without_is_a_helper_and_names_are_hints() -> None:
    def part(name: str, spec: Json) -> Json:
        return {"name": name, "template": {"spec": {"template": template(spec)}}}

    gpus = {"containers": [{"resources": {"requests": {"amd.com/gpu": 8}}}]}
    parts = [part("logger", CPU), part("driver", gpus), part("actors", gpus)]

    def pod_of(name: str) -> Json:
        return pod(name, {"jobset.sigs.k8s.io/replicatedjob-name": name, "jobset.sigs.k8s.io/job-index": "0"})

    found = ranked(JOBSET, *map(pod_of, ("logger", "driver", "actors")), spec__replicatedJobs=parts)
    assert {name: one.role for name, one in found.items()} == {
        "logger": Role.HELPER, "driver": Role.RANK, "actors": Role.RANK,
    }  # fmt: skip
    alone = [part("logger", CPU), part("actors", CPU)]
    found = ranked(JOBSET, *map(pod_of, ("logger", "actors")), spec__replicatedJobs=alone)
    assert {one.role for one in found.values()} == {Role.RANK}, "without any GPU all of them train"


def test_a_pod_without_the_label_of_its_role_is_a_helper() -> None:
    """A RayJob's submitter."""
    assert ranked("RayJob.ray.io/v1", pod("submitter", {}, gpu=False))["submitter"].role is Role.HELPER


def test_pods_of_an_unknown_owner_without_a_gpu_are_helpers_beside_some_with() -> None:
    found = ranked("Pod/v1", pod("a", {}), pod("b", {}, gpu=False))
    assert (found["a"].role, found["b"].role, found["b"].rank) == (Role.RANK, Role.HELPER, None)


def test_pods_in_whose_place_an_unknown_owner_makes_others_are_no_ranks() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    found = ranked("Pod/v1", pod("a", {}, phase="Failed"), pod("b", {}, **going), pod("c", {}), pod("d", {}))
    assert {name: one.rank for name, one in found.items()} == {"a": None, "b": None, "c": 0, "d": 1}
    numbered = [pod(f"p-{n}", {"apps.kubernetes.io/pod-index": str(n)}) for n in (10, 9)]
    assert {name: one.rank for name, one in ranked("Pod/v1", *numbered).items()} == {"p-10": 10, "p-9": 9}


@pytest.mark.parametrize(
    ("resource", "is_gpu"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("amd.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("cpu", False),
        ("rdma/hca", False),
        ("gpu", False),
    ],
)
def test_gpus_are_known_by_the_names_of_device_plugins(resource: str, is_gpu: bool) -> None:
    assert asks_gpu({"containers": [{"resources": {"limits": {resource: "1"}}}]}) is is_gpu


def test_which_of_several_groups_changes_must_be_known() -> None:
    def group(name: str) -> Json:
        return {"groupName": name, "replicas": 2, "template": template()}

    two = {"workerGroupSpecs": [group("a"), group("b")]}
    one = Seen(row=row_named("RayCluster.ray.io/v1"), job=obj("ray.io/v1", "RayCluster", two))
    stopped = gone(applied(one, stop(one, "m")))
    said = start(stopped, size=6)
    assert isinstance(said, Refusal)
    assert said.reason is Reason.WHICH_GROUP
    assert "a, b" in said.sentence


def test_pods_that_go_together_are_not_split() -> None:
    hosts = {"workerGroupSpecs": [{"groupName": "a", "replicas": 2, "numOfHosts": 4, "template": template()}]}
    one = Seen(row=row_named("RayCluster.ray.io/v1"), job=obj("ray.io/v1", "RayCluster", hosts))
    assert standing(one).size == 8
    stopped = gone(applied(one, stop(one, "m")))
    said = start(stopped, size=6)
    assert isinstance(said, Refusal)
    assert said.reason is Reason.SIZE_DOES_NOT_FIT
    (patch,) = writes(start(stopped, size=12))
    assert patch.body["spec"]["workerGroupSpecs"][0]["replicas"] == 3
