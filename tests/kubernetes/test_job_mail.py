"""Mails about a cluster's jobs, from a real controller by a real mail server: who gets which, and in which thread.

Webhooks are told the same, each once.
"""

import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import datetime
from email.message import EmailMessage
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kubernetes.jobs_site import CUSTOM, NODES, JobSite, Ranks
from tests.kubernetes.local_fleet import Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, names, plane, site
from tests.notify.hooks import Hook, hooks, key_file, serve, signature, texts
from tests.notify.mail_world import MailServer, body
from tests.prometheus.test_dashboards import FILES, read
from tests.rig.processes import free_port
from tests.web.browser import Browser

if TYPE_CHECKING:
    from tests.rig.api import Object

__all__ = ["hooks", "kwok", "plane", "site"]

THREADS = [("0001", "started"), ("0001", "recovered"), ("0002", "started"), ("0002", "gave-up")]
LINE = "</pre><script>window.hit=1</script><img src=x onerror='window.hit=1'> \x1b[2J \u202egnp.exe"
BARS = 20  # of the plot of its steps, at least: so many iterations were seen before the fault
OWNER, GONE, ADMIN = "owner@example.com", "gone@example.com", "admins@example.com"
CHAT, PROGRAM = "webhook:chat", "webhook:program"  # as records name them


@pytest.fixture
def browser(tmp_path: Path) -> "Iterator[Browser]":
    with Browser(tmp_path) as made:
        made.size(1100, 900)
        yield made


@pytest.fixture
def others(site: JobSite) -> "Iterator[Callable[[], JobSite]]":
    """More jobs of the same controller, each in a namespace of its own."""
    made: list[JobSite] = []

    def other() -> JobSite:
        made.append(JobSite(site.plane, site.kwok, site.box, site.folder))
        return made[-1]

    yield other
    for one in made:
        one.close()


def mail_by(server: MailServer) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": server.port,
        "tls": "none",
        "sender": "s@example.com",
        "admins": [ADMIN],
    }


def hooks_by(chat: Hook, program: Hook, folder: Path) -> list[dict[str, Any]]:
    """One that Slack would understand, at an address that is a secret; one that gets signed JSON."""
    chats = {"name": "chat", "format": "slack", "urlFile": key_file(folder, chat.url, name="chat-url")}
    programs = {"name": "program", "url": program.url, "secretFile": key_file(folder)}
    return [{**one, "about": ["jobs"]} for one in (chats, programs)]


def cordon(site: JobSite, node: str) -> None:
    site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})


def lose(site: JobSite) -> None:
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)


def mails(site: JobSite) -> "dict[tuple[str, str], Object]":
    """What the records say became of each, by incident and stage."""
    return {
        (one["id"].rpartition("-")[2], mail["stage"]): mail
        for one in site.incidents()
        for mail in one.get("mails", [])
    }


def told(server: MailServer, site: JobSite) -> dict[tuple[str, str], tuple[list[str], EmailMessage]]:
    """The mails about the job of this site that the server took, each once."""
    about = [one for one in server.mails if site.space in str(one[1]["Subject"])]
    found = {
        (str(mail["X-Sentinel-Incident"]).rpartition("-")[2], str(mail["X-Sentinel-Stage"])): (to, mail)
        for to, mail in about
    }
    assert len(found) == len(about), [str(mail["Subject"]) for _, mail in about]
    return found


def heard(hook: Hook, site: JobSite) -> list[tuple[dict[str, str], bytes, Any]]:
    """Headers, body as it came and as it reads, of each that it was sent about the job of this site."""
    hook.bodies()
    return [
        (headers, sent, json.loads(sent)) for headers, sent in list(hook.got) if site.space in sent.decode()
    ]


def refusing(asked: list[str]) -> "Callable[[str], str | None]":
    """A server that takes nothing from a stranger at once (RFC 6647), and on which one owner is not there any more."""

    def answer(address: str) -> str | None:
        asked.append(address)
        if address == GONE:
            return "550 5.1.1 no such user"
        return "451 4.7.1 greylisted, come again" if asked.count(address) == 1 else None

    return answer


