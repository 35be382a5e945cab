"""What was given → why it ended: the core of `replay` over each job's logs, with what the kernel said at that time."""

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from msgspec import Struct, structs

from sentinel.cluster.local.flight import Records
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import IncidentKind, Restartable, Verdict
from sentinel.core.policy_model import Policy
from sentinel.core.reports import LogMatch, RankExit
from sentinel.core.stacks.flight_record import Stuck
from sentinel.core.triage.case import class_of_finding
from sentinel.explain.read import Given, Skipped
from sentinel.logs.kernel_file import unpacked
from sentinel.logs.ruleset import RuleSet, load_ruleset
from sentinel.notify.text import duration
from sentinel.replay.exits import EXIT_RULES
from sentinel.replay.job import Replay
from sentinel.replay.kernel import Event, Fault, KernelReplay, read
from sentinel.replay.paper import Foreseen
from sentinel.replay.read import LogError, OldLog, OldLogs
from sentinel.replay.records import records_of
from sentinel.replay.saved import ROTATED, oldest_first, open_log
from sentinel.replay.show import Why
from sentinel.rules.failures import failure_classes
from sentinel.settings import Settings

AFTER_S = 5.0  # the end of a job's log: the kernel may be that late
NEAR_S = 30.0  # before the end: a fault that is not fatal
BOOT_S = 900.0  # after the end: the node that starts anew may have taken the job with it
UNSTAMPED_S = 1.0
RECORDS_S = 3600.0  # after the last line: a collective may begin to wait that late
STAMPS_S = 1.0  # as exact are the times that logs bear
ZONES_S = 14 * 3600.0  # at most between a clock and another time zone's
MOST_LINES = 8
PIECE_BYTES = 1 << 20
NOT_SAID = "exit-unknown"
_OF_RANK = re.compile(r"rank \d+: ")


class Line(Struct, frozen=True, kw_only=True):
    """A line that says something. `at_s`: Unix seconds; None where its log bears no time stamps."""

    at_s: float | None
    stamped: bool  # by itself: else it stands behind a line of that time
    path: str
    number: int | None  # from 1; None where it is not found again, as in standard input
    what: str  # failure classes, or card and code of a finding
    text: str


class Explanation(Struct, frozen=True, kw_only=True):
    """Of one job. `verdict` None: its log tells of no failure."""

    logs: list[str]
    ranks: int
    iterations: int
    last_step: int | None
    start_s: float | None
    end_s: float | None
    sentence: str
    verdict: Why | None
    again: str  # yes | once | no; "" where there is nothing to answer
    restart: str  # in words
    change: str  # what to do
    lines: list[Line]  # what happened first stands first
    earlier: list[str]  # failures that it had lived through before
    notes: list[str]

    @property
    def quiet(self) -> bool:
        return self.verdict is None and not self.iterations and not self.lines


class Kernel(Struct, frozen=True, kw_only=True):
    """The logs of one kernel, and the faults in them but for what is told for information alone."""

    logs: list[str]
    faults: list[Fault]


class Answer(Struct, frozen=True, kw_only=True):
    version: int
    jobs: list[Explanation]  # what is explained first
    kernels: list[Kernel]
    records: list[Records]  # of flight recorders, by folder
    skipped: list[Skipped]
    notes: list[str]

    @property
    def known(self) -> bool:
        told = any(one.files for one in self.records)
        return bool(self.kernels) or told or any(not one.quiet for one in self.jobs)


