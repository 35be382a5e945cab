"""Is a job hung? What excuses silence, until when, and whom it is laid to. No clock: every time is an argument."""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from msgspec import structs

from sentinel.core.model import HANG, LONGEST_ALLOWANCE_S, Failure, Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import LogMatch
from sentinel.core.signals import TimingSignal, length
from sentinel.core.stacks import pauses
from sentinel.core.stacks.process_states import HALTED
from sentinel.core.stacks.stillness import Looks
from sentinel.core.stacks.workers import Workers
from sentinel.core.timing.hang import (
    PAUSE_ALLOWANCE_S,
    PAUSES,
    Activities,
    Activity,
    Liveness,
    allowance_s,
    hang_signal,
    least_allowance_s,
)
from sentinel.core.timing.performance import Gap, RankTiming
from sentinel.core.timing.relaunch import Relaunches

# Looks at a silence begin after LOOK_SHARE of its allowance, five until its end. That is a little more than 1 / PAUSES
# of hang.py: a pause of up to 20 min that is a habit of the job ends before. For STILL_SHARE of the allowance, from the
# first of them to the end, nothing must have moved.
LOOK_SHARE, PAUSE_SHARE, STILL_SHARE = 0.35, 1 / 6, 0.6
# Ranks fall silent together though not at one moment.
TOGETHER = 0.9
# The longer a silent job moves the less often: each look costs some CPU time of every rank's machine.
LATER_SHARE = 1 / 12
# An iteration that takes longer is one to wonder about.
PHASE_S = 30.0
# Whole sleeps; the two clocks are not read at one moment.
SLEPT_S = 1.0
# An older one says nothing of now.
FRESH_S = 60.0
# A start may take so many times the longest that the job has come through: other files are read than the last time.
STARTS = 1.5
# A silence of which looks do not show that it is a hang is told after so long, since a person must look.
DOUBT_S = 1800.0
SUSPENDED = "a signal has stopped all of its processes, and they go on once they get SIGCONT"


