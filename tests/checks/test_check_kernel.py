"""The kernel check from line to finding: faults that the kernel of this machine really writes, and what a node adds."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.checks.base import Kept, Look
from sentinel.checks.findings import FindingBook
from sentinel.checks.kernel import messages
from sentinel.checks.xid import job_of_cgroup
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.logs.kmsg import KmsgReader
from sentinel.settings import Settings
from sentinel.util.clock import boot_id, system_now
from tests.checks.conftest import no_more_descriptors
from tests.gate.rights import needs_root
from tests.waits import until

GROUPS = Path("/sys/fs/cgroup/memory")
POD = "pod95387fa4-da9c-11e7-9d36-5254b24cbf5e"
EAT = "data = []\nwhile True: data.append(bytearray(1 << 20))"


@pytest.fixture
@needs_root
def ring() -> Iterator[Look]:
    """The ring of this machine, read to its end."""
    look = Look(Settings(), (), system_now(), boot_id(), Kept())
    messages.check(look)
    yield look
    look.kept.close()


def sample(look: Look) -> list[Finding]:
    return messages.check(Look(look.settings, (), system_now(), look.boot_id, look.kept))


@pytest.fixture
@needs_root
def pod() -> Iterator[Path]:
    """A cgroup with 24 MB, named as that of a pod."""
    group = GROUPS / f"sentinel-test-{os.getpid()}/{POD}/main"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(str(24 << 20))
    yield group
    for folder in (group, group.parent, group.parent.parent):
        folder.rmdir()


def test_a_real_kill_for_memory_names_process_cgroup_and_pod(ring: Look, pod: Path) -> None:
    command = ["sh", "-c", f'echo $$ > {pod}/cgroup.procs && exec "$@"', "sh", sys.executable, "-c", EAT]
    process = subprocess.Popen(command)
    assert process.wait(180) == -signal.SIGKILL
    (killed,) = [finding for finding in sample(ring) if finding.pid == process.pid]
    assert (killed.code, killed.severity, killed.component) == (
        "oom-kill",
        Severity.WARNING,
        Component.SYSTEM,
    )
    assert killed.process == Path(sys.executable).name[:15]
    assert killed.cgroup == f"/{pod.relative_to(GROUPS)}"
    assert killed.job == "pod 95387fa4-da9c-11e7-9d36-5254b24cbf5e"
    assert "its job reached its memory limit" in killed.summary


@pytest.fixture
@needs_root
def ext4(tmp_path: Path) -> Iterator[str]:
    """A mounted ext4 file system of its own, which turns read-only at its first error; its loop device."""
    image, point = tmp_path / "image", tmp_path / "mount"
    point.mkdir()
    image.touch()
    os.truncate(image, 8 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, point], check=True)
    device = subprocess.run(
        ["findmnt", "-no", "SOURCE", point], check=True, capture_output=True, text=True
    ).stdout
    yield Path(device.strip()).name
    subprocess.run(["umount", point], check=True)


def test_a_real_file_system_error_names_the_device_and_that_it_takes_no_more_writes(
    ring: Look, ext4: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "on_media", lambda finding, media: finding)  # as if it were a disk
    Path(f"/sys/fs/ext4/{ext4}/trigger_fs_error").write_text("NVRM: Xid (PCI:0000:18:00): 79, quoted")
    found = {finding.code: finding for finding in sample(ring) if finding.entity == ext4}
    assert {"fs-error", "fs-shutdown", "journal-abort"} <= set(found)
    assert all(finding.severity is Severity.DEGRADED for finding in found.values())
    assert "quoted" in found["fs-error"].evidence[0]
    assert not [finding for finding in sample(ring) if finding.code == "XID 79"]


def test_a_file_that_is_mounted_is_no_part_of_the_node(ring: Look, ext4: str) -> None:
    """The image of a container with a broken file system moves no job."""
    Path(f"/sys/fs/ext4/{ext4}/trigger_fs_error").write_text("quoted")
    found = [finding for finding in sample(ring) if finding.entity == ext4]
    assert {(finding.code, finding.severity) for finding in found} == {("media-error", Severity.WARNING)}
    assert any(
        finding.summary == "The file system reports corruption (a mounted file: no part of this node)"
        for finding in found
    )


FAILS = "I/O error, dev {}, sector {} op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"
CORRUPT = "EXT4-fs error (device {}): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0"


def later(look: Look, seconds: float) -> Look:
    now = Now(look.now.mono_s + seconds, look.now.wall_s + seconds)
    return msgspec.structs.replace(look, now=now)


STICK = "pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/host8/target8:0:0/8:0:0:0/block"


def attach(machine: Any, name: str, through: str, number: str = "") -> Path:
    """A block device in sysfs, and its MAJOR:MINOR where given; `through`: what it hangs on."""
    device = machine.sysfs / "devices" / through / name
    device.mkdir(parents=True)
    for place in (f"class/block/{name}", *([f"dev/block/{number}"] if number else [])):
        link = machine.sysfs / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(device, link.parent))
    return Path(machine.sysfs / "class/block" / name)


def test_what_is_pulled_out_of_usb_is_told_and_moves_no_job_also_when_it_is_gone(machine: Any) -> None:
    """Virtual media of a management controller are such, too."""
    attach(machine, "sda", "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block")
    stick = attach(machine, "sdb1", f"{STICK}/sdb")
    look, book = look_at(machine), FindingBook("boot")
    messages.check(look)
    stick.unlink()
    machine.log(CORRUPT.format("sdb1"))
    for number in range(12):
        machine.log(FAILS.format("sdb1", number), FAILS.format("sda", number))
        look = later(look, 20.0)
        book.fold("kernel", messages.check(look), look.now)
    found = {finding.entity: (finding.code, finding.severity) for finding in book.active()}
    assert found == {"sdb1": ("media-error", Severity.WARNING), "sda": ("io-error", Severity.DEGRADED)}


def test_a_burst_of_errors_is_one_trouble_and_not_ten(machine: Any) -> None:
    look, book = look_at(machine), FindingBook("boot")
    machine.log(*(FAILS.format("sda", number) for number in range(50)))
    book.fold("kernel", messages.check(look), look.now)
    (found,) = book.active()
    assert (found.code, found.severity, found.count) == ("io-error", Severity.WARNING, 50)


def test_a_disk_that_has_the_name_of_a_stick_that_is_gone_is_a_disk(machine: Any) -> None:
    stick = attach(machine, "sdb", STICK)
    look = look_at(machine)
    messages.check(look)
    stick.unlink()
    attach(machine, "sdb", "pci0000:00/0000:00:17.0/ata2/host1/target1:0:0/1:0:0:0/block")
    machine.log(CORRUPT.format("sdb"))
    (found,) = messages.check(later(look, 1.0))
    assert (found.code, found.severity) == ("fs-error", Severity.DEGRADED)


def mounted(machine: Any, folder: Path, line: str) -> Look:
    """A look where this alone is mounted."""
    (folder / "proc/self").mkdir(parents=True, exist_ok=True)
    (folder / "proc/self/mountinfo").write_text(f"{line}\n")
    return msgspec.structs.replace(
        look_at(machine), settings=msgspec.structs.replace(machine.settings, procfs=str(folder / "proc"))
    )


def below(folder: Path, name: str, disk: Path) -> None:
    (folder / "slaves").mkdir()
    (folder / "slaves" / name).symlink_to(disk)


@pytest.mark.parametrize(
    "mounts",
    [
        "26 1 8:18 / / rw - ext4 /dev/sdb2 rw",
        "26 1 253:0 / / rw - ext4 /dev/mapper/vg-root rw",
        "26 1 9:1 / / rw - ext4 /dev/md0p1 rw",
        "26 1 0:30 /@ / rw - btrfs /dev/sdb2 rw",
        "26 1 0:30 /@ / rw - btrfs /dev/mapper/vg-root rw",
        "26 1 8:1 / / rw - ext4 /dev/sda1 rw\n27 26 8:18 / /var rw - ext4 /dev/sdb2 rw",  # the kubelet's folder
    ],
)
def test_the_disk_that_a_node_boots_from_is_its_own_on_usb_too(
    machine: Any, tmp_path: Path, mounts: str
) -> None:
    attach(machine, "sdb", STICK)
    own = attach(machine, "sdb2", f"{STICK}/sdb", "8:18")
    attach(machine, "sdc", STICK.replace("host8", "host9"))
    volume = attach(machine, "dm-0", "virtual/block", "253:0")
    below(volume, "sdb2", own)
    (volume / "dm").mkdir()
    (volume / "dm/name").write_text("vg-root\n")
    below(attach(machine, "md0", "virtual/block"), "sdb2", own)
    (attach(machine, "md0p1", "virtual/block/md0", "9:1") / "partition").write_text("1\n")
    look = mounted(machine, tmp_path, mounts)
    messages.check(look)
    mounted(machine, tmp_path, "")  # as a disk that dies is
    machine.log(CORRUPT.format("sdb2"), FAILS.format("sdb", 1), FAILS.format("sdc", 1))
    found = {
        finding.entity: (finding.code, finding.severity) for finding in messages.check(later(look, 60.0))
    }
    assert found == {
        "sdb2": ("fs-error", Severity.DEGRADED),
        "sdb": ("io-error", Severity.WARNING),
        "sdc": ("media-error", Severity.WARNING),
    }


def test_a_stick_that_has_the_name_of_the_nodes_own_disk_that_is_gone_is_a_stick(
    machine: Any, tmp_path: Path
) -> None:
    own = attach(machine, "sdb", STICK, "8:16")
    look = mounted(machine, tmp_path, "26 1 8:16 / / rw - ext4 /dev/sdb rw")
    messages.check(look)
    own.unlink()
    attach(machine, "sdb", STICK.replace("host8", "host9"))
    machine.log(CORRUPT.format("sdb"))
    (found,) = messages.check(later(look, 60.0))
    assert found.code == "media-error"


def test_a_stick_that_is_mounted_elsewhere_is_a_stick(machine: Any, tmp_path: Path) -> None:
    attach(machine, "sdb1", f"{STICK}/sdb", "8:17")
    look = mounted(machine, tmp_path, "26 1 8:17 / /mnt/usb rw - vfat /dev/sdb1 rw")
    messages.check(look)
    machine.log(CORRUPT.format("sdb1"))
    (found,) = messages.check(look)
    assert (found.code, found.severity) == ("media-error", Severity.WARNING)


CRASH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())  # PR_SET_NAME
ctypes.string_at(8)
"""