class _Heard(KernelReplay):
    """A kernel, and the logs that it was heard in."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []


def explained(found: Given, asked: Policy, settings: Settings, code: int | None) -> Answer:
    """Raises RuleError."""
    notes: list[str] = []
    kernels = [kernel for paths in _kernels(found.kernel) if (kernel := _read(paths, found.skipped, notes))]
    records = {folder: records_of(paths) for folder, paths in _by_folder(found.records).items()}
    jobs = []
    ruleset: RuleSet | None = None
    for logs in found.jobs:
        ruleset = ruleset or load_ruleset(
            (*asked.log_rules, *EXIT_RULES), settings.rules_dir, None, asked.timing_formats
        )
        try:
            own = _own(logs, found.jobs, records)
            jobs.append(_Job(logs, ruleset, asked, own).explained(kernels, code))
        except LogError as error:
            path = logs[0].path
            found.skipped += [
                Skipped(path, line.removeprefix(f"{path}: ")) for line in str(error).splitlines()
            ]
    jobs.sort(key=lambda job: (job.verdict is None, job.quiet))
    told = [
        Kernel(logs=one.paths, faults=[each for each in one.faults() if each.severity != Severity.INFO])
        for one in kernels
    ]
    return Answer(
        version=1,
        jobs=jobs,
        kernels=told,
        records=[*records.values()],
        skipped=found.skipped,
        notes=notes,
    )


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(os.path.dirname(path), []).append(path)
    return found


def _own(
    logs: Sequence[OldLog], jobs: Sequence[Sequence[OldLog]], records: Mapping[str, Records]
) -> Stuck | None:
    """What its records tell: those beside its logs alone, or of the only job."""
    here = {os.path.dirname(log.path) for log in logs} & records.keys()
    if not here and len(jobs) == 1:
        here = {*records}
    if len(here) != 1:
        return None
    (folder,) = here
    beside = [one for one in jobs if any(os.path.dirname(log.path) == folder for log in one)]
    return records[folder].stuck if len(beside) <= 1 else None


def _kernels(paths: Iterable[str]) -> list[list[str]]:
    """The files that one log was rotated into are one kernel's, and each other file another's."""
    families: dict[str, list[str]] = {}
    for path in paths:
        match = ROTATED.match(path)
        families.setdefault(match["name"] if match else path, []).append(path)
    return [oldest_first(own) for own in families.values()]


def _read(paths: list[str], skipped: list[Skipped], notes: list[str]) -> _Heard | None:
    kernel = _Heard()
    for path in paths:
        before = kernel.known, len(kernel.seen)
        why = read(path, kernel, notes)
        if why and (kernel.known, len(kernel.seen)) == before:
            skipped.append(Skipped(path, why))
            continue
        kernel.paths.append(path)
        if why:
            notes.append(f"{path}: {why}; what stands before that was read")
    return kernel if kernel.paths else None


class _Job:
    """One job's logs, read to their end."""

    def __init__(self, logs: list[OldLog], ruleset: RuleSet, asked: Policy, records: Stuck | None) -> None:
        self.logs = logs
        self._records = records
        self._old = OldLogs(logs, ruleset)
        self.replay = Replay(
            "job", asked, failure_classes(), max(log.rank for log in logs) + 1, self._old.start_s
        )

    def explained(self, kernels: Sequence[_Heard], code: int | None) -> Explanation:
        """Raises LogError."""
        replay = self.replay
        for told in self._old.told():
            replay.take(told)
        given: dict[int | None, RankExit] = {}
        if code is not None:
            given[None] = RankExit(rank=0, incarnation=1, at_s=0.0, code=code)
        matches = list(replay.picture.matches)
        stamped = bool(self._old.start_s) and not replay.unstamped
        notes: list[str] = []
        if self._records is not None and stamped and not self._of_its_time(self._records):
            notes.append("the flight recorders tell of another time than its log, and were not believed")
        else:
            replay.picture.stuck = self._records
        replay.finish(given)
        matches = list(replay.picture.matches) or matches
        decision, earlier = _what_ended(replay)
        own = verdict = decision.verdict if decision is not None else None
        notes += [
            f"{log.path} is cut off; what could be unpacked was read" for log in self.logs if log.cut_off
        ]
        near: list[tuple[_Heard, Event]] = []
        if stamped:
            near = [(kernel, event) for kernel in kernels for event in self._near(kernel)]
            verdict, assumed = self._with_findings(own, near, len(kernels))
            notes += [*assumed, *self._of_clocks(kernels, near), *self._boots(kernels)]
            notes += self._unexplained(near) if verdict is None else []
        elif any(kernel.events for kernel in kernels):
            notes.append(
                "its log bears no time stamps, so which of it and the kernel's log came first is not known"
            )
        blamed = "" if verdict is None else verdict.entity
        found = [*_merged(self._of_rules(matches, stamped)), *_of_kernel(near)]
        lines = sorted(found, key=lambda line: _order(line, found, blamed))
        why, change, restart, again = _words(verdict)
        return Explanation(
            logs=[log.path for log in self.logs],
            ranks=replay.size,
            iterations=sum(seen.iterations for seen in replay.ranks.values()),
            last_step=replay.picture.timing.last_step,
            start_s=replay.start_s if stamped else None,
            end_s=replay.now_s if stamped else None,
            sentence=_sentence(decision, verdict),
            verdict=why,
            again=again,
            restart=restart,
            change=change,
            lines=[_numbered(line, last=bool(earlier)) for line in lines[:MOST_LINES]],
            earlier=[f"{one.reason}: {one.sentence}" for one in earlier],
            notes=notes,
        )

    def _of_its_time(self, records: Stuck) -> bool:
        return self.replay.start_s - STAMPS_S <= records.since_s <= self.replay.now_s + RECORDS_S

    # ------------------------------------------------------------ the kernel's word

    def _near(self, kernel: _Heard) -> Iterator[Event]:
        """Faults while the job ran, on one clock with it; of one that comes again and again the last."""
        newest: dict[object, Event] = {}
        for event in kernel.events:
            at_s = event.line.wall_s
            if at_s is not None and self.replay.start_s <= at_s <= self.replay.now_s + AFTER_S:
                newest[event.finding.key] = event
        yield from newest.values()

    def _with_findings(
        self, own: Verdict | None, near: Sequence[tuple[_Heard, Event]], kernels: int
    ) -> tuple[Verdict | None, list[str]]:
        """The verdict when the kernel's word is heard too, and what had to be assumed for it."""
        picture = self.replay.picture
        if not near or not picture.failed_exits:
            return own, []
        rank = own.rank if own is not None and own.rank is not None else _first_lost(picture.failed_exits)
        cards = [event.finding for _, event in near if self._may_be_of_rank(event, rank, own)]
        if cards and kernels > 1:
            return own, ["logs of several kernels: which rank ran on which of their nodes no log says"]
        card = max(cards, key=lambda one: one.severity.order, default=None)
        findings = [event.finding for _, event in near]
        verdict = self.replay.verdict_with(findings, {} if card is None else {rank: card.place})
        if card is None or verdict.entity != card.place:
            return verdict, []
        return verdict, [f"that rank {rank} used {card.entity} is assumed: no log says which card it had"]

    def _may_be_of_rank(self, event: Event, rank: int, own: Verdict | None) -> bool:
        """Of a card, bad enough, just before the end, which the job's log does not explain otherwise."""
        finding, at_s = event.finding, event.line.wall_s or 0.0
        if finding.component is not Component.GPU or not _blames_a_card(finding):
            return False
        failure = None if own is None else failure_classes().get(own.failure)
        if failure is not None and not failure.by_card:
            return False
        if finding.severity is Severity.FATAL:  # a rank that steps on did not use that card
            last_s = self.replay.ranks[rank].last_at_s
            return last_s is None or at_s >= last_s - STAMPS_S or not self.replay.ranks[rank].iterations
        return at_s >= self.replay.now_s - NEAR_S

    def _of_clocks(self, kernels: Sequence[_Heard], near: Sequence[tuple[_Heard, Event]]) -> Iterator[str]:
        """What could not be compared, where it would matter."""
        known = {id(event) for _, event in near}
        for kernel in kernels:
            grave = [one for one in kernel.events if one.finding.severity.order >= Severity.DEGRADED.order]
            if any(one.line.wall_s is None for one in grave):
                yield (
                    f"{kernel.paths[0]} tells the time since a boot alone: whether its faults came at the end is not "
                    "known (dmesg -T tells)"
                )
            for one in grave:
                off_s = abs((one.line.wall_s or self.replay.now_s) - self.replay.now_s)
                zone = (
                    off_s >= 1800.0 - NEAR_S and off_s <= ZONES_S and (off_s + NEAR_S) % 1800.0 <= 2 * NEAR_S
                )
                if id(one) not in known and zone:
                    off = duration(round(off_s / 1800) * 1800)
                    what = f"{one.finding.entity} {one.finding.code}"
                    yield f"{what} is {off} off its end to the minute: is one clock another time zone's?"
                    break

    def _boots(self, kernels: Sequence[_Heard]) -> Iterator[str]:
        for kernel in kernels:
            for at_s in kernel.booted_wall_s:
                if 0 <= at_s - self.replay.now_s <= BOOT_S:
                    after = duration(at_s - self.replay.now_s)
                    yield f"the node of {kernel.paths[0]} started anew {after} after its last line"
                    break

    def _unexplained(self, near: Iterable[tuple[_Heard, Event]]) -> Iterator[str]:
        """A log that just stops: what may have stopped it."""
        for _, event in near:
            before_s = self.replay.now_s - (event.line.wall_s or 0.0)
            if event.finding.severity is Severity.FATAL and before_s <= NEAR_S:
                when = f"{duration(abs(before_s))} {'before' if before_s > 0 else 'after'} its last line"
                yield f"{event.finding.entity} {event.finding.code} came {when}"

    def _of_rules(self, matches: Iterable[LogMatch], stamped: bool) -> Iterator[Line]:
        """The first line of each class that a rule named since it ran last."""
        seen: set[str] = set()
        for match in matches:
            last_s = self.replay.ranks[match.rank].last_at_s
            lived = last_s is not None and match.at_s < last_s
            if lived or match.failure in seen or match.failure not in failure_classes():
                continue
            seen.add(match.failure)
            for log in [one for one in self.logs if one.rank == match.rank] or self.logs[:1]:
                line = Line(
                    at_s=match.at_s if stamped else None,
                    stamped=match.stamp_wall_s is not None,
                    path=log.path,
                    number=None,
                    what=match.failure,
                    text=match.line,
                )
                if len(self.logs) == 1 or _number_of(log.path, _needle(match.line), last=False) is not None:
                    yield line
                    break


