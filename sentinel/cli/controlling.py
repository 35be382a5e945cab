"""Joins the parts of a controller: election, certificates, agents' server, the cluster, and what it decides."""

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable

import msgspec
import structlog

import sentinel
from sentinel.clock import system_now
from sentinel.cluster.kubernetes import identity
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.lease import Election
from sentinel.core.fleet_model import Mode
from sentinel.core.fleet_settings import FleetSettings
from sentinel.errors import PermanentError, TemporaryError
from sentinel.fleet_controller import FleetController
from sentinel.settings import Settings
from sentinel.transport.auth import Authenticator
from sentinel.transport.certs import Certificates, Conflict
from sentinel.transport.server import Server

log = structlog.get_logger(__name__)

AUDIENCE = "sentinel-controller"
AGENT = "sentinel-agent"  # the agents' service account
LOOK_S = 0.5
BEGIN_AGAIN_S = 2.0
SERVICE_PAUSE_S = 1.0


class _Discovery(msgspec.Struct):
    issuer: str


class Controlling:
    """`run` ends at SIGTERM or SIGINT. Raises PermanentError where it cannot begin."""

    def __init__(
        self, settings: Settings, args: argparse.Namespace, host: str, port: int, say: Callable[[str], None]
    ) -> None:
        self._settings, self._args, self._say = settings, args, say
        self._host, self._port = host, port
        self._namespace = args.namespace or os.environ.get("POD_NAMESPACE", "") or "sentinel-system"
        self._name = os.environ.get("POD_NAME", "") or socket.gethostname()
        self._stop = asyncio.Event()
        self._leading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        async with await Client.connect(self._args.kubeconfig) as client:
            await self._run(client)

    async def _run(self, client: Client) -> None:
        certificates = Certificates(
            identity.SecretStore(client, self._namespace), identity.publisher(client, self._namespace)
        )
        issuer = await self._begun(client, certificates)
        if issuer is None:
            return
        mode = Mode.OBSERVE if self._args.observe else Mode.ENFORCE
        fleet_settings = FleetSettings(mode=mode)
        self._fleet = KubernetesFleet(
            client, fleet_settings, lambda: self._election.epoch(), self._name, self._changed, system_now
        )
        self._controller = FleetController(self._fleet, fleet_settings, system_now, self._say)
        self._server = Server(
            authenticator=Authenticator(
                issuer=issuer,
                audience=AUDIENCE,
                subjects=frozenset({f"system:serviceaccount:{self._namespace}:{AGENT}"}),
                keys=lambda: identity.published_keys(client),
                review=identity.reviewer(client, AUDIENCE),
            ),
            tls=certificates.tls,
            take=self._controller.arrived,
            uid_of=self._fleet.uid_of,
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
            identity=f"{self._name}-{secrets.token_hex(4)}",
            namespace=self._namespace,
            address=address,
            floor=lambda: self._fleet.top_epoch,
        )
        self._say(f"serves agents on port {port}, as {address}; {mode.value}s")
        services: dict[str, Callable[[], Awaitable[None]]] = {
            "cluster": self._fleet.run,
            "certificates": certificates.run,
            "election": lambda: self._election.run(self._lead, self._lost),
            "standby": self._follow_leader,
        }
        tasks = [asyncio.create_task(self._kept(name, work), name=name) for name, work in services.items()]
        try:
            await self._stop.wait()
        finally:
            self._lost("it was told to end")
            await self._election.release()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._server.close()

    async def _begun(self, client: Client, certificates: Certificates) -> str | None:
        """The issuer of tokens, once the API server answers and certificates are there; None: told to end before."""
        said = ""
        while not self._stop.is_set():
            try:
                found = await client.get("/.well-known/openid-configuration", _Discovery)
                await certificates.renew()
                return found.issuer
            except (TemporaryError, PermanentError, OSError, Conflict) as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"waits for the API server: {said}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), BEGIN_AGAIN_S)
        return None

    async def _kept(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """A service that breaks begins again, and says so."""
        while True:
            try:
                return await work()
            except Exception as error:  # the named boundary of a service
                log.exception("service_broke", service=name)
                self._say(f"{name} broke and begins again: {error!r}")
                await asyncio.sleep(SERVICE_PAUSE_S)

    # ------------------------------------------------------------ who leads

    def _lead(self, epoch: int) -> None:
        self._say(f"leads, epoch {epoch}")
        self._controller.forget()
        self._server.lead(epoch)
        work = self._kept("leading", lambda: self._controller.lead(epoch))
        self._leading = asyncio.create_task(work, name="leading")

    def _lost(self, why: str) -> None:
        if self._leading is not None:
            self._say(f"leads no more: {why}")
            self._leading.cancel()
            self._leading = None
            self._server.stand_by("")

    async def _follow_leader(self) -> None:
        """The standby tells agents where the leader is."""
        told = ""
        while True:
            leader = self._election.leader
            address = "" if leader.identity == self._election.identity else leader.address
            if self._leading is None and address != told:
                told = address
                self._server.stand_by(address)
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------ what the parts ask of each other

    def _changed(self, node: str) -> None:
        self._controller.changed(node)
