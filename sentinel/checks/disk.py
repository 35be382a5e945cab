"""Free space and inodes of the file systems under the watched paths, and whether they still take writes."""

import os

from sentinel.checks.base import Look, Unknown
from sentinel.core.model import Component, Finding, Severity
from sentinel.settings import DiskThresholds

ALWAYS_WATCHED = ("/tmp", "/dev/shm")


def _existing(path: str) -> str:
    """The path or its nearest existing parent: a checkpoint folder may be made only later."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _finding(path: str, code: str, severity: Severity, action: str, summary: str, evidence: str) -> Finding:
    return Finding(
        check="disk",
        component=Component.DISK,
        entity=path,
        code=code,
        severity=severity,
        action=action,
        summary=summary,
        evidence=(evidence,),
    )


def judge_disk(path: str, stats: os.statvfs_result, limits: DiskThresholds) -> list[Finding]:
    """Findings for one file system. Shares count what an unprivileged user can still take."""
    found = []
    size = stats.f_blocks * stats.f_frsize
    free = stats.f_bavail * stats.f_frsize
    if size and stats.f_flag & os.ST_RDONLY == 0:
        share = free / size
        evidence = f"{path}: {free / 1e9:.2f} GB of {size / 1e9:.2f} GB free ({share:.1%})"
        # A small file system (a /dev/shm of 64 MB) always has less than min_free_bytes: the share counts there.
        too_few_bytes = free < limits.min_free_bytes and size > 4 * limits.min_free_bytes
        if share < limits.min_free_share or too_few_bytes:
            found.append(
                _finding(
                    path,
                    "disk-space",
                    Severity.DEGRADED,
                    "FREE_SPACE",
                    "The file system is almost full",
                    evidence,
                )
            )
        elif share < limits.warn_free_share:
            found.append(
                _finding(
                    path,
                    "disk-space",
                    Severity.WARNING,
                    "FREE_SPACE",
                    "The file system is filling up",
                    evidence,
                )
            )
    if stats.f_files and stats.f_flag & os.ST_RDONLY == 0:  # btrfs and others count no inodes
        share = stats.f_favail / stats.f_files
        evidence = f"{path}: {stats.f_favail} of {stats.f_files} inodes free ({share:.1%})"
        if share < limits.min_free_share:
            found.append(
                _finding(
                    path,
                    "disk-inodes",
                    Severity.DEGRADED,
                    "FREE_INODES",
                    "Almost no inodes are left",
                    evidence,
                )
            )
        elif share < limits.warn_free_share:
            found.append(
                _finding(path, "disk-inodes", Severity.WARNING, "FREE_INODES", "Inodes run short", evidence)
            )
    return found


def _mount_point(path: str) -> str:
    """Names the file system, whichever of its paths is watched."""
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def _judge_read_only(mount: str, was_writable: bool) -> Finding:
    """A change to read-only is a fault; a file system that never took writes may be meant so."""
    return _finding(
        mount,
        "disk-read-only",
        Severity.DEGRADED if was_writable else Severity.WARNING,
        "CHECK_FILE_SYSTEM",
        "The file system takes no writes",
        f"{mount}: mounted read-only" + (", was writable before" if was_writable else ""),
    )


def check(look: Look) -> list[Finding]:
    found: list[Finding] = []
    problems: list[str] = []
    seen: set[str] = set()
    writable: set[str] = look.kept.setdefault("writable", set())
    for watched in (*look.paths, *ALWAYS_WATCHED):
        try:
            mount = _mount_point(os.path.realpath(_existing(os.path.abspath(watched))))
            if mount in seen:
                continue
            seen.add(mount)
            stats = os.statvfs(mount)
        except OSError as error:
            problems.append(f"{watched}: {error.strerror}")
            continue
        found += judge_disk(mount, stats, look.settings.disk)
        if not stats.f_flag & os.ST_RDONLY:
            writable.add(mount)
        elif mount in writable or watched in look.paths:
            found.append(_judge_read_only(mount, mount in writable))
    if problems:
        raise Unknown("; ".join(problems), tuple(found))
    return found
