"""When the summary of the day is made, by whom, and until when it is told: a leader, its successors and the Lease."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from sentinel.cli import daily
from sentinel.cli.daily import TOLD, DailySummary
from sentinel.core.fleet_model import NodeMail
from sentinel.core.now import Now
from sentinel.documents import time_of, time_text
from sentinel.notify.compose_nodes import Place
from sentinel.notify.compose_summary import STAGE, Summary
from sentinel.settings import Mail, Settings
from sentinel.settings import Summary as Asked

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
        monkeypatch.setattr(daily, "gathered", self._gathered)

    def _gathered(
        self, parts: object, troubles: object, since_wall_s: float, until_wall_s: float, now: Now
    ) -> Summary:
        return Summary(since_wall_s=since_wall_s, until_wall_s=until_wall_s, nodes="nodes.", jobs="jobs.")

    def controller(self) -> DailySummary:
        parts: Any = SimpleNamespace(
            election=SimpleNamespace(annotations=self.lease),
            controller=SimpleNamespace(
                nodes=SimpleNamespace(unheard=self.unheard), lead_began=SimpleNamespace(is_set=lambda: True)
            ),
            jobs=SimpleNamespace(controller=object()),
        )
        settings = Settings(mail=Mail(admins=("admins@example.com",), summary=self.asked))
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
        assert one._due is not None or not list(one.waiting(self.now))
        return [
            (time_text(one._due.summary.since_wall_s), waiting.record_id)
            for waiting in one.waiting(self.now)
            if one._due is not None
        ]

    def sent(self, one: DailySummary, state: str = "sent") -> None:
        (waiting,) = one.waiting(self.now)
        assert isinstance(waiting.mail, NodeMail)
        assert one.record(waiting.record_id, structs.replace(waiting.mail, state=state))


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
