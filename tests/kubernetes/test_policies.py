"""JobPolicies at a real API server: judged, told, and what follows for the pods of jobs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Superseded
from sentinel.cluster.kubernetes.pods import Pods
from sentinel.cluster.kubernetes.policies import Policies
from sentinel.cluster.kubernetes.reflector import Pace
from sentinel.controller.daemon.judging import judge
from sentinel.core.fleet.model import PodPicture
from sentinel.metrics.registry import Metrics
from sentinel.settings import Caps, Settings
from sentinel.util.clock import system_now
from sentinel.util.documents import time_text
from sentinel.util.errors import TemporaryError
from tests.kubernetes.conftest import run, space_of
from tests.kubernetes.test_crds_served import table_of
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

SETTINGS = Settings(caps=Caps(max_resumes=7))
HEAD = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy"}
CONTAINERS = [{"name": "c", "image": "none"}]
SPEC = {"managedBy": "example.com/nobody"}  # no controller makes or deletes pods of these jobs
SOON = Pace(absent_s=0.5, backoff_s=(0.1, 0.5))


@pytest.fixture
def space(installed: "ControlPlane") -> Iterator[str]:
    with space_of(installed, "policies") as made:
        installed.node(f"node-of-{made}")
        yield made
        installed.admin.delete(f"/api/v1/nodes/node-of-{made}")


def policy(admin: "Api", space: str, name: str, **spec: Any) -> None:
    admin.create({**HEAD, "metadata": {"name": name, "namespace": space}, "spec": spec})


def path(space: str, name: str) -> str:
    return f"/apis/sentinel.dev/v1alpha1/namespaces/{space}/jobpolicies/{name}"


def said(admin: "Api", space: str, name: str, kind: str = "Accepted") -> tuple[str, str, str, int]:
    """Status, reason, message and the generation of which it is said."""
    for one in admin.get(path(space, name)).get("status", {}).get("conditions", []):
        if one["type"] == kind:
            return one["status"], one["reason"], one["message"], one["observedGeneration"]
    return "", "", "", 0


def version(admin: "Api", space: str, name: str) -> str:
    return str(admin.get(path(space, name))["metadata"]["resourceVersion"])


@contextlib.asynccontextmanager
async def leading(config: str, epoch: int) -> AsyncIterator[Pods]:
    """A controller's half that knows pods, jobs and policies, and leads."""
    async with await Client.connect(config) as client:
        made = Pods(client, judge(SETTINGS), lambda: epoch, lambda _: None, system_now, SOON)
        tasks = [asyncio.create_task(made.run()), asyncio.create_task(made.lead())]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def owner(made: dict[str, Any]) -> list[dict[str, Any]]:
    meta = made["metadata"]
    own = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": meta["name"], "uid": meta["uid"]}
    return [{**own, "controller": True}]


