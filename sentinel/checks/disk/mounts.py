"""The mounts of this machine, from /proc/self/mountinfo: which hold data, which a network may hang, which to skip."""

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from sentinel.settings import DiskThresholds, MountThresholds, Settings

# Their faults keep jobs off a node, whoever runs there; the kubelet evicts pods when its own ones fill.
NEEDED_PATHS = ("/", "/var/lib/kubelet", "/var/lib/containerd", "/tmp", "/dev/shm")
PODS = "/kubelet/pods/"  # in the kubelet's folder, which k0s, microk8s and others have elsewhere

_NFS_AND_PARALLEL = ("nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "wekafs", "panfs", "glusterfs")
_NETWORK = (*_NFS_AND_PARALLEL, "cifs", "smb3", "9p", "virtiofs", "afs", "orangefs", "pvfs2")
# Served by a process of this machine for purposes of its own, not a way to data.
_LOCAL_FUSE = ("lxcfs", "portal", "gvfsd-fuse", "fuse-overlayfs", "snapfuse", "squashfuse")
_READ_ONLY = ("squashfs", "iso9660", "udf", "erofs", "cramfs", "romfs")
_NO_SOURCE = ("zfs", "btrfs", "bcachefs")  # real, whatever their source is called
# What container runtimes mount for their containers: seen, and counted, where it comes from.
_CONTAINERS = re.compile(
    r"/var/lib/(?:docker|containers|rancher)/|.*/kubelet/(?:pods|plugins)/|/var/lib/containerd/.|/run/|/snap/"
    r"|/etc/(?:hosts|hostname|resolv\.conf)$|/dev/termination-log$"
)
_OCTAL = re.compile(r"\\([0-7]{3})")
_MAX_LINKS = 40  # as the kernel


class Mount(Struct, frozen=True):
    """One line of mountinfo (proc_pid_mountinfo(5))."""

    point: str
    fstype: str
    source: str
    device: str  # "254:0": of the file system, the same for all its bind mounts
    root: str = "/"  # what of the file system is mounted here
    options: frozenset[str] = frozenset()  # of this mount
    super_options: frozenset[str] = frozenset()  # of the file system
    before: str = ""  # what stands before its point where it is another root's: of the node around a pod

    @property
    def path(self) -> str:
        """Where we find it."""
        return self.before + self.point

    @property
    def network(self) -> bool:
        """Whether a call may hang for as long as something outside this kernel does not answer."""
        kind, _, name = self.fstype.partition(".")
        return self.fstype in _NETWORK or (kind == "fuse" and name not in _LOCAL_FUSE)

    @property
    def holds_data(self) -> bool:
        """A real local file system that is written to, and not a container's."""
        real = self.source.startswith("/dev/") or self.fstype in _NO_SOURCE
        return real and self.fstype not in _READ_ONLY and not _CONTAINERS.match(self.point)


class Target(Struct, frozen=True):
    """One file system to look at."""

    mount: Mount
    limits: DiskThresholds
    watched: bool = False  # a job uses it
    needed: bool = False  # its faults keep jobs off; of the others people are only told
    remote: bool = False  # a call may hang for as long as something outside this kernel does not answer

    @property
    def of_node(self) -> bool:
        """Are its faults those of the node? That a volume of one pod is full or broken is that pod's matter."""
        return self.needed and (self.watched or not of_pod(self.mount))

    @property
    def entity(self) -> str:
        return self.mount.point.encode(errors="surrogateescape").decode(errors="backslashreplace")


def read_mounts(procfs: str, root: str = "") -> tuple[Mount, ...]:
    """Ours, or those of the node whose `root` is given. Raises OSError."""
    file = Path(procfs, "1/mountinfo" if root else "self/mountinfo")
    return parse_mountinfo(file.read_text(errors="surrogateescape"), root)


def parse_mountinfo(text: str, before: str = "") -> tuple[Mount, ...]:
    """What is mounted; of several mounts on one point the last, which hides the others. Other lines are skipped."""
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        first, separator, second = line.partition(" - ")
        fields, rest = first.split(" "), second.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        point = _plain(fields[4])
        found[point] = Mount(
            point,
            rest[0],
            _plain(rest[1]),
            fields[2],
            _plain(fields[3]),
            frozenset(fields[5].split(",")),
            frozenset(rest[2].split(",")) if len(rest) > 2 else frozenset(),
            before,
        )
    return tuple(found.values())


def _plain(field: str) -> str:
    """Blanks and backslashes are written in octal."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def holding(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that an absolute path without links lies on."""
    best: Mount | None = None
    for mount in mounts:
        point = mount.point
        if best is not None and len(point) <= len(best.point):
            continue
        if path == point or point == "/" or path.startswith(point + "/"):
            best = mount
    return best


def resolve(path: str, mounts: Sequence[Mount]) -> str:
    """The path without symbolic links, as far as that is told without a call that a network may hang."""
    done, rest, links = "/", path.split("/"), 0
    before = mounts[0].before if mounts else ""
    while rest:
        part = rest.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done)
            continue
        step = os.path.join(done, part)
        mount = holding(step, mounts)
        if mount is not None and mount.network:
            return os.path.normpath(os.path.join(step, *rest))
        try:
            target = os.readlink(before + step)
        except OSError:  # no link, or not there yet
            done = step
            continue
        links += 1
        if links > _MAX_LINKS:
            return step
        if target.startswith("/"):
            done = "/"
        rest[:0] = target.split("/")
    return done