class HangWatch:
    """Of one job. `ranks` and `gaps` are those of its timing; `size` is how many ranks it runs with."""

    def __init__(
        self,
        policy: Policy,
        size: int,
        ranks: Mapping[int, RankTiming],
        gaps: Sequence[Gap],
        *,
        timed: bool,
        longest_start_s: float,
    ) -> None:
        self.policy = policy
        self.size = size
        self.started_s: float | None = None
        self.exited: set[int] = set()  # ranks that have ended: their silence means nothing any more
        self.liveness = Liveness()
        self.relaunches = Relaunches()
        self.workers = Workers()
        self.looks: Looks | None = None  # None: silence alone decides
        self._ranks = ranks
        self._gaps = gaps
        self.timed_before = timed  # this job is known to print iterations
        self._longest_start_s = longest_start_s  # of earlier incarnations
        self._activities = Activities()
        self.sign_s = 0.0  # when a log last told that the program gets on, without an iteration; 0: never
        self.prints = False  # a log went on for a while
        self._sign_line = ""  # the newest of those lines that a person may know it by
        self._announced_s = 0.0  # when a line last announced or ended a pause
        self._suspended = False
        self._woke_s = 0.0  # when it went on after it was suspended, or the machine after it slept
        self._slept_s: float | None = None
        self.failures: Sequence[Failure] = ()  # of the job, the newest last

    # ------------------------------------------------------------ folding

    def start(self, size: int, now: Now) -> None:
        """A new incarnation; the ranks are still those of the one before."""
        self.timed_before = self.timed_before or any(r.count for r in self._ranks.values())
        self._longest_start_s = self.longest_start_s
        self.size, self.started_s = size, now.mono_s
        self.exited.clear()
        self._activities.reset()
        self.liveness.reset()
        self.sign_s = self._announced_s = self._woke_s = 0.0
        self._suspended = False
        self.prints = False
        self._sign_line = ""
        self.relaunches.reset()
        self.workers.reset()
        if self.looks is not None:
            self.looks = Looks()

    def looked(self, texts: Sequence[str], now: Now) -> None:
        """Where the ranks stand: see `Looks`. What was looked at for its name alone proves nothing."""
        if self.looks is None:
            return
        self.looks.stand(texts, now.mono_s)
        silence, due_s = self._silence(), self.look_at_s()
        if silence is None or due_s is None or now.mono_s < due_s:
            return
        since_s, allowed_s = silence
        if now.mono_s - self.looks.last_s > FRESH_S + 2 * self._look_pause_s(
            allowed_s, self.looks.last_s - since_s
        ):
            self.looks.reset()  # of the time between nothing is known: Sentinel itself may have been suspended
        # Who evaluates is silent too, a moment after the others.
        _, usual_s = self._silence(paused_s=0.0) or silence
        quiet_s = min(LOOK_SHARE * usual_s, TOGETHER * (now.mono_s - since_s))
        alive = self._alive()
        going = [r.rank for r in self._timed() if now.mono_s - self._silent_since_s(r) < quiet_s]
        if any(map(self.workers.below, alive)):
            going = []  # the looks are at other processes, with numbers of their own
        ranks = sum(max(1, self.workers.running(rank)) for rank in alive if rank not in going)
        named = self.policy.hang.after_s is not None
        self.looks.fold(texts, now.mono_s, since_s, ranks=ranks, going=going, named=named)

    def signed(self, at_s: float, line: str = "") -> None:
        """A log told, without an iteration, that the program gets on. Its first words always do."""
        if at_s >= self.sign_s:
            self._sign_line = line
        self.sign_s = max(self.sign_s, at_s)

    def announced(self, match: LogMatch) -> None:
        """A line announced or ended a pause (`activity:NAME`)."""
        self._announced_s = max(self._announced_s, match.at_s)
        self._activities.note(match, self._ranks)

    def progressed(self, rank: RankTiming) -> None:
        self._activities.progressed(rank)
        self.workers.progressed(rank.rank)

    # ------------------------------------------------------------ reading

    @property
    def longest_start_s(self) -> float:
        """The longest time from a start of the job to the first iteration of a rank; 0: none has come to one."""
        since_s = self.started_s or 0.0
        took_s = ((r.first_at_s or since_s) - since_s for r in self._ranks.values() if r.count)
        return max(self._longest_start_s, max(took_s, default=0.0))

    @property
    def _start_s(self) -> float:
        """How long it may take to an iteration."""
        return max(self.policy.start_timeout_s, STARTS * self.longest_start_s)

    def excused(self, now: Now) -> bool:
        """A pause that was announced explains that no iteration comes."""
        return self._activities.veto(now) is not None

    def phase(self, now: Now) -> str:
        """What it does that makes no iteration, as its log tells; "": it iterates, or tells of nothing. Untrusted."""
        if self.started_s is None:
            return ""
        last_s = self._last_s()
        if now.mono_s - last_s < PHASE_S:
            return ""
        said = [named] if (named := self._named(last_s, now)) else []
        if self._sign_line and self.sign_s > last_s:
            said.append(f"its log went on {length(now.mono_s - self.sign_s)} ago: {self._sign_line}")
        return f"No iteration for {length(now.mono_s - last_s)}: {'; '.join(said)}" if said else ""

    def _last_s(self) -> float:
        """When it made its last iteration; before the first one: when it was started."""
        return max((r.last_at_s or 0.0 for r in self._timed()), default=self.started_s or 0.0)

    def _named(self, last_s: float, now: Now) -> str:
        """What it does since its last iteration, by what told of it last: its log, or a look at its stacks."""
        told = self._named_by_log(last_s, now)
        if self.looks is not None and self.looks.stood_s > last_s:
            told.append((self.looks.stood_s, _stood_words(self.looks, now)))
        return max(told)[1] if told else ""

    def _named_by_log(self, last_s: float, now: Now) -> list[tuple[float, str]]:
        """When it was told, and what."""
        told = []
        if (announced := self._activities.veto(now)) is not None:
            ago = length(now.mono_s - announced.started_s)
            told.append((announced.marked_s, f"its log announced {ago} ago that it is {announced.kind}"))
        if self.sign_s > last_s and (said := pauses.told_by(self._sign_line)):
            told.append((self.sign_s, f"it is {said}"))
        return told

    def _name_due(self, looks: Looks, now: Now) -> bool:
        """Its log goes on and does not name what it does: its stacks may. Looked at less and less often."""
        last_s = self._last_s()
        goes_on = self._sign_line and self.sign_s > last_s and now.mono_s - self.sign_s < FRESH_S
        if not goes_on or self._named_by_log(last_s, now):
            return False
        usual_s = max((r.apart_s for r in self._timed()), default=0.0)
        return now.mono_s - last_s >= max(PHASE_S, PAUSES * usual_s, 2 * (looks.stood_s - last_s))

    def unread(self, now: Now) -> bool:
        """It runs for the first time and prints on, or has run for longer than a start may take, and tells of no
        iteration, nor that it loads or compiles."""
        if self.started_s is None or self.timed_before or self.excused(now):
            return False
        silent_s = now.mono_s - max(self.started_s, self.sign_s)
        return self.prints or (self._readable() and silent_s >= self.policy.start_timeout_s)

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
        return max(rank.last_at_s or 0.0, self.sign_s, self._announced_s, again_s, self._woke_s)

    def _allowed_s(self, rank: RankTiming, paused_s: float) -> float:
        adaptive = self.policy.hang.after_s is None
        anew = self.relaunches.waits_since_s(rank) is not None
        starts = anew or (adaptive and self.relaunches.warms_up(rank))

        def allowed_s(ending: bool) -> float:
            usual_s = allowance_s(
                rank,
                self.policy.hang,
                self._gaps,
                self._start_s,
                ending=ending,
                repeats=self._hangs_at(rank.last_step or 0),
                started_s=self.started_s,
            )
            usual_s = max(usual_s, self._start_s if starts else 0.0)
            return self._in_pause_s(usual_s, self._silent_since_s(rank), paused_s)

        if not self.exited:
            return allowed_s(ending=False)
        # Who is stopped, or hung while those that have ended since still made iterations, was not through and saves
        # nothing. A log that a new agent reads does not tell when it was written: then only the former is known.
        if self._halted([rank.rank]):
            return allowed_s(ending=False)
        silent_then_s = self._exited_went_on_s() - self._silent_since_s(rank)
        return allowed_s(ending=silent_then_s < allowed_s(ending=False))

    def _in_pause_s(self, allowed_s: float, since_s: float, paused_s: float) -> float:
        """`paused_s` at least, where the last look was one at this silence."""
        looked = self.looks is not None and self.looks.last_s >= since_s
        return max(allowed_s, paused_s) if looked else allowed_s

    def _paused_s(self) -> float:
        """How long silence may be in which the last look has found a rank in an evaluation, a save or data preparation;
        0: it has found none. Asked once for all ranks: it goes through them."""
        if self.looks is None or not self.looks.pause or not self._looks_help():
            return 0.0
        return LONGEST_ALLOWANCE_S if self._ended_in_pause() else PAUSE_ALLOWANCE_S

    def _ended_in_pause(self) -> bool:
        return any(failure.pause for failure in self.failures)

    def _hangs_at(self, step: int) -> int:
        """How often it hung here or further on, since anything else went wrong."""
        hung = takewhile(lambda failure: failure.failure == HANG, reversed(self.failures))
        return sum(failure.step is not None and step <= failure.step + 1 for failure in hung)

    def _exited_went_on_s(self) -> float:
        """When a rank that has ended made an iteration for the last time."""
        return max((r.last_at_s or 0.0 for r in self._ranks.values() if r.rank in self.exited), default=0.0)

    def note(self, now: Now) -> None:
        """Before anything is decided: is it suspended, or was until now, or has its machine slept? Then its time begins
        anew."""
        suspended = self._halts()
        slept = self._slept_s is not None and now.slept_s - self._slept_s >= SLEPT_S
        self._slept_s = now.slept_s
        if slept or (self._suspended and not suspended):
            self._woke_s = now.mono_s
            if self.looks is not None:
                self.looks.reset()
        self._suspended = suspended

    def signal(self, now: Now) -> TimingSignal | None:
        found = self._signal(now)
        if found is None:
            return None
        if self._suspended:
            late = now.mono_s >= self._told_in_doubt_s()
            return structs.replace(found, key="suspended", doubt=SUSPENDED) if late else None
        silence = self._silence() if self._looks_help() else None
        if self.looks is None or silence is None:
            return found
        if not self._needs_looks():
            return None if self._look_comes(self.looks, *silence, now) else found
        since_s, allowed_s = silence
        if doubt := self._doubt(self.looks, since_s, allowed_s, now):
            late = now.mono_s >= self._told_in_doubt_s()
            return structs.replace(found, key="silent", doubt=doubt) if late else None
        return structs.replace(found, evidence=(*found.evidence, self.looks.words()))

    def _look_comes(self, looks: Looks, since_s: float, allowed_s: float, now: Now) -> bool:
        """The first look at this silence, which may find an evaluation, is awaited for a while."""
        return looks.last_s < since_s and now.mono_s - since_s < allowed_s + FRESH_S

    def _needs_looks(self) -> bool:
        """Not where an owner names a time for what is surely seen, nor where a signal has stopped a rank."""
        sure = self._iterates() and not any(r.unsure for r in self._timed())
        if self.looks is None or (self.policy.hang.after_s is not None and sure):
            return False
        return not self._halted(self._alive())

    def _halted(self, ranks: Collection[int]) -> bool:
        """A signal has stopped one of them, or of those that they, launchers, have started."""
        states = self.liveness.states
        return HALTED in self.workers.states(ranks) or any(states.get(rank) == HALTED for rank in ranks)

    def _halts(self) -> bool:
        """A signal has stopped all of its processes, as a scheduler or a person does who will let them go on. One
        alone, for which others wait, is no such thing; and who names a time means that too."""
        alive = self._alive()
        if self.policy.hang.after_s is not None or not self._halted(alive):
            return False
        below = [self.workers.states([rank]) or [self.liveness.states.get(rank, "")] for rank in alive]
        return all(state == HALTED for states in below for state in states)

    def _told_in_doubt_s(self) -> float:
        since_s, allowed_s = self._silence() or (0.0, 0.0)
        return since_s + max(DOUBT_S, allowed_s)

    def _looks_help(self) -> bool:
        """By default always; where an owner names a time, once that has ended a pause."""
        if self._needs_looks():
            return True
        return self._ended_in_pause() and not self._halted(self._alive())

    def _iterates(self) -> bool:
        """Is it known that its log tells of iterations?"""
        return self.timed_before or any(r.count for r in self._ranks.values())

    def _doubt(self, looks: Looks, since_s: float, allowed_s: float, now: Now) -> str:
        """Why this may be a job that is well; empty: it stands still."""
        fresh_s = max(FRESH_S, 2 * self._look_pause_s(allowed_s, now.mono_s - since_s))
        if looks.first_s < since_s or now.mono_s - looks.last_s > fresh_s:
            return "nobody could look where its ranks stand"
        if looks.still_s >= STILL_SHARE * allowed_s:
            return ""
        return looks.doubt or "its ranks have not been seen to stand still for long"

    def _silence(self, paused_s: float | None = None) -> tuple[float, float] | None:
        """Since when the job is silent (the rank whose time ends first), and how long it may be."""
        timed = self._timed()
        if timed:
            paused_s = self._paused_s() if paused_s is None else paused_s
            silences = [(self._silent_since_s(r), self._allowed_s(r, paused_s)) for r in timed]
            return min(silences, key=sum)
        return self._start_silence()

    def look_due(self, now: Now) -> bool:
        """Quick where iterations come."""
        if self.looks is None:
            return False
        oldest_s = min((r.last_at_s or 0.0 for r in self._timed()), default=0.0)
        if now.mono_s - oldest_s >= PHASE_S and self._name_due(self.looks, now):
            return True
        if now.mono_s - oldest_s < LOOK_SHARE * least_allowance_s(self.policy.hang) or not self._looks_help():
            return False
        at_s = self.look_at_s()
        return at_s is not None and now.mono_s >= at_s

    def look_at_s(self) -> float | None:
        """Monotonic time at which the next look is due; None: none is."""
        silence = self._silence()
        if self.looks is None or silence is None or not self._looks_help() or not self._readable():
            return None
        since_s, allowed_s = silence
        ends_s = max(since_s + allowed_s, self._activities.veto_ends_s() or 0.0)
        first_s, last_s = ends_s - (1 - LOOK_SHARE) * allowed_s, self.looks.last_s
        if self.looks.count <= 1:
            return max(first_s, last_s + self._look_pause_s(allowed_s, last_s - since_s))
        next_s, proof_s = last_s + PAUSE_SHARE * allowed_s, self.looks.first_s + STILL_SHARE * allowed_s
        return max(first_s, min(next_s, proof_s) if last_s < proof_s else next_s)

    def _look_pause_s(self, allowed_s: float, moves_s: float) -> float:
        return max(PAUSE_SHARE * allowed_s, LATER_SHARE * moves_s)

    def _signal(self, now: Now) -> TimingSignal | None:
        alive = self._alive()
        if not alive or not self._readable() or self.excused(now):
            return None
        timed = self._timed()
        if not timed:
            return self._hang_at_start(alive, now)
        least_s, paused_s = least_allowance_s(self.policy.hang), self._paused_s()
        stuck = [
            r
            for r in timed
            if (silent_s := now.mono_s - self._silent_since_s(r)) >= least_s
            and silent_s >= self._allowed_s(r, paused_s)
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
            allowed_s=max(self._allowed_s(r, paused_s) for r in stuck),
            outlived=outlived,
            relaunches=self.relaunches.count if waited else 0,
        )

    def _hang_at_start(self, alive: list[int], now: Now) -> TimingSignal | None:
        """Only a job that is known to log iterations can miss its first one."""
        silence = self._start_silence()
        if silence is None or now.mono_s < sum(silence):
            return None
        since_s, allowed_s = silence
        stopped = self.liveness.stopped(alive)
        inner = self.workers.first_stopped(alive)
        only = next(iter(stopped)) if len(stopped) == 1 else alive[0] if len(alive) == 1 else None
        if self._iterates():
            waited_s = now.mono_s - (self.started_s or 0.0)
            sentence = f"The job has made no iteration within {length(waited_s)} of its start."
            confidence = "all logs were read to their end; earlier incarnations logged iterations"
        else:
            waited_s = now.mono_s - since_s
            sentence = f"The job has told of no progress for {length(waited_s)}."
            confidence = "all logs were read to their end; no iterations are seen in them"
        return TimingSignal(
            symptom=Symptom.HANG,
            key="hang",
            rank=only if inner is None else inner.rank,
            worker=None if inner is None else inner.number,
            value=waited_s,
            threshold=allowed_s,
            sentence=sentence,
            evidence=(
                *(f"rank {r} is {why}" for r, why in stopped.items()),
                *((inner.why,) if inner else ()),
            ),
            confidence=confidence,
        )

    def _start_silence(self) -> tuple[float, float] | None:
        """Of a job without an iteration: as `_silence`. Where it is not known to log any, an owner's time counts from
        whatever its output tells of progress; before its first output it has the time of its start."""
        if self.started_s is None or self.exited:
            return None
        start_s, since_s = self._start_s, max(self.started_s, self.sign_s, self._announced_s, self._woke_s)
        if self._iterates():
            return since_s, self._in_pause_s(start_s, since_s, self._paused_s())
        after_s = self.policy.hang.after_s if self.looks is not None else None
        if after_s is None:
            return None
        if self.sign_s == 0.0:  # it has printed nothing
            since_s = max(since_s, self.started_s + start_s - after_s)
        return since_s, self._in_pause_s(after_s, since_s, self._paused_s())

    def next_deadline(self, now: Now) -> float | None:
        """Monotonic time at which `signals` should be asked though nothing arrived; None: no need."""
        if not self._alive() or not self._readable():
            return None
        timed = self._timed()
        paused_s = self._paused_s()
        ends = [self._silent_since_s(r) + self._allowed_s(r, paused_s) for r in timed]
        if not timed and (silence := self._start_silence()) is not None:
            ends.append(sum(silence))
        veto_s = self._activities.veto_ends_s()
        if veto_s is not None:
            ends = [max(end, veto_s) for end in ends]
        if (look_s := self.look_at_s()) is not None:
            ends.append(look_s)
        if self._suspended:
            ends.append(self._told_in_doubt_s())
        return min((end for end in ends if end > now.mono_s), default=None)


def _stood_words(looks: Looks, now: Now) -> str:
    if not looks.stood_in:
        return ""
    ago_s, what = now.mono_s - looks.stood_s, pauses.done_in(looks.stood_in)
    when = "it is" if ago_s < FRESH_S else f"{length(ago_s)} ago it was"
    return f"{when} {what}{', ' if what else ''}in {looks.stood_in}"
