"""Kinds of jobs whose operators are not here, under a real API server and a real controller; the test plays them."""

import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from sentinel.core.health import Severity
from tests.kubernetes.jobs_site import JobSite
from tests.kubernetes.played_kinds import MASTER, RANKS, DLRover, KubeDL, Operator, Trainer, Volcano
from tests.kubernetes.test_interrupted_recoveries import RESTARTS, in_phase, vanishes
from tests.kubernetes.test_job_faults import World, lasting, node_of, site
from tests.kubernetes.test_leading_jobs import kwok, plane, uids
from tests.kubernetes.test_sized_jobs import cordon, spent
from tests.kubernetes.test_uninstall import defined
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane", "site"]

KINDS: tuple[type[Operator], ...] = (Trainer, Volcano, DLRover, KubeDL)
MARK = "sentinel.dev/stopped"


@pytest.fixture(scope="module")
def world(plane: "ControlPlane", kwok: "Kwok", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    for kind in KINDS:
        for one in kind.definitions:
            spec = one["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            defined(plane, one, path)
    with lasting(plane, kwok, tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture
def begin(site: World) -> Iterator[Callable[[type[Operator]], Operator]]:
    """A job of this kind runs."""
    made: list[Operator] = []

    def begun(kind: type[Operator]) -> Operator:
        site.protect(**RESTARTS, precheck={"checks": ["gpu"]})
        made.append(kind(site))
        site.until(site.state("running"))
        return made[0]

    yield begun
    for one in made:
        one.end()


def ranks(site: JobSite, operator: Operator) -> "list[Object]":
    return [pod for pod in site.pods(labels=operator.selector) if pod["metadata"]["name"] != MASTER]


def all_run(site: JobSite, operator: Operator) -> bool:
    return len(ranks(site, operator)) == RANKS


def finds(site: World, node: str, severity: Severity | None) -> None:
    """What the agent of the node finds at its GPUs, as the controller has heard of it when this returns."""
    site.agents.find(node, severity and lost_gpu(check="gpus", event=False, severity=severity))
    site.until_findings(site.controller, bool(severity))


@pytest.mark.parametrize(
    ("kind", "cordoned"),
    [(Trainer, True), (Trainer, False), (Volcano, True), (Volcano, False), (DLRover, True)],
)
def test_a_job_that_nothing_keeps_off_a_bad_node_waits_until_that_takes_no_pods_or_is_well_again(
    site: World, begin: Callable[[type[Operator]], Operator], kind: type[Operator], cordoned: bool
) -> None:
    operator = begin(kind)
    before, lost = uids(ranks(site, operator)), ranks(site, operator)[0]
    bad = node_of(lost)
    site.kwok.daemon.freeze()  # the stop is not over before the finding is known
    try:
        with operator.at_work:
            vanishes(site, lost)
            site.until(in_phase(site, "Stopping"))
            finds(site, bad, Severity.DEGRADED)
    finally:
        site.kwok.daemon.thaw()
    site.until(lambda: site.incident()["reason"] == "CannotKeepOff")
    title = operator.job()["kind"]
    assert site.incident()["phase"] == "Prechecking"
    assert site.incident()["sentence"] == (
        f"Nothing in a {title} keeps its pods off {bad}, which still takes pods: it waits until the node is out of "
        "service or well again."
    )
    assert not ranks(site, operator)

    if cordoned:
        cordon(site, bad)
    else:
        finds(site, bad, None)
    site.until(in_phase(site, "Recovered"))
    site.until(lambda: all_run(site, operator))
    assert not before & uids(ranks(site, operator))
    if cordoned:
        assert bad not in {node_of(pod) for pod in ranks(site, operator)}
    assert (len(site.incidents()), spent(site)) == (1, (1, 0))


def test_a_job_whose_queue_is_full_waits_for_its_turn_and_no_start_of_it_has_failed(
    site: World, begin: Callable[[type[Operator]], Operator]
) -> None:
    volcano = begin(Volcano)
    assert isinstance(volcano, Volcano)
    volcano.full = True
    vanishes(site, ranks(site, volcano)[0])
    site.until(in_phase(site, "Starting"))
    site.until(lambda: site.incident()["sentence"] == "It waits for its turn in Volcano's queue gpus.")
    volcano.full = False
    site.until(in_phase(site, "Recovered"))
    site.until(lambda: all_run(site, volcano))
    reasons = [step["reason"] for step in site.incident()["steps"]]
    assert [reason for reason in reasons if reason in ("Queued", "LetIn", "StartsAgain")] == [
        "Queued",
        "LetIn",
    ]
    assert site.admin.get(volcano.path)["status"]["retryCount"] == 1
    assert (len(site.incidents()), spent(site)) == (1, (1, 0))


def test_an_elastic_job_of_dlrover_is_stopped_and_started_by_writes_that_its_definition_takes(
    site: World, begin: Callable[[type[Operator]], Operator]
) -> None:
    operator = begin(DLRover)
    asked = site.admin.get(operator.path)["spec"]
    (master,) = [pod for pod in site.pods(labels=operator.selector) if pod["metadata"]["name"] == MASTER]
    before = uids(ranks(site, operator))
    site.kwok.daemon.freeze()
    try:
        with operator.at_work:
            vanishes(site, ranks(site, operator)[0])
            site.until(lambda: site.admin.get(operator.path)["spec"].get("suspend"))
            stopped = site.admin.get(operator.path)
            (left,) = ranks(site, operator)
            site.until(lambda: "deletionTimestamp" in site.admin.get(_path(left))["metadata"])
    finally:
        site.kwok.daemon.thaw()
    assert stopped["spec"] == {**asked, "suspend": True}
    assert stopped["metadata"]["annotations"][MARK] == f"{site.record()['name']}:1"

    site.until(in_phase(site, "Recovered"))
    started = site.admin.get(operator.path)
    assert started["spec"] == {**asked, "suspend": False}
    assert MARK not in started["metadata"].get("annotations", {})
    assert len(ranks(site, operator)) == RANKS
    assert not before & uids(ranks(site, operator))
    assert site.admin.get(_path(master))["metadata"]["uid"] == master["metadata"]["uid"], "it runs on"
    assert (len(site.incidents()), spent(site)) == (1, (1, 0))
    site.admin.patch(f"{operator.path}/status", {"status": {"phase": "Succeeded"}})
    site.until(site.state("succeeded"))


def test_a_job_that_its_operator_has_brought_back_before_anybody_looks_is_left_to_it(
    site: World, begin: Callable[[type[Operator]], Operator]
) -> None:
    """Sentinel may not stop it, and hears nothing more of it that could end the recovery."""
    operator = begin(KubeDL)
    before = ranks(site, operator)
    site.controller.send(signal.SIGSTOP)
    vanishes(site, before[0])
    site.until(lambda: all_run(site, operator) and uids(ranks(site, operator)) != uids(before))
    site.controller.send(signal.SIGCONT)
    site.until(in_phase(site, "Cancelled"))
    (incident,) = site.incidents()
    assert [one["reason"] for one in incident["steps"]] == ["RankLost", "EvictionFails", "RestartedByItsKind"]
    assert site.record()["state"] == "running"
    assert spent(site) == (0, 0)


def _path(pod: "Object") -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
