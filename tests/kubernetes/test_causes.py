"""One fatal finding on many nodes, at a real API server: who is isolated, what people are told, and their word."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from sentinel.cluster.kubernetes.codes import key_of
from tests.e2e.box import Running
from tests.kubernetes.conftest import CODES, NAMESPACE
from tests.kubernetes.local_fleet import AUDIENCE, Fleet, Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.test_machines import WIDE, Machines, reasons
from tests.samples import XID_79, lost_gpu

if TYPE_CHECKING:
    from tests.chaos.fleet_nodes import SimNode

CAUSE = "common-cause"
WRONG_RULE = lost_gpu(code="XID 31", summary="GPU memory page fault")
NODES = 9
SETTINGS = {"isolations": WIDE, "poolIsolations": WIDE, "causeNodes": 3, "releaseAfter": "1s"}


class Cause:
    """A leader, people, and nodes that get the same finding."""

    def __init__(self, fleet: Fleet, prefix: str) -> None:
        self.fleet = fleet
        fleet.settings |= {"fleet": SETTINGS, "listen": "127.0.0.1:0"}
        self.leader = fleet.controller(f"{prefix}-one")
        self.leader.said("leads, epoch")
        self.anna = Person(fleet.plane, "anna", bind(fleet.plane, "anna", "sentinel-operator"))
        self.rita = Person(fleet.plane, "rita", bind(fleet.plane, "rita", "sentinel-reader"))
        self.machines = Machines(fleet, self.leader)
        self.many = [self.machines.made(f"{prefix}-{number}") for number in range(NODES)]

    def out(self) -> "list[SimNode]":
        return [node for node in self.many if not self.machines.in_service(node)]

    def held(self) -> dict[str, str]:
        return {
            node.name: one.get("heldBy", "")
            for node in self.many
            for one in self.fleet.records(node.name)
            if one["state"] == "held"
        }

    async def break_all(self) -> None:
        for node in self.many:
            self.machines.join(node)
        for node in self.many:
            node.breaks(WRONG_RULE)
        await self.machines.until(
            lambda: (len(self.out()), [*self.held().values()]) == (2, [CAUSE] * (NODES - 2))
        )

    async def says(self, who: Person, *words: str) -> Any:
        return await asyncio.to_thread(who.says, *words)

    async def move_to(self, leader: Running) -> None:
        """All agents report to this one from now on."""
        for node in self.many:
            await node.stop()
            node.addresses = (f"127.0.0.1:{self.fleet.ports[leader.pid]}",)
            node.start(self.fleet.plane.node_token(NAMESPACE, "sentinel-agent", node.name, audience=AUDIENCE))


def test_a_rule_gone_wrong_isolates_two_nodes_tells_once_and_is_ignored_on_a_persons_word(
    fleet: Fleet,
) -> None:
    cause = Cause(fleet, "rule")
    machines, page = cause.machines, Page(cause.leader)
    later = machines.made("rule-later")

    async def story() -> None:
        await cause.break_all()
        await machines.until(lambda: page.number("brake_held_back", brake=CAUSE) == NODES - 2)
        outbox = fleet.folder / "rule-one" / "outbox"
        await machines.until(lambda: [*outbox.glob("*CommonCause*")])
        text = (await cause.says(cause.rita, "status")).stdout
        assert (
            "COMMON CAUSE: more nodes have XID 31 than chance gives. 7 nodes wait for a person's word" in text
        )
        assert page.get("/")[1].count("COMMON CAUSE") >= 1

        refused = await cause.says(cause.rita, "code", "XID 31", "--ignore")
        assert refused.returncode == 77, "she may only read"
        done = await cause.says(cause.anna, "code", "XID 31", "--ignore", "--why", "the new rule is wrong")
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            "Ignored: no node is isolated for XID 31, and those that were for it alone are given back. "
            "9 nodes have an open quarantine that names it.\n"
        )
        await machines.until(lambda: not cause.out() and not cause.held())
        for node in cause.many:
            (record,) = fleet.records(node.name)
            assert (record["state"], record["endedBy"], record["by"]) == ("released", "person", "anna")
            assert reasons(record)[-1] == "CodeIgnored"
        text = (await cause.says(cause.rita, "status")).stdout
        assert (
            "No node is isolated for XID 31: ignored by anna: the new rule is wrong. `sentinel code 'XID 31' --off`"
            in text
        )
        assert len([*outbox.glob("*CommonCause*")]) == 1, "one message"

        machines.join(later)
        later.breaks(WRONG_RULE)
        fatal = {"component": "gpu", "severity": "fatal", "code": WRONG_RULE.code}
        await machines.until(lambda: page.number("fleet_findings", **fatal) == NODES + 1)
        later.breaks(XID_79)
        await machines.until(lambda: fleet.isolated("rule-later"))
        (record,) = fleet.records("rule-later")
        assert [one["code"] for one in record["findings"]] == ["XID 79"], "what is ignored isolates nobody"
        del later.found[WRONG_RULE.code]
        later.tell()
        await machines.until(lambda: page.number("fleet_findings", **fatal) == NODES)

        back = await cause.says(cause.anna, "code", "XID 31", "--off")
        assert (back.returncode, back.stdout) == (
            0,
            "Taken back: XID 31 counts as any other finding again.\n",
        )
        await machines.until(lambda: (len(cause.out()), len(cause.held())) == (2, NODES - 2))
        assert "Traceback" not in cause.leader.err

    machines.run(story)


def test_real_faults_of_many_nodes_wait_across_a_killed_leader_until_a_person_lets_go_on(
    fleet: Fleet,
) -> None:
    cause = Cause(fleet, "real")
    machines = cause.machines

    async def story() -> None:
        await cause.break_all()
        out = {node.name for node in cause.out()}
        cause.leader.kill()
        second = fleet.controller("real-two")
        await asyncio.to_thread(second.said, "leads, epoch")
        await cause.move_to(second)
        await machines.until(lambda: fleet.unheard() == 0)
        assert {node.name for node in cause.out()} == out
        assert [*cause.held().values()] == [CAUSE] * (NODES - 2)

        done = await cause.says(cause.anna, "code", "XID 31", "--go-on", "--why", "the cooling failed")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Goes on: for a day no node is held back because many have XID 31. ")
        await machines.until(lambda: len(cause.out()) == NODES)
        said = json.loads(fleet.found(CODES)["data"][key_of("XID 31")])
        assert (said["say"], said["who"], said["why"]) == ("go-on", "anna", "the cooling failed")

    machines.run(story)


def test_a_word_that_nobody_can_read_is_told_and_takes_nothing_away(fleet: Fleet) -> None:
    cause = Cause(fleet, "word")
    machines, page = cause.machines, Page(cause.leader)

    async def story() -> None:
        await cause.break_all()
        rubbish = {
            "a": "{",
            "b": '{"code": "XID 31", "say": "yes"}',
            "c": '{"code": "XID 31", "say": "go-on"}',
        }
        meta = {"name": "sentinel-codes", "namespace": NAMESPACE}
        fleet.admin.apply([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": rubbish}])
        said = "the ConfigMap sentinel-codes says nothing readable in"
        await machines.until(lambda: page.get("/")[1].count(said) == 3)
        assert "must say from when" in page.get("/")[1]
        await machines.until(lambda: f"in trouble for 20 s: {said} a" in cause.leader.err)
        assert (len(cause.out()), len(cause.held())) == (2, NODES - 2)
        status = await asyncio.to_thread(cause.rita.status)
        assert len([one for one in status["troubles"] if "sentinel-codes" in one]) == 3
        # A person's own words, by kubectl, are as good as the command's.
        fleet.admin.patch(CODES, {"data": {"a": '{"code": "XID 31", "say": "ignore"}', "b": None, "c": None}})
        await machines.until(lambda: not cause.out() and not cause.held())
        done = await cause.says(cause.anna, "code", "XID 31", "--off")
        assert done.returncode == 0
        assert not fleet.found(CODES).get("data")

    machines.run(story)
