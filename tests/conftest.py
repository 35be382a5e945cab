"""What every test shares: an environment that neither leaks into the person's own Sentinel nor obeys it."""

import os
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
LONG = {"chaos", "kubernetes", "rig"}
pytest_plugins = ["tests.gate.rights", "tests.gate.left", "tests.rig.fixtures"]
REPO = Path(__file__).parent.parent
# Of a machine that does much else meanwhile no time tells anything. The gate tries the same examples each time, `make
# explore` new ones: what it finds becomes a fixed case.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("gate", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
# What runs in the background of a script ignores SIGINT, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
for usual in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(usual) is signal.SIG_IGN:
        signal.signal(usual, signal.SIG_DFL)
# Some tests hold both ends of hundreds of connections, and a user's usual limit is 1024.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
many = 20_000 if hard == resource.RLIM_INFINITY else min(hard, 20_000)
if 0 <= soft < many:
    resource.setrlimit(resource.RLIMIT_NOFILE, (many, hard))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: with several workers none is left alone with one in the end."""
    items.sort(key=lambda item: LONG.isdisjoint(item.path.parent.relative_to(REPO).parts))


@pytest.fixture
def repo() -> Path:
    """The root of the source tree."""
    return REPO


@pytest.fixture(autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a state directory of its own and none of the person's SENTINEL_* and rank variables."""
    for name in list(os.environ):
        if name.startswith(("SENTINEL_", "PYTEST_")) or name in RANK_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_STATE_DIR", str(tmp_path_factory.mktemp("state")))
