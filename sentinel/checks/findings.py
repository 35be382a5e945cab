"""The life of a finding: seen, folded with its repeats, escalated by data, and ended.

A sampled finding ends when CLEAN_SAMPLES samples in a row no longer show it. An event finding (an Xid)
ends when the kernel says that it is over, by time, by a new boot, or by a person. The book is bounded: a flood of
lines about one fault is one finding with a count, and beyond MAX_FINDINGS distinct ones the least severe
and oldest goes, counted.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from sentinel.checks.repeats import Key, Past, Repeats
from sentinel.checks.xid import RepeatRow, actions
from sentinel.core.health import Finding, Severity
from sentinel.core.now import Now

CLEAN_SAMPLES = 2
STALE_S = 600.0  # what a stopped agent saw so long ago ends with the first clean sample
MAX_FINDINGS = 4096  # 16 cards with every Xid there is are 2,800
MAX_EVIDENCE = 6  # the first line and the newest ones
EXPLAINED_WITHIN_S = 120.0
EXPLAINED = "; explained by XID 94"
# How long an event stays without a repeat; those that isolate wait for a new boot or a person longest.
KEPT_S = {
    Severity.INFO: 3600.0,
    Severity.WARNING: 6 * 3600.0,
    Severity.DEGRADED: 24 * 3600.0,
    Severity.FATAL: 7 * 86400.0,
}
# Uncorrected errors that the driver contained (Xid 94) do not isolate by themselves.
ECC, CONTAINED = "ecc-uncorrected", "XID 94"
# NVML's events repeat what the kernel's lines say, with less: the line wins, and each occurrence counts once.
ECHO = "nvml"
# The newest line replaces what was known: the driver takes its own request back ("... to 0x0 (None)").
LATEST_WINS = frozenset({"XID 154"})
NOTHING = "IGNORE"


class _Entry(Struct):
    finding: Finding
    clean: int = 0
    repeated: bool = False  # a row of [[repeat]] made it worse
    echoes: int = 0  # occurrences that NVML told of an event
    lines: int = 0  # and those that anybody else told
    before: Finding | None = None  # of ECC: as it stood without the newest errors
    since_s: float = 0.0  # of ECC: the newest errors came between this and when they were seen

    def tell(self, finding: Finding) -> bool:
        """Count who told of an event. True: the other of the two told of this occurrence before."""
        if not finding.event:
            return False
        if finding.check == ECHO:
            self.echoes += finding.count
            return self.echoes <= self.lines
        self.lines += finding.count
        return self.lines <= self.echoes


class BookState(Struct, frozen=True, omit_defaults=True):
    """What survives a restart of the agent. Times are CLOCK_BOOTTIME of the boot `boot_id`."""

    boot_id: str
    findings: tuple[Finding, ...] = ()
    repeated: tuple[Key, ...] = ()
    past: tuple[tuple[Key, Past], ...] = ()
    dropped: int = 0
    wall_ahead_s: float = 0.0  # the wall clock minus CLOCK_BOOTTIME: tells another boot when all this was


class FindingBook:
    """All findings of this node that have not ended."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.dropped = 0  # distinct findings that did not fit
        self._entries: dict[Key, _Entry] = {}
        # The keys of each severity, the one that was quiet longest first: what must go is found at once.
        self._order: dict[Severity, dict[Key, None]] = {severity: {} for severity in Severity}
        self._repeats = Repeats()
        self._wall_ahead_s = 0.0

    def fold(self, check: str, found: Iterable[Finding], now: Now) -> None:
        """Take in one complete sample of `check`: what it shows, and by its absence what it no longer shows."""
        shown = self.add(found, now)
        for key, entry in list(self._entries.items()):
            finding = entry.finding
            if finding.event or finding.check != check or key in shown:
                continue
            entry.clean += 1
            if entry.clean >= CLEAN_SAMPLES:
                self._drop(key)
        self._expire(now)

    def add(self, found: Iterable[Finding], now: Now) -> set[Key]:
        """Take in what is wrong and say nothing about the rest (a sample that was not complete). Returns the keys."""
        shown: set[Key] = set()
        self._wall_ahead_s = now.wall_s - now.mono_s
        for finding in found:
            shown.add(finding.key)
            self._add(finding, now)
        return shown

    def get(self, key: Key) -> Finding | None:
        """The finding as it stands, folded and escalated."""
        entry = self._entries.get(key)
        return None if entry is None else entry.finding

    def _add(self, finding: Finding, now: Now) -> None:
        key = finding.key
        entry = self._entries.get(key)
        if finding.over:
            # One that comes back again and again is not well because it is away now.
            if entry is not None and not entry.repeated:
                self._drop(key)
            return
        told = entry is not None and entry.tell(finding)
        rows = self._repeats.rows(finding)
        if rows:
            self._repeats.note(finding, rows, told)
        if entry is None:
            if finding.event and now.mono_s - finding.seen_mono_s > KEPT_S[finding.severity]:
                return  # an old line, read for the first time
            if len(self._entries) >= MAX_FINDINGS and not self._make_room(finding):
                return
            entry = self._entries[key] = _Entry(finding)
            entry.tell(finding)
        else:
            entry.clean, entry.before = 0, entry.finding
            if finding.code in LATEST_WINS and finding.action == NOTHING:
                self._repaired(finding, entry.finding.action)
            self._order[entry.finding.severity].pop(key, None)
            entry.finding = (_told_twice if told else _merge)(entry.finding, finding)
        for row in rows:
            if row.severity.order > entry.finding.severity.order and self._repeats.enough(key, row):
                entry.finding = _escalate(entry.finding, row)
                entry.repeated = True
        self._order[entry.finding.severity][key] = None
        if finding.code == ECC:
            entry.since_s = finding.seen_mono_s - (finding.last_seen_wall_s - finding.first_seen_wall_s)
        if finding.code in (ECC, CONTAINED):
            self._explain(finding.component.value, finding.entity)

    def _explain(self, component: str, entity: str) -> None:
        """Take a card's newest errors for what a contained one told of them, whichever of the two came first.

        They stay explained when the contained error has ended, and end as its like does.
        """
        key = (component, entity, ECC)
        entry, contained = self._entries.get(key), self.get((component, entity, CONTAINED))
        if entry is None or contained is None or entry.finding.summary.endswith(EXPLAINED):
            return
        told, at_s = entry.finding, contained.seen_mono_s
        if not entry.since_s - EXPLAINED_WITHIN_S <= at_s <= told.seen_mono_s + EXPLAINED_WITHIN_S:
            return
        base = contained if entry.before is None else entry.before
        if base.severity is Severity.FATAL and base is not contained:
            return  # earlier errors were not explained
        self._order[told.severity].pop(key, None)
        entry.finding = msgspec.structs.replace(
            told, severity=base.severity, action=base.action, summary=told.summary + EXPLAINED
        )
        self._order[base.severity][key] = None

    # ---------------------------------------------------------------- ends

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key)
        self._order[entry.finding.severity].pop(key, None)

    def _make_room(self, finding: Finding) -> bool:
        """Give up the mildest finding, the one that was quiet longest, unless the new one is milder still."""
        self.dropped += 1
        for severity, keys in self._order.items():  # mildest first
            if severity.order > finding.severity.order:
                return False
            if keys:
                self._drop(next(iter(keys)))
                return True
        return False

    def _expire(self, now: Now) -> None:
        for key, entry in list(self._entries.items()):
            finding = entry.finding
            if finding.event and now.mono_s - finding.seen_mono_s > KEPT_S[finding.severity]:
                self._drop(key)

    def _repaired(self, word: Finding, action: str) -> None:
        """The driver asked for `action` (a reset) and now says that it was done: so ended what needed just that."""
        for key, entry in list(self._entries.items()):
            finding = entry.finding
            same = finding.event and finding.entity == word.entity and finding.code != word.code
            if same and finding.action == action and finding.seen_mono_s <= word.seen_mono_s:
                self._drop(key)

    def clear(self, key: Key) -> bool:
        """A person says that it is over, and its repeats are forgotten. False: there is no such finding."""
        self._repeats.forget(key)
        if key not in self._entries:
            return False
        self._drop(key)
        return True

    def release(self, entity: str) -> tuple[bool, str]:
        """A person says that this card, disk or node is well: whether it had findings, and a sentence about it."""
        ended = sum(self.clear(finding.key) for finding in self.active() if finding.entity == entity)
        if ended:
            return True, f"{ended} findings of {entity} were ended by a person"
        known = ", ".join(sorted({finding.entity for finding in self.active()})) or "none"
        return False, f"no finding of {entity!r} (there are: {known})"

    # ---------------------------------------------------------------- what stands, and what is kept

    def active(self, check: str | None = None) -> tuple[Finding, ...]:
        """What is wrong now, the worst first, of one check or of all."""
        chosen = (entry.finding for entry in self._entries.values() if check in (None, entry.finding.check))
        return tuple(
            sorted(
                chosen, key=lambda finding: (-finding.severity.order, finding.first_seen_wall_s, finding.key)
            )
        )

    def state(self) -> BookState:
        return BookState(
            self.boot_id,
            tuple(entry.finding for entry in self._entries.values()),
            tuple(key for key, entry in self._entries.items() if entry.repeated),
            self._repeats.state(),
            self.dropped,
            self._wall_ahead_s,
        )

    def restore(self, state: BookState, now: Now) -> None:
        """Take up what an earlier agent knew.

        After a new boot sampled findings are over, and events whose repair the boot was or that would be seen
        again at once; the others go on, by the wall clock. So do the times that repeats are counted from.
        """
        moved_s = 0.0
        if state.boot_id == self.boot_id:
            self.dropped = state.dropped
        else:
            moved_s = state.wall_ahead_s - (now.wall_s - now.mono_s)
        repeated = set(state.repeated)
        for finding in state.findings:
            if state.boot_id != self.boot_id:
                if not _outlives_a_boot(finding):
                    continue
                # Not later than now: a wall clock that was put right in between would keep it for ever.
                seen_mono_s = min(finding.seen_mono_s + moved_s, now.mono_s)
                finding = msgspec.structs.replace(finding, seen_mono_s=seen_mono_s)
            if finding.key not in self._entries:
                stale = not finding.event and now.mono_s - finding.seen_mono_s > STALE_S
                clean = CLEAN_SAMPLES - 1 if stale else 0
                entry = self._entries[finding.key] = _Entry(finding, clean, finding.key in repeated)
                entry.tell(finding)
                entry.since_s = finding.seen_mono_s
                self._order[finding.severity][finding.key] = None
        self._repeats.restore(state.past, moved_s)


