"""Mails about nodes: from records that the core makes, through a real mail server."""

import asyncio
import re
import time
from collections.abc import Iterator
from email.headerregistry import Address
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from sentinel.controller.effects import notify_nodes
from sentinel.controller.effects.notify import Waiting
from sentinel.controller.effects.notify_nodes import NodeNotifier
from sentinel.controller.nodes import numbers as fleet_numbers
from sentinel.controller.nodes.mail import MailBook
from sentinel.controller.nodes.notes import Notes
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.lost import SETTLE_S
from sentinel.core.fleet.model import (
    Brake,
    FenceOutcome,
    Kind,
    Mode,
    NodeMail,
    NodeQuarantine,
    OrderKind,
    Say,
)
from sentinel.core.fleet.settings import Allowance, FenceHook, Limit
from sentinel.core.now import Now
from sentinel.metrics.registry import Metrics
from sentinel.notify import sender
from sentinel.notify.compose_many import nodes_digest, notice_request
from sentinel.notify.compose_nodes import WORDS, Place, message_id, node_request
from sentinel.notify.message import Renderer
from sentinel.notify.text import stamp
from sentinel.notify.webhook import message
from sentinel.settings import Mail, Settings
from tests.core.fleet_world import OPEN, World, a_finding, a_nic_finding, a_pod
from tests.notify.mail_world import HOSTILE, MailServer, closed_port
from tests.waits import eventually, turns

PLACE = Place(name="sentinel-system", cluster="https://cluster.example")
ADMIN = "admins@example.com"
LINE = "NVRM: Xid (PCI:0000:18:00): 79, pid=4142, name=python, GPU has fallen off the bus."


def settings_for(port: int, **mail: object) -> Settings:
    sent = Mail(host="127.0.0.1", port=port, tls="none", sender="sentinel@example.com", admins=(ADMIN,))
    return Settings(state_dir="/nowhere", mail=structs.replace(sent, **mail))


