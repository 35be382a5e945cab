"""A move that was refused for want of room: when it is tried again, and when not."""

import pytest
from msgspec import structs

from sentinel.core.decision.policy import DAY_S, Nothing, Open, decide, waits_to_move
from sentinel.core.health import Finding
from sentinel.core.model import IncidentKind
from sentinel.core.now import Now
from sentinel.core.policy_model import Hang, Policy
from sentinel.core.recovery import move_again
from sentinel.core.recovery.budget import plan
from sentinel.core.recovery.events import PrecheckPassed, StopEnded
from tests.core import recovery_events as ev
from tests.core.test_policy import NOW, act, ends, feed, finding, rules, seen, slow, steps


def later(seconds: float) -> Now:
    return Now(NOW.mono_s + seconds, NOW.wall_s + seconds)


def test_a_move_that_had_no_room_is_tried_again_once_there_is_room_and_less_often_each_time() -> None:
    patient = Hang(after_s=DAY_S)
    for asked, findings in (
        (rules(hang=patient), [finding()]),
        (rules(hang=patient, performance=slow()), []),
    ):
        picture, at = seen(asked), 0.0
        picture.findings = findings
        steps(picture, 40, ratio=0.9)
        act(picture, decide(picture, NOW))
        assert waits_to_move(picture, NOW) is None, "while it is tried"
        for number, pause in enumerate(("20s", "40s", "1m20s", "2m40s")):
            kept = feed(picture, ev.REFUSED, later(at))
            assert (kept.reason, kept.refusals) == ("NoRoom", number)
            assert kept.sentence.startswith("No room. It is tried again, in " + pause)
            assert picture.job.sentence == kept.sentence, "as `sentinel status` says it"
            pause_s = 20.0 * 2**number
            assert decide(picture, later(at + 2 * pause_s)).reason == "AlreadyTold", "there is no room"
            picture.fits_again = kept.key
            assert decide(picture, later(at + pause_s - 0.1)).reason == "AlreadyTold", "too soon"
            waits = waits_to_move(picture, later(at))
            assert waits is not None
            assert waits.incident.key == kept.key
            at += pause_s
            again = decide(picture, later(at))
            assert isinstance(again, Open)
            assert (again.kind, again.key) == (IncidentKind.CHOSEN, kept.key)
            assert again.since_s is None, "it was detected once"
            act(picture, again, later(at))
            picture.fits_again = ""
    assert move_again.pause_s(100) == 3600.0


@pytest.mark.parametrize(
    ("job", "asked", "standing"),
    [
        ({}, rules(), []),  # the node is well again
        ({}, rules(mode="observe"), [finding()]),
        ({"used_infrastructure": 5}, rules(), [finding()]),
        ({}, rules(resume=False), [finding()]),
    ],
)
def test_a_move_that_had_no_room_is_not_tried_again_without_its_cause_or_where_the_policy_forbids_it_by_now(
    job: dict[str, object], asked: Policy, standing: list[Finding]
) -> None:
    picture = seen()
    picture.findings = [finding()]
    act(picture, decide(picture, NOW))
    picture.fits_again = feed(picture, ev.REFUSED).key
    picture.job = structs.replace(picture.job, policy=asked, **job)
    picture.findings = standing
    assert isinstance(decide(picture, later(3600.0)), Nothing)


def test_a_new_incarnation_knows_nothing_of_moves_that_were_refused_before() -> None:
    picture = seen()
    picture.findings = [finding()]
    act(picture, decide(picture, NOW))
    feed(picture, ev.REFUSED)
    ends(picture, 1, signal=9)
    act(picture, decide(picture, NOW))
    feed(picture, StopEnded(plan(picture.job, picture.incident, ev.verdict(), None, NOW)))
    feed(picture, PrecheckPassed(2, ("GPU c",), "Passed."))
    assert not picture.refused
    assert waits_to_move(picture, NOW) is None
