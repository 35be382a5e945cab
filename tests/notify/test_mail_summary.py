"""The daily summary of a cluster: what it says, and that it comes as itself, whatever else is told."""

import asyncio
from collections.abc import Iterator
from zoneinfo import ZoneInfo

from msgspec import structs

from sentinel.controller.effects.notify import Waiting
from sentinel.controller.effects.notify_nodes import NodeNotifier
from sentinel.core.fleet.model import Brake, NodeMail, NodeQuarantine, OrderKind, Repair, State
from sentinel.core.model import Incident, ProtectedJob, Stage
from sentinel.core.now import Now
from sentinel.notify.compose import MailRequest
from sentinel.notify.compose_nodes import MAX_NAMED
from sentinel.notify.compose_summary import MAX_EVENTS, STAGE, Standing, Summary, summary_request
from sentinel.notify.message import Renderer
from sentinel.notify.webhook import message
from tests.notify.mail_world import HOSTILE, MailServer, a_job, an_incident
from tests.notify.test_mail_nodes import ADMIN, PLACE, isolated, settings_for, the

BERLIN = ZoneInfo("Europe/Berlin")
UNTIL_S = 1_790_000_000.0  # Mon 21 Sep 2026, 16:13 in Berlin
SINCE_S = UNTIL_S - 86_400.0
JOB = "research/pytorchjob.kubeflow.org/llama"
CALM = Summary(
    since_wall_s=SINCE_S,
    until_wall_s=UNTIL_S,
    nodes="512 nodes, nothing is known against any of them.",
    jobs="14 protected jobs: 14 running.",
)


def of(summary: Summary, due_s: float = UNTIL_S) -> MailRequest:
    mail = NodeMail(stage=STAGE, wall_s=due_s)
    return summary_request(summary, mail, settings_for(25), PLACE, BERLIN, due_s + 2)


def text(request: MailRequest) -> str:
    return " ".join(Renderer().text(request).split())


def told(record: NodeQuarantine, ago_s: float) -> NodeQuarantine:
    """All that it tells happened so long before the summary."""
    mails = tuple(structs.replace(mail, wall_s=UNTIL_S - ago_s) for mail in record.mails)
    return structs.replace(record, since_wall_s=UNTIL_S - ago_s, mails=mails)


def ended(
    number: int, ago_s: float, *stages: Stage, name: str = JOB, **changes: object
) -> tuple[Incident, ProtectedJob]:
    times = {"opened_wall_s": UNTIL_S - ago_s - 60, "closed_wall_s": UNTIL_S - ago_s}
    incident = an_incident(number, stages, job=name, id=f"{name}-{number:04}", **times, **changes)
    return incident, a_job(name=name)


def test_a_day_on_which_nothing_happened_is_told_in_three_lines() -> None:
    request = of(CALM)
    assert request.subject == "[sentinel] summary: all is well"
    assert (request.tone, request.advice, request.story) == ("good", "", ())
    assert text(request).startswith(
        "Nothing happened from Sun 20 Sep 16:13 to Mon 21 Sep 16:13. "
        "nodes: 512 nodes, nothing is known against any of them. jobs: 14 protected jobs: 14 running."
    )
    assert "Times are those of Europe/Berlin." in request.footer


def test_what_stands_what_happened_and_what_waits_for_a_person_is_told() -> None:
    bad = told(the(isolated("gpu-7")), 3600)
    person = isolated("gpu-9")
    person.order(OrderKind.HOLD, "gpu-9", "anna")
    person.decide()
    held = [told(one, 7200) for one in person.records.values()]
    summary = structs.replace(
        CALM,
        nodes="512 nodes: 1 isolated, 1 on hold; nothing is known against 510.",
        standing=[
            Standing("isolated", "gpu-7", UNTIL_S - 3600, "XID 79", "the node was restarted"),
            Standing("isolated", "gpu-9", UNTIL_S - 7200, "XID 79"),
            Standing("on hold", "gpu-9", UNTIL_S - 7200, "held"),
        ],
        records=[bad, *held],
        incidents=[
            ended(1, 600, Stage.STARTED, Stage.RECOVERED),
            ended(2, 500, Stage.STARTED, Stage.RECOVERED),
            ended(1, 400, Stage.STARTED, Stage.GAVE_UP, name="vision/job.batch/vit", lost=None),
        ],
        notes=["Paused by anna: an upgrade"],
    )
    request = of(summary)
    assert request.title == "2 nodes isolated, 1 job recovered, 1 job given up", "a node counts once"
    assert request.tone == "bad"
    for said in (
        "isolated: gpu-7 since Mon 21 Sep 15:13: XID 79; over when: the node was restarted",
        "note: Paused by anna: an upgrade",
        "incidents: 3 ended, by cause: gpu 3",
        "lost: 0.5 GPU-hours, 4 min 7 s of the jobs' time",
        "Given up: vision/vit; sentinel retry JOB",
        "Mon 15:13 Out of service: gpu-7: taken out of service - XID 79 of GPU 0000:18:00.0",
        "Mon 16:03 Recovered: research/llama: recovered after rank 3 was lost (gpu)",
        "Mon 16:06 Gave up: vision/vit: gave up after rank 3 was lost (gpu)",
    ):
        assert said in text(request), f"{said!r} not in\n{text(request)}"
    times = [one.time for one in request.story]
    assert times == sorted(times)


