"""How real pods end, and what they wait for: what is to be read from each of tests/core/pods, and from a live cluster.

The objects in tests/core/pods are as an API server 1.34.4 printed them (kubelet 1.34.4, containerd 1.6.20, runc 1.1.5,
cgroup v1), without managed fields, addresses, hashes and what the spec has by default. They were made, ended and
written by `python -m tests.kubernetes.pod_stories tests/core/pods`; tests/kubernetes/test_pods.py does the same again.
"""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.core.job.pod_end import PodEnd, end
from sentinel.core.job.pod_wait import Reason, Wait, waits

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "pods"


class Ends(NamedTuple):
    code: int | None
    signal: int | None
    failure: str  # "host-oom": by the kernel's word, which is no class of the pod's
    words: str

    def fits(self, found: PodEnd | None) -> bool:
        if found is None:
            return False
        failure = "host-oom" if found.oom_killed else found.failure
        return self[:3] == (found.code, found.signal, failure) and self.words in found.sentence


ENDS = {
    "exit-0": Ends(0, None, "", "container main ended with exit code 0 at 2"),
    "exit-3": Ends(3, None, "", "container main ended with exit code 3 at 2"),
    "sigkill": Ends(137, 9, "", "container main was killed by signal 9 (exit code 137)"),
    "shell-137": Ends(137, 9, "", "container main was killed by signal 9 (exit code 137)"),
    "sigsegv": Ends(139, 11, "", "container main was killed by signal 11 (exit code 139)"),
    "oom": Ends(137, 9, "host-oom", "container main was OOM killed (exit code 137)"),
    "oom-worker": Ends(1, None, "host-oom", "container main was OOM killed (exit code 1)"),
    "oom-worker-0": Ends(0, None, "", "container main ended with exit code 0"),
    "sidecar-runs": Ends(5, None, "", "container main ended with exit code 5"),
    "init-failed": Ends(7, None, "init-failed", "init container prepare ended with exit code 7"),
    "init-oom": Ends(137, 9, "host-oom", "init container prepare was OOM killed (exit code 137)"),
    "no-command": Ends(128, None, "not-found", 'could not be started (exec: "/bin/train": stat'),
    "deadline": Ends(137, 9, "pod-deadline", "it was ended by its own activeDeadlineSeconds"),
    "not-started": Ends(137, 9, "probe-failed", "container main was killed by signal 9"),
    "evicted": Ends(
        137, 9, "pod-evicted", "it was evicted through the API; container main was killed by signal 9"
    ),
    "evicted-saves": Ends(
        0, None, "pod-evicted", "evicted through the API; container main ended with exit code 0"
    ),
    "deleted": Ends(137, 9, "pod-deleted", "it was deleted; container main was killed by signal 9"),
    "deleted-saves": Ends(0, None, "pod-deleted", "it was deleted; container main ended with exit code 0"),
    "preempted": Ends(137, 9, "pod-preempted", "it was preempted by pod research"),
    "tainted": Ends(
        137, 9, "taint-eviction", "it was evicted by a NoExecute taint of its node; container main"
    ),
    "pressed": Ends(137, 9, "node-pressure", "evicted by the kubelet (The node was low on resource: memory."),
    "rebooted": Ends(None, None, "container-lost", "how container main ended is not known"),
    "orphaned": Ends(
        None, None, "node-lost", "removed, since its node is gone; container main never started"
    ),
    "empty-dir-full": Ends(
        137, 9, "storage-limit", 'Usage of EmptyDir volume "data" exceeds the limit "1Mi")'
    ),
    "too-big": Ends(None, None, "pod-rejected", "it was refused by its node: OutOfcpu ("),
    "wrong-node": Ends(None, None, "pod-rejected", "it was refused by its node: NodeAffinity ("),
    # The kubelet starts these again.
    "restarts": Ends(4, None, "", "container main ended with exit code 4"),
    "restarts-oom": Ends(128, None, "host-oom", "container init was OOM-killed"),
    "ends-well-again": Ends(0, None, "", "container main ended with exit code 0"),
    "not-alive": Ends(137, 9, "probe-failed", "container main was killed by signal 9"),
    "no-command-again": Ends(128, None, "not-found", 'could not be started (exec: "/bin/train": stat'),
}
COME_BACK = ("restarts", "restarts-oom", "ends-well-again", "not-alive", "no-command-again")


class Waits(NamedTuple):
    reason: Reason
    hopeless: bool
    what: str

    def fits(self, found: Wait | None) -> bool:
        return found is not None and self[:2] == (found.reason, found.hopeless) and self.what in found.what


