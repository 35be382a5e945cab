"""A replay as a short story with tables for people, and as JSON with stable keys for programs."""

import time
from collections.abc import Sequence

from msgspec import Struct

from sentinel.console.tables import pairs, table
from sentinel.core.model import Step
from sentinel.core.policy_model import Policy
from sentinel.core.signals import names
from sentinel.core.timing.performance import Gap
from sentinel.core.timing.statistics import Histogram
from sentinel.replay.job import RankSeen, Replay, RuleSeen
from sentinel.replay.paper import Foreseen
from sentinel.replay.read import OldLogs
from sentinel.web.words import duration, milliseconds, number, printable

SHOWN_STALLS = 5
SHOWN_EVIDENCE = 6
SHOWN_CHARS = 160  # of one line of a log

STAMPS = "the lines' own time stamps"
SYNTHETIC = "a synthetic clock, advanced by the iterations' end-to-end times: the lines bear no time stamps"
MIXED = "time stamps of other lines, between them the iterations' end-to-end times"


class Log(Struct, frozen=True, kw_only=True):
    path: str
    read_bytes: int
    cri: bool
    ranks: list[int]


class Times(Struct, frozen=True, kw_only=True):
    """Step times in ms. `ratio`: hardware / end-to-end time over all iterations, 0..1."""

    rank: int | None  # None: the job
    iterations: int
    first_step: int | None
    last_step: int | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    ratio: float | None
    format: str = ""
    clock: str = ""  # stamps | synthetic


class Stall(Struct, frozen=True, kw_only=True):
    rank: int
    gap_s: float
    until_s: float  # when the next iteration came
    after_iterations: int


class Why(Struct, frozen=True, kw_only=True):
    """A verdict with every key, whatever its value."""

    symptom: str
    cause: str
    failure: str
    scope: str
    rank: int | None
    entity: str
    sentence: str
    evidence: tuple[str, ...]
    advice: str
    budget: str
    restart: str
    confidence: str


class Decision(Struct, frozen=True, kw_only=True):
    """One decision, and what would have followed it."""

    at_s: float
    kind: str  # forced | chosen | ending | notice | end
    reason: str
    sentence: str
    step: int | None
    verdict: Why | None
    then: tuple[Step, ...]  # the story of the recovery on paper
    outcome: str  # its last phase (Verifying: started again); of an end the state of the job
    plan: str
    save: str  # "" or what would have been asked for
    grace_s: float | None  # from SIGTERM to SIGKILL
    restarts_left: int | None


class Result(Struct, frozen=True, kw_only=True):
    """Times `_s` are Unix seconds, but seconds since the beginning where `clock` is synthetic."""

    version: int
    clock: str  # stamps | synthetic | mixed: only other lines than the iterations' bear stamps
    start_s: float
    end_s: float
    size: int
    iterations: int
    policy: str
    logs: list[Log]
    notes: list[str]
    story: list[Decision]
    end: str  # where the exit status comes from: given | log | assumed | unknown
    ended: Decision | None  # the last of the story, where the end of the job made it
    job: Times
    ranks: list[Times]
    stalls: list[Stall]
    rules: list[RuleSeen]


