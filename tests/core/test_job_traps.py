"""Traps of batch Jobs and of what is built on them. The test of trap a-b-c is test_a_b_c."""

from typing import Any

import pytest
from msgspec import structs

from sentinel.core.job.change import PREFERRED
from sentinel.core.job.kinds import Means
from sentinel.core.job.limits import limits
from sentinel.core.job.owned_pods import row_of_owner, stand_in
from sentinel.core.job.paths import read
from sentinel.core.job.ranks import done_for_good, ranks
from sentinel.core.job.start import keep_off_nodes, settle, start
from sentinel.core.job.state import Seen, living, longest_grace_s, standing
from sentinel.core.job.stop import grace_refused, stop
from sentinel.core.job.writes import Reason, Refusal, Verb
from tests.core.job_objects import (
    Json,
    gone,
    pod,
    pods_of,
    row_named,
    seen,
    template,
    writes,
)
from tests.core.job_traps import (
    HOST,
    INDEXED,
    JOBSET,
    MARK,
    PLAIN,
    PODS,
    TRAINJOB,
    refused,
    stopped,
    with_trap,
)

# ---------------------------------------------------------------- batch Job


@pytest.mark.parametrize("title", with_trap("exit-0-completes-index"))
def test_exit_0_completes_index(title: str) -> None:
    """The only write is `suspend`: no pod is signalled, deleted or evicted to stop it."""
    (only,) = writes(stop(seen(title), "m"))
    assert only.verb is Verb.PATCH
    assert only.body["spec"] == {"suspend": True}


@pytest.mark.parametrize("title", with_trap("exit-0-after-eviction"))
def test_exit_0_after_eviction(title: str) -> None:
    assert {one.verb for one in writes(stop(seen(title), "m", grace_s=600))} == {Verb.PATCH}


@pytest.mark.parametrize("title", with_trap("suspend-keeps-grace"))
def test_suspend_keeps_grace(title: str) -> None:
    short = tuple(
        {**one, "spec": {**one["spec"], "terminationGracePeriodSeconds": 20 + n}}
        for n, one in enumerate(pods_of(title))
    )
    one = seen(title, pods=short)
    assert longest_grace_s(one) == 20
    assert grace_refused(one, 20.0) is None
    said = grace_refused(one, 600.0)
    assert said is not None
    assert said.reason is Reason.GRACE_TOO_SHORT
    assert "20 s" in said.sentence
    assert "600 s" in said.sentence
    assert grace_refused(seen(title), 31.0) is not None, "a pod that names none gets 30 s"


@pytest.mark.parametrize("title", with_trap("delete-counts-failures"))
def test_delete_counts_failures(title: str) -> None:
    one = seen(title, spec__podReplacementPolicy="Failed")
    assert {write.verb for write in writes(stop(one, "m", grace_s=600))} == {Verb.PATCH}
    assert grace_refused(one, 600.0) is not None


@pytest.mark.parametrize("title", with_trap("eviction-backs-off"))
def test_eviction_backs_off(title: str) -> None:
    assert Verb.EVICT not in {one.verb for one in writes(stop(seen(title), "m"))}
    (own,) = limits(seen(title, status__failed=2))
    assert (own.limit, own.used, own.left) == (6, 2, 4)


def test_eviction_uses_index() -> None:
    counted = {"batch.kubernetes.io/job-index-failure-count": "2"}
    pods = (pod("a", {}, annotations=counted), pod("b", {}))
    one = seen(
        INDEXED,
        pods=pods,
        spec__backoffLimitPerIndex=3,
        spec__maxFailedIndexes=5,
        status__failed=9,
        status__failedIndexes="1,3-4",
    )
    assert [(own.at, own.left) for own in limits(one)] == [
        ("spec.backoffLimitPerIndex", 1),
        ("spec.maxFailedIndexes", 2),
    ]


@pytest.mark.parametrize("title", with_trap("template-fixed-once-started"))
def test_template_fixed_once_started(title: str) -> None:
    one = stopped(title, status__startTime="2026-01-01T00:00:00Z")
    clear, patch = writes(start(one, hosts=["n1"]))
    assert (clear.part, clear.body) == ("status", {"status": {"startTime": None}})
    assert clear.request()["metadata"]["resourceVersion"] == one.job["metadata"]["resourceVersion"]
    assert patch.follows, "the first write has changed the resourceVersion"
    assert patch.body["spec"]["suspend"] is False
    assert HOST in str(patch.body["spec"]["template"])
    (alone,) = writes(start(one))
    assert alone.body["spec"] == {"suspend": False}, "nothing to change: the start time stays"
    assert len(writes(start(stopped(title), hosts=["n1"]))) == 1, "never started: nothing to clear"
    assert refused(keep_off_nodes(seen(title), ["n1"])) is Reason.NOT_STOPPED


