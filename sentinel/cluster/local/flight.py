"""Where ranks of `sentinel run` write what torch's flight recorders hold when a collective times out."""

import contextlib
import os
from collections.abc import Mapping

import msgspec
import structlog
from msgspec import Struct

from sentinel.core.stacks.flight_record import Stuck
from sentinel.util.children import ChildError, OutOfTime, ask, our_python

log = structlog.get_logger()

MOST_DUMPS = 4096
MOST_BYTES = 1 << 23  # of what is told of them
READ_S = 30.0
KEPT_STARTS = 3  # of a job
PREFIX = "flight-rank-"  # of the files that `sentinel run` has its ranks write
# Where ranks write. Torch 2.9 and later have another name and take this one too, so a program that sets either wins.
PLACE, PLACE_SINCE_2_9 = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"  # on by default in newer torch


class Records(Struct, frozen=True, kw_only=True):
    """Of flight recorders. `stuck` None: no rank waited for another. `notes`: what was left out, and why."""

    files: list[str]
    ranks: list[int]
    stuck: Stuck | None
    notes: list[str]


def wanted(prefix: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variables by which ranks write their records to files of this prefix when a collective times out, without
    those that the job has itself."""
    own = {} if PLACE in given or PLACE_SINCE_2_9 in given else {PLACE: prefix}
    return own if ON_TIMEOUT in given else own | {ON_TIMEOUT: "1"}


def in_folder(folder: str) -> list[str]:
    """What the ranks of a job of `sentinel run` wrote beside their logs."""
    try:
        found = [name for name in os.listdir(folder) if name.startswith(PREFIX)]
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(found)[:MOST_DUMPS]]


def prune(logs: str, incarnation: int) -> None:
    """Of the folders of all starts: records are as large as many logs, and only the last ones are looked at."""
    try:
        starts = [int(name) for name in os.listdir(logs) if name.isascii() and name.isdigit()]
    except OSError:
        return
    for start in starts:
        if start <= incarnation - KEPT_STARTS:
            for path in in_folder(os.path.join(logs, str(start))):
                with contextlib.suppress(OSError):
                    os.unlink(path)


async def stuck_in(folder: str) -> Stuck | None:
    """What the records of a job tell. Never raises; ends within READ_S and a moment, whatever they are."""
    if not (paths := in_folder(folder)):
        return None
    records = await read(paths)
    for note in records.notes:
        log.warning("flight_record_left_out", why=note)
    return records.stuck


async def read(paths: list[str], limit_s: float = READ_S) -> Records:
    """By a child, which files of anybody may break. Never raises: what could not be read is noted."""
    try:
        command = our_python("sentinel.cluster.local.flight_dumps")
        ended = await ask(command, msgspec.json.encode(paths), limit_s=limit_s, most_bytes=MOST_BYTES)
        if ended.code == 0:
            return msgspec.json.decode(ended.answer, type=Records)
        why = f"their reader ended with {ended.code}: {ended.last_line[:200]}"
    except OutOfTime:
        why = f"not read within {limit_s:g} s"
    except (ChildError, msgspec.DecodeError) as error:
        why = str(error)
    return Records(files=[], ranks=[], stuck=None, notes=[f"{os.path.dirname(paths[0]) or '.'}: {why}"])
