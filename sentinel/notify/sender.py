"""The short-lived child that renders and sends mails: a Python that calls `main` (`children.our_python`).

Reads one wire.Order from standard input and writes one wire.Answer line per mail to standard output, at
once when it is known. It keeps no state, ends by itself, and ends with its parent: a mail that nobody can
record as sent must not be sent.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterable
from email.headerregistry import Address
from functools import partial
from pathlib import Path

import msgspec
from aiosmtplib import (
    SMTP,
    SMTPDataError,
    SMTPException,
    SMTPRecipientRefused,
    SMTPRecipientsRefused,
    SMTPResponseException,
    SMTPSenderRefused,
    SMTPServerDisconnected,
    SMTPTimeoutError,
)
from msgspec import structs

from sentinel.notify.compose import MailRequest, webhook_of
from sentinel.notify.message import Renderer, address, sender_address
from sentinel.notify.secret import SecretTrouble, read_secret
from sentinel.notify.text import clean
from sentinel.notify.webhook import Webhooks
from sentinel.notify.wire import DATA_TIMES, Answer, Order
from sentinel.settings import Mail

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
MAX_FILED = 2000  # mails in the outbox: nobody may ever read it
_PR_SET_PDEATHSIG = 1  # prctl(2)
_SERVICE_CLOSES = 421  # RFC 5321, 3.8: the server is about to close the connection
Emit = Callable[[Answer], None]


class ServerTrouble(Exception):
    """The server or the settings; every mail would meet it. Tried again: both get repaired."""


# ---------------------------------------------------------------- outbox


def file_mail(outbox: Path, message_id: str, data: bytes) -> Path:
    """Write the mail whole or not at all; a repeat replaces the first. Too many: the oldest go. Raises OSError."""
    outbox.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = outbox / f"{message_id.strip('<>')}.eml"
    descriptor, temporary = tempfile.mkstemp(dir=outbox, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _make_room(outbox)
    return path


def _make_room(outbox: Path) -> None:
    with contextlib.suppress(OSError):  # another Sentinel of this machine may do the same
        filed = [entry for entry in os.scandir(outbox) if entry.name.endswith(".eml")]
        if len(filed) > MAX_FILED:
            for entry in sorted(filed, key=lambda one: one.stat().st_mtime_ns)[: len(filed) - MAX_FILED]:
                os.unlink(entry.path)


def _file(mail: Mail, request: MailRequest, data: bytes) -> Answer:
    try:
        path = file_mail(Path(mail.outbox), request.message_id, data)
    except OSError as error:
        said = f"outbox {mail.outbox}: {error.strerror or error}"
        return _temporary(request, request.recipients, said, server=True)
    return Answer(message_id=request.message_id, state="sent", accepted=request.recipients, path=str(path))


# ---------------------------------------------------------------- connection


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def read_password(path: str) -> str:
    """The first line of the file. Raises ServerTrouble if others may read it or it cannot be read."""
    try:
        return read_secret(path, "password")
    except SecretTrouble as error:
        raise ServerTrouble(str(error)) from None


def _tls_context(mail: Mail) -> ssl.SSLContext | None:
    if mail.tls == "none":
        return None
    try:
        return ssl.create_default_context(cafile=mail.ca_file or None)
    except OSError as error:  # ssl.SSLError, too
        raise ServerTrouble(f"ca_file {mail.ca_file}: {error.strerror or error}") from None


def _client(mail: Mail) -> SMTP:
    if mail.tls not in _PORTS:
        raise ServerTrouble(f"tls: {clean(mail.tls, 40)!r} is not starttls, tls or none")
    if mail.username and mail.tls == "none" and not _is_loopback(mail.host):
        raise ServerTrouble(
            "a password is not sent over a connection without TLS: set tls to starttls or tls"
        )
    name = socket.gethostname()
    return SMTP(
        hostname=mail.host,
        port=mail.port or _PORTS[mail.tls],
        # RFC 5321, 4.1.4: a host without a full name says its address; never ask DNS, which may hang.
        local_hostname=name if "." in name else "[127.0.0.1]",
        timeout=mail.timeout_s,
        use_tls=mail.tls == "tls",
        start_tls=mail.tls == "starttls",  # required, not opportunistic
        tls_context=_tls_context(mail),
        username=mail.username or None,
        password=read_password(mail.password_file) if mail.username and mail.password_file else None,
    )


def _said(error: BaseException) -> str:
    """One clean line: what a server says is untrusted text, too."""
    if isinstance(error, SMTPResponseException):
        return clean(f"{error.code} {error.message}")
    if isinstance(error, TimeoutError):
        return clean(str(getattr(error, "message", "")) or "no answer in time")
    return clean(str(error) or type(error).__name__)


async def _connect(mail: Mail) -> SMTP:
    client = _client(mail)
    where = f"{mail.host}:{client.port}"
    try:
        async with asyncio.timeout(mail.timeout_s):
            await client.connect()
    except (SMTPException, OSError, ValueError) as error:  # TimeoutError and ssl.SSLError are OSErrors
        client.close()
        raise ServerTrouble(f"{where}: {_said(error)}") from None
    return client


# ---------------------------------------------------------------- one mail


def _temporary(
    request: MailRequest,
    recipients: Iterable[str],
    said: str,
    *,
    server: bool = False,
    refused: dict[str, str] | None = None,
) -> Answer:
    return Answer(
        message_id=request.message_id,
        state="temporary",
        delayed=dict.fromkeys(recipients, said),
        refused=refused or {},
        error=said,
        server=server,
    )


def _sort(request: MailRequest, errors: dict[str, tuple[int, str]], bad: dict[str, str]) -> Answer:
    """From what the server said to each recipient to the state of the mail."""
    refused = bad | {to: clean(f"{code} {text}") for to, (code, text) in errors.items() if code >= 500}
    delayed = {to: clean(f"{code} {text}") for to, (code, text) in errors.items() if code < 500}
    accepted = tuple(to for to in request.recipients if to not in errors and to not in bad)
    named = "; ".join(f"{to}: {text}" for to, text in (delayed | refused).items())
    return Answer(
        message_id=request.message_id,
        state="temporary" if delayed else "sent" if accepted else "permanent",
        accepted=accepted,
        delayed=delayed,
        refused=refused,
        error=named[:1000],
    )


async def _converse(
    client: SMTP, mail: Mail, sender: str, recipients: list[str], data: bytes
) -> dict[str, tuple[int, str]]:
    """What was said to recipients that were refused. Each answer has the time-out, the last one DATA_TIMES as much.
    Raises as `SMTP.sendmail` does."""
    refused: dict[str, tuple[int, str]] = {}
    try:
        await client.mail(sender)
        for recipient in recipients:
            try:
                await client.rcpt(recipient)
            except SMTPRecipientRefused as error:
                refused[recipient] = error.code, error.message
        if len(refused) == len(recipients):
            raise SMTPRecipientsRefused([SMTPRecipientRefused(*refused[one], one) for one in recipients])
        await client.data(data, timeout=DATA_TIMES * mail.timeout_s)
    except (SMTPResponseException, SMTPRecipientsRefused):
        with contextlib.suppress(OSError, SMTPException):
            await client.rset()
        raise
    return refused


async def _send(client: SMTP, mail: Mail, sender: Address, request: MailRequest, data: bytes) -> Answer:
    """Raises OSError, TimeoutError or SMTPServerDisconnected when the connection is of no more use."""
    wire = {to: address(to) for to in request.recipients}
    bad = {to: "not a mail address" for to, spec in wire.items() if spec is None}
    good = {spec: to for to, spec in wire.items() if spec is not None}
    if not good:
        return _sort(request, {}, bad)
    try:
        said = await _converse(client, mail, sender.addr_spec, list(good), data)
    except SMTPRecipientsRefused as error:
        said = {one.recipient: (one.code, one.message) for one in error.recipients}  # type: ignore[misc]
    except SMTPSenderRefused as error:
        # Whoever is refused as a sender is refused for every mail, until someone repairs the settings.
        return _temporary(
            request, good.values(), f"sender {sender.addr_spec}: {_said(error)}", server=True, refused=bad
        )
    except SMTPResponseException as error:
        if error.code == _SERVICE_CLOSES or not (
            isinstance(error, SMTPDataError) and 400 <= error.code < 600
        ):
            raise SMTPServerDisconnected(_said(error)) from None
        said = dict.fromkeys(good, (error.code, error.message))  # type: ignore[arg-type]
    return _sort(request, {good[spec]: (code, text) for spec, (code, text) in said.items()}, bad)


# ---------------------------------------------------------------- the batch


class Batch:
    """Several mails over one connection. After a break it connects once more, then lets the rest wait."""

    def __init__(self, mail: Mail, emit: Emit) -> None:
        self._mail = mail
        self.emit = emit
        self._client: SMTP | None = None
        self._breaks = 0
        self._trouble = ""
        self._sender: Address | None = None

    async def send(self, request: MailRequest, data: bytes, sender: Address) -> None:
        try:
            answer = await self._try(request, data, sender)
        except ServerTrouble as trouble:
            self._trouble = str(trouble)
            answer = _temporary(request, request.recipients, self._trouble, server=True)
        self.emit(answer)

    async def _try(self, request: MailRequest, data: bytes, sender: Address) -> Answer:
        if self._trouble:
            raise ServerTrouble(self._trouble)
        if self._client is None or not self._client.is_connected:
            self._client = await _connect(self._mail)
        try:
            return await _send(self._client, self._mail, sender, request, data)
        except (SMTPException, OSError, ValueError) as error:
            self._client.close()
            self._breaks += 1
            said = f"{self._mail.host}: {_said(error)}"
            if self._breaks > 1:
                self._trouble = said
            # An address or a mail over which it falls silent holds up no others.
            one = self._breaks == 1 and isinstance(error, (TimeoutError, SMTPTimeoutError))
            return _temporary(request, request.recipients, said, server=not one)

    async def close(self) -> None:
        if self._client is None or not self._client.is_connected:
            return
        try:  # everything is answered: a server that does not say goodbye changes nothing
            async with asyncio.timeout(min(2.0, self._mail.timeout_s)):
                await self._client.quit()
        except (SMTPException, OSError):
            self._client.close()


async def deliver(order: Order, emit: Emit) -> None:
    """Render and send everything in order, one answer each. Never raises for what a server or a disk does."""
    mail, renderer = order.settings, Renderer()
    hooks, batch = Webhooks(order.webhooks), Batch(mail, emit)
    for request in order.requests:
        told = await hooks.send(request)
        batch.emit = partial(_emit_joined, emit, told)
        left = tuple(one for one in request.recipients if not webhook_of(one))
        if not left and any(not webhook_of(one) for one in request.to):  # all of them have it, or refused it
            batch.emit(Answer(message_id=request.message_id, state="sent"))
            continue
        await _by_mail(structs.replace(request, recipients=left), order, renderer, batch)
    await batch.close()


async def _by_mail(request: MailRequest, order: Order, renderer: Renderer, batch: "Batch") -> None:
    mail = order.settings
    sender = sender_address(request.sender)
    if order.held:
        batch.emit(_temporary(request, request.recipients, order.held, server=True))
        return
    if sender is None:
        said = f"sender {clean(request.sender, 100)!r}: not a mail address"
        batch.emit(_temporary(request, request.recipients, said, server=True))
        return
    try:
        data = renderer.message(request, sender)
    except Exception as error:  # noqa: BLE001  boundary: one mail must not keep the others back
        said = f"cannot be rendered: {type(error).__name__}: {clean(str(error))}"
        batch.emit(Answer(message_id=request.message_id, state="permanent", error=said))
        return
    if mail.host and request.recipients:
        await batch.send(request, data, sender)
    else:
        batch.emit(_file(mail, request, data))


def _emit_joined(emit: Emit, told: tuple[list[str], dict[str, str], dict[str, str]], answer: Answer) -> None:
    emit(_joined(answer, *told))


def _joined(answer: Answer, accepted: list[str], delayed: dict[str, str], refused: dict[str, str]) -> Answer:
    """What became of the mail, and of the webhooks that were told the same."""
    if not (accepted or delayed or refused):
        return answer
    said = "; ".join(f"{to}: {text}" for to, text in (delayed | refused).items())
    everyone = (*answer.accepted, *accepted)
    waits = bool(delayed) or answer.state == "temporary"
    had = bool(everyone) or answer.state == "sent"
    return structs.replace(
        answer,
        state="temporary" if waits else "sent" if had else "permanent",
        accepted=everyone,
        delayed=answer.delayed | delayed,
        refused=answer.refused | refused,
        error="; ".join(part for part in (answer.error, said) if part)[:1000],
    )


def _end_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _write(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    _end_with_parent()
    try:
        order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    except msgspec.DecodeError as error:
        print(f"sentinel.notify.sender: standard input: {error}", file=sys.stderr)
        return 2
    # Last resort: SIGALRM ends the process even if the event loop does not turn.
    signal.alarm(int(order.deadline_s) + 5)

    async def bounded() -> None:
        async with asyncio.timeout(order.deadline_s):
            await deliver(order, _write)

    try:
        asyncio.run(bounded())
    except TimeoutError:
        print("sentinel.notify.sender: out of time", file=sys.stderr)
        return 1
    except BrokenPipeError:  # nobody listens any more
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
