"""File systems: real small ones that fill, break, turn read-only, hang and die. Needs root: it mounts them.

Memory stands at the end.
"""

import asyncio
import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.checks.base import Kept, Look, Unknown
from sentinel.checks.child import LineChild
from sentinel.checks.disk import file_systems
from sentinel.checks.disk.mount_calls import Memory, judge_calls
from sentinel.checks.disk.mounts import Mount, holding, on_network, parse_mountinfo, resolve, targets
from sentinel.checks.host import memory
from sentinel.checks.host.memory import parse_meminfo, parse_pressure
from sentinel.checks.runner import CheckRunner
from sentinel.cluster.local.machine import LocalMachine
from sentinel.core.health import Finding, Severity
from sentinel.core.model import ProtectedJob
from sentinel.core.policy_model import Policy, Precheck
from sentinel.settings import Disk, MountThresholds, Settings, Shape
from tests.checks.conftest import HandClock
from tests.checks.fuse_stub import CREATE, FSYNC, GETATTR, LOOKUP, STATFS, FuseStub
from tests.gate.rights import needs_root
from tests.waits import until

EXT4_IOC_SHUTDOWN = 0x8004587D  # include/uapi/linux/ext4.h: _IOR('X', 125, __u32); 2: flush nothing
SPACE, INODES, READ_ONLY = "disk-space", "disk-inodes", "disk-read-only"


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
@needs_root
def ext4(tmp_path: Path) -> Iterator[Path]:
    """A mounted ext4 file system of 16 MB with 64 inodes that goes read-only on errors."""
    image, point = tmp_path / "image", tmp_path / "scratch"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    run("mkfs.ext4", "-q", "-F", "-m", "0", "-N", "64", "-e", "remount-ro", image)
    run("mount", "-o", "loop", image, point)
    yield point
    subprocess.run(["fsfreeze", "--unfreeze", point], check=False, stderr=subprocess.DEVNULL)
    run("umount", "-l", point)


@pytest.fixture
@needs_root
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "tmpfs"
    point.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", point)
    yield point
    run("umount", "-l", point)


class Disks:
    """Samples of the disk check with one memory, and what they say of one mount point."""

    def __init__(self, clock: HandClock, point: Path) -> None:
        self.clock, self.point = clock, point
        self.settings = Settings()
        self.paths: tuple[str, ...] = (str(point),)
        self.kept = Kept()
        self.root = ""

    @property
    def memory(self) -> Memory:
        return self.kept.own(Memory)

    def findings(self) -> list[Finding]:
        self.clock.mono_s += 15.0
        look = Look(self.settings, self.paths, self.clock(), "boot", self.kept, root=self.root)
        try:
            found = file_systems.check(look)
        except Unknown as error:
            found = list(error.findings)
        return [item for item in found if item.entity == str(self.point)]

    def __call__(self) -> list[tuple[str, str]]:
        return sorted((item.code, item.severity.value) for item in self.findings())

    def set(self, **values: Any) -> None:
        self.settings = Settings(disk=Disk(**values))


@pytest.fixture
def disks(clock: HandClock) -> Iterator[Callable[[Path], Disks]]:
    made: list[Disks] = []

    def make(point: Path) -> Disks:
        made.append(Disks(clock, point))
        return made[-1]

    yield make
    for one in made:
        one.kept.close()


def leave_free(point: Path, share: float) -> None:
    """Fill the file system so that this share of it is free."""
    hog = point / "hog"
    hog.unlink(missing_ok=True)
    stats = os.statvfs(point)
    take = stats.f_bavail * stats.f_frsize - int(share * stats.f_blocks * stats.f_frsize)
    with hog.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, take)


# ---------------------------------------------------------------- space and inodes


