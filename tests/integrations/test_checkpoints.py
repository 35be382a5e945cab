"""Which checkpoint a restarted program resumes from."""

from pathlib import Path

import pytest

from sentinel.integrations import may_resume_from
from sentinel.integrations.checkpoints import newest_checkpoint


def saved(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / "trainer_state.json").touch()


def test_a_checkpoint_of_a_step_with_a_nan_loss_is_passed_over_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 500, 1000, 1500)
    (tmp_path / "checkpoint-2000").mkdir()  # cut off before it was whole
    monkeypatch.delenv("SENTINEL_BAD_STEPS", raising=False)
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-1500")
    monkeypatch.setenv("SENTINEL_BAD_STEPS", "991-1500")
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-500")
    assert (tmp_path / "checkpoint-1500").exists()
    saved(tmp_path, 1501)
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-1501"), (
        "saved after it had come past them"
    )
    monkeypatch.setenv("SENTINEL_BAD_STEPS", "1-1501")
    assert newest_checkpoint(str(tmp_path)) is None
    assert newest_checkpoint(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("told", "expected"),
    [("", True), ("20-30", False), ("25-25", False), ("26-30", True), ("1-24", True), ("x", True)],
)
def test_a_program_with_a_loop_of_its_own_asks_whether_it_may_resume_from_a_step(
    told: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_BAD_STEPS", told)
    assert may_resume_from(25) is expected