def job(admin: "Api", space: str, name: str, owners: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": CONTAINERS}}
    meta = {"name": name, "namespace": space, "labels": {"team": "nlp"}, "ownerReferences": owners or []}
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": SPEC | {"template": template}}
    return {**admin.create(made), "apiVersion": "batch/v1", "kind": "Job"}


def pod(admin: "Api", space: str, name: str, owners: list[dict[str, Any]], **labels: str) -> None:
    meta = {"name": name, "namespace": space, "ownerReferences": owners, "labels": labels}
    spec = {"nodeName": f"node-of-{space}", "containers": CONTAINERS}
    admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def on(pods: Pods, space: str) -> dict[str, PodPicture]:
    return {one.name: one for one in pods.on(f"node-of-{space}", 1000.0)}


def protected(pods: Pods, space: str) -> set[str]:
    return {name for name, one in on(pods, space).items() if one.protected}


def test_a_policy_is_told_all_that_is_wrong_with_it_and_again_after_an_edit(
    admin: "Api", controller: str, epoch: int, space: str
) -> None:
    policy(
        admin,
        space,
        "p",
        jobs={"kinds": ["PytorchJob"]},
        resume={"maxResumes": 8, "checkpoint": {"signal": "SIGFOO", "proof": {"logPattern": "(a)\\1"}}},
    )

    async def test() -> None:
        async with leading(controller, epoch):
            await eventually(lambda: said(admin, space, "p")[0] == "False", "it is not refused")
            _, reason, message, generation = said(admin, space, "p")
            assert (reason, generation) == ("Invalid", 1)
            for expected in (
                "spec.jobs.kinds[0]: found 'PytorchJob', expected a known kind of jobs (PyTorchJob?)",
                "spec.resume.checkpoint.signal: found 'SIGFOO'",
                "spec.resume.checkpoint.proof.logPattern",
            ):
                assert expected in message
            good = {"jobs": {"kinds": ["PyTorchJob"]}, "resume": {"maxResumes": 8, "checkpoint": None}}
            admin.patch(path(space, "p"), {"spec": good})
            await eventually(lambda: said(admin, space, "p")[0] == "True", "its edit is not seen")
            assert said(admin, space, "p")[1:] == (
                "Valid",
                "policy p: resumes up to 7 times from checkpoints that the job makes by itself, detects a hang by "
                "itself and restarts, names no owner to mail. Not as it was asked: resume.maxResumes is 7, not 8 "
                "(caps.maxResumes of the administrators' settings)",
                2,
            )
            assert said(admin, space, "p", "Conflicted")[:2] == ("False", "NoConflict")

    run(test())


def test_of_two_policies_that_pick_one_job_the_newer_conflicts_until_the_older_is_gone(
    admin: "Api", controller: str, epoch: int, space: str
) -> None:
    job(admin, space, "llama")

    async def test() -> None:
        async with leading(controller, epoch) as pods:
            policy(admin, space, "b-older", jobs={"name": "llama"}, lostNode={"forceAfter": "10m"})
            await eventually(lambda: said(admin, space, "b-older")[0] == "True", "not accepted")
            created = admin.get(path(space, "b-older"))["metadata"]["creationTimestamp"]
            # Creation times are told in seconds, and the older one decides.
            await eventually(lambda: time_text(int(system_now().wall_s)) > created, "no second is over")
            policy(
                admin, space, "a-newer", jobs={"matchLabels": {"team": "nlp"}}, lostNode={"forceAfter": "1h"}
            )
            await eventually(lambda: said(admin, space, "a-newer", "Conflicted")[0] == "True", "no conflict")
            assert said(admin, space, "a-newer", "Conflicted")[1:3] == (
                "OlderPolicyInForce",
                f"The older policy b-older stays in force for Job {space}/llama.",
            )
            assert said(admin, space, "b-older", "Conflicted")[0] == "False"
            rows = table_of(admin, path(space, "a-newer"))["rows"][0]["cells"]
            assert rows[:5] == ["a-newer", "enforce", "True", "Valid", "True"]
            pod(
                admin,
                space,
                "llama-0",
                owner(admin.get(f"/apis/batch/v1/namespaces/{space}/jobs/llama") | JOB_HEAD),
            )
            await eventually(lambda: force_after(pods, space) == 600.0, "the older one is not in force")
            admin.delete(path(space, "b-older"))
            await eventually(lambda: said(admin, space, "a-newer", "Conflicted")[0] == "False", "still told")
            await eventually(lambda: force_after(pods, space) == 3600.0, "the newer one is not in force")

    run(test())


JOB_HEAD = {"apiVersion": "batch/v1", "kind": "Job"}


def force_after(pods: Pods, space: str) -> float | None:
    one = on(pods, space).get("llama-0")
    return None if one is None else one.force_after_s


def test_a_successor_writes_nothing_that_stands_there_already(
    admin: "Api", controller: str, epoch: int, space: str
) -> None:
    policy(admin, space, "p", resume={"maxResumes": 100})
    policy(admin, space, "q", jobs={})

    async def lead_until(name: str) -> None:
        async with leading(controller, epoch):
            await eventually(lambda: said(admin, space, name)[0] != "", "not judged")

    run(lead_until("q"))
    run(lead_until("p"))
    before = version(admin, space, "p"), version(admin, space, "q")

    async def lead_again() -> None:
        async with leading(controller, epoch):
            policy(admin, space, "z", jobs={})  # judged and written after the others were looked at
            await eventually(lambda: said(admin, space, "z")[0] == "True", "not judged")

    run(lead_again())
    assert (version(admin, space, "p"), version(admin, space, "q")) == before


def test_the_api_server_refuses_what_an_earlier_leader_says_of_a_policy(
    admin: "Api", controller: str, epoch: int, space: str
) -> None:
    from sentinel.cluster.kubernetes import conditions
    from sentinel.cluster.kubernetes.objects import JOB_POLICIES, Custom

    policy(admin, space, "p", jobs={})

    async def test() -> None:
        async with await Client.connect(controller) as client:
            one = await client.call("GET", "/apis/sentinel.dev/v1alpha1/jobpolicies?limit=500")
            import msgspec

            items = msgspec.json.decode(one)["items"]
            mine = next(item for item in items if item["metadata"]["namespace"] == space)
            here = msgspec.convert(mine, Custom)
            says = [conditions.Says("Accepted", True, "Valid")]
            with pytest.raises(Superseded):
                await conditions.write(client, JOB_POLICIES, here, says, epoch - 1, 1e9)
            await conditions.write(client, JOB_POLICIES, here, says, epoch, 1e9)

    run(test())
    assert said(admin, space, "p")[0] == "True"


def test_a_policy_that_cannot_be_judged_says_so_and_holds_up_no_other(
    admin: "Api", controller: str, epoch: int, space: str
) -> None:
    policy(admin, space, "bad", jobs={})
    policy(admin, space, "good", jobs={})
    ask = judge(SETTINGS)

    async def hurt(documents: Any) -> Any:
        if any(one["metadata"]["name"] == "bad" for one in documents):
            raise TemporaryError("judging took longer than 60 s", 5.0)
        return await ask(documents)

    async def test() -> None:
        async with await Client.connect(controller) as client:
            made = Policies(client, hurt, lambda: epoch, lambda _: None, system_now, SOON)
            tasks = [asyncio.create_task(made.run()), asyncio.create_task(made.lead(lambda _: []))]
            await eventually(lambda: said(admin, space, "good")[0] == "True", "it waits for the other")
            await eventually(lambda: said(admin, space, "bad")[0] == "Unknown", "not told")
            assert said(admin, space, "bad")[1:3] == ("NotJudged", "judging took longer than 60 s")
            assert made.failures
            metrics = Metrics()
            made.measure(metrics)
            page = metrics.render().decode()
            assert 'sentinel_policies{state="unjudged"} 1\n' in page
            assert "sentinel_policy_failures_total" in page
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(test())


def test_an_answer_of_the_judge_that_cannot_be_read_or_told_holds_up_no_policy(
    admin: "Api", controller: str, epoch: int, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(admin, space, "long", jobs={})
    policy(admin, space, "odd", jobs={})
    ask = judge(SETTINGS)

    async def odd(documents: Any) -> Any:
        if [one["metadata"]["name"] for one in documents] == ["long"]:
            return [structs.replace((await ask(documents))[0], summary="x" * 100_000)]
        with monkeypatch.context() as patched:
            patched.setattr(
                "sentinel.controller.daemon.judging.our_python",
                lambda module: ["echo", "a library has said this"],
            )
            return await ask(documents)

    async def test() -> None:
        async with await Client.connect(controller) as client:
            made = Policies(client, odd, lambda: epoch, lambda _: None, system_now, SOON)
            tasks = [asyncio.create_task(made.run()), asyncio.create_task(made.lead(lambda _: []))]
            await eventually(lambda: said(admin, space, "long")[0] == "True", "it waits for the other")
            await eventually(lambda: said(admin, space, "odd")[0] == "Unknown", "not told")
            assert "cannot be read" in said(admin, space, "odd")[2]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(test())


def test_pods_are_protected_through_the_top_owner_of_a_kind_that_was_installed_later(
    admin: "Api", controller: str, epoch: int, space: str
) -> None:
    plain = job(admin, space, "plain")
    pod(admin, space, "plain-0", owner(plain))
    pod(
        admin,
        space,
        "web-0",
        [{**owner(plain)[0], "apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "r"}],
    )

    async def test() -> None:
        async with leading(controller, epoch) as pods:
            await eventually(lambda: on(pods, space) and not protected(pods, space), "pods of no policy")
            assert on(pods, space)["plain-0"].job == f"Job {space}/plain"
            # Its custom resource is not installed yet: the pod's job cannot be known, so it is not touched.
            policy(
                admin,
                space,
                "rays",
                jobs={"kinds": ["RayJob"], "matchLabels": {"team": "nlp"}},
                resume={"gracefulStop": "1m", "checkpoint": {"timeout": "2m"}},
                lostNode={"forceAfter": "30m"},
            )
            gone = {**RAY_JOB, "controller": True}
            pod(admin, space, "early-0", [{**gone, "name": "early", "uid": "not-there"}])
            await eventually(lambda: protected(pods, space) == {"early-0"}, "the unknown is not spared")

            admin.apply([RAY_JOBS])
            made = await create_ray_job(admin, space)
            child = job(admin, space, "ray-workers", owner(made))
            pod(admin, space, "ray-0", owner(child))
            await eventually(lambda: "ray-0" in protected(pods, space), "not through both owners")
            await eventually(lambda: on(pods, space)["ray-0"].force_after_s == 1800.0, "not judged")
            one = on(pods, space)["ray-0"]
            assert one.job == f"RayJob {space}/ray"
            assert one.deadline_mono_s == 1000.0 + 60.0 + 120.0
            assert not on(pods, space)["plain-0"].protected

            admin.patch(path(space, "rays"), {"spec": {"jobs": {"kinds": ["Job"], "matchLabels": None}}})
            await eventually(lambda: "plain-0" in protected(pods, space), "its edit is not followed")
            assert "ray-0" not in protected(pods, space)  # the job is the RayJob, not its parts
            admin.delete(path(space, "rays"))
            await eventually(lambda: not protected(pods, space), "its end is not followed")

    try:
        run(test())
    finally:
        if admin.find(admin.path_of(RAY_JOBS)):
            admin.delete(admin.path_of(RAY_JOBS))


# The cluster is that of all tests of the run, and some of them run operators there: nobody else installs this kind.
RAY_JOB = {"apiVersion": "ray.io/v1", "kind": "RayJob"}
RAY_JOBS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rayjobs.ray.io"},
    "spec": {
        "group": "ray.io",
        "scope": "Namespaced",
        "names": {"kind": "RayJob", "listKind": "RayJobList", "plural": "rayjobs", "singular": "rayjob"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


async def create_ray_job(admin: "Api", space: str) -> dict[str, Any]:
    from tests.rig.api import ApiError

    meta = {"name": "ray", "namespace": space, "labels": {"team": "nlp"}}
    route = f"/apis/ray.io/v1/namespaces/{space}/rayjobs"

    def served() -> bool:
        try:
            return admin.find(route) is not None
        except ApiError as error:
            if error.status != 429:  # its storage is being made
                raise
            return False

    await eventually(served, "the kind is not served")
    made = admin.call("POST", route, {**RAY_JOB, "metadata": meta, "spec": {}})
    return {**made, **RAY_JOB}


def test_before_policies_are_known_every_pod_but_the_nodes_own_counts_as_protected(
    admin: "Api", controller: str, space: str
) -> None:
    pod(admin, space, "bare", [])
    pod(
        admin,
        space,
        "own",
        [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}],
    )

    async def test() -> None:
        async with await Client.connect(controller) as client:
            pods = Pods(client, judge(SETTINGS), lambda: 0, lambda _: None, system_now)
            task = asyncio.create_task(pods.followed.run())
            await eventually(lambda: len(on(pods, space)) == 2, "no pods")
            assert protected(pods, space) == {"bare"}
            task.cancel()

    run(test())