def _blames_a_card(finding: Finding) -> bool:
    """As in a job that runs (core/triage/gpu.py): bad enough, or what a failure class of cards claims."""
    cls, _ = class_of_finding(finding, failure_classes())
    claimed = finding.code in cls.codes and cls.restart is not Restartable.ONCE
    return cls.role == "root" and (claimed or finding.severity.order >= Severity.DEGRADED.order)


def _first_lost(exits: Iterable[RankExit]) -> int:
    return min(exits, key=lambda gone: (gone.at_s, gone.rank)).rank


def _what_ended(replay: Replay) -> tuple[Foreseen | None, list[Foreseen]]:
    """The decision that the end of the logs was about, and those before it."""
    grave = (IncidentKind.FORCED.value, "end")
    told = [one for one in replay.decisions if one.kind in grave and one.verdict is not None]
    last = replay.ended or (told[-1] if told else None)
    return last, [one for one in told if one is not last][-MOST_LINES:]


# ---------------------------------------------------------------- words


def _sentence(decision: Foreseen | None, verdict: Verdict | None) -> str:
    if verdict is None:
        return "Its log tells of no failure." if decision is None else decision.sentence
    if verdict.failure == NOT_SAID:
        return "Its log does not say why it ended; `--exit-code N` tells what it ended with."
    return verdict.sentence


