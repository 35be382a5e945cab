"""A job's records in a real API server: one write holds a job and its incident, and effects wait for it."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from sentinel.cluster.kubernetes import job_records
from sentinel.cluster.kubernetes.client import CONNECTIONS, Client
from sentinel.cluster.kubernetes.errors import NotLeading
from sentinel.cluster.kubernetes.job_records import JobRecords, job_name
from sentinel.cluster.kubernetes.objects import INCIDENTS, NODES, PROTECTED_JOBS
from sentinel.core.agents.epochs import Epochs
from sentinel.core.model import (
    Budget,
    Cause,
    Incident,
    IncidentKind,
    JobState,
    Phase,
    ProtectedJob,
    Symptom,
    Verdict,
)
from sentinel.core.policy_model import Policy
from sentinel.util.errors import TemporaryError
from tests.kubernetes.conftest import lead_by, run
from tests.kubernetes.proxy import Fault, Proxy
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api

VERDICT = Verdict(
    symptom=Symptom.RANK_LOST,
    cause=Cause.GPU,
    failure="gpu-lost",
    scope="node",
    sentence="A GPU fell off the bus.",
    budget=Budget.INFRASTRUCTURE,
)


def a_job(**fields: Any) -> ProtectedJob:
    name = job_name("default", "PyTorchJob.kubeflow.org", f"llama-{secrets.randbelow(10**8):08d}")
    return ProtectedJob(**{"name": name, "policy": Policy(), "state": JobState.RUNNING, **fields})


def an_incident(job: ProtectedJob, number: int = 1, **fields: Any) -> Incident:
    given: dict[str, Any] = {
        "id": f"{job.name}-{number:04d}",
        "job": job.name,
        "kind": IncidentKind.FORCED,
        "verdict": VERDICT,
        "phase": Phase.STOPPING,
        "opened_wall_s": 1.8e9 + number,
    }
    return Incident(**{**given, **fields})


Story = Callable[[JobRecords, Client], Coroutine[Any, Any, None]]


def with_records(config: str, epoch: int, story: Story) -> None:
    async def opened() -> None:
        async with await Client.connect(config) as client, running(client, epoch) as records:
            await story(records, client)

    run(opened())


@contextlib.asynccontextmanager
async def running(client: Client, epoch: int) -> AsyncIterator[JobRecords]:
    """Records that are loaded and written, as a leader has them."""
    records = JobRecords(client, lambda: epoch, Epochs(), lambda event: None)
    await records.load()
    task = asyncio.create_task(records.run())
    try:
        yield records
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def spec(admin: "Api", plural: str, name: str) -> dict[str, Any]:
    """{}: there is no such object."""
    found = admin.find(f"/apis/sentinel.dev/v1alpha1/namespaces/default/{plural}/{name}")
    return {} if found is None else found["spec"]


def test_a_job_and_its_incident_are_one_write_and_read_by_the_next_leader(
    controller: str, epoch: int, admin: "Api"
) -> None:
    job = a_job()
    short = job.name.rpartition("/")[2]

    async def story(records: JobRecords, client: Client) -> None:
        incident = an_incident(job)
        records.save(jobs=[job], incidents=[incident])
        await records.written(job.name)
        assert (
            spec(admin, "protectedjobs", f"{short}.pytorchjob.kubeflow.org")["incident"]["phase"]
            == "Stopping"
        )
        copied = f"{short}.pytorchjob.kubeflow.org-0001"
        await eventually(lambda: spec(admin, "incidents", copied), "it is not copied")
        assert spec(admin, "incidents", copied)["verdict"]["sentence"] == "A GPU fell off the bus."
        async with running(client, epoch) as later:
            assert later.job(job.name) == job
            assert later.incidents(job.name) == [incident]

    with_records(controller, epoch, story)


def test_an_incident_that_was_not_copied_before_the_leader_died_is_copied_by_the_next(
    controller: str, epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str
) -> None:
    job = a_job()
    path = INCIDENTS.path("default", f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org-0001")

    async def story(records: JobRecords, client: Client) -> None:
        proxy.faults.append(Fault(method="POST", path="/incidents", times=1000, answer=503))
        records.save(jobs=[job], incidents=[an_incident(job)])
        await records.written(job.name)
        await eventually(lambda: records.unwritten, "the copy did not fail")

    with_records(behind_proxy, epoch, story)
    assert admin.find(path) is None

    async def next_one(records: JobRecords, client: Client) -> None:
        assert records.incidents(job.name) == [an_incident(job)], "brakes count it from the first decision on"
        assert admin.find(path) is None
        proxy.faults.clear()
        await eventually(lambda: admin.find(path) is not None, "it is not copied")

    with_records(behind_proxy, epoch, next_one)


def test_what_an_earlier_leader_ends_and_opens_until_its_job_is_claimed_is_known_as_it_wrote_it(
    controller: str, controller_token: str, epoch: int, admin: "Api", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_records, "COPY_S", 3600.0)
    job = a_job()
    short = f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org"
    ended, second = an_incident(job, phase=Phase.RECOVERED, closed_wall_s=1.9e9), an_incident(job, 2)

    async def story(records: JobRecords, client: Client) -> None:
        records.save(jobs=[job], incidents=[an_incident(job, phase=Phase.SAVING)])
        await eventually(lambda: spec(admin, "incidents", f"{short}-0001"), "it is not made")
        records.save(incidents=[an_incident(job)])
        await records.written(job.name)
        later = JobRecords(client, lambda: epoch + 1, Epochs(), lambda event: None)
        await later.load()
        assert later.incidents(job.name) == [an_incident(job)], "as the job's record holds it"
        records.save(incidents=[ended])
        await records.written(job.name)
        records.save(incidents=[second])
        await records.written(job.name)
        await eventually(lambda: spec(admin, "incidents", f"{short}-0002"), "it is not made")

        await asyncio.to_thread(lead_by, admin, controller_token, epoch + 1)
        await claimed(later, job)
        assert later.incidents(job.name) == [ended, second]
        later.save(jobs=[replace(job, reason="again")])
        await later._write(job.name, later._books[job.name])
        assert spec(admin, "incidents", f"{short}-0001")["phase"] == "Recovered"

    try:
        with_records(controller, epoch, story)
    finally:  # the leaders of other tests are of an earlier epoch
        admin.delete(PROTECTED_JOBS.path("default", short))
        for number in (1, 2):
            admin.delete(INCIDENTS.path("default", f"{short}-{number:04d}"))


def test_a_copy_that_was_refused_to_an_earlier_leader_is_made_after_the_next_incident_was_opened(
    controller: str, controller_token: str, epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str
) -> None:
    job = a_job()
    short = f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org"

    async def story(earlier: JobRecords, client: Client) -> None:
        proxy.faults.append(Fault(method="POST", path="/incidents", times=1 << 30, answer=403))
        earlier.save(jobs=[job], incidents=[an_incident(job)])
        await earlier.written(job.name)
        async with await Client.connect(controller) as own:
            later = JobRecords(own, lambda: epoch + 1, Epochs(), lambda event: None)
            await later.load()
            earlier.save(incidents=[an_incident(job, 2)])
            await earlier.written(job.name)
            await asyncio.to_thread(lead_by, admin, controller_token, epoch + 1)
            await claimed(later, job)
            assert later.incidents(job.name) == [an_incident(job), an_incident(job, 2)]
            await later._write(job.name, later._books[job.name])
        assert spec(admin, "incidents", f"{short}-0001")["phase"] == "Stopping"

    try:
        with_records(behind_proxy, epoch, story)
    finally:  # the leaders of other tests are of an earlier epoch
        admin.delete(PROTECTED_JOBS.path("default", short))
        for path in (INCIDENTS.path("default", f"{short}-{number:04d}") for number in (1, 2)):
            if admin.find(path) is not None:
                admin.delete(path)


async def claimed(records: JobRecords, job: ProtectedJob) -> None:
    """It is refused for each write that it did not see, as of statuses."""
    for _ in range(20):
        with contextlib.suppress(TemporaryError):
            return await records.claim(job.name)


def test_changes_of_an_incident_are_copied_together_but_before_the_next_one_takes_its_place(
    controller: str, epoch: int, admin: "Api", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_records, "COPY_S", 3600.0)
    job = a_job()
    short = f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org"

    async def story(records: JobRecords, client: Client) -> None:
        records.save(jobs=[job], incidents=[an_incident(job)])
        await eventually(lambda: spec(admin, "incidents", f"{short}-0001"), "it is not made")
        for phase in (Phase.STARTING, Phase.RECOVERED):
            records.save(jobs=[job], incidents=[an_incident(job, phase=phase)])
            await records.written(job.name)
        assert spec(admin, "incidents", f"{short}-0001")["phase"] == "Stopping"
        records.save(incidents=[an_incident(job, 2)])
        await records.written(job.name)
        assert spec(admin, "incidents", f"{short}-0001")["phase"] == "Recovered", "nothing else holds it now"

    with_records(controller, epoch, story)


def test_what_is_forgotten_is_copied_before_and_what_is_taken_up_again_is_written(
    controller: str, epoch: int, admin: "Api", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a policy asks for a job no more, and then does again."""
    monkeypatch.setattr(job_records, "COPY_S", 3600.0)
    job = a_job()
    short = f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org"

    async def story(records: JobRecords, client: Client) -> None:
        records.save(jobs=[job], incidents=[an_incident(job, phase=Phase.CANCELLED)])
        await records.written(job.name)
        records.forget(job.name)
        records.save(jobs=[replace(job, incarnation=2)])
        await records.written(job.name)
        assert spec(admin, "protectedjobs", short)["incarnation"] == 2
        assert spec(admin, "incidents", f"{short}-0001")["phase"] == "Cancelled"

    with_records(controller, epoch, story)