def test_an_incident_is_one_thread_that_shows_the_pace_of_the_job_and_outlives_greylisting(
    site: JobSite, browser: Browser, hooks: list[Hook]
) -> None:
    """It is shown on the page, live, by mail and to webhooks; and what its log says is nothing but text there."""
    began_s = int(time.time())
    chat, program = serve(hooks), serve(hooks)
    asked: list[str] = []
    place = f"127.0.0.1:{free_port()}"
    with MailServer(on_rcpt=refusing(asked)) as server:
        site.settings |= {"mail": mail_by(server), "listen": place}
        site.settings |= {"pageUrl": f"http://{place}/", "dashboardUrl": "https://grafana.example/"}
        site.settings |= {"webhooks": hooks_by(chat, program, site.folder)}
        controller = led(site)
        away, *used = (f"{NODES}-{number}" for number in range(3))
        cordon(site, away)
        for name in used:
            node = site.agent_on(name, controller)
            node.settings(podLogs=str(site.logs))
            site.started(node)
        page, ranks = Page(controller), Ranks(site, site.logs)
        somebody = Person(site.plane, "mail-anna", bind(site.plane, "mail-anna", "sentinel-operator"))
        asks: dict[str, Any] = {"owner": {"emails": [OWNER, GONE]}, "restart": {"maxRestarts": 2}}
        site.protect(**asks)
        site.create(gang(1))
        site.until(site.state("running"))
        ranks.start()
        try:
            job = site.record()["name"]
            site.until(lambda: (page.number("job_iteration", job_name=job) or 0) > BARS)
            browser.open(f"{page.url}/jobs/{job}")
            browser.until("document.querySelector('main').innerText.includes('250 ms')")
            browser.run("window.same = true")
            ranks.say(site.pods()[0], f"CUDA error: unknown error {LINE}")
            lose(site)
            site.until(lambda: site.phases()[-1:] == ["Recovered"])
            browser.until("document.querySelector('main').innerText.includes('Stepping again.')")
            shown = browser.run("document.querySelector('main').innerText")
            terminal = somebody.says("status", job).stdout
            # Nowhere to go the second time.
            site.protect(**asks, precheck={"wait": "1s"})
            site.until(lambda: site.record()["policy"].get("precheck", {}).get("waitSeconds") == 1.0)
            for name in used:
                cordon(site, name)
            lose(site)
            site.until(lambda: site.phases()[-1:] == ["Failed"])
        finally:
            ranks.end()
        site.until(lambda: [one["state"] for one in mails(site).values()] == ["sent"] * 4)
        # Nothing was loaded again, and nothing of the line that ended a rank was run or hides anything.
        assert browser.run("[window.same, window.hit]") == [True, None]
        assert browser.run("document.querySelectorAll('main script, main img').length") == 0
        _its_links_lead_there(told(server, site)["0001", "recovered"][1], job, browser, somebody)
        end(controller)

    sent = told(server, site)
    assert list(sent) == list(mails(site)) == THREADS
    for number, later in (("0001", "recovered"), ("0002", "gave-up")):
        first, second = sent[number, "started"][1], sent[number, later][1]
        assert (first["In-Reply-To"], first["References"]) == (None, None)
        assert second["In-Reply-To"] == second["References"] == first["Message-ID"]
    assert len({str(mail["Message-ID"]) for _, mail in sent.values()}) == 4

    assert not browser.problems
    parts = [body(sent["0001", "recovered"][1], kind) for kind in ("plain", "html")]
    posted = ["\n".join(texts(heard(hook, site)[1][2])) for hook in (chat, program)]
    for text in (shown, terminal, *parts, *posted):
        assert "CUDA error: unknown error" in text, text
        assert not {"\u202e", "\x1b"} & set(text)
    assert "<script>" not in parts[1] + posted[0]

    # Who is not there is asked once for each mail, whoever is, until the mail is taken; and the records say it.
    assert [to for to, _ in sent.values()] == [[OWNER]] * 4
    assert (asked.count(GONE), asked.count(OWNER)) == (4, 5)
    assert {tuple(one["refused"]) for one in mails(site).values()} == {(GONE,)}
    # Webhooks had it by then: the first mail was tried again, and they were not told again.
    assert [one["attempts"] for one in mails(site).values()] == [2, 1, 1, 1]
    assert {frozenset(one["done"]) for one in mails(site).values()} == {frozenset({OWNER, CHAT, PROGRAM})}
    messages = _a_program_was_told_each_once_signed(program, site, began_s)
    assert [one["id"] for one in messages] == [str(mail["Message-ID"])[1:-1] for _, mail in sent.values()]
    _a_chat_was_told_the_same(chat, site, messages)
    log = (site.folder / "one" / "controller.log").read_text()
    assert "451 4.7.1 greylisted" in log
    assert "550 5.1.1 no such user" in log

    # The job stepped every 250 ms, before the fault and after it.
    text = body(sent["0001", "recovered"][1], "plain")
    assert "Step time before 250 ms, after 250 ms; longest 250 ms" in text
    assert "████ ████" in text
    html = body(sent["0001", "recovered"][1], "html")
    assert html.count("height:56px") >= BARS
    assert "<img" not in html


