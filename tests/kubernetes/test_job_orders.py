"""What people order of jobs, with kubectl and with the command line, as users who may do what `deploy/` lets them; and
what a controller makes of it with the rights that it has there."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.job_orders import JobOrders
from sentinel.cluster.kubernetes.job_records import JobRecords, job_name
from sentinel.cluster.kubernetes.orders import ANSWER, ORDER
from sentinel.controller.jobs import people
from sentinel.controller.jobs.people import People
from sentinel.core.agents.epochs import Epochs
from sentinel.core.job.orders import Action, Extend
from sentinel.core.model import FollowedOrder, Incident, JobState, ProtectedJob
from sentinel.core.policy_model import Policy
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import system_now
from tests.kubernetes.people import Person, bind
from tests.kubernetes.proxy import Fault, Proxy
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

LIMITED = Policy(max_duration_s=3600.0)
KIND = "pytorchjob.kubeflow.org"
PATH = "/apis/sentinel.dev/v1alpha1/namespaces/default/protectedjobs"


class Hands:
    """Who looks after the jobs: of what it is told to do, the records tell. `controller.Controller` really does it."""

    def __init__(self, records: JobRecords) -> None:
        self.records = records
        self.kept: set[str] = set()
        self.unseen: set[str] = set()
        self.did: list[Action] = []
        self.refusals: list[str] = []

    def job(self, name: str) -> ProtectedJob | None:
        return None if name in self.unseen else self.records.job(name)

    def open_incident(self, name: str) -> Incident | None:
        return None

    def held(self, name: str) -> bool:
        return name in self.kept

    def obey(self, name: str, action: Action, order: FollowedOrder) -> None:
        job = self.records.job(name)
        assert job is not None
        self.did.append(action)
        extra_s = job.extra_s + (action.seconds if isinstance(action, Extend) else 0.0)
        self.records.save(jobs=[structs.replace(job, extra_s=extra_s, order=order)])

    async def written(self, name: str) -> None:
        await self.records.written(name)

    def declined(self, name: str, sentence: str) -> None:
        self.refusals.append(sentence)


class Leader:
    """The people's side of a leading controller."""

    def __init__(self, client: Client, epoch: int) -> None:
        self.wake = asyncio.Event()
        self.failures = 0  # writes that failed
        self.records = JobRecords(client, lambda: epoch, Epochs(), lambda event: None, self._failed)
        self.orders = JobOrders(client, lambda: epoch, system_now, self.records.observe, self.wake.set)
        self.hands = Hands(self.records)
        self.people = People(self.orders, self.hands, system_now, Metrics())

    def _failed(self) -> None:
        self.failures += 1

    async def lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.orders.run())
            while True:
                await self.people.turn()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await self.wake.wait()
                self.wake.clear()


@contextlib.asynccontextmanager
async def leading(config: str, epoch: int, *, follows: bool = True) -> AsyncIterator[Leader]:
    async with await Client.connect(config) as client:
        made = Leader(client, epoch)
        await made.records.load()
        tasks = [asyncio.create_task(made.records.run())]
        if follows:
            tasks.append(asyncio.create_task(made.lead()))
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await scene

    asyncio.run(bounded())


@pytest.fixture
def job() -> ProtectedJob:
    name = job_name("default", KIND, f"llama-{secrets.randbelow(10**8):08d}")
    return ProtectedJob(name=name, policy=LIMITED, state=JobState.RUNNING)


@pytest.fixture
def person(installed: "ControlPlane") -> Callable[..., Person]:

    def made(name: str, role: str = "sentinel-operator") -> Person:
        return Person(installed, name, bind(installed, name, role))

    return made


def short(job: ProtectedJob) -> str:
    return job.name.rpartition("/")[2]


def read(admin: "Api", job: ProtectedJob) -> dict[str, Any]:
    return admin.get(f"{PATH}/{short(job)}.{KIND}")  # type: ignore[no-any-return]


def notes(admin: "Api", job: ProtectedJob) -> dict[str, str]:
    return read(admin, job)["metadata"]["annotations"]  # type: ignore[no-any-return]