def test_parallelism_alone() -> None:
    (patch,) = writes(start(stopped(INDEXED), size=2))
    assert patch.body["spec"] == {"parallelism": 2, "completions": 2, "suspend": False}
    assert refused(start(stopped(INDEXED, spec__completions=8), size=2)) is Reason.SIZE_FIXED


def test_completions_fixed() -> None:
    (patch,) = writes(start(stopped(PLAIN, spec__completions=4), size=2))
    assert patch.body["spec"] == {"parallelism": 2, "suspend": False}


@pytest.mark.parametrize("title", with_trap("finished-stay"))
def test_finished_stay(title: str) -> None:
    pods = list(pods_of(title))
    done = next(one for one in ranks(seen(title)) if one.rank == 2)
    pods = [
        pod if pod["metadata"]["uid"] != done.uid else {**pod, "status": {"phase": "Succeeded"}}
        for pod in pods
    ]
    one = seen(title, pods=tuple(pods))
    assert done_for_good(one, list(ranks(one))) == {2}
    if one.row.finished_at:
        one.job.setdefault("status", {})["completedIndexes"] = "0-1"
        assert done_for_good(one, list(ranks(one))) == {0, 1, 2}


@pytest.mark.parametrize("title", with_trap("end-comes-in-two"))
@pytest.mark.parametrize("early", ["SuccessCriteriaMet", "FailureTarget"])
def test_end_comes_in_two(title: str, early: str) -> None:
    one = seen(title, status__conditions=[{"type": early, "status": "True"}])
    assert standing(one).ending
    assert not standing(one).ended
    assert refused(stop(one, "m")) is refused(start(one)) is Reason.ENDED


# ---------------------------------------------------------------- pods of any other owner


def test_owner_decides() -> None:
    assert {one.verb for one in writes(stop(seen(PODS), "m"))} == {Verb.EVICT}
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "lab", "name": "alone", "uid": "u"}}
    said = stop(Seen(row=row_named(PODS), job=bare, pods=(bare,)), "m")
    assert refused(said) is Reason.NO_OWNER


