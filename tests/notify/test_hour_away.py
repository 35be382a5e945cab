"""A mail server and a webhook that are away for an hour while incidents happen, by the sender's own clock."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from sentinel.controller.effects.notify import LAST_RETRY_S, Notifier
from sentinel.core.fleet.model import OrderKind
from sentinel.core.model import Stage
from sentinel.metrics.registry import Metrics
from sentinel.settings import Webhook
from tests.core.fleet_world import OPEN, World, a_finding
from tests.notify.hooks import Hook, hooks, serve
from tests.notify.mail_world import Book, HandClock, MailServer, an_incident, closed_port
from tests.notify.test_mail_nodes import ADMIN, Told, settings_for
from tests.notify.test_webhooks import settings

__all__ = ["hooks"]

HOUR_S = 3600.0
BOTH = (Stage.STARTED, Stage.RECOVERED)


def waiting(notifier: Notifier) -> float:
    metrics = Metrics()
    notifier.measure(metrics)
    families = text_string_to_metric_families(metrics.render().decode())
    return next(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "sentinel_mails_waiting" and sample.labels["about"] == "jobs"
    )


def test_an_hour_without_both_loses_nothing_doubles_nothing_and_is_told(
    hooks: list[Hook], tmp_path: Path
) -> None:
    away = True
    hook = serve(hooks, lambda number: (503, "upgrade") if away else (200, "ok"))
    port = closed_port()
    chosen = settings(tmp_path, Webhook(name="pager", url=hook.url), port=port, per_hour=100)
    book, clock = Book(), HandClock()
    sender = Notifier(chosen, book.pending, book.record, host="gpubox", clock=clock)

    async def until_s(end_s: float) -> None:
        """As the sender's own task goes on: it sleeps until something is due."""
        while clock.now.mono_s < end_s:
            clock.advance(min(await sender._round(), end_s - clock.now.mono_s))

    async def story() -> None:
        nonlocal away
        began_s = clock.now.mono_s
        for number in (1, 2, 3):
            book.incidents[f"llama-{number:04}"] = an_incident(number, BOTH)
            await until_s(began_s + number * HOUR_S / 3)
        assert set(book.states()) == {"waiting"}
        assert waiting(sender) == len(book.states()) == 6
        refused = len(hook.got)
        away = False
        with MailServer(port=port) as server:
            await until_s(clock.now.mono_s + 2 * 1.25 * LAST_RETRY_S)
            assert set(book.states()) == {"sent"}, (
                "within two pauses: that of the server, and that of the mail"
            )
            assert waiting(sender) == 0
            await until_s(clock.now.mono_s + HOUR_S)
        mails = [str(mail["Message-ID"]) for _, mail in server.mails]
        assert len(mails) == len(set(mails)) == 6
        told = [body["id"] for body in hook.bodies()[refused:]]
        assert sorted(told) == sorted(one.strip("<>") for one in mails), "each of them once"
        for number in (1, 2, 3):
            thread = [one for one in mails if f"-{number:04}." in one]
            assert [one.split(".")[1] for one in thread] == ["started", "recovered"], (
                "no story is told backwards"
            )

    with capture_logs() as logs:
        asyncio.run(story())
    trouble = [one for one in logs if one["event"] == "mail_server_trouble"]
    assert 5 <= len(trouble) <= 12, "seldom asked, and each time told"
    assert all("127.0.0.1" in one["error"] and one["log_level"] == "warning" for one in trouble)
    assert sender.attempts_failed == sum("pager: 503" in one["error"] for one in logs if "stage" in one) > 0


@pytest.mark.parametrize("storm", [False, True])
def test_an_hour_without_a_mail_server_while_nodes_fail_is_told_after_it_also_by_another_leader(
    hooks: list[Hook], storm: bool
) -> None:
    """To the administrators. What few nodes did comes as their threads, what many did as one digest; a webhook that is
    there hears of each thing at once, and not again."""
    hook, port = serve(hooks), closed_port()
    chosen = settings_for(port)
    chosen = structs.replace(chosen, webhooks=(Webhook(name="pager", url=hook.url, about=("nodes",)),))
    late = [f"late-{number:02}" for number in range(30 if storm else 1)]
    world = World(["gpu-1", "gpu-2", *late], OPEN)

    def leader() -> Told:
        made = Told(world, chosen)
        made.notifier._clock = lambda: world.now
        return made

    async def passes(told: Told, seconds: float) -> None:
        end_s = world.now.mono_s + seconds
        while (left_s := end_s - world.now.mono_s) > 0:
            delay_s = await told.notifier._round()
            told.write()
            world.passes(min(delay_s, left_s))

    def finds(*names: str) -> None:
        for name in names:
            world.shows(name, a_finding())
        world.decide()

    async def story() -> None:
        told = leader()
        finds("gpu-1")
        await passes(told, HOUR_S / 4)
        finds("gpu-2")
        world.order(OrderKind.RELEASE, "gpu-1")
        world.decide()
        await passes(told, HOUR_S / 4)
        told = leader()
        finds(*late)
        await passes(told, HOUR_S / 2)
        mails = 3 + len(late)
        assert told.states() == {"waiting"}
        assert told.notifier.waiting == mails
        heard = len(hook.got)
        with MailServer(port=port) as server:
            await passes(told, 2 * 1.25 * LAST_RETRY_S)
            assert not told.states() & {"waiting", "failed"}
            await passes(leader(), HOUR_S)
        assert {tuple(to) for to, _ in server.mails} == {(ADMIN,)}
        if storm:
            ((_, digest),) = server.mails
            assert f"{mails} events of nodes: {mails - 1} out of service, 1 back" in str(digest["Subject"])
        else:
            by_id = {str(mail["Message-ID"]): mail for _, mail in server.mails}
            assert len(by_id) == len(server.mails) == mails
            stages = [str(mail["X-Sentinel-Stage"]) for _, mail in server.mails]
            back = server.mails[stages.index("ReleasedByPerson")][1]
            assert list(by_id).index(str(back["In-Reply-To"])) < stages.index("ReleasedByPerson")
        assert len(hook.got) == heard, "the webhook knew it all"

    asyncio.run(story())