async def created(leader: Leader, job: ProtectedJob) -> None:
    leader.records.save(jobs=[job])
    await leader.records.written(job.name)


def test_a_person_extends_a_job_with_the_command_line_and_with_kubectl(
    controller: str, epoch: int, admin: "Api", job: ProtectedJob, person: Callable[..., Person]
) -> None:
    anna = person("anna")

    async def scene() -> None:
        async with leading(controller, epoch) as leader:
            await created(leader, job)
            words = ("extend", f"default/{short(job)}", "90m", "--why", "the loss still falls")
            done = await asyncio.to_thread(anna.says, *words)
            assert (done.returncode, done.stderr) == (0, "")
            assert (
                done.stdout
                == f"{job.name} may run 1h30m longer, 2h30m in all, says anna: the loss still falls.\n"
            )
            assert read(admin, job)["spec"]["extraSeconds"] == 5400.0

            await asyncio.to_thread(
                anna.did, "annotate", "pj", f"{short(job)}.{KIND}", "sentinel.dev/extend=1h a new data set"
            )
            await eventually(lambda: "3h30m in all" in notes(admin, job).get(ANSWER, ""), "not answered")
            said = json.loads(notes(admin, job)[ANSWER])
            assert said["done"]
            assert said["sentence"].endswith("in all, says a person with kubectl-annotate: a new data set.")
            assert not {ORDER, "sentinel.dev/extend"} & notes(admin, job).keys()
            assert read(admin, job)["spec"]["extraSeconds"] == 9000.0
            assert len(leader.hands.did) == 2
            assert not leader.failures

    play(scene())


