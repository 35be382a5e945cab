"""Which nodes jobs are kept off: by what their agents tell, and before they were heard by what is recorded."""

from sentinel.cli.job_nodes import JobNodes
from sentinel.core.fleet_isolate import standing
from sentinel.core.fleet_model import Kind, Needs, NodeQuarantine, State
from sentinel.core.health import Finding
from sentinel.core.now import Now
from tests.samples import XID_79


def test_what_is_recorded_of_a_node_counts_until_its_agent_is_heard_by_this_leader() -> None:
    records = [record("bad", State.HELD), record("mended", State.ACTIVE), record("over", State.RELEASED)]
    told: dict[str, tuple[str, list[Finding]]] = {}
    now = Now(100.0, 1_700_000_000.0)
    nodes = JobNodes(
        lambda node: told.get(node, ("", [])),
        told.keys(),
        lambda: {},
        lambda: standing(records),
        lambda pod: "",
        lambda: now,
    )
    assert sorted(nodes.unfit(["gpu"])) == ["bad", "mended"]
    assert nodes.unfit(["disk"]) == []
    assert not nodes.well("bad")
    assert nodes.well("over")
    assert nodes.well("other")

    told["mended"] = ("boot", [])
    assert nodes.unfit(["gpu"]) == ["bad"]
    assert nodes.well("mended")


def record(node: str, state: State) -> NodeQuarantine:
    return NodeQuarantine(
        id=f"{node}-0001",
        kind=Kind.FAULT,
        node=node,
        node_uid="uid",
        state=state,
        findings=(XID_79,),
        needs=Needs(sentence="a person"),
    )
