"""When the summary of the day is made, by whom, and until when it is told: a leader, its successors and the Lease."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from sentinel.controller.daemon import daily
from sentinel.controller.daemon.daily import TOLD, DailySummary
from sentinel.core.fleet.model import NodeMail
from sentinel.core.now import Now
from sentinel.notify.compose_nodes import Place
from sentinel.notify.compose_summary import STAGE, Summary
from sentinel.settings import Mail, Settings
from sentinel.settings import Summary as Asked
from sentinel.util.documents import time_of, time_text
from tests.notify.mail_world import a_job, an_incident
from tests.web.fleet_samples import JOB, Sources, troubled

EIGHT_S = time_of("2026-11-27T08:00:00Z")
DAY_S = 86_400.0
PLACE = Place(name="sentinel-system")


class Cluster:
    """A Lease, and the controllers that lead one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> None:
        self.lease: dict[str, str] = {}
        self.now = Now(1000.0, EIGHT_S - 7200.0)
        self.asked = Asked(**{"at": "08:00", **asked})
        self.woken = 0
        self.unheard = 0
        self.read, self.jobs_read = True, True  # by the leader, by its jobs' part
        self.made: list[Summary] = []
        monkeypatch.setattr(daily, "gathered", self._gathered)

    def _gathered(
        self, parts: object, troubles: object, since_wall_s: float, until_wall_s: float, now: Now
    ) -> Summary:
        made = Summary(since_wall_s=since_wall_s, until_wall_s=until_wall_s, nodes="nodes.", jobs="jobs.")
        self.made.append(made)
        return made

    def controller(self) -> DailySummary:
        parts: Any = SimpleNamespace(
            election=SimpleNamespace(annotations=self.lease),
            controller=SimpleNamespace(
                nodes=SimpleNamespace(unheard=self.unheard),
                lead_began=SimpleNamespace(is_set=lambda: self.read),
            ),
            jobs=SimpleNamespace(controller=object() if self.jobs_read else None),
        )
        settings = Settings(
            mail=Mail(admins=("admins@example.com", "oncall@example.com"), summary=self.asked)
        )
        return DailySummary(settings, PLACE, parts, list, self._wake, lambda: self.now)

    def _wake(self) -> None:
        self.woken += 1

    def later(self, seconds: float) -> None:
        self.now = Now(self.now.mono_s + seconds, self.now.wall_s + seconds)

    def renews(self, leader: DailySummary) -> None:
        """The Lease: what the leader keeps on it."""
        for name, text in leader.notes().items():
            if text is None:
                self.lease.pop(name, None)
            else:
                self.lease[name] = text

    def leads(self) -> DailySummary:
        """A new process that takes over."""
        one = self.controller()
        self.renews(one)
        one.begin()
        self.later(daily.SETTLE_S)
        return one

    def due(self, one: DailySummary) -> list[tuple[str, str]]:
        """What it would send: since when and until when."""
        asyncio.run(one.look())
        return [
            (time_text(self.made[-1].since_wall_s), waiting.record_id) for waiting in one.waiting(self.now)
        ]

    def sent(self, one: DailySummary, state: str = "sent", **changes: Any) -> None:
        (waiting,) = one.waiting(self.now)
        assert isinstance(waiting.mail, NodeMail)
        assert one.record(waiting.record_id, structs.replace(waiting.mail, state=state, **changes))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_it_is_due_once_a_day_and_tells_of_what_was_since_the_last(cluster: Cluster) -> None:
    leader = cluster.leads()
    began = time_text(cluster.now.wall_s - daily.SETTLE_S)
    assert cluster.due(leader) == []
    cluster.later(7200.0)
    assert cluster.due(leader) == [(began, "summary-2026-11-27T08:00:00Z")]
    assert cluster.woken == 1
    cluster.sent(leader)
    assert cluster.due(leader) == []
    cluster.later(DAY_S)
    assert cluster.due(leader) == [("2026-11-27T08:00:00Z", "summary-2026-11-28T08:00:00Z")]


def test_a_successor_sends_what_was_not_sent_and_nothing_twice(cluster: Cluster) -> None:
    first = cluster.leads()
    began = first.notes()[TOLD]
    cluster.renews(first)
    cluster.later(7200.0)
    assert cluster.due(first)
    first.end()  # before the server had answered
    assert cluster.due(first) == []
    second = cluster.leads()
    assert cluster.due(second) == [(began, "summary-2026-11-27T08:00:00Z")]
    cluster.sent(second)
    cluster.renews(second)
    assert cluster.due(cluster.leads()) == []
    first.begin()  # it leads again, and remembers what was before
    cluster.later(daily.SETTLE_S)
    assert cluster.due(first) == []
    cluster.renews(first)
    assert cluster.lease == {TOLD: "2026-11-27T08:00:00Z"}


def test_who_leads_again_writes_no_older_time_over_that_of_another(cluster: Cluster) -> None:
    first = cluster.leads()
    cluster.renews(first)
    first.end()
    cluster.lease[TOLD] = "2026-11-27T06:30:00Z"
    cluster.later(3600.0)
    cluster.renews(first)  # in the write by which it takes over, before it knows that it leads
    assert cluster.lease == {TOLD: "2026-11-27T06:30:00Z"}


def test_one_that_nobody_could_send_for_half_a_day_is_left_to_the_next(cluster: Cluster) -> None:
    cluster.renews(cluster.leads())
    began = cluster.lease[TOLD]
    cluster.later(7200.0 + daily.LATE_S)
    late = cluster.leads()
    assert cluster.due(late) == []
    cluster.later(DAY_S - daily.LATE_S)
    assert cluster.due(late) == [(began, "summary-2026-11-28T08:00:00Z")]


