"""Real trainers, which `make test` leaves out: their packages take gigabytes. `make test-trainers`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import box, plain_box
from tests.trainers.report import ROWS
from tests.trainers.slurm import slurm
from tests.trainers.table import Keep, small_group

__all__ = ["box", "plain_box", "slurm", "small_group"]
collect_ignore = [] if Path("/dev/nvidiactl").exists() else ["test_gpus.py"]
TOLD = ("torch", "nvidia-nccl-cu13", "transformers", "accelerate", "lightning", "deepspeed")
VERSIONS = f"""
import json
from importlib.metadata import distributions
found = {{one.name: one.version for one in distributions()}}
print(json.dumps({{name: found[name] for name in {TOLD} if name in found}}))
"""


@pytest.fixture(scope="session")
def venv() -> Path:
    """The environment with torch and the launchers: `make test-trainers` names it."""
    found = Path(os.environ.get("TRAINERS_VENV", "build/trainers")).absolute()
    assert (found / "bin/torchrun").exists(), f"no torchrun in {found}: make test-trainers makes it"
    return found


@pytest.fixture(scope="session")
def versions(venv: Path) -> dict[str, str]:
    done = subprocess.run([venv / "bin/python", "-c", VERSIONS], capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def keep(request: pytest.FixtureRequest, versions: dict[str, str]) -> Keep:
    """Writes one row of the page: its kind, and what its table needs (report.py)."""

    def write(kind: str, **row: Any) -> None:
        ROWS.mkdir(parents=True, exist_ok=True)
        name = request.node.name.replace("/", "-")
        (ROWS / f"{kind}-{name}.json").write_text(
            json.dumps({"kind": kind, "versions": versions} | row, indent=1)
        )

    return write