def test_an_older_incident_that_is_refused_keeps_no_job_from_being_recorded(
    controller: str,
    epoch: int,
    admin: "Api",
    proxy: Proxy,
    behind_proxy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_records, "COPY_S", 3600.0)
    job = a_job()
    short = f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org"

    async def story(records: JobRecords, client: Client) -> None:
        proxy.faults.append(Fault(method="POST", path="/incidents", times=1 << 30, answer=403))
        records.save(jobs=[job], incidents=[an_incident(job)])
        await records.written(job.name)
        records.save(incidents=[an_incident(job, 2)])
        await records.written(job.name)
        assert spec(admin, "protectedjobs", short)["incident"]["id"].endswith("-0002")
        await eventually(lambda: records.unwritten, "it is not said that the copy is refused")
        proxy.faults.clear()
        await eventually(lambda: spec(admin, "incidents", f"{short}-0001"), "it is not tried again")

    with_records(behind_proxy, epoch, story)


def test_what_a_person_deletes_or_edits_is_written_again_with_the_next_save(
    controller: str, epoch: int, admin: "Api"
) -> None:
    job = a_job()
    short = f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org"

    async def story(records: JobRecords, client: Client) -> None:
        records.save(jobs=[job], incidents=[an_incident(job)])
        await eventually(lambda: spec(admin, "incidents", f"{short}-0001"), "it is not copied")
        admin.patch(PROTECTED_JOBS.path("default", short), {"spec": {"usedJob": 99}})
        records.save(jobs=[replace(job, incarnation=2)])
        await records.written(job.name)
        stored = spec(admin, "protectedjobs", short)
        assert (stored["incarnation"], stored.get("usedJob", 0)) == (2, 0)
        admin.delete(PROTECTED_JOBS.path("default", short))
        admin.delete(INCIDENTS.path("default", f"{short}-0001"))
        records.save(jobs=[replace(job, incarnation=3)], incidents=[an_incident(job, phase=Phase.STARTING)])
        await records.written(job.name)
        assert spec(admin, "protectedjobs", short)["incarnation"] == 3
        await eventually(
            lambda: spec(admin, "incidents", f"{short}-0001").get("phase") == "Starting",
            "it is not copied again",
        )

    with_records(controller, epoch, story)


