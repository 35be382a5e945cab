"""A hundred jobs on the nodes of one rack: its network goes, then the power of most of it, and the leader."""

import email
import email.policy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sentinel.core.health import Component, Finding, Severity
from tests.e2e.box import Box
from tests.kubernetes.conftest import QUARANTINES
from tests.kubernetes.jobs_site import CHECKPOINT, CUSTOM, Agents, JobSite
from tests.kubernetes.test_leading_jobs import end, gang, led, plane, uids
from tests.rig.kwok import GPU, WRITERS, Kwok
from tests.rig.processes import free_port
from tests.waits import until

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane

__all__ = ["plane"]

pytestmark = pytest.mark.timeout(900)

JOBS, NODES = 100, 13  # of one GPU each, on nodes of eight
SPARE, SPARE_GPUS = 2, 64
STOPS = 10  # of jobs that still step, that the first leader may make in a day
LOST = 70  # jobs that end with their nodes
ISOLATED = 2  # at a time: the default
PER_HOUR = 4  # mails; two of them as they come, the next half an hour later
MOVED = ["Prechecking", "Saving", "Stopping", "Starting", "Verifying", "Recovered"]
RESTARTED = ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]
OWNER = "owner@example.com"
PORT_DOWN = Finding(
    check="gpus",  # as the agents of these tests call theirs
    component=Component.NIC,
    entity="mlx5_0/1",
    code="ib-port-down",
    severity=Severity.FATAL,
    action="CHECK_LINK",
    summary="port 1 of mlx5_0 is down",
)


class Hall(JobSite):
    """All jobs of its namespace are on one rack."""

    def allow(self, stops: int) -> None:
        allowed = {"perWindow": {"atLeast": stops, "share": 0}, "window": "24h"}
        self.settings = {
            "listen": "127.0.0.1:0",
            "mail": {"perHour": PER_HOUR},
            "fleet": {"stops": allowed, "poolStops": allowed},
        }

    def start(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(self._start, names))

    def _start(self, name: str) -> None:
        job = gang(1, gpus=1)
        job["metadata"]["name"] = name
        del job["spec"]["template"]["spec"]["nodeSelector"]["rig"]
        job["spec"]["template"]["spec"]["nodeSelector"]["hall"] = "other" if name == "far" else "here"
        self.create(job)

    def jobs(self) -> "dict[str, Object]":
        found = self.admin.items(f"{CUSTOM}/namespaces/{self.space}/protectedjobs")
        return {short(one["spec"]["name"]): one["spec"] for one in found}

    def by_job(self) -> "dict[str, Object]":
        """The pods that run."""
        return {pod["metadata"]["labels"]["job-name"]: pod for pod in self.pods()}

    def newest(self) -> "dict[str, Object]":
        return {short(one["job"]): one for one in self.incidents()}

    def newest_phases(self, jobs: "Sequence[str]") -> set[str]:
        """Of one without an incident yet: ''."""
        newest = self.newest()
        return {newest[job]["phase"] if job in newest else "" for job in jobs}

    def moved(self) -> "dict[str, Object]":
        """The incidents for which a job that still stepped was stopped, or is about to be."""
        return {short(one["job"]): one for one in self.incidents() if "Saving" in phases(one)}

    def die(self, names: Sequence[str]) -> None:
        pods = self.by_job()
        with ThreadPoolExecutor(WRITERS) as pool:
            list(
                pool.map(lambda one: self.kwok.end_pod(self.space, pods[one]["metadata"]["name"], 137), names)
            )

    def wait(self, what: Callable[[], object]) -> None:
        """Looked at seldom: each look reads all records."""
        until(what, self.story, 300.0, 1.0)

    def mails(self) -> "list[str]":
        """Those to the owner, of all leaders: stages, `digest` for many."""
        paths = [path for name in ("one", "two") for path in (self.folder / name / "outbox").glob("*.eml")]
        mails = [email.message_from_bytes(path.read_bytes(), policy=email.policy.default) for path in paths]
        return [mail["X-Sentinel-Stage"] for mail in mails if OWNER in mail["To"]]

    def records_told(self) -> str:
        incidents = (f"{one['id']} {one.get('phase')} {one.get('sentence')}" for one in self.incidents())
        states = Counter((one["state"], one.get("reason")) for one in self.jobs().values())
        pods = Counter(
            (pod["status"].get("phase"), pod["spec"].get("nodeName", "").partition("-")[0])
            for pod in self.admin.items(f"/api/v1/namespaces/{self.space}/pods")
        )
        return "\n".join((*incidents, str(states), str(pods)))


def short(job: str) -> str:
    return job.rpartition("/")[2]


def spent(job: "Object") -> int:
    """Restarts of any budget."""
    return sum(job.get(name, 0) for name in ("usedJob", "usedInfrastructure", "usedFree"))


def phases(incident: "Object") -> list[str]:
    return [step["phase"] for step in incident["steps"]]


@pytest.fixture
def hall(plane: "ControlPlane", tmp_path: Path) -> Iterator[Hall]:
    kwok, box = Kwok(plane), Box(tmp_path / "box")
    made = Hall(plane, kwok, box, tmp_path)
    kwok.nodes("rack", NODES, labels={"hall": "here"})
    kwok.nodes("far", 1, labels={"hall": "other"})
    yield made
    box.close()