def _outlives_a_boot(finding: Finding) -> bool:
    row = actions().get(finding.action)
    return finding.event and row is not None and not row.boot


def _merge(old: Finding, new: Finding) -> Finding:
    """One finding of a repeat: counted, with the first and the newest evidence."""
    worse = new if new.severity.order >= old.severity.order or old.code in LATEST_WINS else old
    evidence = old.evidence
    if not new.event:
        evidence = new.evidence
    elif fresh := tuple(line for line in new.evidence if line not in evidence):
        evidence = (*evidence, *fresh)
        if len(evidence) > MAX_EVIDENCE:
            evidence = (evidence[0], *evidence[-(MAX_EVIDENCE - 1) :])
    return msgspec.structs.replace(
        new,
        check=old.check if new.check == ECHO else new.check,
        severity=worse.severity if new.event else new.severity,
        action=worse.action if new.event else new.action,
        summary=worse.summary if new.event else new.summary,
        evidence=evidence,
        first_seen_wall_s=old.first_seen_wall_s,
        last_seen_wall_s=max(old.last_seen_wall_s, new.last_seen_wall_s),
        seen_mono_s=max(old.seen_mono_s, new.seen_mono_s),
        count=old.count + new.count,
        pid=new.pid if new.pid is not None else old.pid,
        process=new.process or old.process,
        cgroup=new.cgroup or old.cgroup,
        job=new.job or old.job,
        uuid=new.uuid or old.uuid,
    )


def _told_twice(old: Finding, new: Finding) -> Finding:
    """One occurrence, told by NVML's event and by the kernel's line: the line says more."""
    if new.check == ECHO:
        return old
    merged = msgspec.structs.replace(_merge(old, new), count=old.count)
    if old.check != ECHO:
        return merged
    merged = msgspec.structs.replace(merged, evidence=new.evidence)
    if old.count > 1:  # what made it worse may have been an earlier one
        return merged
    return msgspec.structs.replace(merged, severity=new.severity, action=new.action, summary=new.summary)


def _escalate(finding: Finding, row: RepeatRow) -> Finding:
    if finding.severity.order >= row.severity.order:
        return finding
    return msgspec.structs.replace(
        finding,
        severity=row.severity,
        action=row.action or finding.action,
        summary=f"{finding.summary}; {row.reason}",
    )
