"""What the status of Sentinel's records says: made from the record, written after it, in the way of nothing."""

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict, replace

from sentinel.cluster.kubernetes import job_records
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.conditions import Says
from sentinel.cluster.kubernetes.errors import Conflict, Superseded
from sentinel.cluster.kubernetes.job_records import JobRecords
from sentinel.cluster.kubernetes.objects import INCIDENTS, PROTECTED_JOBS
from sentinel.cluster.kubernetes.record_conditions import of_incident, of_job, of_quarantine
from sentinel.core.fleet.model import Brake, EndedBy, Kind, Mode, Needs, Repair, State
from sentinel.core.model import JobState, Phase, StoredJob
from tests.kubernetes.proxy import Fault, Proxy
from tests.kubernetes.test_job_records import a_job, an_incident, running, with_records
from tests.kubernetes.test_store import Records, path_of, quarantines, record, with_store
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api

NEEDS = Needs(sentence="a new boot", repair=Repair.REBOOT)
# https://kubernetes.io/docs/reference/using-api/ (metav1.Condition): what a reason may be.
REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def words(says: tuple[Says, ...]) -> dict[str, str]:
    return {one.type: f"{one.word} {one.reason}" for one in says}


@pytest.mark.parametrize(
    ("fields", "isolated", "ended"),
    [
        ({"reason": "FatalFinding"}, "True FatalFinding", "False NeedsReboot"),
        (
            {"state": State.HELD, "held_by": Brake.AT_A_TIME},
            "False HeldBackAtATime",
            "False NeedsReboot",
        ),
        ({"mode": Mode.OBSERVE}, "False ObserveMode", "False NeedsReboot"),
        ({"kind": Kind.SILENCE}, "False Unreachable", "False NeedsReboot"),
        ({"state": State.RELEASED, "ended_by": EndedBy.WELL}, "False Well", "True Well"),
        ({"state": State.OVERRIDDEN, "ended_by": EndedBy.UNCORDONED}, "False Uncordoned", "True Uncordoned"),
        ({"state": State.RELEASED, "reason": "Dead"}, "False Dead", "True Dead"),
    ],
)
def test_a_quarantine_says_whether_the_node_is_kept_out_and_what_must_hold_before_it_ends(
    fields: dict[str, Any], isolated: str, ended: str
) -> None:
    says = of_quarantine(record(needs=NEEDS, **fields))
    assert words(says) == {"Isolated": isolated, "Ended": ended}
    if ended.startswith("False"):
        assert says[-1].message == "a new boot"


def test_a_job_says_whether_it_runs_is_recovered_and_protected_as_a_whole() -> None:
    job = StoredJob(**asdict(a_job()))
    assert words(of_job(job)) == {
        "Running": "True Running",
        "Recovering": "False NoIncident",
        "Degraded": "False Whole",
        "Ended": "False Running",
    }
    hit = replace(
        job,
        state=JobState.QUEUED,
        reason="BackOff",
        incident=an_incident(job),
        degraded=("no proof", "no stacks"),
    )
    assert words(of_job(hit))["Recovering"] == "True Stopping"
    assert words(of_job(hit))["Running"] == "False BackOff"
    assert next(one.message for one in of_job(hit) if one.type == "Degraded") == "no proof; no stacks"
    over = replace(hit, state=JobState.SUCCEEDED, reason="", incident=an_incident(job, phase=Phase.RECOVERED))
    assert words(of_job(over))["Ended"] == "True Succeeded"
    assert words(of_job(over))["Recovering"] == "False Recovered"


@pytest.mark.parametrize(
    ("phase", "ended", "recovered"),
    [
        (Phase.SAVING, "False Saving", "Unknown Saving"),
        (Phase.RECOVERED, "True Recovered", "True Recovered"),
        (Phase.EXHAUSTED, "True Exhausted", "False Exhausted"),
    ],
)
def test_an_incident_says_whether_it_is_over_and_how(phase: Phase, ended: str, recovered: str) -> None:
    says = words(of_incident(an_incident(a_job(), phase=phase)))
    assert says == {"Ended": ended, "Recovered": recovered}


def test_every_reason_is_one_word_as_kubernetes_wants_it() -> None:
    for kind, state, mode, brake, end, repair in itertools.product(Kind, State, Mode, Brake, EndedBy, Repair):
        one = record(
            kind=kind,
            state=state,
            mode=mode,
            held_by=brake,
            ended_by=end,
            needs=Needs(sentence="x", repair=repair),
        )
        for said in of_quarantine(one):
            assert REASON.fullmatch(said.reason), (said, one)


# ---------------------------------------------------------------- written


def conditions(admin: "Api", path: str) -> dict[str, dict[str, Any]]:
    found = admin.find(path) or {}
    return {one["type"]: one for one in found.get("status", {}).get("conditions", [])}


