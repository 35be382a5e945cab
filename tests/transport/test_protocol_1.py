"""Protocol 1 as it travels. An agent and a controller of different versions speak it with each other during an upgrade:
a name or a shape that changes here is another protocol, and both numbers of `wire` have to say so."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from sentinel.core.agents.orders import ASK, FOLLOW, Ask, Follow, PodRank, What
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Answer, Iteration, LogMatch, RankExit, RankReport, Report
from sentinel.transport.wire import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Ack,
    Batch,
    Dropped,
    Hello,
    Numbered,
    Order,
    Orders,
    Refusal,
    Welcome,
)

POD = PodRank(
    rank=3,
    namespace="research",
    pod="train-3",
    uid="u-3",
    container="main",
    container_id="c0ffee",
    restarts=1,
)
POD_TOLD = {
    "rank": 3,
    "namespace": "research",
    "pod": "train-3",
    "uid": "u-3",
    "container": "main",
    "container_id": "c0ffee",
    "restarts": 1,
}
FINDING = Finding(
    check="xid",
    component=Component.GPU,
    entity="GPU 0000:18:00.0",
    code="XID 79",
    severity=Severity.FATAL,
    action="RESTART_BM",
    summary="the GPU is gone",
    evidence=("NVRM: Xid",),
    event=True,
    first_seen_wall_s=1.5,
    pid=4711,
    boot_id="boot-1",
)
FINDING_TOLD = {
    "check": "xid",
    "component": "gpu",
    "entity": "GPU 0000:18:00.0",
    "code": "XID 79",
    "severity": "fatal",
    "action": "RESTART_BM",
    "summary": "the GPU is gone",
    "evidence": ["NVRM: Xid"],
    "event": True,
    "first_seen_wall_s": 1.5,
    "pid": 4711,
    "boot_id": "boot-1",
}
REPORT = Report(
    node="gpu-7",
    boot_id="boot-1",
    sequence=5,
    now=Now(7.5, 1.8e9),
    ranks=(
        RankReport(
            job="research/job/train",
            incarnation=2,
            rank=3,
            iterations=[Iteration(7.0, 41, 2201.521, 3317.75), Iteration(7.25)],
            before=40,
            caught_up=False,
            io_bytes=12,
        ),
    ),
    matches=(
        LogMatch(
            rule="nccl-timeout", failure="collective", rank=3, incarnation=2, at_s=7.0, line="x", job="j"
        ),
    ),
    exits=(("research/job/train", RankExit(rank=3, incarnation=2, at_s=7.0, signal=9, oom_killed=True)),),
    checks=(
        CheckResult(check="xid", state=CheckState.FOUND, findings=(FINDING,), took_s=0.25, at_mono_s=7.0),
    ),
    answers=(Answer(order="o-1", sent=(3,), refused={4: "gone"}, capable={3: True}, files={"a": (1, 2)}),),
    fences={"u-3": 120.0},
)
REPORT_TOLD = {
    "node": "gpu-7",
    "boot_id": "boot-1",
    "sequence": 5,
    "now": {"mono_s": 7.5, "wall_s": 1.8e9},
    "ranks": [
        {
            "job": "research/job/train",
            "incarnation": 2,
            "rank": 3,
            "iterations": [
                {"at_s": 7.0, "step": 41, "hardware_ms": 2201.521, "e2e_ms": 3317.75},
                {"at_s": 7.25, "step": None, "hardware_ms": None, "e2e_ms": None},
            ],
            "before": 40,
            "caught_up": False,
            "io_bytes": 12,
        }
    ],
    "matches": [
        {
            "rule": "nccl-timeout",
            "failure": "collective",
            "rank": 3,
            "incarnation": 2,
            "at_s": 7.0,
            "line": "x",
            "job": "j",
        }
    ],
    "exits": [
        ["research/job/train", {"rank": 3, "incarnation": 2, "at_s": 7.0, "signal": 9, "oom_killed": True}]
    ],
    "checks": [
        {"check": "xid", "state": "found", "findings": [FINDING_TOLD], "took_s": 0.25, "at_mono_s": 7.0}
    ],
    "answers": [
        {"order": "o-1", "sent": [3], "refused": {4: "gone"}, "capable": {3: True}, "files": {"a": [1, 2]}}
    ],
    "fences": {"u-3": 120.0},
}
FOLLOW_BODY = Follow(
    job=ProtectedJob(name="research/job/train", policy=Policy(), incarnation=2, size=4),
    pods=(POD,),
    self_fence_s=120.0,
)
ASK_BODY = Ask(what=What.SIGNAL, job="research/job/train", incarnation=2, pods=(POD,), signal="SIGUSR1")
ASK_TOLD = {
    "what": "signal",
    "job": "research/job/train",
    "incarnation": 2,
    "pods": [POD_TOLD],
    "signal": "SIGUSR1",
}
SAID: dict[str, tuple[Struct, dict[str, Any]]] = {
    "hello": (
        Hello(node="gpu-7", boot_id="boot-1", session="s", version="0.1.0", epoch=4),
        {"node": "gpu-7", "boot_id": "boot-1", "session": "s", "version": "0.1.0", "epoch": 4},
    ),
    "welcome": (
        Welcome(protocol=1, epoch=4, report_every_s=5.0, version="0.1.0"),
        {"protocol": 1, "epoch": 4, "report_every_s": 5.0, "version": "0.1.0"},
    ),
    "batch": (
        Batch(
            records=(Numbered(5, REPORT),),
            after=4,
            full=REPORT,
            full_after=3,
            orders="v-1",
            hold_s=20.0,
            dropped=Dropped(progress=1, events=2),
            now=Now(8.0, 1.8e9),
        ),
        {
            "records": [[5, REPORT_TOLD]],
            "after": 4,
            "full": REPORT_TOLD,
            "full_after": 3,
            "orders": "v-1",
            "hold_s": 20.0,
            "dropped": {"progress": 1, "events": 2},
            "now": {"mono_s": 8.0, "wall_s": 1.8e9},
        },
    ),
    "ask": (ASK_BODY, ASK_TOLD),
    "refusal": (
        Refusal(reason="NotLeading", text="t", slow_down_s=1.0, leader="h:1", epoch=4),
        {"reason": "NotLeading", "text": "t", "slow_down_s": 1.0, "leader": "h:1", "epoch": 4},
    ),
}


@pytest.mark.parametrize("what", SAID)
def test_what_one_side_sends_is_what_the_other_has_always_read(what: str) -> None:
    one, told = SAID[what]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one)) == told
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=type(one)) == one


def test_orders_travel_within_an_answer() -> None:
    ask = msgspec.msgpack.encode(ASK_BODY)
    orders = Orders(version="v-2", items=(Order(kind=ASK, id="o-1", body=Raw(ask)),))
    told = {
        "epoch": 4,
        "sequence": 5,
        "refused": [3],
        "spread_s": 1.5,
        "orders": {"version": "v-2", "items": [{"kind": "ask", "id": "o-1", "body": ASK_TOLD}]},
    }
    sent = msgspec.msgpack.encode(Ack(epoch=4, sequence=5, refused=(3,), spread_s=1.5, orders=orders))
    assert msgspec.msgpack.decode(sent) == told
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Ack)
    assert read.orders is not None
    assert msgspec.msgpack.decode(bytes(read.orders.items[0].body), type=Ask) == ASK_BODY


def test_what_an_agent_needs_of_a_job_to_follow_it_keeps_its_names() -> None:
    """The policy grows; what an agent reads of it does not change its name."""
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(FOLLOW_BODY))
    assert FOLLOW == "follow"
    assert told.keys() == {"job", "pods", "self_fence_s"}
    assert (told["pods"], told["self_fence_s"]) == ([POD_TOLD], 120.0)
    assert {"name", "incarnation", "size", "policy"} <= told["job"].keys()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Follow) == FOLLOW_BODY


def test_this_version_speaks_protocol_1() -> None:
    assert (PROTOCOL_MIN, PROTOCOL_MAX) == (1, 1)
