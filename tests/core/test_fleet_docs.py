"""docs/fleet.md says what the code does."""

import re
from pathlib import Path

import pytest

from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.model import Kind, State
from sentinel.core.fleet.record import TRANSITIONS
from sentinel.core.fleet.settings import Allowance, FleetSettings, Limit
from sentinel.docs.fleet import diagram, renewed, table


def test_the_generated_part_is_that_of_the_table(repo: Path) -> None:
    text = (repo / "docs/fleet.md").read_text("utf-8")
    assert text == renewed(text), "run: make generated"


def test_every_row_is_in_the_table_with_its_meaning_and_every_state_in_the_diagram() -> None:
    rows = table().splitlines()[2:]
    assert len(rows) == len(TRANSITIONS)
    assert all(re.fullmatch(r"\| \S+ \| `\w+` \| [A-Z].*[.] \| .+ \|", row) for row in rows)
    for state in State:
        assert state.value in diagram()


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="generated"):
        renewed("# Nodes\n")


def test_every_reason_and_every_kind_is_explained(repo: Path) -> None:
    text = (repo / "docs/fleet.md").read_text("utf-8")
    told = set(re.findall(r"`([\w-]+)`", text))
    assert {reason.value for reason in Reason} <= told
    assert {kind.value for kind in Kind} <= told


def test_the_defaults_of_the_brakes_are_those_of_the_code(repo: Path) -> None:
    text = (repo / "docs/fleet.md").read_text("utf-8")
    settings = FleetSettings()

    def numbers(limit: Limit | None) -> list[float]:
        assert limit is not None
        return [limit.at_least, round(limit.share * 100)]

    def wanted(whole: Allowance, pool: Allowance, standing: bool) -> list[float]:
        pick = [one.at_a_time if standing else one.per_window for one in (whole, pool)]
        assert {whole.window_s, pool.window_s} == {3600.0}
        return [number for limit in pick for number in numbers(limit)]

    rows = [
        [int(number) for cell in row.split("|")[2:] for number in re.findall(r"\d+", cell)]
        for row in re.findall(r"^\| (?:isolations for|nodes whose pods|stops of jobs).*$", text, re.M)
    ]
    assert rows == [
        wanted(settings.isolations, settings.pool_isolations, True),
        wanted(settings.isolations, settings.pool_isolations, False),
        wanted(settings.disks, settings.pool_disks, True),
        wanted(settings.disks, settings.pool_disks, False),
        wanted(settings.removals, settings.pool_removals, False),
        wanted(settings.stops, settings.pool_stops, False),
    ]
