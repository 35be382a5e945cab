"""Reading what a job's supervisor wrote: the status files, whether or not the supervisor still lives."""

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from sentinel.cluster.local.supervisor import SLOT_BYTES
from sentinel.core.reports import Orphan, RankExit


class Header(Struct, frozen=True, kw_only=True):
    """The first slot. `run` is the random id in SENTINEL_RUN of every process of this incarnation."""

    incarnation: int
    size: int
    run: str
    boot_id: str
    port: int  # MASTER_PORT of the incarnation
    supervisor: int  # pid
    started_mono_s: float
    started_wall_s: float


class Slot(Struct, frozen=True, kw_only=True):
    """One rank. `ended_mono_s` None: it has not ended, as far as the supervisor saw."""

    rank: int
    pid: int
    start_ticks: int
    started_mono_s: float
    started_wall_s: float
    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    ended_mono_s: float | None = None
    ended_wall_s: float | None = None

    def exit(
        self, incarnation: int, stopped_by_us: bool = False, orphans: tuple[Orphan, ...] = ()
    ) -> RankExit:
        return RankExit(
            rank=self.rank,
            incarnation=incarnation,
            at_s=self.ended_mono_s or 0.0,
            code=self.code,
            signal=self.signal,
            oom_killed=self.oom_killed,
            stopped_by_us=stopped_by_us,
            orphans=orphans,
        )


class Status(Struct, frozen=True):
    """`slots` lacks a rank only where the supervisor was killed in the middle of a start."""

    header: Header
    slots: dict[int, Slot]
    orphans: tuple[Orphan, ...] = ()


_header = msgspec.json.Decoder(Header)
_slot = msgspec.json.Decoder(Slot)
_orphans = msgspec.json.Decoder(tuple[Orphan, ...])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def parse_status(data: bytes) -> Status | None:
    """None: no incarnation was started with this file (it is blank, or cut off)."""
    try:
        header = _header.decode(data[:SLOT_BYTES])
    except msgspec.DecodeError:
        return None
    slots = {}
    for index in range(1, header.size + 1):
        try:
            slot = _slot.decode(data[index * SLOT_BYTES : (index + 1) * SLOT_BYTES])
        except msgspec.DecodeError:
            continue
        slots[slot.rank] = slot
    try:
        orphans = _orphans.decode(data[(header.size + 1) * SLOT_BYTES : (header.size + 2) * SLOT_BYTES])
    except msgspec.DecodeError:  # blank: there are none
        orphans = ()
    return Status(header, slots, orphans)


def read_status(job_dir: Path) -> Status | None:
    """The newest incarnation that was started. None: there was none, or its files are gone."""
    newest: Status | None = None
    for name in ("status.0", "status.1"):
        try:
            fd = os.open(job_dir / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            status = parse_status(os.pread(fd, os.fstat(fd).st_size, 0))
        finally:
            os.close(fd)
        if status and (newest is None or status.header.incarnation > newest.header.incarnation):
            newest = status
    return newest