def test_a_status_that_is_written_between_two_saves_is_in_the_way_of_neither(
    controller: str, epoch: int, admin: "Api"
) -> None:
    async def test(store: Records, _: Client) -> None:
        made = record(reason="FatalFinding", sentence="XID 79")
        await store.save(made)
        await store.show(made, of_quarantine(made), 1.8e9)
        first = conditions(admin, path_of(made))
        assert (first["Isolated"]["status"], first["Isolated"]["message"]) == ("True", "XID 79")
        later = replace(made, sentence="XID 79, again")
        await store.save(later)
        await store.show(later, of_quarantine(later), 1.8e9 + 60)
        second = conditions(admin, path_of(made))
        assert second["Isolated"]["message"] == "XID 79, again"
        assert second["Isolated"]["lastTransitionTime"] == first["Isolated"]["lastTransitionTime"]
        over = replace(later, state=State.RELEASED, ended_by=EndedBy.WELL)
        await store.save(over)
        saved = store.get(over)
        await store.show(over, of_quarantine(over), 1.8e9 + 120)
        third = conditions(admin, path_of(made))
        assert (third["Isolated"]["status"], third["Ended"]["status"]) == ("False", "True")
        assert third["Isolated"]["lastTransitionTime"] != first["Isolated"]["lastTransitionTime"]
        assert "observedGeneration" not in third["Isolated"], "`kubectl wait` would take it for an old one"
        assert saved == over
        assert store.get(over) is saved, "what is known is not read anew"

    with_store(controller, epoch, test)


def test_a_status_is_of_the_record_that_is_there_and_of_the_leader(
    controller: str, epoch: int, admin: "Api"
) -> None:
    async def test(store: Records, client: Client) -> None:
        made = record()
        await store.save(made)
        admin.patch(path_of(made), {"spec": {"sentence": "a person was here"}})
        with pytest.raises(Conflict):
            await store.show(made, of_quarantine(made), 1.8e9)
        now = store.get(made)
        assert now is not None
        assert now.sentence == "a person was here"
        await store.show(now, of_quarantine(now), 1.8e9)
        before = quarantines(client, epoch - 1)
        await before.load()
        with pytest.raises(Superseded):
            await before.show(now, of_quarantine(replace(now, sentence="late")), 1.8e9)

    with_store(controller, epoch, test)


def test_a_status_that_is_taken_costs_no_request(behind_proxy: str, proxy: Proxy, epoch: int) -> None:
    async def test(store: Records, client: Client) -> None:
        made = record()
        await store.save(made)
        await store.show(made, of_quarantine(made), 1.8e9)
        proxy.faults.append(Fault(method="PATCH", path="/status", times=1000, answer=503))
        await store.show(made, of_quarantine(made), 1.8e9 + 60)
        other = quarantines(client, epoch)
        await other.load()
        await other.show(made, of_quarantine(made), 1.8e9 + 60)
        for told in (store, other):
            assert (told.get(made), ("", made.id) in told.unreadable) == (made, False)
        await other.save(replace(made, repeats=2))

    with_store(behind_proxy, epoch, test)


def test_jobs_and_incidents_say_how_they_are(controller: str, epoch: int, admin: "Api") -> None:
    job = a_job()
    short = f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org"
    of_it, of_its = PROTECTED_JOBS.path("default", short), INCIDENTS.path("default", f"{short}-0001")

    async def story(records: JobRecords, client: Client) -> None:
        records.save(jobs=[job], incidents=[an_incident(job)])
        await eventually(lambda: conditions(admin, of_its), "the incident says nothing")
        assert conditions(admin, of_it)["Recovering"]["status"] == "True"
        assert conditions(admin, of_its)["Recovered"]["status"] == "Unknown"
        done = replace(job, state=JobState.SUCCEEDED)
        records.save(jobs=[done], incidents=[an_incident(job, phase=Phase.RECOVERED)])
        await eventually(lambda: conditions(admin, of_it)["Ended"]["status"] == "True")
        await eventually(lambda: conditions(admin, of_its)["Recovered"]["status"] == "True")
        assert not records.unwritten

    with_records(controller, epoch, story)


def test_no_save_waits_for_a_status_and_it_is_tried_again_also_by_the_next_leader(
    epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job()
    path = PROTECTED_JOBS.path("default", f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org")

    async def story(records: JobRecords, client: Client) -> None:
        proxy.faults.append(Fault(method="PATCH", path="/status", times=1000, answer=503))
        for number in range(1, 4):
            records.save(jobs=[replace(job, incarnation=number)])
            await records.written(job.name)
        assert not conditions(admin, path)
        assert not records.unwritten, "the record is there"
        assert sum(one.endswith("/status") for one in proxy.seen) == 1, "a server that refuses is left alone"
        monkeypatch.setattr(job_records, "SHOW_AGAIN_S", 0.05)
        async with running(client, epoch) as later:
            proxy.faults.clear()
            await eventually(lambda: conditions(admin, path), "it is not tried again")
            assert later.job(job.name) == replace(job, incarnation=3)

    with_records(behind_proxy, epoch, story)


def test_a_save_is_not_behind_a_status_that_is_not_answered(
    epoch: int, admin: "Api", proxy: Proxy, behind_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job()
    path = PROTECTED_JOBS.path("default", f"{job.name.rpartition('/')[2]}.pytorchjob.kubeflow.org")
    monkeypatch.setattr(job_records, "SHOW_AGAIN_S", 0.05)

    async def story(records: JobRecords, client: Client) -> None:
        proxy.faults.append(Fault(method="PATCH", path="/status", hold=True))
        records.save(jobs=[job])
        await eventually(lambda: not proxy.faults[0].times, "no status is written")
        ended = replace(job, state=JobState.SUCCEEDED)
        records.save(jobs=[ended])
        await records.written(job.name)
        proxy.release()
        await eventually(lambda: conditions(admin, path).get("Ended", {}).get("status") == "True")
        assert not records.unwritten

    with_records(behind_proxy, epoch, story)