class Told:
    """A leader's records, its book of mails, and the notifier between them."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.book = MailBook(lambda: None)
        self.settings = settings
        self.notifier = NodeNotifier(
            settings, lambda: self.book.to_tell(world.records), self.record, lambda: PLACE, self.notices
        )
        self.notes = Notes(Metrics(), lambda text: None)

    def notices(self, now: Now) -> Iterator[Waiting]:
        for one in self.notes.waiting():
            request = notice_request(one.id, one.sentence, one.mail, self.settings, PLACE, now.wall_s)
            yield Waiting(one.id, one.mail.stage, one.mail, request)

    def record(self, record: str, mail: NodeMail) -> None:
        if not self.notes.record(record, mail):
            self.book.record(record, mail)

    def note(self) -> bool:
        world = self.world
        found = fleet_numbers.unjudged(world.picture, world.records, world.settings, world.now)
        return self.notes.note(found, 1, world.now)

    async def send(self) -> None:
        await self.notifier.flush(30)

    def write(self) -> None:
        while due := self.book.due(self.world.records, self.world.now, 1, lambda node: True, 8):
            for record in due.values():
                self.world.records[record.id] = record
                self.book.saved(record)

    def waits(self) -> bool:
        """Is the end of a mail, which the server may have by now, not in the book yet?"""
        due = self.book.to_tell(self.world.records)
        return any(mail.state == "waiting" for record in due for mail in record.mails)

    def states(self) -> set[str]:
        return {mail.state for record in self.world.records.values() for mail in record.mails}


def isolated(*names: str, **changes: object) -> World:
    world = World(names, structs.replace(OPEN, **changes))
    for name in names:
        world.change(name, pods=(a_pod(f"worker-{name}"),))
        world.shows(name, a_finding(evidence=(LINE,), count=3, first_seen_wall_s=world.now.wall_s))
    world.decide()
    return world


def the(world: World) -> NodeQuarantine:
    (record,) = world.records.values()
    return record


def text_of(record: NodeQuarantine, stage: str) -> str:
    mail = next(one for one in record.mails if one.stage == stage)
    request = node_request(record, mail, settings_for(1), PLACE, 0.0)
    renderer = Renderer()
    html = renderer.html(request)
    assert request.title in html.replace("&#39;", "'")
    return f"{request.subject}\n{renderer.text(request)}"


def test_the_mail_of_an_isolation_says_what_why_what_ran_there_and_what_a_person_can_do() -> None:
    text = text_of(the(isolated("gpu-7")), "FatalFinding")
    for said in (
        "[sentinel] gpu-7: taken out of service - XID 79 of GPU 0000:18:00.0",
        "the GPU has fallen off the bus",
        "3 times",
        "RESTART_BM",
        LINE,
        "no running pod was touched",
        "pod research/worker-gpu-7",
        "the node must be restarted",
        "sentinel release gpu-7",
        "kubectl uncordon gpu-7",
        "kubectl describe quarantine gpu-7-0001",
        "https://cluster.example",
    ):
        assert said in " ".join(text.split()), f"{said!r} not in\n{text}"


def test_what_a_finding_quotes_adds_no_header_and_no_markup_and_hides_nothing() -> None:
    """In the mail, and in the message of a webhook."""
    world = World(["gpu-7"], OPEN)
    world.shows("gpu-7", a_finding(summary=HOSTILE, evidence=(HOSTILE,), action=HOSTILE))
    world.order(OrderKind.HOLD, "gpu-7", HOSTILE)
    world.decide()
    for record in world.records.values():
        for mail in record.mails:
            request = node_request(record, mail, settings_for(1), PLACE, 0.0)
            raw = Renderer().message(request, Address("Sentinel", addr_spec="s@example.com"))
            assert b"\nBcc:" not in raw.partition(b"\r\n\r\n")[0]
            json = msgspec.json.encode(message(request)).decode()
            for shown in (request.subject, Renderer().text(request), Renderer().html(request), json):
                assert not {"\u202e", "\u2028", "\x1b", "\x00"} & set(shown)
            assert "\\u202egnp.exe" in Renderer().text(request)
            assert "<script" not in Renderer().html(request)
    assert len(world.records) == 2


def test_what_is_only_observed_says_that_nothing_was_touched() -> None:
    text = text_of(the(isolated("gpu-7", mode=Mode.OBSERVE)), "FatalFinding")
    assert "would be taken out of service (observe mode)" in text
    assert "nothing was touched" in " ".join(text.split())


def test_every_reason_that_is_told_has_words_of_its_own() -> None:
    """Those that are only for the books never reach DoTell."""
    quiet = {Reason.FOUND_MORE, Reason.FOUND_AGAIN, Reason.MARK_SEEN, Reason.FINDINGS_GONE}
    quiet |= {Reason.OCCURRENCES, Reason.TOLD, Reason.JOBS_LEFT, Reason.ACKNOWLEDGED}
    assert set(WORDS) == set(Reason) - quiet


def test_a_mail_is_sent_once_and_its_successor_would_send_the_same() -> None:
    async def scenario() -> None:
        world = isolated("gpu-7")
        with MailServer() as server:
            first = Told(world, settings_for(server.port))
            await first.send()
            await first.send()
            assert len(server.mails) == 1
            await Told(world, settings_for(server.port)).send()  # killed before it was written down
            first.write()
            await Told(world, settings_for(server.port)).send()
            await first.send()
            assert len(server.mails) == 2
            assert server.mails[0][1]["Message-ID"] == server.mails[1][1]["Message-ID"]
        assert first.states() == {"sent"}

    asyncio.run(scenario())


def test_a_node_that_fails_again_when_its_old_record_is_deleted_is_told_again() -> None:
    """The new record has the number of the old one."""

    async def scenario() -> None:
        world = isolated("gpu-7")
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            told.write()
            world.order(OrderKind.RELEASE, "gpu-7")
            world.shows("gpu-7")
            world.decide()
            await told.send()
            told.write()
            id = the(world).id
            world.records.clear()
            world.passes(30 * 86_400.0)
            world.settle()
            world.shows("gpu-7", a_finding())
            world.decide()
            assert the(world).id == id
            await told.send()
            assert len(server.mails) == 3

    asyncio.run(scenario())


def test_the_mails_of_one_isolation_are_one_thread_and_two_isolations_are_two() -> None:
    async def scenario() -> None:
        world = isolated("gpu-7")
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            told.write()
            world.order(OrderKind.RELEASE, "gpu-7")
            world.decide()
            await told.send()
            out, back = (mail for _, mail in server.mails)
            assert "back in service" in back["Subject"]
            assert back["In-Reply-To"] == out["Message-ID"] != back["Message-ID"]
        other = structs.replace(the(world), node_uid="another")
        assert message_id(other, "Released", PLACE) != message_id(the(world), "Released", PLACE)

    asyncio.run(scenario())


def test_a_storm_is_one_digest_and_every_record_knows_that_it_was_told() -> None:
    async def scenario() -> None:
        world = isolated(*(f"gpu-{number:03}" for number in range(500)))
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            ((_, digest),) = server.mails
            assert "500 events of nodes" in str(digest["Subject"])
            told.write()
            assert told.states() == {"digested"}
            await told.send()
            await Told(world, settings_for(server.port)).send()
            assert len(server.mails) == 1

    asyncio.run(scenario())


def test_each_line_of_a_digest_says_when_it_happened() -> None:
    """As text and as HTML; with the date where that was on another day."""
    world = World(["gpu-0", "gpu-1"], OPEN)
    happened = []
    for name in world.picture.nodes:
        world.passes(24 * 3600)
        happened.append(world.now.wall_s)
        world.shows(name, a_finding())
        world.decide()
    mails = [(record, mail) for record in world.records.values() for mail in record.mails]
    settings = settings_for(1)
    requests = [node_request(record, mail, settings, PLACE, 0.0, brief=True) for record, mail in mails]
    digest = nodes_digest(requests, settings, PLACE, world.now.wall_s + 1)
    yesterday, today = stamp(happened[0], with_date=True), stamp(happened[1], with_date=False)
    text, html = Renderer().text(digest), Renderer().html(digest)
    assert f"  {yesterday}  gpu-0: taken out of service" in text
    assert f"\n  {today}  gpu-1: taken out of service" in text
    assert re.search(rf">{re.escape(yesterday)}</td>\s*<td[^>]*>gpu-0: ", html)
    assert re.search(rf">{today}</td>\s*<td[^>]*>gpu-1: ", html)


def test_what_comes_within_a_moment_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(notify_nodes, "QUIET_S", 0.5)
        world = World([f"gpu-{number}" for number in range(20)], OPEN)
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            task = asyncio.create_task(told.notifier.run())
            for name in world.picture.nodes:  # each is news of its own
                world.shows(name, a_finding())
                world.decide()
                told.notifier.wake()
                await turns()
            await eventually(lambda: told.states() == {"waiting"} and told.book.unsaved)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            ((_, digest),) = server.mails
            assert "20 events of nodes: 20 out of service" in str(digest["Subject"])

    asyncio.run(scenario())


def test_a_network_incident_is_one_mail_and_who_joins_it_later_is_told_by_that() -> None:
    async def scenario() -> None:
        names = [f"gpu-{number}" for number in range(9)]
        world = World(names, OPEN)
        for name in names[:6]:
            world.shows(name, a_nic_finding(evidence=(f"mlx5_0/1 of {name} is down",)))
        world.decide()
        assert {record.held_by for record in world.records.values()} == {Brake.NETWORK_INCIDENT}
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            ((_, mail),) = server.mails
            assert mail["Subject"] == "[sentinel] network incident: ib-port-down on 6 nodes"
            assert mail["Importance"] == "high"
            told.write()
            for name in names[6:]:
                world.shows(name, a_nic_finding())
            world.decide()
            await told.send()
            told.write()
            assert told.states() == {"digested"}
            assert len(world.records) == 9
            await Told(world, settings_for(server.port)).send()
            assert len(server.mails) == 1

    asyncio.run(scenario())


def test_one_code_on_many_nodes_is_one_mail_that_asks_whether_it_is_real() -> None:
    async def scenario() -> None:
        names = [f"gpu-{number}" for number in range(9)]
        world = World(names, structs.replace(OPEN, cause_nodes=3))
        for name in names[:7]:
            also = (a_finding("XID 45"),) if name == "gpu-5" else ()
            world.shows(name, a_finding("XID 31", evidence=(f"{name}: page fault",)), *also)
        world.decide()
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            subjects = {mail["Subject"]: mail for _, mail in server.mails}
            assert len(subjects) == 3, (
                "the worst and another one are out for it, and the mail about all others"
            )
            mail = subjects["[sentinel] XID 31 on many nodes: real, or a mistake?"]
            assert mail["Importance"] == "high"
            text = " ".join(mail.get_body(("plain",)).get_content().split())
            assert "gpu-1, gpu-2, gpu-3, gpu-4, gpu-6" in text
            assert "5 nodes and all that follow stay in service" in text
            assert "sentinel code 'XID 31' --go-on" in text
            assert "sentinel code 'XID 31' --ignore --why TEXT" in text
            assert "gpu-2: page fault" in text
            told.write()
            for name in names[7:]:
                world.shows(name, a_finding("XID 31"))
            world.decide()
            await told.send()
            told.write()
            assert len(server.mails) == 3
            world.say("XID 31", Say.IGNORE, "the rule is wrong")
            world.settle()
            await told.send()
            ((_, mail),) = server.mails[3:]
            assert mail["Subject"].startswith(
                "[sentinel] gpu-0: back in service, its finding is ignored - was XID 31"
            )
            assert world.out() == {"gpu-5"}

    asyncio.run(scenario())


def text_in(mail: object) -> str:
    return " ".join(mail.get_body(("plain",)).get_content().split())  # type: ignore[attr-defined]


def a_lost_rack(count: int = 30, others: int = 100) -> tuple[World, list[str]]:
    """Nodes with a protected job, of which none is heard any more."""
    names = [f"rack-{number:02}" for number in range(count)]
    world = World([*names, *(f"other-{number}" for number in range(others))], OPEN, pool="a100")
    for name in names:
        world.change(name, pods=(a_pod(f"worker-{name}"),))
    world.settle()
    world.silent = set(names)
    world.passes(OPEN.agent_silent_s + 1)
    world.settle()
    return world, names


def test_a_lost_rack_is_one_mail_and_that_it_is_back_another() -> None:
    async def scenario() -> None:
        world, names = a_lost_rack()
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            ((_, mail),) = server.mails
            assert mail["Subject"] == "[sentinel] 30 nodes: unreachable"
            assert mail["Importance"] == "high"
            assert mail["X-Sentinel-Node"] == "30 nodes"
            text = text_in(mail)
            for said in (
                "30 nodes cannot be reached: agents and kubelets are silent. They may still run.",
                "Protected jobs have 30 pods there, which stay: nothing proves that the nodes are dead.",
                "rack-00, rack-01, rack-02",
                "and 18 more",
                "a100",
                "within 1 s of each other",
                "jobs there: llama",
                "sentinel confirm-dead NODE",
                "what they share: power, a switch, a rack",
            ):
                assert said in text, f"{said!r} not in\n{text}"
            told.write()
            assert told.states() == {"digested"}
            world.silent = {names[0]}
            world.passes(5.0)
            world.settle()
            await told.send()
            ((_, mail),) = server.mails[1:]
            assert mail["Subject"] == "[sentinel] 29 nodes: heard again"
            text = text_in(mail)
            assert "still silent: rack-00" in text
            assert "Node rack-01 is heard again." in text
            assert "(17 more)" in text
            told.write()
            world.silent.clear()
            world.passes(5.0)
            world.settle()
            await told.send()
            ((_, mail),) = server.mails[2:]
            assert mail["Subject"] == "[sentinel] rack-00: heard again"
            told.write()
            await Told(world, settings_for(server.port)).send()
            assert len(server.mails) == 3
            assert "waiting" not in told.states()

    asyncio.run(scenario())


def test_who_falls_silent_after_the_mail_is_told_by_another_one() -> None:
    async def scenario() -> None:
        world, _ = a_lost_rack(9)
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            told.write()
            world.silent |= {"other-0", "other-1"}
            world.passes(OPEN.agent_silent_s + 1)
            world.settle()
            await told.send()
            first, second = (mail for _, mail in server.mails)
            assert second["Subject"] == "[sentinel] 2 more nodes: unreachable"
            assert "rack-00" not in text_in(second)
            assert first["Message-ID"] != second["Message-ID"]
            told.write()
            await told.send()
            assert len(server.mails) == 2

    asyncio.run(scenario())


def test_who_joins_a_loss_that_an_address_did_not_get_yet_is_told_to_everybody() -> None:
    async def scenario() -> None:
        world, _ = a_lost_rack(9)
        boss, late = "boss@example.com", {"boss@example.com"}
        with MailServer(on_rcpt=lambda address: "450 later" if address in late else None) as server:
            told = Told(world, settings_for(server.port, admins=(ADMIN, boss)))
            await told.send()
            told.write()
            world.silent |= {"other-0", "other-1"}
            world.passes(OPEN.agent_silent_s + 1)
            world.settle()
            late.clear()
            await told.send()
            got = {(str(mail["Subject"]), *to) for to, mail in server.mails}
            assert got == {
                ("[sentinel] 9 nodes: unreachable", ADMIN),
                ("[sentinel] 9 nodes: unreachable", boss),
                ("[sentinel] 2 more nodes: unreachable", ADMIN, boss),
            }
            assert len({mail["Message-ID"] for _, mail in server.mails}) == 2

    asyncio.run(scenario())


def as_if_now(world: World) -> None:
    """The mails that wait were to be told now, by the clock of this machine, which the notifier reads."""
    behind_s = time.time() - world.now.wall_s
    for id, record in world.records.items():
        mails = tuple(structs.replace(one, wall_s=one.wall_s + behind_s) for one in record.mails)
        world.records[id] = structs.replace(record, mails=mails)


def test_what_one_node_of_a_loss_is_told_of_next_takes_the_mail_about_all_with_it() -> None:
    async def scenario() -> None:
        world, names = a_lost_rack(9)
        as_if_now(world)
        world.order(OrderKind.CONFIRM_DEAD, names[0])
        world.settle()  # long ago, by the clock of this machine
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            task = asyncio.create_task(told.notifier.run())
            told.notifier.wake()
            await eventually(lambda: len(server.mails) >= 2 and not told.waits())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await told.send()
            assert sorted(str(mail["Subject"]) for _, mail in server.mails) == [
                "[sentinel] 9 nodes: unreachable",
                "[sentinel] rack-00: its pods are removed by force",
            ]

    asyncio.run(scenario())


def test_few_silent_nodes_are_told_each_by_itself() -> None:
    async def scenario() -> None:
        world, _ = a_lost_rack(2)
        with MailServer() as server:
            await Told(world, settings_for(server.port)).send()
            assert [mail["Subject"] for _, mail in server.mails] == [
                "[sentinel] rack-00: unreachable, its pods are left alone",
                "[sentinel] rack-01: unreachable, its pods are left alone",
            ]

    asyncio.run(scenario())


def test_the_mail_about_a_loss_waits_until_it_has_come_to_rest() -> None:
    """Here and now, not only by the records' own clock."""

    async def scenario() -> None:
        world, names = a_lost_rack(9)
        as_if_now(world)
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            task = asyncio.create_task(told.notifier.run())
            told.notifier.wake()
            await eventually(lambda: told.notifier.waiting == 2 * len(names))
            assert not server.mails
            for id, record in [*world.records.items()]:  # as if that were over
                mails = tuple(structs.replace(one, wall_s=one.wall_s - SETTLE_S) for one in record.mails)
                world.records[id] = structs.replace(record, mails=mails)
            told.notifier.wake()
            await eventually(lambda: server.mails and not told.waits())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            ((_, mail),) = server.mails
            assert mail["Subject"] == "[sentinel] 9 nodes: unreachable"

    asyncio.run(scenario())


