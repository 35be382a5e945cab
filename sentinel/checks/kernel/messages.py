"""Findings from the kernel's messages: Xid, SXid, OOM kills, hung tasks, file systems and disks."""

import time
from pathlib import Path

import msgspec
from msgspec import Struct

from sentinel.checks.base import Look, Measure, Unknown
from sentinel.checks.disk.media import Media, on_media
from sentinel.checks.gpus import inventory
from sentinel.checks.xid import finding_of, job_of_cgroup, named_pod
from sentinel.core.health import Component, Finding, Severity
from sentinel.logs.journal import read_journal
from sentinel.logs.kernel import KernelLog
from sentinel.logs.kmsg import KERNEL_ONLY, KmsgPosition, KmsgReader, KmsgRecord
from sentinel.logs.kmsg_drain import Drain

SAME_PROCESS_S = 5.0  # so soon after the line its pid has not gone to another process
THREAD_CODES = ("hung-task", "hung-task-lasting")  # of these lines the number is that of a thread
SLICE = 50  # lines handled between two looks at the ring: 2 ms, in which no flood fills the smallest ring
MAX_SAMPLE = (
    2048  # findings of one sample; the next one follows at once, and each is told with all that stand
)
FLOOD = 500  # so many at once are a flood: one sample goes on over what comes within FLOOD_S
FLOOD_S = 0.2
JOURNAL_DEADLINE_S = 1.2  # of the first try: `sentinel check` answers within 2 s
JOURNAL_RETRY_S = 6.0  # of the second, in an agent
NEXT_CHILD_S = 60.0  # after a child that ended: it must not be started all the time
CATCH_UP_S = 1.5  # for the child to read what is there already, on a machine that is busy
CARDS_S = 60.0  # so long the GPUs that were found on the bus stand
OVERLAP_US = 1_000_000  # no processor's clock is further from another's


class _Start(Struct):
    """What the ring held first: there the journal's part ends."""

    tries_left: int = 2
    begun: bool = False
    until_us: int = 0
    seen: set[tuple[int, str]] = msgspec.field(default_factory=set)


class Memory(Struct):
    reader: KmsgReader | None = None
    resume_us: int = -1  # CLOCK_MONOTONIC at which an earlier reader of this boot ended; -1: there was none
    start: _Start = msgspec.field(default_factory=_Start)
    log: KernelLog = msgspec.field(default_factory=KernelLog)
    media: Media | None = None
    gpus: tuple[float, frozenset[str]] | None = None  # when they were looked for, and their PCI addresses
    drain: Drain | None = None
    next_child_s: float = 0.0  # not before then is another child of `drain` started

    def close(self) -> None:
        """The drain first, which reads for the reader."""
        if self.drain is not None:
            self.drain.close()
        if self.reader is not None:
            self.reader.close()


def _reader(look: Look, trusted: tuple[int, ...]) -> KmsgReader:
    memory = look.kept.own(Memory)
    if memory.reader is None:
        try:
            resume = msgspec.convert(look.kept.saved, KmsgPosition | None)
        except msgspec.ValidationError:  # of another version, or damaged
            resume = None
        memory.reader = KmsgReader(look.settings.kernel_log, trusted, resume, look.settings.procfs)
        memory.resume_us = memory.reader.position.at_us if memory.reader.resumed else -1
    return memory.reader


def _media(look: Look) -> Media:
    memory = look.kept.own(Memory)
    if memory.media is None:
        memory.media = Media(look.settings.sysfs, look.settings.procfs, look.root)
    return memory.media


def _findings(records: list[KmsgRecord], look: Look) -> list[Finding]:
    """Message times become wall and boot times; the kernel's stamp is never later than now."""
    uptime_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    told, media = look.kept.own(Memory).log, _media(look)
    cgroups: dict[int, str] = {}
    pods: dict[str, str] = {}
    found = []
    for record in records:
        event = told.take(record.text, record.at_us / 1e6)
        if event is None:
            continue
        age_s = max(0.0, (uptime_us - record.at_us) / 1e6)
        finding = finding_of(event, look.now.wall_s - age_s, look.now.mono_s - age_s, look.boot_id)
        if finding.pid is not None and not finding.cgroup and age_s < SAME_PROCESS_S:
            if finding.pid not in cgroups:
                cgroups[finding.pid] = cgroup_of(finding.pid, look.settings.procfs)
            cgroup = cgroups[finding.pid]
            finding = msgspec.structs.replace(finding, cgroup=cgroup, job=job_of_cgroup(cgroup))
        if finding.code in THREAD_CODES and finding.pid is not None and age_s < SAME_PROCESS_S:
            finding = msgspec.structs.replace(finding, pid=process_of(finding.pid, look.settings.procfs))
        if finding.job.startswith("pod "):
            if finding.job not in pods:
                pods[finding.job] = named_pod(finding.job, look.settings.pod_logs)
            finding = msgspec.structs.replace(finding, job=pods[finding.job])
        if finding.entity.startswith("PCI "):
            finding = on_card(finding, _cards(look))
        found.append(on_media(finding, media))
    return found


def process_of(thread: int, procfs: str = "/proc") -> int:
    """The process that a thread belongs to; the number itself where it is gone."""
    try:
        for line in Path(procfs, str(thread), "status").read_text(errors="replace").splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return thread


