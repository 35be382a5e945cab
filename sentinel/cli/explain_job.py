"""What was given → why it ended: the core of `replay` over each job's logs, with what the kernel said at that time."""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from sentinel.cli.explain_read import Given, Skipped
from sentinel.cli.replay import number as number_ranks
from sentinel.cli.replay_exits import EXIT_RULES
from sentinel.cli.replay_job import Replay
from sentinel.cli.replay_kernel import Fault, KernelReplay, Seen, read
from sentinel.cli.replay_open import oldest_first, open_log
from sentinel.cli.replay_paper import Foreseen
from sentinel.cli.replay_read import LogError, OldLog, OldLogs
from sentinel.cli.replay_show import Why
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import Cause, IncidentKind, Restartable, Verdict
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import RankExit
from sentinel.failures import failure_classes
from sentinel.logs.kernel_file import unpacked
from sentinel.logs.ruleset import RuleSet, load_ruleset
from sentinel.settings import Settings

BEFORE_S, AFTER_S = 600.0, 60.0  # a fault in the kernel's log this near to a job's own has to do with it
NEAR_S = 30.0  # before a rank's last line, or after it: that it used the card may be assumed
MOST_LINES = 8
PIECE_BYTES = 1 << 20
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


class Answer(Struct, frozen=True, kw_only=True):
    version: int
    jobs: list[Explanation]
    faults: list[Fault]  # of the kernel logs, but for what is told for information alone
    kernel_logs: list[str]
    skipped: list[Skipped]
    notes: list[str]

    @property
    def known(self) -> bool:
        told = any(one.verdict or one.iterations or one.lines for one in self.jobs)
        return told or bool(self.kernel_logs)


def explained(found: Given, asked: Policy, settings: Settings, code: int | None) -> Answer:
    """Raises RuleError."""
    kernel, notes, read_ones = KernelReplay(), list[str](), list[str]()
    for path in oldest_first(found.kernel):
        if why := read(path, kernel, notes):
            found.skipped.append(Skipped(path, why))
        else:
            read_ones.append(path)
    faults = [one for one in kernel.faults() if one.severity != Severity.INFO]
    jobs = []
    ruleset: RuleSet | None = None
    for logs in found.jobs:
        ruleset = ruleset or load_ruleset(
            (*asked.log_rules, *EXIT_RULES), settings.rules_dir, None, asked.timing_formats
        )
        try:
            jobs.append(_job(logs, ruleset, asked, kernel, read_ones, code))
        except LogError as error:
            found.skipped += [Skipped(logs[0].path, line) for line in str(error).splitlines()]
    return Answer(
        version=1, jobs=jobs, faults=faults, kernel_logs=read_ones, skipped=found.skipped, notes=notes
    )


def _job(
    logs: list[OldLog],
    ruleset: RuleSet,
    asked: Policy,
    kernel: KernelReplay,
    kernel_logs: Sequence[str],
    code: int | None,
) -> Explanation:
    notes: list[str] = []
    number_ranks(logs, set(), notes)
    if len(logs) == 1:
        logs[0].rank = 0
    old = OldLogs(logs, ruleset)
    size = 1 if len(logs) == 1 else max(log.rank for log in logs) + 1
    replay = Replay("job", asked, failure_classes(), size, old.start_s)
    for told in old.told():
        replay.take(told)
    given: dict[int | None, RankExit] = {}
    if code is not None:
        given[None] = RankExit(rank=0, incarnation=1, at_s=0.0, code=code)
    replay.finish(given)
    stamped = bool(old.start_s) and not replay.unstamped
    decision, earlier = _what_ended(replay)
    verdict = decision.verdict if decision is not None else None
    near: list[Seen] = []
    if stamped:
        near = _near(kernel, replay)
        verdict, assumed = _with_findings(replay, verdict, [one.worst for one in near])
        notes += assumed
    elif kernel.seen and kernel_logs:
        notes.append(
            "its log bears no time stamps, so which of it and the kernel's log came first is not known"
        )
    blamed = verdict.entity if verdict is not None else ""
    lines = sorted(
        (*_merged(_of_rules(replay, logs, stamped)), *_of_kernel(near, kernel_logs)),
        # Where a line of a program bears no time it may have come after what explains it.
        key=lambda line: (not (blamed and line.what.startswith(blamed)), line.at_s or 0.0),
    )
    return Explanation(
        logs=[log.path for log in logs],
        ranks=replay.size,
        iterations=sum(seen.iterations for seen in replay.ranks.values()),
        last_step=replay.picture.timing.last_step,
        start_s=replay.start_s if stamped else None,
        end_s=replay.now_s if stamped else None,
        sentence=_sentence(decision, verdict),
        verdict=_why(verdict),
        again="" if verdict is None else verdict.restart.value,
        restart="" if verdict is None else _restart(verdict),
        change="" if verdict is None else verdict.advice,
        lines=lines[:MOST_LINES],
        earlier=[f"{one.reason}: {one.sentence}" for one in earlier],
        notes=notes,
    )


def _what_ended(replay: Replay) -> tuple[Foreseen | None, list[Foreseen]]:
    """The decision that the end of the logs was about, and those before it."""
    grave = (IncidentKind.FORCED.value, "end")
    told = [one for one in replay.decisions if one.kind in grave and one.verdict is not None]
    last = replay.ended or (told[-1] if told else None)
    return last, [one for one in told if one is not last][-MOST_LINES:]


