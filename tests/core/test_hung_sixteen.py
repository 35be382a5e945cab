"""Hangs and long pauses of sixteen real ranks, as they were looked at, through all that judges them."""

import pytest

from tests.bench.judged_hangs import HANGS, Judged, captured, describe, judge, share


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return [judge(case) for case in captured()]


@pytest.fixture(scope="module")
def hangs(judged: list[Judged]) -> list[Judged]:
    return [one for one in judged if one.case.hangs]


@pytest.fixture(scope="module")
def pauses(judged: list[Judged]) -> list[Judged]:
    return [one for one in judged if not one.case.hangs]


def test_there_are_enough_of_each_kind_with_different_ranks_at_fault(
    hangs: list[Judged], pauses: list[Judged]
) -> None:
    assert {one.case.kind for one in hangs} == HANGS
    for kind in HANGS:
        assert len({one.case.rank for one in hangs if one.case.kind == kind}) >= 4
    assert len(pauses) >= 50
    assert len({one.case.kind for one in pauses}) >= 10


def test_of_what_hangs_the_rank_is_named_and_its_line_told(hangs: list[Judged]) -> None:
    missed = [describe(one) for one in hangs if not (one.rank_right and one.line_right)]
    assert share(hangs, "rank_right") >= 95, missed
    assert share(hangs, "line_right") >= 90, missed


def test_no_rank_is_named_that_is_not_at_fault(hangs: list[Judged]) -> None:
    assert [describe(one) for one in hangs if one.wrong] == []


def test_no_healthy_pause_is_told_as_a_hang_and_of_one_that_is_told_in_doubt_no_other_rank_is_named(
    pauses: list[Judged],
) -> None:
    assert [describe(one) for one in pauses if one.proved] == []
    assert [describe(one) for one in pauses if one.verdict.rank not in (None, one.case.rank)] == []


def test_the_two_looks_prove_hangs_that_stand_still(hangs: list[Judged]) -> None:
    proved = {one.case.kind for one in hangs if one.proved}
    assert {"lock", "stop", "mismatch"} <= proved
    assert share(hangs, "proved") >= 40
