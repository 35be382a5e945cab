"""What joins the agent of a node to its controller: each result of a check goes there, and waits while it cannot."""

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING

import structlog
from msgspec import structs

import sentinel
from sentinel.core.health import CheckResult
from sentinel.core.reports import Report
from sentinel.settings import ControllerLink
from sentinel.util.clock import system_now

if TYPE_CHECKING:
    from sentinel.agent.node import NodeAgent
    from sentinel.transport.client import Client
    from sentinel.transport.wire import Orders

log = structlog.get_logger(__name__)

LOOK_S = 1.0
SAID_AFTER_S = 60.0  # without a controller: as long as it takes the controller to call the agent silent
CODE = "controller-unreachable"
ENTITY = "controller"


class NodeLink:
    """`run` is a service of the agent. New settings of the controller end the old link and begin another."""

    def __init__(self, agent: "NodeAgent") -> None:
        self._agent = agent
        self._client: Client | None = None
        self._sequence = 0
        self._silent_since_s = time.monotonic()
        self._said = False

    def checked(self, result: CheckResult) -> None:
        if self._client is None:
            return
        self._sequence += 1
        self._client.send(
            Report(
                node=self.node,
                boot_id=self._agent.runner.boot_id,
                sequence=self._sequence,
                now=system_now(),
                checks=(result,),
            )
        )

    @property
    def node(self) -> str:
        """The name of this node, as the cluster knows it."""
        return self._agent.settings.controller.node or os.environ.get("NODE_NAME", "") or socket.gethostname()

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """For each version of the settings one link, until cancelled."""
        while True:
            wanted = self._agent.settings.controller
            if not wanted.addresses:
                self._agent.well(CODE, ENTITY)
                self._said = False
                await asyncio.sleep(LOOK_S)
                continue
            self._client = self._new(wanted)
            for result in (*self._agent.runner.over, *self._agent.runner.results()):
                self.checked(result)
            self._agent.jobs.fence.ordered()  # the new link has told nothing yet
            running = asyncio.create_task(self._client.run())
            try:
                while self._agent.settings.controller == wanted and not running.done():
                    self._show(self._client)
                    await asyncio.wait({running}, timeout=LOOK_S)
                if running.done():
                    running.result()  # what broke it is told by the owner of this service
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                self._client.close()
                self._client = None

    def _new(self, wanted: ControllerLink) -> "Client":
        from sentinel.transport.client import Client, ClientSettings

        self._silent_since_s = time.monotonic()
        folder = self._agent.folder / "controller"
        folder.mkdir(mode=0o700, exist_ok=True)
        return Client(
            ClientSettings(
                node=self.node,
                boot_id=self._agent.runner.boot_id,
                addresses=wanted.addresses,
                token_path=wanted.token_file,
                bundle_path=wanted.ca_file,
                folder=str(folder),
                version=sentinel.__version__,
            ),
            self._ordered,
            self._agent.jobs.fence.reached,
        )

    def measure(self) -> None:
        """Numbers for /metrics, as they are now."""
        if self._client is not None:
            spool = self._client.spool
            self._agent.metrics.controller_link(
                connected=bool(self._client.status.address),
                waiting=spool.waiting,
                dropped={kind.value: count for kind, count in spool.dropped.items()},
            )

    def _show(self, client: "Client") -> None:
        """A finding of this node where nobody hears it."""
        status = client.status
        if status.address:
            self._silent_since_s = time.monotonic()
            self._agent.well(CODE, ENTITY)
            self._said = False
        elif not self._said and time.monotonic() - self._silent_since_s > SAID_AFTER_S:
            self._said = True
            problem = status.problem or "not reached yet"
            text = "No controller takes the reports of this node: they wait on its disk"
            self._agent.notice(CODE, ENTITY, text, problem, "CHECK_SETTINGS")

    def reported(self, report: Report) -> None:
        """Of jobs."""
        if self._client is not None:
            self._sequence += 1
            self._client.send(structs.replace(report, sequence=self._sequence))

    def fences(self, pods: dict[str, float]) -> int:
        """All pods that this agent ends by itself: see Report.fences. Returns what to ask `took` for."""
        report = Report(
            node=self.node, boot_id=self._agent.runner.boot_id, sequence=0, now=system_now(), fences=pods
        )
        self.reported(report)
        return self._client.spool.last if self._client is not None else 0

    def took(self, number: int) -> bool:
        """Has a controller taken everything up to this report?"""
        client = self._client
        return client is not None and bool(client.status.address) and client.spool.acked >= number

    def forget(self, job: str) -> None:
        if self._client is not None:
            self._client.forget(job)

    def _ordered(self, orders: "Orders") -> None:
        self._agent.jobs.ordered(orders)
