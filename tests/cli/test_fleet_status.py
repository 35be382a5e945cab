"""`sentinel status` of a cluster: what matters first, the rest counted; and when it is about a cluster at all."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from sentinel.cli import reach, status
from sentinel.cluster.kubernetes.objects import FullMeta, Lease, LeaseSpec, Node, NodeSpec, Taint
from sentinel.cluster.local.store import LocalStore
from sentinel.core.fleet.model import Brake, Kind, Mode, Needs, NodeQuarantine, State
from sentinel.status import fleet_read, fleet_show, standing
from sentinel.util.documents import time_text
from sentinel.web.fleet_view import STATES, FleetView, LeaderView
from tests.core.fleet_world import a_finding
from tests.waits import turns

NOW_S = 1_700_000_000.0


def a_node(name: str, *, cordoned: bool = False, taint: str = "", annotations: tuple[str, ...] = ()) -> Node:
    taints = (Taint(taint, "", "NoSchedule"),) if taint else ()
    meta = FullMeta(name=name, uid=name, annotations=dict.fromkeys(annotations, "x"))
    return Node(metadata=meta, spec=NodeSpec(unschedulable=cordoned, taints=taints))


def a_record(node: str, **changes: object) -> NodeQuarantine:
    whole = {
        "id": f"{node}-0001",
        "kind": Kind.FAULT,
        "node": node,
        "node_uid": node,
        "state": State.ACTIVE,
        "needs": Needs(sentence="the node must be restarted"),
        "findings": (a_finding(),),
        "since_wall_s": NOW_S - 100.0,
        **changes,
    }
    return NodeQuarantine(**whole)  # type: ignore[arg-type]


def a_view(
    nodes: list[Node], records: list[NodeQuarantine], *, leader: LeaderView | None = None, paused: str = ""
) -> FleetView:
    view = fleet_read.joined({one.metadata.name: one for one in nodes}, {one.id: one for one in records})
    return structs.replace(view, leader=leader, paused=paused)


def test_of_ten_thousand_nodes_those_that_matter_are_shown_and_the_rest_counted() -> None:
    nodes = [a_node(f"n{number}") for number in range(10_000)]
    records = [a_record(f"n{number}") for number in range(40)]
    records.append(a_record("n50", state=State.HELD, held_by=Brake.AT_A_TIME, since_wall_s=NOW_S))
    lines = fleet_show.overview(a_view(nodes, records), NOW_S, every=False)
    assert (
        "10000 nodes: 1 in service though it should not be, 40 isolated; nothing is known against 9959."
        in lines
    )
    shown = [line for line in lines if line.startswith("n")]
    assert len(shown) == fleet_show.MOST_ROWS
    assert shown[0].startswith("n50 "), "the worst first"
    assert lines[-1] == "… and 11 more: `sentinel status --all`"
    assert len(fleet_show.overview(a_view(nodes, records), NOW_S, every=True)) > 82


def test_each_state_has_its_word_and_its_place() -> None:
    nodes = [
        *(a_node(name) for name in ("ok", "held", "seen", "quiet", "gone-quiet", "disk", "back")),
        a_node("iso", cordoned=True, taint="sentinel.dev/quarantined"),
        a_node("hold", cordoned=True, taint="sentinel.dev/quarantined"),
        a_node("scaled", cordoned=True, taint="ToBeDeletedByClusterAutoscaler"),
        a_node("asked", annotations=("sentinel.dev/hold",)),
    ]
    records = [
        a_record("iso"),
        a_record("held", state=State.HELD, held_by=Brake.PAUSED),
        a_record("seen", mode=Mode.OBSERVE),
        a_record("quiet", kind=Kind.SILENCE, reason="AgentSilent"),
        a_record("gone-quiet", kind=Kind.SILENCE, reason="Unreachable"),
        a_record("disk", kind=Kind.DISK),
        a_record(
            "hold",
            kind=Kind.HOLD,
            sentence="Node hold is kept out of service by anna: why. No running pod was touched.",
        ),
        a_record("vanished", kind=Kind.HOLD),
        a_record("back", state=State.RELEASED, ignored=("x",), ended_wall_s=NOW_S - 5.0),
        a_record("ok", state=State.RELEASED),
    ]
    view = a_view(nodes, records)
    states = {row.node: row.state for row in view.rows}
    assert states == {
        "asked": "ordered",
        "gone-quiet": "unreachable",
        "held": "held back",
        "iso": "isolated",
        "quiet": "agent silent",
        "disk": "disk full",
        "hold": "on hold",
        "vanished": "on hold",
        "seen": "observed",
        "back": "given back",
        "scaled": "cordoned",
    }
    assert [row.state for row in view.rows] == sorted(
        (row.state for row in view.rows), key=list(STATES).index
    )
    text = "\n".join(fleet_show.overview(view, NOW_S, every=True))
    assert "by anna: why." in text
    assert "waits: Sentinel is paused" in text
    assert "by cluster-autoscaler" in text
    assert "(the node is gone)" in text
    assert view.counts["in service"] == 1
    since = {row.node: row.since_wall_s for row in view.rows}
    assert (since["iso"], since["back"]) == (NOW_S - 100.0, NOW_S - 5.0), "back since it is back"


@pytest.mark.parametrize(
    ("leader", "paused", "expected"),
    [
        (None, "", "No controller has led here"),
        (LeaderView(name="c-1", renewed_s=40.0), "", "No controller leads (c-1 did, last heard 40s ago)"),
        (LeaderView(name="c-1", leads=True, epoch=3), "", "c-1 leads (epoch 3, )."),
        (LeaderView(name="c-1", leads=True, unheard=7), "", "No agent of 7 nodes has reported yet"),
        (
            LeaderView(name="c-1", leads=True),
            "anna: x",
            "PAUSED by anna: x (the leader has not heard of it yet).",
        ),
        (LeaderView(name="c-1", leads=True, paused="anna: x"), "anna: x", "PAUSED by anna: x. New"),
        (
            LeaderView(name="c-1", leads=True, paused="anna: x"),
            "",
            "The leader still goes by a pause: anna: x",
        ),
    ],
)
def test_who_leads_and_what_is_paused_stand_at_the_top(
    leader: LeaderView | None, paused: str, expected: str
) -> None:
    lines = fleet_show.overview(a_view([a_node("n")], [], leader=leader, paused=paused), NOW_S, every=False)
    assert expected in "\n".join(lines)
    assert "1 node, nothing is known against any of them." in lines


def test_the_first_lines_say_how_nodes_and_jobs_are_whatever_is_wrong() -> None:
    records = [a_record(f"n{number}") for number in range(40)]
    leader = LeaderView(name="c-1", leads=True, unheard=7)
    view = a_view([a_node(f"n{number}") for number in range(99)], records, leader=leader, paused="anna: x")
    lines = fleet_show.overview(view, NOW_S, every=False, besides=["9 protected jobs: 9 given up."])
    assert lines[3:5] == [
        "99 nodes: 40 isolated; nothing is known against 59.",
        "9 protected jobs: 9 given up.",
    ]
    assert lines[2].startswith("PAUSED by anna")


def test_no_text_of_the_cluster_steers_the_terminal() -> None:
    record = a_record("n", findings=(a_finding(summary="\x1b[2Jgone"),))
    view = a_view([a_node("n")], [record], paused="\x1b[2J")
    for lines in (fleet_show.overview(view, NOW_S, every=False), fleet_show.details(view, "n", NOW_S)):
        assert "\x1b" not in "\n".join(lines)


@pytest.mark.parametrize("off_s", [-100.0, 100.0])
def test_a_leader_whose_clock_differs_is_known_by_its_renewals(
    monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    def renewed(at_s: float) -> Lease:
        spec = LeaseSpec(holder_identity="one", renew_time=time_text(NOW_S + off_s + at_s))
        return Lease(metadata=FullMeta(name="sentinel-controller"), spec=spec)

    def read(*renewals_s: float) -> LeaderView:
        leases = [renewed(at_s) for at_s in renewals_s]

        async def lease(*_: Any) -> Lease:
            return leases.pop(0) if len(leases) > 1 else leases[0]

        monkeypatch.setattr(standing, "lease", lease)
        found = asyncio.run(fleet_read.leader_of(None, "", NOW_S))  # type: ignore[arg-type]
        assert found is not None
        return found

    monkeypatch.setattr(standing, "LOOK_S", 0.01)
    monkeypatch.setattr(fleet_read, "RENEWED_S", 0.1)
    assert read(0.0, 0.0, 2.0).leads
    assert not read(0.0).leads


@pytest.mark.parametrize(
    ("late_s", "said"), [(0.0, "sentinel: waits for the API server (Ctrl-C ends it) ...\n"), (600.0, "")]
)
def test_who_waits_longer_than_a_moment_is_told_for_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late_s: float, said: str
) -> None:
    async def wait() -> None:
        with reach.late("the API server"):
            await turns()

    monkeypatch.setattr(reach, "LATE_S", late_s)
    asyncio.run(wait())
    assert capsys.readouterr().err == "", "nobody sits there"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    asyncio.run(wait())
    assert capsys.readouterr().err == said


def test_it_is_about_a_cluster_only_where_this_machine_has_no_jobs_or_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_cluster(*words: str) -> bool:
        parser = argparse.ArgumentParser()
        status.add_arguments(parser)
        return status._of_cluster(parser.parse_args(list(words)), tmp_path)

    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not of_cluster()
    assert of_cluster("--cluster")
    assert of_cluster("--kubeconfig", "x")
    monkeypatch.setenv("KUBECONFIG", "")
    assert not of_cluster()
    monkeypatch.setenv("KUBECONFIG", "x")
    assert of_cluster()
    assert not of_cluster("--state-dir", str(tmp_path))
    LocalStore(tmp_path / "state.db").close()
    assert not of_cluster()
    assert of_cluster("--cluster")