def test_what_cannot_be_done_is_refused_with_the_reason(
    controller: str,
    epoch: int,
    job: ProtectedJob,
    person: Callable[..., Person],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bert = person("bert")

    async def scene() -> None:
        async with leading(controller, epoch) as leader:
            await created(leader, structs.replace(job, policy=Policy()))
            for words, why in (
                (("extend", f"default/{KIND}/{short(job)}", "2h"), "has no maxDuration"),
                (("retry", f"default/{short(job)}"), "runs."),
                (("cancel", "-n", "default", short(job)), "No recovery of"),
                (("release", f"default/pytorchjob/{short(job)}"), "is not held for a look inside."),
                (("cancel", f"default/{short(job)}x"), "there is no protected job default/"),
                (("cancel", f"default/tfjob/{short(job)}"), "there is no protected job default/tfjob/"),
                (("cancel", "a/b/c/d"), "'a/b/c/d' names no job: NAMESPACE/NAME or"),
            ):
                done = await asyncio.to_thread(bert.says, *words)
                assert (done.returncode, why in done.stderr) == (1, True), done.stderr
            assert not leader.hands.did
            assert len(leader.hands.refusals) == 4
            leader.hands.kept.add(job.name)
            leader.hands.unseen.add(job.name)
            waits = await asyncio.to_thread(bert.says, "retry", f"default/{short(job)}", "--wait", "2s")
            assert (waits.returncode, leader.hands.did) == (75, []), "not judged before it is known"
            leader.hands.unseen.clear()
            await eventually(lambda: len(leader.hands.refusals) == 5, "not followed later")
            monkeypatch.setattr(people, "UNKNOWN_S", 0.0)
            leader.hands.unseen.add(job.name)
            gone = await asyncio.to_thread(bert.says, "retry", f"default/{short(job)}")
            assert (gone.returncode, "is not protected any more." in gone.stderr) == (1, True)
            leader.hands.unseen.clear()
            freed = await asyncio.to_thread(bert.says, "release", f"default/{short(job)}")
            assert (freed.returncode, freed.stdout) == (0, f"{job.name} is held no longer, says bert.\n")

    play(scene())


def test_an_order_is_followed_once_though_its_leader_is_killed_before_it_answers(
    behind_proxy: str, controller: str, epoch: int, admin: "Api", job: ProtectedJob, proxy: Proxy
) -> None:
    path = f"{PATH}/{short(job)}.{KIND}"

    async def killed() -> None:
        async with leading(behind_proxy, epoch, follows=False) as leader:
            await created(leader, job)
            following = asyncio.create_task(leader.orders.run())
            admin.patch(path, {"metadata": {"annotations": {"sentinel.dev/extend": "2h"}}})
            await eventually(leader.wake.is_set, "not seen")
            await leader.people.turn()
            assert leader.orders.standing
            saved = leader.hands.written

            async def written(name: str) -> None:
                await saved(name)
                proxy.faults.append(Fault(method="PATCH", path="/protectedjobs", times=1000, answer=503))

            leader.hands.written = written  # type: ignore[method-assign]
            assert not await leader.people.turn()
            assert len(leader.hands.did) == 1
            following.cancel()

    play(killed())
    proxy.faults.clear()
    assert read(admin, job)["spec"]["extraSeconds"] == 7200.0
    assert ORDER in notes(admin, job)

    async def next_one() -> None:
        async with leading(controller, epoch) as leader:
            await eventually(lambda: ANSWER in notes(admin, job), "not answered")
            assert leader.hands.did == []

    play(next_one())
    assert read(admin, job)["spec"]["extraSeconds"] == 7200.0
    said = json.loads(notes(admin, job)[ANSWER])
    assert (said["done"], "2h longer, 3h in all" in said["sentence"]) == (True, True)
    assert ORDER not in notes(admin, job)


def test_a_job_whose_record_cannot_be_saved_holds_up_no_order_of_another(
    controller: str, epoch: int, admin: "Api", job: ProtectedJob
) -> None:
    other = structs.replace(job, name=job.name + "b")

    async def scene() -> None:
        async with leading(controller, epoch, follows=False) as leader:
            await created(leader, job)
            await created(leader, other)
            waits = leader.hands.written

            async def written(name: str) -> None:
                await (asyncio.Event().wait() if name == job.name else waits(name))

            leader.hands.written = written  # type: ignore[method-assign]
            lead = asyncio.create_task(leader.lead())
            for one in (job, other):
                admin.patch(
                    f"{PATH}/{short(one)}.{KIND}",
                    {"metadata": {"annotations": {"sentinel.dev/extend": "2h"}}},
                )
            await eventually(lambda: ANSWER in notes(admin, other), "not answered")
            assert ANSWER not in notes(admin, job)
            leader.hands.written = waits  # type: ignore[method-assign]
            await eventually(lambda: ANSWER in notes(admin, job), "not answered later")
            assert len(leader.hands.did) == 2
            lead.cancel()
            await asyncio.gather(lead, return_exceptions=True)

    play(scene())


def test_only_who_may_order_does_and_nobody_waits_for_ever(
    installed: "ControlPlane",
    controller: str,
    epoch: int,
    admin: "Api",
    job: ProtectedJob,
    person: Callable[..., Person],
) -> None:
    rita, anna = person("rita", "sentinel-reader"), person("anna")

    async def scene() -> None:
        async with leading(controller, epoch, follows=False) as leader:
            await created(leader, job)

    play(scene())
    refused = rita.says("extend", f"default/{short(job)}", "2h")
    assert (refused.returncode, '"rita" cannot patch' in refused.stderr) == (77, True), refused.stderr
    late = anna.says("retry", f"default/{short(job)}", "--wait", "1s")
    assert late.returncode == 75
    assert f"kubectl -n default annotate protectedjobs {short(job)}.{KIND} sentinel.dev/retry-" in late.stderr

    # Who owns the jobs of one namespace has the same role there alone, and may not read the controllers' Lease.
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "olga", "namespace": "default"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "sentinel-operator"},
        "subjects": [{"kind": "User", "name": "olga", "apiGroup": rbac}],
    }
    admin.apply([binding])
    olga = Person(installed, "olga", str(installed.user_kubeconfig("olga", "people")))

    async def led() -> None:
        async with leading(controller, epoch):
            done = await asyncio.to_thread(olga.says, "extend", "-n", "default", short(job), "2h")
            assert (done.returncode, done.stderr) == (0, "")
            elsewhere = await asyncio.to_thread(olga.says, "extend", "-n", "kube-system", "x", "2h")
            assert elsewhere.returncode == 77

    play(led())