def test_one_job_whose_record_is_refused_holds_up_no_other(controller: str, epoch: int, admin: "Api") -> None:
    lost = a_job(name=job_name("no-such-namespace", "Job.batch", "lost"))
    fine = a_job()

    async def story(records: JobRecords, client: Client) -> None:
        records.save(jobs=[lost, fine])
        await records.written(fine.name)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(records.written(lost.name), 0.2)
        waiting = asyncio.create_task(records.written(lost.name))
        records.forget(lost.name)
        await asyncio.wait_for(waiting, 120)

    with_records(controller, epoch, story)


def test_a_leader_that_was_succeeded_writes_nothing_more(controller: str, epoch: int, admin: "Api") -> None:
    job = a_job()

    async def story() -> None:
        async with await Client.connect(controller) as client:
            leads = True

            def asked() -> int:
                if leads:
                    return epoch
                raise NotLeading("another one leads", "NotLeading")

            records = JobRecords(client, asked, Epochs(), lambda event: None)
            await records.load()
            task = asyncio.create_task(records.run())
            records.save(jobs=[job])
            await records.written(job.name)
            leads = False
            records.save(jobs=[replace(job, incarnation=5)])
            with pytest.raises(ExceptionGroup):
                await asyncio.wait_for(task, 120)
            stored = spec(admin, "protectedjobs", f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org")
            assert (stored["state"], stored.get("incarnation", 0)) == (job.state.value, 0)

    run(story())


def test_a_new_leader_claims_each_record_that_lives_many_at_a_time(
    controller: str, epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str
) -> None:
    live = [a_job() for _ in range(20)]
    ended = a_job(state=JobState.SUCCEEDED)

    def path(job: ProtectedJob) -> str:
        return PROTECTED_JOBS.path("default", f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org")

    def epochs(*jobs: ProtectedJob) -> set[str]:
        return {admin.get(path(job))["metadata"]["annotations"]["sentinel.dev/epoch"] for job in jobs}

    def forget(job: ProtectedJob) -> None:
        admin.patch(path(job), {"metadata": {"annotations": {"sentinel.dev/epoch": "1"}}})

    async def before(records: JobRecords, client: Client) -> None:
        records.save(jobs=[*live, ended])
        for job in (*live, ended):
            await records.written(job.name)

    with_records(controller, epoch, before)
    for job in (*live, ended):
        forget(job)

    async def story() -> None:
        proxy.faults.append(Fault(method="PATCH", path=path(live[0]), times=1, hold=True))
        async with await Client.connect(behind_proxy) as client, running(client, epoch) as records:
            await eventually(
                lambda: len(epochs(*live[1:])) == 2, "the others wait for one that is not answered"
            )
            proxy.release()
            await eventually(lambda: epochs(*live) == {str(epoch)}, "not all of them are claimed")
            assert {job.name for job in live} <= {job.name for job in records.jobs()}
        assert epochs(ended) == {"1"}

    run(story())


def test_what_an_earlier_leader_wrote_until_the_claim_counts_and_nothing_later(
    controller: str, controller_token: str, epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str
) -> None:
    job = a_job()
    path = PROTECTED_JOBS.path("default", f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org")

    async def story() -> None:
        async with (
            await Client.connect(controller) as own,
            running(own, epoch) as earlier,
            await Client.connect(behind_proxy) as client,
        ):
            earlier.save(jobs=[job])
            await earlier.written(job.name)
            records = JobRecords(client, lambda: epoch + 1, Epochs(), lambda event: None)
            await records.load()
            earlier.save(jobs=[replace(job, used_job=1)], incidents=[an_incident(job)])
            await earlier.written(job.name)
            lead_by(admin, controller_token, epoch + 1)
            with pytest.raises(TemporaryError, match="an earlier leader may still write its record"):
                await records.claim(job.name)
            proxy.faults[:] = [Fault(method="PATCH", path=path, times=1, answer=503)]
            with pytest.raises(TemporaryError):
                await records.claim(job.name)
            await records.claim(job.name)
            found = records.job(job.name)
            assert found is not None
            assert (found.used_job, records.last(job.name)) == (1, an_incident(job))
            earlier.save(jobs=[replace(job, used_job=7)])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(earlier.written(job.name), 1.0)
            assert spec(admin, "protectedjobs", path.rpartition("/")[2])["usedJob"] == 1

    try:
        run(story())
    finally:
        admin.delete(path)  # the leaders of other tests are of an earlier epoch


def test_a_record_that_takes_no_epoch_keeps_nobody_from_deciding(
    controller: str, controller_token: str, epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str
) -> None:
    job = a_job()
    path = PROTECTED_JOBS.path("default", f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org")

    async def before(records: JobRecords, client: Client) -> None:
        records.save(jobs=[job])
        await records.written(job.name)

    with_records(controller, epoch, before)
    lead_by(admin, controller_token, epoch + 1)

    async def story() -> None:
        proxy.faults[:] = [Fault(method="PATCH", path=path, times=1000, answer=422)]
        async with await Client.connect(behind_proxy) as client:
            records = JobRecords(client, lambda: epoch + 1, Epochs(), lambda event: None)
            await records.load()
            await records.claim(job.name)
            assert records.job(job.name) == job

    run(story())


def test_however_many_jobs_change_at_once_other_requests_find_a_connection(
    controller: str, epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str
) -> None:
    jobs = [a_job() for _ in range(2 * CONNECTIONS)]

    async def story() -> None:
        async with await Client.connect(behind_proxy) as client, running(client, epoch) as records:
            proxy.faults.append(Fault(method="POST", path="/protectedjobs", times=1000, hold=True))
            records.save(jobs=jobs)
            held = f"POST {PROTECTED_JOBS.path('default')}"
            await eventually(lambda: proxy.seen.count(held) >= 8, "no record was on its way")
            await client.call("GET", NODES.path(), deadline_s=5.0)
            assert proxy.seen.count(held) <= CONNECTIONS // 2
            proxy.faults.clear()
            proxy.release()
            for job in jobs:
                await records.written(job.name)

    run(story())
