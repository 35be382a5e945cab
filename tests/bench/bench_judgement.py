"""How right the judgement of slowness and of hangs is: healthy jobs, jobs that become slower, simulated jobs of 64
ranks, and sixteen real ones that hung or made long pauses (judged_hangs.py).

Healthy days are made from the profiles of tests/core/jitter, without the jobs' own changes of level, and from plain
noise; JOB_DAYS in the environment sets how many. A job-day is 86,400 s of step time. Short steps cost most to make,
so most days are of jobs with steps of a second or more, and no series is longer than MOST_ITERATIONS; what is
counted is the time that was made. Jobs of 64 ranks are those of tests/core/rings.py: evidence of the judgement, not
of real jobs. A fault that slows its job by less than 5 % there, because slack hides it, is none to be found. Right is
who names the ranks at fault and no others, and nobody where links or loaders are slow. Where hardware time counts
tensor-parallel communication too, a whole tensor group is as slow as its slowest card or link, and those who wait in it
for the data of one of them are told as such.
"""

import math
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from multiprocessing.pool import Pool
from statistics import median, quantiles
from typing import NamedTuple

from sentinel.core.model import Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Iteration, RankReport
from sentinel.core.timing.change_point import StepHistory
from sentinel.core.timing.job_timing import JobTiming
from sentinel.core.timing.slowdown import Whose, blame, enough
from tests.bench import judged_hangs
from tests.bench.harness import Row, at_least, at_most
from tests.core.jitter_series import Profile, profiles
from tests.core.rings import (
    Counts,
    Fault,
    Layout,
    Program,
    SlowCard,
    SlowData,
    SlowHost,
    SlowLink,
    SlowNic,
    hosts,
    simulate,
)

DAYS = float(os.environ.get("JOB_DAYS", "1000"))
DAY_MS = 86_400_000.0
MOST_ITERATIONS = 1_000_000  # of one series
STEP_MS = 2000.0  # of plain noise
POLL = 7  # iterations that an agent tells at once
LIMIT = Policy().performance.slowdown_ratio or 0.0

LAYOUTS = [Layout(*sizes) for sizes in ((1, 1, 64), (8, 1, 8), (8, 4, 2), (8, 8, 1), (1, 4, 16))]
BEFORE, AFTER = 100, 70  # iterations
FAULTS: list[Fault] = [
    *(SlowCard(rank, factor, since=BEFORE) for rank in (0, 29, 63) for factor in (1.12, 1.5)),
    *(SlowHost(3, factor, since=BEFORE) for factor in (1.12, 1.5)),
    SlowNic(3, 4.0, since=BEFORE),
    SlowLink(hosts=(3, 4), factor=8.0, since=BEFORE),
    SlowLink(hosts=(3, 5), factor=8.0, since=BEFORE),
    SlowLink(ranks=(26, 27), factor=40.0, since=BEFORE),
    SlowData(host=3, extra_ms=300.0, since=BEFORE),
    SlowData(rank=29, extra_ms=300.0, since=BEFORE),
    SlowData(host=3, factor=5.0, since=BEFORE),
]
MATTERS = 1.05  # by what factor a job must become slower for its fault to count


# ---------------------------------------------------------------- one job's own history


def _hiccups(source: random.Random) -> Iterator[float]:
    while True:
        yield (3.0 if source.random() < 0.01 else 1.0) * source.gauss(1, 0.01)


def _wander(source: random.Random) -> Iterator[float]:
    slow = 0.0
    while True:
        slow = 0.999 * slow + math.sqrt(1 - 0.999**2) * source.gauss(0, 0.01)
        yield 1 + slow + source.gauss(0, 0.01)


def _normal(sigma: float) -> Callable[[random.Random], Iterator[float]]:
    def times(source: random.Random) -> Iterator[float]:
        while True:
            yield max(source.gauss(1, sigma), 0.1)

    return times


def _lengths(source: random.Random) -> Iterator[float]:
    while True:
        yield source.lognormvariate(0, 0.2)


