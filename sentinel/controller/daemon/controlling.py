"""Joins the parts of a controller: election, certificates, agents' server, the cluster, and what it decides."""

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import structlog
from msgspec import structs

import sentinel
from sentinel.cluster.kubernetes import identity
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.codes import FOLLOWED as CODES
from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.lease import UNHEARD, Election
from sentinel.cluster.kubernetes.own_kinds import OwnKinds
from sentinel.cluster.kubernetes.pause import PAUSED
from sentinel.controller.cluster_jobs.heard import JobNodes
from sentinel.controller.cluster_jobs.leading import LeadingJobs
from sentinel.controller.daemon.daily import DailySummary
from sentinel.controller.daemon.judging import judge
from sentinel.controller.daemon.page_orders import PageOrders
from sentinel.controller.daemon.pages import API_SERVER, Pages, Parts
from sentinel.controller.daemon.slow_work import SlowWork
from sentinel.controller.effects.notify import Waiting
from sentinel.controller.effects.notify_nodes import NodeNotifier
from sentinel.controller.nodes.fold import FleetController
from sentinel.controller.nodes.recording import Recorder
from sentinel.controller.troubles import Troubles
from sentinel.core.agents.epochs import Epochs, agent_of
from sentinel.core.fleet.fence import unreached
from sentinel.core.fleet.isolate import standing
from sentinel.core.fleet.model import Mode, NodeMail
from sentinel.core.fleet.settings import FleetSettings, fleet_settings
from sentinel.core.now import Now
from sentinel.metrics.registry import Metrics
from sentinel.notify.compose_many import notice_request
from sentinel.notify.compose_nodes import Place
from sentinel.service.settings_watch import SettingsWatch
from sentinel.settings import Settings
from sentinel.transport.auth import Authenticator
from sentinel.transport.certs import Certificates, Conflict, Keeper, Unusable
from sentinel.transport.given_certs import GivenCertificates
from sentinel.transport.limits import Limits
from sentinel.transport.open_files import fitting, room_for
from sentinel.transport.server import Server
from sentinel.transport.wire import Alive, Arrived
from sentinel.util.clock import system_now
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

AUDIENCE = "sentinel-controller"
AGENT = "sentinel-agent"  # the agents' service account
LOOK_S = 0.5
TROUBLES_S = 2.0
BEGIN_AGAIN_S = 2.0
KINDS_S = 30.0
SERVICE_PAUSE_S = 1.0
MAIL_S = 3.0  # at the end, for a mail that is on its way, and again for its record


class _Discovery(msgspec.Struct):
    issuer: str


