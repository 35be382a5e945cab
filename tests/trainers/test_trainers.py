"""Trainers with Sentinel's callbacks: are steps read, evaluations left alone, saves proved and whole?"""

import re
import signal
from pathlib import Path

import pytest

from tests.e2e.box import Box, Running
from tests.trainers.conftest import Keep

PROGRAMS = Path(__file__).parent / "programs"
HANG_S, EVALUATION_S = 10, 30
PROOF = r"saved checkpoint step (\d+)"
POLICY = {
    "resume": {
        "maxResumes": 3,
        "gracefulStop": "30s",
        "checkpoint": {"timeout": "60s", "proof": {"logPattern": PROOF}},
    },
    "hang": {"after": f"{HANG_S}s"},
}
TORCHRUN = "{bin}/torchrun --standalone --nproc-per-node 2"
TRAINERS = {
    "own": ("a loop of one's own, torchrun", f"{TORCHRUN} {PROGRAMS / 'own.py'}"),
    "hf": ("Hugging Face's Trainer, torchrun", f"{TORCHRUN} {PROGRAMS / 'hf.py'}"),
    "lightning": ("Lightning, its own launcher", f"{{bin}}/python {PROGRAMS / 'lit.py'}"),
}
WHOLE = 120  # steps of a training that is compared with one that was stopped


def start(
    box: Box,
    venv: Path,
    trainer: str,
    name: str,
    folder: str,
    steps: int,
    evaluate_at: int = 0,
    signal_at: int = 0,
) -> Running:
    words = TRAINERS[trainer][1].format(bin=venv / "bin").split()
    numbers = [str(number) for number in (steps, evaluate_at, EVALUATION_S, signal_at)]
    return box.run(*words, folder, *numbers, name=name, policy=box.policy(**POLICY))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_is_read_left_alone_and_saves_when_it_is_asked(
    box: Box, venv: Path, keep: Keep, trainer: str
) -> None:
    box.env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    # One rank alone gets the signal.
    done = start(box, venv, trainer, "asked", "asked", 30, signal_at=10)
    assert done.code(300.0) == 0, box.story("asked") + box.log(name="asked")
    record = box.job("asked")
    assert record is not None
    assert record.last_step == 30, box.story("asked")
    saved = [int(step) for step in re.findall(PROOF, box.log(name="asked"))]
    assert 10 <= saved[0] <= 12

    # Sentinel asks all of them, and stops the training when the save is proved.
    job = start(box, venv, trainer, "stopped", "stopped", WHOLE)
    box.stepping(lines=20, name="stopped")
    job.send(signal.SIGTERM)
    assert job.code(300.0) == 75, box.story("stopped")
    incident = box.phase("Ended", "stopped")
    assert incident.save is not None
    proof = re.search(PROOF, incident.save.proved_by)
    assert proof, box.story("stopped")
    assert 20 <= int(proof[1]) < WHOLE

    weights = []
    for name, folder in (("resumed", "stopped"), ("undisturbed", "undisturbed")):
        done = start(box, venv, trainer, name, folder, WHOLE)
        assert done.code(300.0) == 0, box.story(name) + box.log(name=name)
        weights += re.findall(r"^weights (\w+)$", box.log(name=name), re.M)
    assert len(weights) == 2
    assert weights[0] == weights[1]
    steps = [int(one) for one in re.findall(r"\bstep (\d+): this iteration", box.log(name="resumed"))]
    assert steps == list(range(int(proof[1]) + 1, WHOLE + 1))

    # An evaluation of three times what a hang is allowed.
    done = start(box, venv, trainer, "evaluating", "evaluating", 30, evaluate_at=20)
    assert done.code(300.0) == 0, box.story("evaluating")
    assert box.incidents("evaluating") == []
    keep(
        "trainers",
        trainer=TRAINERS[trainer][0],
        order=list(TRAINERS).index(trainer),
        steps=record.last_step,
        late=saved[0] - 10,
        evaluation_s=EVALUATION_S,
        hang_s=HANG_S,
        proved_s=incident.save.took_s,
    )