def test_what_was_given_up_is_told_by_the_next(cluster: Cluster) -> None:
    leader = cluster.leads()
    began = leader.notes()[TOLD]
    cluster.later(7200.0)
    assert cluster.due(leader)
    cluster.sent(leader, "failed")
    assert list(leader.waiting(cluster.now)) == []
    cluster.later(DAY_S)
    assert cluster.due(leader) == [(began, "summary-2026-11-28T08:00:00Z")]


def test_one_that_still_waits_when_the_next_is_due_is_told_by_that(cluster: Cluster) -> None:
    leader = cluster.leads()
    began = leader.notes()[TOLD]
    cluster.later(7200.0)
    (first,) = cluster.due(leader)
    cluster.sent(leader, "waiting")
    cluster.later(DAY_S)
    assert cluster.due(leader) == [(began, "summary-2026-11-28T08:00:00Z")]
    assert leader.record(first[1], NodeMail(stage=STAGE, wall_s=0.0, state="sent")), (
        "an answer that comes late"
    )
    assert cluster.due(leader) != []


def test_who_has_it_gets_it_no_second_time_while_another_address_is_away(cluster: Cluster) -> None:
    leader = cluster.leads()
    cluster.later(7200.0)
    assert cluster.due(leader)
    (waiting,) = leader.waiting(cluster.now)
    assert waiting.request.recipients == ("admins@example.com", "oncall@example.com")
    cluster.sent(leader, "waiting", done=("admins@example.com",), attempts=1)
    (waiting,) = leader.waiting(cluster.now)
    assert waiting.request.recipients == ("oncall@example.com",)
    assert waiting.request.to == ("admins@example.com", "oncall@example.com")
    assert waiting.mail.attempts == 1
    cluster.renews(leader)
    assert cluster.due(cluster.leads()) == [], "for him who has it"
    cluster.later(DAY_S)
    assert cluster.due(leader) == [("2026-11-27T08:00:00Z", "summary-2026-11-28T08:00:00Z")]


@pytest.mark.parametrize("begins", [True, False])
def test_a_clock_that_was_far_ahead_for_a_while_does_not_end_it(cluster: Cluster, begins: bool) -> None:
    leader = cluster.leads()
    cluster.now = Now(cluster.now.mono_s, cluster.now.wall_s + 400 * DAY_S)
    if begins:
        leader.end()
        leader.begin()
    assert cluster.due(leader) is not None
    if list(leader.waiting(cluster.now)):
        cluster.sent(leader)
    cluster.renews(leader)
    cluster.now = Now(cluster.now.mono_s + daily.SETTLE_S, EIGHT_S - 60.0)
    assert cluster.due(leader) == []
    cluster.later(120.0)
    assert [id for _, id in cluster.due(leader)] == ["summary-2026-11-27T08:00:00Z"]


@pytest.mark.parametrize("what", ["read", "jobs_read"])
def test_a_leader_that_has_not_read_everything_is_asked_again(cluster: Cluster, what: str) -> None:
    cluster.renews(cluster.leads())
    cluster.later(7200.0)
    setattr(cluster, what, False)
    late = cluster.leads()
    assert not asyncio.run(late.look())
    assert cluster.made == []


@pytest.mark.parametrize("text", ["yesterday", "", "2099-01-01T00:00:00Z"])
def test_what_a_person_wrote_on_the_lease_counts_for_nothing(cluster: Cluster, text: str) -> None:
    cluster.lease[TOLD] = text
    leader = cluster.leads()
    cluster.later(7200.0)
    assert [id for _, id in cluster.due(leader)] == ["summary-2026-11-27T08:00:00Z"]


def test_a_new_leader_waits_for_its_agents_and_not_for_ever(cluster: Cluster) -> None:
    cluster.renews(cluster.leads())
    cluster.later(7200.0)
    cluster.unheard = 3
    late = cluster.controller()
    late.begin()
    assert not asyncio.run(late.look()), "it is to be asked again soon"
    cluster.later(daily.SETTLE_S)
    assert asyncio.run(late.look())
    assert list(late.waiting(cluster.now))


def test_nobody_who_asks_for_none_gets_one_and_the_lease_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, at="")
    cluster.lease[TOLD] = "2026-11-26T08:00:00Z"
    leader = cluster.leads()
    cluster.later(DAY_S)
    assert cluster.due(leader) == []
    cluster.renews(leader)
    assert cluster.lease == {}
    assert not leader.record("gpu-7-0001", NodeMail(stage="FatalFinding", wall_s=0.0))


def test_what_it_tells_is_what_the_page_shows() -> None:
    world = troubled()
    world.fleet.paused = "anna: an upgrade"
    world.controller.nodes.unheard = 3
    incident, job = an_incident(job=JOB), a_job(name=JOB)
    world.jobs_seen.since = lambda wall_s: [(incident, job)] if wall_s == 5.0 else []
    made = daily.gathered(Sources(world), ["cannot write"], 5.0, 7.0, world.now)  # type: ignore[arg-type]
    assert (made.since_wall_s, made.until_wall_s, made.troubles) == (5.0, 7.0, ["cannot write"])
    assert (
        made.nodes
        == "40 nodes: 1 unreachable, 1 in service though it should not be, 1 isolated, 1 on hold; "
        + ("nothing is known against 36.")
    )
    assert made.jobs.startswith("12 protected jobs: ")
    assert [one.state for one in made.standing] == ["unreachable", "held back", "isolated", "on hold"]
    assert made.notes[:2] == [
        "Paused by anna: an upgrade: new isolations and removals wait.",
        "No agent of 3 nodes has reported yet: of the health of these nothing is known.",
    ]
    assert list(made.records) == list(world.records.values())
    assert made.incidents == [(incident, job)]
