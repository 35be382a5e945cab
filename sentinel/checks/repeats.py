"""Counts how often a fault of one card or device came, and under which jobs: [[repeat]] of rules/severity.toml.

This outlives the finding: a warning ends after hours, its repeat counts for a day.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from sentinel.checks.xid import RepeatRow, severities
from sentinel.core.health import Finding

MAX_JOBS = 8  # of one fault that are remembered: the newest
MAX_PLACES = 256  # cards or devices for which the repeats of one code are counted

Key = tuple[str, str, str]


class Past(Struct):
    """When a fault came, and under which jobs."""

    times_mono_s: list[float] = []  # the newest ones
    jobs: dict[str, float] = {}  # job -> when it last met the fault

    def note(self, finding: Finding, rows: Iterable[RepeatRow]) -> None:
        """One more line: an occurrence, or so many as it speaks of, or part of one that is known."""
        most = max(row.count for row in rows)
        apart_s = max(row.apart_s for row in rows)
        times = min(finding.count, most)
        if apart_s:
            known = any(abs(finding.seen_mono_s - at_s) < apart_s for at_s in self.times_mono_s)
            times = 0 if known else 1
        self.times_mono_s += [finding.seen_mono_s] * times
        del self.times_mono_s[:-most]


def _is_named(job: str) -> bool:
    """Known for another job: a program, container, or pod without a name may be only another try of one person."""
    return job.startswith("slurm ") or (job.startswith("pod ") and "/" in job)


class Repeats:
    """The faults that a row of [[repeat]] speaks of, by code and place."""

    def __init__(self) -> None:
        self._past: dict[str, dict[Key, Past]] = {}  # by code
        self._table: Mapping[str, list[RepeatRow]] | None = None

    def rows(self, finding: Finding) -> list[RepeatRow]:
        """What can make this event worse: the rows of its code, else those of its action."""
        if not finding.event:
            return []
        if self._table is None:  # the table is not loaded before the first event
            table: dict[str, list[RepeatRow]] = {}
            for row in severities().repeats:
                table.setdefault(row.code or row.bucket, []).append(row)
            self._table = table
        return self._table.get(finding.code) or self._table.get(finding.action, [])

    def note(self, finding: Finding, rows: Iterable[RepeatRow], told: bool) -> None:
        """One more line. `told`: the other source told of this occurrence before."""
        places = self._past.setdefault(finding.code, {})
        past = places.get(finding.key)
        if past is None:
            past = places[finding.key] = Past()
            if len(places) > MAX_PLACES:
                del places[next(iter(places))]
        if not told:
            past.note(finding, rows)
        if _is_named(finding.job):
            past.jobs.pop(finding.job, None)
            past.jobs[finding.job] = finding.seen_mono_s
            while len(past.jobs) > MAX_JOBS:
                del past.jobs[next(iter(past.jobs))]

    def enough(self, key: Key, row: RepeatRow) -> bool:
        """Does what is known of this fault make it as severe as `row` says?"""
        places = self._past[key[2]]
        past = places[key]
        if not row.jobs:
            times = sorted(past.times_mono_s)[-row.count :]
            return len(times) >= row.count and times[-1] - times[0] <= row.within_s
        since_s = max(past.jobs.values(), default=0.0) - row.within_s
        met = [job for job, at_s in past.jobs.items() if at_s >= since_s]
        if len(met) < row.jobs:  # in a flood of cards all of them need not be asked for each line
            return False
        # A job that meets the same fault on another card too carries it along: it speaks against no card.
        elsewhere = {
            job: at_s for other, there in places.items() if other != key for job, at_s in there.jobs.items()
        }
        if any(at_s >= since_s for job, at_s in elsewhere.items() if job not in past.jobs):
            return False  # other jobs meet it on other cards, as those of one array do: it is not this card's own
        return len([job for job in met if job not in elsewhere]) >= row.jobs

    def forget(self, key: Key) -> None:
        """A person, or the repair, ended the fault: its past counts no more."""
        self._past.get(key[2], {}).pop(key, None)

    def state(self) -> tuple[tuple[Key, Past], ...]:
        return tuple(item for places in self._past.values() for item in places.items())

    def restore(self, state: Iterable[tuple[Key, Past]], moved_s: float) -> None:
        """Take up what was kept; `moved_s` is added to its times: the clock began anew with the boot."""
        for key, past in state:
            times = [at_s + moved_s for at_s in past.times_mono_s]
            jobs = {job: at_s + moved_s for job, at_s in past.jobs.items()}
            self._past.setdefault(key[2], {}).setdefault(key, Past(times, jobs))
