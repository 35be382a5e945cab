"""Pods by the owner that made them, from what the watch of pods tells."""

from typing import Any

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.jobs import Jobs
from sentinel.cluster.kubernetes.objects import Meta, Owner, Pod, PodStatus
from sentinel.cluster.kubernetes.owned_pods import GONE_S
from sentinel.cluster.kubernetes.reflector import Change, Kind
from sentinel.core.now import Now

CHANGED = Kind.CHANGED
GANG = Owner("GangJob", "gang", "u-gang", True, "example.com/v1")


class Watch:
    def __init__(self) -> None:
        self.now_s = 0.0
        client: Any = Client.__new__(Client)  # nothing is asked of it
        self.jobs = Jobs(client, lambda _: None, lambda: Now(self.now_s, self.now_s))

    def comes(self, name: str, owner: Owner | None = GANG, **labels: str) -> Pod:
        owners = () if owner is None else (owner,)
        pod = Pod(Meta(name, "lab", f"u-{name}", labels=labels, owner_references=owners))
        self.news = self.jobs.pod_changed(Change(CHANGED, "", None, pod))
        return pod

    def goes(self, pod: Pod) -> None:
        self.news = self.jobs.pod_changed(Change(CHANGED, "", pod, None))

    def found(self) -> list[str]:
        return [job.title for job in self.jobs.of("lab")]


def test_pods_of_one_owner_are_a_job_with_the_labels_that_all_of_them_have() -> None:
    watch = Watch()
    first = watch.comes("a", team="nlp", role="head", version="1")
    assert watch.news
    second = watch.comes("b", team="nlp", role="worker", version="1")
    ((job, ref),) = watch.jobs.refs("lab")
    assert (job.title, job.group, job.labels) == (
        "GangJob lab/gang",
        "example.com",
        {"team": "nlp", "version": "1"},
    )
    assert (ref.row.kind, ref.row.api_version, ref.name, ref.uid) == (
        "GangJob",
        "example.com/v1",
        "gang",
        "u-gang",
    )
    assert watch.jobs.of_pod(second.metadata).job == job
    third = watch.comes("c", team="nlp", role="worker", version="2")
    assert watch.jobs.of("lab")[0].labels == {"team": "nlp"}
    watch.goes(first)
    watch.goes(third)
    assert watch.jobs.of("lab")[0].labels == {"team": "nlp", "role": "worker", "version": "1"}
    watch.goes(second)
    assert watch.jobs.of("lab")[0].labels["team"] == "nlp", "as they were, until others come"


def test_an_owner_without_pods_is_gone_after_some_minutes() -> None:
    watch = Watch()
    watch.goes(watch.comes("a"))
    watch.now_s = GONE_S - 1
    assert not watch.jobs.forget_gone()
    watch.goes(watch.comes("b"))
    watch.now_s = 2 * GONE_S - 2
    assert not watch.jobs.forget_gone()
    assert watch.jobs.uid_known("u-gang")
    watch.now_s = 2 * GONE_S
    assert watch.jobs.forget_gone() == {"lab"}
    assert not watch.jobs.uid_known("u-gang")
    assert watch.found() == []


def test_pods_of_known_kinds_and_of_nodes_are_no_such_jobs() -> None:
    """Also where a label alone says it, or where the object of the known kind is not read yet."""
    watch = Watch()
    for owner in (
        Owner("Job", "train", "u-job", True, "batch/v1"),
        Owner("DaemonSet", "each", "u-each", True, "apps/v1"),
        Owner("Node", "n1", "u-n1", True, "v1"),
    ):
        watch.comes(f"of-{owner.name}", owner)
    watch.comes("labelled", **{"leaderworkerset.sigs.k8s.io/name": "train"})
    watch.comes("kubedl", **{"job-name": "train", "group-name": "training.kubedl.io"})
    assert watch.found() == []
    assert not watch.news
    watch.comes("like-kubedl", **{"job-name": "train"})
    assert watch.found() == ["GangJob lab/gang"]


def test_pods_that_nobody_made_are_listed_until_they_have_ended() -> None:
    watch = Watch()
    one = watch.comes("one", None, team="nlp")
    watch.comes("two", None)
    assert next((pod.title, pod.labels) for pod in watch.jobs.alone("lab")) == (
        "Pod lab/one",
        {"team": "nlp"},
    )
    ended = Pod(one.metadata, status=PodStatus(phase="Succeeded"))
    assert watch.jobs.pod_changed(Change(CHANGED, "", one, ended))
    assert [pod.title for pod in watch.jobs.alone("lab")] == ["Pod lab/two"]
    assert watch.found() == []


def test_a_pod_that_is_adopted_goes_over_to_its_owner() -> None:
    watch = Watch()
    before = watch.comes("a", None)
    meta = Meta("a", "lab", "u-a", owner_references=(GANG,))
    assert watch.jobs.pod_changed(Change(CHANGED, "", before, Pod(meta)))
    assert not watch.jobs.alone("lab")
    assert watch.found() == ["GangJob lab/gang"]
