"""What `sentinel explain` was given: logs of jobs, kernel logs, records of flight recorders, and what is none."""

import contextlib
import io
import os
import re
import stat
import time
import zlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

from sentinel.cluster.local.flight_dumps import is_dump
from sentinel.logs.kernel import KernelLog
from sentinel.logs.kernel_file import NotALog, saved_lines
from sentinel.replay.rank_names import (
    NAMED,
    in_order,
    is_stream_of_rank,
    one_each,
    rank_of_name,
    without_gaps,
)
from sentinel.replay.read import LogError, OldLog
from sentinel.replay.saved import NoLog, head_of, is_binary
from sentinel.transport.open_files import raise_limit

HEAD_LINES = 400
MAX_FILES = 2000  # of all folders together
SPARE_FILES = 64  # descriptors that are for others
MAX_DEPTH = 6
PREFIXED_SHARE = 0.5
KNOWN_SHARE = 0.3  # of lines without a prefix: people paste what they saw
EPOCH_S = 1e9  # no machine runs so long: UCX and others begin their lines with [1700000000.123456]
# What dates a line as only kernel logs do: a syslog's tag, dmesg -T, dmesg --time-format iso, the journal's own forms.
_KERNELS = re.compile(
    rb"^(?:.{0,30}\d\d:\d\d:\d\d\S{0,20}(?: [A-Z]{3,5})? (?:\S{1,80} )?(?:kern\.\w+ )?kernel: "
    rb"|<\d{1,3}>1 \S+ \S+ kernel |\d+,\d+,\d+,[^;\n]{1,20};"
    rb"|(?:<\d{1,3}>)?\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]|\d{9,11}\.\d+ \S+ kernel: "
    rb'|_{0,2}[A-Z_]+=|.{0,4000}"(?:__REALTIME_TIMESTAMP|dmesg|fac)")',
    re.MULTILINE,
)
# Words of kernels, for logs that only tell the time since a boot and no fault that is known.
_WORDS = re.compile(
    rb"Linux version |NVRM|nvidia|usb \d|pci \d{4}:|ACPI|audit: |EXT4-fs|systemd\[1\]|mlx5|nvme|eth\d"
    rb"|XFS \(|I/O error, dev|traps: |segfault at|mce: |cgroup|Call Trace|perf: |BUG: |WARNING: CPU"
)
_UPTIME = re.compile(rb"^(?:<\d{1,3}>)?\[ *\d+\.\d{6}\]", re.MULTILINE)
_STREAM = re.compile(r"\.(?:out|err)$")


class Skipped(Struct, frozen=True):
    path: str
    why: str


class Given(Struct):
    """`jobs`: the logs of each job, with their ranks."""

    jobs: list[list[OldLog]]
    kernel: list[str]
    records: list[str]  # of flight recorders
    skipped: list[Skipped]


def given(paths: Iterable[str]) -> Given:
    """Never raises for a file that cannot be read: it is skipped, and why is said."""
    found = Given([], [], [], [])
    logs: list[OldLog] = []
    seen: set[tuple[int, int]] = set()
    for path in _files(paths, found.skipped, _most_files()):
        with contextlib.suppress(OSError):  # told where it is opened
            known = os.stat(path) if path != "-" else None
            if known is not None and (known.st_dev, known.st_ino) in seen:
                continue
            if known is not None:
                seen.add((known.st_dev, known.st_ino))
        _sort(path, logs, found)
    found.jobs = _jobs(logs)
    return found


def _most_files() -> int:
    """Each log is held open."""
    return max(1, min(MAX_FILES, raise_limit(MAX_FILES + SPARE_FILES) - SPARE_FILES))


def _files(paths: Iterable[str], skipped: list[Skipped], most: int) -> Iterator[str]:
    """Those of folders in the order of their names; hidden ones are nobody's logs."""
    count = 0
    for path in paths:
        for one in [path] if path == "-" or not os.path.isdir(path) else _below(path, skipped):
            count += 1
            if count > most:
                skipped.append(Skipped(path, f"more than {most:,} files: those from {one} on were not read"))
                return
            yield one


