"""What a controller serves beside its agents: the status page, /metrics, /healthz (do its loops turn?) and /readyz
(could it lead?)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.lease import Election
from sentinel.cluster.kubernetes.own_kinds import OwnKinds
from sentinel.controller.cluster_jobs import troubles as job_troubles
from sentinel.controller.cluster_jobs.leading import LeadingJobs
from sentinel.controller.daemon.page_orders import PageOrders
from sentinel.controller.daemon.site import NOT_YET, FleetSite
from sentinel.controller.effects.notify_nodes import NodeNotifier
from sentinel.controller.nodes.fold import FleetController
from sentinel.controller.nodes.troubles import NOT_READY, of_epochs
from sentinel.controller.troubles import Trouble, alone
from sentinel.core.agents.epochs import Epochs
from sentinel.metrics.exposition import CONTENT_TYPE
from sentinel.metrics.registry import Metrics
from sentinel.service.health import Health, LagMeter
from sentinel.transport.certs import Keeper
from sentinel.transport.open_files import too_few
from sentinel.transport.server import Server
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError
from sentinel.web import runbooks
from sentinel.web.server import Asked, Place, Route, Told, serve_routes

log = structlog.get_logger(__name__)

Answer = tuple[int, str, bytes]
API_SERVER = {"API server": "the API server has not answered yet"}
LISTEN_AGAIN_S = 2.0
CONNECTIONS = 64  # at once: of people's browsers, scrapers and the kubelet
# Each request to the API server ends within 10 s, and each one that ends counts as a turn.
LOOP_LIMIT_S = 60.0


class Parts(Struct, frozen=True):
    """Of a controller that has begun."""

    fleet: KubernetesFleet
    controller: FleetController
    server: Server
    election: Election
    certificates: Keeper
    mail: NodeNotifier
    jobs: LeadingJobs
    orders: PageOrders
    files: int  # that may be open at once
    epochs: Epochs
    kinds: OwnKinds


class Pages:
    """`run` serves until it is cancelled. `parts` is set when the API server has answered for the first time.
    `waits_for`: what it says until then. `settings`: what `troubles` says of those that have changed since."""

    def __init__(self, listen: str, metrics: Metrics, clock: Clock, say: Callable[[str], None]) -> None:
        self.parts: Parts | None = None
        self.waits_for: Mapping[str, str] = API_SERVER
        self.settings: dict[str, str] = {}
        self.health = Health()
        self._listen, self._metrics, self._clock, self._say = listen, metrics, clock, say

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(LagMeter(self.health, lambda: None).run())
            if self._listen:
                group.create_task(self._serve())

    async def _serve(self) -> None:
        routes = (
            Route("/metrics", self._numbers),
            Route("/healthz", lambda: _told(self.problems())),
            Route("/readyz", lambda: _told(self.missing())),
        )
        site = FleetSite(lambda: self.parts, self._shown, self._clock)
        places = [*site.places(), *runbooks.places(), *self._orders()]
        said = ""
        while True:
            try:
                server = await serve_routes(
                    self._listen,
                    routes,
                    self._metrics,
                    places=places,
                    connections=CONNECTIONS,
                    everywhere=True,
                )
            except PermanentError as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"page, metrics and health are not served: {said}")
                    log.warning("page_not_served", why=said)
                await asyncio.sleep(LISTEN_AGAIN_S)
                continue
            self._say(f"page, metrics and health on {server.url}")
            try:
                await asyncio.Event().wait()
            finally:
                await server.close()

    def _orders(self) -> list[Place]:
        """What signed in people order, once there is somebody who could follow it."""

        def of(work: Callable[[PageOrders, Asked], Awaitable[Told]]) -> Callable[[Asked], Awaitable[Told]]:
            async def answer(asked: Asked) -> Told:
                return NOT_YET if self.parts is None else await work(self.parts.orders, asked)

            return answer

        return [
            Place("/api/v1/me", of(PageOrders.me), post=True),
            Place("/api/v1/orders", of(PageOrders.order), post=True),
        ]

    # ------------------------------------------------------------ answers

    def _numbers(self) -> Answer:
        metrics = self._metrics
        metrics.loop_lag(self.health.lag_s(self.health.now_s()))
        metrics.degraded(len(self.troubles()))
        parts = self.parts
        if parts is not None:
            leads = parts.election.leading
            metrics.leading(leads, parts.election.leader.epoch, parts.election.left_s)
            metrics.paused(bool(parts.fleet.paused))
            if leads:
                parts.controller.measure()
            parts.fleet.measure(metrics)
            parts.server.measure(metrics)
            parts.certificates.measure(metrics)
            parts.mail.measure(metrics)
            parts.jobs.measure(metrics)
        else:
            metrics.leading(False, 0)
        return 200, CONTENT_TYPE, metrics.render()

    def problems(self) -> list[str]:
        """Why it should be started again. An API server that is away is no reason: that would not help."""
        found = self.health.problems(self.health.now_s(), ())
        if self.parts is not None:
            now_s = self._clock().mono_s
            turned = {
                "the election": self.parts.election.turned_mono_s,
                "the leader's loop": self.parts.controller.turned_mono_s,
            }
            for name, at_s in turned.items():
                if at_s is not None and now_s - at_s > LOOP_LIMIT_S:
                    found.append(f"{name} has not turned for {now_s - at_s:.0f} s")
        return found

    def missing(self) -> list[str]:
        """Why it could not lead now, or does not do it well; of a standby too."""
        return [one.text for one in self._missing().values()]

    def troubles(self) -> dict[str, Trouble]:
        """By name: what is missing or has changed, and of the leader also what it cannot do."""
        return self._missing() | self._of_leader() | self._of_parts() | alone(self.settings)

    def _missing(self) -> dict[str, Trouble]:
        if self.parts is None:
            return alone(self.waits_for)
        found = alone({text.partition(":")[0]: text for text in self.parts.fleet.problems})
        if self.parts.kinds.missing:
            found["custom resources"] = Trouble(self.parts.kinds.problem, self.parts.kinds.missing)
        election = self.parts.election
        if election.leading:
            troubles = self._of_leader()
            if self.parts.controller.turned_mono_s is None:
                found["take-over"] = Trouble("it leads and has not read everything yet")
            found |= {
                name: troubles[name] for name in (*NOT_READY, *job_troubles.NOT_READY) if name in troubles
            }
        elif not election.leader.identity:
            found["leader"] = Trouble("nobody leads")
        return found

    def _shown(self) -> list[str]:
        """On the page. What cannot be read of people's words about codes stands among its notes."""
        return [one.text for name, one in self.troubles().items() if name != "codes"]

    def _of_parts(self) -> dict[str, Trouble]:
        if self.parts is None:
            return {}
        found = {
            "open files": too_few(self.parts.server.limits, self.parts.files, len(self.parts.fleet.nodes())),
            "certificates": self.parts.certificates.trouble(),
        }
        return alone(found)

    def _of_leader(self) -> dict[str, Trouble]:
        if self.parts is None or not self.parts.election.leading:
            return {}
        epochs = of_epochs(self.parts.epochs.unbelieved)
        return {**self.parts.controller.troubles(), **self.parts.jobs.troubles(), **epochs}


def _told(problems: Iterable[str]) -> Answer:
    text = "".join(f"{problem}\n" for problem in problems)
    return 503 if text else 200, "text/plain; charset=utf-8", (text or "ok\n").encode()
