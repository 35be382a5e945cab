"""Whose a fault is, over all jobs of a cluster: that of a job, or that of a node."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.checks.base import Source
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.reports import LogMatch, RankExit, Report
from sentinel.util.clock import system_now
from tests.e2e.box import Box, Running
from tests.kubernetes.jobs_site import CUSTOM, NODES, Agents, JobSite
from tests.kubernetes.light_agents import Ranks
from tests.kubernetes.local_fleet import Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.test_interrupted_recoveries import RESUMES, in_phase, running
from tests.kubernetes.test_job_mail import mail_by, told
from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, plane, uids
from tests.kubernetes.test_sized_jobs import quota
from tests.notify.mail_world import MailServer, body
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane"]

KILLED = 137  # as containerd tells of a container that SIGKILL ended


class World(JobSite):
    controller: Running
    agents: Agents
    server: MailServer  # where it has one


@contextlib.contextmanager
def lasting(
    plane: "ControlPlane", kwok: "Kwok", folder: Path, fleet: "Object | None" = None, **settings: Any
) -> Iterator[World]:
    """One controller and its agents. `fleet`: its settings for the fleet."""
    box = Box(folder / "box")
    made = World(plane, kwok, box, folder)
    made.settings = {"listen": "127.0.0.1:0", "fleet": fleet or {}, **settings}
    made.controller = led(made)
    made.agents = Agents(made, made.controller)
    yield made
    end(made.controller)
    made.agents.close()
    box.close()


@pytest.fixture(scope="module")
def world(plane: "ControlPlane", kwok: "Kwok", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For all tests of the file."""
    folder = tmp_path_factory.mktemp("world")
    with MailServer() as server, lasting(plane, kwok, folder, mail=mail_by(server)) as made:
        made.server = server
        yield made


@pytest.fixture
def site(world: World) -> Iterator[World]:
    """In a namespace of its own."""
    world.space = world.plane.namespace()
    yield world
    if world.agents.find_anything():  # else that nothing is found may be what was so before
        world.until_findings(world.controller, True)
    world.agents.hush()
    world.close()
    world.until_findings(world.controller, False)


def node_of(pod: "Object") -> str:
    return str(pod["spec"]["nodeName"])


def dies(site: JobSite, pod: "Object") -> None:
    site.kwok.end_pod(site.space, pod["metadata"]["name"], KILLED)


