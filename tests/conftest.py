"""What every test shares: an environment that neither leaks into the person's own Sentinel nor obeys it."""

import os
from pathlib import Path

import pytest

RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
pytest_plugins = ["tests.rig.fixtures"]
REPO = Path(__file__).parent.parent


@pytest.fixture
def repo() -> Path:
    """The root of the source tree."""
    return REPO


@pytest.fixture(autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a state directory of its own and none of the person's SENTINEL_* and rank variables."""
    for name in list(os.environ):
        if name.startswith("SENTINEL_") or name in RANK_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_STATE_DIR", str(tmp_path_factory.mktemp("state")))
