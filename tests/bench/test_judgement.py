"""The ruler for the judgement of slowness: what it counts as right, as wrong, and as a day."""

import pytest

from tests.bench import bench_judgement as bench
from tests.core.rings import Layout, SlowCard, SlowLink

SMALL = Layout(1, 1, 16)
CARD = SlowCard(5, 1.5, since=bench.BEFORE)


def test_a_slow_card_is_judged_right_and_a_sound_job_has_no_signal() -> None:
    verdict = bench.judge(bench.Run(SMALL, "compute", CARD, 1))
    assert (verdict.right, verdict.wrong, verdict.named) == (True, False, {5})
    assert verdict.growth == pytest.approx(1.45, abs=0.05)
    sound = bench.judge(bench.Run(SMALL, "compute", None, 1))
    assert (sound.signals, sound.told, sound.wrong) == (0, False, False)


def test_who_names_another_or_one_more_is_wrong_and_who_says_nothing_is_not_right() -> None:
    run = bench.Run(SMALL, "compute", CARD, 1)
    another, more, silent = (
        bench.Verdict(run, 1.4, bool(ranks), ranks, ranks, 1) for ranks in ({4}, {4, 5}, set[int]())
    )
    assert [(one.right, one.wrong) for one in (another, more, silent)] == [
        (False, True),
        (False, True),
        (False, False),
    ]
    passing = bench.Verdict(run, 1.4, True, {5}, {4, 5}, 1)
    assert passing.wrong  # it was named for some time


def test_with_tensor_counting_a_tensor_group_may_be_named_and_nobody_for_a_link_between_hosts() -> None:
    layout = Layout(8, 1, 8)
    group = set(range(24, 32))
    assert bench.Run(layout, "tensor", SlowCard(29, 1.5), 0).guilty == [{29}, group]
    assert bench.Run(layout, "compute", SlowCard(29, 1.5), 0).guilty == [{29}]
    within = SlowLink(ranks=(26, 27), factor=9.0)
    assert bench.Run(layout, "tensor", within, 0).guilty == [set(), group]
    assert bench.Run(layout, "compute", within, 0).guilty == [set()]
    assert bench.Run(layout, "tensor", SlowLink(hosts=(3, 4), factor=9.0), 0).guilty == [set()]


def test_days_are_those_that_were_made_and_come_to_what_is_asked() -> None:
    kind, days, alarms = bench.healthy(("normal 1 %", 3))
    assert (kind, alarms) == ("normal 1 %", 0)
    assert days == pytest.approx(1, abs=0.01)
    short = bench.healthy(("mlperf-dlrm-a100", 0))[1]
    assert 0.02 < short < 0.1  # a million iterations of 3 ms
    assert 950 < len(bench.healthy_cases(1000)) < 1100


def test_a_change_of_five_per_cent_is_counted_from_where_it_begins() -> None:
    found = bench.delay(("normal 1 %", 4))
    assert found is not None
    assert 8 <= found <= 12
