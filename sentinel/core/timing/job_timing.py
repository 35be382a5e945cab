"""Iterations of a job → rates, ratios, baselines, stragglers, hangs. No clock: every time is an argument."""

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from sentinel.core.model import Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Iteration, LogMatch, RankReport
from sentinel.core.signals import TimingSignal, names
from sentinel.core.timing import slowdown
from sentinel.core.timing.change_point import StepHistory
from sentinel.core.timing.course import Course
from sentinel.core.timing.hang_watch import HangWatch
from sentinel.core.timing.performance import Gap, RankTiming, learnt_baseline
from sentinel.core.timing.statistics import Histogram, median
from sentinel.core.timing.stragglers import role_shares, stragglers

__all__ = ["JobTiming", "RankTiming", "TimingSignal", "TimingSummary"]

# A gap counts as a stall when it is this many times the usual step and at least a second.
STALL = 5.0
# At least this long without an iteration before a job no longer counts as stepping.
STEPPING_S = 10.0


class TimingSummary(Struct, frozen=True, kw_only=True):
    """Step times of all ranks and incarnations; percentiles are within 2.5 %."""

    count: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    ratio: float | None
    stalls: tuple[Gap, ...]  # longest first


class JobTiming:
    """The timing of one job across its incarnations. Folding is cheap; asking costs a few µs per rank."""

    def __init__(
        self,
        policy: Policy,
        size: int,
        *,
        baseline_ms: float | None = None,
        baseline_ratio: float | None = None,
        performance_frozen: str = "",
        longest_start_s: float = 0.0,
    ) -> None:
        self.performance_frozen = performance_frozen
        self.incarnation = 0
        self.ranks: dict[int, RankTiming] = {}
        self.histogram = Histogram()
        self.course = Course()
        self.history = StepHistory()
        self._unheard: set[int] = set()  # ranks that have not told enough since the slowdown
        self._blame: slowdown.Blame | None = None  # once all have
        self._roles: dict[int, float] = {}  # how unequal ranks are by them, as the first incarnation showed
        self.gaps: list[Gap] = []  # the longest of all ranks and incarnations, longest first
        self._baseline = (baseline_ms, baseline_ratio) if baseline_ms is not None else None
        self.hang = HangWatch(
            policy,
            size,
            self.ranks,
            self.gaps,
            timed=baseline_ms is not None,
            longest_start_s=longest_start_s,
        )

    @property
    def policy(self) -> Policy:
        return self.hang.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.hang.policy = policy

    @property
    def size(self) -> int:
        return self.hang.size

    @size.setter
    def size(self, size: int) -> None:
        self.hang.size = size

    # ------------------------------------------------------------ folding

    def start(self, incarnation: int, size: int, now: Now) -> None:
        """A new incarnation: all that ranks told is forgotten; baseline and the job's habits are kept.

        A baseline learnt at another size is dropped: a step of fewer ranks takes longer and is no fault.
        """
        self._learn()
        full = self._full()
        if not self._roles and len(full) == self.size:
            self._roles = role_shares(full)
        if size != self.size:
            self._baseline = None
            self._roles = {}
            self.history = StepHistory()
        self.hang.start(size, now)
        self.incarnation = incarnation
        self.ranks.clear()
        self.course.restart()
        self.history.restart()

    def fold(self, report: RankReport) -> None:
        """Take in what one poll of one rank's log brought; a report of another incarnation is ignored.

        An empty report counts too: it says that the log was read to its end.
        """
        if report.incarnation != self.incarnation:
            return
        rank = self.ranks.get(report.rank)
        if rank is None:
            rank = RankTiming(report.rank, self.policy.performance.over, self.histogram, self.gaps)
            self.ranks[report.rank] = rank
        rank.caught_up = report.caught_up
        rank.log_problem = report.log_problem
        rank.unsure = report.unsure
        if report.alive_s is not None:
            self.hang.signed(report.alive_s, report.alive_line)
        self.hang.prints |= report.prints
        if report.workers:
            self.hang.workers.fold(report.rank, report.workers)
        self.hang.workers.started(report.rank, report.children)
        known = rank.reached - report.before if report.again and rank.count else 0
        if new := report.iterations[max(0, known) :]:
            timed = rank.fold(new, report.before)
            if self.course.fold(report.rank, timed):
                self._compare(timed)
            self._hear(rank)
            self.hang.progressed(rank)

    def _compare(self, timed: Sequence[Iteration]) -> None:
        """With the job's own history."""
        limit = self.policy.performance.slowdown_ratio
        if limit is None:  # what comes meanwhile is no history
            self.history = StepHistory()
            return
        if not self.history.fold(timed, limit):
            return
        change = self.history.change
        if change is None:  # these show that it is over, too
            return
        for rank in self.timed:
            rank.mark(-inf if change.restarted else change.at_s)
        self._blame = None
        self._unheard = {rank.rank for rank in self.timed}

    def _hear(self, rank: RankTiming) -> None:
        """Once all ranks have told enough of a slowdown it is settled whose fault it is: one mail, one verdict."""
        change = self.history.change
        if change is None or rank.rank not in self._unheard or not slowdown.enough(change, rank):
            return
        self._unheard.discard(rank.rank)
        if not self._unheard:
            self._blame = slowdown.blame(change, self.timed, self.size)

    def newest(self, count: int) -> list[Iteration]:
        """Of the first rank that tells how long its iterations take: the newest, the oldest of them first."""
        for _, rank in sorted(self.ranks.items()):
            timed = [one for one in rank.window if one.e2e_ms is not None]
            if timed:
                return timed[-count:]
        return []

    def activity(self, match: LogMatch) -> None:
        """A line announced compiling, loading, saving, saved or evaluating (`activity:NAME`)."""
        if match.incarnation != self.incarnation:
            return
        self.hang.announced(match)
        for rank in self.ranks.values():
            rank.pause(match.at_s)

    def relaunched(self, count: int, at_s: float) -> bool:
        """A launcher inside has started ranks again, `count` times by now. False: so many were known."""
        if not self.hang.relaunches.note(count, at_s, self.ranks):
            return False
        for rank in self.ranks.values():
            rank.pause(at_s)
        self.history.settle()
        return True

    # ------------------------------------------------------------ reading

    @property
    def timed(self) -> list[RankTiming]:
        """The ranks that have logged iterations."""
        return [r for r in self.ranks.values() if r.count]

    @property
    def has_timing(self) -> bool:
        return any(r.count for r in self.ranks.values())

    @property
    def iterations(self) -> int:
        """How many iterations the rank that logged most has logged in this incarnation."""
        return max((r.count for r in self.ranks.values()), default=0)

    @property
    def made(self) -> int | None:
        """How many iterations of this incarnation the longest log holds, also those that were not heard of."""
        return max((r.reached for r in self.ranks.values() if r.count), default=None)

    @property
    def first_step(self) -> int | None:
        """As the program calls it; None where its log names none."""
        return min((r.first_step for r in self._told if r.first_step is not None), default=None)

    @property
    def last_step(self) -> int | None:
        """As the program calls it; None where its log names none."""
        return max((r.last_step for r in self._told if r.last_step is not None), default=None)

    @property
    def steps_told(self) -> bool:
        """False: the log names no iterations, they are counted from 1 in each incarnation."""
        return any(r.steps_told for r in self.ranks.values())

    @property
    def _told(self) -> list[RankTiming]:
        return [r for r in self.ranks.values() if r.steps_told]

    @property
    def last_at_s(self) -> float | None:
        return max((r.last_at_s for r in self.ranks.values() if r.last_at_s is not None), default=None)

    @property
    def step_ms(self) -> float | None:
        """Median over the ranks of their median step times."""
        values = [s for r in self.ranks.values() if (s := r.step_ms) is not None]
        return median(values) if values else None

    @property
    def ratio(self) -> float | None:
        """The highest hardware ratio of any rank: the one that the owner's threshold is held against."""
        return max((x for r in self.ranks.values() if (x := r.ratio) is not None), default=None)

    @property
    def judged(self) -> bool:
        """Every rank that logs iterations has filled a whole window after its warm-up."""
        timed = self.timed
        return bool(timed) and all(rank.full for rank in timed)

    def stepping(self, now: Now) -> bool:
        """Iterations come, or a pause that explains their absence was announced."""
        last = self.last_at_s
        if last is None:
            return False
        if self.hang.excused(now):
            return True
        usual_s = max(STEPPING_S, STALL * (self.step_ms or 0.0) / 1000)
        after_s = self.policy.hang.after_s
        return now.mono_s - max(last, self.hang.sign_s) < (
            usual_s if after_s is None else min(usual_s, after_s)
        )

    def baseline(self) -> tuple[float, float | None] | None:
        """(step ms, hardware ratio) given or learnt after the warm-up; None while it is being learnt."""
        self._learn()
        if self._baseline is None or self._baseline[0] is None:
            return None
        return self._baseline[0], self._baseline[1]

    def _learn(self) -> None:
        if self._baseline is None:
            self._baseline = learnt_baseline(self.timed)

    def summary(self) -> TimingSummary:
        h = self.histogram
        usual_s = (h.quantile_ms(0.5) or 0.0) / 1000
        return TimingSummary(
            count=h.count,
            p50_ms=h.quantile_ms(0.5),
            p90_ms=h.quantile_ms(0.9),
            p99_ms=h.quantile_ms(0.99),
            max_ms=h.quantile_ms(1.0),
            ratio=self.ratio,
            stalls=tuple(g for g in self.gaps if g.gap_s >= max(1.0, STALL * usual_s)),
        )

    # ------------------------------------------------------------ signals

    def signals(self, now: Now) -> list[TimingSignal]:
        """All that holds at `now`, most urgent first."""
        found = [self.hang.signal(now), self._slow(), self._grown(), self._starved(), *self._stragglers()]
        kept = [signal for signal in found if signal is not None]
        if (slowed := self._slowed(now)) is not None and not any(
            _tells_it(signal, slowed) for signal in kept
        ):
            kept.append(slowed)
        return kept

    @property
    def slow(self) -> bool:
        """Is a threshold of the policy exceeded?"""
        return self._slow() is not None or self._grown() is not None

    def _frozen(self) -> tuple[str, ...]:
        return (
            (f"moves for performance are off: {self.performance_frozen}",) if self.performance_frozen else ()
        )

    def _full(self) -> list[RankTiming]:
        return [r for r in self.ranks.values() if r.full and r.rank not in self.hang.exited]

    def _one_of(self, found: list[RankTiming]) -> int | None:
        """The rank to name: only one that stands out among several."""
        return found[0].rank if len(found) == 1 and len(self._full()) > 1 else None

    def _slow(self) -> TimingSignal | None:
        asked = self.policy.performance
        limit = asked.max_hardware_ratio
        if limit is None:
            return None
        above = [
            r for r in self._full() if r.stats and r.stats.ratio_low is not None and r.stats.ratio_low > limit
        ]
        if not above:
            return None
        ratio = max(r.ratio or 0.0 for r in above)
        evidence = [f"rank {r.rank}: hardware {r.hardware_ms:.6g} ms of {r.e2e_ms:.6g} ms" for r in above[:4]]
        if asked.only_if_grown is not None:
            usual = (self.baseline() or (0.0, None))[1]
            if usual is None or ratio < asked.only_if_grown * usual:
                return None
            evidence.append(f"the job's own baseline is {usual:.4g}")
        sentence = (
            f"Hardware time is {ratio:.4g} of end-to-end time on {names([r.rank for r in above])} over the last "
            f"{asked.over} iterations, above the threshold of {limit:g}."
        )
        return TimingSignal(
            symptom=Symptom.SLOW,
            key="slow:ratio",
            rank=self._one_of(above),
            value=ratio,
            threshold=limit,
            sentence=sentence,
            evidence=(*evidence, *self._frozen()),
            confidence="both halves of the window are above the threshold, single spikes left out",
        )

    def _grown(self) -> TimingSignal | None:
        limit = self.policy.performance.max_step_growth
        baseline = self.baseline() if limit is not None else None
        if limit is None or baseline is None:
            return None
        above = [r for r in self._full() if r.stats and r.stats.step_low_ms > limit * baseline[0]]
        if not above:
            return None
        growth = max(r.step_ms or 0.0 for r in above) / baseline[0]
        sentence = (
            f"An iteration takes {growth:.3g} times as long as this job's own baseline of {baseline[0]:.4g} ms "
            f"(threshold {limit:g})."
        )
        evidence = [f"rank {r.rank}: median iteration {r.step_ms:.6g} ms" for r in above[:4]]
        return TimingSignal(
            symptom=Symptom.SLOW,
            key="slow:growth",
            rank=self._one_of(above),
            value=growth,
            threshold=limit,
            sentence=sentence,
            evidence=(*evidence, *self._frozen()),
            confidence="both halves of the window are above the threshold, single spikes left out",
        )

    def _starved(self) -> TimingSignal | None:
        limit = self.policy.performance.min_hardware_ratio
        if limit is None:
            return None
        under = [
            r
            for r in self._full()
            if r.stats and r.stats.ratio_high is not None and r.stats.ratio_high < limit
        ]
        if not under:
            return None
        ratio = min(r.ratio or 0.0 for r in under)
        sentence = (
            f"Hardware works only {ratio:.4g} of the time on {names([r.rank for r in under])} over the last "
            f"{self.policy.performance.over} iterations, under the threshold of {limit:g}: it waits for data."
        )
        return TimingSignal(
            symptom=Symptom.STARVED,
            key="starved",
            rank=self._one_of(under),
            value=ratio,
            threshold=limit,
            sentence=sentence,
            evidence=tuple(
                f"rank {r.rank}: hardware {r.hardware_ms:.6g} ms of {r.e2e_ms:.6g} ms" for r in under[:4]
            ),
            confidence="both halves of the window are under the threshold, single spikes left out",
        )

    def _stragglers(self) -> list[TimingSignal]:
        limit = self.policy.performance.straggler_ratio
        full = self._full()
        if limit is None or len(full) < 2:
            return []
        return stragglers(full, limit, self._roles, self._frozen())

    def _slowed(self, now: Now) -> TimingSignal | None:
        asked, change = self.policy.performance, self.history.change
        if asked.slowdown_ratio is None or change is None or change.growth < asked.slowdown_ratio:
            return None
        if self._blame is not None and self._blame.straggles(asked.straggler_ratio):
            return None  # its whole window will show that
        return slowdown.signal(change, self._blame, self.size, asked.slowdown_ratio, now.mono_s)


def _tells_it(signal: TimingSignal, slowed: TimingSignal) -> bool:
    """Is what a slowdown says told with more already?"""
    return signal.symptom is Symptom.SLOW or (
        signal.symptom is Symptom.STRAGGLER and signal.rank == slowed.rank is not None
    )
