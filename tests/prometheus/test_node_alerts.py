"""Each alert about nodes and Sentinel itself: it happens to a real controller, and the person on call gets a mail.

What does not happen by itself is done to it: an API server that refuses, a mail server that knows nobody, a small disk,
a library with a bug.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.chaos.fleet_nodes import XID_48, SimNode
from tests.core.fleet_world import a_nic_finding
from tests.disks import small_tmpfs
from tests.e2e.agent_node import Node
from tests.e2e.box import Box
from tests.kubernetes.conftest import protect_all, quarantine, with_job
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.local_fleet import Fleet, Page
from tests.kubernetes.proxy import Fault, Proxy
from tests.kubernetes.test_causes import WRONG_RULE
from tests.kubernetes.test_machines import WIDE, Machines, reasons
from tests.notify.mail_world import MailServer
from tests.prometheus.watched import OnCall, Watched
from tests.rig.processes import free_port
from tests.samples import XID_79
from tests.transport.given import Mounted
from tests.waits import eventually

pytestmark = pytest.mark.timeout(1800)
SHOWN = {
    "SentinelCertificateExpires",
    "SentinelCheckBlind",
    "SentinelClockWrong",
    "SentinelCommonCause",
    "SentinelEffectFails",
    "SentinelException",
    "SentinelFenceFails",
    "SentinelLoopLags",
    "SentinelMailGivenUp",
    "SentinelNetworkIncident",
    "SentinelNodeUnreachable",
    "SentinelNodeWaitsForRepair",
    "SentinelNotJudging",
    "SentinelRecordsNotSaved",
    "SentinelRecordsUnreadable",
    "SentinelReportsDropped",
    "SentinelWatchBroken",
}
GONE = "gone@example.com"  # the administrator's address, which nobody has any more
ALWAYS = 10_000  # times
SILENT_S = 30
LAG_S = 3.0  # more than the alert asks for, less than a Lease lasts
BUG = """
import os, urllib.parse
quote = urllib.parse.quote
def broken(*words, **more):
    if os.path.exists({switch!r}):
        raise RuntimeError("a bug")
    return quote(*words, **more)
