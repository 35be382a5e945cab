"""Programs that hold a GPU or an RDMA device with a bad environment or limit."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.host import environment
from sentinel.checks.host.environment import BAD_VARIABLES, bad_variables, locked_limit
from sentinel.core.health import Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings

# As /proc/PID/limits prints it.
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         {:<20} {:<20} bytes     \n"
)
ROOT = "CapEff:\t000001ffffffffff\n"
USER = "CapEff:\t0000000000000000\n"


class Node:
    def __init__(self, folder: Path, machine: Any) -> None:
        self.procfs = folder / "proc"
        self.procfs.mkdir()
        self.machine = machine
        machine.add_pci("0000:18:00.0")

    def run(
        self,
        pid: int,
        *devices: str,
        environ: dict[str, str] | None = None,
        locked: str = "unlimited",
        status: str = USER,
        name: str = "python3",
    ) -> None:
        folder = self.procfs / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        for number, device in enumerate(("/dev/null", "socket:[123]", *devices)):
            (folder / f"fd/{number}").unlink(missing_ok=True)
            (folder / f"fd/{number}").symlink_to(device)
        (folder / "comm").write_text(name + "\n")
        lines = [f"{key}={value}".encode() + b"\0" for key, value in (environ or {"PATH": "/bin"}).items()]
        (folder / "environ").write_bytes(b"".join(lines))
        (folder / "limits").write_text(LIMITS.format(locked, locked))
        (folder / "status").write_text(status)

    def check(self) -> list[Finding]:
        self.kept = Kept()
        settings = Settings(procfs=str(self.procfs), sysfs=str(self.machine.sysfs))
        return environment.check(Look(settings, (), Now(1.0, 1.0), "boot", self.kept))


@pytest.fixture
def node(tmp_path: Path, machine: Any) -> Node:
    return Node(tmp_path, machine)


@pytest.mark.parametrize("variable", sorted(BAD_VARIABLES))
def test_a_bad_variable_of_a_program_that_holds_a_gpu_warns_until_it_is_gone(
    node: Node, variable: str
) -> None:
    node.run(70, "/dev/nvidia0", environ={"HOME": "/root", variable: "1"})
    (finding,) = node.check()
    assert finding.severity is Severity.WARNING
    assert finding.pid == 70
    assert variable in finding.summary
    node.run(70, "/dev/nvidia0")
    assert node.check() == []


def test_ranks_of_one_program_are_one_finding(node: Node) -> None:
    for pid in range(100, 116):
        node.run(pid, "/dev/nvidiactl", environ={"CUDA_LAUNCH_BLOCKING": "1"})
    (finding,) = node.check()
    assert finding.evidence == ("pid 100, 101, 102, 103, 104, 105, 106, 107 and 8 more",)
    assert "16 programs" in node.kept.detail


def test_a_program_without_a_gpu_may_set_what_it_likes(node: Node) -> None:
    node.run(70, "/dev/shm/x", environ={"CUDA_LAUNCH_BLOCKING": "1"})
    assert node.check() == []


def test_a_variable_that_is_switched_off_is_fine() -> None:
    assert bad_variables(b"CUDA_LAUNCH_BLOCKING=0\0CUDA_PROFILE=\0\0nonsense\0CUDA_VISIBLE_DEVICES=0\0") == ()
    assert bad_variables(b"CUDA_PROFILE=1\0COMPUTE_PROFILE=a=b\0") == ("COMPUTE_PROFILE", "CUDA_PROFILE")


def test_an_rdma_program_that_may_lock_little_memory_warns_until_the_limit_is_raised(node: Node) -> None:
    node.run(70, "/dev/infiniband/uverbs0", locked="8388608")
    (finding,) = node.check()
    assert (finding.code, finding.severity, finding.pid) == ("memlock", Severity.WARNING, 70)
    assert "8192 KiB" in finding.evidence[0]
    node.run(70, "/dev/infiniband/uverbs0")
    assert node.check() == []


def test_root_may_lock_what_it_wants() -> None:
    assert locked_limit(LIMITS.format(65536, 65536), ROOT) is None
    assert locked_limit(LIMITS.format(65536, 65536), USER) == 65536


def test_real_files_of_a_process_are_read() -> None:
    command = ["sh", "-c", 'ulimit -l 64 && exec "$@"', "sh", sys.executable, "-c", "print(); input()"]
    environ = {**os.environ, "CUDA_DEVICE_WAITS_ON_EXCEPTION": "1", "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    assert child.stdout
    child.stdout.readline()  # it has started its program
    folder = Path(f"/proc/{child.pid}")
    assert bad_variables((folder / "environ").read_bytes()) == ("CUDA_DEVICE_WAITS_ON_EXCEPTION",)
    assert locked_limit((folder / "limits").read_text(), USER) == 64 << 10
    holders, _ = environment.find_holders(Path("/proc"))
    assert child.pid not in [holder.pid for holder in holders]
    child.communicate(b"\n")


# Runs as nobody where this is root: the processes of root are hidden from it.
SCRIPT = """
import os, sys
from sentinel.checks.host import environment
from sentinel.checks.base import Kept, Look, Unknown
from sentinel.core.now import Now
from sentinel.settings import Settings
if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)
try:
    environment.check(Look(Settings(sysfs=sys.argv[1], procfs=sys.argv[2]), (), Now(1.0, 1.0), "boot", Kept()))
except Unknown as unknown:
    print(unknown)
"""


def test_without_root_what_cannot_be_seen_is_unknown_and_named() -> None:
    with tempfile.TemporaryDirectory() as folder:  # of pytest's folders only the owner sees anything
        Path(folder).chmod(0o755)
        (Path(folder) / "class/infiniband").mkdir(parents=True)
        command = [sys.executable, "-c", SCRIPT, folder, "/proc"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "needs root (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH)" in done.stdout


def test_an_init_that_is_hidden_from_root_too_leaves_nothing_unknown() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "class/infiniband").mkdir(parents=True)
        for pid, said in ((1, ""), (2, "processes that cannot be looked into: 1")):
            (Path(folder) / f"{pid}/fd").mkdir(parents=True, mode=0)
            (Path(folder) / f"{pid}/fd").chmod(0)
            command = [sys.executable, "-c", SCRIPT, folder, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert said in done.stdout
            assert said or not done.stdout


def test_a_machine_without_devices_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        environment.check(Look(Settings(sysfs=str(tmp_path)), (), Now(1.0, 1.0), "boot", Kept()))


def test_a_proc_that_cannot_be_read_is_unknown(node: Node) -> None:
    node.procfs.rmdir()
    with pytest.raises(Unknown):
        node.check()