def test_owner_is_not_read() -> None:
    row = row_of_owner(row_named(PODS), "example.com/v1", "GangJob")
    two = tuple(pod(name, {"app": "gang", "at": name}) for name in ("a", "b"))

    def owner(*pods: Json, ranks: int = 0, gpus: bool = False) -> Seen:
        return Seen(row=row, job=stand_in(row, "lab", "gang", "u-gang", pods, ranks, gpus), pods=pods)

    now = standing(owner(*two))
    assert (now.uid, now.size, now.stopped, now.ended) == ("u-gang", None, False, "")
    assert owner(*two).job["kind"] == "GangJob"
    assert owner(*two).job["metadata"]["labels"] == {"app": "gang"}
    assert writes(settle(owner(*two))) == (), "nothing is written to it"
    done = tuple({**one, "status": {"phase": "Succeeded"}} for one in two)
    assert standing(owner(*done)).ended == "succeeded"
    assert not standing(owner(*done, ranks=3)).ended, "another rank is missing"
    assert standing(owner(*done, gpus=True)).ended == "succeeded"
    helper = {**pod("c", {"app": "gang"}, gpu=False), "status": {"phase": "Succeeded"}}
    assert not standing(owner(helper, ranks=1, gpus=True)).ended, "it asked for no GPU, the ranks did"
    assert not standing(owner(done[0], two[1])).ended
    assert not standing(owner()).ended
    told = {**done[0]["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert not standing(owner({**done[0], "metadata": told}, done[1])).ended, "it was told to end"


@pytest.mark.parametrize("title", with_trap("no-way-to-keep-off"))
def test_no_way_to_keep_off(title: str) -> None:
    said = keep_off_nodes(seen(title), ["n2", "n1"])
    assert refused(said) is Reason.CANNOT_KEEP_OFF
    assert isinstance(said, Refusal)
    assert "n1, n2" in said.sentence
    assert writes(keep_off_nodes(seen(title), [])) == (), "nothing to be kept off, nothing to refuse"
    if row_named(title).stop is Means.COMMAND:
        aborted = seen(title, pods=(), status__state__phase="Aborted", metadata__annotations=MARK)
        assert refused(start(aborted, hosts=["n1"])) is Reason.CANNOT_KEEP_OFF


# ---------------------------------------------------------------- JobSet, TrainJob


def test_size_fixed() -> None:
    assert refused(start(stopped(JOBSET), size=2)) is Reason.SIZE_FIXED


def child(name: str, **more: Any) -> Json:
    meta = {"namespace": "lab", "name": name, "uid": f"u-{name}", "resourceVersion": "5"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**meta, "labels": more.pop("labels", {})},
        "spec": {"suspend": True, "parallelism": more.pop("parallelism", 2), "template": template()},
        "status": {"startTime": "2026-01-01T00:00:00Z"},
        **more,
    }


def test_affinity_in_children() -> None:
    children = (child("workers-0"), {**child("workers-1"), "status": {}})
    plan = start(stopped(JOBSET, children=children), hosts=["n1"])
    clear, first, second, last = writes(plan)
    assert (clear.name, clear.part, clear.body) == ("workers-0", "status", {"status": {"startTime": None}})
    assert (first.name, first.follows) == ("workers-0", True)
    assert (second.name, second.follows) == ("workers-1", False)
    assert all(HOST in str(one.body["spec"]["template"]) for one in (first, second))
    assert (last.plural, last.body["spec"]) == ("jobsets", {"suspend": False}), "the JobSet itself goes last"
    assert HOST not in str(last.body)

    children = (child("workers-0"), child("workers-1"))
    before = stopped(JOBSET, children=children)
    *_, second, last = writes(start(before, last=["n1"]))
    (term,) = read(second.body, "spec.template.spec.affinity.nodeAffinity")[PREFERRED]
    assert (term["weight"], term["preference"]["matchExpressions"][0]["values"]) == (100, ["n1"])
    assert second.body["metadata"]["annotations"] == {"sentinel.dev/chosen-last": "n1"}
    assert last.plural == "jobsets"
    for one in children:
        one["metadata"]["annotations"] = {"sentinel.dev/chosen-last": "n1"}
    assert [one.plural for one in writes(start(before, last=["n1"]))] == ["jobsets"]
    assert writes(start(stopped(JOBSET), last=["n1"]))[-1].plural == "jobsets", (
        "no Jobs are known, and it starts"
    )


def test_child_limit_restarts_all() -> None:
    used = seen(
        JOBSET, spec__failurePolicy={"maxRestarts": 3}, status={"restarts": 2, "restartsCountTowardsMax": 1}
    )
    assert [own.left for own in limits(used)] == [2]
    assert [own.left for own in limits(seen(JOBSET))] == [0], (
        "without a failure policy the first failure is its end"
    )
    kept = {
        **child("a"),
        "metadata": {**child("a")["metadata"], "annotations": {"sentinel.dev/kept-off": "n1,n2"}},
    }
    assert standing(seen(JOBSET, children=(kept,))).kept_off == ("n1", "n2")
    assert standing(seen(JOBSET, children=(kept, child("made-anew")))).kept_off == ()


def test_num_nodes_is_not_applied() -> None:
    assert refused(start(stopped(TRAINJOB), size=2)) is Reason.SIZE_BY_RECREATING
    nodes = {"jobset.sigs.k8s.io/replicatedjob-name": "node"}
    other = child(
        "init", labels={"jobset.sigs.k8s.io/replicatedjob-name": "model-initializer"}, parallelism=1
    )
    runs = (child("train-node-0", labels=nodes, parallelism=4), other)
    said = stop(seen(TRAINJOB, children=runs, spec__trainer__numNodes=2), "m")
    assert refused(said) is Reason.SIZE_EDITED
    assert isinstance(said, Refusal)
    assert "put 4 back" in said.sentence
    assert writes(stop(seen(TRAINJOB, children=runs), "m"))


def test_suspended_while_pods_run() -> None:
    """Neither the condition nor the field makes it stopped, for a start: the pods do."""
    claims = {"spec__suspend": True, "status__conditions": [{"type": "Suspended", "status": "True"}]}
    one = seen(TRAINJOB, metadata__annotations=MARK, **claims)
    assert standing(one).stopped
    assert len(living(one.pods)) == 5
    said = start(one)
    assert refused(said) is Reason.STILL_RUNNING
    assert isinstance(said, Refusal)
    assert "node-0" in said.sentence
    assert writes(start(gone(one)))


def test_overrides_are_pruned() -> None:
    one = stopped(TRAINJOB)
    assert refused(start(one, hosts=["n1"])) is Reason.LABEL_NEEDED
    (resume,) = writes(start(one))
    assert resume.body["spec"] == {"suspend": False}
    ended = {**pods_of(TRAINJOB)[0], "status": {"phase": "Failed"}}
    ended["metadata"] = {**ended["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}
    noted, resume = writes(start(structs.replace(one, pods=(ended,))))
    assert "suspend" not in noted.body.get("spec", {})
    assert (resume.follows, resume.body["spec"]) == (True, {"suspend": False}), (
        "its webhook takes them one by one"
    )
