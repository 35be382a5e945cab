"""Processes that the kernel killed for memory, with the control group that they were in.

One number in /proc/vmstat tells that it happened; only then are the groups walked to see whose it was.
"""

import os
from pathlib import Path

from sentinel.checks.base import Look, Unknown
from sentinel.checks.storable import storable
from sentinel.checks.xid import job_of_cgroup, named_pod
from sentinel.core.health import Component, Finding, Severity

MAX_GROUPS = 20_000
# cgroup v2, then v1 (since Linux 4.13). A v2 file counts the groups below it too: the deepest ones name the place.
_FILES = ("memory.events", "memory.oom_control")


def count_of(text: str) -> int:
    """The `oom_kill N` line of either file, and of /proc/vmstat. Raises ValueError where there is none."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    raise ValueError("no oom_kill count")


def hierarchy(sysfs: Path) -> Path:
    """Where the memory controller's groups are: cgroup v1 beside others, else v2."""
    old = sysfs / "fs/cgroup/memory"
    return old if (old / _FILES[1]).exists() else sysfs / "fs/cgroup"


def walk(root: Path) -> dict[str, int]:
    """Group -> processes that were killed for memory in it or below it. A group that goes meanwhile is left out."""
    counts: dict[str, int] = {}
    for folder, folders, files in os.walk(root):
        for name in _FILES:
            if name in files:
                try:
                    text = Path(folder, name).read_text()
                    counts[storable(folder.removeprefix(str(root))) or "/"] = count_of(text)
                except (OSError, ValueError):
                    pass
        if len(counts) >= MAX_GROUPS:
            folders.clear()
    return counts


def blame(before: dict[str, int], after: dict[str, int], nested: bool) -> dict[str, int]:
    """Group -> new kills, in the deepest groups that had them. A group that is new counts from zero.

    `nested`: a count holds those of the groups below it (cgroup v2).
    """
    risen = {
        group: count - before.get(group, 0) if count >= before.get(group, 0) else count
        for group, count in after.items()
    }
    risen = {group: count for group, count in risen.items() if count}
    own = dict(risen)
    for group, count in risen.items() if nested else ():
        for parent in _parents(group):
            if parent in own:
                own[parent] -= count
                break
    return {group: count for group, count in own.items() if count > 0}


def _parents(group: str) -> list[str]:
    parts = group.strip("/").split("/") if group != "/" else []
    return ["/" + "/".join(parts[:length]) for length in range(len(parts) - 1, -1, -1)]


def _finding(group: str, count: int, pod_logs: str) -> Finding:
    return Finding(
        check="oom",
        component=Component.SYSTEM,
        entity=f"cgroup {group}" if group else "node",
        code="oom-kill",
        severity=Severity.WARNING,
        action="ADD_MEMORY",
        summary="The kernel killed processes for memory",
        evidence=(
            f"{count} killed in {group}"
            if group
            else f"{count} killed in a control group that is gone, or in none",
        ),
        event=True,
        count=count,
        cgroup=group,
        job=named_pod(job_of_cgroup(group), pod_logs),
    )


def check(look: Look) -> list[Finding]:
    vmstat, root = Path(look.settings.procfs, "vmstat"), hierarchy(Path(look.settings.sysfs))
    try:
        total = count_of(vmstat.read_text())
    except (OSError, ValueError) as error:
        raise Unknown(f"{vmstat}: {error}") from None
    saved = look.kept.saved
    if saved is not None and total == saved["total"]:
        return []
    groups = walk(root)
    look.kept.saved = {"total": total, "groups": {name: count for name, count in groups.items() if count}}
    if saved is None:
        return []  # what happened before the first look is the kernel log's to tell
    found = blame(saved["groups"], groups, nested=not (root / _FILES[1]).exists())
    rest = total - saved["total"] - sum(found.values())
    return [
        *(_finding(group, count, look.settings.pod_logs) for group, count in sorted(found.items())),
        *([_finding("", rest, "")] if rest > 0 else []),
    ]
