"""`sentinel uninstall` and jobs: those that Sentinel had stopped run again, and those that run are left alone."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sentinel.core.model import JobState
from tests.kubernetes.conftest import NAMESPACE, rank, undriven
from tests.kubernetes.jobs_site import JobSite
from tests.kubernetes.people import Person, bind
from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, names, plane, site
from tests.kubernetes.test_uninstall import defined, definition, recorded, remover

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane

__all__ = ["kwok", "plane", "site"]

STOPPED, KEPT_OFF = "sentinel.dev/stopped", "sentinel.dev/kept-off"
WORKLOADS = definition("kueue.x-k8s.io", "v1beta1", "Workload")


@pytest.fixture
def person(plane: "ControlPlane") -> Person:
    return remover(plane)


def blind(plane: "ControlPlane", name: str) -> str:
    """A kubeconfig of who has all rights that it takes, but for seeing batch Jobs."""
    bind(plane, f"{name}-reads", "sentinel-reader", to=name)
    role = plane.admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/sentinel-controller")
    rules = [one for one in role["rules"] if one["apiGroups"] != ["batch"]]
    rbac = "rbac.authorization.k8s.io"
    leads = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "sentinel-controller"},
        "subjects": [{"kind": "User", "name": name, "apiGroup": rbac}],
    }
    plane.admin.apply([{**role, "metadata": {"name": f"{name}-role"}, "rules": rules}, leads])
    return bind(plane, name, f"{name}-role")


def notes(job: "Object") -> "dict[str, str]":
    return job["metadata"].get("annotations", {})


def named(name: str, count: int, **more: "Object") -> "Object":
    job = gang(count, gpus=1)
    job["metadata"] |= {"name": name, **more}
    return job


def test_a_stopped_job_runs_again_and_a_new_installation_goes_on_with_it(
    site: JobSite, person: Person
) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2}, precheck={"checks": ["gpu"]})
    path = site.create(gang(3))
    site.until(site.state("running"))
    node, pod = site.pods()[0]["spec"]["nodeName"], names(site.pods())[0]
    site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    site.kwok.end_pod(site.space, pod, 1)
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    end(controller)
    site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    assert site.admin.get(path)["spec"]["suspend"] is True

    checked = person.says("uninstall", "--check")
    assert checked.returncode == 1, checked.stderr
    assert f"Job {site.space}/train: stopped by Sentinel, and was to go on.\n" in checked.stdout
    assert "ProtectedJob 1, Incident 1" in checked.stdout
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Job {site.space}/train: started again.\n" in done.stdout
    site.until(lambda: len(site.pods()) == 3)
    job = site.admin.get(path)
    assert STOPPED not in notes(job)
    assert [notes(one)["sentinel.dev/resume"] for one in site.pods()] == ["1", "1", "1"]
    assert [notes(one)["sentinel.dev/restarts"] for one in site.pods()] == ["1", "1", "1"]

    before = names(site.pods())
    second = led(site, "two")
    # By what its leader sees first: that it runs, or that there is room for it.
    site.until(lambda: site.phases()[-1] in ("Cancelled", "Recovered"))
    assert site.incidents()[-1]["reason"] in ("ResumedByOthers", "Recovered")
    site.until(site.state("running"))
    assert names(site.pods()) == before, "it was not started once more"
    end(second)


def test_a_job_that_runs_is_left_alone_and_one_that_waits_for_sentinel_is_told(
    site: JobSite, person: Person
) -> None:
    owners = {"sentinel.dev/owner": "me@example.com", "sentinel.dev/precheck": "true"}
    runs = site.create(named("runs", 1, annotations={KEPT_OFF: "train-9", **owners}))
    others = site.create(named("others", 1, annotations=owners))
    waits = named("waits", 1, annotations={"sentinel.dev/precheck": "true"})
    waits["spec"]["suspend"] = True
    asleep = named("asleep", 1)
    asleep["spec"]["suspend"] = True
    suspended = [site.create(waits), site.create(asleep)]
    site.until(lambda: len(site.pods()) == 2)
    before, pods = [site.admin.get(one) for one in (runs, others)], names(site.pods())
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    told = [line for line in done.stdout.splitlines() if site.space in line]
    assert told == [
        f"Job {site.space}/waits: It stays suspended: its owner has left its start to Sentinel, and must start it.",
        f"With annotations of Sentinel, which go when they end: Job {site.space}/runs.",
    ]
    assert names(site.pods()) == pods
    for old, path in zip(before, (runs, others), strict=True):
        now = site.admin.get(path)
        assert (now["spec"], notes(now)) == (old["spec"], notes(old))
    assert all(site.admin.get(path)["spec"]["suspend"] for path in suspended)


def test_a_mark_that_is_left_on_a_job_that_runs_goes_without_a_restart(site: JobSite, person: Person) -> None:
    """A later stop by somebody else would look like Sentinel's."""
    path = site.create(named("runs", 1, annotations={STOPPED: "x/job.batch/runs:1"}))
    site.until(lambda: len(site.pods()) == 1)
    pods = names(site.pods())
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Job {site.space}/runs: not stopped any more; its mark was removed.\n" in done.stdout
    assert STOPPED not in notes(site.admin.get(path))
    assert names(site.pods()) == pods


