"""How a rank in a pod ended: what real pods printed, and what is not known."""

import copy
from typing import Any

import pytest

from sentinel.core.job.pod_end import end, rank_exit, restarted
from sentinel.core.job.state import main_container
from tests.core.pod_shapes import COME_BACK, ENDS, FOLDER, UP, WAITS, changed, container, ended, stored

Json = dict[str, Any]


# ---------------------------------------------------------------- what real ones printed


def test_each_stored_pod_is_read_by_a_test() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {*ENDS, *WAITS, *UP}


@pytest.mark.parametrize("name", ENDS)
def test_a_pod_tells_how_it_ended(name: str) -> None:
    found = ended(name)
    assert ENDS[name].fits(found), found
    assert found.pod == f"research/{name}"
    assert found.sentence.startswith(f"Pod research/{name} on node pods-")
    assert found.comes_back == (name in COME_BACK)


@pytest.mark.parametrize("name", [*UP, *(name for name in WAITS if name not in ENDS)])
def test_what_runs_or_waits_has_not_ended(name: str) -> None:
    assert end(stored(name)[0]) is None


def test_the_time_is_that_of_the_container() -> None:
    found = ended("exit-3")
    assert found.finished_wall_s is not None
    assert found.finished_wall_s == pytest.approx(1_795_306_000, abs=86_400)
    assert ended("too-big").finished_wall_s is None


# ---------------------------------------------------------------- told to end, and by itself before


def test_an_end_before_it_was_told_to_is_its_own() -> None:
    pod, _ = copy.deepcopy(stored("evicted"))
    last = container(pod)["state"]["terminated"]
    last |= {"exitCode": 3, "finishedAt": "2026-11-20T00:00:00Z"}
    found = end(pod)
    assert found is not None
    assert (found.code, found.failure, found.told_wall_s) == (3, "", None)


def test_a_completed_pod_that_is_deleted_later_has_completed() -> None:
    pod = changed("exit-0")
    pod["metadata"] |= {"deletionTimestamp": "2026-12-24T00:00:00Z", "deletionGracePeriodSeconds": 30}
    found = end(pod)
    assert found is not None
    assert (found.code, found.failure) == (0, "")
    pod["metadata"]["deletionGracePeriodSeconds"] = 0
    assert end(pod) == found


@pytest.mark.parametrize(("grace_s", "failure"), [(25, "pod-deleted"), (10, "")])
def test_a_deletion_began_its_grace_before_the_time_that_it_bears(grace_s: int, failure: str) -> None:
    pod = changed("exit-3")
    container(pod)["state"]["terminated"]["finishedAt"] = "2026-11-22T10:00:00Z"
    pod["metadata"] |= {"deletionTimestamp": "2026-11-22T10:00:20Z", "deletionGracePeriodSeconds": grace_s}
    found = end(pod)
    assert found is not None
    assert (found.code, found.failure) == (3, failure)


def test_a_disruption_that_was_called_off_did_not_end_it() -> None:
    pod = changed("evicted")
    del pod["metadata"]["deletionTimestamp"]
    pod["status"]["conditions"][0]["status"] = "False"
    found = end(pod)
    assert found is not None
    assert found.failure == ""


def test_a_program_that_ends_well_when_it_is_told_to_has_not_finished() -> None:
    """Also where the kubelet's last word has hidden when it was told."""
    for name in ("evicted-saves", "deleted-saves"):
        gone = rank_exit(ended(name), rank=2, incarnation=1, at_s=50.0)
        assert gone.code == 0
        assert not gone.ok


def test_what_was_gone_before_its_end_was_seen_is_unknown_and_what_had_ended_is_not() -> None:
    running, _ = stored("restarted")
    found = end(running, gone=True)
    assert found is not None
    assert (found.code, found.signal, found.failure) == (None, None, "pod-deleted")
    over, _ = stored("exit-0")
    assert end(over, gone=True) == end(over)


def test_a_pod_that_is_to_end_and_runs_has_not_ended() -> None:
    pod, _ = stored("ending")
    assert pod["metadata"]["deletionTimestamp"]
    assert end(pod) is None


# ---------------------------------------------------------------- what no rig can bring about