def test_a_mail_server_that_was_away_gets_one_mail_of_a_loss() -> None:
    async def scenario() -> None:
        world, _ = a_lost_rack(9)
        told = Told(world, settings_for(closed_port()))
        await told.send()
        assert told.states() == {"waiting"}
        with MailServer() as server:
            await Told(world, settings_for(server.port)).send()
            ((_, mail),) = server.mails
            assert mail["Subject"] == "[sentinel] 9 nodes: unreachable"

    asyncio.run(scenario())


def test_what_a_brake_holds_back_is_told_with_the_brake() -> None:
    tight = Allowance(at_a_time=Limit(1), per_window=Limit(1))
    world = isolated("gpu-1", "gpu-2", isolations=tight)
    held = next(record for record in world.records.values() if record.held_by)
    text = text_of(held, "Braked")
    assert "stays in service" in text
    assert "as many nodes as are allowed" in " ".join(text.split())
    assert "sentinel hold " in text
    assert "sentinel acknowledge NODE" in text, "how room is made"


def test_a_server_that_is_away_keeps_the_mail_and_is_counted() -> None:
    async def scenario() -> None:
        world = isolated("gpu-7")
        told = Told(world, settings_for(closed_port()))
        await told.send()
        assert told.states() == {"waiting"}
        assert not told.book.unsaved  # tries are not written down
        assert told.notifier.attempts_failed == 1
        assert [record.mails[0].attempts for record in told.book.to_tell(world.records)] == [1]

    asyncio.run(scenario())


