"""`box`: a Sentinel of its own, whose ranks run under a Python that has PyTorch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import Box


@pytest.fixture
def box(tmp_path: Path, repo: Path) -> Iterator[Box]:
    made = Box(tmp_path / "box")
    made.env["PYTHONPATH"] = str(repo)
    try:
        yield made
    finally:
        made.close()