def test_a_hundred_jobs_leave_a_rack_within_the_brake_and_what_is_lost_with_it_is_restarted_elsewhere(
    hall: Hall,
) -> None:
    names = [f"job-{number:02}" for number in range(JOBS)]
    rack, port = [f"rack-{number}" for number in range(NODES)], free_port()
    hall.allow(STOPS)
    controller = led(hall, "one", port)
    agents = Agents(hall, controller, [*rack, "far-0"])
    hall.protect(resume={"maxResumes": 5, "gracefulStop": "1s", "checkpoint": CHECKPOINT})
    others = hall.plane.namespace()  # of jobs that no policy picks
    bystander = gang(1, gpus=8 * NODES - JOBS)  # with it the rack is full
    bystander["metadata"]["namespace"] = others
    bystander["spec"]["template"]["spec"]["nodeSelector"] = {"hall": "here"}
    hall.admin.create(bystander)
    hall.wait(
        lambda: hall.admin.items(f"/api/v1/namespaces/{others}/pods", fieldSelector="status.phase=Running")
    )
    hall.start([*names, "far"])
    hall.wait(lambda: [one.get("state") for one in hall.jobs().values()] == ["running"] * (JOBS + 1))
    before = hall.by_job()
    hall.kwok.nodes("spare", SPARE, labels={"hall": "here"}, capacity={GPU: str(SPARE_GPUS)})

    # Every job still steps. So many are moved as the brake allows, and the others say that they wait for it.
    for node in rack:
        agents.find(node, PORT_DOWN)

    def told_of(job: "Object") -> bool:
        allowed = f"{STOPS} jobs that still stepped were stopped within 1440 min, of {STOPS} that are allowed"
        return job.get("reason") == "HeldBack" and allowed in job["sentence"]

    def braked() -> bool:
        moved, jobs = hall.moved(), hall.jobs()
        assert len(moved) <= STOPS, hall.story()
        return [one["phase"] for one in moved.values()] == ["Recovered"] * STOPS and sum(
            map(told_of, jobs.values())
        ) == JOBS - STOPS

    hall.wait(braked)
    first, jobs = set(hall.moved()), hall.jobs()
    assert {one["state"] for one in jobs.values()} == {"running"}
    stay = [name for name in [*names, "far"] if name not in first]
    now = hall.by_job()
    assert uids([now[name] for name in stay]) == uids([before[name] for name in stay])

    # Most of them are lost with their nodes: no brake holds up what does not step any more.
    lost = [name for name in names if name not in first][:LOST]
    last = set(names) - first - set(lost)
    hall.die(lost)
    hall.wait(lambda: hall.newest_phases(lost) == {"Recovered"})
    assert set(hall.moved()) == first
    hall.wait(lambda: len(hall.mails()) == PER_HOUR // 2)
    end(controller)

    # The next leader may stop more.
    hall.allow(JOBS)
    controller = led(hall, "two", port)
    hall.wait(lambda: set(hall.moved()) == first | last)
    hall.wait(lambda: hall.newest_phases(names) == {"Recovered"})
    hall.wait(lambda: len(hall.by_job()) == JOBS + 1)
    after, jobs, incidents = hall.by_job(), hall.jobs(), hall.incidents()
    assert {after[name]["spec"]["nodeName"].partition("-")[0] for name in names} == {"spare"}
    assert {jobs[name]["state"] for name in names} == {"running"}
    assert {spent(jobs[name]) for name in names} == {1}

    ended = [one for one in incidents if one["phase"] == "Recovered"]
    assert Counter(short(one["job"]) for one in ended) == dict.fromkeys(names, 1)
    for one in ended:
        name, verdict = short(one["job"]), one["verdict"]
        assert phases(one) == (RESTARTED if name in lost else MOVED)
        assert (verdict["place"], verdict["budget"]) == (before[name]["spec"]["nodeName"], "infrastructure")
        assert verdict["cause"] == ("node" if name in lost else "network")
        assert ("saved checkpoint" in one.get("save", {}).get("provedBy", "")) == (name not in lost)
    # On a slow machine a look at room may be late: then the job was left alone, with a reason, and tried again.
    refused = [one for one in incidents if one["phase"] != "Recovered"]
    assert {tuple(phases(one)) for one in refused} <= {("Prechecking", "KeptRunning")}
    assert all(one["sentence"] for one in incidents)

    told = Counter((one["id"], mail["stage"]) for one in incidents for mail in one.get("mails", []))
    wanted = {(one["id"], stage) for one in ended for stage in ("started", "recovered")}
    wanted |= {(one["id"], "notice") for one in refused}
    assert told == dict.fromkeys(wanted, 1)
    end(controller)  # a mail that is on its way has gone then
    assert len(hall.mails()) == PER_HOUR // 2, "of all leaders together"
    sent = [mail for one in hall.incidents() for mail in one["mails"] if mail["state"] != "waiting"]
    assert {tuple(mail["done"]) for mail in sent} == {(OWNER,)}
    assert len({mail["sent"] for mail in sent}) == PER_HOUR // 2

    assert after["far"]["metadata"]["uid"] == before["far"]["metadata"]["uid"]
    assert jobs["far"]["incarnation"] == 1
    (pod,) = hall.admin.items(f"/api/v1/namespaces/{others}/pods")
    assert (pod["status"]["phase"], pod["spec"]["nodeName"][:4]) == ("Running", "rack")
    records = [one["spec"] for one in hall.admin.items(QUARANTINES)]
    # That the spare nodes have no agent is told after a minute, if this takes so long.
    records = [one for one in records if (one["kind"], one["node"][:5]) != ("silence", "spare")]
    assert {one["node"] for one in records} <= set(rack)
    assert "network-incident" in {one.get("heldBy") for one in records}
    assert sum(one["state"] != "held" for one in records) <= ISOLATED
    agents.close()
