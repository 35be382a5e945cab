"""The resident part: what waits is sent once, retried, folded into a digest, and never lost."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from sentinel.controller.effects import notify
from sentinel.controller.effects.notify import MAX_ATTEMPTS, Notifier, retry_s
from sentinel.core.model import Stage, StageMail
from sentinel.settings import Mail, Settings
from tests.notify.mail_world import (
    HOST,
    OWNER,
    REPO,
    Book,
    HandClock,
    MailServer,
    ScriptedServer,
    a_job,
    an_incident,
    but,
    closed_port,
    parse,
)
from tests.waits import eventually, turns

BOTH = (Stage.STARTED, Stage.RECOVERED)


def settings_for(port, state="/state", timeout_s=10.0, **mail):
    return Settings(
        state_dir=str(state), mail=Mail(host="127.0.0.1", port=port, tls="none", timeout_s=timeout_s, **mail)
    )


def notifier_for(book, port, clock=None, **mail):
    options = {"clock": clock} if clock else {}
    return Notifier(settings_for(port, **mail), book.pending, book.record, host=HOST, **options)


@contextlib.asynccontextmanager
async def running(notifier):
    task = asyncio.create_task(notifier.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def children():
    """Mail children of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"sentinel.notify.sender" in (path / "cmdline").read_bytes():
                found.append(path)
    return found


# ---------------------------------------------------------------- what waits is sent


def test_every_waiting_stage_is_sent_once_and_recorded():
    async def scenario():
        book = Book(an_incident(1, BOTH))
        with MailServer() as server:
            notifier = notifier_for(book, server.port)
            async with running(notifier):
                await eventually(lambda: book.states() == ["sent", "sent"])
                notifier.wake()
                book.incidents["llama-0002"] = an_incident(2)
                notifier.wake()
                await eventually(lambda: book.states() == ["sent"] * 3)
            assert [mail["X-Sentinel-Stage"] for _, mail in server.mails] == [
                "started",
                "recovered",
                "started",
            ]
        assert (notifier.mails_sent, notifier.mails_failed, notifier.waiting) == (3, 0, 0)
        assert book.mail().done == (OWNER,)

    asyncio.run(scenario())


def test_greylisting_is_waited_for_and_who_has_the_mail_gets_no_second_one():
    async def scenario():
        asked = []

        def on_rcpt(address):
            asked.append(address)
            return (
                "451 come back later" if address == "grey@example.com" and asked.count(address) == 1 else None
            )

        clock = HandClock()
        book = Book(an_incident(), job=a_job(emails=("a@example.com", "grey@example.com")))
        with MailServer(on_rcpt=on_rcpt) as server:
            notifier = notifier_for(book, server.port, clock)
            async with running(notifier):
                await eventually(lambda: book.mail().attempts == 1)
                assert (book.mail().state, book.mail().done) == ("waiting", ("a@example.com",))
                assert "grey@example.com: 451 come back later" in book.mail().error
                clock.advance(5)
                notifier.wake()
                await turns()
                assert len(server.mails) == 1
                clock.advance(10)
                notifier.wake()
                await eventually(lambda: book.mail().state == "sent")
            assert [recipients for recipients, _ in server.mails] == [["a@example.com"], ["grey@example.com"]]
            first, second = (mail for _, mail in server.mails)
            assert first["Message-ID"] == second["Message-ID"]
            assert second["To"] == "a@example.com, grey@example.com"

    asyncio.run(scenario())


def test_what_a_server_takes_and_bounces_later_comes_back_to_the_sender_of_the_settings():
    async def scenario():
        book = Book(an_incident(1, BOTH))
        sender = "Sentinel <ops+gpu@example.com>"
        with MailServer() as server:
            async with running(notifier_for(book, server.port, sender=sender)):
                await eventually(lambda: book.states() == ["sent", "sent"])
        assert server.senders == ["ops+gpu@example.com"] * 2
        assert {mail["From"] for _, mail in server.mails} == {sender}

    asyncio.run(scenario())


def test_a_mail_that_the_server_refuses_for_good_is_failed_and_named():
    async def scenario():
        book = Book(an_incident())
        with MailServer(on_rcpt=lambda address: "550 no such user") as server:
            notifier = notifier_for(book, server.port)
            async with running(notifier):
                await eventually(lambda: book.mail().state == "failed")
        assert book.mail().refused == (OWNER,)
        assert book.mail().error == f"{OWNER}: 550 no such user"
        assert notifier.mails_failed == 1

    asyncio.run(scenario())


def test_a_refused_address_does_not_make_a_mail_fail_that_others_got():
    async def scenario():
        book = Book(an_incident(), job=a_job(emails=("a@example.com", "b@example.com")))
        with MailServer(on_rcpt={"b@example.com": "550 no such user"}.get) as server:
            async with running(notifier_for(book, server.port)):
                await eventually(lambda: book.mail().state == "sent")
        assert (book.mail().done, book.mail().refused) == (("a@example.com",), ("b@example.com",))
        assert "b@example.com: 550" in book.mail().error

    asyncio.run(scenario())


