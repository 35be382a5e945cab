"""Is a job hung? What excuses silence, until when, and whom it is laid to. No clock: every time is an argument."""

from collections.abc import Mapping, Sequence

from sentinel.core.hang import Activities, Activity, Liveness, allowance_s, hang_signal, least_allowance_s
from sentinel.core.model import Symptom
from sentinel.core.now import Now
from sentinel.core.performance import Gap, RankTiming
from sentinel.core.policy_model import Policy
from sentinel.core.relaunch import Relaunches
from sentinel.core.reports import LogMatch
from sentinel.core.signals import TimingSignal, length
from sentinel.core.workers import Workers


class HangWatch:
    """Of one job. `ranks` and `gaps` are those of its timing; `size` is how many ranks it runs with."""

    def __init__(
        self, policy: Policy, size: int, ranks: Mapping[int, RankTiming], gaps: Sequence[Gap], *, timed: bool
    ) -> None:
        self.policy = policy
        self.size = size
        self.started_s: float | None = None
        self.exited: set[int] = set()  # ranks that have ended: their silence means nothing any more
        self.liveness = Liveness()
        self.relaunches = Relaunches()
        self.workers = Workers()
        self._ranks = ranks
        self._gaps = gaps
        self._timed_before = timed  # this job is known to print iterations
        self._activities = Activities()
        self.sign_s = 0.0  # when a log last told that the program gets on, without an iteration; 0: never
        self._announced_s = 0.0  # when a line last announced or ended a pause
        self._hung_at: int | None = None  # the step at which the last hang was told
        self._hangs_there = 0
        self._told = False

    # ------------------------------------------------------------ folding

    def start(self, size: int, now: Now) -> None:
        """A new incarnation; the ranks are still those of the one before."""
        if self._told:
            here = max((r.last_step for r in self._ranks.values() if r.last_step is not None), default=0)
            again = self._hung_at is not None and here <= self._hung_at + 1
            self._hangs_there = self._hangs_there + 1 if again else 1
            self._hung_at = max(here, self._hung_at or 0) if again else here
        self._timed_before = self._timed_before or any(r.count for r in self._ranks.values())
        self._told = False
        self.size, self.started_s = size, now.mono_s
        self.exited.clear()
        self._activities.reset()
        self.liveness.reset()
        self.sign_s = self._announced_s = 0.0
        self.relaunches.reset()
        self.workers.reset()

    def signed(self, at_s: float) -> None:
        """A log told, without an iteration, that the program gets on."""
        self.sign_s = max(self.sign_s, at_s)

    def announced(self, match: LogMatch) -> None:
        """A line announced or ended a pause (`activity:NAME`)."""
        self._announced_s = max(self._announced_s, match.at_s)
        self._activities.note(match, self._ranks)

    def progressed(self, rank: RankTiming) -> None:
        self._activities.progressed(rank)
        self.workers.progressed(rank.rank)

    # ------------------------------------------------------------ reading

    def excused(self, now: Now) -> bool:
        """A pause that was announced explains that no iteration comes."""
        return self._activities.veto(now) is not None

    def prints_since(self, least_s: float, now: Now) -> bool:
        """It started so long ago, for the first time, and says something, but not that it loads or compiles."""
        if self.started_s is None or self._timed_before or self.excused(now):
            return False
        return self.sign_s > 0.0 and now.mono_s - self.started_s >= least_s

    def _alive(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.exited]

    def _timed(self) -> list[RankTiming]:
        return [r for r in self._ranks.values() if r.count and r.rank not in self.exited]

    def _readable(self) -> bool:
        """Silence says something only when every living rank's log was read to its end."""
        for number in self._alive():
            rank = self._ranks.get(number)
            if rank is None or not rank.caught_up or rank.log_problem.startswith("vanished"):
                return False
        return True

    def _silent_since_s(self, rank: RankTiming) -> float:
        """The last sign of progress: an iteration, or a line of any rank that announced or ended a pause, or that tells
        of any other progress."""
        again_s = self.relaunches.waits_since_s(rank) or 0.0
        return max(rank.last_at_s or 0.0, self.sign_s, self._announced_s, again_s)

    def _allowed_s(self, rank: RankTiming) -> float:
        there = self._hung_at is not None and (rank.last_step or 0) <= self._hung_at + 1
        adaptive = self.policy.hang.after_s is None
        anew = self.relaunches.waits_since_s(rank) is not None
        starts = anew or (adaptive and self.relaunches.warms_up(rank))

        def allowed_s(ending: bool) -> float:
            usual_s = allowance_s(
                rank,
                self.policy.hang,
                self._gaps,
                self.policy.start_timeout_s,
                ending=ending,
                repeats=self._hangs_there if there else 0,
            )
            return max(usual_s, self.policy.start_timeout_s if starts else 0.0)

        if not self.exited:
            return allowed_s(ending=False)
        # Who is stopped, or hung while those that have ended since still made iterations, was not through and saves
        # nothing. A log that a new agent reads does not tell when it was written: then only the former is known.
        if self.liveness.halted(rank.rank):
            return allowed_s(ending=False)
        silent_then_s = self._exited_went_on_s() - self._silent_since_s(rank)
        return allowed_s(ending=silent_then_s < allowed_s(ending=False))

    def _exited_went_on_s(self) -> float:
        """When a rank that has ended made an iteration for the last time."""
        return max((r.last_at_s or 0.0 for r in self._ranks.values() if r.rank in self.exited), default=0.0)

    def signal(self, now: Now) -> TimingSignal | None:
        found = self._signal(now)
        self._told = self._told or found is not None
        return found

    def _signal(self, now: Now) -> TimingSignal | None:
        alive = self._alive()
        if not alive or not self._readable() or self.excused(now):
            return None
        timed = self._timed()
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
            self.liveness,
            self.workers,
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
        stopped = self.liveness.stopped(alive)
        inner = self.workers.first_stopped(alive)
        only = next(iter(stopped)) if len(stopped) == 1 else alive[0] if len(alive) == 1 else None
        return TimingSignal(
            symptom=Symptom.HANG,
            key="hang",
            rank=only if inner is None else inner.rank,
            worker=None if inner is None else inner.number,
            value=waited_s,
            threshold=self.policy.start_timeout_s,
            sentence=f"The job has made no iteration within {length(waited_s)} of its start.",
            evidence=(
                *(f"rank {r} is {why}" for r, why in stopped.items()),
                *((inner.why,) if inner else ()),
            ),
            confidence="all logs were read to their end; earlier incarnations logged iterations",
        )

    def _start_ends_s(self) -> float | None:
        if self.started_s is None or not self._timed_before or self.exited:
            return None
        return max(self.started_s, self.sign_s, self._announced_s) + self.policy.start_timeout_s

    def next_deadline(self, now: Now) -> float | None:
        """Monotonic time at which `signals` should be asked though nothing arrived; None: no need."""
        if not self._alive() or not self._readable():
            return None
        timed = self._timed()
        ends = [self._silent_since_s(r) + self._allowed_s(r) for r in timed]
        if not timed and (start_s := self._start_ends_s()) is not None:
            ends.append(start_s)
        veto_s = self._activities.veto_ends_s()
        if veto_s is not None:
            ends = [max(end, veto_s) for end in ends]
        return min((end for end in ends if end > now.mono_s), default=None)
