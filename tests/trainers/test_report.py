"""The page of what real trainers showed."""

from tests.trainers.report import page


def row(launcher: str, fault: str, order: list[int], **more: object) -> dict[str, object]:
    usual = {"failure": "killed", "rank": 1, "restarted": True, "seconds": 8.4}
    return {
        "kind": "launchers",
        "versions": {"torch": "2.15.0"},
        "launcher": launcher,
        "fault": fault,
        "order": order,
        **usual,
        **more,
    }


def test_each_launcher_is_a_column_and_each_fault_a_row() -> None:
    rows = [
        row("torchrun", "a rank loops", [1, 1], failure="hang", rank=None, restarted=False, seconds=None),
        row("none", "a rank is killed", [0, 0]),
    ]
    made, missing = page(rows, "")
    assert not missing
    assert "Made with torch 2.15.0.\n" in made
    assert "| | none | torchrun |\n|---|---|---|\n" in made
    assert "| a rank is killed | killed; rank 1; 8 s |  |" in made
    assert "| a rank loops |  | hang; no rank; not restarted |" in made
    assert page(rows, made) == (made, [])


def test_a_table_of_which_not_all_was_run_again_stays_as_it_was_and_that_is_said() -> None:
    before, _ = page([row("none", "a rank is killed", [0, 0]), row("torchrun", "a rank loops", [1, 1])], "")
    assert page([], before)[0] == before
    made, missing = page([row("none", "a rank is killed", [0, 0], seconds=99.0)], before)
    assert made == before
    assert missing == ["Launchers and faults: a rank loops: torchrun"]
