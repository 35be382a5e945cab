"""What is told by mail, told to a program: a POST of JSON for each, signed, or one that Slack understands. Child only.

A webhook is a recipient `webhook:NAME` of a MailRequest, so records keep for it what they keep for an address: it is
tried again by the same rules, and gets nothing twice but in the gap that mails have too.
"""

import asyncio
import datetime
import hashlib
import hmac
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException

import msgspec
from msgspec import Struct

from sentinel.notify.compose import MailRequest, Moment, webhook_of
from sentinel.notify.secret import SecretTrouble, read_secret
from sentinel.notify.text import clean
from sentinel.settings import Webhook

VERSION = 1
MAX_LINES = 12  # of evidence, where people read it in a chat
MAX_SAID = 300  # characters of what a server says to a refusal
# The message itself is at fault; everything else may be mended: a setting, a token, the server.
_REFUSED_FOR_GOOD = frozenset({400, 413, 422})
_COLOURS = {"good": "#12703a", "busy": "#b07400", "bad": "#b3261e", "info": "#5a6675"}
_HEADERS = {
    "X-Sentinel-Stage": "stage",
    "X-Sentinel-Job": "job",
    "X-Sentinel-Incident": "incident",
    "X-Sentinel-Cause": "cause",
    "X-Sentinel-Node": "node",
    "X-Sentinel-Quarantine": "quarantine",
}


class Fact(Struct, frozen=True):
    name: str
    value: str


