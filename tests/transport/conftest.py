"""A disk that is full, and agents that do not wait."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.transport import client
from tests.gate.rights import needs_root


@pytest.fixture
@needs_root
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> None:
    with open(place / "other", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass
        try:
            while True:
                file.write(b"x")
        except OSError:
            pass


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that come back soon."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(client, "MAX_PAUSE_S", 0.2)