def on_network(path: str, procfs: str) -> bool:
    """Whether a network may hang what is written there. Touches nothing on such a mount."""
    try:
        mounts = read_mounts(procfs)
    except OSError:
        return False
    mount = holding(resolve(os.path.abspath(path), mounts), mounts)
    return mount is not None and mount.network


def targets(settings: Settings, paths: Sequence[str], mounts: Sequence[Mount]) -> list[Target]:
    """Each file system to look at, once, under the mount point by which it is used."""
    asked = {limits.path: limits for limits in settings.disk.mounts}
    watched = [holding(resolve(os.path.abspath(path), mounts), mounts) for path in paths]
    needed = [_if_there(path, mounts) for path in NEEDED_PATHS]
    needed += [mount for mount in mounts if mount.point in asked or of_pod(mount)]
    others = sorted(
        (mount for mount in mounts if mount.network or mount.holds_data),
        key=lambda mount: (mount.root != "/", len(mount.point), mount.point),
    )
    found: dict[str, Target] = {}
    for mount in (*watched, *needed, *others):
        if mount is None or mount.device in found or _ignored(mount, settings.disk.ignore):
            continue
        remote = mount.network or any(
            one.network and mount.point.startswith(one.point + "/") for one in mounts
        )
        limits = next((asked[m.point] for m in mounts if m.device == mount.device and m.point in asked), None)
        found[mount.device] = Target(
            mount,
            _limits(settings.disk, limits),
            mount in watched,
            mount in watched or mount in needed,
            remote,
        )
    return list(found.values())


def _if_there(path: str, mounts: Sequence[Mount]) -> Mount | None:
    where = resolve(path, mounts)
    mount = holding(where, mounts)
    return mount if mount is not None and (mount.network or os.path.lexists(mount.before + where)) else None


def of_pod(mount: Mount) -> bool:
    """A volume that one pod asked for: whoever wrote its manifest chose the server."""
    return mount.network and PODS in mount.point


def _ignored(mount: Mount, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(mount.point, pattern) for pattern in patterns)


def _limits(standard: DiskThresholds, own: MountThresholds | None) -> DiskThresholds:
    """The thresholds of one mount: its own ones, and the others' for those that it does not have."""
    if own is None:
        return standard
    return DiskThresholds(
        warn_free_share=standard.warn_free_share if own.warn_free_share is None else own.warn_free_share,
        min_free_share=standard.min_free_share if own.min_free_share is None else own.min_free_share,
        min_free_bytes=standard.min_free_bytes if own.min_free_bytes is None else own.min_free_bytes,
    )