def result_of(replay: Replay, logs: OldLogs, source: str, asked: Policy, notes: Sequence[str]) -> Result:
    ranks = []
    for rank, seen in sorted(replay.ranks.items()):
        of_rank = [reader for reader in logs.readers if reader.rank == rank]
        clocks = {"synthetic" if reader.synthetic else "stamps" for reader in of_rank}
        ranks.append(
            _times(
                rank,
                [seen],
                format=next((reader.format for reader in of_rank if reader.format), ""),
                clock="synthetic" if "synthetic" in clocks else "stamps",
            )
        )
    stalls = [
        Stall(rank=gap.rank, gap_s=gap.gap_s, until_s=gap.at_s, after_iterations=gap.count)
        for gap in _stalls(replay)
    ]
    return Result(
        version=1,
        clock="synthetic" if not logs.start_s else "mixed" if replay.unstamped else "stamps",
        start_s=replay.start_s,
        end_s=replay.now_s,
        size=replay.size,
        iterations=sum(seen.iterations for seen in replay.ranks.values()),
        policy=asked.name,
        logs=[
            Log(
                path=log.path,
                read_bytes=log.read_bytes,
                cri=log.cri,
                ranks=sorted({reader.rank for reader in logs.readers if reader.log is log}),
            )
            for log in logs.logs
        ],
        notes=[*notes, *_clock_notes(replay)],
        story=[_decision(one) for one in replay.decisions],
        end=source,
        ended=_decision(replay.ended) if replay.ended else None,
        job=_times(None, list(replay.ranks.values())),
        ranks=ranks,
        stalls=stalls,
        rules=sorted(replay.rules.values(), key=lambda rule: (rule.first_at_s, rule.rule)),
    )


def _decision(one: Foreseen) -> Decision:
    fields = {name: getattr(one, name) for name in Foreseen.__struct_fields__}
    verdict = one.verdict
    fields["verdict"] = verdict and Why(**{name: getattr(verdict, name) for name in Why.__struct_fields__})
    return Decision(**fields)


def _clock_notes(replay: Replay) -> list[str]:
    if not replay.unstamped:
        return []
    ranks = names(sorted(replay.unstamped))
    return [f"hangs were not looked for: the iterations of {ranks} bear no time stamps"]


def _stalls(replay: Replay) -> tuple[Gap, ...]:
    timing = replay.picture.timing
    timing.histogram = _joined(list(replay.ranks.values()))
    return timing.summary().stalls


def _joined(ranks: Sequence[RankSeen]) -> Histogram:
    joined = Histogram()
    for one in ranks:
        joined.counts.update(one.histogram.counts)
        joined.count += one.histogram.count
        joined.max_ms = max(joined.max_ms, one.histogram.max_ms)
        joined.min_ms = min(joined.min_ms, one.histogram.min_ms)
    return joined


def _times(rank: int | None, seen: Sequence[RankSeen], format: str = "", clock: str = "") -> Times:
    histogram = _joined(seen)
    paired_ms = sum(one.paired_ms for one in seen)
    firsts = [one.first_step for one in seen if one.first_step is not None]
    lasts = [one.last_step for one in seen if one.last_step is not None]
    return Times(
        rank=rank,
        iterations=sum(one.iterations for one in seen),
        first_step=min(firsts, default=None),
        last_step=max(lasts, default=None),
        p50_ms=histogram.quantile_ms(0.5),
        p90_ms=histogram.quantile_ms(0.9),
        p99_ms=histogram.quantile_ms(0.99),
        max_ms=histogram.quantile_ms(1.0),
        ratio=sum(one.hardware_ms for one in seen) / paired_ms if paired_ms else None,
        format=format,
        clock=clock,
    )


# ---------------------------------------------------------------- for people


