"""The life of a finding: seen, folded with its repeats, escalated by data, and ended.

A sampled finding ends when CLEAN_SAMPLES samples in a row no longer show it. An event finding (an Xid)
ends by time, by a new boot, or by a person. The book is bounded: a flood of lines about one fault is one
finding with a count, and beyond MAX_FINDINGS distinct ones the least severe and oldest goes, counted.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from sentinel.checks.xid import RepeatRow, severities
from sentinel.core.model import Finding, Now, Severity

CLEAN_SAMPLES = 2
MAX_FINDINGS = 4096  # 16 cards with every Xid there is are 2,800
MAX_EVIDENCE = 6  # the first line and the newest ones
EXPLAINED_WITHIN_S = 120.0
# How long an event stays without a repeat; those that isolate wait for a new boot or a person longest.
KEPT_S = {
    Severity.INFO: 3600.0,
    Severity.WARNING: 6 * 3600.0,
    Severity.DEGRADED: 24 * 3600.0,
    Severity.FATAL: 7 * 86400.0,
}
# The newest line replaces what was known: the driver takes its own request back ("... to 0x0 (None)").
LATEST_WINS = frozenset({"XID 154"})

Key = tuple[str, str, str]


class _Entry(Struct):
    finding: Finding
    clean: int = 0
    times_mono_s: list[float] = []  # of the last occurrences, only where a row of [[repeat]] counts them


class BookState(Struct, frozen=True, omit_defaults=True):
    """What survives a restart of the agent. Times are CLOCK_BOOTTIME of the boot `boot_id`."""

    boot_id: str
    entries: tuple[tuple[Finding, tuple[float, ...]], ...] = ()
    dropped: int = 0


class FindingBook:
    """All findings of this node that have not ended."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.dropped = 0  # distinct findings that did not fit
        self._entries: dict[Key, _Entry] = {}
        self._repeats: Mapping[str, RepeatRow] | None = None

    def fold(self, check: str, found: Iterable[Finding], now: Now) -> None:
        """Take in one complete sample of `check`: what it shows, and by its absence what it no longer shows."""
        shown = self.add(found, now)
        for key, entry in list(self._entries.items()):
            finding = entry.finding
            if finding.event or finding.check != check or key in shown:
                continue
            entry.clean += 1
            if entry.clean >= CLEAN_SAMPLES:
                del self._entries[key]
        self._expire(now)

    def add(self, found: Iterable[Finding], now: Now) -> set[Key]:
        """Take in what is wrong and say nothing about the rest (a sample that was not complete). Returns the keys."""
        shown: set[Key] = set()
        for finding in found:
            shown.add(finding.key)
            self._add(finding, now)
        return shown

    def _add(self, finding: Finding, now: Now) -> None:
        entry = self._entries.get(finding.key)
        if entry is None:
            if finding.event and now.mono_s - finding.seen_mono_s > KEPT_S[finding.severity]:
                return  # an old line, read for the first time
            if len(self._entries) >= MAX_FINDINGS and not self._make_room(finding):
                return
            entry = self._entries[finding.key] = _Entry(finding)
        else:
            entry.clean = 0
            entry.finding = _merge(entry.finding, finding)
        if finding.event and (repeat := self._repeat(finding.code)) is not None:
            entry.times_mono_s = [*entry.times_mono_s, finding.seen_mono_s][-repeat.count :]
            times = entry.times_mono_s
            if len(times) >= repeat.count and times[-1] - times[0] <= repeat.within_s:
                entry.finding = _escalate(entry.finding, repeat)

    def _repeat(self, code: str) -> RepeatRow | None:
        if self._repeats is None:
            if not code.startswith(("XID", "SXID")):
                return None  # the table is not loaded before the first Xid
            self._repeats = {row.code: row for row in severities().repeats}
        return self._repeats.get(code)

    def _make_room(self, finding: Finding) -> bool:
        self.dropped += 1
        key, entry = min(
            self._entries.items(),
            key=lambda item: (item[1].finding.severity.order, item[1].finding.seen_mono_s),
        )
        if entry.finding.severity.order > finding.severity.order:
            return False
        del self._entries[key]
        return True

    def _expire(self, now: Now) -> None:
        for key, entry in list(self._entries.items()):
            finding = entry.finding
            if finding.event and now.mono_s - finding.seen_mono_s > KEPT_S[finding.severity]:
                del self._entries[key]

    def clear(self, key: Key) -> bool:
        """A person says that it is over. False: there is no such finding."""
        return self._entries.pop(key, None) is not None

    def active(self, check: str | None = None) -> tuple[Finding, ...]:
        """What is wrong now, the worst first, of one check or of all."""
        everything = {key: entry.finding for key, entry in self._entries.items()}
        chosen = (
            _explained(finding, everything)
            for finding in everything.values()
            if check in (None, finding.check)
        )
        return tuple(
            sorted(
                chosen, key=lambda finding: (-finding.severity.order, finding.first_seen_wall_s, finding.key)
            )
        )

    def state(self) -> BookState:
        entries = tuple((entry.finding, tuple(entry.times_mono_s)) for entry in self._entries.values())
        return BookState(self.boot_id, entries, self.dropped)

    def restore(self, state: BookState) -> None:
        """Take up what an earlier agent knew. Events and sampled findings of another boot are over."""
        if state.boot_id != self.boot_id:
            return
        self.dropped = state.dropped
        for finding, times in state.entries:
            self._entries.setdefault(finding.key, _Entry(finding, 0, list(times)))


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
        severity=worse.severity if new.event else new.severity,
        action=worse.action if new.event else new.action,
        summary=worse.summary if new.event else new.summary,
        evidence=evidence,
        first_seen_wall_s=old.first_seen_wall_s,
        last_seen_wall_s=max(old.last_seen_wall_s, new.last_seen_wall_s),
        seen_mono_s=max(old.seen_mono_s, new.seen_mono_s),
        count=old.count + new.count,
        pid=new.pid if new.pid is not None else old.pid,
    )


def _escalate(finding: Finding, repeat: RepeatRow) -> Finding:
    if finding.severity.order >= repeat.severity.order:
        return finding
    summary = f"{finding.summary}; {repeat.reason}"
    return msgspec.structs.replace(finding, severity=repeat.severity, summary=summary)


def _explained(finding: Finding, everything: Mapping[Key, Finding]) -> Finding:
    """An uncorrected-ECC count that a contained error (Xid 94) of the same card explains does not isolate by itself."""
    if finding.code != "ecc-uncorrected":
        return finding
    contained = everything.get((finding.component.value, finding.entity, "XID 94"))
    if contained is None or abs(contained.seen_mono_s - finding.seen_mono_s) > EXPLAINED_WITHIN_S:
        return finding
    return msgspec.structs.replace(
        finding,
        severity=Severity.WARNING,
        action=contained.action,
        summary=f"{finding.summary}; explained by XID 94",
    )