def _words(verdict: Verdict | None) -> tuple[Why | None, str, str, str]:
    """The verdict as it is shown, what to change, and whether to start it again: in words, and in one."""
    if verdict is None:
        return None, "", "", ""
    why = Why(**{name: getattr(verdict, name) for name in Why.__struct_fields__})
    if verdict.failure == NOT_SAID:
        return why, "", "", ""
    return why, verdict.advice, _restart(verdict), verdict.restart.value


def _restart(verdict: Verdict) -> str:
    if verdict.restart is Restartable.NO:
        return "no: it would fail again in the same place"
    if verdict.restart is Restartable.ONCE:
        return "once: if it comes again it is the program's own"
    if verdict.scope == "node":
        return f"yes, without {verdict.entity}" if verdict.entity else "yes, on another node"
    return "yes"


# ---------------------------------------------------------------- lines


def _of_kernel(near: Iterable[tuple[_Heard, Event]]) -> Iterator[Line]:
    for kernel, event in near:
        finding = event.finding
        yield Line(
            at_s=event.line.wall_s,
            stamped=True,
            path="\n".join(kernel.paths),
            number=None,
            what=f"{finding.entity} {finding.code}",
            text=finding.evidence[0] if finding.evidence else event.line.text,
        )


def _merged(lines: Iterable[Line]) -> list[Line]:
    """Several rules may name one line."""
    found: dict[tuple[str, str], Line] = {}
    for line in lines:
        known = found.get((line.path, line.text))
        merged = line if known is None else structs.replace(known, what=f"{known.what}, {line.what}")
        found[line.path, line.text] = merged
    return [*found.values()]


def _order(line: Line, lines: Sequence[Line], blamed: str) -> float:
    """A line of a program that bears no time of its own stands behind the line before it, and behind its cause."""
    at_s = line.at_s or 0.0
    if line.stamped:
        return at_s
    causes = [one.at_s or 0.0 for one in lines if blamed and one.stamped and one.what.startswith(blamed)]
    return max((at_s, *causes)) + UNSTAMPED_S


def _numbered(line: Line, *, last: bool) -> Line:
    paths = line.path.split("\n")
    for path in paths:
        if (number := _number_of(path, _needle(line.text), last=last)) is not None:
            return structs.replace(line, path=path, number=number)
    return structs.replace(line, path=paths[0])


def _needle(text: str) -> bytes:
    return _OF_RANK.sub("", text.splitlines()[0] if text else "")[:200].strip().encode()


@cache
def _number_of(path: str, needle: bytes, *, last: bool) -> int | None:
    """The first line of the file that ends with it, or its `last` one; else one that holds it."""
    if path == "-" or not needle:
        return None
    found = held = None
    before, rest = 0, b""
    try:
        with open_log(path) as file:
            stream = unpacked(file)
            while piece := stream.read(PIECE_BYTES):
                lines = (rest + piece).split(b"\n")
                rest = lines.pop()
                for number, line in enumerate(lines, before + 1) if needle in piece or needle in rest else ():
                    if needle in line:
                        held = held or number
                        if line.rstrip().endswith(needle) and (last or found is None):
                            found = number
                before += len(lines)
    except (OSError, EOFError, zlib.error):
        pass
    if needle in rest:
        held = held or before + 1
        if rest.rstrip().endswith(needle) and (last or found is None):
            found = before + 1
    return found or held
