"""What a dead file server may hang: asks the child that makes the calls, and judges which do not return."""

import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import field

from sentinel.checks.base import Look
from sentinel.checks.child import ChildBroke, ChildHangs, ChildMemory, LineChild
from sentinel.checks.disk.mounts import Mount, Target, holding, of_pod, resolve
from sentinel.core.health import Component, Finding, Severity

DEADLINE_S = 5.0
PROBE_EVERY_S = 60.0
LASTING_S = (
    300.0  # a mount that jobs need and that hangs for so long isolates: a server that restarts takes 90 s
)
# No root of our own and no site packages: the file alone, which imports nothing else.
_CHILD = str(Path(__file__).with_name("mount_child.py"))
_NOT_OURS = {
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.ENOENT: "not there yet",
    errno.ENOTDIR: "no folder",
}


class Memory(ChildMemory):
    """What is known of calls from earlier samples, and the child that makes them."""

    deadline_s: float = DEADLINE_S  # of each call
    # Folder -> what the last write into it answered, and when it was begun.
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    probed_s: dict[str, float] = field(default_factory=dict)


class NotAsked(Exception):
    """The process that makes the calls did not work: nothing is known of network mounts."""


def ask(look: Look, targets: Sequence[Target], mounts: Sequence[Mount]) -> dict[str, Any]:
    """What the calls answered: "stat PATH" of each network mount, "write PATH" of each probe that is due.

    The child is started only where there is such a mount or probe. Raises NotAsked.
    """
    memory = look.kept.own(Memory)
    request: dict[str, Any] = {"deadline_s": memory.deadline_s}
    request["stat"] = [target.mount.path for target in targets if target.remote]
    due = _due(look, targets, mounts)
    request["write"] = [look.root + folder for folder in due]
    if not request["stat"] and not request["write"]:
        return {}
    if memory.child is None:
        memory.child = LineChild([sys.executable, "-I", "-S", _CHILD])
    try:
        line = memory.child.ask(json.dumps(request).encode(), 2 * memory.deadline_s)
        answers: dict[str, Any] = json.loads(line)
    except (ChildBroke, ChildHangs, ValueError) as error:
        raise NotAsked(f"network mounts are not seen: {error}") from None
    for folder in due:
        memory.probes[folder] = answers[f"write {look.root}{folder}"]
    return answers


def _due(look: Look, targets: Sequence[Target], mounts: Sequence[Mount]) -> list[str]:
    """Folders to write into now: each minute, and in every sample while the last write did not succeed."""
    memory = look.kept.own(Memory)
    probes, probed_s = memory.probes, memory.probed_s
    devices = {target.mount.device for target in targets}
    due = []
    folders = dict.fromkeys(resolve(folder, mounts) for folder in look.settings.disk.probe_writes)
    for folder in folders:
        mount = holding(folder, mounts)
        if mount is None or mount.device not in devices:  # ignored by the settings
            continue
        waits = look.now.mono_s - probed_s.get(folder, -PROBE_EVERY_S) < PROBE_EVERY_S
        if not waits or "values" not in probes.get(folder, {}):
            due.append(folder)
            probed_s[folder] = look.now.mono_s
    for folder in [folder for folder in probes if folder not in folders]:
        del probes[folder]
    return due


def judge_calls(
    look: Look,
    targets: Sequence[Target],
    mounts: Sequence[Mount],
    answers: dict[str, Any],
    since_s: dict[str, float],
) -> tuple[list[Finding], list[str]]:
    """Mounts that hang or refuse writes, and the probes that could not be made, in words.

    `since_s`: when each that hangs was first seen to (kept over restarts).
    """
    by_device = {target.mount.device: target for target in targets}
    hanging: dict[str, tuple[Target, str, bool]] = {}
    found, unprobed = [], []
    for target in targets:
        if "hangs_s" in (answer := answers.get(f"stat {target.mount.path}", {})):
            said = f"statvfs has not returned for {answer['hangs_s']:.0f} s"
            hanging[target.entity] = (target, said, target.needed)
    for folder, answer in look.kept.own(Memory).probes.items():
        mount = holding(folder, mounts)
        if mount is None or mount.device not in by_device:  # unmounted since
            continue
        target = by_device[mount.device]
        if "hangs_s" in answer:
            said = f"a write into {folder} has not returned for {answer['hangs_s']:.0f} s"
            hanging[target.entity] = (target, said, True)
        elif error := answer.get("error", 0):
            if error in _NOT_OURS:
                unprobed.append(f"no write probe in {folder}: {_NOT_OURS[error]}")
            else:
                found.append(_refused(target, folder, error))
    for entity in [entity for entity in since_s if entity not in hanging]:
        del since_s[entity]
    for entity, (target, said, needed) in hanging.items():
        lasted_s = look.now.mono_s - since_s.setdefault(entity, look.now.mono_s)
        found.append(_hangs(target, said, needed, lasted_s))
    return found, unprobed


def _hangs(target: Target, said: str, needed: bool, lasted_s: float) -> Finding:
    severity = Severity.WARNING
    if needed:
        # A pod's own dead server must not take the nodes that it runs on out of service.
        lasting = lasted_s >= LASTING_S and (target.watched or not of_pod(target.mount))
        severity = Severity.FATAL if lasting else Severity.DEGRADED
    server = f" from {target.mount.source}" if target.mount.network else ""
    return Finding(
        check="disk",
        component=Component.DISK,
        entity=target.entity,
        code="mount-hangs",
        severity=severity,
        action="CHECK_FILE_SERVER" if target.mount.network else "CHECK_FILE_SYSTEM",
        summary=f"{target.entity} hangs",
        evidence=(f"{target.entity} ({target.mount.fstype}{server}): {said}",),
    )


def _refused(target: Target, folder: str, error: int) -> Finding:
    """Not even a tiny file can be written. A quota is one user's matter, not the node's."""
    return Finding(
        check="disk",
        component=Component.DISK,
        entity=target.entity,
        code="disk-quota" if error == errno.EDQUOT else "write-fails",
        severity=Severity.WARNING if error == errno.EDQUOT else Severity.DEGRADED,
        action="FREE_SPACE" if error in (errno.EDQUOT, errno.ENOSPC) else "CHECK_FILE_SYSTEM",
        summary="A tiny file could not be written",
        evidence=(f"{folder}: {os.strerror(error)}",),
    )
