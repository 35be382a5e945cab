"""A pytest plugin: what one go of the gate found, as a file, and which tests it shows to be unsteady.

pytest -p tests.gate.report --gate-report=NEW.json [--gate-earlier=FIRST.json ...]
"""

import json
import os
from pathlib import Path
from typing import TypedDict

import pytest

MOST_FAILURES = 15  # more than these are no accident: nothing runs again
STEPS = ("setup", "call", "teardown")


class Seen(TypedDict):
    """One test. `failure` is what pytest showed of it, null where it passed."""

    duration_s: float
    failure: str | None


class Report(TypedDict):
    """`exit_status` is pytest's; `broken` names what is no failed test: errors at collection, workers that died."""

    exit_status: int
    broken: list[str]
    tests: dict[str, Seen]


class Unsteady(TypedDict):
    """A test that failed and then passed by itself, with nothing changed. Durations in the order of the goes."""

    test: str
    first_failure: str
    durations_s: list[float]


def read(path: Path) -> Report:
    report: Report = json.loads(path.read_text())
    return report


def failed(report: Report) -> list[str]:
    return [name for name, seen in report["tests"].items() if seen["failure"] is not None]


def verdict(report: Report) -> str | None:
    """Why nothing of this go runs again, or None where its failed tests do."""
    if report["broken"]:
        return f"broken, not just failed: {', '.join(report['broken'])}"
    if report["exit_status"] != pytest.ExitCode.TESTS_FAILED:
        return f"pytest ended with {report['exit_status']}"
    if (many := len(failed(report))) > MOST_FAILURES:
        return f"{many} tests failed, more than {MOST_FAILURES}"
    return None


def unsteady(goes: list[Report]) -> list[Unsteady]:
    """Of the tests that failed in the first go those that passed in a later one."""
    found: list[Unsteady] = []
    for name in failed(goes[0]):
        seen = [go["tests"][name] for go in goes if name in go["tests"]]
        if any(one["failure"] is None for one in seen):
            found.append(
                {
                    "test": name,
                    "first_failure": seen[0]["failure"] or "",
                    "durations_s": [one["duration_s"] for one in seen],
                }
            )
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate-report", type=Path, help="where this go's report is written")
    parser.addoption(
        "--gate-earlier", type=Path, action="append", default=[], help="a report of an earlier go"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("gate_report") and not hasattr(config, "workerinput"):
        earlier = [read(path) for path in config.getoption("gate_earlier")]
        config.pluginmanager.register(Go(config, earlier))


class Go:
    """Listens to one go, with all its workers."""

    def __init__(self, config: pytest.Config, earlier: list[Report]) -> None:
        self._path: Path = config.getoption("gate_report")
        self._plugins, self._earlier = config.pluginmanager, earlier
        self._report: Report = {"exit_status": 0, "broken": [], "tests": {}}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report["broken"].append(f"collecting {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in STEPS:  # said by pytest-xdist of the test that a worker died in
            self._report["broken"].append(f"the worker of {report.nodeid}")
        seen = self._report["tests"].setdefault(report.nodeid, {"duration_s": 0.0, "failure": None})
        seen["duration_s"] = round(seen["duration_s"] + report.duration, 2)
        if report.failed and seen["failure"] is None:
            seen["failure"] = report.longreprtext
            say: pytest.TerminalReporter = self._plugins.getplugin("terminalreporter")
            say.ensure_newline()  # now: the summary comes half an hour later
            say.line(f"failed: {report.when} of {report.nodeid}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        self._report["exit_status"] = int(exitstatus)
        say = terminalreporter
        for one in unsteady([*self._earlier, self._report]) if self._earlier else ():
            say.section("UNSTEADY")
            took = ", then ".join(f"{took:.2f} s" for took in one["durations_s"])
            say.line(f"{one['test']} failed and then passed; it took {took}. Its first failure:")
            say.line(one["first_failure"])
        if exitstatus and not self._earlier:
            say.section("gate")
            why = verdict(self._report)
            say.line(f"Red: {why}." if why else "What failed runs again, alone.")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._report["exit_status"] = int(exitstatus)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._report, indent=1))
        os.replace(new, self._path)
