"""A rack that is lost and comes back, at a real API server: what its nodes' records say, and what people are told."""

import asyncio
import email
import email.policy

from tests.kubernetes.conftest import NAMESPACE, protect_all, with_job
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.local_fleet import AUDIENCE, Fleet, Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.test_machines import Machines, reasons

LOST = 4
WELL = 13  # more than a quarter of all would not be judged
SILENCES = {"lease": "20s", "agentSilent": "30s"}


def test_a_lost_rack_is_one_message_and_that_it_is_back_another(fleet: Fleet, kubelets: Kubelets) -> None:
    fleet.settings |= {"fleet": SILENCES, "listen": "127.0.0.1:0"}
    leader = fleet.controller("one")
    leader.said("leads, epoch")
    page = Page(leader)
    rita = Person(fleet.plane, "rita", bind(fleet.plane, "rita", "sentinel-reader"))
    machines = Machines(fleet, leader)
    rack = [machines.made(f"rack-{number}") for number in range(LOST)]
    well = [machines.made(f"well-{number}") for number in range(WELL)]
    names = {node.name for node in machines.all}
    namespace = fleet.plane.namespace("lost")

    def silences() -> list[list[str]]:
        """The reasons of each node of the rack."""
        return [reasons(one) for node in rack for one in fleet.records(node.name)]

    def mails(stage: str) -> list[email.message.EmailMessage]:
        found = (fleet.folder / "one" / "outbox").glob(f"*{stage}*.eml")
        return [email.message_from_bytes(one.read_bytes(), policy=email.policy.default) for one in found]

    def lines(about: str) -> list[str]:
        return [line for line in leader.err.splitlines() if about in line and "fleet_decided" not in line]

    async def story() -> None:
        for node in machines.all:
            machines.join(node)
        for number, node in enumerate(rack):
            with_job(fleet.plane, f"llama-{number}", namespace, node.name)
        fleet.admin.create(protect_all(namespace))
        kubelets.renewed = set(names)
        await machines.until(lambda: kubelets.renewals > 2 and fleet.unheard() == 0)
        for node in rack:  # its power is gone
            await node.stop()
        kubelets.renewed -= {node.name for node in rack}

        await machines.until(lambda: silences() == [["Unreachable", "Unfenced"]] * LOST)
        await machines.until(lambda: mails("Unreachable"))
        (mail,) = mails(".")
        assert mail["Subject"] == f"[sentinel] {LOST} nodes: unreachable"
        text = " ".join(mail.get_body(("plain",)).get_content().split())  # type: ignore[union-attr]
        for said in (
            "rack-0, rack-1, rack-2, rack-3",
            "Protected jobs have 4 pods there, which stay",
            "jobs there: Job lost-",
        ):
            assert said in text, f"{said!r} not in\n{text}"
        await machines.until(lambda: lines("cannot be reached"))
        (line,) = lines("cannot be reached")
        assert "4 nodes cannot be reached" in line
        shown = (await asyncio.to_thread(rita.says, "status")).stdout
        assert "LOST TOGETHER: 4 nodes fell silent within" in shown
        assert "LOST TOGETHER" in page.get("/")[1]

        token = {
            node.name: fleet.plane.node_token(NAMESPACE, "sentinel-agent", node.name, audience=AUDIENCE)
            for node in rack
        }
        for node in rack:
            node.start(token[node.name])
        kubelets.renewed = set(names)
        await machines.until(lambda: silences() == [["Unreachable", "Unfenced", "SpeaksAgain"]] * LOST)
        await machines.until(lambda: mails("SpeaksAgain"))
        (back,) = mails("SpeaksAgain")
        assert back["Subject"] == f"[sentinel] {LOST} nodes: heard again"
        assert len(mails(".")) == 2
        shown = (await asyncio.to_thread(rita.says, "status")).stdout
        assert "LOST TOGETHER" not in shown
        assert not any(fleet.records(node.name) for node in well)
        assert all(machines.in_service(node) for node in machines.all)
        assert "Traceback" not in leader.err

    machines.run(story)
