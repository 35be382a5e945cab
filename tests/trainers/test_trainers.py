"""Trainers with Sentinel's callbacks: are steps read, evaluations left alone, saves proved and whole? And without."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.core.timing.hang import FLOOR_S
from tests.e2e.box import Box, Running
from tests.trainers.table import Keep
from tests.waits import until

PROGRAMS = Path(__file__).parent / "programs"
LOOP = Path(__file__).parents[1] / "integrations/programs/loop.py"
HANG_S = 30  # longer than a busy machine takes to end a training after its last step
EVALUATION_S = 3 * HANG_S
BATCHES = 2 * EVALUATION_S  # of the evaluation: the test lets one go each second, and in the end the rest
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
NUMBERS = f"{{folder}} {{steps}} {{evaluate_at}} {BATCHES} {{signal_at}}"
OPTIONS = (
    "--folder {folder} --steps {steps} --signal-at {signal_at} "
    f"--evaluate-at {{evaluate_at}} --evaluation {BATCHES}"
)
TRAINERS = {
    "own": ("a loop of one's own, torchrun", f"{TORCHRUN} {LOOP} {OPTIONS}"),
    "hf": ("Hugging Face's Trainer, torchrun", f"{TORCHRUN} {PROGRAMS / 'hf.py'} {NUMBERS}"),
    "lightning": ("Lightning, its own launcher", f"{{bin}}/python {PROGRAMS / 'lit.py'} {NUMBERS}"),
}


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
    words = TRAINERS[trainer][1].format(
        bin=venv / "bin", folder=folder, steps=steps, evaluate_at=evaluate_at, signal_at=signal_at
    )
    return box.run(*words.split(), name=name, policy=box.policy(**POLICY))


def evaluate(
    box: Box,
    name: str,
    pace: Path,
    batches: int = EVALUATION_S,
    batch_s: int = 1,
    each: Callable[[], object] = lambda: None,
) -> None:
    """Lets an evaluation go on for as long as it is to last, batch after batch, then to its end. `each`: before one."""

    def opened() -> int | None:
        try:
            return os.open(pace, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            return None

    with open(until(opened, lambda: box.story(name) + box.log(name=name), 300.0), "wb", buffering=0) as pipe:
        begun_s = time.monotonic()
        for batch in range(1, batches + 1):
            try:
                each()
                pipe.write(b"\n")
            except BrokenPipeError:
                raise AssertionError(box.story(name)) from None
            until(lambda due_s=begun_s + batch * batch_s: time.monotonic() >= due_s)


def plain(box: Box, venv: Path, trainer: str, numbers: str, how: str = "plain", policy: str = "") -> Running:
    """Without Sentinel's callback, and most often a policy: what there is to read is the trainer's own bar and log."""
    box.env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = TRAINERS[trainer][1].replace(NUMBERS, f"plain {numbers} {how}").format(bin=venv / "bin")
    return box.run(*command.split(), name="plain", policy=policy)


@pytest.mark.timeout(1200)
def test_without_policy_and_callback_an_evaluation_is_left_alone_while_its_bar_moves(
    box: Box, venv: Path
) -> None:
    """Of Hugging Face's Trainer, for more than twice as long as a job may be silent by default."""
    batch_s = 30
    batches = int(2 * FLOOR_S) // batch_s + 1
    pace = box.work / "pace"
    os.mkfifo(pace)
    done = plain(box, venv, "hf", f"400 300 {batches + 1} 0")
    evaluate(box, "plain", pace, batches, batch_s)
    assert done.code(300.0) == 0, box.story("plain") + box.log(name="plain")
    assert re.search(rf"\b{batches}/{batches + 1} ", box.log(name="plain")), "the bar of the evaluation"
    record = box.job("plain")
    assert record is not None
    assert record.incarnation == 1, box.story("plain")
    assert (record.last_step or 0) > 300, box.story("plain")  # those behind the evaluation too
    assert box.incidents("plain") == []