_NO_IMAGE = "the image 127.0.0.1:5999"
WAITS = {
    "no-image": Waits(Reason.IMAGE, True, f"{_NO_IMAGE}/team/missing:1 cannot be pulled: not found"),
    "no-permission": Waits(Reason.IMAGE, True, f"{_NO_IMAGE}/secret/train:1 cannot be pulled: "),
    "no-registry": Waits(
        Reason.IMAGE, False, "the image registry.invalid/team/train:1 cannot be pulled: failed to do"
    ),
    "no-image-here": Waits(Reason.IMAGE, True, "the image rig/missing:1 cannot be pulled: Container image"),
    "bad-image-name": Waits(
        Reason.IMAGE, True, "the image Not/An Image cannot be pulled: Failed to apply default"
    ),
    "no-config-map": Waits(
        Reason.CONFIG, True, 'container main cannot be made: configmap "missing" not found'
    ),
    "no-secret-all": Waits(Reason.CONFIG, True, 'container main cannot be made: secret "missing" not found'),
    "no-key": Waits(
        Reason.CONFIG, True, "container main cannot be made: couldn't find key lr in ConfigMap research"
    ),
    "volume-no-config-map": Waits(
        Reason.VOLUME, True, 'volume data cannot be mounted: configmap "missing" not found'
    ),
    "volume-no-secret": Waits(
        Reason.VOLUME, True, 'volume data cannot be mounted: secret "missing" not found'
    ),
    "volume-no-folder": Waits(
        Reason.VOLUME,
        True,
        "volume data cannot be mounted: hostPath type check failed: /no/such/folder is not a",
    ),
    "volume-no-server": Waits(Reason.VOLUME, False, "volume data cannot be mounted: mount: "),
    "no-runtime": Waits(
        Reason.SANDBOX, False, 'cannot make its sandbox: failed to get sandbox runtime: no runtime for "none"'
    ),
    "no-claim": Waits(
        Reason.UNSCHEDULABLE, True, ' nodes are available: persistentvolumeclaim "missing" not found'
    ),
    "no-gpus": Waits(Reason.UNSCHEDULABLE, False, " nodes are available: 1 Insufficient nvidia.com/gpu, "),
    "gated": Waits(
        Reason.GATED, False, "held back by scheduling gate example.com/quota, example.com/topology"
    ),
    "no-scheduler": Waits(Reason.PENDING, False, "scheduler nobody has not looked at it yet"),
    "init-runs": Waits(Reason.INIT, False, "init container prepare runs"),
    "init-loops": Waits(
        Reason.CRASH_LOOP, False, "init container prepare ends again and again, the last time with"
    ),
    "not-ready": Waits(Reason.NOT_READY, False, "container main runs, and its readiness probe does not pass"),
    "ending": Waits(Reason.ENDING, False, "it is being deleted"),
    "restarts": Waits(
        Reason.CRASH_LOOP, False, "container main ends again and again, the last time with exit code 4"
    ),
    "ends-well-again": Waits(
        Reason.CRASH_LOOP, False, "container main ends again and again, the last time with exit code 0"
    ),
    "not-alive": Waits(Reason.CRASH_LOOP, False, "ends again and again, the last time with exit code 137"),
    "no-command-again": Waits(Reason.CRASH_LOOP, True, 'the last time not started: exec: "/bin/train": stat'),
    "restarts-oom": Waits(
        Reason.CRASH_LOOP, True, "the last time not started: container init was OOM-killed"
    ),
}
UP = ("restarted", "sidecar-failed")


def stored(name: str) -> tuple[Json, list[Json]]:
    """A pod and its events."""
    found = _stored(name)
    return found["pod"], found["events"]


@cache
def _stored(name: str) -> Json:
    read: Json = json.loads((FOLDER / f"{name}.json").read_text())
    return read


def told(name: str, pod: Json, events: list[Json]) -> bool:
    """Is all read from it that is to be read?"""
    ends = name not in ENDS or ENDS[name].fits(end(pod, events=events))
    return ends and (name not in WAITS or WAITS[name].fits(waits(pod, events)))


def ended(name: str) -> PodEnd:
    pod, events = stored(name)
    found = end(pod, events=events)
    assert found is not None
    return found


def changed(name: str, **status: Any) -> Json:
    pod = copy.deepcopy(stored(name)[0])
    pod["status"] |= status
    return pod


def container(pod: Json) -> Json:
    found: Json = pod["status"]["containerStatuses"][0]
    return found
