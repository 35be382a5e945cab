"""The example that people copy from, run bare: two real ranks, real signals, real checkpoints."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waits import until

STEPS = 120


class Job:
    """Two ranks of examples/train.py with a port of their own."""

    def __init__(self, folder: Path, checkpoints: Path, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        folder.mkdir()
        program = Path(__file__).parents[2] / "examples" / "train.py"
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [
            sys.executable,
            str(program),
            "--checkpoints",
            str(checkpoints),
            f"--steps={STEPS}",
            *arguments,
        ]
        self.logs = [folder / f"rank{rank}.log" for rank in range(2)]
        self.ranks = []
        for rank, log in enumerate(self.logs):
            with open(log, "wb") as out:
                environment = {**os.environ, **common, "RANK": str(rank)}
                self.ranks.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))

    def log(self, rank: int = 0) -> str:
        return self.logs[rank].read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: self.log(0) + self.log(1))

    def codes(self) -> list[int]:
        return [rank.wait(timeout=180) for rank in self.ranks]

    def result(self) -> dict[str, float]:
        """The last line of a run that went well."""
        assert self.codes() == [0, 0], self.log(0) + self.log(1)
        done: dict[str, float] = json.loads(self.log().splitlines()[-1])
        return done


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start_job(*arguments: str) -> Job:
        jobs.append(Job(tmp_path / f"start{len(jobs)}", tmp_path / "checkpoints", *arguments))
        return jobs[-1]

    yield start_job
    for job in jobs:
        for rank in job.ranks:
            rank.kill()
            rank.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return Job(folder / "start", folder / "checkpoints").result()


def test_the_model_learns(undisturbed: dict[str, float]) -> None:
    assert undisturbed["done"] == STEPS
    assert undisturbed["test_loss"] < 0.3  # a guess costs log 2 = 0.69


def test_every_rank_prints_each_step_and_its_times(start: Callable[..., Job]) -> None:
    job = start("--step-ms=4", "--hardware-share=0.5")
    job.result()
    for rank in range(2):
        lines = job.log(rank).splitlines()
        assert sum(line.startswith("step: ") for line in lines) == STEPS
        timing = [line.split() for line in lines if line.startswith("this iteration hardware time is ")]
        assert len(timing) == STEPS
        assert all(0 < float(words[5]) < float(words[10]) and words[-1] == "ms." for words in timing)


def test_a_killed_rank_fails_its_peer_and_a_second_start_ends_with_the_same_loss(
    start: Callable[..., Job], undisturbed: dict[str, float]
) -> None:
    job = start("--checkpoint-every=20", "--step-ms=5")
    job.wait_for(lambda: "step: 45 " in job.log())
    job.ranks[1].kill()
    assert job.codes() == [1, -signal.SIGKILL]
    assert "Connection reset by peer" in job.log()
    again = start("--checkpoint-every=20")
    assert again.result() == undisturbed
    for rank in range(2):
        first, second = again.log(rank).splitlines()[:2]
        resumed = int(first.removeprefix("resumed from step "))
        assert resumed >= 40
        assert resumed % 20 == 0
        assert second.startswith(f"step: {resumed + 1} ")


def test_a_signal_to_one_rank_saves_once_at_the_end_of_a_step_and_training_goes_on(
    start: Callable[..., Job], undisturbed: dict[str, float], tmp_path: Path
) -> None:
    job = start("--checkpoint-every=1000", "--step-ms=5")
    job.wait_for(lambda: "step: 10 " in job.log(1))
    job.ranks[1].send_signal(signal.SIGUSR1)
    job.wait_for(lambda: "saved checkpoint step " in job.log())
    assert len(list((tmp_path / "checkpoints").glob("step-*.npz"))) == 1
    assert job.result() == undisturbed
    saved = [line for line in job.log().splitlines() if line.startswith("saved checkpoint step ")]
    assert len(saved) == 2  # that one, and the one at the end
    assert saved[-1] == f"saved checkpoint step {STEPS}"


def test_a_checkpoint_that_was_cut_off_is_not_loaded(start: Callable[..., Job], tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000100.partial").write_bytes(b"PK\x03\x04 cut off")
    job = start()
    job.result()
    assert "resumed" not in job.log()


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_a_rank_that_hangs_keeps_its_peer_waiting_until_the_collective_times_out(
    start: Callable[..., Job], tmp_path: Path, how: str
) -> None:
    control = tmp_path / "control"
    control.write_text(f"1 hang {how}")
    job = start(f"--control={control}", "--collective-timeout=5")
    assert job.ranks[0].wait(timeout=180) == 1
    assert "collective operation timeout: no data from rank 1" in job.log(0)
    assert job.ranks[1].poll() is None
    assert not control.exists()  # taken once: a second start is not hit again


def test_a_slow_rank_raises_the_hardware_share_of_all(start: Callable[..., Job], tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.write_text("1 slow 20")
    job = start(f"--control={control}", "--step-ms=4", "--steps=20")
    assert job.codes() == [0, 0]
    for rank in range(2):
        words = [line.split() for line in job.log(rank).splitlines() if line.startswith("this iteration")]
        assert max(float(line[5]) / float(line[10]) for line in words) > 0.66