@pytest.mark.timeout(900)
def test_what_takes_longer_than_a_hang_is_left_alone_in_each_phase_while_its_bar_moves(
    box: Box, venv: Path
) -> None:
    """Of Hugging Face's Trainer without Sentinel's callback: preparation, and at step 20 an evaluation and a save."""
    batch_s, batches = 9, HANG_S // 9 + 2
    pace = box.work / "pace"
    os.mkfifo(pace)
    policy = box.policy(resume={"maxResumes": 3}, hang={"after": f"{HANG_S}s"})
    done = plain(box, venv, "hf", f"30 20 {batches} 0", "slow", policy)
    named: set[str] = set()

    def note() -> None:
        named.update(re.findall(r": it is ([a-z ]+)", " ".join(box.status("plain")["notes"])))

    evaluate(box, "plain", pace, 3 * batches, batch_s, note)
    assert done.code(300.0) == 0, box.story("plain") + box.log(name="plain")
    log = box.log(name="plain")
    for bar in (rf"Map: +100%.* {batches}/{batches} ", rf"Writing shards: +100%.* {batches}/{batches} "):
        assert re.search(bar, log), log
    assert (box.work / "plain/checkpoint-20").is_dir()
    assert named == {"preparing data", "evaluating", "saving"}, "in the last minute of each phase"
    record = box.job("plain")
    assert record is not None
    assert record.incarnation == 1, box.story("plain")
    assert box.incidents("plain") == []


@pytest.mark.timeout(600)
def test_without_policy_and_callback_the_steps_are_read_from_lightnings_bar(box: Box, venv: Path) -> None:
    """Of epochs of 30, the last of which is cut short."""
    done = plain(box, venv, "lightning", "100 0 0 0")
    assert done.code(300.0) == 0, box.story("plain") + box.log(name="plain")
    record = box.job("plain")
    assert record is not None
    assert record.last_step == 100, box.story("plain") + box.log(name="plain")
    assert box.incidents("plain") == []


@pytest.mark.timeout(600)
def test_of_lightnings_bar_by_rich_which_writes_no_step_into_a_file_it_is_said_that_none_are_seen(
    box: Box, venv: Path
) -> None:
    job = plain(box, venv, "lightning", "1000000 0 0 0", "rich", box.policy(startTimeout="20s"))
    until((box.work / "100 steps").exists, lambda: box.story("plain"), 300.0)

    def told() -> bool:  # only as long as it is so
        return "no iterations are seen in its output" in box.sentinel("status", "plain").stdout

    until(told, lambda: box.story("plain"), 300.0)
    assert box.incidents("plain") == []
    job.send(signal.SIGINT)
    job.code(300.0)


@pytest.mark.timeout(1800)
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
    job = start(box, venv, trainer, "stopped", "stopped", 100_000)
    box.stepping(lines=20, name="stopped")
    job.send(signal.SIGTERM)
    assert job.code(300.0) == 75, box.story("stopped")
    incident = box.phase("Ended", "stopped")
    assert incident.save is not None
    proof = re.search(PROOF, incident.save.proved_by)
    assert proof, box.story("stopped")
    stopped_at = int(proof[1])
    assert stopped_at >= 20

    last = stopped_at + 15
    weights = []
    for name, folder in (("resumed", "stopped"), ("undisturbed", "undisturbed")):
        done = start(box, venv, trainer, name, folder, last)
        assert done.code(300.0) == 0, box.story(name) + box.log(name=name)
        weights += re.findall(r"^weights (\w+)$", box.log(name=name), re.M)
    assert len(weights) == 2
    assert weights[0] == weights[1]
    steps = [int(one) for one in re.findall(r"\bstep (\d+): this iteration", box.log(name="resumed"))]
    assert steps == list(range(stopped_at + 1, last + 1))

    # An evaluation of three times what a hang is allowed.
    pace = box.work / "pace"
    os.mkfifo(pace)
    done = start(box, venv, trainer, "evaluating", "evaluating", 30, evaluate_at=20)
    evaluate(box, "evaluating", pace)
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
