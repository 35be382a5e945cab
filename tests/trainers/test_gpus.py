"""Faults of a training that computes on GPUs over NCCL. One GPU is enough: its ranks share it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.box import Box
from tests.trainers.table import GPU_FAULTS, Keep, Trial, judge

pytestmark = pytest.mark.timeout(900)
LAUNCHERS = ("none", "torchrun", "accelerate", "mp.spawn")
CASES = [(launcher, fault) for fault in GPU_FAULTS for launcher in LAUNCHERS]


@pytest.fixture(scope="session")
def card() -> dict[str, str]:
    """The model of the GPUs -> version of their driver."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split(", ") for line in lines)


@pytest.fixture
def keep(keep: Keep, versions: dict[str, str], card: dict[str, str]) -> Keep:
    def write(kind: str, **row: Any) -> None:
        drivers = {f"{name} with driver": version for name, version in card.items()}
        keep(kind, **row, versions=versions | drivers)

    return write


@pytest.mark.parametrize(("launcher", "fault"), CASES)
def test_a_broken_training_on_a_gpu_goes_on_and_its_fault_is_told(
    box: Box, venv: Path, keep: Keep, launcher: str, fault: str
) -> None:
    # The watchdog ends its process a minute after it has told of the timeout.
    hang_s = 180 if fault == "watchdog" else 10
    judge(box, venv / "bin/python", Trial(launcher, fault, hang_s=hang_s, gpus=True), keep=keep)
