"""The mail child (`sentinel.notify.sender`) against real servers, good and bad."""

import resource
import subprocess
import sys
import time

import msgspec
import pytest

from sentinel.core.model import Stage
from sentinel.notify.wire import DATA_TIMES, Order
from sentinel.settings import Mail
from sentinel.util.children import our_python
from tests.notify.mail_world import (
    OWNER,
    REPO,
    Certificates,
    MailServer,
    ScriptedServer,
    a_request,
    body,
    but,
    closed_port,
    parse,
    send,
)
from tests.waits import runs, until

A, B, C = "a@example.com", "b@example.com", "c@example.com"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


def plain(port, **changes):
    return Mail(host="127.0.0.1", port=port, tls="none", timeout_s=10.0, **changes)


def password_file(tmp_path, mode=0o600, text="s3cret\n"):
    path = tmp_path / "password"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


# ---------------------------------------------------------------- delivery


def test_a_mail_arrives_as_plain_text_and_html_with_its_ids():
    with MailServer() as server:
        (answer,) = send(plain(server.port), a_request())
    assert (answer.state, answer.accepted) == ("sent", (OWNER,))
    ((recipients, mail),) = server.mails
    assert recipients == [OWNER]
    assert mail["Message-ID"] == answer.message_id == a_request().message_id
    assert "fell off the bus" in body(mail, "plain")
    assert "fell off the bus" in body(mail, "html")


def test_several_mails_share_one_connection_and_keep_their_order():
    requests = [
        a_request(number, stage=stage) for number in (1, 2) for stage in (Stage.STARTED, Stage.RECOVERED)
    ]
    with MailServer() as server:
        answers = send(plain(server.port), *requests)
    assert [answer.state for answer in answers] == ["sent"] * 4
    assert [mail["Message-ID"] for _, mail in server.mails] == [request.message_id for request in requests]
    assert server.connections == 1


def test_starttls_and_implicit_tls_with_a_ca_of_ones_own(certificates):
    for tls in ("starttls", "tls"):
        with MailServer(tls=certificates.server, implicit=tls == "tls") as server:
            mail = Mail(
                host="127.0.0.1", port=server.port, tls=tls, ca_file=certificates.ca_file, timeout_s=10.0
            )
            (answer,) = send(mail, a_request())
        assert (answer.state, answer.error) == ("sent", "")
        assert len(server.mails) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(certificates):
    for tls in ("starttls", "tls"):
        with MailServer(tls=certificates.server, implicit=tls == "tls") as server:
            (answer,) = send(Mail(host="127.0.0.1", port=server.port, tls=tls, timeout_s=10.0), a_request())
        assert (answer.state, answer.server) == ("temporary", True)
        assert "certificate verify failed" in answer.error.lower()
        assert not server.mails


def test_a_server_without_starttls_gets_no_mail_in_the_clear():
    with MailServer() as server:
        (answer,) = send(Mail(host="127.0.0.1", port=server.port, timeout_s=10.0), a_request())
    assert (answer.state, answer.server) == ("temporary", True)
    assert "STARTTLS" in answer.error
    assert not server.mails


def test_login_with_a_password_from_a_file(certificates, tmp_path):
    with MailServer(tls=certificates.server, login=("bot", "s3cret")) as server:
        mail = Mail(
            host="127.0.0.1",
            port=server.port,
            ca_file=certificates.ca_file,
            username="bot",
            password_file=password_file(tmp_path),
            timeout_s=10.0,
        )
        (answer,) = send(mail, a_request())
        assert (answer.state, answer.error) == ("sent", "")
        (refused,) = send(
            msgspec.structs.replace(mail, password_file=password_file(tmp_path, text="wrong")), a_request()
        )
    assert len(server.mails) == 1
    assert (refused.state, refused.server) == ("temporary", True)
    assert refused.error.startswith(f"127.0.0.1:{server.port}: 535")