def test_the_outbox_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_FILED", 3)
    for number in range(5):
        sender.file_mail(tmp_path, f"<{number}@x>", b"text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2@x.eml", "3@x.eml", "4@x.eml"]


def test_a_silent_node_whose_pods_stay_is_one_mail() -> None:
    async def scenario() -> None:
        world = World([f"gpu-{number}" for number in range(8)], OPEN)
        world.change("gpu-0", pods=(a_pod(),))
        world.silent = {"gpu-0"}
        for _ in range(30):
            world.passes(10)
            world.decide()
        assert [mail.stage for mail in the(world).mails] == ["Unreachable", "Unfenced"]
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            told.write()
            ((_, mail),) = server.mails
            assert mail["Subject"] == "[sentinel] gpu-0: unreachable, its pods are left alone"
            body = mail.get_body(("plain",))
            assert body is not None
            assert "sentinel confirm-dead gpu-0" in body.get_content()
        assert told.states() == {"digested"}

    asyncio.run(scenario())


def test_nobody_is_asked_to_call_a_node_dead_whose_kubelet_is_heard() -> None:
    world = isolated("gpu-1")
    for reason, offered in ((Reason.UNREACHABLE, True), (Reason.AGENT_SILENT, False)):
        told = NodeMail(stage=reason.value, wall_s=world.now.wall_s)
        record = structs.replace(the(world), kind=Kind.SILENCE, reason=reason.value, mails=(told,))
        assert ("sentinel confirm-dead gpu-1" in text_of(record, reason.value)) == offered


