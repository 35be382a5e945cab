"""Two real ranks of PyTorch that save when one of them is asked, under Sentinel, and come to the same weights."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.integrations import SaveOnSignal
from tests.e2e.box import Box
from tests.waits import until

TORCH_PYTHON = "/usr/bin/python3"  # Debian's: its package python3-torch
LOOP = str(Path(__file__).parent / "programs" / "loop.py")
SLOW_S = 280.0  # ranks import PyTorch first
TWO = ("--nproc", "2")
SAME = """
import sys, torch
one, other = (torch.load(path) for path in sys.argv[1:])
assert one["step"] == other["step"], (one["step"], other["step"])
assert one["model"].keys() == other["model"].keys()
assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
"""


def signalled(rank: int) -> tuple[str, ...]:
    return ("--signal-at", "7", "--signal-rank", str(rank))


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_save_within_two_steps_of_the_signal_whichever_of_them_got_it(box: Box, rank: int) -> None:
    job = box.run(TORCH_PYTHON, LOOP, "--steps", "40", *signalled(rank), options=TWO)
    assert job.code(SLOW_S) == 0, box.story()
    saves = [re.findall(r"rank (\d) saves at step (\d+)", box.log(of)) for of in (0, 1)]
    (first,), (second,) = saves
    assert (first[0], second[0], first[1]) == ("0", "1", second[1])
    assert 7 <= int(first[1]) <= 9
    assert box.log(0).count(f"saved checkpoint step {first[1]}\n") == 1
    assert "saved checkpoint" not in box.log(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_are_asked_at_different_steps_save_once(box: Box, rank: int) -> None:
    """A second save would be cut off: Sentinel stops the job when the first one is proved."""
    job = box.run(TORCH_PYTHON, LOOP, "--steps", "40", *signalled(rank), "--both", options=TWO)
    assert job.code(SLOW_S) == 0, box.story()
    assert [box.log(of).count("saves at step") for of in (0, 1)] == [1, 1]
    assert box.log(0).count("saved checkpoint step") == 1


def test_a_wish_outlives_a_process_group_that_is_made_anew(repo: Path, tmp_path: Path) -> None:
    program = f"""
import os, signal
import torch.distributed as dist
from sentinel.integrations import SaveOnSignal
saver = SaveOnSignal(times="none")
def join(name):
    dist.init_process_group("gloo", init_method="file://{tmp_path}/" + name, rank=0, world_size=1)
join("one")
os.kill(os.getpid(), signal.SIGUSR1)
answers = [saver.should_save(1)]
dist.destroy_process_group()
join("two")
answers += [saver.should_save(step) for step in (2, 3, 4)]
assert answers == [False, False, True, False], answers
"""
    done = subprocess.run(
        [TORCH_PYTHON, "-c", program],
        capture_output=True,
        text=True,
        timeout=SLOW_S,
        env={"PYTHONPATH": str(repo)},
    )
    assert done.returncode == 0, done.stderr


def test_no_signal_no_save(box: Box) -> None:
    assert box.run(TORCH_PYTHON, LOOP, "--steps", "40", options=TWO).code(SLOW_S) == 0, box.story()
    assert "save" not in box.log(0) + box.log(1)


@pytest.mark.parametrize(("times", "printed"), [("first", [39, 0]), ("all", [39, 39]), ("none", [0, 0])])
def test_iterations_are_printed_by_those_who_are_to(box: Box, times: str, printed: list[int]) -> None:
    job = box.run(TORCH_PYTHON, LOOP, "--steps", "39", "--times", times, options=TWO)
    assert job.code(SLOW_S) == 0, box.story()
    lines = [re.findall(r"^step (\d+): this iteration hardware time is ", box.log(of), re.M) for of in (0, 1)]
    assert [len(one) for one in lines] == printed
    assert all(one == [str(step) for step in range(1, 40)] for one in lines if one)
    if times != "none":
        record = box.job()
        assert record is not None
        assert record.last_step == 39


def test_the_example_with_the_policy_of_the_readme_is_left_alone_saves_and_comes_to_the_same_weights(
    box: Box, repo: Path
) -> None:
    def example(folder: str, *options: str) -> tuple[str, ...]:
        program = str(repo / "examples/train_torch.py")
        return (TORCH_PYTHON, program, "--checkpoints", folder, "--checkpoint-every", "1000", *options)

    (shown,) = re.findall(r"```yaml\n(.*?)```", (repo / "README.md").read_text(), re.S)
    policy = str(box.folder / "readme.yaml")
    Path(policy).write_text(shown)
    job = box.run(*example("stopped", "--steps", "100000"), policy=policy, options=TWO)
    box.stepping(
        lines=100
    )  # several times as many as the policy judges: nearly all of a step is computed, as always
    assert box.incidents() == [], box.story()
    job.send(signal.SIGTERM)
    assert job.code(SLOW_S) == 75, box.story()
    incident = box.phase("Ended")
    assert incident.save is not None
    stopped_at = int(re.findall(r"saved checkpoint step (\d+)", incident.save.proved_by)[0])
    (path,) = (box.work / "stopped").iterdir()
    assert path.name == f"step-{stopped_at:08d}.pt"

    last = str(stopped_at + 15)
    for name, folder in (("resumed", "stopped"), ("undisturbed", "undisturbed")):
        done = box.run(*example(folder, "--steps", last), name=name, policy=policy, options=TWO)
        assert done.code(SLOW_S) == 0, box.story(name)
    assert f"resumed from step {stopped_at}\n" in box.log(name="resumed")
    paths = [str(box.work / folder / f"step-{int(last):08d}.pt") for folder in ("stopped", "undisturbed")]
    compared = subprocess.run([TORCH_PYTHON, "-c", SAME, *paths], capture_output=True, text=True, timeout=120)
    assert compared.returncode == 0, compared.stderr


def test_a_program_without_pytorch_needs_nothing_but_python(repo: Path) -> None:
    program = """
import os, signal, sys
had = set(sys.modules)
from sentinel.integrations import SaveOnSignal
foreign = {name.split(".")[0] for name in set(sys.modules) - had} - set(sys.stdlib_module_names)
assert foreign == {"sentinel"}, foreign
ours = {name for name in sys.modules if name.startswith("sentinel")} - {"sentinel"}
assert all(name.startswith("sentinel.integrations") for name in ours), ours
saver = SaveOnSignal()
for step, batch in enumerate(saver.batches("abcd"), 1):
    if step == 2:
        os.kill(os.getpid(), signal.SIGUSR1)
    if saver.should_save(step):
        saver.saved(step)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(repo)},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2:4] == ["saving checkpoint step 2", "saved checkpoint step 2"]
    assert re.fullmatch(
        r"step 4: this iteration hardware time is [\d.]+ and e2e time is [\d.]+ ms\.", lines[5]
    )
    assert len(lines) == 6


def test_who_had_a_handler_before_goes_on_getting_the_signal() -> None:
    got: list[int] = []
    kept = signal.signal(signal.SIGUSR1, lambda number, _frame: got.append(number))
    try:
        saver = SaveOnSignal(times="none")
        signal.raise_signal(signal.SIGUSR1)
        until(lambda: got == [signal.SIGUSR1])
        assert saver.should_save(1)
        assert not saver.should_save(2)
    finally:
        signal.signal(signal.SIGUSR1, kept)


def test_what_cannot_be_is_refused_before_the_training_begins() -> None:
    kept = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(ValueError, match='times: expected "first", "all" or "none", found \'each\''):
        SaveOnSignal(times="each")
    assert signal.getsignal(signal.SIGUSR1) is kept
