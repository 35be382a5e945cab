"""What a mail says, and that nothing in it can pretend to be something else."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Cause, JobState, Lost, Pace, Phase, SaveResult, Stage, Step, Symptom, Verdict
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy, Restart
from sentinel.core.reports import Iteration, RankReport
from sentinel.notify.compose import MailRequest, dashboard_of, digest_request, mail_request, message_id
from sentinel.notify.message import Renderer, address, sender_address
from sentinel.notify.plot import Plot
from sentinel.notify.text import clean, duration
from sentinel.settings import Mail, Settings, Webhook
from tests.notify.mail_world import (
    HOST,
    HOSTILE,
    OPENED_WALL_S,
    OWNER,
    REPO,
    a_job,
    a_request,
    an_incident,
    body,
    parse,
)

SETTINGS = Settings(state_dir="/state", page_url="http://127.0.0.1:9810/", dashboard_url="https://g.example")
RENDERER = Renderer()


def compose(incident=None, job=None, stage=Stage.RECOVERED, **changes):
    incident = incident or an_incident(stages=(Stage.STARTED, Stage.RECOVERED))
    return mail_request(incident, job or a_job(), stage, SETTINGS, HOST, OPENED_WALL_S + 200, **changes)


def render(request):
    sender = sender_address(request.sender)
    assert sender is not None
    return RENDERER.message(request, sender)


def test_subject_can_be_filtered_and_says_it_all():
    assert (
        compose().subject == "[sentinel] llama: recovered after rank 3 was lost (gpu) - 2 of 5 restarts left"
    )


def test_the_subject_of_a_clusters_job_begins_with_what_a_list_of_mails_shows():
    """And the rest of the mail names it as a whole, however long that is: it is copied from there."""
    whole = f"research/pytorchjob.kubeflow.org/llama-{'7' * 57}"
    request = compose(job=a_job(name=whole))
    assert request.subject.startswith(
        f"[sentinel] research/llama-{'7' * 57}: recovered after rank 3 was lost"
    )
    short = compose(job=a_job(name="research/pytorchjob.kubeflow.org/llama-70b"))
    assert "recovered after rank 3" in short.subject[:60]
    assert f"sentinel status {whole}" in RENDERER.text(request)
    assert dict(request.headers)["X-Sentinel-Job"] == whole
    digest = digest_request([request, short], SETTINGS, HOST, OPENED_WALL_S)
    assert digest.subject.endswith("research/llama-70b, research/llama-" + "7" * 57)


def test_what_to_do_begins_with_why_it_was_given_up() -> None:
    why = "Processes that cannot be ended: rank 3 (pid 4142, state D). A reboot is needed."
    incident = an_incident(phase=Phase.FAILED, reason="StopStuck", sentence=why)
    advice = compose(incident, stage=Stage.GAVE_UP).advice
    assert advice.startswith(f"{why} The job is not running and Sentinel will not start it again.")


@pytest.mark.parametrize(
    ("stage", "changes", "expected"),
    [
        (
            Stage.STARTED,
            {"phase": Phase.PRECHECKING},
            "rank 3 was lost (gpu), recovering - 2 of 5 restarts left",
        ),
        (
            Stage.GAVE_UP,
            {"phase": Phase.FAILED, "reason": "StopStuck"},
            "gave up after rank 3 was lost (gpu) - StopStuck",
        ),
        (
            Stage.GAVE_UP,
            {"phase": Phase.EXHAUSTED},
            "gave up after rank 3 was lost (gpu) - 2 of 5 restarts left",
        ),
        (
            Stage.NOTICE,
            {"phase": Phase.ENDED, "end_state": JobState.EXPIRED, "reason": "MaxDuration"},
            "expired - MaxDuration",
        ),
        (
            Stage.NOTICE,
            {"phase": Phase.KEPT_RUNNING, "reason": "NoRoom"},
            "rank 3 was lost (gpu) - still running, NoRoom",
        ),
    ],
)
def test_each_stage_has_a_subject_of_its_own(stage, changes, expected):
    assert (
        compose(an_incident(stages=(stage,), **changes), stage=stage).subject
        == f"[sentinel] llama: {expected}"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("LossNotANumber", "the loss became NaN or infinite"),
        ("GradientNotANumber", "the gradient norm became NaN"),
    ],
)
def test_of_a_loss_that_became_nan_it_is_not_said_that_the_job_runs_since_it_may_have_ended_so(reason, words):
    told = an_incident(stages=(Stage.NOTICE,), phase=Phase.KEPT_RUNNING, reason=reason)
    verdict = structs.replace(told.verdict, symptom=Symptom.DIVERGED, cause=Cause.DATA)
    mail = compose(structs.replace(told, verdict=verdict), stage=Stage.NOTICE)
    assert mail.subject == f"[sentinel] llama: {words} (data)"
    assert "left running" not in body(parse(render(mail)), "plain")


def test_a_silent_job_that_may_be_well_is_not_called_hung():
    told = an_incident(stages=(Stage.NOTICE,), phase=Phase.KEPT_RUNNING, reason="MayBeWell")
    verdict = structs.replace(told.verdict, symptom=Symptom.HANG, cause=Cause.UNKNOWN, rank=None)
    mail = compose(structs.replace(told, verdict=verdict), stage=Stage.NOTICE)
    expected = "the job makes no iterations (cause unknown) - still running, MayBeWell"
    assert mail.subject == f"[sentinel] llama: {expected}"


@pytest.mark.parametrize("symptom", list(Symptom))
@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("rank", [None, 0])
def test_every_symptom_has_words_for_every_stage(symptom, stage, rank):
    incident = an_incident(stages=(stage,))
    incident = structs.replace(
        incident, verdict=structs.replace(incident.verdict, symptom=symptom, rank=rank)
    )
    assert "None" not in compose(incident, stage=stage).subject


def test_a_restart_says_cause_rank_last_step_checkpoint_loss_and_budget():
    text = " ".join(body(parse(render(compose())), "plain").split())
    for needed in (
        "cause: gpu (gpu-lost, fault of the node)",
        "rank: 3",
        "last step: 12,034",
        "resumed from: step 12,000",
        "lost: 34 steps repeated, 2 min 3 s, 987 GPU-seconds",
        "restarts: 3 of 5 used (2 for infrastructure, 1 for the job's own faults),",
        "2 left",
        "not done: rank 3 is lost",
        "Detected: Rank 3 ended with signal 6.",
        "| NVRM: Xid (PCI:0000:18:00): 79",
        "Reset the GPU",
        "sentinel status llama",
        "http://127.0.0.1:9810/",
    ):
        assert needed in text
    html = body(parse(render(compose())), "html")
    for needed in (
        "34 steps repeated",
        "12,034",
        "step 12,000",
        "3 of 5 used",
        "NVRM: Xid",
        "sentinel status llama",
    ):
        assert needed in html


def test_of_a_log_that_names_no_steps_iterations_are_told_as_counted_and_never_as_a_step():
    lost = Lost(steps=None, seconds=16.0, gpu_seconds=0.0, resumed_from=None)
    mail = compose(
        job=a_job(best_step=None, steps_told=False), incident=an_incident(failed_step=1125, lost=lost)
    )
    text = " ".join(body(parse(render(mail)), "plain").split())
    assert "iterations: 1,125 since its start" in text
    assert "steps repeated: unknown" in text
    assert "last step" not in text


def test_a_save_is_told_with_its_proof_or_the_lack_of_one():
    proved = an_incident(save=SaveResult(proved_by="saved checkpoint 12034", step=12034, took_s=4.0))
    assert dict(compose(proved, stage=Stage.STARTED).facts)["save"] == (
        "saved at step 12,034 in 4.0 s, proved by: saved checkpoint 12034"
    )
    unproved = an_incident(save=SaveResult(step=5))
    assert "nothing proved it" in dict(compose(unproved, stage=Stage.STARTED).facts)["save"]


def test_a_resume_from_step_zero_is_said():
    incident = an_incident(lost=Lost(steps=None, seconds=1.0, gpu_seconds=8.0, resumed_from=0))
    facts = dict(compose(incident, stage=Stage.STARTED).facts)
    assert facts["resumed from"] == "step 0: no checkpoint was used"
    assert facts["lost"].startswith("steps repeated: unknown")


def test_a_policy_without_restarts_has_no_budget_to_show():
    job = structs.replace(a_job(), policy=Policy(resume=None, restart=Restart(max_restarts=0)))
    assert "no restarts allowed" in compose(job=job, stage=Stage.STARTED).subject


def test_log_files_are_shown_as_where_to_look():
    request = compose(log_paths=("/state/llama/rank-3.log",))
    assert "/state/llama/rank-3.log" in body(parse(render(request)), "plain")


# ---------------------------------------------------------------- identity and thread


def test_message_id_is_the_same_every_time_and_differs_by_stage_incident_and_state_directory():
    incident = an_incident()
    first = message_id(incident, Stage.STARTED, HOST, Path("/state"))
    assert first == message_id(
        structs.replace(incident, phase=Phase.FAILED), Stage.STARTED, HOST, Path("/state")
    )
    others = {
        message_id(incident, Stage.RECOVERED, HOST, Path("/state")),
        message_id(an_incident(2), Stage.STARTED, HOST, Path("/state")),
        message_id(incident, Stage.STARTED, HOST, Path("/other")),
        message_id(incident, Stage.STARTED, "other.example", Path("/state")),
        # The same number again after the state directory was deleted.
        message_id(structs.replace(incident, opened_wall_s=1.0), Stage.STARTED, HOST, Path("/state")),
    }
    assert len(others | {first}) == 6


def test_later_stages_answer_the_first_mail_even_if_it_was_never_sent():
    incident = an_incident(stages=(Stage.STARTED, Stage.RECOVERED))
    failed = structs.replace(incident.mails[0], state="failed")
    incident = structs.replace(incident, mails=(failed, incident.mails[1]))
    first = parse(render(compose(incident, stage=Stage.STARTED)))
    later = parse(render(compose(incident, stage=Stage.RECOVERED)))
    assert first["In-Reply-To"] is None
    assert later["In-Reply-To"] == later["References"] == first["Message-ID"]


def test_a_long_host_and_job_name_do_not_break_the_message_ids():
    host = ".".join(["averyveryverylonglabel"] * 4)
    incident = an_incident(id="job-" + "x" * 200 + "-0001", stages=(Stage.STARTED, Stage.RECOVERED))
    request = mail_request(incident, a_job(), Stage.RECOVERED, SETTINGS, host, OPENED_WALL_S)
    raw = render(request)
    assert f"\r\nMessage-ID: {request.message_id}\r\n".encode() in raw
    assert f"\r\nReferences: {request.references}\r\n".encode() in raw
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))


@pytest.mark.parametrize("identity", ["../../etc/passwd", "a b\r\nX: y", "..", "", "jöb/1", "<>@"])
def test_odd_incident_ids_give_ids_that_can_be_file_names(identity):
    found = message_id(an_incident(id=identity), Stage.STARTED, "Höst\n name", Path("/state"))
    assert re.fullmatch(r"<[A-Za-z0-9_-]+\.started\.[0-9a-f]{12}@[0-9a-f]{8}\.[a-z0-9._-]+>", found)


def test_headers_for_filters_and_against_automatic_replies():
    message = parse(render(compose(an_incident(stages=(Stage.GAVE_UP,)), stage=Stage.GAVE_UP)))
    assert message["X-Sentinel-Job"] == "llama"
    assert message["X-Sentinel-Incident"] == "llama-0001"
    assert message["X-Sentinel-Stage"] == "gave-up"
    assert message["X-Sentinel-Cause"] == "gpu"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["List-Id"] == "Sentinel on gpubox.example <sentinel.gpubox.example>"
    assert message["To"] == OWNER
    assert message["Date"]


def test_owners_first_then_administrators_then_nobody():
    incident = an_incident()
    with_admins = Settings(state_dir="/state", mail=Mail(admins=("admin@example.com",)))
    nobody = a_job(emails=())
    ask = lambda job, settings_: mail_request(incident, job, Stage.STARTED, settings_, HOST, 0.0).recipients  # noqa: E731
    assert ask(a_job(), with_admins) == (OWNER,)
    assert ask(nobody, with_admins) == ("admin@example.com",)
    assert ask(nobody, SETTINGS) == ()


def test_who_already_has_the_mail_is_not_served_again_but_stays_in_to():
    incident = an_incident()
    mail = structs.replace(incident.mails[0], done=("a@example.com",), refused=("b@example.com",))
    job = a_job(emails=("a@example.com", "b@example.com", "c@example.com"))
    request = compose(structs.replace(incident, mails=(mail,)), job, Stage.STARTED)
    assert request.recipients == ("c@example.com",)
    assert request.to == job.policy.emails


# ---------------------------------------------------------------- untrusted text


def hostile_request():
    incident = an_incident(stages=(Stage.STARTED,), stacks=(HOSTILE * 3,), reason=HOSTILE)
    verdict = structs.replace(
        incident.verdict,
        sentence=HOSTILE,
        entity=HOSTILE,
        failure=HOSTILE,
        evidence=(HOSTILE,),
        advice=HOSTILE,
        symptom=Symptom.FINDING,
        confidence=HOSTILE,
    )
    step = Step(phase=Phase.DETECTED, wall_s=OPENED_WALL_S, reason="x", sentence=HOSTILE)
    incident = structs.replace(incident, verdict=verdict, steps=(step,))
    return compose(incident, a_job(name="job" + HOSTILE), Stage.STARTED)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_hostile_text_adds_no_header_no_markup_and_hides_nothing():
    raw = render(hostile_request())
    message = parse(raw)
    assert message["Bcc"] is None
    assert set(message.keys()) == set(parse(render(compose(an_incident(), stage=Stage.STARTED))).keys())
    text, html = body(message, "plain"), body(message, "html")
    for shown in (str(message["Subject"]), text, html):
        assert "\u202e" not in shown
        assert "\u2028" not in shown
        assert "\x1b" not in shown
        assert "\x00" not in shown
    assert "\\u202egnp.exe" in text
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "{{ 7*7 }}" in text
    assert b"\r\nBcc:" not in raw.partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize(("kind", "name"), [("jobs", "research/job.batch/llama"), ("nodes", "gpu-7")])
def test_a_mail_leads_to_the_dashboard_of_its_job_or_node(kind: str, name: str) -> None:
    url = urlsplit(dashboard_of(Settings(dashboard_url="https://g.example/grafana/"), kind, name))
    assert (url.netloc, url.path.rpartition("/")[0]) == ("g.example", "/grafana/d")
    board = json.loads((REPO / "dashboards" / f"{url.path.rpartition('/')[2]}.json").read_text())
    assert board["uid"] == url.path.rpartition("/")[2]
    ((variable, value),) = parse_qsl(url.query)
    assert variable.removeprefix("var-") in [one["name"] for one in board["templating"]["list"]]
    assert value == name
    assert dashboard_of(Settings(), kind, name) == ""


def test_html_needs_nothing_from_the_network():
    html = body(parse(render(compose())), "html")
    tags = Tags(html).found
    assert not {"script", "img", "link", "iframe", "form", "object"} & {tag for tag, _ in tags}
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert links == [SETTINGS.page_url, dashboard_of(SETTINGS, "jobs", "llama")]
    assert "url(" not in html
    assert "prefers-color-scheme: dark" in html


def test_a_page_address_that_is_no_web_address_does_not_become_a_link():
    bad = "javascript:alert(1)"
    settings_ = structs.replace(SETTINGS, page_url=bad, dashboard_url=bad)
    request = mail_request(an_incident(), a_job(), Stage.STARTED, settings_, HOST, 0.0)
    assert not [tag for tag, _ in Tags(body(parse(render(request)), "html")).found if tag == "a"]


def test_a_mail_stays_under_the_size_at_which_readers_cut_it_off():
    incident = an_incident(stacks=tuple("frame\n" * 5000 for _ in range(64)))
    step = Step(phase=Phase.PRECHECKING, wall_s=OPENED_WALL_S, reason="x", sentence="<&>" * 5000)
    verdict = structs.replace(incident.verdict, evidence=("<&>" * 100_000,) * 1000, sentence="&" * 100_000)
    incident = structs.replace(incident, verdict=verdict, steps=(step,) * 200)
    assert len(body(parse(render(compose(incident))), "html").encode()) < 200_000
    real = structs.replace(incident, steps=(structs.replace(step, sentence="waits for room, " * 12),) * 200)
    real = structs.replace(
        real, verdict=structs.replace(verdict, sentence="word " * 50, evidence=("e" * 300,) * 100)
    )
    assert len(body(parse(render(compose(real))), "html").encode()) < 100_000


@settings(max_examples=150)
@given(st.text(max_size=400), st.integers(min_value=1, max_value=300))
def test_clean_gives_one_bounded_line_that_can_be_encoded(text, limit):
    shown = clean(text, limit)
    assert len(shown) <= limit
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
    assert clean(shown, limit) == shown


@settings(max_examples=60)
@given(st.text(max_size=120), st.text(max_size=120), st.floats())
def test_any_text_anywhere_gives_a_mail_that_parses_back(name, line, wall_s):
    incident = an_incident(id=name, opened_wall_s=wall_s, reason=line)
    incident = structs.replace(
        incident, verdict=structs.replace(incident.verdict, sentence=line, evidence=(line,))
    )
    request = mail_request(incident, a_job(name=name), Stage.STARTED, SETTINGS, HOST, OPENED_WALL_S)
    again = msgspec.json.decode(msgspec.json.encode(request), type=MailRequest)
    message = parse(render(again))
    # Spaces between encoded words may go, nothing else.
    assert "".join(str(message["Subject"]).split()) == "".join(request.subject.split())
    assert not message.defects


# ---------------------------------------------------------------- small things


def test_addresses_are_checked_before_they_reach_a_header_or_the_wire():
    assert address("a.b+c@example.com") == "a.b+c@example.com"
    assert address("root@localhost") == "root@localhost"
    assert address("x@bücher.example") == "x@xn--bcher-kva.example"
    for bad in (
        "",
        "nobody",
        "a@b\r\nRCPT TO:<c@d>",
        "a b@c",
        "a@b>",
        "@c",
        "a..b@c",
        "ä@c",
        "a@" + "x" * 300,
    ):
        assert address(bad) is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (4.24, "4.2 s"),
        (59, "59 s"),
        (60, "1 min"),
        (192, "3 min 12 s"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_read_well(seconds, expected):
    assert duration(seconds) == expected


def test_a_digest_names_every_event_and_its_id_follows_from_them():
    mails = [a_request(number) for number in range(1, 31)]
    digest = digest_request(mails, SETTINGS, HOST, OPENED_WALL_S)
    assert digest.subject == "[sentinel] digest: 30 events of llama"
    assert digest.message_id == digest_request(mails[::-1], SETTINGS, HOST, 0.0).message_id
    assert digest.message_id != digest_request(mails[1:], SETTINGS, HOST, 0.0).message_id
    assert body(parse(render(digest)), "plain").count("rank 3 was lost (gpu)") == 30


def test_a_digest_says_when_each_thing_began_and_leads_to_one_job_only_where_it_is_about_one():
    def mail(job):
        incident = an_incident(job=job, id=f"{job}-0001", pace=paced())
        return mail_request(incident, a_job(name=job), Stage.STARTED, SETTINGS, HOST, 0.0)

    one, other = mail("research/job.batch/a"), mail("research/job.batch/b")
    alone, both = (digest_request(mails, SETTINGS, HOST, 0.0) for mails in ((one, one), (one, other)))
    assert [moment.time for moment in both.story] == [one.story[0].time] * 2 != ["", ""]
    assert (alone.page_url, alone.dashboard_url) == (one.page_url, one.dashboard_url)
    assert (both.page_url, both.dashboard_url) == (SETTINGS.page_url, "")
    assert (alone.plot, both.plot) == (None, None), "one incident's pace is not that of all"


def test_composing_imports_nothing_heavy():
    """Sentinel stays resident beside the training; templates and SMTP live in the child."""
    program = "import sys, json, sentinel.controller.effects.notify; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, check=True).stdout
    heavy = {"jinja2", "aiosmtplib", "pydantic", "yaml", "numpy", "email.message"}
    assert not heavy & set(json.loads(loaded))


# ---------------------------------------------------------------- step times, links, which mails


def paced() -> tuple[Pace, ...]:
    """Steps of 3.3 s until a fault, one of them slow; after two minutes they go on."""
    before = [Pace(OPENED_WALL_S - 3.3 * (20 - k), 3300.0 if k != 18 else 12_000.0) for k in range(20)]
    return (*before, *(Pace(OPENED_WALL_S + 120 + 3.4 * k, 3400.0) for k in range(5)))


def test_step_times_around_the_incident_are_drawn_where_a_mail_can_show_them():
    request = compose(an_incident(pace=paced()))
    assert request.plot.title == "Step time before 3.30 s, after 3.40 s; longest 12.0 s"
    assert len(request.plot.bars) == 20 + 1 + 5, "with a gap where nothing stepped"
    assert [bar.tone for bar in request.plot.bars].count("bad") == 1
    assert max(bar.px for bar in request.plot.bars) == 56
    assert "▃▃" in RENDERER.text(request)
    assert "█" in RENDERER.text(request)
    assert "  Step time before 3.30 s, after 3.40 s; longest 12.0 s\n" in RENDERER.text(request)
    html = RENDERER.html(request)
    assert html.count("height:") >= 26
    assert "<img" not in html, "readers strip or block pictures"


def slower_by_a_tenth(**changes):
    verdict = Verdict(
        symptom=Symptom.SLOWDOWN,
        cause=Cause.UNKNOWN,
        failure="slowdown",
        scope="job",
        sentence="It is slower.",
    )
    return an_incident(verdict=verdict, **changes)


def test_of_a_slowdown_the_bars_show_by_how_much_and_it_is_nobodys_fault_yet():
    pace = [Pace(OPENED_WALL_S - 40 + k, 1000.0 if k < 20 else 1100.0) for k in range(40)]
    request = compose(slower_by_a_tenth(pace=tuple(pace)))
    assert request.plot.title == "Step time 1.00 s to 1.10 s"
    assert [(bar.px, bar.tone) for bar in request.plot.bars] == [(28, "info")] * 20 + [(56, "bad")] * 20
    assert request.plot.line == "▅" * 20 + "█" * 20
    assert "cause: unknown (slowdown)" in " ".join(RENDERER.text(request).split())

    def drawn(*took_ms: float, apart_s: float = 1.0) -> Plot:
        pace = tuple(Pace(OPENED_WALL_S - 60 + apart_s * k, ms) for k, ms in enumerate(took_ms))
        found = compose(slower_by_a_tenth(pace=pace)).plot
        assert found is not None
        return found

    short = drawn(*[20.0] * 20, *[22.0] * 20)
    assert short.line == "▅" * 20 + "█" * 20, "a point may stand for many steps: no gaps between"
    one_of_them = drawn(*[1000.0] * 20, *[1100.0] * 5, 9000.0, *[1100.0] * 14)
    assert (one_of_them.title, one_of_them.line) == ("Step time 1.00 s to 1.10 s", "▅" * 20 + "█" * 20)
    steady = drawn(*[1400.0, 1403.0] * 5)
    assert steady.title == "Step time 1.40 s"
    assert {bar.px for bar in steady.bars} == {56}


@pytest.mark.parametrize("points", [(), (Pace(1.0, 5.0),), tuple(Pace(float(k), 0.0) for k in range(9))])
def test_too_little_to_see_is_not_drawn(points):
    request = compose(an_incident(pace=points))
    assert request.plot is None
    assert "Step time" not in RENDERER.html(request)


def test_an_incident_keeps_the_steps_before_it_and_those_that_end_it():
    job = a_job(policy=Policy())
    picture = JobPicture(job, {})
    picture.timing.start(1, 8, Now(0.0, 0.0))
    done = [Iteration(at_s=float(k), step=k, e2e_ms=1000.0) for k in range(50)]
    picture.timing.fold(RankReport(job="llama", rank=0, incarnation=1, iterations=done))
    first = picture.paced(an_incident(), Now(50.0, OPENED_WALL_S))
    assert [one.wall_s for one in first.pace] == [OPENED_WALL_S - k for k in range(20, 0, -1)]
    assert picture.paced(first, Now(50.0, OPENED_WALL_S)) is first
    more = [Iteration(at_s=60.0 + k, step=50 + k, e2e_ms=2000.0) for k in range(3)]
    picture.timing.fold(RankReport(job="llama", rank=0, incarnation=1, iterations=more))
    last = picture.paced(first, Now(63.0, OPENED_WALL_S + 13.0))
    assert [one.step_ms for one in last.pace[-3:]] == [2000.0] * 3
    assert len(last.pace) == 23


def test_on_a_cluster_a_mail_leads_to_the_page_of_its_job_and_to_its_incident():
    name = "research/pytorchjob.kubeflow.org/llama"
    job = a_job(name=name)
    incident = an_incident(job=name, id=f"{name}-0003")
    request = mail_request(incident, job, Stage.STARTED, Settings(page_url="https://s.example/x/"), HOST, 0.0)
    assert request.page_url == f"https://s.example/x/jobs/{name}"
    assert (
        "incident",
        "kubectl -n research describe incident llama.pytorchjob.kubeflow.org-0003",
    ) in request.look
    assert a_request(settings=Settings(page_url="https://s.example")).page_url == "https://s.example"


def test_an_owner_gets_the_stages_that_his_policy_names_and_nobody_gets_the_others_in_his_place():
    job = a_job()
    job = structs.replace(job, policy=structs.replace(job.policy, mails=("gave-up", "recovered")))
    hook = Webhook(name="w", url="http://x")
    admins = Settings(mail=Mail(admins=("ops@example.com",)), webhooks=(hook,))
    incident = an_incident(1, (Stage.STARTED, Stage.RECOVERED))

    def recipients(stage):
        return mail_request(incident, job, stage, admins, HOST, 0.0).recipients

    assert recipients(Stage.STARTED) == ("webhook:w",)
    assert recipients(Stage.RECOVERED) == (OWNER, "webhook:w")
    job = structs.replace(job, policy=structs.replace(job.policy, mails=("none",)))
    assert {recipients(stage) for stage in Stage} == {("webhook:w",)}, "unsubscribed"


def test_an_incident_of_a_slowdown_keeps_the_steps_around_its_beginning():
    picture = JobPicture(a_job(policy=Policy()), {})
    picture.timing.start(1, 1, Now(0.0, 0.0))
    took_ms = [100.3] * 1200 + [110.7] * 300  # two minutes, and half a one
    done = [Iteration(at_s=0.1 * k, step=k, e2e_ms=took_ms[k]) for k in range(1500)]
    for k in range(0, len(done), 10):
        picture.timing.fold(RankReport(job="llama", rank=0, incarnation=1, iterations=done[k : k + 10]))
    assert picture.timing.history.change is not None
    pace = picture.paced(slower_by_a_tenth(), Now(150.0, OPENED_WALL_S)).pace
    assert [one.step_ms for one in pace[:20]] == [100.3] * 20
    assert {one.step_ms for one in pace[20:]} == {110.7}
    assert pace[20].wall_s == pytest.approx(OPENED_WALL_S - 30, abs=2.0)