def _why(verdict: Verdict | None) -> Why | None:
    return (
        None if verdict is None else Why(**{name: getattr(verdict, name) for name in Why.__struct_fields__})
    )


def _sentence(decision: Foreseen | None, verdict: Verdict | None) -> str:
    if verdict is not None:
        return verdict.sentence
    return "Its log tells of no failure." if decision is None else decision.sentence


def _restart(verdict: Verdict) -> str:
    if verdict.restart is Restartable.NO:
        return "no: it would fail again in the same place"
    if verdict.restart is Restartable.ONCE:
        return "once: if it comes again it is the program's own"
    if verdict.scope == "node":
        return f"yes, without {verdict.entity}" if verdict.entity else "yes, on another node"
    return "yes"


# ---------------------------------------------------------------- the kernel's word


def _near(kernel: KernelReplay, replay: Replay) -> list[Seen]:
    """Faults of the time in which the job ran and ended, on one clock with it."""
    found = []
    for seen in kernel.seen.values():
        at_s = seen.first.wall_s
        if at_s is None or seen.worst.severity is Severity.INFO:
            continue
        if replay.start_s - BEFORE_S <= at_s <= replay.now_s + AFTER_S:
            found.append(seen)
    return sorted(found, key=lambda seen: seen.first.wall_s or 0.0)


def _with_findings(
    replay: Replay, own: Verdict | None, findings: Sequence[Finding]
) -> tuple[Verdict | None, list[str]]:
    """The verdict when the kernel's word is heard too, and what had to be assumed for it."""
    picture = replay.picture
    if not findings or not picture.failed_exits:
        return own, []
    picture.findings = list(findings)
    now = Now(replay.now_s, replay.now_s)
    assumed: list[str] = []
    card = next((one for one in findings if _may_be_of_rank(one, replay, own)), None)
    if card is not None:
        rank = (
            min(picture.failed_exits, key=lambda gone: (gone.at_s, gone.rank)).rank
            if own is None
            else own.rank
        )
        if rank is not None:
            picture.entities[rank] = card.place
            assumed.append(f"that rank {rank} used {card.entity} is assumed: no log says which card it had")
    verdict = picture.verdict(now)
    return verdict, assumed if card is not None and verdict.entity == card.place else []


def _may_be_of_rank(finding: Finding, replay: Replay, own: Verdict | None) -> bool:
    """Of a card, bad enough, at the time of the end, and the job's log does not explain the end by the program."""
    if finding.component is not Component.GPU or finding.severity.order < Severity.DEGRADED.order:
        return False
    if own is not None and (own.restart is Restartable.NO or own.cause is Cause.DATA):
        return False
    return abs(replay.now_s - finding.first_seen_wall_s) <= NEAR_S or finding.severity is Severity.FATAL


# ---------------------------------------------------------------- lines


def _of_rules(replay: Replay, logs: Sequence[OldLog], stamped: bool) -> Iterator[Line]:
    """The first line of each failure class that a rule named."""
    for seen in replay.rules.values():
        if seen.failure not in failure_classes() or not seen.lines:
            continue
        log = next((one for one in logs if one.rank in seen.ranks[:1]), logs[0])
        own = log.stamp_s(seen.lines[0].encode()) is not None
        yield _line(log.path, seen.lines[0], seen.failure, seen.first_at_s if stamped else None, own=own)


def _merged(lines: Iterable[Line]) -> list[Line]:
    """Several rules may name one line."""
    found: dict[tuple[str, int | None, str], Line] = {}
    for line in lines:
        key = (line.path, line.number, line.text)
        known = found.get(key)
        found[key] = line if known is None else structs.replace(known, what=f"{known.what}, {line.what}")
    return [*found.values()]


def _of_kernel(near: Iterable[Seen], paths: Sequence[str]) -> Iterator[Line]:
    for seen in near:
        text = seen.worst.evidence[0] if seen.worst.evidence else seen.first.text
        what = f"{seen.worst.entity} {seen.worst.code}"
        found = [_line(path, text, what, seen.first.wall_s, own=True) for path in paths]
        yield next((line for line in found if line.number is not None), found[0])


def _line(path: str, text: str, what: str, at_s: float | None, *, own: bool) -> Line:
    needle = _OF_RANK.sub("", text.splitlines()[0] if text else "")[:200]
    number = _number_of(path, needle.encode())
    return Line(at_s=at_s, stamped=own, path=path, number=number, what=what, text=text)


def _number_of(path: str, needle: bytes) -> int | None:
    """The first line of the file that holds it."""
    if path == "-" or not needle.strip():
        return None
    before, rest = 1, b""
    try:
        with open_log(path) as file:
            stream = unpacked(file)
            while piece := stream.read(PIECE_BYTES):
                piece = rest + piece
                if (at := piece.find(needle)) >= 0:
                    return before + piece.count(b"\n", 0, at)
                cut = max(0, len(piece) - len(needle))
                before, rest = before + piece.count(b"\n", 0, cut), piece[cut:]
    except (OSError, EOFError):
        pass
    return None