urllib.parse.quote = broken
"""


class World:
    """A leader that loses its nodes, its API server and its mail, and who is told of it."""

    def __init__(self, fleet: Fleet, behind: Proxy, kubelets: Kubelets, smtp_port: int) -> None:
        self.fleet, self.behind, self.kubelets = fleet, behind, kubelets
        self.folder = fleet.folder
        self.page = f"127.0.0.1:{free_port()}"
        self.bug = self.folder / "bug"  # a library has one while this file is there
        (self.folder / "broken").mkdir()
        (self.folder / "broken" / "sitecustomize.py").write_text(BUG.format(switch=str(self.bug)))
        self.authority, self.certificates = trustme.CA(), Mounted(self.folder / "tls")
        self.certificates.by(self.authority)
        files = zip(("certFile", "keyFile", "caFile"), ("tls.crt", "tls.key", "ca.crt"), strict=True)
        fleet.settings = {
            "listen": self.page,
            "pageUrl": f"http://{self.page}/",
            "certificates": {name: str(self.folder / "tls" / file) for name, file in files},
            "fleet": {
                "isolations": WIDE,
                "poolIsolations": WIDE,
                "causeNodes": 3,
                "networkSettle": "4m",
                "lease": "20s",
                "agentSilent": f"{SILENT_S}s",
                "fence": {"command": ["/bin/false"], "after": "30s"},
            },
            "mail": {
                "host": "127.0.0.1",
                "port": smtp_port,
                "tls": "none",
                "sender": "s@example.com",
                "admins": [GONE],
            },
        }
        fleet.goes_through(behind)
        fleet.box.env["PYTHONPATH"] = str(self.folder / "broken")
        self.leader = fleet.controller("one")
        del fleet.box.env["PYTHONPATH"]
        self.leader.said("leads, epoch")
        self.machines = Machines(fleet, self.leader)

    def nodes(self, *names: str) -> list[SimNode]:
        made = [self.machines.made(name) for name in names]
        for node in made:
            node.skew(0.0)
        return made

    def join(self, nodes: list[SimNode]) -> None:
        for node in nodes:
            self.machines.join(node)
            self.kubelets.renewed.add(node.name)

    async def lose(self, *nodes: SimNode) -> None:
        """Agent and kubelet."""
        for node in nodes:
            self.kubelets.renewed.discard(node.name)
            await node.stop()


class CutOff:
    """A real agent that reaches no controller, with a check that never sees anything."""

    def __init__(self, folder: Path, box: Box) -> None:
        folder.mkdir()
        self.node = Node(box)
        for name in ("token", "ca.crt"):
            (folder / name).write_text("nobody asks")
        link = {
            "addresses": [f"127.0.0.1:{free_port()}"],
            "node": "cut-off",
            "tokenFile": str(folder / "token"),
            "caFile": str(folder / "ca.crt"),
        }
        own = [{"name": "blind", "command": ["/bin/sh", "-c", "exit 3"], "interval": "10s"}]
        self.node.settings(listen="127.0.0.1:0", controller=link, ownChecks=own)
        self.agent = self.node.start()
        self.page = self.agent.err.rpartition("findings on http://")[2].split()[0].rstrip("/")
        self._faults = 0

    def breaks(self) -> None:
        """Faults of many cards at once, more than there is room for on its disk while nobody takes them."""
        for _ in range(200):
            self._faults += 1
            slot, bus, code = self._faults % 32, self._faults // 32 % 200, self._faults % 90 + 10
            self.node.machine.log(f"NVRM: Xid (PCI:0000:{bus:02x}:{slot:02x}): {code}, pid=77, name=train")


def test_each_alert_of_nodes_and_of_sentinel_itself_comes_for_its_fault_as_a_mail(
    fleet: Fleet, behind: Proxy, kubelets: Kubelets, tmp_path: Path
) -> None:
    box = Box(tmp_path / "cut-off")
    with (
        small_tmpfs(box.state, "1100k"),
        contextlib.closing(box),
        MailServer(on_rcpt=lambda to: "550 5.1.1 no such user" if to == GONE else None) as server,
    ):
        world = World(fleet, behind, kubelets, server.port)
        cut = CutOff(tmp_path / "link", box)
        targets = {"controllers": [world.page], "agents": [cut.page]}
        with Watched(tmp_path / "watch", targets, server.port, hour_s=1.0) as watch:
            story = Story(world, cut, watch, OnCall(server, world.page))
            world.machines.run(story.all_of_it)
    assert story.on_call.knows == SHOWN


class Story:
    def __init__(self, world: World, cut: CutOff, watch: Watched, on_call: OnCall) -> None:
        self.world, self.cut, self.watch, self.on_call = world, cut, watch, on_call
        self.well = world.nodes(*(f"well-{number}" for number in range(8)))
        self.switch = world.nodes(*(f"switch-{number}" for number in range(4)))
        self.rule = world.nodes(*(f"rule-{number}" for number in range(5)))
        self.lost, self.unmarked, self.unsaved = world.nodes("lost", "unmarked", "unsaved")

    async def told(self, *alerts: str, since: int = 0, says: str = "") -> None:
        for alert in alerts:
            await self.until(
                lambda alert=alert: self.on_call.told(alert, since, says), f"no mail of {alert} {says}"
            )

    async def until(self, what: Callable[[], Any], about: str = "") -> None:
        def why() -> str:
            return f"{about}\n{self.watch.firing()}\n{self.watch.story()}\n{self.world.fleet.story()}"

        await eventually(what, why, every_s=0.2)

    async def all_of_it(self) -> None:
        world, fleet = self.world, self.world.fleet
        space = fleet.plane.namespace("alerts")
        world.join([*self.well, *self.switch, *self.rule, self.lost, self.unmarked, self.unsaved])
        fleet.admin.create(protect_all(space))
        with_job(fleet.plane, "rank", space, self.lost.name)
        await self.until(lambda: fleet.unheard() == 0)
        # Without the minutes that alerts wait: there is one controller, and one check sees nothing.
        expected = {"SentinelNoStandby", "SentinelCheckBlind"}
        await self.until(lambda: self.watch.up() and self.watch.firing() == expected)

        await world.lose(self.lost)
        await self._nodes_break()
        await self.told("SentinelNodeUnreachable")
        cut_s = time.monotonic()
        await self._the_api_server_refuses()
        await self._sentinel_is_in_trouble()
        await self._the_agent_is_cut_off()
        await self.told("SentinelFenceFails")
        await self.until(lambda: time.monotonic() - cut_s > 2 * SILENT_S)
        (record,) = fleet.records(self.lost.name)
        assert "SpeaksAgain" not in reasons(record), "told as heard again, when watches were cut"
        before = self.on_call.mails
        await world.lose(*self.well)
        await self.told("SentinelNotJudging", since=before, says="mass-silence")

    async def _nodes_break(self) -> None:
        for node in self.switch:
            node.breaks(a_nic_finding())
        await self.told("SentinelNetworkIncident")
        for node in self.rule:
            node.breaks(WRONG_RULE)
        await self.told("SentinelCommonCause", "SentinelNodeWaitsForRepair")
        await self.told("SentinelMailGivenUp")  # those of the two that were isolated

    async def _the_api_server_refuses(self) -> None:
        fleet, behind = self.world.fleet, self.world.behind
        unsaved = self.unsaved.name.encode()
        behind.faults = [
            Fault(method="PATCH", path=f"/nodes/{self.unmarked.name}", times=ALWAYS, answer=500),
            Fault(path="/quarantines", says=unsaved, times=ALWAYS, answer=500),
            Fault(method="GET", path="/jobpolicies", times=ALWAYS, answer=403),
            Fault(method="WATCH", path="/jobpolicies", times=ALWAYS, answer=403),
        ]
        behind.cut_watches()
        self.unmarked.breaks(XID_79)
        self.unsaved.breaks(XID_48)
        await self.told("SentinelEffectFails", "SentinelRecordsNotSaved", "SentinelWatchBroken")
        behind.faults = []
        await self.until(lambda: all(map(fleet.isolated, (self.unmarked.name, self.unsaved.name))))

    async def _sentinel_is_in_trouble(self) -> None:
        world, admin = self.world, self.world.fleet.admin
        record = quarantine("unreadable", 1)
        record["spec"]["since"] = "0000-01-01T00:00:00Z"  # a year that API servers read and Python does not
        admin.create(record)
        world.certificates.by(world.authority, not_after=datetime.now(UTC) + timedelta(hours=2))
        world.bug.touch()
        try:
            assert (await asyncio.to_thread(Page(world.leader).get, "/"))[0] == 500
        finally:
            world.bug.unlink()
        for node in world.machines.all:
            node.skew(3600.0)
            node.tell()
        await self.told("SentinelRecordsUnreadable", "SentinelException", "SentinelClockWrong")
        await self.told("SentinelCertificateExpires")
        before, stopped_s = self.on_call.mails, time.monotonic()
        world.leader.send(signal.SIGSTOP)
        try:
            await self.until(lambda: time.monotonic() - stopped_s > LAG_S)
        finally:
            world.leader.send(signal.SIGCONT)
        await self.told("SentinelLoopLags", since=before)

    async def _the_agent_is_cut_off(self) -> None:
        def dropped() -> bool:
            self.cut.breaks()
            return "SentinelReportsDropped" in self.watch.firing()

        await self.until(dropped)
        await self.told("SentinelReportsDropped", "SentinelCheckBlind")
