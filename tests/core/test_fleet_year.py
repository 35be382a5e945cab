"""The default brakes over a year of faults: they hold back nothing that chance brings, and mistakes stay few."""

import pytest
from msgspec import structs

from sentinel.core.fleet.settings import Allowance, FleetSettings, Limit
from tests.core.fleet_year import (
    AGAIN,
    AGAIN_S,
    DAY_S,
    FAULT_EVERY_S,
    HOUR_S,
    REPAIR_P90_S,
    REPAIR_S,
    TEST_NODES,
    Year,
)

DEFAULTS = FleetSettings()


def a_year(
    nodes: int, settings: FleetSettings = DEFAULTS, *, days: float = 365.0, test: bool = False
) -> Year:
    year = Year(nodes, settings, days=days, test=test)
    year.run()
    return year


def late(year: Year) -> int:
    return sum(wait_s > HOUR_S for wait_s in year.waits_s())


def test_the_year_has_the_statistics_that_were_published() -> None:
    year = a_year(400, days=3 * 345.0)
    assert len(year.faults) * FAULT_EVERY_S / DAY_S == pytest.approx(400 * 3 * 345, rel=0.1)
    found: dict[str, list[float]] = {}
    soon = after = 0
    for fault in year.faults:
        found.setdefault(fault.node, []).append(fault.found_s)
    for back_s, node in year.returns:
        later = [one for one in found[node] if one > back_s]
        after += 1
        soon += bool(later) and later[0] - back_s < AGAIN_S
    assert soon / after == pytest.approx(AGAIN, abs=0.04)
    assert 0.03 < year.most_down / 400 < 0.0875
    repairs_s = sorted(year.repairs_s)
    assert repairs_s[len(repairs_s) // 2] == pytest.approx(REPAIR_S, rel=0.1)
    assert repairs_s[len(repairs_s) * 9 // 10] == pytest.approx(REPAIR_P90_S, rel=0.15)


@pytest.mark.parametrize(("nodes", "years"), [(16, 10), (100, 3), (400, 1), (1000, 1)])
def test_no_fault_waits_for_room_and_none_is_told_more_than_twice(nodes: int, years: int) -> None:
    year = a_year(nodes, days=365.0 * years)
    assert len(year.faults) > 200
    assert late(year) == 0
    assert year.wrong == []
    assert year.messages <= 2 * len(year.faults)
    assert len(year.asked) <= years, "chance makes people be asked once in a year"


@pytest.mark.parametrize("nodes", [400, 1000])
def test_a_planned_test_that_finds_many_at_once_passes_too(nodes: int) -> None:
    year = a_year(nodes, test=True)
    assert sum(fault.planned for fault in year.faults) > TEST_NODES / 2
    assert late(year) == 0
    assert year.wrong == []
    assert year.messages <= 2 * len(year.faults) + 1, "of the test itself a person is asked once"


def asked(year: Year) -> tuple[float, float]:
    """Of those that came back without being repaired, and of the others: whose next fault asks for a person."""
    left = [fault.asked for fault in year.faults if fault.left]
    assert len(left) > 300
    by_chance = sum(fault.asked for fault in year.faults if not fault.left)
    return sum(left) / len(left), by_chance / year.repaired


def test_a_person_is_asked_for_nearly_all_that_were_not_repaired_and_for_few_others() -> None:
    not_repaired, repaired = asked(a_year(400, days=3 * 365.0))
    assert not_repaired > 0.9
    assert 0 < repaired < 0.05


def test_three_isolations_would_catch_less_than_half_of_them() -> None:
    not_repaired, _ = asked(a_year(400, structs.replace(DEFAULTS, repeat_limit=3), days=3 * 365.0))
    assert not_repaired < 0.5


def test_half_of_the_default_would_not_do() -> None:
    half = Allowance(at_a_time=Limit(2, 0.025), per_window=Limit(3, 0.05))
    assert late(a_year(400, structs.replace(DEFAULTS, isolations=half), test=True)) > 0


def test_counting_repairs_would_hold_back_faults_for_hours() -> None:
    year = a_year(400, structs.replace(DEFAULTS, proven_after_s=365 * DAY_S), test=True)
    assert max(year.waits_s()) > 6 * HOUR_S