def _a_program_was_told_each_once_signed(program: Hook, site: JobSite, began_s: int) -> list[Any]:
    """Its messages, which `bodies` of a Hook holds to the schema in the docs."""
    found = heard(program, site)
    messages = [one for _, _, one in found]
    assert [(one["incident"].rpartition("-")[2], one["stage"]) for one in messages] == THREADS
    assert {one["job"] for one in messages} == {site.record()["name"]}
    ids = [one["id"] for one in messages]
    assert len(set(ids)) == len(THREADS)
    assert [one["thread"] for one in messages] == [ids[0], ids[0], ids[2], ids[2]]
    for headers, sent, one in found:
        assert headers["X-Sentinel-Delivery"] == one["id"]
        assert headers["X-Sentinel-Signature"] == signature(headers, sent)
        made_s = datetime.fromisoformat(one["time"]).timestamp()
        assert began_s <= made_s <= int(headers["X-Sentinel-Timestamp"]) <= time.time()
    return messages


def _a_chat_was_told_the_same(chat: Hook, site: JobSite, messages: list[Any]) -> None:
    for (headers, _, shown), one in zip(heard(chat, site), messages, strict=True):
        (attachment,) = shown["attachments"]
        assert shown["text"] == f"*{one['label']}* {one['title']}"
        assert f"{site.space}/train: " in shown["text"]
        assert attachment["text"].startswith(one["sentence"])
        assert "X-Sentinel-Signature" not in headers


def _its_links_lead_there(mail: EmailMessage, job: str, browser: Browser, somebody: Person) -> None:
    text, html = body(mail, "plain"), unescape(body(mail, "html"))
    page, dashboard = re.findall(r'<a [^>]*href="([^"]+)"', html)
    assert page in text
    assert dashboard in text
    browser.open(page)
    said = json.dumps("Recovered: Stepping again.")
    browser.until(f"document.querySelector('main').innerText.includes({said})")
    assert job in browser.run("document.querySelector('main').innerText")
    where = urllib.parse.urlsplit(dashboard)
    (board,) = [one for one in map(read, FILES) if where.path == f"/d/{one['uid']}"]
    ((variable, chosen),) = urllib.parse.parse_qsl(where.query)
    assert variable in [f"var-{one['name']}" for one in board["templating"]["list"]]
    assert (where.netloc, chosen) == ("grafana.example", job)
    (command,) = re.findall(r"kubectl (-n \S+ describe incident \S+)", text)
    assert "Stepping again." in somebody.kubectl(*command.split()).stdout


