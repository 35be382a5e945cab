"""What `sentinel explain` was given: which of it is the log of a job, which a kernel log, and what is neither."""

import io
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator

from msgspec import Struct

from sentinel.cli.replay_open import NoLog, open_log
from sentinel.cli.replay_read import LogError, OldLog, is_stream_of_rank, rank_of_name
from sentinel.logs.kernel import KernelLog
from sentinel.logs.kernel_file import NotALog, saved_lines, unpacked

HEAD_BYTES = 1 << 16
HEAD_LINES = 400
MAX_FILES = 2000  # of a folder
MAX_DEPTH = 6
# Of lines without a prefix so many must be known kernel messages: people paste what they saw.
PASTED_SHARE = 0.3
PREFIXED_SHARE = 0.5
EPOCH_S = 1e9  # no machine runs so long: UCX and others begin their lines with [1700000000.123456]
# What dates a line as only kernel logs do: a syslog's tag, dmesg -T, dmesg --time-format iso, the journal's own forms.
_KERNELS = re.compile(
    rb"^(?:\S.{0,80} kernel: |(?:<\d{1,3}>)?\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "
    rb'|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]|__?[A-Z_]+=|.{0,4000}"(?:__REALTIME_TIMESTAMP|dmesg|pri)")',
    re.MULTILINE,
)


class Skipped(Struct, frozen=True):
    path: str
    why: str


class Given(Struct):
    """`jobs`: the logs of each job, one a rank."""

    jobs: list[list[OldLog]]
    kernel: list[str]
    skipped: list[Skipped]


def given(paths: Iterable[str]) -> Given:
    """Never raises for a file that cannot be read: it is skipped, and why is said."""
    found = Given([], [], [])
    for path in paths:
        if path != "-" and os.path.isdir(path):
            logs: list[OldLog] = []
            for one in _below(path, found.skipped):
                _sort(one, logs, found)
            found.jobs += _apart(logs)
        else:
            logs = []
            _sort(path, logs, found)
            found.jobs += [[log] for log in logs]
    single = [logs[0] for logs in found.jobs if len(logs) == 1]
    if len(single) == len(found.jobs):  # files that were named one by one
        found.jobs = ranks(single) or found.jobs
    return found


def _below(folder: str, skipped: list[Skipped]) -> Iterator[str]:
    """Its files in the order of their names; hidden ones are nobody's logs."""
    count = 0
    for place, folders, files in os.walk(folder):
        depth = os.path.relpath(place, folder).count(os.sep) + (place != folder)
        folders[:] = sorted(one for one in folders if not one.startswith(".")) if depth < MAX_DEPTH else []
        for name in sorted(files):
            if name.startswith("."):
                continue
            count += 1
            if count > MAX_FILES:
                skipped.append(Skipped(folder, f"more than {MAX_FILES:,} files; the others were not read"))
                return
            yield os.path.join(place, name)


def _sort(path: str, logs: list[OldLog], found: Given) -> None:
    try:
        if path != "-" and _is_kernel_log(path):
            found.kernel.append(path)
            return
        log = OldLog(path)
    except (NoLog, NotALog, OSError, EOFError, zlib.error) as error:
        found.skipped.append(Skipped(path, str(getattr(error, "strerror", None) or error)))
    except LogError as error:
        found.skipped.append(Skipped(path, str(error).removeprefix(f"{path}: ")))
    else:
        if log.empty:
            found.skipped.append(Skipped(path, "empty"))
        else:
            logs.append(log)


def _is_kernel_log(path: str) -> bool:
    """By its first lines. One that only bears a date may be anybody's, unless the date is in a form of dmesg's."""
    with open_log(path) as file:
        head = unpacked(file).read(HEAD_BYTES)
    if b"\0" in head[:1024] or b"Traceback (most recent call last)" in head:
        return False
    dated = _KERNELS.search(head) is not None
    told = KernelLog()
    lines = prefixed = known = 0
    for saved in saved_lines(io.BytesIO(head), time.time()):
        line = saved.line
        lines += 1
        uptime = line.uptime_s is not None and line.uptime_s < EPOCH_S
        prefixed += line.prefixed and line.from_kernel and (uptime or (line.uptime_s is None and dated))
        known += line.from_kernel and told.take(line.text, line.uptime_s) is not None
        if lines >= HEAD_LINES:
            break
    return bool(lines) and (prefixed >= PREFIXED_SHARE * lines or known >= PASTED_SHARE * lines)


def _apart(logs: list[OldLog]) -> list[list[OldLog]]:
    """The logs of one folder: ranks of one job where their names say which, else each a job of its own."""
    by_folder: dict[str, list[OldLog]] = {}
    for log in logs:
        folder = os.path.dirname(log.path)
        # torchrun has a folder for each rank: ATTEMPT/RANK/stderr.log
        of_job = os.path.dirname(folder) if is_stream_of_rank(log.path) else folder
        by_folder.setdefault(of_job, []).append(log)
    return [job for own in by_folder.values() for job in (ranks(own) or [[log] for log in own])]


def ranks(logs: list[OldLog]) -> list[list[OldLog]]:
    """As one job, where their names say which rank each is."""
    told = [rank_of_name(log.path) for log in logs]
    distinct = len(set(told)) == len(told) or all(is_stream_of_rank(log.path) for log in logs)
    return [logs] if len(logs) > 1 and None not in told and distinct else []
