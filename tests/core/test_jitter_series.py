"""The made series of step times are like the jobs that were measured."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest

from tests.core.jitter_series import Profile, profiles

ALL = profiles()
CLOSE = 1e-9  # rounding: where many times are equal, none is below another
BY_NAME = {profile.name: profile for profile in ALL}
each = pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)


@each
def test_a_made_series_has_the_spread_around_its_level_that_was_measured(profile: Profile) -> None:
    ratios = [time / profile.median_ms for time in profile.series_ms(count=8_000, steady=True)]
    if profile.spike_every:
        ratios = [r for i, r in enumerate(ratios) if i % profile.spike_every != profile.spike_first]
    for share in (0.1, 0.5, 0.9):
        below, not_above = (
            sum(ratio < profile.ratio_below(share) * (1 - CLOSE) for ratio in ratios),
            sum(ratio <= profile.ratio_below(share) * (1 + CLOSE) for ratio in ratios),
        )
        assert below / len(ratios) - 0.03 < share < not_above / len(ratios) + 0.03


@pytest.mark.parametrize(
    "profile",
    [one for one in ALL if one.ratio_below(0.49) < one.ratio_below(0.5) < one.ratio_below(0.51)],
    ids=lambda profile: profile.name,
)
def test_neighbours_of_a_made_series_depend_on_each_other_as_was_measured(profile: Profile) -> None:
    """Two normal numbers of correlation r lie on the same side of the middle with 1/2 + asin(r)/pi."""
    calm = replace(profile, spike_every=0)
    above = [
        time > calm.median_ms * calm.ratio_below(0.5) for time in calm.series_ms(count=8_000, steady=True)
    ]
    together = sum(one == other for one, other in pairwise(above)) / (len(above) - 1)
    assert together == pytest.approx(0.5 + math.asin(profile.correlation) / math.pi, abs=0.03)


@each
def test_a_series_is_the_same_for_the_same_seed_and_another_for_another(profile: Profile) -> None:
    assert profile.series_ms(seed=1) == profile.series_ms(seed=1)
    assert profile.series_ms(seed=1) != profile.series_ms(seed=2)
    assert len(profile.series_ms()) == profile.count


def test_a_real_slowdown_is_where_the_log_has_it_and_a_steady_series_leaves_it_out() -> None:
    profile = BY_NAME["megatron-gpt3-15b-h100"]
    for steady, growth in ((False, 1.064), (True, 1.0)):
        times = profile.series_ms(steady=steady)
        assert median(times[275:350]) / median(times[200:265]) == pytest.approx(growth, abs=0.01)


def test_periodic_slow_iterations_come_at_their_distance() -> None:
    times = BY_NAME["modded-nanogpt-soap"].series_ms()
    usual = median(times)
    slow = [i for i, time in enumerate(times) if time > 3 * usual]
    assert {later - earlier for earlier, later in pairwise(slow)} == {10}
