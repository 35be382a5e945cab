"""When silence means a hang, and which rank stopped first.

Missing progress makes a hang, and only from logs that are known to be read to their end; `stillness` says by default
whether it is one. I/O and GPU use raise confidence.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from sentinel.core.model import LONGEST_ALLOWANCE_S, Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Hang
from sentinel.core.reports import LogMatch
from sentinel.core.signals import TimingSignal, how_far, length, names, times
from sentinel.core.stacks import process_states
from sentinel.core.stacks.workers import Workers
from sentinel.core.timing.performance import WARM_UP, Gap, RankTiming

# The adaptive allowance never goes under half of the time that the job has stepped, within these bounds:
# a false alarm costs at most what was computed since the start, a late one what is left to compute. The
# upper one stands under the 600 s after which NCCL's own watchdog gives up.
FLOOR_S, CEILING_S, FLOOR_SHARE = 120.0, 300.0, 0.5
# A step this many times as long as usual, or a pause this many times as long as the job's longest (a
# checkpoint grows with the model, an evaluation with the disk's load) is one too many.
STEPS, PAUSES = 10.0, 3.0
# A rank stands in an evaluation, a save or a preparation of data. torch.distributed itself ends what makes ranks wait
# for another any longer (`default_pg_timeout`; NCCL after 10 min).
PAUSE_ALLOWANCE_S = 1800.0
# When ranks begin to exit with 0 the others write the last checkpoint: 10 min, as AIMaster's exit-hang check.
EXIT_ALLOWANCE_S = 600.0
# What a line announces may take this long, or PAUSES times the longest seen. Compiling and loading a
# large model take tens of minutes; a save is waited for by everybody and is made short.
ACTIVITY_LIMIT_S = {"saving": 600.0, "evaluating": 1800.0, "compiling": 1800.0, "loading": 1800.0}
# Two logs are read at slightly different moments: only more than this tells which rank stopped first.
NOISE_S = 0.25


class Activity(Struct, gc=False):
    """Something that the log announced and that explains silence."""

    kind: str
    rank: int
    started_s: float
    marked_s: float
    counts: dict[int, int]  # iterations of each rank when it was last announced


class Activities:
    """Announced pauses. One ends with its end line, or with the next iteration."""

    def __init__(self) -> None:
        self.active: dict[str, Activity] = {}
        self.longest_s: dict[str, float] = {}

    def reset(self) -> None:
        self.active.clear()

    def note(self, match: LogMatch, ranks: Mapping[int, RankTiming]) -> None:
        kind = match.failure.partition(":")[2]
        if kind == "saved":
            self._end("saving", match.at_s)
            return
        if kind not in ACTIVITY_LIMIT_S or match.outrun:
            return
        rank = ranks.get(match.rank)
        if rank is not None and rank.last_at_s is not None and rank.last_at_s > match.at_s:
            return  # reported late: the rank has gone on since
        counts = {r: timing.count for r, timing in ranks.items()}
        known = self.active.get(kind)
        started_s = known.started_s if known else match.at_s
        self.active[kind] = Activity(kind, match.rank, started_s, match.at_s, counts)

    def progressed(self, rank: RankTiming) -> None:
        """Iterations of `rank` came: what it announced is over; two of another rank end it as well."""
        if not self.active or rank.last_at_s is None:
            return
        for activity in list(self.active.values()):
            new = rank.count - activity.counts.get(rank.rank, 0)
            if rank.last_at_s > activity.marked_s and new >= (1 if rank.rank == activity.rank else 2):
                self._end(activity.kind, rank.last_at_s)

    def _end(self, kind: str, at_s: float) -> None:
        activity = self.active.pop(kind, None)
        if activity is not None:
            self.longest_s[kind] = max(self.longest_s.get(kind, 0.0), at_s - activity.started_s)

    def limit_s(self, activity: Activity) -> float:
        return max(ACTIVITY_LIMIT_S[activity.kind], PAUSES * self.longest_s.get(activity.kind, 0.0))

    def veto(self, now: Now) -> Activity | None:
        """The announced activity that still explains silence."""
        for activity in self.active.values():
            if now.mono_s - activity.marked_s < self.limit_s(activity):
                return activity
        return None

    def veto_ends_s(self) -> float | None:
        return max((a.marked_s + self.limit_s(a) for a in self.active.values()), default=None)


class Liveness:
    """I/O counters, GPU use and process states: they raise confidence and tell ranks apart, never decide."""

    def __init__(self) -> None:
        self.io: dict[int, tuple[int, float, float]] = {}  # counter, since when, last looked
        self.gpu: dict[int, deque[tuple[float, float]]] = {}
        self.states: dict[int, str] = {}

    def reset(self) -> None:
        self.io.clear()
        self.gpu.clear()
        self.states.clear()

    def observe_io(self, rank: int, counter: int, at_s: float) -> None:
        known = self.io.get(rank)
        since_s = known[1] if known is not None and known[0] == counter else at_s
        self.io[rank] = (counter, since_s, at_s)

    def observe_gpu(self, rank: int, utilisation: float, at_s: float) -> None:
        self.gpu.setdefault(rank, deque(maxlen=30)).append((at_s, utilisation))

    def stopped(self, ranks: Collection[int]) -> dict[int, str]:
        return process_states.stopped((rank, self.states.get(rank, "")) for rank in ranks)

    def words(self, ranks: Collection[int], since_s: float) -> list[str]:
        said = []
        flat = [r for r in ranks if r in self.io and self.io[r][1] < self.io[r][2]]
        moving = [r for r in ranks if r in self.io and since_s < self.io[r][1] == self.io[r][2]]
        steady = []
        for rank in ranks:
            seen = [use for at_s, use in self.gpu.get(rank, ()) if at_s >= since_s]
            # A GPU that works varies by more than 2 points between samples; one that waits or spins does not.
            if len(seen) >= 3 and max(seen) - min(seen) <= 0.02:
                steady.append(rank)
        if flat:
            said.append(f"no I/O by {names(flat)}")
        if moving:
            said.append(f"{names(moving)} still did I/O")
        if steady:
            said.append(f"GPU use of {names(steady)} does not vary")
        return said


class Culprit(Struct, frozen=True, gc=False):
    """`worker`: of those that `rank`, a launcher, has started."""

    rank: int | None
    why: str
    worker: int | None = None


def least_allowance_s(hang: Hang) -> float:
    """No rank is ever allowed less. Quick: with thousands of jobs most silences are not worth more."""
    return FLOOR_S if hang.after_s is None else hang.after_s


def allowance_s(
    rank: RankTiming,
    hang: Hang,
    gaps: Sequence[Gap],
    start_timeout_s: float,
    *,
    ending: bool,
    repeats: int,
    started_s: float | None = None,
) -> float:
    """How long this rank may be silent after its last iteration. `repeats`: hangs told at this very place."""
    # Silent again where it was silent before: perhaps a pause that no line announces. Wait twice as long.
    patience = 2.0 ** min(repeats, 5)
    if hang.after_s is not None:
        return max(_patient_s(hang.after_s, patience), EXIT_ALLOWANCE_S if ending else 0.0)
    stepped_s = (rank.last_at_s or 0.0) - (rank.first_at_s or 0.0)
    pause_s = gaps[0].gap_s if gaps else 0.0
    if rank.count == 1 and started_s is not None:  # who tells one in half an hour has shown no pause yet
        pause_s = max(pause_s, (rank.first_at_s or 0.0) - started_s)
    allowed = max(
        min(max(FLOOR_S, FLOOR_SHARE * stepped_s), CEILING_S),
        STEPS * (rank.step_ms or 0.0) / 1000,
        max(1.5 * pause_s, min(PAUSES * pause_s, LONGEST_ALLOWANCE_S)),
    )
    if rank.count <= WARM_UP:  # the second iteration may compile as long as the first
        allowed = max(allowed, start_timeout_s)
    if ending:
        allowed = max(allowed, EXIT_ALLOWANCE_S)
    return _patient_s(allowed, patience)


def _patient_s(allowed_s: float, patience: float) -> float:
    return min(allowed_s * patience, max(allowed_s, LONGEST_ALLOWANCE_S))


def find_culprit(ranks: Sequence[RankTiming], alive: Collection[int], liveness: Liveness) -> Culprit:
    """Which rank stopped first; the others wait for it. `ranks`: the living ones that print iterations."""
    stopped = liveness.stopped(alive)
    if len(stopped) == 1:
        rank, why = next(iter(stopped.items()))
        return Culprit(rank, f"rank {rank} is {why}")
    if len(alive) == 1:
        return Culprit(next(iter(alive)), "")
    if len(ranks) < 2:
        only = f"only rank {ranks[0].rank} prints iterations" if ranks else "no rank printed an iteration"
        return Culprit(None, f"{only}: logs alone do not tell which rank stopped")
    told = ranks[0].steps_told
    alike = all(r.steps_told is told for r in ranks)  # what one calls 5,000 another one counts as its 100th
    behind = [r for r in ranks if alike and _owes(r, max(o.last_step or 0 for o in ranks))]
    if behind and len(behind) < len(ranks):
        least = min(r.last_step or 0 for r in behind)
        first = [r for r in behind if (r.last_step or 0) == least]
        if len(first) == 1:
            reached = max(r.last_step or 0 for r in ranks)
            why = f"rank {first[0].rank} stopped after {how_far(least, told)}, others reached {reached}"
            return Culprit(first[0].rank, why)
        ranks = first
    by_time = sorted(ranks, key=lambda r: r.last_at_s or 0.0)
    earlier_s = (by_time[1].last_at_s or 0.0) - (by_time[0].last_at_s or 0.0)
    if earlier_s > max(NOISE_S, 0.5 * by_time[0].apart_s):
        rank = by_time[0].rank
        return Culprit(rank, f"rank {rank} fell silent {length(earlier_s)} before any other")
    every = (
        f"{names([r.rank for r in ranks])} stopped after the same {how_far(ranks[0].last_step or 0, told)}"
    )
    if not alike:
        every = f"{names([r.rank for r in ranks])} do not all name their iterations"
    return Culprit(None, f"{every}: logs alone do not tell which stopped first")


def _owes(rank: RankTiming, reached: int) -> bool:
    """Others are so far on that this rank should have logged once more."""
    return reached >= (rank.last_step or 0) + rank.steps_apart


def hang_signal(
    stuck: Sequence[RankTiming],
    timed: Sequence[RankTiming],
    alive: Collection[int],
    liveness: Liveness,
    workers: Workers,
    *,
    silent_s: float,
    allowed_s: float,
    outlived: Activity | None,
    relaunches: int = 0,
) -> TimingSignal:
    """The signal, with the culprit where one can be told. `outlived`: an activity that took too long. `relaunches`:
    how often a launcher inside has started the ranks again, where no iteration followed."""
    culprit = find_culprit(timed if len(stuck) == len(timed) else stuck, alive, liveness)
    going = [r.rank for r in timed if r not in stuck]
    if culprit.rank is None and len(stuck) == 1 and going:
        culprit = Culprit(stuck[0].rank, f"rank {stuck[0].rank} stopped while {names(going)} went on")
    if inner := workers.first_stopped(alive if culprit.rank is None else [culprit.rank]):
        culprit = Culprit(inner.rank, inner.why, inner.number)
    elif culprit.rank is not None and workers.below(culprit.rank):
        culprit = Culprit(None, culprit.why)  # one of several, and nothing tells which
    last = _furthest(stuck)
    named = culprit.rank if culprit.worker is None else culprit.worker
    # A lone program may have ranks of its own that nobody sees (`mp.spawn`): "Rank 0" would be taken for one of them.
    lone = culprit.worker is None and len(timed) == len(alive) == 1
    subject = "The job" if named is None or lone else f"Rank {named}"
    if culprit.rank is not None and len(alive) > 1:
        last = next((_made(r) for r in timed if r.rank == culprit.rank), last)
    sentence = f"{subject} has made no iteration for {length(silent_s)} after {last}"
    if outlived is not None:
        sentence += f", since it announced {outlived.kind}"
    if relaunches:
        sentence += (
            f", though the launcher inside its pods has started it again ({times(relaunches)} in this run)"
        )
    evidence = [f"{_called(r.rank, workers)}: {_last(r)}" for r in sorted(timed, key=_progress)[:4]]
    evidence[:0] = workers.gone(alive)[:4]
    if culprit.why:
        evidence.insert(0, culprit.why)
    evidence.append(f"allowed: {length(allowed_s)} without an iteration")
    since_s = max((r.last_at_s or 0.0 for r in stuck), default=0.0)
    confidence = "; ".join(["all logs were read to their end", *liveness.words(alive, since_s)])
    return TimingSignal(
        symptom=Symptom.HANG,
        key="hang",
        rank=culprit.rank,
        worker=culprit.worker,
        value=silent_s,
        threshold=allowed_s,
        sentence=sentence + ".",
        evidence=tuple(evidence),
        confidence=confidence,
    )


def _furthest(ranks: Sequence[RankTiming]) -> str:
    told = [r for r in ranks if r.steps_told] or ranks
    return _made(max(told, key=_progress)) if told else how_far(0, told=False)


def _made(rank: RankTiming) -> str:
    return how_far(rank.last_step or 0, rank.steps_told)


def _last(rank: RankTiming) -> str:
    return f"last {_made(rank)}" if rank.steps_told else f"{_made(rank)} since its start"


def _progress(rank: RankTiming) -> tuple[int, float]:
    return (rank.last_step or 0, rank.last_at_s or 0.0)


def _called(rank: int, workers: Workers) -> str:
    return f"the launcher (rank {rank})" if workers.below(rank) else f"rank {rank}"