class Controlling:
    """`run` ends at SIGTERM or SIGINT. Raises PermanentError where it cannot begin."""

    def __init__(
        self, settings: Settings, args: argparse.Namespace, host: str, port: int, say: Callable[[str], None]
    ) -> None:
        self._settings, self._args, self._stderr = settings, args, say
        self._watch = SettingsWatch(args.settings, settings)
        self._host, self._port = host, port
        self._namespace = args.namespace or os.environ.get("POD_NAMESPACE", "") or "sentinel-system"
        self._name = os.environ.get("POD_NAME", "") or socket.gethostname()
        self._stop = asyncio.Event()
        self._leading: asyncio.Task[None] | None = None
        self._metrics = Metrics()
        if settings.page_url and settings.listen:
            self._metrics.page(settings.page_url.rstrip("/"))
        self._epochs = Epochs()
        self._pages = Pages(settings.listen, self._metrics, system_now, self._say)
        self._slow = SlowWork(self._metrics.exception)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        pages = asyncio.create_task(self._kept("page", self._pages.run), name="page")
        try:
            async with await Client.connect(self._args.kubeconfig, metrics=self._metrics) as client:
                await self._run(client)
        finally:
            pages.cancel()
            await asyncio.gather(pages, return_exceptions=True)

    async def _run(self, client: Client) -> None:
        certificates = self._certificates(client)
        issuer = await self._begun(client, certificates)
        if issuer is None:
            return
        allowed = self._fleet_settings()
        self._fleet = KubernetesFleet(
            client,
            allowed,
            lambda: self._election.epoch(),
            self._epochs,
            self._name,
            self._changed,
            system_now,
            self._namespace,
            judge(self._settings),
        )
        recorder = self._recorder()
        self._controller = FleetController(
            self._fleet,
            allowed,
            system_now,
            self._say,
            lambda: self._server.crowded_ago_s(),
            self._metrics,
            recorder,
        )
        self._jobs = LeadingJobs(
            client,
            self._fleet,
            JobNodes(
                self._controller.for_jobs.findings,
                self._controller.nodes.ailing,
                self._controller.for_jobs.draining,
                lambda: standing(self._fleet.records.values()),
                lambda: unreached(self._fleet.records.values()),
                self._controller.for_jobs.isolated,
                self._controller.for_jobs.lost,
                self._controller.for_jobs.returned,
                self._controller.for_jobs.back_lately,
                system_now,
            ),
            lambda: self._election.epoch(),
            self._epochs,
            self._name,
            self._settings,
            allowed,
            self._metrics,
            self._say,
            lambda node: self._server.orders_changed(node),
        )
        place = Place(name=self._namespace, cluster=issuer)
        files = room_for(Limits())
        self._mail = NodeNotifier(
            self._settings,
            self._controller.to_tell,
            self._record_mail,
            lambda: place,
            self._notices,
        )
        self._controller.mail_waits = self._mail.wake
        self._place = place
        self._server = Server(
            authenticator=Authenticator(
                issuer=issuer,
                audience=AUDIENCE,
                subjects=frozenset({f"system:serviceaccount:{self._namespace}:{AGENT}"}),
                keys=lambda: identity.published_keys(client),
                review=identity.reviewer(client, AUDIENCE),
            ),
            tls=certificates.tls,
            take=self._arrived,
            alive=self._alive,
            newer=self._newer,
            orders=self._jobs.orders,
            uid_of=self._fleet.uid_of,
            limits=fitting(Limits(), files),
            version=sentinel.__version__,
        )
        try:
            port = await self._server.start(self._host, self._port)
        except OSError as error:
            text = f"cannot listen on {self._host}:{self._port}: {error.strerror}"
            raise PermanentError(text, "CannotListen") from None
        address = self._args.address or f"{os.environ.get('POD_IP') or socket.gethostname()}:{port}"
        self._election = Election(
            client,
            self._epochs,
            identity=f"{self._name}-{secrets.token_hex(4)}",
            namespace=self._namespace,
            address=address,
            notes=lambda: {
                PAUSED: self._fleet.paused or None,
                CODES: self._fleet.codes_version or None,
                UNHEARD: str(self._controller.nodes.unheard),
                **self._daily.notes(),
            },
        )
        self._kinds = OwnKinds(client)
        self._pages.parts = parts = Parts(
            self._fleet,
            self._controller,
            self._server,
            self._election,
            certificates,
            self._mail,
            self._jobs,
            PageOrders(client, self._fleet, self._namespace, lambda: self._election.leading),
            files,
            self._epochs,
            self._kinds,
        )
        self._daily = DailySummary(
            self._settings,
            place,
            parts,
            lambda: [one.text for one in self._pages.troubles().values()],
            self._mail.wake,
            system_now,
        )
        self._slow.every("certificates", certificates.look_s, certificates.look)
        self._slow.every("custom resources", KINDS_S, self._kinds.look)
        if self._daily.times is not None:
            self._slow.at("summary", self._daily.times, self._daily.look)
        self._say(f"serves agents on port {port}, as {address}; {_modes(allowed)}")
        services: dict[str, Callable[[], Awaitable[None]]] = {
            "cluster": self._fleet.run,
            "slow work": self._slow.run,
            "election": self._elect,
            "standby": self._follow_leader,
            "troubles": self._tell_of_troubles,
            "settings": self._watch_settings,
        }
        tasks = [asyncio.create_task(self._kept(name, work), name=name) for name, work in services.items()]
        try:
            await self._stop.wait()
        finally:
            await self._end_mail()
            leading = self._leading
            self._lost("it was told to end")
            if leading is not None:  # its children end with it
                await asyncio.wait({leading}, timeout=MAIL_S)
            await self._election.release()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._server.close()
            if recorder is not None:
                recorder.close()

    def _certificates(self, client: Client) -> Keeper:
        """Those that people give, or its own."""
        given = self._settings.certificates
        if given is not None:
            return GivenCertificates(given, identity.BundleStore(client, self._namespace))
        return Certificates(
            identity.SecretStore(client, self._namespace), identity.publisher(client, self._namespace)
        )

    def _recorder(self) -> Recorder | None:
        limit = self._settings.recording_bytes
        folder = self._settings.state_path / "recording"
        return Recorder(folder, limit, sentinel.__version__) if limit else None

    def _fleet_settings(self) -> FleetSettings:
        """As the file says; `--observe` wins."""
        made = fleet_settings(self._settings.fleet)
        return structs.replace(made, mode=Mode.OBSERVE) if self._args.observe else made

    def _say(self, text: str) -> None:
        """One line for people: in the pod's log and in the controller's own, which outlives the pod's restart."""
        log.info("said", text=text)
        self._stderr(text)

    async def _begun(self, client: Client, certificates: Keeper) -> str | None:
        """The issuer of tokens, once the API server answers and certificates are there; None: told to end before."""
        said = ""
        while not self._stop.is_set():
            try:
                found = await client.get("/.well-known/openid-configuration", _Discovery)
                await certificates.renew()
                return found.issuer
            except (TemporaryError, PermanentError, OSError, Conflict, Unusable) as error:
                if str(error) != said:
                    said = str(error)
                    given = isinstance(error, Unusable)
                    self._say(f"waits for {'good certificates' if given else 'the API server'}: {said}")
                    log.warning("waits_to_begin", why=said)
                    self._pages.waits_for = {"certificates": said} if given else API_SERVER
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEGIN_AGAIN_S):
                        await self._stop.wait()
        return None

    async def _kept(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """A service that breaks begins again, and says so."""
        while True:
            try:
                return await work()
            except Exception as error:  # the named boundary of a service
                log.exception("service_broke", service=name)
                self._metrics.exception(name)
                self._say(f"{name} broke and begins again: {error!r}")
                await asyncio.sleep(SERVICE_PAUSE_S)

    # ------------------------------------------------------------ who leads

    async def _elect(self) -> None:
        """Once the epochs of nodes and records are known. What cannot be read keeps nobody from leading."""
        await self._fleet.epochs_known()
        await self._election.run(self._lead, self._lost)

    def _lead(self, epoch: int) -> None:
        self._say(f"leads, epoch {epoch}")
        log.info("leads", epoch=epoch)
        self._metrics.leads()
        self._controller.forget()
        self._daily.begin()
        self._slow.soon("summary")
        self._server.lead(epoch)
        self._leading = asyncio.create_task(self._lead_with(epoch), name="leading")

    async def _lead_with(self, epoch: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kept("leading", lambda: self._controller.lead(epoch)))
            group.create_task(self._kept("policies", self._fleet.lead_policies))
            group.create_task(self._kept("jobs", self._jobs.lead))
            group.create_task(self._kept("mail", self._tell_by_mail))

    def _notices(self, now: Now) -> Iterator[Waiting]:
        """Mails that belong to no record."""
        for one in self._controller.notes.waiting():
            request = notice_request(one.id, one.sentence, one.mail, self._settings, self._place, now.wall_s)
            yield Waiting(one.id, one.mail.stage, one.mail, request)
        yield from self._daily.waiting(now)

    def _record_mail(self, record: str, mail: NodeMail) -> None:
        if not self._daily.record(record, mail):
            self._controller.record_mail(record, mail)

    async def _tell_by_mail(self) -> None:
        """What an earlier leader left untold too, as soon as the records were read."""
        await self._controller.lead_began.wait()
        self._mail.count(mail for record in self._fleet.records.values() for mail in record.mails)
        await self._mail.run()

    async def _end_mail(self) -> None:
        """A mail that is on its way is written down before another one leads, which would send it again."""
        if self._leading is not None:
            await self._mail.rest(MAIL_S)
            await self._controller.mails.all_saved(MAIL_S)
            await self._jobs.end_mail(MAIL_S)

    def _lost(self, why: str) -> None:
        if self._leading is not None:
            self._say(f"leads no more: {why}")
            log.info("leads_no_more", why=why)
            self._leading.cancel()
            self._leading = None
            self._controller.stand_by()
            self._daily.end()
            self._server.stand_by("")

    async def _follow_leader(self) -> None:
        """The standby tells agents where the leader is."""
        told = ""
        while True:
            leader = self._election.leader
            address = "" if leader.identity == self._election.identity else leader.address
            if self._leading is None and address != told:
                told = address
                log.info("stands_by", leader=address)
                self._server.stand_by(address)
            await asyncio.sleep(LOOK_S)

    async def _tell_of_troubles(self) -> None:
        troubles = Troubles(self._say, system_now)
        while True:
            await asyncio.sleep(TROUBLES_S)
            troubles.look(self._pages.troubles())

    async def _watch_settings(self) -> None:
        """It goes by those that it began with, and says so while the file has others."""
        try:
            async for outcome in self._watch.changes():
                found, changed = {}, outcome.settings != self._settings
                if outcome.what == "refused":
                    text = f"its settings were changed, and it would not begin with these: {outcome.problem}"
                    found["refused settings"] = text
                elif changed:
                    found["settings"] = "its settings were changed, and count when it is started again"
                self._pages.settings = found
                as_before = "restart" if changed else "unchanged"
                self._metrics.settings_read("refused" if outcome.what == "refused" else as_before)
        finally:
            self._watch.close()

    # ------------------------------------------------------------ what the parts ask of each other

    def _changed(self, node: str) -> None:
        self._controller.changed(node)

    def _arrived(self, arrived: Arrived) -> None:
        self._controller.arrived(arrived)
        self._jobs.arrived(arrived)

    def _alive(self, alive: Alive) -> None:
        self._epochs.forget(agent_of(alive.node))
        self._controller.nodes.alive(alive)
        self._jobs.alive(alive)

    def _newer(self, node: str, epoch: int) -> None:
        """An agent obeys no controller but one after this."""
        if not self._epochs.may_tell(node, system_now().mono_s):
            return
        self._epochs.met(epoch, agent_of(node))  # one that is not believed is among the troubles


def _modes(settings: FleetSettings) -> str:
    """For the log: what is touched."""
    spared = [f"pool {pool}" for pool in sorted(settings.observe_pools)]
    spared += [f"namespace {name}" for name in sorted(settings.observe_namespaces)]
    return f"{settings.mode.value}s" + (f", but observes {', '.join(spared)}" if spared else "")