def test_an_address_that_is_refused_after_greylisting_does_not_undo_what_others_got():
    async def scenario():
        said = ["451 come back later", "550 no such user"]
        clock = HandClock()
        book = Book(an_incident(), job=a_job(emails=("a@example.com", "b@example.com")))
        with MailServer(
            on_rcpt=lambda address: said.pop(0) if address == "b@example.com" else None
        ) as server:
            notifier = notifier_for(book, server.port, clock)
            async with running(notifier):
                await eventually(lambda: book.mail().attempts == 1)
                clock.advance(20)
                notifier.wake()
                await eventually(lambda: book.mail().state == "sent")
        assert (book.mail().done, book.mail().refused) == (("a@example.com",), ("b@example.com",))
        assert notifier.mails_failed == 0

    asyncio.run(scenario())


def test_while_the_server_is_down_mails_wait_and_are_sent_when_it_is_back():
    async def scenario():
        clock = HandClock()
        book = Book(*(an_incident(number) for number in range(1, 4)))
        port = closed_port()
        notifier = notifier_for(book, port, clock)
        async with running(notifier):
            await eventually(lambda: [mail.attempts for _, mail in book.history] == [1, 1, 1])
            book.incidents["llama-0004"] = an_incident(4)
            notifier.wake()  # a new mail does not make a dead server be asked again
            await eventually(lambda: notifier.waiting == 4)
            assert len(book.history) == 3
            with MailServer() as server:
                notifier._settings = settings_for(server.port)
                clock.advance(20)
                notifier.wake()
                await eventually(lambda: book.states() == ["sent"] * 4)

    asyncio.run(scenario())


def test_trying_ends_after_three_days_and_says_so():
    async def scenario():
        mail = StageMail(stage=Stage.STARTED, attempts=MAX_ATTEMPTS - 1)
        book = Book(an_incident(mails=(mail,)))
        async with running(notifier_for(book, closed_port())):
            await eventually(lambda: book.mail().state == "failed")
        assert book.mail().error.startswith(f"given up after {MAX_ATTEMPTS} attempts: 127.0.0.1:")

    asyncio.run(scenario())


def test_retries_grow_from_ten_seconds_to_a_quarter_of_an_hour_and_add_up_to_three_days():
    for _ in range(50):
        assert 7.5 <= retry_s(1) <= 12.5
        assert 675 <= retry_s(20) <= 1125
    total_s = sum(min(900.0, 10.0 * 2.0 ** (attempt - 1)) for attempt in range(1, MAX_ATTEMPTS))
    assert total_s == pytest.approx(3 * 86400, rel=0.02)


def test_a_wall_clock_that_was_stepped_back_parks_no_mail():
    async def scenario():
        clock = HandClock()
        mail = StageMail(stage=Stage.STARTED, attempts=1, next_wall_s=clock.now.wall_s + 30 * 86400)
        book = Book(an_incident(mails=(mail,)))
        with MailServer() as server:
            notifier = notifier_for(book, server.port, clock)
            assert notifier._due_in_s(mail, clock.now) <= 1125

    asyncio.run(scenario())


# ---------------------------------------------------------------- crashes

CRASH = """
import asyncio, os, signal, sys
from pathlib import Path
import msgspec
from sentinel.core.model import Incident, ProtectedJob
from sentinel.controller.effects.notify import Notifier
from sentinel.settings import Settings

folder, die = Path(sys.argv[1]), sys.argv[2] == "die"
read = lambda name, kind: msgspec.json.decode((folder / name).read_bytes(), type=kind)
incident, job = read("incident", Incident), read("job", ProtectedJob)

def record(incident_id, mail):
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "record").write_bytes(msgspec.json.encode(mail))

async def main():
    notifier = Notifier(read("settings", Settings), lambda: [(incident, job)], record, host="gpubox.example")
    await notifier.flush(30)

asyncio.run(main())
"""


def test_a_kill_between_the_servers_answer_and_our_record_repeats_the_mail_with_the_same_id(tmp_path):
    import msgspec

    with MailServer() as server:
        for name, value in (
            ("incident", an_incident()),
            ("job", a_job()),
            ("settings", settings_for(server.port, tmp_path)),
        ):
            (tmp_path / name).write_bytes(msgspec.json.encode(value))
        codes = [
            subprocess.run(
                [sys.executable, "-c", CRASH, str(tmp_path), how], cwd=REPO, timeout=180, check=False
            ).returncode
            for how in ("die", "live")
        ]
        assert codes == [-9, 0]
        first, second = (mail for _, mail in server.mails)
    assert first["Message-ID"] == second["Message-ID"]
    assert first.get_payload()[0].get_payload() == second.get_payload()[0].get_payload()
    assert json.loads((tmp_path / "record").read_bytes())["state"] == "sent"


def test_a_record_that_cannot_be_written_does_not_send_the_mail_again():
    async def scenario():
        book = Book(an_incident(1, BOTH))
        broken = [True]

        def record(incident_id, mail):
            if broken[0]:
                raise OSError(28, "No space left on device")
            book.record(incident_id, mail)

        with MailServer() as server:
            notifier = Notifier(settings_for(server.port), book.pending, record, host=HOST)
            async with running(notifier):
                await eventually(lambda: notifier.errors >= 2)
                broken[0] = False
                notifier.wake()
                await eventually(lambda: book.states() == ["sent", "sent"])
            assert len(server.mails) == 2
        assert notifier.mails_sent == 2

    asyncio.run(scenario())


