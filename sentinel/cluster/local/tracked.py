"""What one Sentinel knows of one local job: its status file, its supervisor, and who still runs."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog
from msgspec import structs

from sentinel.cluster.local.link import Event, Link, connect, launch
from sentinel.cluster.local.processes import (
    Proc,
    descendants,
    has_entry,
    is_same,
    open_pidfd,
    read_proc,
    scan,
    send_signal,
)
from sentinel.cluster.local.status import Slot, Status, boot_id, boottime_s, read_status
from sentinel.core.reports import RankExit
from sentinel.util.errors import TemporaryError

log = structlog.get_logger(__name__)

LAUNCH_TRIES = 10  # a supervisor that is about to end for idleness may take a connection with it


class Tracked:
    """`on_exit` gets each rank's end once; `on_lost` is called when the supervisor died before its job."""

    def __init__(
        self, job: str, folder: Path, on_exit: Callable[[str, RankExit], None], on_lost: Callable[[str], None]
    ) -> None:
        self.job, self.folder = job, folder
        self.on_exit, self.on_lost = on_exit, on_lost
        self.status: Status | None = None
        self.link: Link | None = None
        self.stopping_since_s: float | None = None
        self.pending: list[RankExit] = []  # found ended when we attached, not told yet
        self.ended_unknown: set[int] = set()
        self.changed = asyncio.Event()
        self._known_incarnation = 0  # of the supervisor's
        self._empty_incarnation = -1
        self._lost_incarnation = 0
        self._told: set[int] = set()
        self._watched: dict[int, int] = {}  # rank -> pidfd, while no supervisor tells us
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ what is known

    @property
    def incarnation(self) -> int:
        return self.status.header.incarnation if self.status else 0

    @property
    def supervised(self) -> bool:
        """The supervisor that started this incarnation lives, and tells us."""
        return self.link is not None and self._known_incarnation == self.incarnation

    def running(self) -> list[Slot]:
        """Ranks whose end is not known."""
        if self.status is None:
            return []
        return [slot for rank, slot in sorted(self.status.slots.items()) if rank not in self._told]

    def members(self) -> list[Proc]:
        """Every living process of the incarnation. One scan of /proc.

        With its supervisor alive: all that descends from it, since it is their subreaper. Without: what
        carries the incarnation's SENTINEL_RUN, the ranks' sessions, and all that descends from those.
        """
        if self.status is None:
            return []
        table = scan()
        if self.supervised and self.link:
            return [proc for proc in descendants(table, [self.link.supervisor_pid]) if not proc.dead]
        if self.status.header.boot_id != boot_id():
            return []
        entry = b"SENTINEL_RUN=" + self.status.header.run.encode()
        ranks = {slot.pid: slot.start_ticks for slot in self.status.slots.values()}
        leaders = {pid for pid, ticks in ranks.items() if pid in table and table[pid].start_ticks == ticks}
        roots = {proc.pid for proc in table.values() if proc.sid in leaders or has_entry(proc.pid, entry)}
        found = {pid: table[pid] for pid in roots} | {p.pid: p for p in descendants(table, roots)}
        found.pop(os.getpid(), None)  # `sentinel stop` typed inside the job
        return [proc for proc in found.values() if not proc.dead]

    def gone(self) -> bool:
        """Nothing of the incarnation is left. Free with a supervisor, a scan of /proc without."""
        if self.supervised:
            return self._empty_incarnation == self.incarnation
        return not self.members()

    # ------------------------------------------------------------ attaching

    async def attach(self) -> None:
        """Find the newest incarnation and who can tell of it; ends that nobody told yet go to `pending`."""
        self._unwatch()
        if self.folder.is_dir():
            self._wake_unlinked()
            self.link = await connect(self.folder, self._take, self._lost)
        if self.link:
            self._known_incarnation = self.link.hello.result().incarnation
        self._read()

    async def supervisor(self) -> Link:
        """The link to a living supervisor, brought to life if need be. Raises TemporaryError."""
        self.wake_supervisor()
        for _ in range(LAUNCH_TRIES):
            if self.link and not self.link.closed:
                return self.link
            await launch(self.folder)
            self.link = await connect(self.folder, self._take, self._lost)
            if self.link:
                self._known_incarnation = self.link.hello.result().incarnation
            else:  # one that was just killed holds its lock until the kernel is done with it
                await asyncio.sleep(0.05)
        if self.link is None:
            raise TemporaryError("the job's supervisor does not take connections")
        return self.link

    def wake_supervisor(self) -> None:
        """A supervisor that somebody stopped neither reaps nor starts; one that runs does not mind SIGCONT."""
        if self.link and (proc := read_proc(self.link.supervisor_pid)):
            send_signal(proc.pid, proc.start_ticks, signal.SIGCONT)

    def _wake_unlinked(self) -> None:
        """A stopped supervisor does not greet, and would be taken for a dead one."""
        status = read_status(self.folder)
        proc = read_proc(status.header.supervisor) if status else None
        if proc is None or proc.state not in "Tt":
            return
        with suppress(OSError):
            if os.fsencode(self.folder) in Path(f"/proc/{proc.pid}/cmdline").read_bytes().split(b"\0"):
                send_signal(proc.pid, proc.start_ticks, signal.SIGCONT)

    def begin(self, incarnation: int) -> None:
        """The supervisor has started a new incarnation: follow that one from now on."""
        self._unwatch()
        self._told.clear()
        self.ended_unknown.clear()
        self.stopping_since_s = None
        self._known_incarnation = incarnation
        self._read()
        asyncio.get_running_loop().call_soon(self.tell_pending)

    def refresh(self) -> None:
        """The files may know of a newer incarnation: one whose start broke off with its supervisor."""
        status = read_status(self.folder)
        if status is None or status.header.incarnation <= self.incarnation:
            return
        self._unwatch()
        self._told.clear()
        self.ended_unknown.clear()
        self.stopping_since_s = None
        self._read()

    def tell_pending(self) -> None:
        exits, self.pending = self.pending, []
        for exit in exits:
            self.on_exit(self.job, exit)

    def detach(self) -> None:
        """Forget the job, touch nothing."""
        self._unwatch()
        if self._task:
            self._task.cancel()
        if self.link:
            self.link.close()
        self.link = None

    def _read(self) -> None:
        self.status = read_status(self.folder)
        if self.status is None:
            return
        for slot in self.running():
            if slot.ended_mono_s is not None:
                self._end(slot.rank, self._exit(slot), told=False)
        if not self.supervised:
            self._watch()

    # ------------------------------------------------------------ ends of ranks

    def _take(self, event: Event) -> None:
        if event.event == "empty":
            self._empty_incarnation = event.incarnation
            self.changed.set()
        elif event.slot and self.status and event.incarnation == self.incarnation:
            self.status = structs.replace(self.status, orphans=event.orphans)
            self.status.slots[event.slot.rank] = event.slot
            self._end(event.slot.rank, self._exit(event.slot))

    def _exit(self, slot: Slot) -> RankExit:
        since, ended = self.stopping_since_s, slot.ended_mono_s
        stopped = since is not None and ended is not None and ended >= since
        return slot.exit(self.incarnation, stopped, self.status.orphans if self.status else ())

    def _end(self, rank: int, exit: RankExit, told: bool = True) -> None:
        if rank in self._told:
            return
        self._told.add(rank)
        self.changed.set()
        if told:
            self.on_exit(self.job, exit)
        else:
            self.pending.append(exit)

    def _lost(self, replaced: bool) -> None:
        self.link = None
        self.changed.set()
        if replaced:
            log.warning("supervisor_taken_over", job=self.job)
            return
        self._task = asyncio.get_running_loop().create_task(self._reattach())

    async def _reattach(self) -> None:
        """The connection broke. A supervisor that only dropped us is still there; else watch by ourselves."""
        await self.attach()
        if not self.supervised and self.running() and self._lost_incarnation != self.incarnation:
            self._lost_incarnation = self.incarnation
            log.warning("supervisor_lost", job=self.job, incarnation=self.incarnation)
            self.on_lost(self.job)
        self.tell_pending()
        self.changed.set()

    def _watch(self) -> None:
        """Without a supervisor the end of a rank is seen by pidfd; its status is nobody's to read."""
        assert self.status is not None
        same_boot = self.status.header.boot_id == boot_id()
        for rank in range(self.status.header.size):
            slot = self.status.slots.get(rank)
            if rank in self._told:
                continue
            there = slot is not None and same_boot and is_same(slot.pid, slot.start_ticks)
            fd = open_pidfd(slot.pid, slot.start_ticks) if slot and there else None
            if fd is None:
                self._end_unknown(rank, told=False)
                continue
            self._watched[rank] = fd
            asyncio.get_running_loop().add_reader(fd, self._end_unknown, rank)

    def _end_unknown(self, rank: int, told: bool = True) -> None:
        fd = self._watched.pop(rank, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self.ended_unknown.add(rank)
        stopped = self.stopping_since_s is not None
        exit = RankExit(rank=rank, incarnation=self.incarnation, at_s=boottime_s(), stopped_by_us=stopped)
        self._end(rank, exit, told)

    def _unwatch(self) -> None:
        for fd in self._watched.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._watched.clear()

    # ------------------------------------------------------------ waiting

    async def wait(self, condition: Callable[[], bool], until_s: float) -> bool:
        """Until `condition` holds (looked at after each change) or CLOCK_BOOTTIME `until_s`."""
        while not condition():
            left_s = until_s - boottime_s()
            if left_s <= 0:
                return False
            self.changed.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self.changed.wait()
            except TimeoutError:
                pass
        return True

    @contextmanager
    def watching(self, processes: Iterable[Proc]) -> Iterator[set[int]]:
        """A set of pids that loses each as it ends, and sets `changed`."""
        loop = asyncio.get_running_loop()
        descriptors: dict[int, int] = {}
        alive: set[int] = set()

        def ended(pid: int) -> None:
            loop.remove_reader(descriptors[pid])
            alive.discard(pid)
            self.changed.set()

        for proc in processes:
            fd = open_pidfd(proc.pid, proc.start_ticks) if is_same(proc.pid, proc.start_ticks) else None
            if fd is not None:
                descriptors[proc.pid] = fd
                alive.add(proc.pid)
                loop.add_reader(fd, ended, proc.pid)
        try:
            yield alive
        finally:
            for fd in descriptors.values():
                loop.remove_reader(fd)
                os.close(fd)
