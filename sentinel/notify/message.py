"""A MailRequest as an Internet message (RFC 5322): plain text and HTML, no remote assets. Child only."""

import hashlib
import re
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from email.headerregistry import Address, HeaderRegistry, UnstructuredHeader
from email.message import EmailMessage
from email.policy import SMTP, Policy
from email.utils import parseaddr
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sentinel.notify.compose import MailRequest

_TEMPLATES = Path(__file__).parent / "templates"
_WIDTH = 76
# The addr-spec of RFC 5322 without its obsolete and quoted forms; the domain may be an address literal.
_ADDRESS = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
)


class _Verbatim(UnstructuredHeader):
    """Message-IDs must never be folded or encoded; the library does both to long ones."""

    def fold(self, *, policy: Policy) -> str:
        return f"{self.name}: {self}{policy.linesep}"  # type: ignore[attr-defined]


def _policy() -> Policy:
    registry = HeaderRegistry()
    for name in ("message-id", "in-reply-to", "references"):
        registry.map_to_type(name, _Verbatim)  # type: ignore[arg-type]
    return SMTP.clone(header_factory=registry)


_POLICY = _policy()


def address(text: str) -> str | None:
    """The address as it goes on the wire (an international domain in its ASCII form), None if it is none."""
    local, at, domain = text.strip().rpartition("@")
    if not domain.isascii():
        try:
            domain = domain.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    whole = local + at + domain
    return whole if _ADDRESS.fullmatch(whole) and ".." not in whole and whole[0] != "." else None


def sender_address(text: str) -> Address | None:
    """`NAME <ADDRESS>` or an address alone, which then gets the name Sentinel."""
    name, spec = parseaddr(text)
    spec_ascii = address(spec)
    if spec_ascii is None or not name.isprintable():
        return None
    local, _, domain = spec_ascii.rpartition("@")
    return Address(name or "Sentinel", local, domain)


def _fill(text: str, indent: int = 0, hang: int = 0, first: str = "") -> str:
    """Wrap a paragraph; words that are longer than a line (paths) stay whole."""
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first or " " * indent,
        subsequent_indent=" " * (hang or indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _environment() -> Environment:
    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(
        loader=loader,
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["fill"] = _fill
    return environment


class Renderer:
    def __init__(self) -> None:
        environment = _environment()
        self._text = environment.get_template("mail.txt.j2")
        self._html = environment.get_template("mail.html.j2")

    def text(self, request: MailRequest) -> str:
        return self._text.render(mail=request)

    def html(self, request: MailRequest) -> str:
        return self._html.render(mail=request)

    def message(self, request: MailRequest, sender: Address) -> bytes:
        """The whole message with CRLF line ends. Bcc does not exist here: everyone in `to` sees the others."""
        message = EmailMessage(policy=_POLICY)
        for name, value in self._headers(request, sender):
            message[name] = value
        message.set_content(self.text(request), cte="quoted-printable")
        message.add_alternative(self.html(request), subtype="html", cte="quoted-printable")
        # A repeat of a mail is the same mail, byte for byte but for its date.
        message.set_boundary("=_" + hashlib.sha256(request.message_id.encode()).hexdigest()[:32])
        return message.as_bytes()

    @staticmethod
    def _headers(request: MailRequest, sender: Address) -> Iterable[tuple[str, Any]]:
        yield "From", sender
        to = [spec for spec in map(address, request.to) if spec]
        yield "To", ", ".join(to) if to else "undisclosed-recipients:;"
        yield "Subject", request.subject
        try:
            date = datetime.fromtimestamp(request.date_wall_s, UTC).astimezone()
        except (OverflowError, ValueError, OSError):
            date = datetime.now(UTC)
        yield "Date", date
        yield "Message-ID", request.message_id
        if request.references:
            yield "In-Reply-To", request.references
            yield "References", request.references
        yield from request.headers