@pytest.mark.parametrize(
    ("reason", "message", "failure"),
    [
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", "node-shutdown"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down.", "node-shutdown"),
        ("Preempting", "Preempted in order to admit critical pod", "pod-preempted"),
        ("NodeLost", "Node n which was running pod p is unresponsive", "node-lost"),
        ("Evicted", "Pod was rejected: The node had condition: [MemoryPressure]. ", "node-pressure"),
        ("Evicted", 'Container main exceeded its local ephemeral storage limit "1Gi". ', "storage-limit"),
    ],
)
def test_the_kubelets_own_reasons(reason: str, message: str, failure: str) -> None:
    """As pkg/kubelet of Kubernetes 1.34 writes them."""
    found = end(changed("sigkill", reason=reason, message=message))
    assert found is not None
    assert (found.code, found.failure) == (137, failure)
    assert message.strip().rstrip(".") in found.sentence


def test_a_node_that_refuses_a_pod_for_its_devices() -> None:
    pod = changed(
        "too-big", reason="UnexpectedAdmissionError", message="Allocate failed due to no healthy devices"
    )
    found = end(pod)
    assert found is not None
    assert found.failure == "pod-rejected"
    assert (
        "UnexpectedAdmissionError (Allocate failed due to no healthy devices); container main never started"
        in (found.sentence)
    )


def test_what_a_queue_takes_back_is_preempted() -> None:
    """As Kueue 0.14 and Volcano 1.10 write it (their sources)."""
    pod = changed("deleted")
    mark = {
        "type": "TerminationTarget",
        "status": "True",
        "reason": "WorkloadEvictedDueToPreempted",
        "message": "Preempted",
    }
    pod["status"]["conditions"] = [mark | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    found = end(pod)
    assert found is not None
    assert found.failure == "pod-preempted"
    assert "it was taken back by its queue (Preempted); " in found.sentence
    event = {"reason": "Evict", "message": "Pod is evicted, because of preempt"}
    taken = end(stored("deleted")[0], events=[event])
    assert taken is not None
    assert taken.failure == "pod-preempted"


def test_a_pod_that_runs_on_a_node_that_is_gone_ended_in_a_way_that_nobody_knows() -> None:
    pod = copy.deepcopy(stored("restarted")[0])
    pod["status"] |= {"phase": "Failed", "conditions": stored("orphaned")[0]["status"]["conditions"]}
    found = end(pod)
    assert found is not None
    assert (found.code, found.failure) == (None, "node-lost")
    assert "removed, since its node is gone; how container main ended is not known" in found.sentence


def test_exit_codes_that_a_kubelet_made_up_are_unknown() -> None:
    pod = changed("sigkill")
    last = container(pod)["state"]["terminated"]
    last |= {
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located",
        "finishedAt": None,
    }
    found = end(pod)
    assert found is not None
    assert (found.code, found.signal, found.failure) == (None, None, "container-lost")


def test_a_disruption_of_a_kind_that_is_not_known_yet_is_said_as_it_is() -> None:
    pod = changed("evicted")
    pod["status"]["conditions"][0] |= {"reason": "DeletionByDragon", "message": "breathes fire"}
    found = end(pod)
    assert found is not None
    assert found.failure == "pod-deleted"
    assert "it was ended from outside: DeletionByDragon (breathes fire); " in found.sentence


@pytest.mark.parametrize(
    "pod", [{}, {"status": None}, {"spec": 3}, {"status": {"containerStatuses": [3, {}]}}]
)
def test_what_is_no_pod_has_not_ended(pod: Json) -> None:
    assert end(pod) is None
    assert restarted(pod, 0) is None
    assert end(pod, gone=True) is not None


# ---------------------------------------------------------------- started again in its pod


def test_the_start_before_the_present_one() -> None:
    pod, _ = stored("restarted")
    before = restarted(pod, 0)
    assert before is not None
    assert (before.code, before.start, before.failure) == (6, 0, "")
    assert restarted(pod, 1) is None
    forgotten = copy.deepcopy(pod)
    container(forgotten)["lastState"] = {}
    unknown = restarted(forgotten, 0)
    assert unknown is not None
    assert (unknown.code, unknown.signal, unknown.failure) == (None, None, "container-lost")
    assert unknown.sentence.endswith("how container main ended is not known")


def test_a_container_that_waits_to_start_again_tells_of_its_newest_start_alone() -> None:
    found = ended("restarts")
    assert found.start == container(stored("restarts")[0])["restartCount"]
    assert restarted(stored("restarts")[0], 0) is None


def test_the_container_that_trains_is_the_one_with_gpus() -> None:
    gpu = {"name": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    assert main_container({"spec": {"containers": [{"name": "proxy"}, gpu]}}).get("name", "") == "train"
    assert main_container({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}).get("name", "") == "a"
    assert main_container({}).get("name", "") == ""
    pod, _ = stored("sidecar-failed")
    beside = end(pod, "sidecar")
    assert beside is not None
    assert beside.code == 9
