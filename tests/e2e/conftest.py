"""One box for each test: nothing of it is left when the test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    found = Box(tmp_path / "box")
    yield found
    found.close()
