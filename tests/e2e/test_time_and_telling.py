"""Starting only where it makes sense, ending in time, and telling: mail, metrics, page."""

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from sentinel.metrics import measures
from tests.e2e.box import Box, train
from tests.gate.rights import needs_root
from tests.notify.mail_world import MailServer
from tests.test_metrics import promtool
from tests.waits import until
from tests.web.browser import Browser

CHECKPOINT = {"timeout": "10s", "proof": {"logPattern": "wrote the model"}}
OWNER = {"emails": ["owner@example.com", "second@example.com"]}


# ---------------------------------------------------------------- pre-check


@pytest.fixture
@needs_root
def small_disk(box: Box) -> Iterator[Path]:
    """The job's working directory on a file system of 8 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(box.work)], check=True)
    yield box.work
    box.close()
    until(lambda: subprocess.run(["umount", str(box.work)], capture_output=True, check=False).returncode == 0)


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    with open(small_disk / "full", "wb") as file:
        file.write(b"x" * (8 << 20))
    return small_disk


def test_a_job_that_cannot_start_says_why_at_once(box: Box, full_disk: Path) -> None:
    job = box.run(*train())
    assert job.code() == 69
    assert "cannot start" in job.err
    assert str(full_disk) in job.err
    record = box.job()
    assert record is not None
    assert (record.state, record.reason) == ("error", "PrecheckFailed")
    assert box.starts == []
    view = box.sentinel("status", "job").stdout
    assert "PrecheckFailed" in view
    box.empty()


def test_a_job_that_fills_its_disk_and_dies_without_a_word_is_told_by_that_and_waits_for_room(
    box: Box, small_disk: Path
) -> None:
    box.run("sh", "-c", "cat /dev/zero > fill 2> /dev/null; exit 3")
    until(
        lambda: any(step.reason == "PrecheckFailed" for i in box.incidents() for step in i.steps), box.story
    )
    verdict = box.incidents()[0].verdict
    assert (verdict.failure, verdict.budget, verdict.entity) == ("storage-full", "infrastructure", "")
    assert verdict.sentence == f"The program was lost: {small_disk} is full (disk-space)."
    assert "0.00 GB of 0.01 GB free (0.0%)" in verdict.evidence[0]
    box.sentinel("stop", "job")


def test_what_the_pre_check_found_is_an_event_of_the_job(box: Box) -> None:
    assert box.run("true").code() == 0
    assert any(e.reason == "PrecheckPassed" for e in box.events())


# ---------------------------------------------------------------- time


def test_a_job_whose_time_is_up_is_saved_and_expires(box: Box) -> None:
    policy = box.policy(maxDuration="1500ms", resume={"gracefulStop": "2s", "checkpoint": CHECKPOINT})
    job = box.run(*train(), policy=policy, options=("--nproc", "2"))
    assert job.code() == 124
    record = box.job()
    assert record is not None
    assert record.state == "expired"
    assert record.checkpoint is not None
    # Of the rank that said so first: they do not wait for each other.
    assert f"wrote the model of step {record.checkpoint.step}\n" in box.log(0) + box.log(1)
    box.empty()


def test_a_job_that_was_extended_in_time_goes_on_without_a_restart(box: Box) -> None:
    job = box.run(*train(), policy=box.policy(maxDuration="4s"))
    box.stepping()
    pid = box.ranks(1)[0]
    assert box.sentinel("extend", "job", "2h").returncode == 0
    until(lambda: box.status()["run_s"] > 4.5)
    assert box.ranks() == {0: pid}
    assert box.incidents() == []
    job.send(signal.SIGINT)
    assert job.code() == 130


# ---------------------------------------------------------------- telling


def mailed(server: MailServer, count: int) -> list[EmailMessage]:
    until(lambda: len(server.mails) >= count, lambda: str([m["Subject"] for _, m in server.mails]))
    return [message for _, message in server.mails]


def test_started_and_recovered_are_told_once_each_in_one_thread(box: Box) -> None:
    with MailServer() as server:
        box.settings(mail={"host": "127.0.0.1", "port": server.port, "tls": "none"})
        job = box.run(*train("--save-every", "1"), policy=box.policy(owner=OWNER), options=("--nproc", "2"))
        box.stepping()
        os.kill(box.ranks(2)[1], signal.SIGKILL)
        box.phase("Recovered")
        started, recovered = mailed(server, 2)
        job.send(signal.SIGINT)
        assert job.code() == 130
        assert len(server.mails) == 2  # a stop that a person asked for is no news to anybody
        assert {tuple(sorted(to)) for to, _ in server.mails} == {("owner@example.com", "second@example.com")}
        assert re.match(r"<job-0001\.started\.", started["Message-ID"])
        assert re.match(r"<job-0001\.recovered\.", recovered["Message-ID"])
        assert started["Message-ID"] in recovered["References"]
        assert started["Subject"].startswith("[sentinel] job: ")
        text = recovered.get_body(("plain",)).get_content()  # type: ignore[union-attr]
        assert "SIGKILL" in text
        assert re.search(r"1 used, 2 left|2 of 3", text), text
        assert recovered.get_body(("html",)) is not None
        for mail in box.incidents()[0].mails:
            assert (mail.state, set(mail.done)) == ("sent", set(OWNER["emails"]))


def test_a_mail_that_no_server_took_is_kept_and_sent_by_a_later_sentinel(box: Box) -> None:
    with MailServer() as gone:
        port = gone.port
    box.settings(mail={"host": "127.0.0.1", "port": port, "tls": "none"})
    policy = box.policy(owner={"emails": ["owner@example.com"]}, restart={"maxRestarts": 0})
    job = box.run("sh", "-c", "exit 3", policy=policy, name="first")
    assert job.code() == 3
    assert "mails wait" in job.err
    assert box.incidents("first")[0].mails[0].state == "waiting"
    with MailServer() as server:
        box.settings(mail={"host": "127.0.0.1", "port": server.port, "tls": "none"})
        assert box.run("true", name="other").code() == 0
        (mail,) = mailed(server, 1)
        assert mail["Message-ID"].startswith("<first-0001.gave-up.")
        assert box.incidents("first")[0].mails[0].state == "sent"


def test_without_a_server_mails_are_files_in_the_outbox(box: Box) -> None:
    policy = box.policy(owner=OWNER, restart={"maxRestarts": 0})
    assert box.run("sh", "-c", "exit 3", policy=policy).code() == 3
    (path,) = (box.state / "outbox").glob("*.eml")
    assert "owner@example.com" in path.read_text()


def test_page_metrics_and_health_answer_on_loopback(box: Box, tmp_path: Path) -> None:
    box.settings(listen="127.0.0.1:0")
    job = box.run(*train())
    job.said("status and metrics on http://127.0.0.1:")
    url = re.search(r"http://127\.0\.0\.1:\d+", job.err).group()  # type: ignore[union-attr]

    def get(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            assert answer.status == 200
            return answer.read().decode()

    box.stepping()
    assert "job" in get("/")
    assert "ok" in get("/healthz").lower()
    metrics = until(lambda: text if "sentinel_" in (text := get("/metrics")) else "")
    assert re.search(r'^sentinel_job_iteration\{job_name="job"\} \d+', metrics, re.MULTILINE), metrics
    foreign = {name for name, row in measures.rows().items() if row.source}
    assert [line for line in promtool(metrics.encode()) if line.split(" ", 1)[0] not in foreign] == []
    with Browser(tmp_path) as browser:
        browser.open(url)
        step = "Number(document.querySelector('main').innerText.match(/Iteration\\s+(\\d+)/i)?.[1])"
        seen = browser.until(step)
        browser.run("window.same = true")
        browser.until(f"{step} > {seen}")
        assert browser.run("window.same"), "it was not loaded again"
        assert not browser.problems
    job.send(signal.SIGINT)
    assert job.code() == 130
