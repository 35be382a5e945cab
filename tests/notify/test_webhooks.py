"""Webhooks against real HTTP servers: what they get, signed, and what becomes of it where somebody does not answer."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec import structs

from scripts.doc_tables import schema
from sentinel.controller.effects.notify import Notifier
from sentinel.core.model import Stage
from sentinel.notify.compose import webhooks
from sentinel.notify.webhook import Message, message, slack
from sentinel.settings import Mail, Settings, Webhook
from tests.notify.hooks import (
    SCHEMA,
    Hook,
    against_schema,
    hooks,
    key_file,
    serve,
    signature,
)
from tests.notify.mail_world import (
    OWNER,
    REPO,
    Book,
    HandClock,
    MailServer,
    a_request,
    an_incident,
    closed_port,
)
from tests.notify.test_mail_nodes import Told, isolated

__all__ = ["hooks"]


def settings(tmp_path: Path, *made: Webhook, port: int = 0, **mail: Any) -> Settings:
    whole = Mail(host="127.0.0.1" if port else "", port=port, tls="none", timeout_s=10.0, **mail)
    return Settings(state_dir=str(tmp_path), mail=whole, webhooks=made)


def told(book: Book, chosen: Settings, clock: HandClock | None = None, *, rounds: int = 1) -> Notifier:
    """One round after another, each when the one before has left what to do later."""
    clock = clock or HandClock()
    made = Notifier(chosen, book.pending, book.record, host="gpubox", clock=clock)

    async def work() -> None:
        for number in range(rounds):
            if number:
                clock.advance(3600.0)
            await made._round()

    asyncio.run(work())
    return made


def test_a_program_gets_what_the_mail_says_signed_and_by_its_schema(
    hooks: list[Hook], tmp_path: Path
) -> None:
    hook = serve(hooks)
    book = Book(an_incident(1, (Stage.STARTED, Stage.RECOVERED)))
    made = Webhook(name="program", url=hook.url, secret_file=key_file(tmp_path))
    told(book, settings(tmp_path, made))
    assert book.states() == ["sent", "sent"]
    assert book.mail().done == (OWNER, "webhook:program")
    (headers, body), (_, second) = hook.got
    one, two = (msgspec.json.decode(text, type=Message) for text in (body, second))
    assert [against_schema(shown) for shown in hook.bodies()] == [[], []]
    assert (one.version, one.about, one.stage, one.job, one.cause) == (1, "jobs", "started", "llama", "gpu")
    assert one.sentence.startswith("GPU 0000:18:00.0 fell off the bus")
    assert [step.sentence for step in one.story][-1] == "Iterations move again."
    assert (two.thread, two.stage) == (one.id, "recovered")
    assert headers["X-Sentinel-Delivery"] == one.id
    assert abs(int(headers["X-Sentinel-Timestamp"]) - time.time()) < 300
    assert headers["X-Sentinel-Signature"] == signature(headers, body)
    assert list((tmp_path / "outbox").iterdir()), "the mail is filed as it was before"


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    assert (REPO / "docs" / "webhook.schema.json").read_text() == schema(), "run: make generated"


@pytest.mark.parametrize("kind", ["Message", "Fact", "Moment"])
def test_the_schema_in_the_docs_refuses_what_is_no_message(kind: str) -> None:
    """A field that is missing, one of another type, one too many: in the message, in a fact, in a line of the story."""
    body = json.loads(msgspec.json.encode(message(a_request())))
    assert against_schema(body) == []
    place, part = {
        "Message": ("$", body),
        "Fact": ("$.facts[0]", body["facts"][0]),
        "Moment": ("$.story[0]", body["story"][0]),
    }[kind]
    required = SCHEMA["$defs"][kind]["required"]
    for field, value in list(part.items()):
        del part[field]
        missing = [f"{place}: {field!r} is a required property"] if field in required else []
        assert against_schema(body) == missing
        part[field] = {}
        (wrong,) = against_schema(body)
        assert wrong.startswith(f"{place}.{field}: {{}} is not of type ")
        part[field] = value
    part["more"] = ""
    assert against_schema(body) == [f"{place}: Additional properties are not allowed ('more' was unexpected)"]
    assert Draft202012Validator(SCHEMA).is_valid(body), "but one may be added later, as it says"


def test_slack_gets_a_message_in_which_logs_can_call_nobody(hooks: list[Hook], tmp_path: Path) -> None:
    hook = serve(hooks)
    hostile = "<!channel> @all <https://evil.example|click> ``` *bold* & done"
    request = a_request()
    shown = json.dumps(
        slack(structs.replace(request, evidence=(hostile,), title=hostile)), ensure_ascii=False
    )
    assert "<" not in shown
    assert "@all" not in shown
    assert "&lt;!channel&gt;" in shown
    assert shown.count("```") == 2, "only those around the lines"
    url = tmp_path / "url"
    url.write_text(hook.url)
    url.chmod(0o600)
    told(Book(an_incident()), settings(tmp_path, Webhook(name="chat", url_file=str(url), format="slack")))
    (body,) = hook.bodies()
    assert body["text"].startswith("*Recovering* llama: rank 3 was lost (gpu)")
    assert body["attachments"][0]["color"] == "#b07400"
    fields = body["attachments"][0]["fields"]
    assert {"title": "cause", "value": "gpu (gpu-lost, fault of the node)", "short": True} in fields


def test_who_has_it_is_not_told_again_while_the_others_are_tried(hooks: list[Hook], tmp_path: Path) -> None:
    """A mail server that greylists, a webhook that is down for a while, one that is well."""
    well = serve(hooks)
    ill = serve(hooks, lambda number: (503, "busy") if number < 3 else (204, ""))
    greylisted = []

    def later(address: str) -> str | None:
        greylisted.append(address)
        return "451 4.7.1 try again" if len(greylisted) == 1 else None

    book = Book(an_incident())
    with MailServer(on_rcpt=later) as server:
        made = (Webhook(name="well", url=well.url), Webhook(name="ill", url=ill.url))
        chosen = settings(tmp_path, *made, port=server.port)
        clock = HandClock()
        told(book, chosen, clock)
        waiting = book.mail()
        assert (waiting.state, waiting.done) == ("waiting", ("webhook:well",))
        assert "webhook:ill: 503 busy" in waiting.error
        told(book, chosen, clock, rounds=3)
        assert len(server.mails) == 1
    assert (len(well.got), len(ill.got)) == (1, 3)
    assert (book.mail().state, set(book.mail().done)) == ("sent", {OWNER, "webhook:well", "webhook:ill"})


def test_a_mail_server_that_is_down_holds_no_webhook_up(hooks: list[Hook], tmp_path: Path) -> None:
    hook = serve(hooks)
    book = Book(an_incident(1))
    chosen = settings(tmp_path, Webhook(name="w", url=hook.url), port=closed_port())
    clock = HandClock()
    made = Notifier(chosen, book.pending, book.record, host="gpubox", clock=clock)

    async def work() -> None:
        await made._round()
        assert len(hook.got) == 1
        book.incidents["llama-0002"] = an_incident(2)
        await made._round()  # the server is spared now
        assert len(hook.got) == 2
        assert book.mail(2).done == ("webhook:w",)
        assert "not asked now" in book.mail(2).error
        await made._round()
        assert len(hook.got) == 2, "and nothing is told twice"
        assert made._troubles == 1, "the server was asked once, and counts as down for no longer"

    asyncio.run(work())
    assert book.states() == ["waiting", "waiting"]


@pytest.mark.parametrize("status", [400, 422])
def test_what_a_webhook_refuses_for_good_is_named_and_the_mail_counts(
    hooks: list[Hook], tmp_path: Path, status: int
) -> None:
    hook = serve(hooks, lambda number: (status, "no such field\x1b[2J"))
    book = Book(an_incident())
    told(book, settings(tmp_path, Webhook(name="w", url=hook.url)))
    mail = book.mail()
    assert (mail.state, mail.done, mail.refused) == ("sent", (OWNER,), ("webhook:w",))
    assert f"webhook:w: {status} no such field" in mail.error
    assert "\x1b" not in mail.error


def test_secrets_go_nowhere_but_where_the_settings_say(hooks: list[Hook], tmp_path: Path) -> None:
    moved = serve(hooks, lambda number: (302, ""))
    book = Book(an_incident())
    told(book, settings(tmp_path, Webhook(name="w", url=moved.url)))
    assert len(moved.got) == 1, "a redirect is not followed"
    assert "webhook:w: 302" in book.mail().error
    open_to_all = key_file(tmp_path, mode=0o644)
    well = serve(hooks)
    book = Book(an_incident())
    told(book, settings(tmp_path, Webhook(name="w", url=well.url, secret_file=open_to_all)))
    assert well.got == []
    assert "lets others in" in book.mail().error


def test_one_that_never_answers_costs_its_time_once(tmp_path: Path, hooks: list[Hook]) -> None:
    ended = threading.Event()

    def never(number: int) -> tuple[int, str]:
        ended.wait(180)
        return 200, ""

    hook = serve(hooks, never)
    book = Book(*(an_incident(number) for number in range(1, 6)))
    told(book, settings(tmp_path, Webhook(name="w", url=hook.url, timeout_s=1.0)))
    ended.set()
    assert len(hook.got) == 1, "the others of the batch wait for it to be well"
    assert all(OWNER in book.mail(number).done for number in range(1, 6)), "and the mails went"
    assert {book.mail(number).state for number in range(1, 6)} == {"waiting"}


def test_a_storm_is_one_digest_for_a_webhook_too(hooks: list[Hook], tmp_path: Path) -> None:
    hook = serve(hooks)
    book = Book(*(an_incident(number) for number in range(1, 9)))
    chosen = settings(tmp_path, Webhook(name="w", url=hook.url), per_hour=3)
    told(book, chosen, rounds=3)
    assert set(book.states()) <= {"sent", "digested"}
    assert [body["stage"] for body in hook.bodies()].count("started") <= 6
    assert "digest" in [body["stage"] for body in hook.bodies()]


def test_jobs_and_nodes_are_told_to_whom_the_settings_say() -> None:
    made = (
        Webhook(name="both", url="http://x"),
        Webhook(name="nodes", url="http://x", about=("nodes",)),
        Webhook(name="jobs", url="http://x", about=("jobs",)),
    )
    chosen = Settings(webhooks=made)
    assert webhooks(chosen, "jobs") == ("webhook:both", "webhook:jobs")
    assert webhooks(chosen, "nodes") == ("webhook:both", "webhook:nodes")


def test_administrators_webhooks_are_told_of_nodes_a_storm_in_one(hooks: list[Hook], tmp_path: Path) -> None:
    hook = serve(hooks)
    made = Webhook(name="pager", url=hook.url, about=("nodes",))
    chosen = structs.replace(
        settings(tmp_path, made), page_url="https://s.example", dashboard_url="https://g.example/"
    )
    desk = Told(isolated("n1"), chosen)
    asyncio.run(desk.send())
    (one,) = hook.bodies()
    assert (one["about"], one["node"], one["stage"]) == ("nodes", "n1", "FatalFinding")
    assert one["url"] == "https://s.example/nodes/n1"
    assert one["dashboard"] == "https://g.example/d/sentinel-node?var-node=n1"
    desk.write()
    assert desk.states() == {"sent"}
    storm = Told(isolated(*(f"n{number}" for number in range(500))), chosen)
    asyncio.run(storm.send())
    assert len(hook.got) == 2, "one for five hundred nodes"
    assert hook.bodies()[1]["title"].startswith("500 events of nodes")