def test_owners_choose_their_mails_and_administrators_get_those_of_jobs_that_have_no_owner(
    site: JobSite, others: "Callable[[], JobSite]"
) -> None:
    """Four jobs are given up: of one who wants to know that, of one who does not, of nobody, of somebody gone."""
    wants, wants_not, nobodys, gones = jobs = site, others(), others(), others()
    owners: list[dict[str, Any]] = [
        {"emails": [OWNER], "mails": ["gave-up"]},
        {"emails": [OWNER], "mails": ["started", "recovered"]},
        {"emails": []},
        {"emails": [GONE]},
    ]
    with MailServer(on_rcpt=lambda to: "550 5.1.1 no such user" if to == GONE else None) as server:
        site.settings |= {"mail": mail_by(server)}
        controller = led(site)
        for one, owner in zip(jobs, owners, strict=True):
            one.protect(owner=owner, restart={"maxRestarts": 0})
            one.create(gang(1, gpus=2))
        for one in jobs:
            one.until(one.state("running"))
            lose(one)
        for one in jobs:
            one.until(lambda one=one: [mail["state"] != "waiting" for mail in mails(one).values()] == [True])
        page = Page(controller)
        assert page.number("mails_given_up_total", about="jobs") == 1
        untold = f"nobody got the mail about {gones.record()['name']}: {GONE}: 550 5.1.1 no such user"
        assert untold in " ".join(re.sub("<[^>]*>", "", page.get("/")[1]).split())
        end(controller)

    def got(site: JobSite) -> dict[tuple[str, str], list[str]]:
        return {key: to for key, (to, _) in told(server, site).items()}

    gave_up = ("0001", "gave-up")
    assert (got(wants), got(nobodys)) == ({gave_up: [OWNER]}, {gave_up: [ADMIN]})
    assert (got(wants_not), got(gones)) == ({}, {})
    # What he did not want is there for whoever looks; what could not be delivered was tried once, and says why.
    (filed,) = (site.folder / "one" / "outbox").iterdir()
    assert filed.name.startswith(f"{wants_not.space}-job-batch-train-0001.gave-up.")
    lost = mails(gones)[gave_up]
    assert (lost["state"], lost["attempts"], lost["refused"]) == ("failed", 1, [GONE])
    assert lost["error"] == f"{GONE}: 550 5.1.1 no such user"


def test_a_mail_that_waits_outlives_its_job_its_policy_and_its_leader_and_goes_to_its_own_owner(
    site: JobSite, others: "Callable[[], JobSite]"
) -> None:
    """Three jobs were given up. One is deleted, one too and another one has its name by now, the policy of one is."""
    jobs = deleted, renewed, left = site, others(), others()
    owners = [f"{name}@example.com" for name in ("deleted", "renewed", "left")]
    away = threading.Event()
    away.set()
    with MailServer(on_rcpt=lambda to: "451 4.3.0 try again" if away.is_set() else None) as server:
        site.settings |= {"mail": mail_by(server)}
        controller = led(site)
        for one, owner in zip(jobs, owners, strict=True):
            one.protect(owner={"emails": [owner]}, restart={"maxRestarts": 0})
            one.create(gang(1, gpus=2))
        for one in jobs:
            one.until(one.state("running"))
            lose(one)
        for one in jobs:
            one.until(lambda one=one: [mail.get("attempts") for mail in mails(one).values()] == [1])
        controller.kill()
        job = "/apis/batch/v1/namespaces/{}/jobs/train"
        for one in (deleted, renewed):
            one.admin.delete(job.format(one.space), propagationPolicy="Background")
            one.until(lambda one=one: not one.admin.find(job.format(one.space)) and not one.pods())
        left.admin.delete(f"{CUSTOM}/namespaces/{left.space}/jobpolicies/all")
        renewed.protect(owner={"emails": [OWNER]}, restart={"maxRestarts": 0})
        uid = renewed.admin.get(renewed.create(gang(1, gpus=2)))["metadata"]["uid"]
        second = led(site, "two")
        renewed.until(lambda: (renewed.record()["uid"], renewed.record()["state"]) == (uid, "running"))
        away.clear()
        for one in jobs:
            one.until(lambda one=one: [mail["state"] for mail in mails(one).values()] == ["sent"])
        end(second)

    for one, owner in zip(jobs, owners, strict=True):
        assert {key: to for key, (to, _) in told(server, one).items()} == {("0001", "gave-up"): [owner]}
