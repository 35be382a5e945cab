"""File systems: space, inodes, whether they take writes, answer at all, and are mounted.

What jobs need (the watched paths, NEEDED_PATHS, the mounts that the settings name, network volumes of pods) is
`degraded` when it fails, which keeps jobs off; of other file systems people are only told. A local file system
that is full (`disk-space`, `disk-inodes`) is this node's matter; that of a file server (`network-disk-space`,
`network-disk-inodes`) is full for every node.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from sentinel.checks.base import Look, Measure, Unknown
from sentinel.checks.disk.mount_calls import NotAsked, ask, judge_calls
from sentinel.checks.disk.mounts import Mount, Target, read_mounts, targets
from sentinel.checks.node_root import HIDDEN, is_hidden
from sentinel.checks.shape import expected, judged
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import Settings, Shape

# A threshold is left only so far above it: what hovers there does not flap.
MARGIN = 1.1
# ext4 since Linux 6.15 leaves the read-only flag alone and says this instead (fs/ext4/super.c).
BROKEN_OPTIONS = frozenset({"emergency_ro", "shutdown"})
_DENIED = (errno.EACCES, errno.EPERM)
_GONE = (errno.ENOENT, errno.ENOTDIR)  # unmounted since the table was read


class Stats(Struct, frozen=True):
    """What statvfs says, of users without privileges: `free` is what they can still take."""

    size_bytes: int
    free_bytes: int
    inodes: int  # 0: this file system counts none (btrfs, vfat)
    free_inodes: int
    read_only: bool

    @classmethod
    def of(cls, values: list[int]) -> "Stats":
        """Of block size, blocks, available blocks, inodes, available inodes, flags."""
        block, blocks, available, inodes, free_inodes, flags = values
        return cls(blocks * block, available * block, inodes, free_inodes, bool(flags & os.ST_RDONLY))


def _severity(
    free: float, limits: tuple[float, float], last: Severity | None, most: float
) -> Severity | None:
    """`limits`: under the first it is degraded, under the second a warning. `last`: what it was until now."""
    least, warn = limits

    def under(limit: float, inside: bool) -> bool:
        return free < (max(limit, min(limit * MARGIN, (limit + most) / 2)) if inside else limit)

    if under(least, last is Severity.DEGRADED):
        return Severity.DEGRADED
    return Severity.WARNING if under(warn, last is not None) else None


def judge_space(target: Target, stats: Stats, last: Mapping[str, Severity]) -> list[Finding]:
    """Space and inodes of one file system. `last`: the severity of each code in the sample before."""
    if stats.read_only:
        return []
    limits = target.limits
    found = []
    if stats.size_bytes:
        share = stats.free_bytes / stats.size_bytes
        code = "network-disk-space" if target.mount.network else "disk-space"
        severity = _severity(share, (limits.min_free_share, limits.warn_free_share), last.get(code), 1.0)
        # A small file system (a /dev/shm of 64 MB) always has less than min_free_bytes: the share counts there.
        if stats.size_bytes > 4 * limits.min_free_bytes:
            few = _severity(
                stats.free_bytes, (limits.min_free_bytes, 0.0), last.get(code), float(stats.size_bytes)
            )
            severity = few if few is Severity.DEGRADED else severity
        amounts = f"{stats.free_bytes / 1e9:.2f} GB of {stats.size_bytes / 1e9:.2f} GB free ({share:.1%})"
        texts = ("The file system is almost full", "The file system is filling up")
        found += _too_little(target, code, severity, texts, "FREE_SPACE", amounts)
    if stats.inodes:
        share = stats.free_inodes / stats.inodes
        code = "network-disk-inodes" if target.mount.network else "disk-inodes"
        severity = _severity(share, (limits.min_free_share, limits.warn_free_share), last.get(code), 1.0)
        amounts = f"{stats.free_inodes} of {stats.inodes} inodes free ({share:.1%})"
        texts = ("Almost no inodes are left", "Inodes run short")
        found += _too_little(target, code, severity, texts, "FREE_INODES", amounts)
    return found


def _too_little(
    target: Target, code: str, severity: Severity | None, texts: tuple[str, str], action: str, amounts: str
) -> list[Finding]:
    if severity is None:
        return []
    if not target.of_node:
        severity = Severity.WARNING
    text = texts[0] if severity is Severity.DEGRADED else texts[1]
    return [finding(target, code, severity, action, text, f"{target.entity}: {amounts}")]


def finding(
    target: Target, code: str, severity: Severity, action: str, summary: str, evidence: str
) -> Finding:
    return Finding(
        check="disk",
        component=Component.DISK,
        entity=target.entity,
        code=code,
        severity=severity,
        action=action,
        summary=summary,
        evidence=(evidence,),
    )


def judge_read_only(target: Target, read_only: bool, was_writable: bool) -> list[Finding]:
    """A change to read-only is a fault; a file system that never took writes may be meant so."""
    mount = target.mount
    if broken := mount.super_options & BROKEN_OPTIONS:
        why = f"{', '.join(sorted(broken))}: the kernel ended writing after an error"
    elif mount.holds_data and "rw" in mount.options and "ro" in mount.super_options:
        why = "mounted to be written, and turned read-only by itself"
    elif read_only and was_writable:
        why = "mounted read-only, was writable before"
    elif read_only and target.watched:
        why = "mounted read-only"
    else:
        return []
    proved = why != "mounted read-only"
    return [
        finding(
            target,
            "disk-read-only",
            Severity.DEGRADED if proved and target.needed else Severity.WARNING,
            "CHECK_FILE_SYSTEM",
            "The file system takes no writes",
            f"{target.entity}: {why}",
        )
    ]


def _recorded_errors(look: Look, target: Target) -> int | None:
    """How many errors ext4 has recorded in its superblock, where they stay until fsck. None: not known."""
    if target.mount.fstype not in ("ext2", "ext3", "ext4"):
        return None
    device = Path(look.settings.sysfs, "dev/block", target.mount.device)
    try:
        folder = Path(look.settings.sysfs, "fs/ext4", os.path.basename(os.readlink(device)))
        return int((folder / "errors_count").read_text())
    except (OSError, ValueError):  # not of this kernel, or not shown to this container
        return None


def _judge_errors(target: Target, count: int, at_first: int) -> list[Finding]:
    """Old errors are told; new ones weigh more."""
    if not count:
        return []
    fresh = f", {count - at_first} of them new" if count > at_first else ""
    return [
        finding(
            target,
            "fs-errors",
            Severity.DEGRADED if fresh and target.needed else Severity.WARNING,
            "CHECK_FILE_SYSTEM",
            "The file system has recorded errors: it needs fsck",
            f"{target.entity}: {count} error{'s' if count > 1 else ''}{fresh}",
        )
    ]


def judge_missing(shape: Shape, mounts: tuple[Mount, ...]) -> list[Finding]:
    """Expected mount points on which nothing is mounted. What autofs mounts on demand counts as there."""
    there = {mount.point for mount in mounts}
    on_demand = tuple(mount.point + "/" for mount in mounts if mount.fstype == "autofs")
    return [
        Finding(
            check="disk",
            component=Component.DISK,
            entity=point,
            code="mount-missing",
            severity=judged(shape, Severity.DEGRADED),
            action="MOUNT",
            summary="An expected file system is not mounted",
            evidence=(f"{point}: not in mountinfo; {expected(shape, 'mounts')}",),
        )
        for point in shape.mounts or ()
        if point.rstrip("/") not in there and not point.startswith(on_demand) and point != "/"
    ]


def _measures(target: Target, stats: Stats) -> tuple[Measure, ...]:
    """In the names of node_exporter's file system collector."""
    mount = target.mount
    labels = (("device", mount.source), ("fstype", mount.fstype), ("mountpoint", target.entity))
    values = {
        "avail_bytes": stats.free_bytes,
        "size_bytes": stats.size_bytes,
        "files": stats.inodes,
        "files_free": stats.free_inodes,
        "readonly": int(stats.read_only),
    }
    return tuple(Measure(f"node_filesystem_{name}", labels, float(value)) for name, value in values.items())


