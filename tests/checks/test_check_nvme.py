"""NVMe drives and other block devices: a sysfs tree, and `nvme` and `smartctl` that print what they really printed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.disk import block, nvme
from sentinel.checks.disk.nvme import ToolFailed, parse_health
from sentinel.checks.table import select
from sentinel.core.health import Finding, Severity
from tests.checks.conftest import HandClock, Machine, no_more_descriptors

# Captured: `nvme smart-log -o json` of nvme-cli 1 (the test of a Prometheus exporter of its output; shortened).
NVME_CLI = {
    "critical_warning": 0,
    "temperature": 301,
    "avail_spare": 100,
    "spare_thresh": 5,
    "percent_used": 15,
    "data_units_written": 1474968593,
    "power_on_hours": 38313,
    "media_errors": 0,
    "num_err_log_entries": 17,
}
# Captured: `smartctl -x -j` 7.0 of a Samsung 970 EVO with bad blocks (AnalogJ/scrutiny, smart-nvme-failed.json).
SMARTCTL = {
    "smartctl": {"version": [7, 0], "exit_status": 0},
    "device": {"name": "/dev/nvme0", "type": "nvme", "protocol": "NVMe"},
    "smart_status": {"passed": True, "nvme": {"value": 0}},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "temperature": 35,
        "available_spare": 99,
        "available_spare_threshold": 10,
        "percentage_used": 3,
        "media_errors": 7,
        "num_err_log_entries": 62,
        "temperature_sensors": [35, 39],
    },
}
# Captured: smartctl 7.5 without privileges.
REFUSED = {
    "smartctl": {
        "version": [7, 5],
        "messages": [
            {"string": "Smartctl open device: /dev/nvme0n1 failed: Permission denied", "severity": "error"}
        ],
        "exit_status": 2,
    }
}


class Node:
    """NVMe drives of a machine, the programs that it has, and samples of both checks."""

    def __init__(self, machine: Machine, clock: HandClock, programs: Path) -> None:
        self.machine, self.clock, self.programs = machine, clock, programs
        self.kept = Kept()
        (machine.sysfs / "block").mkdir()

    def add(self, name: str = "nvme0", transport: str = "pcie") -> Path:
        folder = self.machine.sysfs / "class/nvme" / name
        folder.mkdir(parents=True)
        for key, value in (("transport", transport), ("serial", f"S-{name}"), ("state", "live")):
            (folder / key).write_text(value + "\n")
        return folder

    def tool(self, name: str, printed: object, script: str = "") -> None:
        (self.programs / f"{name}.out").write_text(json.dumps(printed))
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\ncat {path}.out\n")
        path.chmod(0o755)

    def health(self, **values: Any) -> None:
        self.tool("nvme", NVME_CLI | values)

    def look(self, check: Callable[[Look], list[Finding]]) -> list[tuple[str, str, str]]:
        self.clock.mono_s += 600.0
        found = check(Look(self.machine.settings, (), self.clock(), "boot", self.kept))
        return [(item.entity, item.code, item.severity.value) for item in found]


@pytest.fixture
def node(machine: Machine, clock: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return Node(machine, clock, programs)


# ---------------------------------------------------------------- wear


def test_wear_warns_and_then_asks_for_a_new_drive_until_there_is_one(node: Node) -> None:
    node.add()
    for used, expected in [(80, []), (81, ["warning"]), (99, ["warning"]), (100, ["degraded"]), (0, [])]:
        node.health(percent_used=used)
        assert node.look(nvme.check) == [("nvme0", "nvme-wear", severity) for severity in expected]


def test_spare_blocks_under_the_drives_own_threshold_are_found(node: Node) -> None:
    node.add()
    node.health(avail_spare=5)
    assert node.look(nvme.check) == []
    node.health(avail_spare=4)
    assert node.look(nvme.check) == [("nvme0", "nvme-spare", "degraded")]
    node.health(critical_warning=1)
    assert node.look(nvme.check) == [("nvme0", "nvme-spare", "degraded")]
    node.health()
    assert node.look(nvme.check) == []


@pytest.mark.parametrize(
    ("flags", "code", "severity"),
    [
        (0x02, "nvme-temperature", "warning"),
        (0x04, "nvme-unreliable", "degraded"),
        (0x08, "nvme-read-only", "degraded"),
        (0x10, "nvme-backup", "warning"),
    ],
)
def test_what_the_drive_warns_of_is_found_until_it_takes_it_back(
    node: Node, flags: int, code: str, severity: str
) -> None:
    node.add()
    node.health(critical_warning={"value": flags})
    assert node.look(nvme.check) == [("nvme0", code, severity)]
    node.health()
    assert node.look(nvme.check) == []


def test_only_new_media_errors_count_and_a_count_that_falls_back_is_no_fault(node: Node) -> None:
    node.add()
    for count, more in [(7, 0), (7, 0), (9, 2), (9, 0), (0, 0), (3, 3)]:
        node.health(media_errors=count)
        found = nvme.check(Look(node.machine.settings, (), node.clock(), "boot", node.kept))
        assert [item.evidence for item in found] == (
            [(f"nvme0: {more} more media errors, {count} in all",)] if more else []
        )
        assert all(item.event and item.severity is Severity.WARNING for item in found)


def test_smartctl_tells_where_there_is_no_nvme_or_it_fails(node: Node) -> None:
    node.add()
    node.tool("smartctl", SMARTCTL)
    assert node.look(nvme.check) == []
    assert node.kept.saved == {"S-nvme0": 7}
    node.tool("nvme", "", "echo 'Permission denied' >&2; exit 1")
    assert node.look(nvme.check) == []
    measured = {measure.name: measure.value for measure in node.kept.measures}
    assert measured["smartctl_device_percentage_used"] == 3


def test_a_drive_that_may_not_be_asked_is_unknown_and_says_what_is_missing(node: Node) -> None:
    node.add("nvme0")
    node.add("nvme1")
    node.tool("smartctl", REFUSED)
    with pytest.raises(Unknown, match=r"nvme0, nvme1: smartctl: .*Permission denied") as unknown:
        node.look(nvme.check)
    assert "needs root, CAP_SYS_ADMIN and /dev/nvme*: a privileged container" in str(unknown.value)
    node.tool("smartctl", "garbled")
    with pytest.raises(Unknown, match="no health log was printed"):
        node.look(nvme.check)


def test_a_drive_that_does_not_answer_is_a_finding_and_the_others_are_looked_at(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvme, "COMMAND_S", 0.3)
    node.add("nvme0")
    node.add("nvme1")
    node.tool("nvme", NVME_CLI | {"percent_used": 90}, 'case "$*" in *nvme0) sleep 60;; esac')
    assert node.look(nvme.check) == [("nvme0", "nvme-hangs", "warning"), ("nvme1", "nvme-wear", "warning")]
    node.health()
    assert node.look(nvme.check) == []


def test_drives_of_file_servers_are_not_this_machines(node: Node) -> None:
    with pytest.raises(Absent):
        node.look(nvme.check)
    node.add("nvme0", transport="tcp")
    with pytest.raises(Absent):
        node.look(nvme.check)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"nvme_smart_health_information_log": 3}', b"\xff{"])
def test_what_is_no_health_log_is_refused(text: bytes) -> None:
    with pytest.raises(ToolFailed):
        parse_health(text)


def test_large_counts_may_be_written_as_text() -> None:
    assert parse_health(b'{"percent_used": 1, "media_errors": "1,234"}').media_errors == 1234


def test_a_start_does_not_wait_for_the_health_logs_of_drives() -> None:
    assert "nvme" not in [row.name for row in select(("disk",))]
    assert "nvme" in [row.name for row in select(("nvme",))]


# ---------------------------------------------------------------- block devices


def scsi(node: Node, errors: str, name: str = "sda") -> None:
    folder = node.machine.sysfs / "block" / name / "device"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ioerr_cnt").write_text(errors)


def test_only_new_errors_of_a_disk_count(node: Node) -> None:
    for errors, found in [
        ("0x9\n", 0),
        ("0x9\n", 0),
        ("0xc\n", 3),
        ("0xc\n", 0),
        ("0x1\n", 0),  # the driver was loaded anew
        ("0x2\n", 1),
        ("", 0),
        ("0x5\n", 0),  # the first count after one that could not be read
    ]:
        scsi(node, errors)
        node.clock.mono_s += 30.0
        told = block.check(Look(node.machine.settings, (), node.clock(), "boot", node.kept))
        assert [(item.code, item.count, item.event) for item in told] == (
            [("disk-io-errors", found, True)] if found else []
        )


def test_a_controller_that_died_is_found_until_it_lives(node: Node) -> None:
    state = node.add() / "state"
    assert node.look(block.check) == []
    state.write_text("dead\n")
    assert node.look(block.check) == [("nvme0", "nvme-state", "degraded")]
    state.write_text("live\n")
    assert node.look(block.check) == []


def test_a_reset_is_no_fault_unless_it_does_not_end(node: Node) -> None:
    state = node.add() / "state"
    state.write_text("resetting\n")
    assert [node.look(block.check) for _ in range(3)] == [[], [], [("nvme0", "nvme-state", "degraded")]]
    state.write_text("live\n")
    assert node.look(block.check) == []


def test_a_drive_that_has_gone_is_told_once(node: Node) -> None:
    node.add("nvme0")
    folder = node.add("nvme1")
    assert node.look(block.check) == []
    folder.rename(node.machine.folder / "gone")
    assert node.look(block.check) == [("nvme1", "nvme-gone", "degraded")]
    assert node.look(block.check) == []


def test_a_volume_of_a_cloud_that_is_taken_away_is_no_drive_that_failed(node: Node) -> None:
    node.add("nvme0")
    (node.add("nvme1") / "model").write_text("Amazon Elastic Block Store              \n")
    assert node.look(block.check) == []
    (node.machine.sysfs / "class/nvme/nvme1").rename(node.machine.folder / "detached")
    assert node.look(block.check) == []


def test_that_no_folder_can_be_listed_takes_no_drive_away(node: Node) -> None:
    node.add("nvme0")
    assert node.look(block.check) == []
    with no_more_descriptors(), pytest.raises(Unknown, match="Too many open files"):
        node.look(block.check)
    assert node.look(block.check) == []


@pytest.mark.parametrize(
    ("state", "missing", "severity"), [("active", "1", "warning"), ("broken", "2", "degraded")]
)
def test_an_array_that_lost_members_is_found_until_it_is_whole(
    node: Node, state: str, missing: str, severity: str
) -> None:
    folder = node.machine.sysfs / "block/md0/md"
    folder.mkdir(parents=True)
    (folder / "array_state").write_text(state + "\n")
    (folder / "degraded").write_text(missing + "\n")
    assert node.look(block.check) == [("md0", "raid-degraded", severity)]
    (folder / "array_state").write_text("clean\n")
    (folder / "degraded").write_text("0\n")
    assert node.look(block.check) == []


def test_a_machine_without_block_devices_has_none_to_look_at(node: Node) -> None:
    with pytest.raises(Absent):
        node.look(block.check)