def test_a_mail_says_that_the_fencing_program_is_called_would_be_or_has_failed() -> None:
    world = World([f"gpu-{number}" for number in range(8)])
    world.settings = structs.replace(OPEN, fence=FenceHook(command=("/opt/fence",)))
    world.change("gpu-1", pods=(a_pod(),))
    world.silent.add("gpu-1")
    world.passes(130.0)
    world.decide()
    record = the(world)
    text = text_of(record, "Fencing")
    assert "[sentinel] gpu-1: unreachable, the fencing program powers it off" in text
    assert "their jobs may start elsewhere" in " ".join(text.split())
    assert record.fence is not None
    observed = structs.replace(record, fence=structs.replace(record.fence, mode=Mode.OBSERVE))
    text = text_of(observed, "Fencing")
    assert "[sentinel] gpu-1: unreachable, the fencing program would be called (observe mode)" in text
    assert "Find out whether the machine is off." in " ".join(text.split())
    outcome = FenceOutcome(record.id, 1, False, "exit code 3: <b>no route</b>")
    world.picture = structs.replace(world.picture, fenced=(outcome,))
    world.decide()
    text = text_of(the(world), "FenceFailed")
    assert "try 1 of 3: exit code 3: <b>no route</b>. It is called again in 10 min." in " ".join(text.split())
    assert "sentinel confirm-dead gpu-1" in text
    outcome = structs.replace(outcome, off=True)
    world.records = {record.id: record}
    world.picture = structs.replace(world.picture, fenced=(outcome,))
    world.decide()
    text = " ".join(text_of(the(world), "RemovedByForce").split())
    assert "powered off by the fencing program; 1 pod removed by force" in text


