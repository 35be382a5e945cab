"""`box`: that of the end-to-end tests, whose programs import Sentinel under whatever Python they run."""

from pathlib import Path

import pytest

from tests.e2e.box import Box
from tests.e2e.conftest import box as plain_box
from tests.trainers.table import small_group

__all__ = ["box", "plain_box", "small_group"]


@pytest.fixture
def box(plain_box: Box, repo: Path) -> Box:
    plain_box.env["PYTHONPATH"] = str(repo)
    return plain_box