def test_a_disk_that_fills_warns_then_keeps_jobs_off_and_clears_when_freed(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    assert look() == []
    leave_free(ext4, 0.08)
    assert look() == [(SPACE, "warning")]
    leave_free(ext4, 0.01)
    (found,) = look.findings()
    assert (found.code, found.severity, found.action) == (SPACE, Severity.DEGRADED, "FREE_SPACE")
    (ext4 / "hog").unlink()
    assert look() == []


def test_a_disk_clears_a_little_above_its_threshold_and_does_not_flap(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    look.set(min_free_share=0.50, warn_free_share=0.60)
    for share, expected in [
        (0.51, "warning"),
        (0.49, "degraded"),
        (0.51, "degraded"),
        (0.54, "degraded"),
        (0.56, "warning"),
        (0.54, "warning"),
        (0.62, "warning"),
        (0.67, None),
        (0.62, None),
    ]:
        leave_free(ext4, share)
        assert look() == ([(SPACE, expected)] if expected else []), share


def test_few_bytes_count_on_a_large_disk_whatever_their_share(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    look.set(min_free_bytes=3_000_000)
    leave_free(ext4, 0.15)
    assert look() == [(SPACE, "degraded")]
    look.set(min_free_bytes=1_000_000)
    assert look() == []


def test_a_disk_without_inodes_keeps_jobs_off_until_files_go(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    made = [ext4 / str(number) for number in range(os.statvfs(ext4).f_favail)]
    for path in made:
        path.touch()
    assert look() == [(INODES, "degraded")]
    for path in made[:4]:
        path.unlink()
    assert look() == [(INODES, "warning")]
    for path in made[4:]:
        path.unlink()
    assert look() == []


def test_a_tmpfs_fills_like_any_other_file_system(tmpfs: Path, disks: Callable[[Path], Disks]) -> None:
    look = disks(tmpfs)
    leave_free(tmpfs, 0.0)
    assert look() == [(SPACE, "degraded")]
    (tmpfs / "hog").unlink()
    assert look() == []


def test_each_mount_may_have_thresholds_of_its_own(ext4: Path, disks: Callable[[Path], Disks]) -> None:
    look = disks(ext4)
    leave_free(ext4, 0.3)
    assert look() == []
    look.set(mounts=(MountThresholds(path=str(ext4), min_free_share=0.4, warn_free_share=0.5),))
    assert look() == [(SPACE, "degraded")]


def test_of_a_disk_that_nothing_needs_people_are_only_told(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    look.paths = ()
    leave_free(ext4, 0.01)
    assert look() == [(SPACE, "warning")]
    look.set(mounts=(MountThresholds(path=str(ext4)),))
    assert look() == [(SPACE, "degraded")]
    look.set(ignore=(f"{ext4.parent}/*",))
    assert look() == []


def test_a_pod_of_the_agent_looks_at_the_disks_of_its_node(
    ext4: Path, disks: Callable[[Path], Disks], tmp_path: Path
) -> None:
    """Its own file systems are the container's: a read-only root, and what is mounted into it."""
    node, proc = tmp_path / "node", tmp_path / "proc"
    (proc / "1").mkdir(parents=True)
    (proc / "1/root").symlink_to(node)
    (node / "data").mkdir(parents=True)
    (node / "tmp").symlink_to("/data")  # leads within the node
    number = os.stat(ext4).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    (proc / "1/mountinfo").write_text(f"29 1 {device} / /data rw - ext4 /dev/loop0 rw\n")
    run("mount", "--bind", ext4, node / "data")
    try:
        look = disks(Path("/data"))
        look.paths, look.root = ("/data/checkpoints",), str(proc / "1/root")
        look.settings = Settings(procfs=str(proc), disk=Disk(probe_writes=("/data",)))
        assert look() == []
        assert "values" in look.memory.probes["/data"]
        leave_free(ext4, 0.01)
        assert look() == [(SPACE, "degraded")]
    finally:
        run("umount", "-l", node / "data")


def test_what_is_mounted_below_a_network_mount_is_not_called_from_here() -> None:
    """The way to it leads over the server."""
    server = "2 1 0:9 / /shared rw - nfs4 filer:/ rw\n3 2 8:2 / /shared/l rw - xfs /dev/sdb rw\n"
    text = f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n{server}"
    found = targets(Settings(), (), parse_mountinfo(text))
    assert {one.entity: one.remote for one in found} == {"/": False, "/shared": True, "/shared/l": True}


def test_a_volume_of_one_pod_that_is_full_is_no_matter_of_the_node() -> None:
    text = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /var/lib/k0s/kubelet/pods/1/v rw - nfs4 filer:/ rw\n"
    )
    _, volume = targets(Settings(), (), parse_mountinfo(text))
    full = file_systems.Stats.of([4096, 1_000_000, 0, 0, 0, 0])
    assert [one.severity for one in file_systems.judge_space(volume, full, {})] == [Severity.WARNING]


def test_a_start_is_refused_while_its_disk_is_full_and_not_longer(
    ext4: Path, clock: HandClock, tmp_path: Path
) -> None:
    """It believes no result older than 10 s, and no refusal that it has not just looked at again."""

    async def starts() -> list[str]:
        runner = CheckRunner(Settings(), (str(ext4),), clock)
        machine = LocalMachine(tmp_path / "state", lambda job, gone: None)
        machine.precheck, machine.places, machine.environment = runner.check_now, tuple, lambda out: {}
        job = ProtectedJob(name="j", policy=Policy(precheck=Precheck(checks=("disk",))))
        told = []
        try:
            for pause_s, free in [(0.0, None), (5.0, 0.01), (5.1, 0.01), (1.0, 0.5), (1.0, 0.01)]:
                clock.mono_s += pause_s
                if free is not None:
                    leave_free(ext4, free)
                room = await machine.room(job, 1, ())
                told.append("passed" if room.size else f"{ext4}: " in room.sentence and "refused")
        finally:
            runner.close()
        return told

    #                          fresh     5 s old   10.1 s old  over now  1 s old
    assert asyncio.run(starts()) == ["passed", "passed", "refused", "passed", "passed"]


# ---------------------------------------------------------------- file systems that break


def test_an_error_of_ext4_that_ends_writing_is_found_although_the_mount_says_rw(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    assert look() == []
    device = Path("/sys/dev/block", parse_mountinfo_of(ext4).device).resolve().name
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
    with pytest.raises(OSError, match="Read-only"):
        (ext4 / "file").touch()
    assert look() == [(READ_ONLY, "degraded"), ("fs-errors", "degraded")]
    later = Disks(look.clock, ext4)  # an agent that starts after the fault
    assert later() == [(READ_ONLY, "degraded"), ("fs-errors", "warning")]
    run("umount", ext4)
    subprocess.run(["e2fsck", "-fy", ext4.with_name("image")], check=False, stdout=subprocess.DEVNULL)
    run("mount", "-o", "loop", ext4.with_name("image"), ext4)
    assert look() == []


def test_a_file_system_that_was_shut_down_is_found_although_statvfs_answers(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    assert look() == []
    folder = os.open(ext4, os.O_RDONLY)
    fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", 2))
    os.close(folder)
    assert look() == [(READ_ONLY, "degraded")]
    run("umount", ext4)
    run("mount", "-o", "loop", ext4.with_name("image"), ext4)
    assert look() == []


def parse_mountinfo_of(point: Path) -> Mount:
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    return next(mount for mount in mounts if mount.point == str(point))


def test_a_disk_that_turns_read_only_is_degraded_until_it_takes_writes_again(
    tmpfs: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(tmpfs)
    assert look() == []
    run("mount", "-o", "remount,ro", tmpfs)
    assert look() == [(READ_ONLY, "degraded")]
    look.kept = Kept(saved=msgspec.json.decode(msgspec.json.encode(look.kept.saved)))  # the agent restarts
    assert look() == [(READ_ONLY, "degraded")]
    run("mount", "-o", "remount,rw", tmpfs)
    assert look() == []


def test_a_file_system_that_never_took_writes_only_warns(tmpfs: Path, disks: Callable[[Path], Disks]) -> None:
    run("mount", "-o", "remount,ro", tmpfs)
    assert disks(tmpfs)() == [(READ_ONLY, "warning")]


def test_a_file_system_that_the_kernel_turned_read_only_needs_no_earlier_look(
    tmp_path: Path, clock: HandClock
) -> None:
    """errors=remount-ro before Linux 6.15, XFS and btrfs: the mount was made to be written, its file system is not."""
    (tmp_path / "self").mkdir()
    line = "30 1 8:1 / {} rw,relatime - ext4 /dev/sda1 ro,errors=remount-ro\n"
    (tmp_path / "self/mountinfo").write_text(line.format("/"))
    found = file_systems.check(Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", Kept()))
    assert (READ_ONLY, Severity.DEGRADED) in [(item.code, item.severity) for item in found]


# ---------------------------------------------------------------- file servers that hang

SOON_S = 1.0  # what answers does so much sooner, on a busy machine too


@pytest.fixture
@needs_root
def server(tmp_path: Path) -> Iterator[FuseStub]:
    point = tmp_path / "nfs"
    point.mkdir()
    with FuseStub(point) as stub:
        yield stub


def test_a_mount_whose_server_is_silent_is_named_and_blocks_no_other(
    server: FuseStub, ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look, other = disks(server.point), disks(ext4)
    other.paths = look.paths = (str(server.point), str(ext4))
    assert look() == []
    server.hold = {STATFS}
    look.memory.deadline_s = other.memory.deadline_s = SOON_S
    leave_free(ext4, 0.01)
    assert other() == [(SPACE, "degraded")]
    (found,) = look.findings()
    assert (found.code, found.severity) == ("mount-hangs", Severity.DEGRADED)
    assert found.summary == f"{server.point} hangs"
    assert "server:/export" in found.evidence[0]
    look.clock.mono_s += 300.0
    assert look() == [("mount-hangs", "fatal")]
    server.release()
    assert settles(look) == []


def settles(look: Disks) -> list[tuple[str, str]]:
    """What the check says when the calls that hung have returned."""
    look.memory.deadline_s = 5.0
    until(lambda: not look(), lambda: str(look()))
    return look()


def test_a_silent_server_of_a_mount_that_nothing_needs_isolates_nothing(
    server: FuseStub, disks: Callable[[Path], Disks]
) -> None:
    look = disks(server.point)
    look.paths = ()
    assert look() == []  # whose process has begun
    server.hold = {STATFS}
    look.memory.deadline_s = SOON_S
    assert look() == [("mount-hangs", "warning")]
    look.clock.mono_s += 1000.0
    assert look() == [("mount-hangs", "warning")]


@pytest.mark.parametrize(("paths", "severity"), [((), "degraded"), (("volume",), "fatal")])
def test_the_dead_server_of_a_pods_own_volume_isolates_only_who_watches_it(
    paths: tuple[str, ...], severity: str, clock: HandClock
) -> None:
    point = "/var/lib/kubelet/pods/1/volumes/k~nfs/v"
    watched = tuple(point for _ in paths)
    mounts = parse_mountinfo(MOUNTINFO)
    chosen = targets(Settings(), watched, mounts)
    look = Look(Settings(), watched, clock(), "boot", Kept())
    since_s = {point: clock().mono_s - 1000.0}
    (found,), _ = judge_calls(look, chosen, mounts, {f"stat {point}": {"hangs_s": 1000.0}}, since_s)
    assert (found.code, found.severity.value) == ("mount-hangs", severity)


def test_a_write_that_hangs_is_found_where_statvfs_answers(
    server: FuseStub, disks: Callable[[Path], Disks]
) -> None:
    look = disks(server.point)
    look.set(probe_writes=(str(server.point),))
    assert look() == []
    assert look() == []
    assert server.files == 1  # each minute, not in every sample
    look.clock.mono_s += 60.0
    server.hold = {FSYNC}
    look.memory.deadline_s = SOON_S
    (found,) = look.findings()
    assert (found.code, found.severity) == ("mount-hangs", Severity.DEGRADED)
    assert "a write into" in found.evidence[0]
    look.clock.mono_s += 300.0
    assert look() == [("mount-hangs", "fatal")]
    assert server.files == 2  # a probe that hangs is not doubled
    server.release()
    assert settles(look) == []


def test_a_frozen_disk_hangs_the_probe_alone_and_leaves_no_file(
    ext4: Path, disks: Callable[[Path], Disks]
) -> None:
    look = disks(ext4)
    look.set(probe_writes=(str(ext4),))
    assert look() == []
    assert [path.name for path in ext4.iterdir()] == ["lost+found"]
    run("fsfreeze", "--freeze", ext4)
    look.memory.deadline_s = SOON_S
    look.clock.mono_s += 60.0
    assert look() == [("mount-hangs", "degraded")]
    run("fsfreeze", "--unfreeze", ext4)
    assert settles(look) == []
    assert [path.name for path in ext4.iterdir()] == ["lost+found"]


def test_local_disks_are_judged_where_network_mounts_cannot_be_asked(
    server: FuseStub, ext4: Path, clock: HandClock
) -> None:
    leave_free(ext4, 0.01)
    kept = Kept()
    kept.own(Memory).child = LineChild(["/bin/false"])
    with pytest.raises(Unknown, match="network mounts are not seen") as unknown:
        file_systems.check(Look(Settings(), (str(ext4), str(server.point)), clock(), "boot", kept))
    assert (str(ext4), SPACE) in [(item.entity, item.code) for item in unknown.value.findings]


def test_a_probe_that_is_refused_tells_why(ext4: Path, disks: Callable[[Path], Disks]) -> None:
    look = disks(ext4)
    look.set(probe_writes=(str(ext4), str(ext4 / "not-yet")), min_free_share=1e-9, warn_free_share=1e-9)
    hog = subprocess.run(["dd", "if=/dev/zero", f"of={ext4}/hog", "bs=1k"], capture_output=True, check=False)
    assert b"No space" in hog.stderr
    assert ("write-fails", "degraded") in look()
    assert "no write probe in" in look.kept.detail
    assert "not there yet" in look.kept.detail
    (ext4 / "hog").unlink()
    assert look() == []


def test_a_mount_whose_server_process_died_answers_with_an_error_until_it_is_unmounted(
    server: FuseStub, disks: Callable[[Path], Disks]
) -> None:
    look = disks(server.point)
    assert look() == []
    server.die()
    (found,) = look.findings()
    assert (found.code, found.severity, found.action) == ("mount-error", Severity.DEGRADED, "REMOUNT")
    assert "not connected" in found.evidence[0]
    run("umount", "-l", server.point)
    assert look() == []


def test_a_stale_handle_is_an_error_of_the_mount_until_it_is_mounted_anew(
    server: FuseStub, disks: Callable[[Path], Disks]
) -> None:
    look = disks(server.point)
    server.errors = {STATFS: errno.ESTALE}
    assert look() == [("mount-error", "degraded")]
    server.errors = {}
    assert look() == []


@pytest.mark.parametrize(
    ("error", "code", "severity"),
    [(errno.EDQUOT, "disk-quota", "warning"), (errno.EIO, "write-fails", "degraded")],
)
def test_a_tiny_file_that_is_refused_is_found_until_it_is_taken(
    server: FuseStub, disks: Callable[[Path], Disks], error: int, code: str, severity: str
) -> None:
    look = disks(server.point)
    look.set(probe_writes=(str(server.point),))
    server.errors = {CREATE: error}
    assert look() == [(code, severity)]
    server.errors = {}
    assert look() == []


def test_a_full_file_server_is_not_this_nodes_disk(server: FuseStub, disks: Callable[[Path], Disks]) -> None:
    look = disks(server.point)
    server.free_blocks = 10
    assert look() == [("network-disk-space", "degraded")]
    server.free_blocks = 500
    assert look() == []


# ---------------------------------------------------------------- which mounts

MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro
31 27 254:0 /var/lib/x /var/lib/kubelet/pods/1/volumes/a rw - ext4 /dev/vda rw
32 27 0:40 / /var/lib/docker/overlay2/1/merged rw - overlay overlay rw
33 27 0:41 / /run/user/0 rw - tmpfs tmpfs rw
34 27 8:16 / /my\\040data rw - xfs /dev/sdb rw
35 27 8:16 /sub /a/bind rw - xfs /dev/sdb rw
36 27 0:50 / /home rw - nfs4 filer:/home rw,vers=4.2
37 27 0:51 / /run/user/0/gvfs rw - fuse.gvfsd-fuse gvfsd-fuse rw
38 27 0:52 / /lustre rw - lustre 10.0.0.1@o2ib:/l rw
39 27 0:53 / /var/lib/kubelet/pods/1/volumes/k~nfs/v rw - nfs filer:/v rw
40 27 0:54 / /net rw - autofs auto.net rw,indirect
41 27 259:1 / /old rw - ext4 /dev/nvme0n1p1 rw
42 41 259:2 / /old rw - ext4 /dev/nvme1n1p1 rw
garbled
43 27 0:55
"""


def test_each_real_file_system_is_looked_at_once_and_no_pseudo_or_container_one() -> None:
    chosen = targets(Settings(), (), parse_mountinfo(MOUNTINFO))
    assert {target.entity: target.needed for target in chosen} == {
        "/": True,
        "/dev/shm": True,
        "/my data": False,
        "/home": False,
        "/lustre": False,
        "/old": False,
        "/var/lib/kubelet/pods/1/volumes/k~nfs/v": True,
    }
    assert next(target.mount.device for target in chosen if target.entity == "/old") == "259:2"


def test_a_watched_path_is_named_by_the_mount_under_which_it_is_used() -> None:
    chosen = targets(Settings(), ("/a/bind/run", "/lustre/x"), parse_mountinfo(MOUNTINFO))
    assert {"/a/bind", "/lustre"} == {target.entity for target in chosen if target.watched}
    assert "/my data" not in {target.entity for target in chosen}


def test_links_are_followed_up_to_a_network_mount_and_not_into_it(tmp_path: Path) -> None:
    mounts = (
        Mount("/", "ext4", "/dev/vda", "254:0"),
        Mount(str(tmp_path / "nfs"), "nfs", "filer:/", "0:9"),
    )
    (tmp_path / "nfs").mkdir()
    (tmp_path / "nfs/link").symlink_to("/etc")
    (tmp_path / "home").symlink_to(tmp_path / "nfs")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert resolve(f"{tmp_path}/home/link/x", mounts) == f"{tmp_path}/nfs/link/x"
    assert resolve(f"{tmp_path}/./a/../home", mounts) == f"{tmp_path}/nfs"
    assert resolve(f"{tmp_path}/loop/x", mounts).startswith(str(tmp_path))
    place = holding(f"{tmp_path}/nfsx", mounts)
    assert place is not None
    assert place.point == "/"


def test_a_path_on_a_network_mount_is_known_without_asking_its_server(
    server: FuseStub, tmp_path: Path
) -> None:
    server.hold = {STATFS, GETATTR, LOOKUP}
    assert on_network(str(server.point / "runs/7"), "/proc")
    assert not on_network(str(tmp_path / "runs/7"), "/proc")


def test_a_file_system_is_named_once_however_many_of_its_paths_are_watched(
    tmp_path: Path, clock: HandClock
) -> None:
    never_enough = Disk(warn_free_share=2.0)
    (tmp_path / "a").mkdir()
    paths = (str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "not-yet"))
    found = file_systems.check(Look(Settings(disk=never_enough), paths, clock(), "boot", Kept()))
    keys = [finding.key for finding in found]
    assert keys
    assert len(keys) == len(set(keys))
    assert all(os.path.ismount(finding.entity) for finding in found)


def test_an_expected_mount_that_is_missing_is_found_until_it_is_mounted(
    tmp_path: Path, clock: HandClock
) -> None:
    def missing(source: str, *points: str) -> list[tuple[str, Severity]]:
        settings = Settings(procfs=str(tmp_path), shape=Shape(name="h100", source=source, mounts=points))
        found = file_systems.check(Look(settings, (), clock(), "boot", Kept()))
        return [(item.entity, item.severity) for item in found if item.code == "mount-missing"]

    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        "27 1 0:1 / / rw - tmpfs none rw\n40 27 0:5 / /net rw - autofs a rw\n"
    )
    assert missing("manifest", "/data", "/net/filer", "/") == [("/data", Severity.DEGRADED)]
    assert missing("learnt", "/data") == [("/data", Severity.WARNING)]
    with (tmp_path / "self/mountinfo").open("a") as file:
        file.write("41 27 0:6 / /data rw - tmpfs none rw\n")
    assert missing("manifest", "/data/") == []


def test_expected_mounts_that_are_not_set_are_said(clock: HandClock) -> None:
    kept = Kept()
    file_systems.check(Look(Settings(), (), clock(), "boot", kept))
    assert "expected mounts: not set" in kept.detail


def test_without_a_table_of_mounts_nothing_is_called_healthy(tmp_path: Path, clock: HandClock) -> None:
    with pytest.raises(Unknown, match="mountinfo"):
        file_systems.check(Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", Kept()))


def test_each_file_system_is_measured_in_the_names_of_node_exporter(ext4: Path, clock: HandClock) -> None:
    kept = Kept()
    file_systems.check(Look(Settings(), (str(ext4),), clock(), "boot", kept))
    mine = {m.name: m.value for m in kept.measures if ("mountpoint", str(ext4)) in m.labels}
    stats = os.statvfs(ext4)
    assert mine["node_filesystem_size_bytes"] == stats.f_blocks * stats.f_frsize
    assert mine["node_filesystem_files"] == stats.f_files
    assert mine["node_filesystem_readonly"] == 0


# ---------------------------------------------------------------- memory


MEMINFO = "MemTotal:       1000000 kB\nMemFree:          10000 kB\nMemAvailable:   {} kB\nHugePages_Total:       0\n"


@pytest.mark.parametrize(
    ("available_kib", "severity"), [(500_000, None), (40_000, Severity.WARNING), (5_000, Severity.DEGRADED)]
)
def test_memory_that_runs_out_is_found(
    tmp_path: Path, clock: Any, available_kib: int, severity: Severity | None
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.format(available_kib))
    found = memory.check(Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", Kept()))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_pressure_is_found_and_a_kernel_without_it_is_fine(tmp_path: Path, clock: Any) -> None:
    look = Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", Kept())
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
        memory.check(Look(Settings(procfs=str(tmp_path)), (), clock(), "boot", Kept()))