@pytest.mark.parametrize(("mode", "text"), [(0o644, "s3cret"), (0o620, "s3cret"), (0o600, ""), (None, "")])
def test_a_password_file_that_others_can_read_or_that_is_missing_is_not_used(tmp_path, mode, text):
    path = password_file(tmp_path, mode, text) if mode else str(tmp_path / "missing")
    with MailServer(login=("bot", "s3cret")) as server:
        (answer,) = send(plain(server.port, username="bot", password_file=path), a_request())
        assert server.connections == 0
    assert (answer.state, answer.server) == ("temporary", True)
    assert path in answer.error
    assert "s3cret" not in answer.error


def test_a_password_never_leaves_the_machine_without_tls(tmp_path):
    mail = Mail(host="192.0.2.1", tls="none", username="bot", password_file=password_file(tmp_path))
    (answer,) = send(mail, a_request())
    assert "not sent over a connection without TLS" in answer.error


# ---------------------------------------------------------------- recipients


def test_refused_recipients_are_named_and_the_others_get_their_mail():
    said = {B: "550 no such user", C: "450 greylisted"}
    with MailServer(on_rcpt=said.get) as server:
        (answer,) = send(plain(server.port), a_request(recipients=(A, B, C)))
    assert [recipients for recipients, _ in server.mails] == [[A]]
    assert answer.state == "temporary"
    assert (answer.accepted, answer.refused, answer.delayed) == ((A,), {B: said[B]}, {C: said[C]})
    assert B in answer.error
    assert not answer.server


def test_all_recipients_refused_is_the_end_of_the_mail():
    with MailServer(on_rcpt=lambda address: "550 no such user") as server:
        answers = send(plain(server.port), a_request(recipients=(A, B)), a_request(2))
    assert [answer.state for answer in answers] == ["permanent"] * 2
    assert answers[0].refused == {A: "550 no such user", B: "550 no such user"}


def test_text_that_is_no_address_is_refused_without_asking_the_server():
    bad = "x@y>\r\nRCPT TO:<victim@example.com"
    with MailServer() as server:
        (answer,) = send(plain(server.port), a_request(recipients=(A, bad)))
    assert (answer.state, answer.accepted, answer.refused) == ("sent", (A,), {bad: "not a mail address"})
    assert [recipients for recipients, _ in server.mails] == [[A]]


def test_refused_content_is_permanent_and_a_full_mailbox_is_not():
    answers_ = {1: "554 looks like spam", 2: "452 out of space"}
    with MailServer(on_data=answers_.get) as server:
        first, second, third = send(plain(server.port), a_request(1), a_request(2), a_request(3))
    assert (first.state, first.refused) == ("permanent", {OWNER: "554 looks like spam"})
    assert (second.state, second.delayed) == ("temporary", {OWNER: "452 out of space"})
    assert third.state == "sent"


def test_a_refused_sender_is_a_matter_of_settings_and_tried_again():
    script = but("MAIL", b"550 you may not send\r\n")
    with ScriptedServer(script) as server:
        (answer,) = send(plain(server.port), a_request())
    assert (answer.state, answer.server) == ("temporary", True)
    assert "sentinel@gpubox.example: 550 you may not send" in answer.error


# ---------------------------------------------------------------- servers in trouble


def test_nobody_listens():
    answers = send(plain(closed_port()), a_request(1), a_request(2))
    assert [(answer.state, answer.server) for answer in answers] == [("temporary", True)] * 2


@pytest.mark.parametrize("verb", ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "DOT"])
def test_a_server_that_falls_silent_costs_at_most_the_time_out(verb):
    script = but(verb, b"")
    began = time.monotonic()
    with ScriptedServer(script) as server:
        mail = msgspec.structs.replace(plain(server.port), timeout_s=0.2)
        answers = send(mail, *(a_request(number) for number in range(1, 20)))
    assert {answer.state for answer in answers} == {"temporary"}
    assert {answer.server for answer in answers[1:]} == {True}
    assert len(answers) == 19
    assert time.monotonic() - began < 19 * DATA_TIMES * 0.2, (
        "the others did not wait for the same silence again"
    )