def _below(folder: str, skipped: list[Skipped]) -> Iterator[str]:
    def refused(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), error.strerror or str(error)))

    for place, folders, files in os.walk(folder, onerror=refused):
        depth = os.path.relpath(place, folder).count(os.sep) + (place != folder)
        folders[:] = (
            sorted((one for one in folders if not one.startswith(".")), key=in_order)
            if depth < MAX_DEPTH
            else []
        )
        for name in sorted(files, key=in_order):
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                if not stat.S_ISREG(os.stat(path).st_mode):
                    continue  # what never ends is no log
            if not name.startswith("."):
                yield path


# ---------------------------------------------------------------- kernel or job


def _sort(path: str, logs: list[OldLog], found: Given) -> None:
    try:
        if path != "-" and stat.S_ISFIFO(os.stat(path).st_mode):
            raise NoLog("a pipe; give what it holds as standard input: … | sentinel explain -")
        head = head_of(path)
        if is_dump(head):
            found.records.append(path)
            return
        if _is_kernel_log(head):
            found.kernel.append(path)
            return
        log = OldLog(path, whole=False)
    except (NoLog, NotALog, OSError, zlib.error) as error:
        found.skipped.append(Skipped(path, str(getattr(error, "strerror", None) or error)))
    except LogError as error:
        found.skipped.append(Skipped(path, str(error).removeprefix(f"{path}: ")))
    else:
        if log.empty:
            found.skipped.append(Skipped(path, "empty"))
        else:
            logs.append(log)


def _is_kernel_log(head: bytes) -> bool:
    """By its first lines. One that only bears a date may be anybody's, unless the date is in a form of dmesg's."""
    head = head.replace(b"\0", b"")  # of a machine that lost its power; UTF-16 of PowerShell
    if is_binary(head) or b"Traceback (most recent call last)" in head:
        return False
    tagged = _KERNELS.search(head) is not None
    worded = _UPTIME.search(head) is not None and _WORDS.search(head) is not None
    told = KernelLog()
    lines = prefixed = known = 0
    for saved in saved_lines(io.BytesIO(head), time.time()):
        line = saved.line
        lines += 1
        known += line.from_kernel and told.take(line.text, line.uptime_s) is not None
        uptime = line.uptime_s is not None and line.uptime_s < EPOCH_S
        # A syslog has the lines of all programs; that it has the kernel's says the tag.
        prefixed += line.prefixed and (tagged or (uptime and line.from_kernel and worded))
        if lines >= HEAD_LINES:
            break
    return bool(lines) and (prefixed >= PREFIXED_SHARE * lines or known >= KNOWN_SHARE * lines)


# ---------------------------------------------------------------- which logs are one job's


def _jobs(logs: list[OldLog]) -> list[list[OldLog]]:
    """Ranks of one job where names of a folder differ in the rank alone; an .out and its .err; else each alone."""
    groups: dict[tuple[str, str], list[OldLog]] = {}
    for log in logs:
        groups.setdefault(_family(log.path), []).append(log)
    jobs = []
    for (_, name), own in groups.items():
        if name and (ranked := _ranked(own)):
            jobs.append(ranked)
            continue
        if len(own) == 2 and not name:
            own[0].rank = own[1].rank = 0
            jobs.append(own)
            continue
        for log in own:
            log.rank = 0
            jobs.append([log])
    return jobs


def _family(path: str) -> tuple[str, str]:
    """What the logs of the ranks of one job have in common, and "" where the name tells no rank."""
    folder, name = os.path.split(path)
    if is_stream_of_rank(path):  # torchrun: ATTEMPT/RANK/stderr.log
        return os.path.dirname(folder), "RANK/"
    bare = name.removesuffix(".gz")
    if match := NAMED.search(bare):
        return folder, f"{bare[: match.start(1)]}RANK{bare[match.end(1) :]}"
    return (os.path.join(folder, _STREAM.sub("", bare)), "") if _STREAM.search(bare) else (path, "")


def _ranked(own: list[OldLog]) -> list[OldLog]:
    """With their ranks; none where the numbers have too many gaps to be ranks."""
    ranks = [rank for log in own if (rank := rank_of_name(log.path)) is not None]
    for log, rank in zip(own, ranks, strict=True):
        log.rank = rank
    return (
        own
        if len(set(ranks)) > 1 and one_each(ranks, [log.path for log in own]) and without_gaps(ranks)
        else []
    )
