"""Writes down what the leading controller decides from, for `sentinel replay --fleet`: JSON lines, bounded in size.

The controller's loop only notes what has changed; one thread encodes and writes. A disk that hangs or is full stops
nothing: what could not be written is missed, and the next file begins with everything that is known.
"""

import os
import queue
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog
from msgspec import structs

from sentinel.core.fleet.events import Decision
from sentinel.core.fleet.model import FleetPicture, NodePicture, NodeQuarantine, PodPicture
from sentinel.core.fleet.recording import FRESH_S, NOW, Beat, Entry, Heard, Record, Round, Shown, Start, Told
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.now import Now
from sentinel.core.reports import Report

FILES = 4  # each begins with everything, so any of them can be replayed alone
WAITING = 100  # rounds that wait for the disk
AGAIN_S = 60.0  # after an error of the disk
MAX_TOLD = 20_000  # reports between two rounds

log = structlog.get_logger(__name__)

# uid, resource version, when its kubelet came back, pods
_Known = tuple[str, str, float | None, tuple[PodPicture, ...]]


class Recorder:
    """`told` and `round` are quick and never fail. `lost` counts rounds that are missing for want of a disk."""

    def __init__(self, folder: Path, max_bytes: int, program: str) -> None:
        self.lost = 0
        self._folder, self._max_bytes, self._program = folder, max_bytes, program
        self._start: tuple[int, FleetSettings] | None = None  # None: not leading
        self._anew = True  # the next round begins a file
        self._retry_mono_s = 0.0
        self._told: list[Entry] = []
        self._shown: dict[str, _Known] = {}
        self._beats: dict[str, Beat] = {}
        self._records: dict[str, NodeQuarantine] = {}
        self._queue: queue.Queue[tuple[bool, list[Entry]] | None] = queue.Queue(WAITING)
        self._full = threading.Event()  # the present file is long enough
        self._broke = threading.Event()  # the disk took something no more
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ the loop's side

    def lead(self, epoch: int, settings: FleetSettings) -> None:
        """A leadership begins."""
        self._start, self._anew = (epoch, settings), True
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
            self._thread.start()

    def stand_by(self) -> None:
        self._start = None
        self._told.clear()

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        self.stand_by()
        if self._thread is not None:
            try:
                self._queue.put(None, timeout=1.0)
            except queue.Full:
                return
            self._thread.join(2.0)

    def told(self, now: Now, node: str, uid: str, before_mono_s: float, report: Report) -> None:
        if self._start is None or self._anew:
            return  # the next file begins with what is known by then
        if len(self._told) >= MAX_TOLD:
            self._anew = True
            self._told.clear()
            return
        self._told.append(Told(now=now, node=node, uid=uid, before_mono_s=before_mono_s, report=report))

    def round(
        self,
        picture: FleetPicture,
        heard: Mapping[str, tuple[NodePicture, ...]],
        records: Mapping[str, NodeQuarantine],
        now: Now,
        only: Collection[str] | None,
        decisions: tuple[Decision, ...],
        looked: Collection[str],
    ) -> None:
        """`looked`: the nodes whose picture was made anew. All others are as they were in the last round, and speak."""
        if self._start is None or now.mono_s < self._retry_mono_s:
            return
        if self._broke.is_set():
            self._broke.clear()
            self._retry_mono_s, self._anew = now.mono_s + AGAIN_S, True
            return
        anew = self._anew or self._full.is_set()
        entries = self._whole(picture, heard, now) if anew else self._told
        self._told = []
        self._changes(entries, picture, records, now, picture.nodes if anew else looked)
        entries.append(
            Round(
                now=now,
                only=None if only is None else tuple(sorted(only)),
                complete=picture.complete,
                watching_since_mono_s=picture.watching_since_mono_s,
                leases_mono_s=picture.leases_mono_s,
                crowded_mono_s=picture.crowded_mono_s,
                paused=picture.paused,
                orders=picture.orders,
                codes=picture.codes,
                fenced=picture.fenced,
                orphans=picture.orphans,
                busy=tuple(sorted(picture.busy)),
                decisions=decisions,
            )
        )
        try:
            self._queue.put_nowait((anew, entries))
        except queue.Full:
            self.lost += 1
            self._anew = True
            return
        if anew:
            self._full.clear()
        self._anew = False

    def _whole(
        self, picture: FleetPicture, heard: Mapping[str, tuple[NodePicture, ...]], now: Now
    ) -> list[Entry]:
        epoch, settings = self._start or (0, FleetSettings())
        for known in (self._shown, self._beats, self._records):
            known.clear()
        start: Entry = Start(program=self._program, epoch=epoch, now=now, settings=settings)
        return [start, *(Heard(node, boots) for node, boots in heard.items())]

    def _changes(
        self,
        entries: list[Entry],
        picture: FleetPicture,
        records: Mapping[str, NodeQuarantine],
        now: Now,
        names: Collection[str],
    ) -> None:
        own = {record.node for record in records.values()}
        for name in names:
            node = picture.nodes.get(name)
            if node is None:
                continue
            shown = node.uid, node.resource_version, node.kubelet_back_mono_s, node.pods
            if self._shown.get(name) != shown:
                self._shown[name] = shown
                entries.append(Shown(name, _unheard(node)))
            before, exact = self._beats.get(name), name in own
            if before is not None and before.live and not exact and _fresh(node, now):
                continue  # most nodes, most of the time
            beat = _beat(node, now, exact=exact)
            if before != beat:
                self._beats[name] = beat
                entries.append(beat)
        if len(self._shown) != len(picture.nodes) or any(name not in picture.nodes for name in names):
            for name in self._shown.keys() - picture.nodes.keys():
                del self._shown[name]
                self._beats.pop(name, None)
                entries.append(Shown(name, None))
        for id, record in records.items():
            if self._records.get(id) is not record:
                entries.append(Record(id, record))
        entries.extend(Record(id, None) for id in self._records.keys() - records.keys())
        self._records = dict(records)

    # ------------------------------------------------------------ the thread's side

    def _write(self) -> None:
        encode = msgspec.json.Encoder().encode
        file = None
        written = limit = 0
        while (work := self._queue.get()) is not None:
            anew, entries = work
            try:
                if anew:
                    if file is not None:
                        file.close()
                    file, written = self._next_file(limit), 0
                if file is None:
                    continue  # after an error, until the next beginning
                for some in _chunks(entries):
                    text = b"".join(encode(entry) + b"\n" for entry in some)
                    file.write(text)
                    written += len(text)
                file.flush()
                if anew:  # what goes on after it is to be worth its beginning
                    limit = min(max(self._max_bytes // FILES, 2 * written), self._max_bytes)
                if written >= limit:
                    self._full.set()
            except (OSError, ValueError, TypeError) as error:
                self.lost += 1
                file = None
                self._broke.set()
                log.warning("recording_failed", folder=str(self._folder), error=str(error))
            finally:
                self._queue.task_done()
        if file is not None:
            file.close()

    def _next_file(self, expected_bytes: int) -> BinaryIO:
        """Of those that are there as many stay as leave room for it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        names = [self._folder / f"fleet.{number}.jsonl" for number in range(FILES)]
        left_bytes = self._max_bytes - max(expected_bytes, self._max_bytes // FILES)
        for name in names:
            left_bytes -= name.stat().st_size if name.exists() else 0
            if left_bytes < 0:
                name.unlink(missing_ok=True)
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.replace(older)
        # Lines of logs and names of jobs are in it.
        return os.fdopen(os.open(names[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _chunks(entries: list[Entry]) -> Iterable[list[Entry]]:
    """Few at a time, so that the thread does not hold the loop's interpreter for long."""
    return (entries[start : start + 200] for start in range(0, len(entries), 200))


def _unheard(node: NodePicture) -> NodePicture:
    """What the cluster shows of it alone."""
    return structs.replace(
        node,
        lease_mono_s=None,
        agent_mono_s=None,
        boot_id="",
        booted_wall_s=0.0,
        told_mono_s=0.0,
        checks={},
        fences={},
    )


def _fresh(node: NodePicture, now: Now) -> bool:
    agent, lease = node.agent_mono_s, node.lease_mono_s
    return agent is not None and lease is not None and now.mono_s - min(agent, lease) <= FRESH_S


def _beat(node: NodePicture, now: Now, *, exact: bool) -> Beat:
    def of(at_s: float | None) -> float | None:
        return NOW if not exact and at_s is not None and now.mono_s - at_s <= FRESH_S else at_s

    return Beat(node.name, of(node.agent_mono_s), of(node.lease_mono_s), node.told_mono_s if exact else None)
