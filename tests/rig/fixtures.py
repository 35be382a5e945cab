"""What any test may ask for of the test cluster; `tests/conftest.py` names this file as a plugin."""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    """One for all tests of the run: use namespaces and names of your own, and leave it running."""
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("control-plane")) as rig:
        yield ControlPlane(rig)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the ends of the logs of the rigs that it used."""
    report = yield
    if report.failed:
        for used in getattr(item, "funcargs", {}).values():
            if rig := getattr(used, "rig", None):
                report.sections.append((f"logs of {rig.folder}", rig.story()))
    return report