@pytest.mark.parametrize("name", ["EDAC MC0: UE x", "kernel BUG at x"])
def test_a_crash_of_a_program_that_is_named_like_a_kernel_line_is_no_fault(ring: Look, name: str) -> None:
    """The kernel begins its line with the name: `EDAC MC0: UE x[4711]: segfault at 8 ip ...`."""
    lines = KmsgReader()
    lines.read()
    written: list[str] = []

    def crashed() -> bool:
        crash = subprocess.run([sys.executable, "-c", CRASH, name], check=False)
        assert crash.returncode == -signal.SIGSEGV
        written.extend(record.text for record in lines.read() if record.text.startswith(f"{name}["))
        return bool(written)

    until(crashed, "the kernel says nothing of crashes")  # it leaves some out where many crash
    lines.close()
    assert "segfault at 8" in written[0]
    assert not [finding for finding in sample(ring) if finding.evidence[0].startswith(name)]


# ---------------------------------------------------------------- what the node adds


def look_at(machine: Any) -> Look:
    return Look(machine.settings, (), system_now(), "boot", Kept())


def test_an_xid_names_the_cgroup_of_its_process_while_that_lives(machine: Any) -> None:
    look = look_at(machine)
    with subprocess.Popen(["sleep", "60"]) as process:
        machine.log(f"NVRM: Xid (PCI:0000:18:00): 13, pid={process.pid}, name=sleep, x")
        (found,) = messages.check(look)
        process.kill()
    assert (found.pid, found.process) == (process.pid, "sleep")
    assert found.cgroup == messages.cgroup_of(os.getpid()) != ""
    assert found.job == job_of_cgroup(found.cgroup)


