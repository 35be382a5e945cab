"""Times of other machines by our own clock: the quickest report tells how far two clocks are apart."""

from sentinel.core.agents.clock import WINDOW_S, AgentClocks, moved
from sentinel.core.now import Now
from sentinel.core.reports import Iteration, LogMatch, RankExit, RankReport, Report


def test_the_least_delay_counts_and_a_slow_report_does_not_move_it() -> None:
    clocks = AgentClocks()
    assert clocks.here("a", "boot") is None
    clocks.heard("a", "boot", told_s=100.0, now_s=5100.5)
    clocks.heard("a", "boot", told_s=101.0, now_s=5101.1)
    clocks.heard("a", "boot", told_s=102.0, now_s=5190.0)  # it lay in a spool
    apart_s = clocks.here("a", "boot")
    assert apart_s is not None
    assert abs(apart_s - 5000.1) < 1e-6


def test_another_boot_is_another_clock() -> None:
    clocks = AgentClocks()
    clocks.heard("a", "boot", 100.0, 5100.0)
    clocks.heard("a", "later", 1.0, 6000.0)
    assert clocks.here("a", "boot") is None
    assert clocks.here("a", "later") == 5999.0
    clocks.forget("a")
    assert clocks.here("a", "later") is None


def test_clocks_that_drift_apart_are_followed_within_two_windows() -> None:
    clocks = AgentClocks()
    clocks.heard("a", "boot", 0.0, 1000.0)
    for n in range(1, 4):  # ours is quicker by 5 s in each window
        at_s = n * (WINDOW_S + 1.0)
        clocks.heard("a", "boot", at_s - 5.0 * n, 1000.0 + at_s)
    assert clocks.here("a", "boot") == 1010.0


def test_every_time_of_a_report_moves() -> None:
    report = Report(
        node="a",
        boot_id="boot",
        sequence=1,
        now=Now(100.0, 1e9),
        ranks=(RankReport(job="j", incarnation=1, rank=0, iterations=[Iteration(99.0, 7)], alive_s=96.0),),
        matches=(LogMatch(rule="r", failure="f", rank=0, incarnation=1, at_s=98.0),),
        exits=(("j", RankExit(rank=0, incarnation=1, at_s=97.0, code=1)),),
    )
    here = moved(report, 1000.0)
    assert here.now == Now(1100.0, 1e9)
    assert here.ranks[0].iterations == [Iteration(1099.0, 7)]
    assert here.ranks[0].alive_s == 1096.0
    assert here.matches[0].at_s == 1098.0
    assert here.exits[0][1].at_s == 1097.0