def full_now(settings: Settings, paths: Sequence[str]) -> list[Finding]:
    """Which local file systems that jobs need are full at this moment. Calls nothing that a network may hang."""
    try:
        mounts = read_mounts(settings.procfs)
    except OSError:
        return []
    found: list[Finding] = []
    for target in targets(settings, paths, mounts):
        if target.needed and not target.remote:
            values, _ = _stat(target, {})
            found += judge_space(target, Stats.of(values), {}) if values is not None else []
    return [item for item in found if item.severity is Severity.DEGRADED]


def check(look: Look) -> list[Finding]:
    if is_hidden(look.root):
        raise Unknown(HIDDEN)
    try:
        mounts = read_mounts(look.settings.procfs, look.root)
    except OSError as error:
        raise Unknown(f"{error.filename}: {error.strerror}: no file system can be looked at") from None
    every = targets(look.settings, look.paths, mounts)
    found = judge_missing(look.settings.shape, mounts)
    problems: dict[bool, list[str]] = {
        True: [],
        False: [],
    }  # that make the answer unknown; of other file systems
    try:
        answers = ask(look, every, mounts)
    except NotAsked as error:
        answers = {}
        problems[True].append(str(error))
    measures: list[Measure] = []
    before: dict[str, Any] = look.kept.saved or {}
    if before.get("root", "") != look.root:  # others' file systems have the same names
        before = {}
    after: dict[str, Any] = {"root": look.root, "writable": [], "too_little": {}, "errors": {}}
    for target in every:
        entity = target.entity
        values, number = _stat(target, answers)
        if values is not None:
            stats = Stats.of(values)
            measures += _measures(target, stats)
            last = before.get("too_little", {}).get(entity, {})
            little = judge_space(target, stats, {code: Severity(text) for code, text in last.items()})
            if little:
                after["too_little"][entity] = {item.code: item.severity.value for item in little}
            was_writable = entity in before.get("writable", ())
            found += little + judge_read_only(target, stats.read_only, was_writable)
            if was_writable or not stats.read_only:
                after["writable"].append(entity)
        elif number in _DENIED:
            problems[target.watched].append(f"{entity}: {os.strerror(number)}")
        elif number and number not in _GONE:
            found.append(_answers_with(target, number))
        if (errors := _recorded_errors(look, target)) is not None:
            after["errors"][entity] = min(errors, before.get("errors", {}).get(entity, errors))
            found += _judge_errors(target, errors, after["errors"][entity])
    after["hangs"] = dict(before.get("hangs", {}))
    hanging, unprobed = judge_calls(look, every, mounts, answers, after["hangs"])
    look.kept.saved = after
    look.kept.measures = tuple(measures)
    unset = [expected(look.settings.shape, "mounts")] if look.settings.shape.mounts is None else []
    look.kept.detail = "; ".join((*problems[False], *unprobed, *unset))
    if problems[True]:
        raise Unknown("; ".join(problems[True]), tuple(found + hanging))
    return found + hanging


def _stat(target: Target, answers: dict[str, Any]) -> tuple[list[int] | None, int]:
    """Values of statvfs, or its errno (0: it hangs). Only what a network cannot hang is called from here."""
    if target.remote:
        answer = answers.get(f"stat {target.mount.path}", {})
        return answer.get("values"), answer.get("error", 0)
    try:
        stats = os.statvfs(target.mount.path)
    except OSError as error:
        return None, error.errno or errno.EIO
    return [
        stats.f_frsize,
        stats.f_blocks,
        stats.f_bavail,
        stats.f_files,
        stats.f_favail,
        stats.f_flag,
    ], 0


def _answers_with(target: Target, error: int) -> Finding:
    """A FUSE file system without its process (ENOTCONN), a stale handle, a file system that was shut down."""
    return finding(
        target,
        "mount-error",
        Severity.DEGRADED if target.of_node else Severity.WARNING,
        "REMOUNT" if target.mount.network else "CHECK_FILE_SYSTEM",
        "The file system answers with an error",
        f"{target.entity} ({target.mount.fstype}): {os.strerror(error)}",
    )
