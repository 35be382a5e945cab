"""Whose clock is wrong, as most of the agents that are heard say."""

import math

from sentinel.core.fleet.clock import FRESH_S, NEAR_S, OFF_S, AgentClocks

WALL_S, MONO_S = 1.7e9, 1000.0


def clocks(*offsets_s: float, mono_s: float = MONO_S) -> AgentClocks:
    made = AgentClocks()
    for number, offset_s in enumerate(offsets_s):
        made.heard(f"n{number}", WALL_S + offset_s, WALL_S, mono_s)
    return made


def test_a_clock_from_which_most_agents_differ_by_the_same_is_wrong() -> None:
    off = clocks(3600.0, 3603.0, 3599.0, -5.0).off(MONO_S)
    assert off is not None
    assert (off.agree, off.heard) == (3, 4)
    assert off.sentence.startswith("this controller's clock is 3600 s behind those of 3 of 4 nodes")
    off = clocks(-7200.0, -7200.0, -7200.0).off(MONO_S)
    assert off is not None
    assert "7200 s ahead of those of 3 of 3" in off.sentence


def test_a_few_wrong_clocks_of_nodes_say_nothing_about_this_one() -> None:
    assert clocks(3600.0, 0.0, 0.5, -0.5).off(MONO_S) is None


def test_agents_that_do_not_agree_say_nothing() -> None:
    assert clocks(3600.0, 7200.0, -3600.0, 10_800.0).off(MONO_S) is None
    assert clocks(3600.0, 3600.0 + 2 * NEAR_S, 3600.0 - 2 * NEAR_S).off(MONO_S) is None


def test_two_agents_outvote_nobody() -> None:
    assert clocks(3600.0, 3600.0).off(MONO_S) is None
    assert clocks(3600.0, 3600.0).offset_s(MONO_S) is None


def test_a_difference_that_does_no_harm_is_measured_and_not_told() -> None:
    made = clocks(OFF_S, OFF_S, OFF_S)
    assert made.off(MONO_S) is None
    assert made.offset_s(MONO_S) == OFF_S


def test_who_was_not_heard_for_a_minute_has_no_voice() -> None:
    made = clocks(3600.0, 3600.0, 3600.0)
    made.heard("n0", WALL_S, WALL_S, MONO_S + FRESH_S + 1.0)
    assert made.off(MONO_S + FRESH_S + 1.0) is None
    made.forget()
    assert made.offset_s(MONO_S) is None


def test_a_time_that_is_no_number_has_no_voice() -> None:
    assert clocks(math.nan, math.inf, 3600.0, 3600.0).off(MONO_S) is None
