"""One pass over /proc: how many processes there are, which are zombies, stuck in the kernel, or rich in descriptors.

About 10 µs for each process, so that a node with 2,000 of them costs some 20 ms: one check makes the pass and
judges all of it.
"""

import os

from msgspec import Struct

# Default soft limit of descriptors is 1,024: a process with fewer than this is not near any usual limit.
MANY_FDS = 800
PF_KTHREAD = 0x00200000  # include/linux/sched.h
INIT_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


class Process(Struct, frozen=True, gc=False):
    """From /proc/PID/stat, see proc_pid_stat(5)."""

    pid: int
    name: str  # at most 15 characters
    state: str
    parent: int
    kernel_thread: bool
    threads: int
    started_ticks: int  # since boot; with the pid it names a process for good


class Scan(Struct):
    """What one pass found. Only unusual processes are kept."""

    count: int = 0
    zombies: list[Process] = []
    blocked: list[Process] = []  # in D, or a dead leader whose other threads do not end
    many_fds: list[tuple[Process, int]] = []


def parse_stat(data: bytes) -> Process:
    """Raises ValueError or IndexError. The name may hold spaces and parentheses: the last one ends it."""
    begin, end = data.index(b"("), data.rindex(b")")
    fields = data[end + 2 :].split()
    return Process(
        pid=int(data[:begin]),
        name=data[begin + 1 : end].decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        kernel_thread=bool(int(fields[6]) & PF_KTHREAD),
        threads=int(fields[17]),
        started_ticks=int(fields[19]),
    )


def in_hosts_pid_namespace(procfs: str) -> bool:
    """Whether /proc shows the processes of the whole machine, and not only those of a container."""
    return os.path.realpath(os.path.join(procfs, "self/ns/pid")).endswith(INIT_PID_NAMESPACE)


def scan(procfs: str) -> Scan:
    """Raises OSError when /proc itself cannot be read; a process that ends meanwhile is left out."""
    found = Scan()
    root = os.open(procfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sized = _has_sizes(root)
        for name in os.listdir(root):
            if name[0] not in "123456789":
                continue
            try:
                _look_at(name, root, sized, found)
            except (OSError, ValueError, IndexError):  # it ended, or is half gone
                continue
    finally:
        os.close(root)
    return found


def _look_at(name: str, root: int, sized: bool, found: Scan) -> None:
    data = read_at(f"{name}/stat", root)
    found.count += 1
    state = data[data.rindex(b")") + 2 : data.rindex(b")") + 3]
    if state in (b"D", b"Z"):
        process = parse_stat(data)
        if state == b"Z":
            found.zombies.append(process)
        if state == b"D" or process.threads > 1:
            found.blocked.append(process)
    if state != b"Z":
        fds = _fds(name, root, sized)
        if fds >= MANY_FDS:
            found.many_fds.append((parse_stat(data), fds))


def _has_sizes(root: int) -> bool:
    """Since Linux 6.2 the size of /proc/PID/fd is the number of descriptors; we have some ourselves."""
    try:
        return os.stat("self/fd", dir_fd=root).st_size > 0
    except OSError:
        return False


def _fds(name: str, root: int, sized: bool) -> int:
    """0 where another user's cannot be counted."""
    try:
        if sized:
            return os.stat(f"{name}/fd", dir_fd=root).st_size
        folder = os.open(f"{name}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    except OSError:
        return 0
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0
    finally:
        os.close(folder)


def read_at(path: str, root: int, limit: int = 4096) -> bytes:
    """A small file of /proc. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)
