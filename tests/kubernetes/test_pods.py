"""Pods of a real cluster that end, and that do not come up: what is read from each of them, and from its events."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.pod_events import MAX_PODS, PodEvents
from sentinel.core.job.pod_end import PodEnd, end, restarted
from sentinel.core.job.pod_wait import explain, needs_events, waits
from tests.core.pod_shapes import COME_BACK, ENDS, UP, WAITS, told
from tests.gate.rights import needs_root
from tests.kubernetes.conftest import run
from tests.kubernetes.pod_stories import MADE, RUNNING, Stories
from tests.kubernetes.proxy import Fault, Proxy

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane

HERE = [name for name in (*MADE, *RUNNING, "orphaned") if name in ENDS or name in WAITS]


@pytest.fixture(scope="module")
@needs_root
def stories(installed: "ControlPlane") -> Iterator[Stories]:
    made = Stories(installed)
    made.begin()
    made.act()
    yield made
    made.close()


def test_every_way_to_end_or_to_wait_is_tried_here() -> None:
    assert {*HERE, "tainted", "pressed", "rebooted"} == {*ENDS, *WAITS}


@pytest.mark.parametrize("name", HERE)
def test_a_real_pod_tells_how_it_ended_or_what_it_waits_for(stories: Stories, name: str) -> None:
    def known(pod: "Object") -> bool:
        return told(name, pod, stories.events(name)) or unseen(name, end(pod)) or untold(name, pod)

    stories.until(name, known)


def untold(name: str, pod: "Object") -> bool:
    """A busy containerd may hear of the kernel's killing after it has told the kubelet of the end."""
    code, where = {
        "oom": (137, "containerStatuses"),
        "oom-worker": (1, "containerStatuses"),
        "init-oom": (137, "initContainerStatuses"),
    }.get(name, (0, ""))
    ends = [one["state"].get("terminated", {}) for one in pod["status"].get(where, [])]
    return [(one.get("reason"), one.get("exitCode")) for one in ends] == [("Error", code)]


def unseen(name: str, found: PodEnd | None) -> bool:
    """A busy kubelet loses sight of a container that it evicts: its code is not known then, and all else is."""
    return name in ("empty-dir-full", "pressed") and ENDS[name]._replace(code=None, signal=None).fits(found)


@pytest.mark.parametrize("name", UP)
def test_a_pod_that_runs_has_not_ended_and_waits_for_nothing(stories: Stories, name: str) -> None:
    pod = stories.until(name, lambda pod: pod["status"]["phase"] == "Running" and not waits(pod))
    assert end(pod) is None


def test_what_the_kubelet_started_again_in_its_pod_is_seen(stories: Stories) -> None:
    def told_of(pod: "Object") -> bool:
        before = restarted(pod, 0)
        return before is not None and (before.code, before.start, before.failure) == (6, 0, "")

    assert restarted(stories.until("restarted", told_of), 1) is None


@pytest.mark.parametrize(
    ("name", "act"), [("tainted", "taint"), ("pressed", "press"), ("rebooted", "reboot")]
)
def test_what_a_node_does_to_a_pod_is_told(stories: Stories, name: str, act: str) -> None:
    pod = getattr(stories, act)()
    found = end(pod)
    assert ENDS[name].fits(found) or unseen(name, found), found


def test_a_pod_that_is_gone_at_once_has_ended_in_a_way_that_nobody_knows(stories: Stories) -> None:
    last = stories.on_second("forced")
    assert end(last) is None
    stories.let_go("forced")
    found = end(last, gone=True)
    assert found is not None
    assert (found.code, found.signal, found.failure) == (None, None, "pod-deleted")
    assert found.sentence.endswith("it was deleted; how container main ended is not known")


# ---------------------------------------------------------------- events, as the controller's account


def test_the_controller_reads_events_of_the_pods_that_need_them(stories: Stories, controller: str) -> None:
    names = ("volume-no-config-map", "no-runtime", "exit-0", "no-gpus")

    def looked() -> "list[Object]":
        return [stories.now(name) for name in names]

    async def asks() -> None:
        async with await Client.connect(controller) as client:
            found = await PodEvents(client).why(looked())
            assert len(found) == 2
            said = explain(looked(), found)
            assert said.startswith("3 of 4 pods are not up: volume data cannot be mounted: configmap")
            preempted = stories.now("preempted")
            (events,) = (await PodEvents(client).of([preempted])).values()
            ended = end(preempted, events=events)
            assert ended is not None
            assert f"it was preempted by pod {stories.space}/preempts; " in ended.sentence

    for name in names[:2]:
        stories.until(name, lambda pod, name=name: told(name, pod, stories.events(name)))
    run(asks())


def test_of_many_pods_few_are_asked_for_and_a_refusal_is_logged(
    stories: Stories, controller: str, behind_proxy: str, proxy: Proxy
) -> None:
    pod = stories.until("volume-no-config-map", needs_events)
    many = [pod | {"metadata": pod["metadata"] | {"uid": f"u-{n}"}} for n in range(100)]

    async def asks() -> None:
        async with await Client.connect(behind_proxy) as client:
            assert await PodEvents(client).why(many) == {}
            assert len([line for line in proxy.seen if "/events?" in line]) == MAX_PODS
            proxy.faults.append(Fault(path="/events", answer=403))
            assert await PodEvents(client).of([pod]) == {}

    with capture_logs() as logs:
        run(asks())
    assert [line["event"] for line in logs] == ["events_not_read"]


@pytest.mark.parametrize("name", COME_BACK)
def test_a_container_that_comes_back_says_so(stories: Stories, name: str) -> None:
    pod = stories.until(name, lambda pod: end(pod) is not None)
    found = end(pod)
    assert found is not None
    assert found.comes_back
