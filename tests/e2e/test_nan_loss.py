"""A loss that stays NaN: told, or undone from a checkpoint that is older."""

import signal
import sys
from pathlib import Path

from tests.e2e.box import Box
from tests.waits import until

ROOT = str(Path(__file__).parents[2])
PROGRAM = str(Path(__file__).parent / "programs" / "diverge.py")
RESTARTS = {"nanLoss": {"action": "RestartAndAlert"}, "resume": {"maxResumes": 3}}


def _program(when: str) -> tuple[str, ...]:
    return "env", f"PYTHONPATH={ROOT}", sys.executable, PROGRAM, "23", when


def told(box: Box) -> list[str]:
    return [one.verdict.sentence for one in box.incidents() if one.verdict.symptom == "diverged"]


def test_a_job_whose_loss_stays_nan_goes_back_to_a_checkpoint_from_before_and_no_checkpoint_is_lost(
    box: Box,
) -> None:
    job = box.run(*_program("first"), policy=box.policy(**RESTARTS))
    incident = box.phase("Recovered")
    assert incident.verdict.sentence == (
        "The loss is NaN or infinite since step 23. "
        "The job is restarted, to resume from a checkpoint of step 22 or an older one."
    )
    first, second = box.starts
    assert first["from"] == 0
    assert second["from"] == 20
    assert "checkpoint-25" in second["there"], "the newer one was NaN, and is left where it is"
    bad_from, bad_to = second["told"]["SENTINEL_BAD_STEPS"].split("-")
    assert int(bad_from) == 23
    assert int(bad_to) >= 27
    until(lambda: f"iter {int(bad_to) + 20}: loss 2.31" in box.log(incarnation=2), box.story)
    assert len(told(box)) == 1
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_a_loss_that_is_nan_again_at_the_same_step_is_told_and_not_restarted_again(box: Box) -> None:
    job = box.run(*_program("always"), policy=box.policy(**RESTARTS))
    notice = box.phase("KeptRunning")
    assert "is not restarted: it was so at these steps before" in notice.verdict.sentence
    assert [start["from"] for start in box.starts] == [0, 20]
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_without_a_policy_that_asks_for_it_a_loss_that_stays_nan_is_only_told(box: Box) -> None:
    job = box.run(*_program("first"), policy=box.policy(resume={"maxResumes": 3}))
    notice = box.phase("KeptRunning")
    assert notice.verdict.sentence.endswith("The job goes on; Sentinel does nothing about it.")
    assert len(box.starts) == 1
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_a_loss_that_was_nan_to_the_end_is_told_though_the_program_ends_well(box: Box) -> None:
    job = box.run(*_program("first"), "60", policy=box.policy(resume={"maxResumes": 3}))
    assert job.code() == 0
    [sentence] = told(box)
    assert "The loss is NaN or infinite since step 23." in sentence
    assert len(box.starts) == 1