class Message(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of a webhook whose format is `json`. Fields may be added; none changes its meaning within a version."""

    version: int
    id: str  # of what is told: the same each time that it is sent
    thread: str  # `id` of the first thing told of the same incident or quarantine
    about: str  # jobs | nodes
    stage: str
    tone: str  # good | busy | bad | info
    label: str
    title: str
    sentence: str
    time: str  # RFC 3339, when it was made
    job: str = ""
    incident: str = ""
    cause: str = ""
    node: str = ""
    quarantine: str = ""
    advice: str = ""
    facts: tuple[Fact, ...] = ()
    story: tuple[Moment, ...] = ()
    evidence: tuple[str, ...] = ()
    url: str = ""  # of the status page, where it is known
    dashboard: str = ""  # of the job or the node, where Grafana's address is known


class WebhookError(Exception):
    """`final`: it would be refused again."""

    def __init__(self, sentence: str, *, final: bool = False) -> None:
        super().__init__(sentence)
        self.final = final


def message(request: MailRequest) -> Message:
    named = {_HEADERS[name]: value for name, value in request.headers if name in _HEADERS}
    made = datetime.datetime.fromtimestamp(request.date_wall_s, datetime.UTC)
    return Message(
        version=VERSION,
        id=request.message_id.strip("<>"),
        thread=(request.references or request.message_id).strip("<>"),
        about="nodes" if "node" in named else "jobs",
        stage=named.pop("stage", ""),
        tone=request.tone,
        label=request.label,
        title=request.title,
        sentence=request.sentence,
        time=made.isoformat(timespec="seconds").replace("+00:00", "Z"),
        advice=request.advice,
        facts=tuple(Fact(name, value) for name, value in request.facts),
        story=request.story,
        evidence=(*request.evidence, *request.stacks),
        url=request.page_url,
        dashboard=request.dashboard_url,
        **named,
    )


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """`sha256=` and the HMAC of `TIMESTAMP.BODY`: who has the secret knows who sent it, and when."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


# ---------------------------------------------------------------- Slack, and what speaks like it


def slack(request: MailRequest) -> dict[str, object]:
    """An incoming webhook's message: Slack, Mattermost, Rocket.Chat and Discord's /slack take it."""
    parts = [_plain(request.sentence)]
    if request.advice:
        parts.append(f"*What to do:* {_plain(request.advice)}")
    if request.evidence:
        lines = "\n".join(_plain(line) for line in request.evidence[:MAX_LINES])
        parts.append(f"```\n{lines}\n```")
    fields = [
        {"title": _plain(name), "value": _plain(value), "short": len(value) < 40}
        for name, value in request.facts
    ]
    if request.dashboard_url:
        fields.append({"title": "Dashboard", "value": _plain(request.dashboard_url), "short": False})
    attachment = {
        "color": _COLOURS.get(request.tone, _COLOURS["info"]),
        "fallback": _plain(request.title),
        "text": "\n".join(parts),
        "fields": fields,
        "footer": _plain(request.footer),
        "mrkdwn_in": ["text"],
    }
    if request.page_url:
        attachment["title"], attachment["title_link"] = "Status page", request.page_url
    return {"text": f"*{_plain(request.label)}* {_plain(request.title)}", "attachments": [attachment]}


def _plain(text: str) -> str:
    """What a log says neither calls a channel (`<!channel>`, `@all`) nor becomes a link or mark-up."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    unmarked = escaped.replace("`", "'").replace("*", "∗").replace("~", "∼")
    return re.sub(r"@(?=\w)", "@\u200b", unmarked)


# ---------------------------------------------------------------- sending


class _Stays(urllib.request.HTTPRedirectHandler):
    """What is told, and the secret in its address, go where the settings say and nowhere else."""

    def redirect_request(self, *_: object) -> None:
        return None


class Webhooks:
    """Of one batch. One that fails is not asked again in it: what else waits for it waits."""

    def __init__(self, hooks: tuple[Webhook, ...]) -> None:
        self._hooks: Mapping[str, Webhook] = {hook.name: hook for hook in hooks}
        self._trouble: dict[str, str] = {}

    async def send(self, request: MailRequest) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """Recipients that have it; those to be tried again and those that refused it, each with what was said."""
        accepted: list[str] = []
        delayed: dict[str, str] = {}
        refused: dict[str, str] = {}

        async def one(recipient: str, name: str) -> None:
            try:
                if name not in self._hooks:
                    raise WebhookError("it is not in the settings any more", final=True)
                if name in self._trouble:
                    raise WebhookError(self._trouble[name])
                await _apart(self._hooks[name], request)
                accepted.append(recipient)
            except WebhookError as error:
                if error.final:
                    refused[recipient] = str(error)
                else:
                    delayed[recipient] = self._trouble[name] = str(error)

        wanted = [(one, name) for one in request.recipients if (name := webhook_of(one))]
        await asyncio.gather(*(one(recipient, name) for recipient, name in wanted))
        return accepted, delayed, refused


async def _apart(hook: Webhook, request: MailRequest) -> None:
    """In a thread of its own, which nobody waits for longer than its time: a server may send a byte now and then."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: WebhookError | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(None)

    def work() -> None:
        try:
            post(hook, request)
        except WebhookError as error:
            loop.call_soon_threadsafe(settle, error)
        else:
            loop.call_soon_threadsafe(settle, None)

    threading.Thread(target=work, daemon=True, name=f"webhook {hook.name}").start()
    try:
        async with asyncio.timeout(hook.timeout_s):
            await done
    except TimeoutError:
        raise WebhookError("no answer in time") from None


def post(hook: Webhook, request: MailRequest) -> None:
    """Raises WebhookError alone."""
    try:
        url = read_secret(hook.url_file, "URL") if hook.url_file else hook.url
        secret = read_secret(hook.secret_file, "secret") if hook.secret_file else ""
        context = ssl.create_default_context(cafile=hook.ca_file or None)
    except (SecretTrouble, OSError) as error:
        raise WebhookError(clean(str(error))) from None
    shown = slack(request) if hook.format == "slack" else message(request)
    body = msgspec.json.encode(shown)
    headers = {"Content-Type": "application/json", "User-Agent": "sentinel"}
    if hook.format == "json":
        headers["X-Sentinel-Delivery"] = request.message_id.strip("<>")
        if secret:
            now = str(int(time.time()))
            headers |= {
                "X-Sentinel-Timestamp": now,
                "X-Sentinel-Signature": signature(secret.encode(), now, body),
            }
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise WebhookError("its URL is neither http nor https")
    opener = urllib.request.build_opener(_Stays, urllib.request.HTTPSHandler(context=context))
    try:
        asked = urllib.request.Request(url, data=body, headers=headers, method="POST")
        with opener.open(asked, timeout=hook.timeout_s):
            return
    except urllib.error.HTTPError as error:
        said = clean(error.read(MAX_SAID).decode("utf-8", "replace"), MAX_SAID)
        final = error.code in _REFUSED_FOR_GOOD
        raise WebhookError(f"{error.code} {said}".strip(), final=final) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise WebhookError(clean(str(getattr(reason, "strerror", None) or reason))) from None
