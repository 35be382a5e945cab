"""Where ranks of `sentinel run` write what torch's flight recorders hold when a collective times out."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from sentinel.core.flight_record import Stuck

log = structlog.get_logger()

MOST_DUMPS = 4096
READ_S = 30.0
KEPT_STARTS = 3  # of a job
PREFIX = "flight-rank-"  # of the files that `sentinel run` has its ranks write
# Where ranks write, and how many operations they keep. Torch 2.9 and later take the second name too.
PLACES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
MOST_ENTRIES = 2000  # torch's own default where it has one
_CHILD = "import sys; sys.path.append(sys.argv.pop(1)); from sentinel.cluster.local.flight_dumps import main; main()"


def wanted(prefix: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variables by which ranks write their records to files of this prefix when a collective times out, without
    those that the job has itself."""
    own: dict[str, str] = {}
    if not any(name in given for name in PLACES):
        own = dict.fromkeys(PLACES, prefix)
    if not any(name in given for name in SIZES):
        own[SIZES[0]] = str(MOST_ENTRIES)  # not the second: that torch would warn of it in each log
    if DUMPS not in given:
        own[DUMPS] = "1"
    return own


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
    """What they tell. Read by a child, which gives back the memory that large ones take. Never raises."""
    if not in_folder(folder):
        return None
    child: asyncio.subprocess.Process | None = None
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _CHILD, str(Path(__file__).parents[3]), folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(READ_S):
            out, errors = await child.communicate()
        if child.returncode == 0:
            return msgspec.json.decode(out, type=Stuck | None)
        last = (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        log.warning("flight_records_unread", folder=folder, error=last)
    except (TimeoutError, OSError, msgspec.DecodeError) as error:
        log.warning(
            "flight_records_unread", folder=folder, error=str(error) or f"took longer than {READ_S:g} s"
        )
    finally:
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return None
