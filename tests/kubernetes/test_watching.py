"""`sentinel status --watch` of a cluster on a terminal: while the API server is away, and of hostile records."""

import secrets
from typing import TYPE_CHECKING

from msgspec import structs

from sentinel.core.model import Phase
from tests.cli.watched import LONG, STEERING, Watched, steered
from tests.e2e.box import SENTINEL
from tests.kubernetes.conftest import QUARANTINES, quarantine, space_of
from tests.kubernetes.proxy import Fault, Proxy
from tests.kubernetes.test_job_orders import leading, play
from tests.kubernetes.test_job_records import an_incident
from tests.kubernetes.test_job_status import protected
from tests.waits import until

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane


def test_it_shows_what_changes_and_says_when_it_can_see_nothing(
    installed: "ControlPlane", proxy: Proxy, behind_proxy: str
) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(installed.rig.folder / "home")}
    words = [str(SENTINEL), "status", "--cluster", "--all", "--watch", "--kubeconfig", behind_proxy]
    watched = Watched(words, columns=110, rows=400, env=env)
    watched.until("protected")
    name = f"n-{secrets.token_hex(4)}"
    installed.node(name)
    installed.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    watched.until(name)
    proxy.weather = lambda method, path: Fault(answer=503)
    blind = watched.until("nothing is seen: no API server answers")
    assert any(name in line for line in blind), "what was seen last stays"
    proxy.weather = lambda method, path: None
    installed.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": False}})
    watched.until("nothing is seen", gone=True)
    watched.until(name, gone=True)
    assert watched.end() == 130
    installed.admin.delete(f"/api/v1/nodes/{name}")


def test_hostile_text_of_records_reaches_no_terminal_that_watches(
    installed: "ControlPlane", admin: "Api", controller: str, epoch: int
) -> None:
    """What a job's log and command said, and what was found on a node; only the cluster's own names are short."""
    node = f"n-{secrets.token_hex(4)}-{'x' * 200}"  # as long as a node's name may be
    installed.node(node)
    found = {"check": "kernel", "component": "gpu", "entity": LONG, "code": STEERING, "severity": "fatal"}
    story = {"time": "2026-01-01T00:00:00Z", "state": "active", "reason": STEERING, "sentence": LONG}
    record = quarantine(f"{node}-0001", epoch)
    record["spec"] |= {
        "node": node,
        "nodeUid": installed.admin.get(f"/api/v1/nodes/{node}")["metadata"]["uid"],
        "reason": STEERING,
        "sentence": LONG,
        "by": STEERING,
        "runningThere": [LONG],
        "needs": {"sentence": LONG},
        "findings": [{**found, "action": STEERING, "summary": LONG, "evidence": [LONG]}],
        "story": [story],
    }
    admin.create(record)
    with space_of(installed, "hostile") as space:
        job = protected(space, "n" * 60, reason=STEERING, sentence=LONG, degraded=(LONG,), save_note=STEERING)
        opened = an_incident(job, phase=Phase.STOPPING, sentence=LONG)
        verdict = structs.replace(opened.verdict, sentence=LONG, advice=STEERING, evidence=(LONG, STEERING))

        async def scene() -> None:
            async with leading(controller, epoch, follows=False) as leader:
                leader.records.save(jobs=[job], incidents=[structs.replace(opened, verdict=verdict)])
                await leader.records.written(job.name)

        play(scene())
        env = {"PATH": "/usr/bin:/bin", "HOME": str(installed.rig.folder / "home")}
        every = (
            "--cluster",
            "--all",
            "--watch",
            "--kubeconfig",
            str(installed.user_kubeconfig("all", "system:masters")),
        )
        for words in ((), (node,), (job.name,)):
            watched = Watched([str(SENTINEL), "status", *words, *every], columns=110, rows=400, env=env)
            watched.until("gnp.exe")
            until(lambda watched=watched: watched.pictures >= 2, "no second picture")
            assert watched.end() == 130
            assert not steered(watched.bytes), words
            assert watched.bytes.count(b"\x1b[2J") == 1
        watched = Watched([str(SENTINEL), "status", job.name, "-o", "json", *every], env=env)
        until(lambda: watched.bytes.count(b"\n") >= 2, "no second line")
        assert watched.end() == 130
        assert not steered(watched.bytes)
    admin.delete(f"{QUARANTINES}/{node}-0001")
    admin.delete(f"/api/v1/nodes/{node}")
