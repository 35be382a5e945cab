"""One incident as triage looks at it: what is known, and what is believed."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from sentinel.core.health import Component, Finding
from sentinel.core.model import HANG, Failure, Symptom
from sentinel.core.now import Now
from sentinel.core.reports import LogMatch, RankExit, signal_of
from sentinel.core.signals import TimingSignal
from sentinel.core.stacks.flight_record import Stuck
from sentinel.core.triage.rows import CHAINED, FailureClass, Row

# A line's own time is believed when it is this close to when the line was read: not another time zone.
STAMP_TRUST_S = 600.0

# Of an exception's own line as `_distributed_excepthook` of torch/distributed/__init__.py prints it.
_UNCAUGHT = re.compile(
    r"(?: {0,4}\d{1,5}: )?(?:\[default\d+\]: ?)?\[rank\d+\]: (?:\w+\.)*\w+(?:Error|Exception)\b"
)
BEHIND_S = 10.0  # that the others go on at most; after longer they were started anew
# Nor without a rank whose log tells of no iterations: what it told longer before one of others it has survived.
WITHOUT_S = 60.0

# A root may lie this long before the death that it explains: NCCL's watchdog waits 600 s by default
# before it kills the ranks that are left, and then needs time for its own reports.
WINDOW_S = 900.0

CLASS_OF_SYMPTOM = {
    Symptom.HANG: HANG,
    Symptom.SLOW: "slow",
    Symptom.STARVED: "starved",
    Symptom.STRAGGLER: "straggler",
    Symptom.SLOWDOWN: "slowdown",
    Symptom.START_FAILED: "start-failed",
}


class Struck(Struct, frozen=True):
    """What another job met, and where the rank ran that met it."""

    job: str
    failure: str
    place: str
    wall_s: float
    sentence: str = ""


class Case(Struct, frozen=True, kw_only=True):
    """The arguments of `triage`, sorted out."""

    job: str
    size: int
    lost: tuple[RankExit, ...]  # failed and not by us, first one first
    rows: tuple[Row, ...]  # log lines of known classes, in order of time
    findings: tuple[Finding, ...]
    signal: TimingSignal | None
    last_steps: Mapping[int, int | None]
    steps_told: bool  # False: they are counted from the start
    run_s: float  # of the job, by now
    entities: Mapping[int, str]
    processes: Mapping[
        int, tuple[int, int | None]
    ]  # pid -> its rank, and its number where that is a launcher
    children: Mapping[int, int]  # pid of another process that a rank has started -> that rank
    failures: Mapping[str, FailureClass]
    history: Sequence[Failure]
    started_s: float  # monotonic; of the running incarnation
    others: Callable[[], Iterable[Struck]]  # of other jobs; asked only where it matters
    now: Now
    stuck: Stuck | None  # what the flight recorders of its ranks tell

    @property
    def moment_s(self) -> float:
        """When it was noticed that something went wrong."""
        return self.lost[0].at_s if self.lost else self.now.mono_s

    @property
    def symptom(self) -> Symptom:
        if self.lost:
            return Symptom.RANK_LOST
        return self.signal.symptom if self.signal else Symptom.FINDING

    def exit_of(self, rank: int) -> RankExit | None:
        return next((e for e in self.lost if e.rank == rank), None)

    def rank_of_pid(self, pid: int | None) -> int | None:
        found = self.processes.get(pid) if pid is not None else None
        return found[0] if found is not None else None

    def worker_of_pid(self, pid: int | None) -> int | None:
        found = self.processes.get(pid) if pid is not None else None
        return found[1] if found is not None else None

    def of(self, *roles: str) -> list[Row]:
        return [row for row in self.rows if row.cls.role in roles]

    @property
    def complaints(self) -> list[Row]:
        return [row for row in self.rows if row.cls.complains]


def recent(finding: Finding, case: Case) -> bool:
    """An event by when it came; a sample, which is seen again and again, by when it was first seen."""
    if finding.event:
        return finding.seen_mono_s >= case.moment_s - WINDOW_S
    return case.now.wall_s - finding.first_seen_wall_s <= WINDOW_S


class Why(Struct, frozen=True, kw_only=True):
    """What is believed, before it is put into words."""

    cls: FailureClass
    rank: int | None = None
    worker: int | None = None  # of those that `rank`, a launcher, has started
    entity: str = ""
    finding: Finding | None = None
    code: str = ""
    note: str = ""  # a second sentence
    clause: str = ""  # instead of the class's own
    follows: str = ""  # "job" or "node", where the past tells
    others: tuple[str, ...] = ()  # evidence: what other jobs met


def place_of(case: Case, why: Why) -> str:
    """Where the rank runs that it is about."""
    return case.entities.get(why.rank, "") if why.rank is not None else ""


def rows_in_order(
    matches: Sequence[LogMatch],
    failures: Mapping[str, FailureClass],
    since_s: float,
    iterated_s: Mapping[int, float],
    exits: Mapping[int, RankExit],
    now: Now,
) -> tuple[Row, ...]:
    """Lines of known classes that may explain the incident, in order of time.

    The lines' own stamps order them when every one has a believable one, else the times of reading.
    """
    reports = [m for m in matches if (cls := failures.get(m.failure)) is not None and cls.role == "report"]
    found: list[Row] = []
    follows: dict[int, str | None] = {}  # by rank: the line that follows from another, None until it is read
    others_s = max(iterated_s.values(), default=since_s) - WITHOUT_S
    for match in matches:
        cls = failures.get(match.failure)
        if cls is None or match.at_s < since_s:
            continue
        on_s = iterated_s.get(match.rank, others_s)
        if match.at_s < on_s and not _uncaught(match, on_s, reports):
            continue  # the rank went on after it
        if match.failure == CHAINED:
            follows[match.rank] = None
            continue
        chained = False
        if match.rank in follows and cls.role in ("root", "generic"):
            if follows[match.rank] is None:
                follows[match.rank] = match.line
            chained = follows[match.rank] == match.line  # several rules may name one line
        found.append(Row(cls, match, chained))
    stamps = [_stamp_mono_s(row.match, now) for row in found]
    if found and None not in stamps:
        keyed = [(s, k) for k, s in enumerate(stamps) if s is not None]
    else:
        keyed = []
        for k, row in enumerate(found):
            exit_ = exits.get(row.match.rank)
            keyed.append((min(row.match.at_s, exit_.at_s) if exit_ else row.match.at_s, k))
    return tuple(found[k] for _, k in sorted(keyed))


def _uncaught(match: LogMatch, iterated_s: float, reports: Sequence[LogMatch]) -> bool:
    """Torch puts `[rank1]: ` before what a rank raised and did not catch, and that rank ends. The others go on for some
    iterations, in the same log where a launcher has started them, which reports that end: on GPUs they are behind."""
    if _UNCAUGHT.match(match.line) is None or iterated_s - match.at_s > BEHIND_S:
        return False
    after = [report.at_s for report in reports if report.rank == match.rank and report.at_s >= match.at_s]
    return bool(after) and min(after) >= iterated_s  # else all were started anew after its report


def _stamp_mono_s(match: LogMatch, now: Now) -> float | None:
    if match.stamp_wall_s is None:
        return None
    mono_s = now.mono_s - (now.wall_s - match.stamp_wall_s)
    return mono_s if abs(mono_s - match.at_s) <= STAMP_TRUST_S else None


def class_of_finding(finding: Finding, failures: Mapping[str, FailureClass]) -> tuple[FailureClass, str]:
    """The class that claims a finding, and the phrase for it: by code, by kind of code, by action, by component."""
    for code in (finding.code, f"{finding.code.partition(' ')[0]} *"):
        for cls in failures.values():
            if code in cls.codes:
                return cls, cls.codes[code]
    for cls in failures.values():
        if finding.component is Component.GPU and finding.action in cls.actions:
            return cls, ""
    for cls in failures.values():
        if finding.component in cls.components:
            return cls, ""
    return failures["unknown"], ""


def finding_clause(finding: Finding, phrase: str) -> str:
    about = finding.entity
    if finding.node:
        about = f"{about} of {finding.node}" if about != finding.node else f"node {about}"
    if phrase:
        return f"{about} {phrase} ({finding.code})"
    code = "" if finding.code in finding.summary else f" ({finding.code})"
    return f"{about}: {finding.summary}{code}"


def with_note(why: Why, finding: Finding) -> Why:
    """The same, with what a finding says as a sentence of its own."""
    named = finding.entity in finding.summary
    said = f"{'' if named else f'{finding.entity}: '}{finding.summary}."
    return structs.replace(why, note=f"{why.note} {said}".strip())


def class_of_death(exit_: RankExit, failures: Mapping[str, FailureClass]) -> FailureClass | None:
    """The class that its pod names, else the one that claims this signal (a shell reports signal N as exit code
    128 + N) or exit code."""
    if exit_.failure:
        return failures.get(exit_.failure)
    signal = exit_.signal
    if signal is None:
        signal = signal_of(exit_.code)
    for cls in failures.values():
        if cls.role != "root":
            continue
        if (signal is not None and signal in cls.signals) or (
            exit_.code is not None and exit_.code in cls.exit_codes
        ):
            return cls
    return None