def test_an_xid_under_a_pod_names_its_job_by_the_folder_of_its_logs(machine: Any) -> None:
    uid = "95387fa4-da9c-11e7-9d36-5254b24cbf5e"
    (machine.folder / f"pods/ml_llama-x7z9k_{uid}").mkdir(parents=True)
    (machine.folder / "proc/77").mkdir(parents=True)
    (machine.folder / "proc/77/cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/6895a3\n")
    settings = msgspec.structs.replace(
        machine.settings, procfs=str(machine.folder / "proc"), pod_logs=str(machine.folder / "pods")
    )
    machine.log("NVRM: Xid (PCI:0000:18:00): 13, pid=77, name=python3, x")
    (found,) = messages.check(Look(settings, (), system_now(), "boot", Kept()))
    assert (found.job, uid in found.cgroup) == ("pod ml/llama", True)


def test_a_thread_that_is_stuck_names_its_process(machine: Any) -> None:
    """The kernel tells the number of the thread; ranks are known by those of their processes."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    machine.log(
        f"INFO: task python3:{thread.native_id} blocked for more than 122 seconds.",
        "INFO: task gone:4194305 blocked for more than 122 seconds.",
    )
    stuck, gone = messages.check(look_at(machine))
    stop.set()
    thread.join()
    assert (stuck.pid, stuck.entity) == (os.getpid(), f"pid {thread.native_id} (python3)")
    assert gone.pid == 4194305


def test_a_line_from_long_ago_has_not_the_cgroup_of_who_has_its_pid_now(machine: Any) -> None:
    machine.log(f"NVRM: Xid (PCI:0000:18:00): 13, pid={os.getpid()}, name=gone, x", at_us=1)
    (found,) = messages.check(look_at(machine))
    assert (found.pid, found.cgroup) == (os.getpid(), "")


@pytest.mark.parametrize(
    ("content", "cgroup"),
    [
        ("0::/kubepods.slice/x\n", "/kubepods.slice/x"),
        ("12:cpuset:/c\n5:memory:/docker/6895\n1:name=systemd:/s\n0::/\n", "/docker/6895"),
        ("9:name=systemd:/a:b\n", "/a:b"),
        ("garbage\n", ""),
        ("", ""),
    ],
)
def test_the_cgroup_is_read_under_both_versions(content: str, cgroup: str, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(content)
    assert messages.cgroup_of(7, str(tmp_path)) == cgroup
    assert messages.cgroup_of(8, str(tmp_path)) == ""


def test_a_fatal_error_of_the_bus_is_the_gpus_where_it_is_the_gpus(machine: Any) -> None:
    machine.add_pci("0000:18:00.0")
    for address in ("0000:18:00.0", "0000:00:03.0"):
        machine.log(
            f"pcieport {address}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (x)"
        )
    gpu, port = messages.check(look_at(machine))
    assert (gpu.component, gpu.entity) == (Component.GPU, "GPU 0000:18:00.0")
    assert (port.component, port.entity) == (Component.SYSTEM, "PCI 0000:00:03.0")


def test_a_fault_is_told_also_where_no_file_can_be_opened(machine: Any) -> None:
    machine.add_pci("0000:18:00.0")
    look = look_at(machine)
    messages.check(look)
    machine.log(
        "pcieport 0000:18:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
    )
    with no_more_descriptors():
        (found,) = messages.check(look)
    assert found.code == "pcie-fatal"


def test_a_storm_of_corrected_errors_does_not_search_the_bus_for_each_line(machine: Any) -> None:
    """A bus has hundreds of functions: to read them for each line took half a minute for 4,000 lines."""
    machine.add_pci("0000:18:00.0")
    look = look_at(machine)
    messages.check(look)
    bus = str(machine.sysfs / "bus/pci/devices")
    searches: list[str] = []

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.listdir" and str(arguments[0]) == bus:
            searches.append(event)

    machine.log(
        *["pcieport 0000:18:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer"] * 1000
    )
    sys.addaudithook(count)
    found = messages.check(look)
    assert {finding.entity for finding in found} == {"GPU 0000:18:00.0"}
    assert sum(finding.count for finding in found) == 1000
    assert len(searches) == 1


def test_a_server_that_answers_again_ends_its_finding_in_the_same_or_in_a_later_sample(machine: Any) -> None:
    look, book = look_at(machine), FindingBook("boot")
    for lines in (
        [
            "nfs: server a not responding, still trying",
            "nfs: server b not responding, still trying",
            "nfs: server a OK",
        ],
        ["nfs: server b OK"],
    ):
        machine.log(*lines)
        book.fold("kernel", messages.check(look), look.now)
        assert [finding.entity for finding in book.active()] == (["b"] if len(lines) == 3 else [])
