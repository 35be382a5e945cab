"""Iterations of a job → rates, ratios, baselines, stragglers, hangs. No clock: every time is an argument."""

from msgspec import Struct

from sentinel.core.hang import Activities, Activity, Liveness, allowance_s, hang_signal, least_allowance_s
from sentinel.core.model import Symptom
from sentinel.core.now import Now
from sentinel.core.performance import Gap, Histogram, RankTiming, learnt_baseline, median, medians_of_others
from sentinel.core.policy_model import Policy
from sentinel.core.relaunch import Relaunches
from sentinel.core.reports import Iteration, LogMatch, RankReport
from sentinel.core.signals import TimingSignal, length, names

__all__ = ["JobTiming", "RankTiming", "TimingSignal", "TimingSummary"]

# A gap counts as a stall when it is this many times the usual step and at least a second.
STALL = 5.0
# At least this long without an iteration before a job no longer counts as stepping.
STEPPING_S = 10.0
# More stragglers than this in one telling help nobody.
MAX_STRAGGLERS = 8


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
    ) -> None:
        self.policy = policy
        self.size = size
        self.performance_frozen = performance_frozen
        self.incarnation = 0
        self.started_s: float | None = None
        self.ranks: dict[int, RankTiming] = {}
        self.histogram = Histogram()
        self.gaps: list[Gap] = []  # the longest of all ranks and incarnations, longest first
        self._baseline = (baseline_ms, baseline_ratio) if baseline_ms is not None else None
        self._timed_before = baseline_ms is not None  # this job is known to print iterations
        self._exited: set[int] = set()
        self._activities = Activities()
        self._liveness = Liveness()
        self.relaunches = Relaunches()
        self._alive_s = 0.0  # when a log last told that the program gets on, without an iteration
        self._hung_at: int | None = None  # the step at which the last hang was told
        self._hangs_there = 0
        self._told_hang = False

    # ------------------------------------------------------------ folding

    def start(self, incarnation: int, size: int, now: Now) -> None:
        """A new incarnation: all that ranks told is forgotten; baseline and the job's habits are kept.

        A baseline learnt at another size is dropped: a step of fewer ranks takes longer and is no fault.
        """
        self._learn()
        if self._told_hang:
            here = self.last_step or 0
            again = self._hung_at is not None and here <= self._hung_at + 1
            self._hangs_there = self._hangs_there + 1 if again else 1
            self._hung_at = max(here, self._hung_at or 0) if again else here
        if size != self.size:
            self._baseline = None
        self._timed_before = self._timed_before or self.has_timing
        self._told_hang = False
        self.incarnation, self.size, self.started_s = incarnation, size, now.mono_s
        self.ranks.clear()
        self._exited.clear()
        self._activities.reset()
        self._liveness.reset()
        self._alive_s = 0.0
        self.relaunches.reset()

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
        self._alive_s = max(self._alive_s, report.alive_s or 0.0)
        known = rank.reached - report.before if report.again and rank.count else 0
        if new := report.iterations[max(0, known) :]:
            rank.fold(new, report.before)
            self._activities.progressed(rank)

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
        self._activities.note(match, self.ranks)
        for rank in self.ranks.values():
            rank.pause(match.at_s)

    def relaunched(self, count: int, at_s: float) -> bool:
        """A launcher inside has started ranks again, `count` times by now. False: so many were known."""
        if not self.relaunches.note(count, at_s, self.ranks):
            return False
        for rank in self.ranks.values():
            rank.pause(at_s)
        return True

    def exited(self, rank: int) -> None:
        """This rank has ended: its silence means nothing any more."""
        self._exited.add(rank)

    def observe_io(self, rank: int, io_counter: int, at_s: float) -> None:
        """Bytes read and written by the rank so far. Raises confidence only."""
        self._liveness.observe_io(rank, io_counter, at_s)

    def observe_gpu(self, rank: int, utilisation: float, at_s: float) -> None:
        """GPU use 0..1. Raises confidence only."""
        self._liveness.observe_gpu(rank, utilisation, at_s)

    def observe_state(self, rank: int, state: str) -> None:
        """Process state of the rank as in /proc/PID/stat: one that is stopped (T) or stuck (D) is named."""
        self._liveness.states[rank] = state

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
    def first_step(self) -> int | None:
        return min((r.first_step for r in self.ranks.values() if r.first_step is not None), default=None)

    @property
    def last_step(self) -> int | None:
        return max((r.last_step for r in self.ranks.values() if r.last_step is not None), default=None)

    @property
    def steps_told(self) -> bool:
        """False: the log names no iterations, they are counted from 1 in each incarnation."""
        return any(r.steps_told for r in self.ranks.values())

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

    def prints_since(self, least_s: float, now: Now) -> bool:
        """It started so long ago, for the first time, and says something, but not that it loads or compiles."""
        if self.started_s is None or self._timed_before or self._activities.veto(now) is not None:
            return False
        return self._alive_s > 0.0 and now.mono_s - self.started_s >= least_s

    def stepping(self, now: Now) -> bool:
        """Iterations come, or a pause that explains their absence was announced."""
        last = self.last_at_s
        if last is None:
            return False
        if self._activities.veto(now) is not None:
            return True
        usual_s = max(STEPPING_S, STALL * (self.step_ms or 0.0) / 1000)
        after_s = self.policy.hang.after_s
        return now.mono_s - max(last, self._alive_s) < (usual_s if after_s is None else min(usual_s, after_s))

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
        found = [self._hang(now), self._slow(), self._grown(), self._starved(), *self._stragglers()]
        kept = [signal for signal in found if signal is not None]
        self._told_hang = self._told_hang or any(s.symptom is Symptom.HANG for s in kept)
        return kept

    def _frozen(self) -> tuple[str, ...]:
        return (
            (f"moves for performance are off: {self.performance_frozen}",) if self.performance_frozen else ()
        )

    def _full(self) -> list[RankTiming]:
        return [r for r in self.ranks.values() if r.full and r.rank not in self._exited]

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
        full = [r for r in self._full() if r.stats]
        if limit is None or len(full) < 2:
            return []
        by_hardware = all(r.stats and r.stats.hardware_low_ms is not None for r in full)
        usual = {r.rank: _of(r, by_hardware) for r in full}
        of_peers = medians_of_others(usual)
        found = []
        for rank in full:
            peers = of_peers[rank.rank]
            assert rank.stats is not None
            low = (rank.stats.hardware_low_ms or 0.0) if by_hardware else rank.stats.step_low_ms
            if peers <= 0 or low <= limit * peers:
                continue
            what = "hardware time" if by_hardware else "iteration"
            factor = usual[rank.rank] / peers
            found.append(
                TimingSignal(
                    symptom=Symptom.STRAGGLER,
                    key=f"straggler:{rank.rank}",
                    rank=rank.rank,
                    value=factor,
                    threshold=limit,
                    sentence=f"Rank {rank.rank} is a straggler: its {what} is {factor:.3g} times its peers' median.",
                    evidence=(
                        f"rank {rank.rank}: {what} {usual[rank.rank]:.6g} ms",
                        f"median of {len(full) - 1} peers: {peers:.6g} ms",
                        *self._frozen(),
                    ),
                    confidence="both halves of the window show it",
                )
            )
        return sorted(found, key=lambda s: -s.value)[:MAX_STRAGGLERS]

    # ------------------------------------------------------------ hangs

    def _alive(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self._exited]

    def _readable(self) -> bool:
        """Silence says something only when every living rank's log was read to its end."""
        for number in self._alive():
            rank = self.ranks.get(number)
            if rank is None or not rank.caught_up or rank.log_problem.startswith("vanished"):
                return False
        return True

    def _silent_since_s(self, rank: RankTiming) -> float:
        """The last sign of progress: an iteration, or a line of any rank that announced or ended a pause, or that tells
        of any other progress."""
        again_s = self.relaunches.waits_since_s(rank) or 0.0
        return max(rank.last_at_s or 0.0, self._activities.marked_s or 0.0, self._alive_s, again_s)

    def _allowed_s(self, rank: RankTiming) -> float:
        there = self._hung_at is not None and (rank.last_step or 0) <= self._hung_at + 1
        adaptive = self.policy.hang.after_s is None
        anew = self.relaunches.waits_since_s(rank) is not None
        starts = anew or (adaptive and self.relaunches.warms_up(rank))

        def allowed_s(ending: bool) -> float:
            usual_s = allowance_s(
                rank,
                self.policy.hang,
                self.gaps,
                self.policy.start_timeout_s,
                ending=ending,
                repeats=self._hangs_there if there else 0,
            )
            return max(usual_s, self.policy.start_timeout_s if starts else 0.0)

        if not self._exited:
            return allowed_s(ending=False)
        # Who is stopped, or hung while those that have ended since still made iterations, was not through and saves
        # nothing. A log that a new agent reads does not tell when it was written: then only the former is known.
        if self._liveness.halted(rank.rank):
            return allowed_s(ending=False)
        silent_then_s = self._exited_went_on_s() - self._silent_since_s(rank)
        return allowed_s(ending=silent_then_s < allowed_s(ending=False))

    def _exited_went_on_s(self) -> float:
        """When a rank that has ended made an iteration for the last time."""
        return max((r.last_at_s or 0.0 for r in self.timed if r.rank in self._exited), default=0.0)

    def _hang(self, now: Now) -> TimingSignal | None:
        alive = self._alive()
        if not alive or not self._readable() or self._activities.veto(now) is not None:
            return None
        timed = [r for r in self.timed if r.rank not in self._exited]
        if not timed:
            return self._hang_at_start(alive, now)
        least_s = least_allowance_s(self.policy.hang)
        stuck = [
            r
            for r in timed
            if (silent_s := now.mono_s - self._silent_since_s(r)) >= least_s
            and silent_s >= self._allowed_s(r)
        ]
        if not stuck:
            return None
        silent_s = now.mono_s - min(r.last_at_s or 0.0 for r in stuck)
        outlived: Activity | None = next(iter(self._activities.active.values()), None)
        waited = any(self.relaunches.waits_since_s(r) is not None for r in stuck)
        return hang_signal(
            stuck,
            timed,
            alive,
            self._liveness,
            silent_s=silent_s,
            allowed_s=max(self._allowed_s(r) for r in stuck),
            outlived=outlived,
            relaunches=self.relaunches.count if waited else 0,
        )

    def _hang_at_start(self, alive: list[int], now: Now) -> TimingSignal | None:
        """Only a job that is known to log iterations can miss its first one."""
        ends_s = self._start_ends_s()
        if ends_s is None or now.mono_s < ends_s:
            return None
        waited_s = now.mono_s - (self.started_s or 0.0)
        stopped = self._liveness.stopped(alive)
        return TimingSignal(
            symptom=Symptom.HANG,
            key="hang",
            rank=next(iter(stopped)) if len(stopped) == 1 else alive[0] if len(alive) == 1 else None,
            value=waited_s,
            threshold=self.policy.start_timeout_s,
            sentence=f"The job has made no iteration within {length(waited_s)} of its start.",
            evidence=tuple(f"rank {r} is {why}" for r, why in stopped.items()),
            confidence="all logs were read to their end; earlier incarnations logged iterations",
        )

    def _start_ends_s(self) -> float | None:
        if self.started_s is None or not self._timed_before or self._exited:
            return None
        return (
            max(self.started_s, self._activities.marked_s or 0.0, self._alive_s) + self.policy.start_timeout_s
        )

    def next_deadline(self, now: Now) -> float | None:
        """Monotonic time at which `signals` should be asked though nothing arrived; None: no need."""
        if not self._alive() or not self._readable():
            return None
        timed = [r for r in self.timed if r.rank not in self._exited]
        ends = [self._silent_since_s(r) + self._allowed_s(r) for r in timed]
        if not timed and (start_s := self._start_ends_s()) is not None:
            ends.append(start_s)
        veto_s = self._activities.veto_ends_s()
        if veto_s is not None:
            ends = [max(end, veto_s) for end in ends]
        return min((end for end in ends if end > now.mono_s), default=None)


def _of(rank: RankTiming, by_hardware: bool) -> float:
    return (rank.hardware_ms if by_hardware else rank.step_ms) or 0.0
