"""A rack that is lost and comes back, at a real API server: what its nodes' records say, and what people are told."""

import asyncio
import email
import email.policy
import re

from tests.kubernetes.conftest import NAMESPACE, QUARANTINES, protect_all, with_job
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.local_fleet import AUDIENCE, Fleet, Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.test_machines import Machines, reasons

LOST = 100
WELL = 4  # whose agents are heard
OTHERS = 300  # nodes of which only the kubelets are: more than a quarter of all would not be judged
SILENCES = {"lease": "20s", "agentSilent": "30s"}  # the shortest: kubelets are silent before agents are


def test_a_hundred_lost_nodes_are_one_message_and_that_they_are_back_another(
    fleet: Fleet, kubelets: Kubelets
) -> None:
    fleet.settings |= {"fleet": SILENCES, "listen": "127.0.0.1:0"}
    leader = fleet.controller("one")
    leader.said("leads, epoch")
    page = Page(leader)
    rita = Person(fleet.plane, "rita", bind(fleet.plane, "rita", "sentinel-reader"))
    machines = Machines(fleet, leader)
    rack = [machines.made(f"rack-{number:02d}") for number in range(LOST)]
    well = [machines.made(f"well-{number}") for number in range(WELL)]
    others = [f"other-{number}" for number in range(OTHERS)]
    names = {*(node.name for node in machines.all), *others}
    namespace = fleet.plane.namespace("lost")

    def silences() -> dict[str, list[str]]:
        """The reasons of each record, by its node. A node has one."""
        found = [one["spec"] for one in fleet.admin.items(QUARANTINES)]
        told = {one["node"]: reasons(one) for one in found}
        assert len(told) == len(found)
        return told

    def all_of_the_rack(*told: str) -> bool:
        return silences() == {node.name: list(told) for node in rack}

    def mails(stage: str) -> list[email.message.EmailMessage]:
        found = (fleet.folder / "one" / "outbox").glob(f"*{stage}*.eml")
        return [email.message_from_bytes(one.read_bytes(), policy=email.policy.default) for one in found]

    def lines(about: str) -> list[str]:
        return [line for line in leader.err.splitlines() if about in line and "fleet_decided" not in line]

    def made() -> None:
        for name in names:
            fleet.plane.node(name)
        for number, node in enumerate(rack):
            machines.boot(node)
            with_job(fleet.plane, f"llama-{number}", namespace, node.name)

    def token(name: str) -> str:
        return fleet.plane.node_token(NAMESPACE, "sentinel-agent", name, audience=AUDIENCE)

    async def story() -> None:
        await asyncio.to_thread(made)
        kubelets.renewed = set(names)
        fleet.admin.create(protect_all(namespace))
        for node in machines.all:
            node.start(await asyncio.to_thread(token, node.name))
        await machines.until(lambda: kubelets.renewals > 2 and fleet.unheard() == OTHERS)
        kubelets.renewed -= {node.name for node in rack}
        for node in rack:  # its power is gone
            await node.stop()

        await machines.until(lambda: all_of_the_rack("Unreachable", "Unfenced"))
        await machines.until(lambda: mails("Unreachable"))
        shown = (await asyncio.to_thread(rita.says, "status")).stdout
        assert f"LOST TOGETHER: {LOST} nodes fell silent within" in shown
        assert page.get("/")[1].count("LOST TOGETHER") == 1
        (mail,) = mails(".")
        assert mail["Subject"] == f"[sentinel] {LOST} nodes: unreachable"
        text = " ".join(mail.get_body(("plain",)).get_content().split())  # type: ignore[union-attr]
        for said in ("rack-00, rack-01, rack-02", f"Protected jobs have {LOST} pods there, which stay"):
            assert said in text, f"{said!r} not in\n{text}"
        # Those that fall silent in one round are one line: on a slow machine a rack takes more than one.
        told = [re.findall(r"(\d+) nodes cannot be reached", line) for line in lines("cannot be reached")]
        assert sum(int(count) for (count,) in told) == LOST
        assert len(told) < LOST / 10

        kubelets.renewed = set(names)  # kubelets are back before the agents that they start
        renewals = kubelets.renewals
        await machines.until(lambda: kubelets.renewals > renewals + 2)
        for node in rack:
            node.start((fleet.folder / f"{node.name}.token").read_text())
        await machines.until(lambda: all_of_the_rack("Unreachable", "Unfenced", "SpeaksAgain"))
        await machines.until(lambda: mails("SpeaksAgain"))
        (back,) = mails("SpeaksAgain")
        assert back["Subject"] == f"[sentinel] {LOST} nodes: heard again"
        assert len(mails(".")) == 2
        shown = (await asyncio.to_thread(rita.says, "status")).stdout
        assert "LOST TOGETHER" not in shown
        assert all(machines.in_service(node) for node in (*rack[:3], *well))
        assert "Traceback" not in leader.err

    machines.run(story)
