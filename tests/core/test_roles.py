"""How unequal ranks are by their roles."""

import pytest

from sentinel.core.timing.roles import shares


def of(*usual_ms: float) -> list[float]:
    return [round(share, 3) for share in shares(dict(enumerate(usual_ms))).values()]


def test_ranks_of_one_level_are_equal() -> None:
    assert of(100, 101, 100, 102) == pytest.approx([1, 1, 1, 1], abs=0.021)


def test_the_last_and_the_first_of_a_pipeline_may_be_slower() -> None:
    assert of(130, 100, 100, 100, 100, 180) == [1.3, 1, 1, 1, 1, 1.8]


def test_several_that_take_equally_long_are_a_stage() -> None:
    assert of(100, 100, 160, 160, 100, 100, 100, 100) == [1, 1, 1.6, 1.6, 1, 1, 1, 1]


def test_where_others_are_unequal_too_each_may_be_a_stage() -> None:
    assert of(100, 120, 160, 140)[2] > 1.2


def test_one_that_stands_alone_among_equals_has_no_role_that_explains_it() -> None:
    assert of(100, 100, 160, 100) == [1, 1, 1, 1]
    assert of(*[100] * 20, 300, *[100] * 20, 200, *[100] * 5) == [1] * 47


def test_of_two_or_three_ranks_nobody_can_tell() -> None:
    assert of(100, 160) == [1, 1.6]
    assert of(100, 160, 100) == [1, 1.6, 1]


def test_a_faster_rank_has_no_allowance() -> None:
    assert of(100, 100, 50, 100, 100)[2] == 1