def held(job: "Object") -> "Object":
    """With the wrapper: an agent tells how a rank ended, and its kind does not know of it."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["command"] = ["/sentinel/hold", "--", *container["command"]]
    return job


def verdicts(site: JobSite, job: str) -> "list[Object]":
    """Of the recoveries that are over."""
    found = [one for one in site.incidents() if one["job"].endswith(f"/{job}")]
    return [one["verdict"] for one in found if one["phase"] == "Recovered"]


def states(site: JobSite) -> dict[str, str]:
    found = site.admin.items(f"{CUSTOM}/namespaces/{site.space}/protectedjobs")
    return {one["spec"]["name"].rpartition("/")[2]: one["spec"]["state"] for one in found}


def events(site: JobSite, reason: str) -> list[str]:
    found = site.admin.items(f"/apis/events.k8s.io/v1/namespaces/{site.space}/events")
    return [one["note"] for one in found if one["reason"] == reason]


def test_a_launcher_that_restarts_ranks_by_itself_is_counted_and_left_to_it_until_no_iteration_follows(
    site: World,
) -> None:
    asked = {"restart": {"maxRestarts": 3}, "hang": {"after": "2s"}}
    site.protect(**asked, startTimeout="10m")
    site.create(gang(1))
    site.until(site.state("running"))
    name, node = site.record()["name"], node_of(site.pods()[0])
    site.agents.ranks(node, Ranks(count=5, restarts=1))
    page = Page(site.controller)
    site.until(lambda: site.record().get("innerRestarts") == 1)
    site.until(lambda: "(once in this run)" in "".join(events(site, "RestartedInside")))
    # Five more iterations, another restart, and its log says nothing more.
    site.agents.ranks(node, Ranks(count=5, restarts=2))
    site.until(lambda: site.record().get("innerRestarts") == 2)
    site.until(lambda: page.number("job_inner_restarts", job_name=name) == 2)
    rita = Person(site.plane, "rita-faults", bind(site.plane, "rita-faults", "sentinel-reader"))
    shown = " ".join(rita.says("status", f"{site.space}/train").stdout.split())
    assert "A launcher inside its pods has started its ranks again 2 times in this run." in shown
    assert not site.incidents()
    site.protect(**asked, startTimeout="30s")
    site.until(lambda: site.phases()[-1:] == ["Verifying"])

    def steps_again() -> bool:
        site.agents.ranks(node_of(site.pods()[0]), Ranks(count=30))  # until its agent follows the new pod
        return site.phases()[-1:] == ["Recovered"]

    site.until(steps_again)
    (hung,) = verdicts(site, "train")
    assert hung["symptom"] == "hang"
    assert (
        "though the launcher inside its pods has started it again (2 times in this run)" in hung["sentence"]
    )
    assert "rank 0: 10 iterations since its start" in hung["evidence"]
    assert "allowed: 30 s without an iteration" in hung["evidence"]  # not the 2 s of hang.after
    assert site.record().get("innerRestarts", 0) == 0


def test_what_recurs_on_another_node_is_the_jobs_and_costs_the_job(site: World) -> None:
    site.protect(restart={"maxRestarts": 3})
    site.create(gang(2))
    site.until(site.state("running"))
    first = site.pods()[0]
    dies(site, first)
    site.until(lambda: len(verdicts(site, "train")) == 1)
    second = next(pod for pod in site.pods() if node_of(pod) != node_of(first))
    dies(site, second)
    site.until(lambda: len(verdicts(site, "train")) == 2)
    before, again = verdicts(site, "train")
    assert (before["failure"], before["place"], before["cause"]) == ("killed", node_of(first), "node")
    assert (again["failure"], again["place"], again["follows"]) == ("killed", node_of(second), "job")
    assert f"The same happened on {node_of(first)}: it follows the job." in again["sentence"]
    assert (again["scope"], again["cause"], again.get("entity", "")) == ("job", "unknown", "")
    record = site.record()
    assert (record["usedInfrastructure"], record["usedJob"]) == (1, 1)
    assert record.get("excluded", []) == []


def test_what_two_jobs_meet_on_one_node_is_the_nodes_and_the_second_leaves_it(site: World) -> None:
    site.protect(restart={"maxRestarts": 3})
    nodes = [
        node["metadata"]["name"] for node in site.admin.items("/api/v1/nodes", labelSelector="rig=train")
    ]
    shared, *others = nodes
    for node in others:
        site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    for name in ("one", "two"):
        job = gang(1, gpus=4)
        job["metadata"]["name"] = name
        site.create(job)
    site.until(lambda: [node_of(pod) for pod in site.pods()] == [shared] * 2)
    for node in others:
        site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})

    def pod(name: str) -> "Object":
        return next(pod for pod in site.pods() if pod["metadata"]["labels"]["job-name"] == name)

    site.until(lambda: states(site) == {"one": "running", "two": "running"})
    dies(site, pod("one"))
    site.until(lambda: verdicts(site, "one"))
    dies(site, pod("two"))
    site.until(lambda: verdicts(site, "two"))
    (own,), (shown,) = verdicts(site, "one"), verdicts(site, "two")
    assert "follows" not in own
    assert (shown["follows"], shown["entity"], shown["cause"]) == ("node", shared, "node")
    assert f"/one met the same on {shared}, and on no other: it follows the node." in shown["sentence"]
    assert node_of(pod("two")) != shared


def test_a_host_on_which_two_jobs_have_their_slowest_rank_is_told_as_slow_and_stays_in_service(
    site: World,
) -> None:
    site.protect(performance={"over": 4})
    for name in ("one", "two"):
        job = gang(3, gpus=4)
        spread = {
            "labelSelector": {"matchLabels": {"job-name": name}},
            "topologyKey": "kubernetes.io/hostname",
        }
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}}
        job["spec"]["template"]["spec"]["affinity"] = apart
        job["metadata"]["name"] = name
        site.create(job)
    site.until(lambda: states(site) == {"one": "running", "two": "running"})
    slow, *others = sorted({node_of(pod) for pod in site.pods()})

    def learnt(job: str) -> bool:
        """Written until its agent follows the pod. Only the slow one has iterations: what is learnt is learnt of it."""
        site.agents.ranks(slow, Ranks(count=8, job=f"/{job}"))
        found = site.admin.items(f"{CUSTOM}/namespaces/{site.space}/protectedjobs")
        return any(
            one["spec"]["name"].endswith(f"/{job}") and "baselineMilliseconds" in one["spec"] for one in found
        )

    def told(job: str) -> "list[Object]":
        """Written until their agents follow the pods."""
        for node in (slow, *others):
            site.agents.ranks(node, Ranks(count=8, hardware_ms=900 if node == slow else 500, job=f"/{job}"))
        found = [one for one in site.incidents() if one["job"].endswith(f"/{job}")]
        return [one["verdict"] for one in found if one["verdict"]["symptom"] == "straggler"]

    for job in ("one", "two"):
        site.until(lambda job=job: learnt(job))  # type: ignore[misc]
        site.agents.ranks(slow, None)
    (first,) = site.until(lambda: told("one"))
    assert first["place"] == slow
    assert "follows" not in first
    (second,) = site.until(lambda: told("two"))
    assert (second["follows"], second["entity"]) == ("node", slow)
    (line,) = [line for line in second["evidence"] if "/one: Rank " in line]
    assert "is a straggler: its hardware time is 1.8 times its peers' median" in line
    uid = site.node(slow)["metadata"]["uid"]

    def of_node() -> list[str]:
        found = site.admin.items("/apis/events.k8s.io/v1/namespaces/default/events")
        job = f"Job {site.space}/job.batch/two,"
        return [one["note"] for one in found if one["regarding"]["uid"] == uid and job in one["note"]]

    (note,) = site.until(of_node)
    assert f"met the same on {slow}, and on no other: it follows the node." in note
    assert not site.taints(slow)
    assert len(site.pods()) == 6


def test_a_job_that_is_given_up_is_kept_for_a_look_inside_until_a_person_releases_it(site: World) -> None:
    site.protect(restart={"maxRestarts": 0}, debugHold="1h")
    path = site.create(held(gang(2)))
    site.until(site.state("running"))
    pods = {pod["metadata"]["uid"] for pod in site.pods()}
    node = node_of(site.pods()[0])

    def given_up() -> bool:
        site.agents.ranks(node, Ranks(code=3))  # until its agent follows the pod
        return bool(site.record()["state"] == "error")

    site.until(given_up)
    site.until(lambda: site.phases() == ["Exhausted"])  # copied after the job's record is saved
    assert "exit code 3" in str(site.incidents()[0]["verdict"])
    assert {pod["metadata"]["uid"] for pod in site.pods()} == pods, "nothing of it is stopped"
    rita = Person(site.plane, "rita-holds", bind(site.plane, "rita-holds", "sentinel-operator"))
    name = f"{site.space}/train"
    assert "`sentinel release` it first." in rita.says("retry", name).stderr
    assert site.admin.get(path)["spec"].get("suspend", False) is False
    freed = rita.says("release", name)
    assert (freed.returncode, "is held no longer, says rita-holds." in freed.stdout) == (0, True), (
        freed.stderr
    )
    site.until(lambda: not site.pods() and not site.record().get("holdUntil"))
    assert site.admin.get(path)["spec"]["suspend"] is True
    assert site.record()["state"] == "error"


def test_without_the_wrapper_pods_that_their_kind_leaves_there_are_kept_until_a_person_releases_them(
    site: World,
) -> None:
    site.protect(restart={"maxRestarts": 0}, debugHold="1h")
    job = gang(2)
    job["spec"]["backoffLimit"] = 0
    path = site.create(job)
    site.until(site.state("running"))
    lost = site.pods()[0]["metadata"]["uid"]
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 3)
    site.until(site.state("error"))
    site.until(lambda: site.phases() == ["Exhausted"])
    assert site.record()["holdUntil"]
    name = f"{site.space}/train"
    rita = Person(site.plane, "rita-keeps", bind(site.plane, "rita-keeps", "sentinel-operator"))
    freed = rita.says("release", name)
    assert "is held no longer, says rita-keeps." in freed.stdout, freed.stderr
    site.until(lambda: not site.record().get("holdUntil"))
    assert site.admin.get(path)["spec"].get("suspend", False) is False
    assert [pod["metadata"]["uid"] for pod in site.pods("Failed")] == [lost]


def test_without_the_wrapper_a_job_whose_kind_would_run_a_lost_rank_again_is_stopped_at_once(
    site: World,
) -> None:
    site.protect(restart={"maxRestarts": 0}, debugHold="1h")
    path = site.create(gang(2))
    site.until(site.state("running"))
    lost = site.pods()[0]["metadata"]["uid"]
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 3)
    site.until(site.state("error"))
    site.until(lambda: not site.pods())
    assert (site.record().get("holdUntil"), site.admin.get(path)["spec"]["suspend"]) == (None, True)
    assert [pod["metadata"]["uid"] for pod in site.pods("Failed")] == [lost]


def test_a_person_who_suspends_a_job_that_is_being_moved_is_obeyed_and_costs_it_no_protection(
    site: World,
) -> None:
    path = running(site, 1, **RESUMES, startTimeout="15s")
    bad = node_of(site.pods()[0])
    none = quota(site, 0)
    site.agents.find(bad, lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED))
    site.until(in_phase(site, "Starting"))
    site.until(lambda: site.admin.get(path)["spec"]["suspend"] is False)
    site.admin.patch(path, {"spec": {"suspend": True}})
    site.until(in_phase(site, "Cancelled"))
    assert (site.incidents()[-1]["reason"], site.record()["state"]) == ("Stopped", "queued")
    assert "not by Sentinel" in site.record()["sentence"]
    assert site.incident()["excluded"] == [bad]
    site.admin.delete(none)
    site.admin.patch(path, {"spec": {"suspend": False}})
    site.until(site.state("running"))
    assert node_of(site.pods()[0]) != bad, "it is kept off the node that it was moved away from"
    assert site.incident()["reason"] == "Stopped"


DOWN = Source("services", Component.RUNTIME).finding(
    "service containerd", "service-down", Severity.DEGRADED, "CHECK_SERVICE", "It does not run"
)
READ_ONLY = Source("nvme", Component.DISK).finding(  # a full disk would take the node out of service
    "nvme0n1", "nvme-read-only", Severity.DEGRADED, "REPLACE_DRIVE", "The drive takes no more writes"
)


@pytest.mark.parametrize("found", [DOWN, READ_ONLY], ids=["runtime", "disk"])
def test_a_restart_keeps_off_nodes_on_which_what_the_pre_check_asks_about_is_not_well(
    site: World, found: Finding
) -> None:
    site.protect(restart={"maxRestarts": 3}, precheck={"checks": [found.component.value]})
    path = site.create(gang(1))
    site.until(site.state("running"))
    (pod,) = site.pods()
    bad = next(
        node["metadata"]["name"]
        for node in site.admin.items("/api/v1/nodes", labelSelector="rig=train")
        if node["metadata"]["name"] != node_of(pod)
    )
    site.agents.find(bad, found)
    site.until_findings(site.controller, True)
    dies(site, pod)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert bad in site.admin.get(path)["metadata"]["annotations"]["sentinel.dev/kept-off"].split(",")
    (again,) = site.pods()
    assert node_of(again) != bad


def own(site: World) -> "Object":
    """An owner who gets no mails about other tests: of many at once he would get a digest."""
    return {"emails": [f"{site.space}@example.com"]}


def mail_of(site: World, number: str, stage: str) -> str:
    """What the owner reads, once it is there."""
    site.until(lambda: (number, stage) in told(site.server, site))
    return " ".join(body(told(site.server, site)[number, stage][1], "plain").split())


def test_a_rank_that_is_killed_for_memory_is_told_as_that_and_tried_again_at_the_cost_of_the_job(
    site: World,
) -> None:
    site.protect(restart={"maxRestarts": 5, "maxJob": 1}, owner=own(site))
    site.create(gang(2))
    site.until(site.state("running"))
    before = site.pods()
    name = before[1]["metadata"]["name"]
    site.kwok.end_pod(site.space, name, KILLED, "OOMKilled")
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    verdict = site.incident()["verdict"]
    assert (verdict["failure"], verdict["cause"], verdict["rank"]) == ("host-oom", "host memory", 1)
    assert "the kernel killed it because memory ran out" in verdict["sentence"]
    assert f"Pod {site.space}/{name}" in "".join(verdict["evidence"])
    assert "was OOM killed (exit code 137)" in "".join(verdict["evidence"])
    assert site.record()["usedJob"] == 1
    assert not uids(before) & uids(site.pods())
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], KILLED, "OOMKilled")
    site.until(site.state("error"))
    site.until(lambda: site.phases()[-1:] == ["Exhausted"])
    assert "All 1 restarts for job faults are used." in site.record()["sentence"]
    for number, stage in (("0001", "started"), ("0002", "gave-up")):
        assert "memory ran out" in mail_of(site, number, stage)


@pytest.mark.parametrize(
    ("step", "where"), [(41, "at step 45"), (None, "after 5 iterations")], ids=["named", "counted"]
)
def test_a_job_that_fails_three_times_at_one_place_without_a_newer_checkpoint_is_given_up(
    site: World, step: int | None, where: str
) -> None:
    rule = {
        "id": "our-epoch",
        "pattern": "EPOCH DONE",
        "failure": "activity:saved",
    }  # such a line is told at once
    site.protect(restart={"maxRestarts": 9}, owner=own(site), logRules=[rule])
    path = site.create(held(gang(1)))
    site.until(site.state("running"))
    page, name = Page(site.controller), site.record()["name"]
    reached = 5 if step is None else step + 4
    nodes = [one["metadata"]["name"] for one in site.admin.items("/api/v1/nodes", labelSelector="rig=train")]
    for number in range(3):
        for node in nodes:
            site.agents.ranks(node, Ranks(count=5, step=step, line="EPOCH DONE", anew=True))
        site.until(lambda: page.number("job_iteration", job_name=name) == reached)
        site.until(lambda number=number: len(verdicts(site, "train")) == number)  # type: ignore[misc]
        site.agents.ranks(node_of(site.pods()[0]), Ranks(code=3))
        site.until(lambda number=number: len(site.incidents()) == number + 1)  # type: ignore[misc]
    site.until(site.state("error"))
    site.until(lambda: site.phases()[-1:] == ["Failed"])
    why = f"Not started again: it failed 3 times {where} with no newer checkpoint."
    given_up = site.incidents()[-1]
    assert (given_up["reason"], given_up["sentence"]) == ("NoProgress", why)
    assert (site.record()["reason"], why in site.record()["sentence"]) == ("NoProgress", True)
    assert (site.admin.get(path)["spec"]["suspend"], site.pods()) == (True, [])
    assert site.record()["usedJob"] == 2
    assert why in mail_of(site, "0003", "gave-up")
    assert [stage for number, stage in told(site.server, site) if number == "0003"] == ["gave-up"]


def test_a_line_that_ranks_on_several_nodes_print_is_one_incident_of_the_rank_that_was_first(
    site: World,
) -> None:
    rule = {"id": "our-loader", "pattern": "LOADER [0-9]+ BROKE", "failure": "dataloader"}
    site.protect(restart={"maxRestarts": 3}, logRules=[rule])
    site.create(held(gang(3)))
    site.until(site.state("running"))
    pods = site.pods()
    assert len({node_of(pod) for pod in pods}) == 3

    def prints(rank: int, ago_s: float) -> None:
        said = Ranks(line=f"LOADER {rank} BROKE", ago_s=ago_s, code=1, anew=True)
        site.agents.ranks(node_of(pods[rank]), said)

    site.kwok.daemon.freeze()  # no rank is stopped before all of them have told
    try:
        prints(0, ago_s=4.0)
        site.until(site.incidents)
        assert site.incident()["verdict"]["rank"] == 0
        prints(2, ago_s=2.0)
        prints(1, ago_s=30.0)
        site.until(lambda: all(site.agents.spoke(node_of(pod)) for pod in pods))
        for pod in pods:
            site.agents.ranks(node_of(pod), None)
    finally:
        site.kwok.daemon.thaw()
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    verdict = site.incident()["verdict"]
    assert (verdict["failure"], verdict["cause"], verdict["rank"]) == ("dataloader", "data", 1)
    assert "LOADER 1 BROKE" in verdict["evidence"][0]
    assert site.record()["usedJob"] == 1
    assert len(site.pods()) == 3


def test_a_rank_that_stops_while_another_waits_for_it_is_named_and_all_ranks_start_again(
    site: World,
) -> None:
    asked = {"restart": {"maxRestarts": 3}, "startTimeout": "10m"}
    site.protect(**asked, hang={"after": "3s"})
    site.create(gang(2))
    site.until(site.state("running"))
    pods = site.pods()
    for rank, pod in enumerate(pods):
        site.agents.ranks(node_of(pod), Ranks(count=4 if rank == 1 else 5, anew=True))
    site.until(site.incidents)
    site.protect(**asked, hang={"after": "10m"})  # what they print after their start is all that they print
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    verdict = site.incident()["verdict"]
    assert (verdict["symptom"], verdict["rank"], verdict["place"]) == ("hang", 1, node_of(pods[1]))
    assert verdict["sentence"].startswith("Rank 1 has made no iteration for ")
    assert "rank 1 stopped after 4 iterations, others reached 5" in verdict["evidence"]
    assert len(site.pods()) == 2
    assert not uids(pods) & uids(site.pods())


def test_an_agent_is_believed_about_jobs_on_its_own_node_alone(site: World) -> None:
    running(site, 1, restart={"maxRestarts": 3})
    name, node = site.record()["name"], node_of(site.pods()[0])
    other = next(f"{NODES}-{number}" for number in range(3) if f"{NODES}-{number}" != node)

    def told() -> Report:
        now, start = system_now(), site.record()["incarnation"]
        at: dict[str, Any] = {"rank": 0, "incarnation": start, "at_s": now.mono_s}
        lines = tuple(
            LogMatch(rule="oom", failure="cuda-oom", line="FORGED", job=job, **at) for job in (name, "")
        )
        gone = ((name, RankExit(code=1, **at)),)
        return Report(node="", boot_id="", sequence=0, now=now, matches=lines, exits=gone)

    site.agents.forge(other, told())
    log = site.folder / "one" / "controller.log"
    site.until(lambda: "agent_tells_of_a_job_elsewhere" in log.read_text())
    assert (site.incidents(), site.record()["state"]) == ([], "running")
    site.agents.forge(node, told())
    site.until(site.state("error"))
    assert site.incident()["verdict"]["failure"] == "cuda-oom"
