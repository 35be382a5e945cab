"""What is a change, what is urgent, and how what is too long is cut."""

import msgspec
import pytest

from sentinel.core.health import Severity
from sentinel.core.now import Now
from sentinel.core.reports import Iteration, LogMatch, RankExit, RankReport
from sentinel.transport.standing import DETAIL_S, Standing, fit, is_event, is_urgent, pieces
from sentinel.transport.wire import encoder
from tests.transport.world import BOOT, finding, report

LEAK = LogMatch(rule="oom", failure="oom", rank=0, incarnation=1, at_s=1.0)
GONE = RankExit(rank=0, incarnation=1, at_s=1.0, code=1)


def rank(*steps: int, rank: int = 0, incarnation: int = 1, **more: object) -> RankReport:
    iterations = [Iteration(float(step), step) for step in steps]
    return RankReport(job="llama", incarnation=incarnation, rank=rank, iterations=iterations, **more)  # type: ignore[arg-type]


def test_a_sample_like_the_last_one_is_no_news_and_its_details_are_seldom_told() -> None:
    standing = Standing()
    hot = finding(severity=Severity.WARNING, evidence=("87 C",))
    assert standing.fold(report(hot, at_s=0.0)) is not None
    hotter = finding(severity=Severity.WARNING, evidence=("88 C",), count=2, last_seen_wall_s=5.0)
    assert standing.fold(report(hotter, at_s=1.0)) is None
    assert standing.fold(report(hotter, at_s=DETAIL_S + 1.0)) is not None
    assert standing.fold(report(hotter, at_s=2 * DETAIL_S + 2.0)) is None


def test_a_new_controller_hears_when_a_log_last_told_of_progress() -> None:
    standing = Standing()
    standing.fold(report(ranks=(rank(1, 2),)))
    assert standing.fold(report(ranks=(rank(alive_s=30.0),))) is not None
    standing.fold(report(ranks=(rank(caught_up=False),)))
    (told,) = standing.full("node-1", BOOT, Now(1.0, 1.0)).ranks
    assert ([one.step for one in told.iterations], told.alive_s) == ([2], 30.0)
    standing.fold(report(ranks=(rank(incarnation=2),)))
    assert standing.full("node-1", BOOT, Now(1.0, 1.0)).ranks[0].alive_s is None


@pytest.mark.parametrize(
    "other",
    [
        finding(),
        finding(severity=Severity.WARNING, action="NONE"),
        finding("XID 48", Severity.WARNING),
        finding(severity=Severity.WARNING, entity="GPU 0000:19:00.0"),
    ],
)
def test_another_finding_severity_or_action_is_news(other: object) -> None:
    standing = Standing()
    standing.fold(report(finding(severity=Severity.WARNING), at_s=0.0))
    assert standing.fold(report(other, at_s=1.0)) is not None  # type: ignore[arg-type]


def test_each_repeat_of_an_event_is_news() -> None:
    standing = Standing()
    for count in range(1, 4):
        assert standing.fold(report(finding(event=True, count=count), at_s=float(count))) is not None
    assert standing.fold(report(finding(event=True, count=3), at_s=9.0)) is None


def test_what_the_agent_ends_by_itself_is_news_once_and_in_each_full_report() -> None:
    standing = Standing()
    assert standing.full("node-1", BOOT, Now(1.0, 1.0)).fences == {}
    assert standing.fold(report(checks=(), fences={"a": 120.0})) is not None
    assert standing.fold(report(checks=(), fences={"a": 120.0})) is None
    standing.fold(report(finding()))
    assert standing.full("node-1", BOOT, Now(1.0, 1.0)).fences == {"a": 120.0}
    assert standing.fold(report(checks=(), fences={})) is not None


def test_the_full_report_has_the_newest_of_each_check_and_each_rank_that_runs() -> None:
    standing = Standing()
    standing.fold(report(finding(), at_s=1.0))
    standing.fold(report(at_s=2.0))
    standing.fold(report(finding(), check="disk", at_s=3.0))
    standing.fold(report(checks=(), ranks=(rank(1, 2, 3), rank(7, rank=1))))
    standing.fold(report(checks=(), ranks=(rank(state="D"),)))
    standing.fold(report(checks=(), exits=(("llama", msgspec.structs.replace(GONE, rank=1)),)))
    full = standing.full("node-1", BOOT, Now(9.0, 0.0))
    assert {result.check: len(result.findings) for result in full.checks} == {"xid": 0, "disk": 1}
    (only,) = full.ranks
    assert (only.rank, [i.step for i in only.iterations], only.state) == (0, [3], "D")
    standing.fold(report(checks=(), ranks=(rank(incarnation=2),)))  # a new start has not stepped yet
    assert standing.full("node-1", BOOT, Now(9.0, 0.0)).ranks[0].iterations == []
    standing.forget("llama")
    assert standing.full("node-1", BOOT, Now(9.0, 0.0)).ranks == ()


def test_what_is_urgent_and_what_only_a_record_can_say() -> None:
    progress = report(checks=(), ranks=(rank(1),))
    mild = report(finding(severity=Severity.WARNING))
    fatal = report(finding())
    event = report(finding(severity=Severity.WARNING, event=True))
    match, gone = report(checks=(), matches=(LEAK,)), report(checks=(), exits=(("llama", GONE),))
    assert [is_urgent(r) for r in (progress, mild, fatal, event, match, gone)] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert [is_event(r) for r in (progress, mild, fatal, event, match, gone)] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]


def test_that_a_rank_iterates_again_is_told_at_once_and_each_further_iteration_with_the_next_report() -> None:
    def told(before: int, *steps: int) -> bool:
        return is_urgent(report(checks=(), ranks=(rank(*steps, before=before),)))

    assert [told(0, 91), told(6, 97), told(7, 98), told(0, *range(91, 100))] == [False, False, True, True]
    assert [told(8, 99), told(9, *range(100, 110)), told(0)] == [False, False, False]


def test_a_report_that_is_too_long_goes_in_pieces_and_the_ends_of_ranks_come_last() -> None:
    long = report(
        *(finding(f"XID {k}") for k in range(50)),
        ranks=(rank(*range(5000)), rank(1, rank=1)),
        matches=tuple(msgspec.structs.replace(LEAK, line="x" * 100, rank=k) for k in range(100)),
        exits=(("llama", GONE),),
    )
    parts = pieces(long, 10_000)
    assert all(len(encoder.encode(part)) <= 10_000 for part in parts)
    steps = [i.step for part in parts for r in part.ranks if r.rank == 0 for i in r.iterations]
    assert steps == list(range(5000))
    assert sum(len(part.matches) for part in parts) == 100
    assert [bool(part.exits) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(len(part.checks) for part in parts) == 1


def test_one_result_that_is_too_long_keeps_its_worst_findings_and_says_so() -> None:
    mild = [finding(f"XID {k}", Severity.WARNING) for k in range(1000)]
    cut, lost = fit(report(*mild, finding("XID 79")), 20_000)
    assert len(encoder.encode(cut)) <= 20_000
    kept = cut.checks[0].findings
    assert kept[0].code == "XID 79"
    assert lost == 1001 - len(kept)
    assert "did not fit" in cut.checks[0].detail
    evil, _ = fit(report(finding(summary="x" * 100_000)), 20_000)
    assert len(encoder.encode(evil)) <= 20_000
