"""What a mail says, and that nothing in it can pretend to be something else."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sentinel.core.model import (
    JobState,
    Lost,
    Phase,
    Policy,
    Restart,
    SaveResult,
    Stage,
    Step,
    Symptom,
)
from sentinel.notify.compose import MailRequest, digest_request, mail_request, message_id
from sentinel.notify.message import Renderer, address, sender_address
from sentinel.notify.text import clean, duration
from sentinel.settings import Mail, Settings
from tests.notify.mail_world import (
    HOST,
    OPENED_WALL_S,
    OWNER,
    REPO,
    a_job,
    a_request,
    an_incident,
    body,
    parse,
)

SETTINGS = Settings(state_dir="/state", page_url="http://127.0.0.1:9810/")
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

HOSTILE = (
    "\r\nBcc: victim@example.com\r\n\r\n<script>alert(1)</script> \u202egnp.exe \x1b[31mred\x1b[0m "
    "\x00 \u2028 {{ 7*7 }}"
)


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


def test_html_needs_nothing_from_the_network():
    html = body(parse(render(compose())), "html")
    tags = Tags(html).found
    assert not {"script", "img", "link", "iframe", "form", "object"} & {tag for tag, _ in tags}
    assert [attributes["href"] for tag, attributes in tags if tag == "a"] == [SETTINGS.page_url]
    assert "url(" not in html
    assert "prefers-color-scheme: dark" in html


def test_a_page_address_that_is_no_web_address_does_not_become_a_link():
    settings_ = structs.replace(SETTINGS, page_url="javascript:alert(1)")
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


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400), st.integers(min_value=1, max_value=300))
def test_clean_gives_one_bounded_line_that_can_be_encoded(text, limit):
    shown = clean(text, limit)
    assert len(shown) <= limit
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
    assert clean(shown, limit) == shown


@settings(max_examples=60, deadline=None)
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


def test_composing_imports_nothing_heavy():
    """Sentinel stays resident beside the training; templates and SMTP live in the child."""
    program = "import sys, json, sentinel.effects.notify; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, check=True).stdout
    heavy = {"jinja2", "aiosmtplib", "pydantic", "yaml", "numpy", "email.message"}
    assert not heavy & set(json.loads(loaded))