NOISE = {
    "normal 1 %": _normal(0.01),
    "normal 3 %": _normal(0.03),
    "hiccups": _hiccups,
    "slow wander": _wander,
    "batches of many lengths": _lengths,
}


def series(kind: str, seed: int) -> list[float]:
    """A healthy day of a kind of noise or of a profile, in ms."""
    if make := NOISE.get(kind):
        times = make(random.Random(f"{kind} {seed}"))
        return [STEP_MS * next(times) for _ in range(int(DAY_MS / STEP_MS))]
    profile = _profile(kind)
    count = min(int(DAY_MS / profile.median_ms), MOST_ITERATIONS)
    return profile.series_ms(seed, count, steady=True)


def _profile(name: str) -> Profile:
    return _profiles()[name]


@cache
def _profiles() -> dict[str, Profile]:
    return {one.name: one for one in profiles()}


def found_at(times_ms: Sequence[float], chunk: int = POLL) -> list[int]:
    """After how many iterations a slowdown was told, each time."""
    history, at_s, alarms = StepHistory(), 0.0, []
    for first in range(0, len(times_ms), chunk):
        part = []
        for step, ms in enumerate(times_ms[first : first + chunk], first):
            at_s += ms / 1000
            part.append(Iteration(at_s, step, None, ms))
        if history.fold(part, LIMIT):
            alarms.append(first + len(part))
    return alarms


def healthy(case: tuple[str, int]) -> tuple[str, float, int]:
    """The kind, days and alarms of one series."""
    times = series(*case)
    return case[0], sum(times) / DAY_MS, len(found_at(times))


def healthy_cases(days: float) -> list[tuple[str, int]]:
    """Half of them plain noise; of profiles 24 days of a job with long steps for each 2 of one with short ones."""
    weight = {one.name: 24 if one.median_ms >= 1000 else 2 for one in profiles()}
    scale = days / 2 / sum(weight.values())
    of_noise = math.ceil(days / 2 / len(NOISE))
    told = {**dict.fromkeys(NOISE, of_noise), **{k: math.ceil(w * scale) for k, w in weight.items()}}
    return [(kind, seed) for kind, count in told.items() for seed in range(count)]


def delay(case: tuple[str, int]) -> int | None:
    """Iterations from a change of 5 % until it is found; None: not within 60, -1: an alarm before it. Profiles are
    taken at steps of 2 s: shorter ones are judged by the second."""
    kind, seed = case
    source = random.Random(seed)
    since = source.randrange(100, 600)
    if make := NOISE.get(kind):
        noise = make(source)
        times = [STEP_MS * next(noise) for _ in range(since + 60)]
    else:
        times = replace(_profile(kind), median_ms=STEP_MS).series_ms(seed, since + 60, steady=True)
    alarms = found_at([ms * (1.05 if k >= since else 1) for k, ms in enumerate(times)], 1)
    if alarms and alarms[0] <= since:
        return -1
    return alarms[0] - since if alarms else None


# ---------------------------------------------------------------- 64 ranks


class Run(NamedTuple):
    layout: Layout
    counts: Counts
    fault: Fault | None
    seed: int
    iterations: int = BEFORE + AFTER
    lengths: float = 0.0

    def lines(self, *, sound: bool = False) -> dict[int, list[Iteration]]:
        faults = [] if self.fault is None or sound else [self.fault]
        program = Program(lengths=self.lengths)
        return simulate(
            self.layout, self.iterations, seed=self.seed, faults=faults, counts=self.counts, program=program
        )

    @property
    def guilty(self) -> list[set[int]]:
        """Whoever may be named: one of these sets."""
        layout, fault, tensor = self.layout, self.fault, self.counts == "tensor"
        if isinstance(fault, SlowCard):
            return [{fault.rank}, set(layout.tensor_group(fault.rank))] if tensor else [{fault.rank}]
        if isinstance(fault, SlowHost):
            return [{rank for rank, host in enumerate(hosts(layout)) if host == fault.host}]
        if isinstance(fault, SlowLink) and fault.ranks and tensor:
            return [set(), set(layout.tensor_group(fault.ranks[0]))]
        if (
            isinstance(fault, SlowData) and fault.rank is not None and tensor
        ):  # named are those that it keeps waiting
            group = set(layout.tensor_group(fault.rank))
            return [set(), group - {fault.rank}] if len(group) > 1 else [set()]
        return [set()]


