"""Why a pod is not up, and whether waiting helps: what real pods printed, one by one and a whole job at once."""

import copy
from typing import Any

import pytest

from sentinel.core.job.pod_wait import Reason, Wait, explain, needs_events, shortened, waits
from sentinel.core.triage.verdict import AGREED
from tests.core.pod_shapes import ENDS, UP, WAITS, stored

Json = dict[str, Any]
FOR_EVENTS = {name for name, what in WAITS.items() if what.reason in (Reason.VOLUME, Reason.SANDBOX)}


def read(name: str) -> Wait:
    found = waits(*stored(name))
    assert found is not None
    return found


@pytest.mark.parametrize("name", WAITS)
def test_a_pod_tells_what_it_waits_for(name: str) -> None:
    found = read(name)
    assert WAITS[name].fits(found), found
    assert found.sentence == f"Pod research/{name} is not up: {found.what}."
    assert not found.failure or found.failure in AGREED
    assert len(found.sentence) < 400
    assert found.sentence.isprintable()


@pytest.mark.parametrize("name", [*UP, *(name for name in ENDS if name not in WAITS)])
def test_what_runs_or_has_ended_waits_for_nothing(name: str) -> None:
    assert waits(*stored(name)) is None


def test_only_those_whose_state_does_not_say_it_need_events() -> None:
    need = {name for name in WAITS if needs_events(stored(name)[0])}
    assert need >= FOR_EVENTS
    assert not need & {"no-config-map", "no-gpus", "gated", "init-runs", "restarts", "ending"}
    without = waits(stored("no-runtime")[0])
    assert without is not None
    assert (without.reason, without.what) == (Reason.CREATING, "node pods-0 makes its containers")


def test_the_newest_event_says_what_it_waits_for_now() -> None:
    pod, events = stored("volume-no-config-map")
    mounted = {
        "reason": "Pulling",
        "message": 'Pulling image "train:1"',
        "lastTimestamp": "2027-01-01T00:00:00Z",
    }
    found = waits(pod, [*events, mounted])
    assert found is not None
    assert (found.reason, found.what) == (Reason.PULLING, "the image train:1 is being pulled")


def test_an_older_kubelet_tells_in_an_event_alone_why_it_cannot_pull() -> None:
    pod, events = copy.deepcopy(stored("no-image"))
    (status,) = pod["status"]["containerStatuses"]
    status["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x/y:1"'}}
    found = waits(pod, events)
    assert found is not None
    assert found.hopeless
    assert found.what.endswith(" cannot be pulled: not found")
    silent = waits(pod)
    assert silent is not None
    assert not silent.hopeless
    assert silent.what.endswith(" cannot be pulled")


def test_a_registry_that_has_too_much_to_do_may_have_time_later() -> None:
    pod = copy.deepcopy(stored("no-image")[0])
    (status,) = pod["status"]["containerStatuses"]
    status["state"]["waiting"]["message"] = "429 Too Many Requests - toomanyrequests: rate limit"
    found = waits(pod)
    assert found is not None
    assert not found.hopeless


@pytest.mark.parametrize(
    "said",
    [
        "driver name csi.example.com not found in the list of registered CSI drivers",
        "dial unix /csi/csi.sock: connect: no such file or directory",
    ],
)
def test_a_driver_of_volumes_that_its_node_does_not_know_yet_may_come(said: str) -> None:
    pod, events = copy.deepcopy(stored("volume-no-secret"))
    message = f'MountVolume.NewMounter initialization failed for volume "pvc-1" : {said}'
    found = waits(pod, [events[0] | {"reason": "FailedMount", "message": message}])
    assert found is not None
    assert not found.hopeless
    assert found.what == f"volume pvc-1 cannot be mounted: {said}"


def test_the_schedulers_message_is_cut_to_what_counts() -> None:
    said = (
        "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint "
        "{node.kubernetes.io/unreachable: }. no new claims to deallocate, preemption: 0/5 nodes are available: "
        "5 Preemption is not helpful for scheduling."
    )
    assert shortened(said) == (
        "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint "
        "{node.kubernetes.io/unreachable: }"
    )
    assert len(shortened("x" * 10_000)) < 300


def test_a_pod_for_which_others_are_preempted_waits_for_them() -> None:
    pod = copy.deepcopy(stored("no-gpus")[0])
    pod["status"]["nominatedNodeName"] = "n7"
    found = waits(pod)
    assert found is not None
    assert found.what == "it waits for pods of lower priority to leave node n7"


def test_a_pod_of_a_node_that_is_gone() -> None:
    pod, events = stored("not-ready")
    found = waits(pod, events, nodes={"pods-7"})
    assert found is not None
    assert (found.reason, found.hopeless, found.failure) == (Reason.NODE_GONE, True, "node-lost")
    silent = {
        "reason": "NodeNotReady",
        "message": "Node is not ready",
        "lastTimestamp": "2027-01-01T00:00:00Z",
    }
    starting, _ = stored("volume-no-secret")
    unheard = waits(starting, [silent])
    assert unheard is not None
    assert unheard.what == "its node pods-0 does not answer"


def test_an_init_container_that_runs_beside_the_others_is_not_waited_for() -> None:
    pod = copy.deepcopy(stored("init-runs")[0])
    pod["spec"]["initContainers"][1]["restartPolicy"] = "Always"
    found = waits(pod)
    assert found is not None
    assert found.reason is Reason.CREATING


EMPTY: list[Json] = [{}, {"status": None}, {"spec": 3}]


@pytest.mark.parametrize("pod", [*EMPTY, {"spec": {"nodeName": "n"}, "status": {"containerStatuses": [{}]}}])
def test_what_is_no_pod_is_read_without_an_error(pod: Json) -> None:
    waits(pod, [{}, {"reason": 3}])


# ---------------------------------------------------------------- a whole job


def job(*names: str) -> str:
    pods, events = [], {}
    for number, name in enumerate(names):
        pod, said = copy.deepcopy(stored(name))
        pod["metadata"]["uid"] = f"u-{number}"
        pods.append(pod)
        events[f"u-{number}"] = said
    return explain(pods, events)


def test_a_job_is_explained_by_its_reasons_those_first_for_which_waiting_does_not_help() -> None:
    said = job(*["no-gpus"] * 3, "restarted", "restarted", "no-config-map", "init-runs", "restarted")
    assert said == (
        '5 of 8 pods are not up: container main cannot be made: configmap "missing" not found (1 pod); '
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector "
        "(3 pods); init container prepare runs (1 pod)."
    )


def test_what_waiting_may_help_comes_after_what_it_will_not() -> None:
    said = job("no-registry", "no-registry", "no-claim")
    assert said.index("persistentvolumeclaim") < said.index("registry.invalid")


def test_one_reason_needs_no_count() -> None:
    assert job("no-image-here", "no-image-here") == (
        '2 of 2 pods are not up: the image rig/missing:1 cannot be pulled: Container image "rig/missing:1" is not '
        "present with pull policy of Never."
    )
    assert job("restarted") == ""


def test_what_differs_from_try_to_try_is_one_reason() -> None:
    pod = stored("no-registry")[0]
    other = copy.deepcopy(pod)
    (status,) = other["status"]["containerStatuses"]
    waiting = status["state"]["waiting"]
    waiting["message"] = waiting["message"].replace("->", "7->")
    assert explain([pod, other], {}).count("cannot be pulled") == 1


def test_many_reasons_are_not_all_told() -> None:
    said = job(*WAITS)
    assert said.startswith(f"{len(WAITS)} of {len(WAITS)} pods are not up: the image ")
    assert "; other reasons (" in said
    assert said.count(" pod") < 10