def test_a_digest_that_met_a_dead_server_comes_later_as_one_and_nothing_is_lost() -> None:
    async def scenario() -> None:
        world = isolated(*(f"gpu-{number}" for number in range(30)))
        with MailServer(on_data=lambda number: "451 later" if number == 1 else None) as server:
            told = Told(world, settings_for(server.port))
            await told.send()
            assert not server.mails
            waiting = {mail.next_wall_s for one in told.book.to_tell(world.records) for mail in one.mails}
            assert len(waiting) == 1
            await told.send()
            ((_, digest),) = server.mails
            assert "30 events" in str(digest["Subject"])

    asyncio.run(scenario())


def test_nodes_that_fall_silent_together_are_told_once_each_time() -> None:
    async def scenario() -> None:
        names = [f"gpu-{number}" for number in range(8)]
        world = World(names, OPEN)
        with MailServer() as server:
            told = Told(world, settings_for(server.port))
            assert not told.note()
            for time in (1, 2):
                world.silent = set(names[:5])
                for _ in range(12):
                    world.passes(10)
                    world.decide()
                assert told.note()
                assert not told.note()
                await told.send()
                await told.send()
                assert len(server.mails) == time
                assert not world.records
                world.silent = set()
                world.passes(10)
                world.decide()
                assert not told.note()
            mail = server.mails[0][1]
            assert mail["Subject"] == "[sentinel] many nodes are silent together"
            body = mail.get_body(("plain",))
            assert body is not None
            assert "5 of 8 nodes went silent together" in body.get_content()
            assert len({mail["Message-ID"] for _, mail in server.mails}) == 2

    asyncio.run(scenario())