class Verdict(NamedTuple):
    run: Run
    growth: float  # by what factor the fault slows the job
    told: bool  # at the end, that it is slow
    named: set[int]  # at the end
    ever: set[int]  # at any time
    signals: int

    @property
    def right(self) -> bool:
        return self.told and self.named in self.run.guilty

    @property
    def wrong(self) -> bool:
        """A rank was named that is not at fault."""
        return not self.ever <= set().union(*self.run.guilty)


def judge(run: Run) -> Verdict:
    lines = run.lines()
    timing = JobTiming(Policy(), run.layout.ranks)
    timing.start(1, run.layout.ranks, Now(0.0, 0.0))
    told, named, ever, signals = False, set[int](), set[int](), 0
    for first in range(0, run.iterations, 2):
        for rank, each in lines.items():
            part = each[first : first + 2]
            timing.fold(RankReport(job="j", incarnation=1, rank=rank, iterations=part, caught_up=True))
        if (first + 2) % 10 and first + 2 < run.iterations:
            continue
        now_s = max(each[min(first + 1, len(each) - 1)].at_s for each in lines.values()) + 0.1
        found = timing.signals(Now(now_s, now_s))
        signals += len(found)
        named = {one.rank for one in found if one.symptom is Symptom.STRAGGLER and one.rank is not None}
        change = timing.history.change
        if change and all(enough(change, one) for one in timing.timed):
            whose = blame(change, timing.timed, run.layout.ranks)
            named |= {one.rank for one in whose.grown} if whose.whose is Whose.RANKS else set()
        told = bool(named) or change is not None
        ever |= named
    growth = 1.0
    if run.fault is not None:
        pace, sound = (_pace_ms(each) for each in (lines, run.lines(sound=True)))
        growth = pace / sound
    return Verdict(run, growth, told, named, ever, signals)


def _pace_ms(lines: dict[int, list[Iteration]]) -> float:
    return median(line.e2e_ms or 0.0 for line in lines[0][-40:])


# ---------------------------------------------------------------- rows