def test_a_job_whose_pods_are_left_is_named_with_the_reason_and_started_later(
    plane: "ControlPlane", site: JobSite, person: Person
) -> None:
    job = undriven(site.space)
    job["spec"]["suspend"] = True
    job["metadata"]["annotations"] = {STOPPED: recorded(plane, f"{site.space}/job.batch/llama")}
    path = site.create(job)
    pod = rank("llama-0", site.space, "", site.admin.get(path)["metadata"]["uid"])
    pod["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "llama"}
    pod["spec"]["nodeSelector"] = {"example.com/none": "1"}
    site.admin.create(pod)
    done = person.says("uninstall")
    assert done.returncode == 1
    assert f"Job {site.space}/llama: not started: pods are left: llama-0.\n" in done.stderr
    assert "Nothing is left" not in done.stdout
    assert STOPPED in notes(site.admin.get(path))
    site.admin.delete(site.admin.path_of(pod), gracePeriodSeconds=0)
    assert person.says("uninstall").returncode == 0
    assert site.admin.get(path)["spec"]["suspend"] is False


@contextlib.contextmanager
def kueue(plane: "ControlPlane", site: JobSite) -> Iterator[str]:
    """Its Workloads are served: the path of those of the namespace."""
    path = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{site.space}/workloads"
    defined(plane, WORKLOADS, path)
    try:
        yield path
    finally:
        plane.admin.delete(plane.admin.path_of(WORKLOADS))
        site.until(lambda: not site.found("/apis/kueue.x-k8s.io"))


def queued(site: JobSite, *, suspended: bool = True) -> str:
    """The path of a job in Kueue's queue."""
    job = named("queued", 1, labels={"kueue.x-k8s.io/queue-name": "gpus"})
    job["spec"]["suspend"] = suspended
    return site.create(job)


def create_workload(site: JobSite, job: "Object", mark: str, *, active: bool, uid: str = "") -> None:
    """`uid`: of a job that is not there, in the place of this one."""
    meta = job["metadata"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    site.admin.create(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {
                "name": f"job-{meta['name']}",
                "namespace": site.space,
                "labels": {"kueue.x-k8s.io/job-uid": uid or meta["uid"]},
                "annotations": {STOPPED: mark},
                **({} if uid else {"ownerReferences": [owner]}),
            },
            "spec": {"active": active, "queueName": "gpus"},
        }
    )


@pytest.mark.parametrize("known", [True, False], ids=["a Job", "a kind that only Kueue knows"])
def test_a_job_in_kueues_queue_is_started_by_its_workload(
    plane: "ControlPlane", site: JobSite, person: Person, known: bool
) -> None:
    with kueue(plane, site) as workloads:
        path = queued(site)
        mark = recorded(plane, f"{site.space}/job.batch/queued")
        create_workload(site, site.admin.get(path), mark, active=False, uid="" if known else "some-uid")
        title = f"Job {site.space}/queued" if known else f"Workload {site.space}/job-queued"
        checked = person.says("uninstall", "--check").stdout
        assert f"{title}: stopped by Sentinel, and was to go on.\n" in checked
        done = person.says("uninstall")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{title}: started again.\n" in done.stdout
        workload = site.admin.get(f"{workloads}/job-queued")
        assert workload["spec"]["active"] is True
        assert STOPPED not in notes(workload)
        assert site.admin.get(path)["spec"]["suspend"] is True, "Kueue admits it when its turn comes"


@pytest.mark.parametrize("suspended", [True, False])
def test_the_mark_on_a_workload_that_a_person_has_switched_on_again_goes(
    plane: "ControlPlane", site: JobSite, person: Person, suspended: bool
) -> None:
    with kueue(plane, site) as workloads:
        path = queued(site, suspended=suspended)
        mark = recorded(plane, f"{site.space}/job.batch/queued")
        create_workload(site, site.admin.get(path), mark, active=True)
        title = f"Job {site.space}/queued"
        checked = person.says("uninstall", "--check")
        assert (checked.returncode, checked.stderr) == (1, "")
        assert f"{title}: bears the mark of a stop.\n" in checked.stdout
        done = person.says("uninstall")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{title}: not stopped any more; its mark was removed.\n" in done.stdout
        assert STOPPED not in notes(site.admin.get(f"{workloads}/job-queued"))
        assert site.admin.get(path)["spec"]["suspend"] is suspended
        assert person.says("uninstall", "--check").returncode == 0


def test_a_job_whose_kind_could_not_be_listed_is_not_started_by_its_workload(
    plane: "ControlPlane", site: JobSite, person: Person
) -> None:
    """Nobody has looked whether its pods have ended."""
    with kueue(plane, site) as workloads:
        job = site.admin.get(queued(site))
        create_workload(site, job, recorded(plane, f"{site.space}/job.batch/queued"), active=False)
        done = Person(plane, "un-blind", blind(plane, "un-blind")).says("uninstall")
        assert done.returncode == 77
        assert f"Workload {site.space}/job-queued: its job could not be listed\n" in done.stderr
        assert "jobs.batch could not be listed: " in done.stderr
        assert site.admin.get(f"{workloads}/job-queued")["spec"]["active"] is False
        assert person.says("uninstall").returncode == 0
        assert site.admin.get(f"{workloads}/job-queued")["spec"]["active"] is True


def test_a_copy_of_a_stopped_job_is_not_started(plane: "ControlPlane", site: JobSite, person: Person) -> None:
    """`kubectl get -o yaml`, another name, `kubectl apply`: the mark came along."""
    mark = recorded(plane, f"{site.space}/job.batch/llama")
    paths = []
    for name in ("llama", "copy"):
        job = undriven(site.space)
        job["metadata"] |= {"name": name, "annotations": {STOPPED: mark}}
        job["spec"]["suspend"] = True
        paths.append(site.create(job))
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Job {site.space}/copy: It stays stopped: its mark is that of {mark}.\n" in done.stdout
    assert [site.admin.get(path)["spec"]["suspend"] for path in paths] == [False, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", "enough"),
        ("cancel", "wrong data"),
        ("order", '{"id": "x", "kind": "stop", "seen_wall_s": 1}'),
    ],
)
def test_a_job_that_a_person_has_ordered_to_end_is_not_started(
    plane: "ControlPlane", site: JobSite, person: Person, name: str, value: str
) -> None:
    """`sentinel stop` while nobody led: nobody has followed it yet."""
    job = undriven(site.space)
    job["spec"]["suspend"] = True
    job["metadata"]["annotations"] = {STOPPED: recorded(plane, f"{site.space}/job.batch/llama")}
    path = site.create(job)
    record = f"/apis/sentinel.dev/v1alpha1/namespaces/{site.space}/protectedjobs/llama.job.batch"
    plane.admin.patch(record, {"metadata": {"annotations": {f"sentinel.dev/{name}": value}}})
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    kind = "cancel" if name == "cancel" else "stop"
    assert f"Job {site.space}/llama: It stays stopped: a person has ordered: {kind}.\n" in done.stdout
    assert site.admin.get(path)["spec"]["suspend"] is True


