"""A container that sees the processes of its node, and may not look at the node's files."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sentinel import rights
from sentinel.checks.proc_scan import INIT_PID_NAMESPACE

OVERLAY, DISK = "0:45", "254:1"
MOUNT = "22 1 {} / / rw,relatime - ext4 /dev/vda rw\n"
# Runs as nobody where this is root, who may look everywhere.
SCRIPT = """
import os, sys
from importlib import import_module
from sentinel.checks.base import Kept, Look, Unknown
from sentinel.checks.node_root import node_root
from sentinel.checks.table import CHECKS
from sentinel.core.now import Now
from sentinel.settings import Settings
name, sysfs, procfs = sys.argv[1:]
check = import_module(next(row.module for row in CHECKS if row.name == name)).check
if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)
try:
    settings = Settings(sysfs=sysfs, procfs=procfs, state_dir="/nonexistent")
    found = check(Look(settings, (), Now(9e5, 9e5), "boot", Kept(), root=node_root(procfs)))
    print("saw", [one.code for one in found])
except Unknown as unknown:
    print(unknown, [one.code for one in unknown.findings])
"""


class Container:
    """A tree of /proc in which the root of process 1 is closed, and a node with a GPU and its driver."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        for process in ("1", "self"):
            (self.proc / process).mkdir(parents=True)
        closed = folder / "closed"
        closed.mkdir(mode=0o700)
        (self.proc / "1/root").symlink_to(closed / "root")
        (self.proc / "self/root").symlink_to(folder)
        self.roots(DISK, OVERLAY)
        (self.proc / "uptime").write_text("90000.0 1.0\n")
        (self.proc / "modules").write_text("nvidia 1 0 - Live 0x0\n")
        (self.proc / "driver/nvidia").mkdir(parents=True)
        version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n"
        (self.proc / "driver/nvidia/version").write_text(version)
        gpu = self.sys / "bus/pci/devices/0000:18:00.0"
        gpu.mkdir(parents=True)
        for name, text in {"vendor": "0x10de", "class": "0x030200", "device": "0x2330"}.items():
            (gpu / name).write_text(text)

    def roots(self, node: str, own: str) -> None:
        (self.proc / "1/mountinfo").write_text(MOUNT.format(node))
        (self.proc / "self/mountinfo").write_text(MOUNT.format(own))

    def says(self, name: str, **env: str) -> str:
        command = [sys.executable, "-c", SCRIPT, name, str(self.sys), str(self.proc)]
        env = {**os.environ, "NODE_NAME": "gpu-17", **env}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def container() -> Iterator[Container]:
    with TemporaryDirectory() as folder:  # of pytest's folders only the owner sees anything
        Path(folder).chmod(0o755)
        yield Container(Path(folder))


@pytest.mark.root  # whoever made the folder may look into it
@pytest.mark.parametrize("name", ["disk", "reboot", "modules"])
def test_what_is_only_seen_in_the_nodes_files_is_unknown_and_not_taken_from_our_own(
    container: Container, name: str
) -> None:
    said = container.says(name)
    assert said.startswith("the node's files are not seen: that needs CAP_SYS_PTRACE")
    assert said.endswith(" []\n"), "no read-only root, no missing library"


@pytest.mark.root
@pytest.mark.parametrize("name", ["disk", "reboot", "modules"])
def test_an_ordinary_user_of_the_node_looks_at_it_by_its_own_paths(container: Container, name: str) -> None:
    container.roots(DISK, DISK)
    assert container.says(name).startswith("saw")


@pytest.mark.root
@pytest.mark.parametrize("name", ["disk", "reboot", "modules"])
def test_a_job_in_a_container_with_the_processes_of_its_machine_looks_at_what_it_has(
    container: Container, name: str
) -> None:
    """Apptainer and enroot have no process namespace of their own: $NODE_NAME tells a pod of the agent."""
    (container.proc / "self/ns").mkdir()
    (container.proc / "self/ns/pid").symlink_to(INIT_PID_NAMESPACE)
    assert container.says(name).startswith("the node's files are not seen")
    assert container.says(name, NODE_NAME="").startswith("saw")


def test_what_we_lack_is_read_of_our_capabilities_and_devices(tmp_path: Path) -> None:
    def lacks(capabilities: int) -> list[str]:
        (tmp_path / "self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
        return [right.name for right in rights.missing(str(tmp_path))]

    (tmp_path / "self/root/dev").mkdir(parents=True)
    every = (1 << 41) - 1
    assert lacks(every) == ["`privileged`"]
    (tmp_path / "self/root/dev/kmsg").touch()
    assert lacks(every) == []
    assert lacks(every ^ 1 << rights.KILL) == ["`KILL`"]
    assert lacks(every ^ 1 << rights.SETGID) == ["`SETUID`, `SETGID`"]
    assert lacks(0) == [right.name for right in rights.RIGHTS if right.capabilities]


def test_the_rights_name_checks_that_there_are() -> None:
    table: Any = import_module("sentinel.checks.table")
    known = {row.name for row in table.CHECKS}
    others = {
        "disk.probeWrites",
        "privileged",
        "selfFence",
        "agent.runtimeClassName: nvidia",
        "hostPID",
        "hostNetwork",
    }
    others |= {word for row in rights.RIGHTS for word in row.name.replace(",", "").replace("`", "").split()}
    for row in (*rights.RIGHTS, *rights.OF_THE_POD):
        named = set(f"{row.name} {row.needed} {row.without}".split("`")[1::2])
        assert named <= known | others, row.name
