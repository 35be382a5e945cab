"""The processes of pods on this machine, found by their containers' control groups.

A container's id stands in /proc/PID/cgroup whatever namespaces the reader is in: with a control group namespace of
its own a container sees no other groups below /sys/fs/cgroup.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from sentinel.cluster.local.processes import (
    TICKS_PER_S,
    WRAPPERS,
    Proc,
    age,
    children_of,
    cmdline,
    find_ranks,
    is_same,
    program,
    read_proc,
    read_text,
    scan,
)
from sentinel.core.agents.orders import PodRank
from sentinel.core.job import hold

CGROUP_BYTES = 16384
SANDBOX = "pause"


class Held(Struct, frozen=True):
    """A container that is kept after its command has ended in error. `since_s`: CLOCK_BOOTTIME of that."""

    wrapper: Proc
    code: int
    since_s: float


class Pods:
    """Remembers the first process of each container, so that only a new one is searched for."""

    def __init__(self) -> None:
        self._roots: dict[str, Proc] = {}  # container id -> its first process
        self._wrappers: dict[str, Proc] = {}  # container id -> the process that may hold it

    def ranks(self, pods: Iterable[PodRank]) -> dict[int, dict[int, Proc]]:
        """Rank of the controller (a pod) -> the program's ranks in it, by their own numbers. A pod whose container
        has no process here, or none but what it is kept for, is left out."""
        table = scan()
        wanted = {pod.rank: pod.container_id for pod in pods if pod.container_id}
        roots = self._found(set(wanted.values()), table)
        found = {}
        for rank, id in wanted.items():
            if id in roots:
                wrapper = _wrapper(roots[id], table)
                if wrapper is None or _held(wrapper) is None:
                    found[rank] = find_ranks(roots[id], table)
        return found

    def held(self, pods: Iterable[PodRank], *, search: bool) -> dict[int, Held]:
        """Rank of the controller -> how its command ended, where its container is kept. Without `search` only among
        the wrappers that are known, which costs two small files each."""
        wanted = {pod.rank: pod.container_id for pod in pods if pod.container_id and pod.hold}
        for id in set(wanted.values()):
            if (known := self._wrappers.get(id)) is not None and not is_same(known.pid, known.start_ticks):
                del self._wrappers[id]
        if search and (unknown := set(wanted.values()) - self._wrappers.keys()):
            table = scan()
            for id, root in self._found(unknown, table).items():
                if (wrapper := _wrapper(root, table)) is not None:
                    self._wrappers[id] = wrapper
        all_held = {rank: _held(self._wrappers[id]) for rank, id in wanted.items() if id in self._wrappers}
        return {rank: held for rank, held in all_held.items() if held is not None}

    def unknown(self, pods: Iterable[PodRank]) -> bool:
        """Is there a wrapper that `held` would have to search for?"""
        return any(pod.hold and pod.container_id and pod.container_id not in self._wrappers for pod in pods)

    def members(self, pods: Iterable[PodRank]) -> dict[int, list[Proc]]:
        """All processes of each pod's container, zombies and those that `kubectl exec` began included."""
        by_id = _members({pod.container_id for pod in pods if pod.container_id}, scan())
        return {pod.rank: by_id[pod.container_id] for pod in pods if pod.container_id in by_id}

    def processes(self, uids: Iterable[str]) -> list[Proc]:
        """All that runs in these pods, in whatever containers; but what only keeps the sandbox: the kubelet answers its
        end by making all of the pod anew."""
        names = [name for uid in uids for name in (uid, uid.replace("-", "_"))]  # cgroupfs, systemd
        found = []
        for proc in scan().values():
            group = read_text(f"/proc/{proc.pid}/cgroup", CGROUP_BYTES)
            if (
                any(f"pod{name}" in group for name in names)
                and not proc.dead
                and program(proc.pid) != SANDBOX
            ):
                found.append(proc)
        return found

    def forget(self, container_ids: Iterable[str]) -> None:
        for id in container_ids:
            self._roots.pop(id, None)
            self._wrappers.pop(id, None)

    def _found(self, ids: set[str], table: Mapping[int, Proc]) -> dict[str, Proc]:
        roots = {}
        for id in ids:
            before = self._roots.get(id)
            now = table.get(before.pid) if before is not None else None
            if before is not None and now is not None and now.start_ticks == before.start_ticks:
                roots[id] = now
        for id, members in _members(ids - roots.keys(), table).items():
            alive = {proc.pid: proc for proc in members if not proc.dead}
            tops = [proc for proc in alive.values() if proc.ppid not in alive]
            if tops:  # what `kubectl exec` began came later
                roots[id] = self._roots[id] = min(tops, key=age)
        return roots


def _wrapper(root: Proc, table: Mapping[int, Proc]) -> Proc | None:
    """The hold wrapper at a container's root, or below shells that run it."""
    children = children_of(table)
    proc = root
    while program(proc.pid) in WRAPPERS:
        if hold.runs(cmdline(proc.pid)):
            return proc
        alive = [child for child in children.get(proc.pid, ()) if not child.dead]
        if len(alive) != 1:
            break
        proc = alive[0]
    return None


def _held(wrapper: Proc) -> Held | None:
    for pid in _children(wrapper.pid):
        code = hold.held_code(cmdline(pid))
        child = read_proc(pid) if code is not None else None
        if code is not None and child is not None and child.ppid == wrapper.pid and not child.dead:
            return Held(wrapper, code, child.start_ticks / TICKS_PER_S)
    return None


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:  # gone, or a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in children_of(scan()).get(pid, ())] if read_proc(pid) else []
    except OSError:
        return []


def _members(ids: set[str], table: Mapping[int, Proc]) -> dict[str, list[Proc]]:
    found: dict[str, list[Proc]] = {}
    if not ids:
        return found
    for proc in table.values():
        text = read_text(f"/proc/{proc.pid}/cgroup", CGROUP_BYTES)
        for id in ids:
            if id in text:
                found.setdefault(id, []).append(proc)
                break
    return found


def groups_of(pids: Iterable[int]) -> frozenset[str]:
    """The control groups of processes as the kernel names them; none where a namespace hides them."""
    found = (line for pid in pids for line in read_text(f"/proc/{pid}/cgroup", CGROUP_BYTES).split("\n"))
    named = (line.split(":", 2) for line in found if line.count(":") >= 2)
    groups = (group for _, kinds, group in named if not kinds or "memory" in kinds.split(","))
    return frozenset(group for group in groups if group != "/" and not group.startswith("/.."))
