"""Disk and memory: real small file systems that fill, run out of inodes and turn read-only in a mount namespace."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks import disk, memory
from sentinel.checks.base import Look, Unknown
from sentinel.checks.memory import parse_meminfo, parse_pressure
from sentinel.core.model import Severity
from sentinel.settings import DiskThresholds, Settings

# Runs in a mount namespace: takes the steps on a fresh tmpfs and prints what the check finds after each.
SCRIPT = """
import json, os, subprocess, sys
from sentinel.checks import disk
from sentinel.checks.base import Look, Unknown
from sentinel.core.model import Now
from sentinel.settings import DiskThresholds, Settings
target, steps, kept = sys.argv[1], json.loads(sys.argv[2]), {}
disk.ALWAYS_WATCHED = ()
for step in steps:
    subprocess.run(step, shell=True, check=True, cwd=target)
    try:
        found = disk.check(Look(Settings(), (target,), Now(1.0, 1.0), "boot", kept))
        print(json.dumps(sorted([item.code, item.severity] for item in found)), flush=True)
    except Unknown as error:
        print(json.dumps("unknown: " + str(error)), flush=True)
"""


def after_each(steps: list[str], folder: Path, options: str = "size=4m") -> list[Any]:
    """What the disk check finds on a tmpfs after each of the shell commands."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"'
    command = ["unshare", "--mount", *user, "sh", "-c", mount, str(folder), sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        [*command, str(folder), json.dumps(steps)], stdout=subprocess.PIPE, check=True, timeout=60
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_disk_that_fills_warns_then_is_degraded_and_clears_when_freed(tmp_path: Path) -> None:
    fill = "head -c {} /dev/zero > {}"
    assert after_each(
        ["true", fill.format(3_900_000, "a"), fill.format(300_000, "b") + " || true", "rm a b"], tmp_path
    ) == [
        [],
        [["disk-space", "warning"]],
        [["disk-space", "degraded"]],
        [],
    ]


def test_a_disk_without_inodes_is_degraded(tmp_path: Path) -> None:
    steps = [
        "true",
        "for i in $(seq 92); do : > f$i; done",
        "touch $(seq -f g%g 200) 2>/dev/null || true",
        "rm f* g*",
    ]
    assert after_each(steps, tmp_path, "size=4m,nr_inodes=100") == [
        [],
        [["disk-inodes", "warning"]],
        [["disk-inodes", "degraded"]],
        [],
    ]


def test_a_disk_that_turns_read_only_is_degraded_until_it_takes_writes_again(tmp_path: Path) -> None:
    steps = ["true", 'mount -o remount,ro "$PWD"', 'mount -o remount,rw "$PWD"']
    assert after_each(steps, tmp_path) == [[], [["disk-read-only", "degraded"]], []]


def test_a_file_system_that_never_took_writes_only_warns(tmp_path: Path) -> None:
    assert after_each(['mount -o remount,ro "$PWD"'], tmp_path) == [[["disk-read-only", "warning"]]]


def test_a_file_system_is_named_once_however_many_of_its_paths_are_watched(
    tmp_path: Path, clock: Any
) -> None:
    never_enough = DiskThresholds(warn_free_share=2.0)
    (tmp_path / "a").mkdir()
    paths = (str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "not-yet"))
    found = disk.check(Look(Settings(disk=never_enough), paths, clock(), "boot", {}))
    keys = [finding.key for finding in found]
    assert len(keys) == len(set(keys))
    assert all(os.path.ismount(finding.entity) for finding in found)


def test_a_path_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path, clock: Any) -> None:
    path = str(tmp_path / "not" / "yet")
    disk.check(Look(Settings(), (path,), clock(), "boot", {}))


MEMINFO = "MemTotal:       1000000 kB\nMemFree:          10000 kB\nMemAvailable:   {} kB\nHugePages_Total:       0\n"


@pytest.mark.parametrize(
    ("available_kib", "severity"), [(500_000, None), (40_000, Severity.WARNING), (5_000, Severity.DEGRADED)]
)
def test_memory_that_runs_out_is_found(
    tmp_path: Path, clock: Any, available_kib: int, severity: Severity | None
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.format(available_kib))
    found = memory.check(Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", {}))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_pressure_is_found_and_a_kernel_without_it_is_fine(tmp_path: Path, clock: Any) -> None:
    look = Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", {})
    (tmp_path / "meminfo").write_text(MEMINFO.format(500_000))
    assert memory.check(look) == []
    (tmp_path / "pressure").mkdir()
    pressure = (
        "some avg10=90.00 avg60=80.00 avg300=10.00 total=1\nfull avg10=50.00 avg60={} avg300=5.00 total=1\n"
    )
    (tmp_path / "pressure/memory").write_text(pressure.format("35.50"))
    assert [finding.code for finding in memory.check(look)] == ["memory-pressure"]
    (tmp_path / "pressure/memory").write_text(pressure.format("0.50"))
    assert memory.check(look) == []


def test_this_machines_own_files_are_read() -> None:
    assert parse_meminfo(Path("/proc/meminfo").read_text())["MemTotal"] > 0
    assert parse_pressure("nonsense") is None


def test_unreadable_memory_is_unknown(tmp_path: Path, clock: Any) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: many\n")
    with pytest.raises(Unknown):
        memory.check(Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", {}))