def as_text(result: Result) -> str:
    parts = [
        _head(result),
        _story(result),
        _step_times(result),
        _slowest(result),
        _rules(result),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _moment(result: Result, at_s: float) -> str:
    if result.clock != "synthetic":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    total = int(at_s - result.start_s)
    return f"+{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def _head(result: Result) -> list[str]:
    paths = ", ".join(log.path for log in result.logs[:4])
    more = f" and {len(result.logs) - 4} more" if len(result.logs) > 4 else ""
    ranks = "1 rank" if result.size == 1 else f"{result.size} ranks"
    formats = ", ".join(dict.fromkeys(times.format for times in result.ranks if times.format))
    clock = {"stamps": STAMPS, "synthetic": SYNTHETIC, "mixed": MIXED}[result.clock]
    span = f"{_moment(result, result.start_s)} to {_moment(result, result.end_s)}"
    return pairs(
        [
            ("logs", f"{paths}{more}{' (CRI)' if any(log.cri for log in result.logs) else ''}"),
            ("seen", f"{ranks}, {result.iterations} iterations{f' ({formats})' if formats else ''}"),
            ("from", f"{span} ({duration(result.end_s - result.start_s)})"),
            ("time", clock),
            ("policy", result.policy),
            *(("note", note) for note in result.notes),
        ]
    )


def _story(result: Result) -> list[str]:
    lines = ["What Sentinel would have seen and decided"]
    for one in result.story:
        lines += _told(result, one)
    if not result.story:
        lines.append("  Nothing to act on.")
    if result.end == "unknown":
        lines.append(f"  {_moment(result, result.end_s)}  The logs end. How the job ended is not known.")
    elif result.end == "assumed":
        lines.append(
            f"  {_moment(result, result.end_s)}  The logs end after a failure; that those ranks were lost is "
            "assumed, with which exit status is not known."
        )
    return lines


def _told(result: Result, one: Decision) -> list[str]:
    lines = [f"  {_moment(result, one.at_s)}  {one.reason}: {printable(one.sentence)}"]
    inner = []
    verdict = one.verdict
    if verdict is not None and one.kind != "ending":
        rank = f", rank {verdict.rank}" if verdict.rank is not None and result.size > 1 else ""
        inner.append(f"{verdict.cause}; class {verdict.failure}; of the {verdict.scope}{rank}")
        if verdict.confidence:
            inner.append(verdict.confidence)
        inner += [f"| {_cut(text)}" for text in verdict.evidence[:SHOWN_EVIDENCE]]
        if verdict.advice not in one.plan and one.kind in ("forced", "end"):
            inner.append(verdict.advice)
    inner += _what_follows(one)
    return lines + [f"    {printable(text)}" for text in inner]


def _what_follows(one: Decision) -> list[str]:
    if one.kind == "notice":
        return ["would have followed: a mail; the job is left alone"]
    if not one.then:
        return []
    way = list(dict.fromkeys(entry.phase.value for entry in one.then))
    said = [f"would have followed: {' → '.join(way)}"]
    if one.save:
        said.append(f"save: {one.save}")
    left = "" if "left after it" in one.plan else f" Restarts left: {one.restarts_left}."
    return [*said, f"{one.plan}{left}"]


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _step_times(result: Result) -> list[str]:
    if not result.iterations:
        return ["No iterations."]
    rows = [
        (
            "all" if times.rank is None else str(times.rank),
            str(times.iterations),
            f"{number(times.first_step)} to {number(times.last_step)}"
            if times.last_step is not None
            else "–",
            milliseconds(times.p50_ms),
            milliseconds(times.p90_ms),
            milliseconds(times.p99_ms),
            milliseconds(times.max_ms),
            "–" if times.ratio is None else f"{times.ratio:.3f}",
        )
        for times in ([result.job] if result.size > 1 else []) + result.ranks
        if times.iterations
    ]
    heads = ("RANK", "ITERATIONS", "STEPS", "P50", "P90", "P99", "MAX", "RATIO")
    return ["Step times", *table(heads, rows, (*heads[3:], "ITERATIONS"))]


def _slowest(result: Result) -> list[str]:
    if not result.stalls:
        return []
    rows = [
        (duration(stall.gap_s), str(stall.rank), str(stall.after_iterations), _moment(result, stall.until_s))
        for stall in result.stalls[:SHOWN_STALLS]
    ]
    more = len(result.stalls) - SHOWN_STALLS
    lines = table(("WITHOUT AN ITERATION", "RANK", "AFTER ITERATIONS", "UNTIL"), rows)
    return ["Longest stalls", *lines, *([f"and {more} more"] if more > 0 else [])]


def _rules(result: Result) -> list[str]:
    if not result.rules:
        return []
    rows = [
        (
            rule.rule,
            rule.failure,
            str(rule.count),
            names(rule.ranks).partition(" ")[2],
            _moment(result, rule.first_at_s),
        )
        for rule in result.rules
    ]
    return ["Known lines", *table(("RULE", "CLASS", "LINES", "RANKS", "FIRST"), rows, ("LINES",))]
