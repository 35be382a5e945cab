"""Which nodes jobs are kept off: by what their agents tell, and before they were heard by what is recorded."""

from msgspec import structs

from sentinel.controller.cluster_jobs.heard import JobNodes
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.fence import unreached
from sentinel.core.fleet.isolate import standing
from sentinel.core.fleet.model import Kind, Needs, NodeQuarantine, State
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
        list,
        lambda node: False,
        lambda pod: "",
        lambda node: "",
        list,
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


def test_a_node_that_nobody_hears_is_no_place_for_a_job_whatever_was_found_there() -> None:
    silent = [
        structs.replace(record(name, state), kind=Kind.SILENCE, findings=(), reason=reason.value)
        for name, state, reason in (
            ("gone", State.ACTIVE, Reason.UNREACHABLE),
            ("dead", State.ACTIVE, Reason.REMOVED_BY_FORCE),
            ("agentless", State.ACTIVE, Reason.AGENT_SILENT),
            ("back", State.RELEASED, Reason.SPEAKS_AGAIN),
        )
    ]
    records = [record("bad", State.ACTIVE), *silent]
    nodes = JobNodes(
        lambda node: ("", []),
        set(),
        lambda: {},
        lambda: standing(records),
        lambda: unreached(records),
        lambda node: False,
        lambda pod: "",
        lambda node: "",
        list,
        lambda: Now(100.0, 1_700_000_000.0),
    )
    assert nodes.unreached() == {"dead", "gone"}
    assert nodes.unfit(["gpu"]) == ["bad"]
    assert nodes.well("dead")  # its job is not moved for it: what is there may well run


def test_which_nodes_of_a_job_came_back_lately_is_one_sentence() -> None:
    came_back = {f"n{number}": f"{number} days ago after XID 79" for number in range(2, 8)}
    nodes = JobNodes(
        lambda node: ("", []),
        set(),
        lambda: {},
        lambda: {},
        list,
        lambda node: False,
        lambda pod: "",
        lambda node: came_back.get(node, ""),
        list,
        lambda: Now(100.0, 1_700_000_000.0),
    )
    assert nodes.on_probation(["n0", "n1"]) == ""
    assert nodes.on_probation(["n1", "n2", "n2"]) == (
        "On probation: n2 came back 2 days ago after XID 79. A repair that was none shows within days."
    )
    told = nodes.on_probation([*came_back])
    assert told.count("came back") == 4
    assert told.endswith(", and 2 more nodes did lately. A repair that was none shows within days.")


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
