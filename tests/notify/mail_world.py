"""Real SMTP servers on loopback, servers that follow a script, and the records that mails are made of."""

import asyncio
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import msgspec
import trustme
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword
from msgspec import structs

from sentinel.core.model import (
    Cause,
    Incident,
    IncidentKind,
    Lost,
    Phase,
    ProtectedJob,
    ProvedCheckpoint,
    SaveResult,
    Stage,
    StageMail,
    Step,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy, Resume
from sentinel.notify.compose import MailRequest, mail_request
from sentinel.notify.wire import Answer, Order
from sentinel.settings import Mail, Settings
from tests.rig.processes import free_port

REPO = Path(__file__).parent.parent.parent
HOST = "gpubox.example"
OPENED_WALL_S = 1_790_000_000.0
OWNER = "owner@example.com"
HOSTILE = (
    "\r\nBcc: victim@example.com\r\n\r\n<script>alert(1)</script> \u202egnp.exe \x1b[31mred\x1b[0m "
    "\x00 \u2028 {{ 7*7 }}"
)

# ---------------------------------------------------------------- records


def a_job(**changes: Any) -> ProtectedJob:
    policy_ = Policy(emails=changes.pop("emails", (OWNER,)), resume=Resume(max_resumes=5))
    job = ProtectedJob(
        name="llama",
        policy=policy_,
        size=8,
        original_size=8,
        used_infrastructure=2,
        used_job=1,
        best_step=12034,
        steps_told=True,
        checkpoint=ProvedCheckpoint(step=12000, proof="saved checkpoint 12000", wall_s=OPENED_WALL_S - 300),
    )
    return structs.replace(job, **changes)


def an_incident(number: int = 1, stages: tuple[Stage, ...] = (Stage.STARTED,), **changes: Any) -> Incident:
    verdict = Verdict(
        symptom=Symptom.RANK_LOST,
        cause=Cause.GPU,
        failure="gpu-lost",
        scope="node",
        sentence="GPU 0000:18:00.0 fell off the bus and took rank 3 with it.",
        rank=3,
        entity="GPU 0000:18:00.0",
        # The kernel line as in NVIDIA's XID documentation, chapter "Viewing Xid Error Messages".
        evidence=("NVRM: Xid (PCI:0000:18:00): 79, pid=4142, name=python, GPU has fallen off the bus.",),
        advice="Reset the GPU before it is used again.",
    )
    incident = Incident(
        id=f"llama-{number:04}",
        job="llama",
        kind=IncidentKind.FORCED,
        verdict=verdict,
        phase=Phase.RECOVERED,
        reason="Recovered",
        opened_wall_s=OPENED_WALL_S + number,
        failed_step=12034,
        size=8,
        save=SaveResult(skipped="rank 3 is lost"),
        lost=Lost(steps=34, seconds=123.4, gpu_seconds=987.0, resumed_from=12000),
        steps=(
            Step(
                phase=Phase.DETECTED,
                wall_s=OPENED_WALL_S,
                reason="RankLost",
                sentence="Rank 3 ended with signal 6.",
            ),
            Step(
                phase=Phase.RECOVERED,
                wall_s=OPENED_WALL_S + 123,
                reason="Recovered",
                sentence="Iterations move again.",
            ),
        ),
        mails=tuple(StageMail(stage=stage) for stage in stages),
    )
    return structs.replace(incident, **changes)


def a_request(
    number: int = 1,
    recipients: tuple[str, ...] = (OWNER,),
    stage: Stage = Stage.STARTED,
    settings: Settings | None = None,
    **changes: Any,
) -> MailRequest:
    request = mail_request(
        an_incident(number, (stage,)),
        a_job(emails=recipients),
        stage,
        settings or Settings(state_dir="/state"),
        HOST,
        OPENED_WALL_S + 200,
    )
    return structs.replace(request, **changes)


class Book:
    """Records in memory with the two callbacks of a Notifier."""

    def __init__(self, *incidents: Incident, job: ProtectedJob | None = None) -> None:
        self.incidents = {incident.id: incident for incident in incidents}
        self.job = job or a_job()
        self.history: list[tuple[str, StageMail]] = []

    def pending(self) -> list[tuple[Incident, ProtectedJob]]:
        return [
            (incident, self.job)
            for incident in self.incidents.values()
            if any(mail.state == "waiting" for mail in incident.mails)
        ]

    def record(self, incident_id: str, mail: StageMail) -> None:
        incident = self.incidents[incident_id]
        mails = tuple(mail if old.stage == mail.stage else old for old in incident.mails)
        self.incidents[incident_id] = structs.replace(incident, mails=mails)
        self.history.append((incident_id, mail))

    def mail(self, number: int = 1, stage: Stage = Stage.STARTED) -> StageMail:
        return next(m for m in self.incidents[f"llama-{number:04}"].mails if m.stage == stage)

    def states(self) -> list[str]:
        return [mail.state for incident in self.incidents.values() for mail in incident.mails]


class HandClock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now = Now(mono_s=1000.0, wall_s=OPENED_WALL_S + 1000.0)

    def __call__(self) -> Now:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now = Now(mono_s=self.now.mono_s + seconds, wall_s=self.now.wall_s + seconds)


# ---------------------------------------------------------------- the child


def send(mail: Mail, *requests: MailRequest, deadline_s: float = 30.0, **options: Any) -> list[Answer]:
    """Run the child as Sentinel does; its standard error must stay empty."""
    order = Order(settings=mail, requests=list(requests), deadline_s=deadline_s)
    child = subprocess.run(
        [sys.executable, "-m", "sentinel.notify.sender"],
        input=msgspec.json.encode(order),
        capture_output=True,
        timeout=180,
        check=False,
        cwd=REPO,
        **options,
    )
    assert child.stderr.decode() == ""
    assert child.returncode == 0
    return [msgspec.json.decode(line, type=Answer) for line in child.stdout.splitlines()]


def parse(data: bytes) -> EmailMessage:
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


def body(message: EmailMessage, kind: str) -> str:
    part = message.get_body((kind,))
    assert part is not None
    return str(part.get_content())


# ---------------------------------------------------------------- servers


class _Loop:
    """An event loop in a thread of its own with one listening socket."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def listen(self, create: Callable[[], Awaitable[asyncio.Server]]) -> None:
        self._thread.start()

        async def start() -> asyncio.Server:
            return await create()

        self._server = asyncio.run_coroutine_threadsafe(start(), self.loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        async def stop() -> None:
            if self._server is not None:
                self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(180)
        self.loop.close()


class MailServer:
    """aiosmtpd on a free port of `host`. `on_rcpt` and `on_data` may answer in its place."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        implicit: bool = False,
        login: tuple[str, str] | None = None,
        on_rcpt: Callable[[str], str | None] = lambda address: None,
        on_data: Callable[[int], str | None] = lambda number: None,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._host, self._asked_port = host, port
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.senders: list[str] = []  # of each envelope: whither its bounce would go
        self.connections = 0
        self.logins: list[str] = []
        self._tls, self._implicit, self._login = tls, implicit, login
        self._on_rcpt, self._on_data = on_rcpt, on_data
        self._datas = 0
        self._loop = _Loop()

    def __enter__(self) -> "MailServer":
        async def create() -> asyncio.Server:
            return await asyncio.get_running_loop().create_server(
                self._protocol, self._host, self._asked_port, ssl=self._tls if self._implicit else None
            )

        self._loop.listen(create)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    @property
    def port(self) -> int:
        return self._loop.port

    def _protocol(self) -> SMTP:
        self.connections += 1
        starttls = self._tls is not None and not self._implicit
        return SMTP(
            self,
            hostname="mail.example",
            loop=self._loop.loop,
            tls_context=self._tls if starttls else None,
            require_starttls=starttls,
            authenticator=self._authenticate if self._login else None,
            auth_required=self._login is not None,
            auth_require_tls=starttls,
        )

    def _authenticate(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append(data.login.decode())
        return AuthResult(success=(data.login.decode(), data.password.decode()) == self._login, handled=False)

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        answer = self._on_rcpt(address)
        if answer:
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self._datas += 1
        answer = self._on_data(self._datas)
        if answer:
            return answer
        self.mails.append((list(envelope.rcpt_tos), parse(envelope.content)))
        self.senders.append(envelope.mail_from)
        return "250 taken"


class ScriptedServer:
    """Speaks SMTP badly: `script(verb, number)` gives the answer to each command; None closes the connection.

    `number` counts the commands of that verb over all connections, from 1. b"" says nothing at all.
    The greeting is the verb "CONNECT", the end of a message "DOT".
    """

    def __init__(self, script: Callable[[str, int], bytes | None]) -> None:
        self._script = script
        self.seen: list[str] = []
        self.messages: list[bytes] = []
        self._loop = _Loop()

    def __enter__(self) -> "ScriptedServer":
        self._loop.listen(lambda: asyncio.start_server(self._serve, "127.0.0.1", 0))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    @property
    def port(self) -> int:
        return self._loop.port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verb = "CONNECT"
        while True:
            self.seen.append(verb)
            answer = self._script(verb, self.seen.count(verb))
            if answer is None:
                return
            writer.write(answer)
            await writer.drain()
            if verb == "DATA" and answer.startswith(b"354"):
                self.messages.append(await reader.readuntil(b"\r\n.\r\n"))
                verb = "DOT"
                continue
            line = await reader.readline()
            if not line:
                return
            verb = line.split()[0].decode().upper()


def polite(verb: str, number: int) -> bytes | None:
    """What a plain server without extensions says."""
    return {"CONNECT": b"220 ready\r\n", "DATA": b"354 go on\r\n", "QUIT": b"221 bye\r\n"}.get(
        verb, b"250 ok\r\n"
    )


Script = Callable[[str, int], bytes | None]


def but(verb: str, answer: bytes | None, only: int | None = None) -> Script:
    """Polite, but for one command (its `only`th use, or every one)."""
    return lambda seen, number: answer if seen == verb and only in (None, number) else polite(seen, number)


class Certificates:
    """A CA of our own and a server certificate for `host`."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        ca = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        ca.cert_pem.write_to_path(self.ca_file)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(host).configure_cert(self.server)


def closed_port() -> int:
    """A port on which nothing listens, until the test does."""
    return free_port()
