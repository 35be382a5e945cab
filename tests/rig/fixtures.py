"""What any test may ask for of the test cluster; `tests/conftest.py` names this file as a plugin."""

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane
    from tests.rig.operators.jobset import JobSet
    from tests.rig.operators.training_operator import TrainingOperator

# Fixture -> name of the operator that it starts. Tests that start others say so: `@pytest.mark.operators("kueue")`.
OPERATORS = {"jobset": "jobset", "training_operator": "training-operator"}
BROKEN = 70  # what pytest ends with where a control plane of many tests cannot be mended


class Shared(Protocol):
    """Something that many tests use one after the other, and any of them may break."""

    def mend(self) -> str: ...


S = TypeVar("S", bound=Shared)
_shared: list[Shared] = []


@contextlib.contextmanager
def shared(one: S) -> Iterator[S]:
    """Before each test it is mended where it is broken: one test must not turn hundreds red."""
    _shared.append(one)
    try:
        yield one
    finally:
        _shared.remove(one)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for one in _shared:
        try:
            told = one.mend()
        except Exception as error:  # noqa: BLE001  whatever it is, all other tests would fail of it
            pytest.exit(f"{type(one).__name__} is broken before {item.nodeid}: {error}", BROKEN)
        if told:
            item.warn(pytest.PytestWarning(f"{type(one).__name__} was broken and is mended:\n{told}"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    """One for all that the worker runs: use namespaces and names of your own, and leave it running."""
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("control-plane")) as rig, shared(ControlPlane(rig)) as made:
        yield made


@pytest.fixture(scope="session")
def jobset(control_plane: "ControlPlane") -> "JobSet":
    """JobSet's controller on the control plane of the run; leave it running."""
    from tests.rig.operators.jobset import JobSet

    return JobSet(control_plane)


@pytest.fixture(scope="session")
def training_operator(control_plane: "ControlPlane") -> "TrainingOperator":
    """The training-operator on the control plane of the run; leave it running."""
    from tests.rig.operators.training_operator import TrainingOperator

    return TrainingOperator(control_plane)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "operators(name, ...): operators that are built before the first test")


def asked_for(items: list[pytest.Item]) -> list[str]:
    """Names of the operators that these tests start, each once."""
    names: dict[str, None] = {}
    for item in items:
        marks = [name for mark in item.iter_markers("operators") for name in mark.args]
        fixtures = [OPERATORS[name] for name in getattr(item, "fixturenames", ()) if name in OPERATORS]
        names.update(dict.fromkeys([*fixtures, *marks]))
    return list(names)


def pytest_sessionstart(session: pytest.Session) -> None:
    """With `-n` workers collect, each all tests: what the fixtures start is built before there are any."""
    if session.config.getoption("dist", "no") != "no" and not session.config.option.collectonly:
        build(session.config, list(OPERATORS.values()))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Minutes of building fit into no test's time, so it comes before all of them."""
    if not session.config.option.collectonly and not hasattr(session.config, "workerinput"):
        build(session.config, asked_for(session.items))


def build(config: pytest.Config, names: list[str]) -> None:
    if not names:
        return
    from tests.rig.operators.__main__ import main

    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        if main(names):
            pytest.exit("operators could not be built", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the ends of the logs of the rigs that it used."""
    report = yield
    if report.failed:
        used = getattr(item, "funcargs", {}).values()
        for rig in {each.rig: None for each in used if getattr(each, "rig", None)}:
            report.sections.append((f"logs of {rig.folder}", rig.story()))
    return report