def test_a_server_that_looks_through_a_mail_for_longer_than_the_time_out_gets_it_once():
    def looks(_: int) -> None:
        time.sleep(1.0)

    with MailServer(on_data=looks) as server:
        mail = msgspec.structs.replace(plain(server.port), timeout_s=0.3)
        assert [answer.state for answer in send(mail, a_request(1), a_request(2))] == ["sent", "sent"]
    assert len(server.mails) == 2


def test_an_address_over_which_a_server_falls_silent_holds_up_no_other_mail():
    with ScriptedServer(but("RCPT", b"", only=1)) as server:
        mail = msgspec.structs.replace(plain(server.port), timeout_s=0.3)
        first, second = send(mail, a_request(1), a_request(2))
    assert (first.state, first.server) == ("temporary", False)
    assert second.state == "sent"


@pytest.mark.parametrize("verb", ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "DOT"])
def test_a_server_that_closes_in_the_middle_is_tried_once_more(verb):
    closes = but(verb, None, only=1)
    with ScriptedServer(closes) as server:
        first, second = send(plain(server.port), a_request(1), a_request(2))
    assert (first.state, first.server) == ("temporary", True)
    assert second.state == ("temporary" if verb == "CONNECT" else "sent")


@pytest.mark.parametrize(
    "greeting",
    [
        b"220 " + b"x" * 200_000 + b"\r\n",
        b"220-more\r\n" * 20_000,
        b"hello there\r\n",
        b"\xff\xfe\x00\r\n",
        b"554 go away\r\n",
        b"421 too busy\r\n",
        b"999 what\r\n",
    ],
)
def test_a_strange_greeting_is_an_error_in_one_line(greeting):
    script = but("CONNECT", greeting)
    with ScriptedServer(script) as server:
        mail = msgspec.structs.replace(plain(server.port), timeout_s=2.0)
        (answer,) = send(mail, a_request())
    assert (answer.state, answer.server) == ("temporary", True)
    assert len(answer.error.splitlines()) == 1
    assert len(answer.error) < 400


def test_a_server_that_closes_after_each_mail_gets_a_new_connection():
    closes = but("MAIL", b"421 one is enough\r\n", only=2)
    with ScriptedServer(closes) as server:
        states = [answer.state for answer in send(plain(server.port), *(a_request(n) for n in (1, 2, 3)))]
    assert states == ["sent", "temporary", "sent"]


def test_a_server_that_never_says_goodbye_changes_nothing():
    silent = but("QUIT", b"")
    with ScriptedServer(silent) as server:
        (answer,) = send(plain(server.port), a_request())
    assert answer.state == "sent"


def test_dots_and_long_lines_survive_the_way():
    request = a_request()
    request = msgspec.structs.replace(request, evidence=(".", "..", ". x" * 500, "é" * 300))
    with MailServer() as server:
        send(plain(server.port), request)
    text = body(server.mails[0][1], "plain")
    assert "  | .\r\n  | ..\r\n" in text.replace("\r\n", "\n").replace("\n", "\r\n")
    assert ". x" * 500 in text
    assert "é" * 300 in text


# ---------------------------------------------------------------- outbox