def cgroup_of(pid: int, procfs: str = "/proc") -> str:
    """The cgroup of a process, of its memory under cgroup v1; "" where it is gone. Never blocks, as environ may."""
    try:
        lines = Path(procfs, str(pid), "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    paths = {kind: path for line in lines if line.count(":") >= 2 for _, kind, path in [line.split(":", 2)]}
    return paths.get("memory") or paths.get("") or next(iter(paths.values()), "")


def _cards(look: Look) -> frozenset[str]:
    """The addresses of the GPUs, not searched for each line: a bus that corrects errors floods, and has hundreds of
    functions."""
    memory = look.kept.own(Memory)
    if memory.gpus is None or look.now.mono_s - memory.gpus[0] > CARDS_S:
        try:
            cards = frozenset(gpu.pci for gpu in inventory(look.settings.sysfs))
        except OSError:  # no descriptor is left: the fault is told without it
            return frozenset()
        memory.gpus = (look.now.mono_s, cards)
    return memory.gpus[1]


def on_card(finding: Finding, cards: frozenset[str]) -> Finding:
    """A fault of the PCIe device that is a GPU is the GPU's: it is named, and isolated, as one."""
    address = finding.entity.removeprefix("PCI ")
    if address not in cards:
        return finding
    return msgspec.structs.replace(finding, component=Component.GPU, entity=f"GPU {address}")


def _lost(count: int, why: str, look: Look) -> list[Finding]:
    if count <= 0:
        return []
    return [
        Finding(
            check="kernel",
            component=Component.AGENT,
            entity=look.settings.kernel_log,
            code="kernel-log-lost",
            severity=Severity.INFO,
            action="",
            summary="Kernel messages were overwritten before they were read: a fault among them was not seen",
            evidence=(f"{count} messages{why}",),
            event=True,
            first_seen_wall_s=look.now.wall_s,
            last_seen_wall_s=look.now.wall_s,
            seen_mono_s=look.now.mono_s,
            boot_id=look.boot_id,
        )
    ]


def _before(reader: KmsgReader, start: _Start, look: Look) -> list[Finding]:
    """What was logged before the start and is gone from the ring, out of the journal, each line once.

    printk does not order the times of two processors: what lies close to the end of the journal's part is
    compared by time and text. The first records of the ring come behind it, in the order of the kernel.
    """
    first: list[KmsgRecord] = []
    if not start.begun:
        start.until_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        first = reader.take(SLICE)
        while reader.missed and reader.waiting and (not first or first[-1].at_us <= start.until_us):
            start.until_us = first[0].at_us + OVERLAP_US if first else start.until_us
            first += reader.take(SLICE)
        start.begun = reader.position.sequence >= 0
        start.seen = {(record.at_us, record.text) for record in first}
    if not start.begun:
        return []  # nothing can be read yet
    if not reader.missed or not reader.is_ring:  # a stand-in file has no journal, and begins where it likes
        start.tries_left = 0
        return _lost(reader.missed if reader.resumed else 0, "", look) + _findings(first, look)
    start.tries_left -= 1
    after_us = look.kept.own(Memory).resume_us
    deadline_s = JOURNAL_DEADLINE_S if start.tries_left else JOURNAL_RETRY_S
    past = read_journal(reader.boot_id, after_us, reader.trusted, deadline_s, reader.drain)
    if not past.in_time and start.tries_left:
        look.kept.detail = f"{reader.missed} messages from before the start are not known yet: {past.problem}"
        return _findings(first, look)
    start.tries_left = 0
    look.kept.detail = ""
    gone = [record for record in past.records if record.at_us <= start.until_us]
    once = {(record.at_us, record.text): record for record in gone}
    found = _findings([record for key, record in once.items() if key not in start.seen], look)
    if past.problem:
        found += _lost(reader.missed, f" before the start, and {past.problem}", look)
    start.seen = set()
    return found + _findings(first, look)


def _wake(reader: KmsgReader, look: Look) -> None:
    """A child empties the ring from now on, and wakes the next sample. Without one the ring is read on the interval."""
    if not (reader.pollable and look.kept.resident):
        return
    memory = look.kept.own(Memory)
    if memory.drain is None:
        try:
            memory.drain = Drain(reader)
        except OSError:  # no descriptor is left: on the interval then
            return
        look.kept.wake_fd = memory.drain.wake_fd
    if not memory.drain.works and look.now.mono_s >= memory.next_child_s:
        memory.next_child_s = look.now.mono_s + NEXT_CHILD_S
        memory.drain.start()


def check(look: Look, trusted: tuple[int, ...] = KERNEL_ONLY) -> list[Finding]:
    """Reads first and handles after, in small turns: a flood must not overtake the reader."""
    reader, memory = _reader(look, trusted), look.kept.own(Memory)
    anew, look.kept.anew = look.kept.anew, False
    if anew and memory.drain is not None:
        memory.drain.catch_up(CATCH_UP_S)
    reader.drain()
    _media(look).look(look.now.mono_s)
    found = _before(reader, memory.start, look) if memory.start.tries_left else []
    until_s = time.monotonic() + FLOOD_S
    while len(found) < MAX_SAMPLE:
        if not reader.waiting:
            if len(found) < FLOOD or time.monotonic() > until_s:
                break
            time.sleep(0.01)
        found += _findings(reader.take(SLICE), look)
        reader.drain()
    look.kept.unfinished = bool(reader.waiting)
    look.kept.saved = msgspec.structs.asdict(reader.position)
    _wake(reader, look)
    found += _lost(reader.lost - look.kept.counters.get("lost", 0), "", look)
    counters = look.kept.counters = {
        "lost": reader.lost,
        "untrusted": reader.untrusted,
        "garbled": reader.garbled,
    }
    look.kept.measures = tuple(
        Measure("sentinel_kernel_log_records_total", (("fate", fate),), count)
        for fate, count in counters.items()
    )
    if reader.problem:
        raise Unknown(reader.problem, tuple(found))
    return found