def history_rows(pool: Pool, days: float, changes: int) -> list[Row]:
    made = pool.map(healthy, healthy_cases(days), chunksize=1)
    for kind in sorted({kind for kind, _, alarms in made if alarms}):
        print(f"    alarms: {kind}: {sum(alarms for one, _, alarms in made if one == kind)}")
    total = sum(part for _, part, _ in made)
    rows = [at_most(f"alarms in {total:.0f} healthy job-days", 0, sum(n for _, _, n in made), "alarms")]
    plain = pool.map(delay, [("normal 1 %", seed) for seed in range(changes)])
    calm = [one.name for one in profiles() if one.ratio_below(0.9) < 1.04 * one.ratio_below(0.1)]
    of_jobs = pool.map(delay, [(name, seed) for name in calm for seed in range(max(1, changes // 50))])
    what = "5 % slower at 1 % jitter"
    rows += [
        at_least(f"{what}: found within 10 iterations", 95, _within(plain, 10), "%"),
        at_most(f"{what}: iterations until it is found, median", 10, median(_found(plain)), "iterations"),
        at_most(f"{what}: iterations, 95th percentile", 15, quantiles(_found(plain), n=20)[-1], "iterations"),
        at_most(f"{what}: never found within 60", 0, 100 - _within(plain, 60), "%"),
        at_least(
            f"5 % slower, {len(calm)} real jobs of little jitter: found within 60",
            80,
            _within(of_jobs, 60),
            "%",
            ("within 10", _within(of_jobs, 10)),
        ),
    ]
    return rows


def _found(delays: list[int | None]) -> list[int]:
    return [one for one in delays if one is not None and one >= 0] or [0, 0]


def _within(delays: list[int | None], most: int) -> float:
    return 100 * sum(one is not None and 0 <= one <= most for one in delays) / len(delays)


def share(verdicts: Sequence[Verdict]) -> float:
    return 100 * sum(one.right for one in verdicts) / len(verdicts) if verdicts else 0.0


def ring_rows(pool: Pool, seeds: int, faults: Sequence[Fault]) -> list[Row]:
    told: list[Counts] = ["compute", "tensor"]
    blind: list[Counts] = ["all", None]
    runs = [Run(layout, c, f, s) for layout in LAYOUTS for c in told for f in faults for s in range(seeds)]
    runs += [Run(layout, c, f, 0) for layout in LAYOUTS for c in blind for f in faults]
    verdicts = pool.map(judge, runs, chunksize=1)
    for one in verdicts:
        if one.wrong or (one.run.counts in told and one.growth >= MATTERS and not one.right):
            print(f"    {'accuses' if one.wrong else 'misses'}: {_describe(one)}")
    by_hardware = [one for one in verdicts if one.run.counts in told]
    matter = [one for one in by_hardware if one.growth >= MATTERS]
    others = [one for one in verdicts if one.run.counts in blind]
    rows = [at_least(f"64 ranks, {len(matter)} faults: judged right", 90, share(matter), "%")]
    for kind in (SlowCard, SlowHost, SlowLink, SlowNic, SlowData):
        if these := [one for one in matter if isinstance(one.run.fault, kind)]:
            rows.append(at_least(f"  of that: {len(these)} {kind.__name__}", 90, share(these), "%"))
    return [
        *rows,
        at_most(
            f"64 ranks, {len(by_hardware)} runs: a rank named not at fault", 0, _wrong(by_hardware), "runs"
        ),
        at_most(f"64 ranks, {len(others)} runs that tell no own times: as much", 0, _wrong(others), "runs"),
    ]


def _wrong(verdicts: Sequence[Verdict]) -> int:
    return sum(one.wrong for one in verdicts)


def _describe(one: Verdict) -> str:
    run = one.run
    sizes = f"{run.layout.tensor}x{run.layout.pipeline}x{run.layout.data}"
    state = "slow told" if one.told else "nothing told"
    return (
        f"{sizes} {run.counts} {run.fault} lengths {run.lengths} seed {run.seed}: x{one.growth:.3f}, {state}, "
        f"names {sorted(one.named)}, ever {sorted(one.ever)}"
    )


def calm_rows(pool: Pool, seeds: int, iterations: int, early: int) -> list[Row]:
    counts: list[Counts] = ["compute", "tensor", "all", None]
    runs = [
        Run(layout, c, None, 100 + seed, iterations, lengths)
        for layout in LAYOUTS
        for c in counts
        for lengths in (0.0, 0.2)
        for seed in range(seeds)
    ]
    sound = pool.map(judge, runs, chunksize=1)
    for one in sound:
        if one.signals:
            print(f"    signals of a healthy job: {_describe(one)}")
    mid = [Run(LAYOUTS[0], "compute", SlowCard(20 + seed, 1.8), seed, 60) for seed in range(early)]
    slow = pool.map(judge, mid, chunksize=1)
    named = 100 * sum(one.named in one.run.guilty for one in slow) / len(slow)
    loud = sum(one.signals > 0 for one in sound)
    return [
        at_most(f"64 healthy ranks, unequal stages: of {len(sound)} runs with a signal", 0, loud, "runs"),
        at_least(f"slow from the first iteration: named, of {early} runs", 100, named, "%"),
    ]


def run(quick: bool = False) -> list[Row]:
    with multiprocessing.Pool() as pool:
        return [
            *judged_hangs.rows(),
            *calm_rows(pool, 1, 100 if quick else 300, 2 if quick else 20),
            *ring_rows(pool, 1 if quick else 2, FAULTS[3::4] if quick else FAULTS),
            *history_rows(pool, min(DAYS, 5) if quick else DAYS, 50 if quick else 500),
        ]