def test_without_a_server_mails_become_files_and_a_repeat_replaces_its_first(tmp_path):
    outbox = tmp_path / "state" / "outbox"
    mail = Mail(outbox=str(outbox))
    (answer,) = send(mail, a_request())
    send(mail, a_request())
    (path,) = outbox.iterdir()
    assert answer.path == str(path)
    assert path.name == a_request().message_id.strip("<>") + ".eml"
    assert parse(path.read_bytes())["To"] == OWNER
    assert (outbox.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_mail_for_nobody_is_filed_even_where_there_is_a_server(tmp_path):
    with MailServer() as server:
        (answer,) = send(plain(server.port, outbox=str(tmp_path)), a_request(recipients=()))
        assert server.connections == 0
    assert answer.state == "sent"
    (path,) = tmp_path.iterdir()
    assert parse(path.read_bytes())["To"] == "undisclosed-recipients:;"


def test_a_disk_without_room_is_a_temporary_error_and_leaves_nothing_half_written(tmp_path):
    # A limit on file sizes fails write() as a full disk does, without needing a disk of its own.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    (answer,) = send(Mail(outbox=str(tmp_path)), a_request(), preexec_fn=limit)
    assert (answer.state, answer.server) == ("temporary", True)
    assert str(tmp_path) in answer.error
    assert list(tmp_path.iterdir()) == []


def test_an_outbox_that_is_no_folder_is_a_temporary_error(tmp_path):
    (tmp_path / "file").write_text("")
    (answer,) = send(Mail(outbox=str(tmp_path / "file" / "outbox")), a_request())
    assert (answer.state, answer.server) == ("temporary", True)


# ---------------------------------------------------------------- the child itself


@pytest.mark.parametrize("text", [b"", b"{", b'{"settings": {}, "requests": 3}', b"\xff"])
def test_an_order_that_cannot_be_read_is_one_line_and_exit_2(text):
    child = subprocess.run(
        [sys.executable, "-m", "sentinel.notify.sender"],
        input=text,
        capture_output=True,
        cwd=REPO,
        check=False,
    )
    assert child.returncode == 2
    assert child.stdout == b""
    assert child.stderr.count(b"\n") == 1
    assert b"Traceback" not in child.stderr


def test_the_child_ends_by_itself_when_its_time_is_over():
    script = but("CONNECT", b"")
    with ScriptedServer(script) as server:
        order = Order(settings=plain(server.port, ca_file=""), requests=[a_request()], deadline_s=0.5)
        child = subprocess.run(
            [sys.executable, "-m", "sentinel.notify.sender"],
            input=msgspec.json.encode(order),
            capture_output=True,
            cwd=REPO,
            timeout=180,
            check=False,
        )
    assert (child.returncode, child.stdout) == (1, b"")
    assert child.stderr == b"sentinel.notify.sender: out of time\n"


def test_the_child_ends_with_its_parent():
    """Nobody could record what it sends, so it must not send."""
    script = but("CONNECT", b"")
    with ScriptedServer(script) as server:
        # It has far more time than the test waits.
        mail = msgspec.structs.replace(plain(server.port), timeout_s=300.0)
        order = msgspec.json.encode(Order(settings=mail, requests=[a_request()], deadline_s=300.0))
        program = (
            "import subprocess, sys\n"
            "child = subprocess.Popen([sys.executable, '-m', 'sentinel.notify.sender'], stdin=subprocess.PIPE)\n"
            "child.stdin.write(sys.stdin.buffer.read()); child.stdin.close()\n"
            "print(child.pid, flush=True); child.wait()\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO
        )
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(order)
        parent.stdin.close()
        pid = int(parent.stdout.readline())
        until(lambda: "CONNECT" in server.seen, "the child does not connect")
        parent.kill()
        parent.wait()
        until(lambda: not runs(pid), "the child outlived its parent")
        parent.stdout.close()


def test_modules_in_the_working_directory_are_not_imported(tmp_path):
    """The job's own ssl.py or email.py must not run inside Sentinel."""
    (tmp_path / "ssl.py").write_text("raise SystemExit('hijacked')")
    order = msgspec.json.encode(Order(settings=Mail(outbox=str(tmp_path / "outbox")), requests=[a_request()]))
    child = subprocess.run(
        our_python("sentinel.notify.sender"),
        input=order,
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, b"")