def test_records_that_break_do_not_end_the_notifier():
    async def scenario():
        book = Book(an_incident())
        broken = [True]

        def pending():
            if broken[0]:
                raise ValueError("damaged")
            return book.pending()

        with MailServer() as server:
            notifier = Notifier(settings_for(server.port), pending, book.record, host=HOST)
            async with running(notifier):
                await eventually(lambda: notifier.errors == 1)
                broken[0] = False
                notifier.wake()
                await eventually(lambda: book.mail().state == "sent")

    asyncio.run(scenario())


# ---------------------------------------------------------------- the child


def test_a_child_that_does_not_end_is_killed_and_the_mail_waits(monkeypatch):
    async def scenario():
        monkeypatch.setattr(notify, "longest_s", lambda *_: 30.0)  # so long the child would give itself
        monkeypatch.setattr(notify, "CHILD_SLACK_S", -29.0)
        book = Book(an_incident())
        with ScriptedServer(but("CONNECT", b"")) as server:
            notifier = notifier_for(book, server.port)
            async with running(notifier):
                await eventually(lambda: book.mail().attempts == 1)
            assert book.mail().error == "the mail child did not end in its time"
            assert book.mail().state == "waiting"
            assert not children()

    asyncio.run(scenario())


def test_a_child_that_cannot_start_is_a_reason_to_wait(monkeypatch, tmp_path):
    async def scenario():
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
        book = Book(an_incident())
        async with running(notifier_for(book, 1)):
            await eventually(lambda: book.mail().attempts == 1)
        assert book.mail().state == "waiting"
        assert "No such file" in book.mail().error

    asyncio.run(scenario())


def test_cancelling_ends_the_child():
    async def scenario():
        book = Book(an_incident())
        with ScriptedServer(but("CONNECT", b"")) as server:
            async with running(notifier_for(book, server.port, timeout_s=300.0)):
                await eventually(lambda: "CONNECT" in server.seen)
            assert not children()
        assert book.mail() == StageMail(stage=Stage.STARTED)

    asyncio.run(scenario())


# ---------------------------------------------------------------- the end of a run


def test_flush_sends_what_waits_even_what_was_backing_off():
    async def scenario():
        clock = HandClock()
        later = StageMail(stage=Stage.STARTED, attempts=3, next_wall_s=clock.now.wall_s + 600)
        book = Book(an_incident(1, mails=(later,)), an_incident(2))
        with MailServer() as server:
            assert await notifier_for(book, server.port, clock).flush(30) == 0
        assert book.states() == ["sent", "sent"]

    asyncio.run(scenario())


def test_flush_is_bounded_and_leaves_the_rest_waiting():
    async def scenario():
        book = Book(an_incident())
        with ScriptedServer(but("RCPT", b"")) as server:
            notifier = notifier_for(book, server.port, timeout_s=300.0)
            async with running(notifier):
                await eventually(lambda: "RCPT" in server.seen)
                assert await asyncio.wait_for(notifier.flush(0.3), 120) == 1
            assert not children()
        assert book.mail().state == "waiting"

    asyncio.run(scenario())


def test_flush_with_a_dead_server_tries_once():
    async def scenario():
        book = Book(*(an_incident(number) for number in range(1, 50)))
        assert await notifier_for(book, closed_port()).flush(30) == 49
        assert [(one.attempts, one.state) for _, one in book.history] == [(1, "waiting")] * 49

    asyncio.run(scenario())


# ---------------------------------------------------------------- outbox


def test_with_no_server_the_outbox_is_in_the_state_directory(tmp_path):
    async def scenario():
        book = Book(an_incident(1, BOTH), job=a_job(emails=()))
        settings = Settings(state_dir=str(tmp_path))
        notifier = Notifier(
            settings, book.pending, book.record, host=HOST, log_paths=lambda job: (f"/logs/{job}",)
        )
        assert await notifier.flush(30) == 0
        assert book.states() == ["sent", "sent"]
        again = Book(an_incident(1, BOTH))
        await Notifier(settings, again.pending, again.record, host=HOST).flush(30)
        files = sorted((tmp_path / "outbox").iterdir())
        assert len(files) == 2
        return files

    files = asyncio.run(scenario())
    assert {parse(path.read_bytes())["X-Sentinel-Stage"] for path in files} == {"started", "recovered"}


def test_the_limit_does_not_hold_back_what_only_goes_to_the_outbox(tmp_path):
    async def scenario():
        book = Book(*(an_incident(number) for number in range(1, 31)), job=a_job(emails=()))
        settings = structs.replace(settings_for(1, tmp_path, per_hour=2))
        assert await Notifier(settings, book.pending, book.record, host=HOST).flush(60) == 0
        assert book.states() == ["sent"] * 30

    asyncio.run(scenario())
