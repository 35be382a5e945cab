"""A pytest plugin: tests that need root are left out where an ordinary user runs the others, and two lines say so.

They have the mark `root`, or ask for a fixture that `needs_root`. As root, and for the gate, nothing is left out.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

NOTE = "left_out"  # of what a worker is told: the file into which it writes its number
# For unshare(1): who mounts in namespaces of his own needs no root.
TO_MOUNT = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
F = TypeVar("F", bound=Callable[..., object])


def needs_root(fixture: F) -> F:
    """Below `@pytest.fixture`: whoever asks for it, by way of others too, needs root."""
    fixture.__dict__["needs_root"] = True
    return fixture


def is_for_root(item: pytest.Item) -> bool:
    if item.get_closest_marker("root"):
        return True
    known = getattr(
        item, "_fixtureinfo", None
    )  # only there is said which of several fixtures of one name it is
    return known is not None and any(
        hasattr(found[-1].func, "needs_root") for found in known.name2fixturedefs.values() if found
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "root: it mounts, uses cgroups or is another user; left out where an ordinary user runs the tests",
    )
    if os.geteuid() and not config.getoption("gate_report", None):
        config.pluginmanager.register(Ordinary(config))


class Ordinary:
    """The run of an ordinary user. With pytest-xdist the workers collect and their controller speaks."""

    def __init__(self, config: pytest.Config) -> None:
        self._worker: dict[str, Any] = getattr(config, "workerinput", {})
        self._plugins = config.pluginmanager
        self._notes = tempfile.TemporaryDirectory(prefix="left-out-")
        self._left_out = 0

    @pytest.hookimpl(trylast=True)  # of those that -k and -m leave
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if is_for_root(item)]
        if left_out:
            items[:] = [item for item in items if not is_for_root(item)]
            config.hook.pytest_deselected(items=left_out)
        self._left_out = len(left_out)
        if self._worker:
            Path(self._worker[NOTE]).write_text(str(self._left_out))

    def pytest_collection_finish(self) -> None:
        if not self._worker:
            self._tell()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[NOTE] = str(Path(self._notes.name, node.gateway.id))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if not self._left_out:  # the first one: all collect the same
            self._left_out = int(Path(node.workerinput[NOTE]).read_text())
            self._tell()

    def pytest_terminal_summary(self) -> None:
        self._tell()

    def pytest_unconfigure(self) -> None:
        self._notes.cleanup()

    def _tell(self) -> None:
        say: pytest.TerminalReporter | None = self._plugins.getplugin("terminalreporter")
        if self._left_out and say:
            what = (
                "1 test needs root and is"
                if self._left_out == 1
                else f"{self._left_out} tests need root and are"
            )
            say.write_line(f"\n{what} left out: `sudo make test` runs all")