def test_a_job_that_a_person_stopped_or_that_was_given_up_stays_stopped(
    site: JobSite, person: Person
) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    path = site.create(gang(2))
    site.until(site.state("running"))
    site.order("stop", "enough")
    site.until(site.state("stopped"))
    site.until(lambda: not site.pods())
    end(controller)
    assert site.admin.get(path)["spec"]["suspend"] is True
    checked = person.says("uninstall", "--check")
    assert f"Job {site.space}/train: It stays stopped: it is stopped.\n" in checked.stdout
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert site.admin.get(path)["spec"]["suspend"] is True


@pytest.mark.parametrize("state", [JobState.ERROR, JobState.EXPIRED, None])
def test_a_job_that_was_not_to_go_on_is_not_started(
    plane: "ControlPlane", site: JobSite, person: Person, state: JobState | None
) -> None:
    """None: its record is gone."""
    job = f"{site.space}/job.batch/llama"
    given = undriven(site.space)
    given["spec"]["suspend"] = True
    given["metadata"]["annotations"] = {STOPPED: recorded(plane, job, state) if state else f"{job}:1"}
    path = site.create(given)
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    why = f"it is {state.value}" if state else "its record is gone, and nobody knows whether it was to go on"
    assert f"Job {site.space}/llama: It stays stopped: {why}.\n" in done.stdout
    assert site.admin.get(path)["spec"]["suspend"] is True