def test_what_only_a_person_can_give_back_is_named() -> None:
    record = the(isolated("gpu-7"))
    needs = structs.replace(record.needs, repair=Repair.PERSON)
    request = of(structs.replace(CALM, records=[structs.replace(told(record, 1e6), needs=needs)]))
    assert request.advice == "Only a person gives back gpu-7: repair, then sentinel release NODE."
    assert request.story == (), "it was told before"


def test_what_is_held_back_is_named_and_what_a_person_gives_back_only_while_it_is_out() -> None:
    record = told(the(isolated("gpu-7")), 1e6)
    needs = structs.replace(record.needs, repair=Repair.PERSON)
    held = structs.replace(record, state=State.HELD, held_by=Brake.AT_A_TIME, needs=needs)
    assert of(structs.replace(CALM, records=[held])).advice == (
        "In service though they should not be: gpu-7; sentinel status says what holds it."
    )


def test_of_many_nodes_the_first_are_named_and_the_others_counted() -> None:
    standing = [Standing("isolated", f"gpu-{number:02}", 0.0, "XID 79") for number in range(MAX_NAMED + 3)]
    said = text(of(structs.replace(CALM, standing=standing)))
    assert "isolated: gpu-11: XID 79 and: 3 more nodes jobs:" in said
    assert "gpu-12" not in said


def test_what_ended_after_it_was_due_is_told_as_it_was_then_and_by_the_next_as_it_ended() -> None:
    """A summary may be sent late."""
    late = ended(1, -1800.0, Stage.STARTED, Stage.RECOVERED)
    late = (structs.replace(late[0], opened_wall_s=UNTIL_S - 600), late[1])
    first = of(structs.replace(CALM, incidents=[late]))
    (line,) = first.story
    assert line.phase == "Recovering"
    assert "recovered" not in line.sentence
    assert "lost:" not in line.sentence
    assert first.title == "All is well"
    day = {"since_wall_s": UNTIL_S, "until_wall_s": UNTIL_S + 86_400.0}
    assert of(structs.replace(CALM, incidents=[late], **day), UNTIL_S + 86_400.0).title == "1 job recovered"


def test_what_was_told_before_or_by_nobody_is_left_out() -> None:
    summary = structs.replace(
        CALM,
        records=[told(the(isolated("gpu-7")), 90_000.0)],
        incidents=[ended(1, 90_000.0, Stage.STARTED, Stage.RECOVERED), ended(2, 100.0)],
    )
    assert of(summary).story == ()
    assert of(summary).title == "All is well"


def test_of_a_storm_the_newest_lines_stand_and_the_others_are_counted() -> None:
    records = [
        structs.replace(told(the(isolated(f"gpu-{number}")), 3600.0 - number), id=f"gpu-{number}-0001")
        for number in range(MAX_EVENTS + 5)
    ]
    story = of(structs.replace(CALM, records=records)).story
    assert story[0].sentence == "(5 earlier: out of service 5)"
    assert len(story) == MAX_EVENTS + 1
    assert f"gpu-{MAX_EVENTS + 4}:" in story[-1].sentence


def test_hostile_words_add_no_header_and_no_markup() -> None:
    standing = [Standing("isolated", HOSTILE, 1e18, HOSTILE, HOSTILE)]
    request = of(structs.replace(CALM, standing=standing, notes=[HOSTILE], troubles=[HOSTILE]))
    html = Renderer().html(request)
    assert "<script>" not in html
    for shown in (html, Renderer().text(request), request.subject, repr(message(request))):
        assert not {"\u202e", "\x1b", "\x00"} & set(shown)
    assert "\n" not in request.subject


def test_the_same_summary_has_the_same_id_and_that_of_another_day_another() -> None:
    assert of(CALM).message_id == of(structs.replace(CALM, nodes="others")).message_id
    assert of(CALM).message_id != of(CALM, UNTIL_S + 86_400).message_id


def test_in_a_storm_it_comes_as_itself_beside_the_digest() -> None:
    """A digest would have one line for it, and what it says would reach nobody."""

    async def story() -> None:
        with MailServer() as server:
            settings = settings_for(server.port, per_hour=2)
            world = isolated(*(f"gpu-{number}" for number in range(12)))

            def waiting(now: Now) -> Iterator[Waiting]:
                mail = NodeMail(stage=STAGE, wall_s=UNTIL_S)
                request = summary_request(CALM, mail, settings, PLACE, BERLIN, now.wall_s)
                yield Waiting("summary-1", STAGE, mail, request, alone=True)

            states: dict[str, str] = {}

            def record(id: str, mail: NodeMail) -> None:
                states[id] = mail.state

            notifier = NodeNotifier(settings, world.records.values, record, lambda: PLACE, waiting)
            await notifier.flush(30)
            subjects = sorted(str(mail["Subject"]) for _, mail in server.mails)
            assert subjects == [
                "[sentinel] 12 events of nodes: 12 out of service",
                "[sentinel] summary: all is well",
            ]
            assert all(recipients == [ADMIN] for recipients, _ in server.mails)
            assert states.pop("summary-1") == "sent"
            assert set(states.values()) == {"digested"}

    asyncio.run(story())
