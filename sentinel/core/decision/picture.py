"""All that is known of one job now. Folded by the controller, read by `policy.decide`."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import structs

from sentinel.core.decision.diverged import KEY as DIVERGED
from sentinel.core.health import Finding
from sentinel.core.model import Incident, Pace, Phase, ProtectedJob, Symptom, Verdict
from sentinel.core.now import Now
from sentinel.core.recovery.events import EndRequested
from sentinel.core.recovery.move_again import Refused, refused
from sentinel.core.reports import LOSS_LOST, LOSS_SOUND, NORM_LOST, LogMatch, RankExit, RankReport
from sentinel.core.stacks.flight_record import Stuck
from sentinel.core.timing.job_timing import JobTiming, TimingSignal
from sentinel.core.triage.case import Struck
from sentinel.core.triage.verdict import FailureClass, triage

KEPT_MATCHES = 400
TOLD_AGAIN = 3  # times that a lost loss is news again in one incarnation
LOG_GONE_S = 10.0  # with a pod its log goes; that its rank has ended is known by then
KEPT_PACE = 20  # iterations before an incident, and as many at its end


class JobPicture:
    """All that is known of one job now. Folded by the controller, read by `decide`."""

    def __init__(self, job: ProtectedJob, failures: Mapping[str, FailureClass]) -> None:
        self.job = job
        self.failures = failures
        self.timing = JobTiming(
            job.policy,
            job.size,
            baseline_ms=job.baseline_ms,
            baseline_ratio=job.baseline_ratio,
            performance_frozen=job.performance_frozen,
            longest_start_s=job.longest_start_s,
        )
        self.timing.hang.failures = job.failures
        self.incident: Incident | None = None
        self.exits: dict[int, RankExit] = {}  # of the running incarnation
        self.matches: list[LogMatch] = []  # of the running incarnation, bounded
        self.loss_lost: LogMatch | None = None  # since when its loss is no number for good
        self.norm_lost: LogMatch | None = None  # the same of its gradient norm
        self.sound_again = 0  # times that a loss that was told as lost was a number again
        self.waits_for_logs = True  # what a log is behind with may change what is done about it
        self.findings: list[Finding] = []
        self.alive: set[int] = set()
        self.pids: dict[int, int] = {}
        self.entities: dict[int, str] = {}  # rank -> the GPU it uses; on a cluster the node
        self.pinned = ""  # on a cluster: the one node on which its pods can run
        self.also_on: frozenset[str] = (
            frozenset()
        )  # on a cluster: nodes on which only pods of it that are no ranks run
        self.known_gpus: int | None = None  # None: one for each entity
        self.entities_back: bool = False  # a GPU that was left out is well again
        self.grows_to: int = 0  # there is room for so many ranks; not more than it has: for no more
        self.refused: dict[str, Refused] = {}  # by key: moves of this incarnation that had no room
        self.fits_again: str = ""  # the key of one for which there is room now
        # Until when everything that the logs say is known, where their readers tell it now and then; None: always.
        self.known_until_s: float | None = None
        self.others: Callable[[], Iterable[Struck]] = (
            tuple  # what other jobs met, asked for with each verdict
        )
        self.succeeded_as = ""  # on a cluster: that it has, in the words of its kind; ranks may run on
        self.starting: bool = False  # the first start is under way: no recovery holds it
        self.end: EndRequested | None = None
        self.silent_since_s: float | None = None  # last iteration of the incarnation before the running one
        self.lost_s = 0.0  # of its run time: see lost_run_s
        self.stuck: Stuck | None = None  # what the flight recorders of its ranks told when they had ended
        self.logs_gone: dict[int, float] = {}  # by rank: since when its log is gone (monotonic)
        self.told: set[str] = set()  # keys of what this incarnation's owner was told
        # A whole window of this incarnation was within the thresholds, as a predecessor may have seen.
        self.was_fast: bool = 0 < job.incarnation == job.fast_incarnation
        self.unproved: tuple[Incident, int] | None = (
            None  # a save that was signalled, not proved; iterations then
        )

    def begin_incarnation(self, now: Now) -> None:
        self.exits.clear()
        self.matches.clear()
        self.loss_lost = self.norm_lost = None
        self.sound_again = 0
        self.alive.clear()
        self.pids.clear()
        self.logs_gone.clear()
        self.told.clear()
        self.stuck = None
        self.succeeded_as = ""
        self.refused.clear()
        self.fits_again = ""
        self.was_fast = False
        self.unproved = None
        self.silent_since_s = self.timing.last_at_s or self.silent_since_s
        self.timing.hang.failures = self.job.failures
        self.timing.start(self.job.incarnation, self.job.size, now)

    def note(self, now: Now) -> None:
        """Before anything is decided: what has to be remembered of how the job stands now."""
        self.timing.hang.note(self.known(now))
        if not self.was_fast and self.incident is None and self.timing.judged:
            self.was_fast = not self.timing.slow

    def keep_refused(self, incident: Incident, at_mono_s: float) -> None:
        """Where it ended as a move that was refused."""
        if refused(incident):
            self.refused[incident.key] = Refused(incident, at_mono_s)

    def add_match(self, match: LogMatch) -> None:
        """Keeps the oldest half (the root comes first) and the newest."""
        if match.rule == LOSS_LOST:
            self.loss_lost = self.loss_lost or match
            return
        if match.rule == LOSS_SOUND:
            self._take_back_loss()
            return
        if match.rule == NORM_LOST:
            self.norm_lost = self.norm_lost or match
            return
        self.matches.append(match)
        most = max(KEPT_MATCHES, 2 * self.job.size)  # what each rank says of its end
        if len(self.matches) > most:
            del self.matches[most // 2]

    def _take_back_loss(self) -> None:
        """Of whatever rank: all have the same weights."""
        self.loss_lost = None
        if DIVERGED in self.told and self.sound_again < TOLD_AGAIN:
            self.sound_again += 1
            self.told.discard(DIVERGED)

    def is_behind(self, rank: int) -> bool:
        """Has its log more to tell than was read by now?"""
        timing = self.timing.ranks.get(rank)
        return self.waits_for_logs and timing is not None and not timing.caught_up and not timing.log_problem

    def with_end(self, job: ProtectedJob, now: Now) -> ProtectedJob:
        """Where it has ended, when, and with how many GPUs: nothing but its record tells it later."""
        if not job.state.final:
            return structs.replace(job, ended_wall_s=None, ended_gpus=0) if job.ended_wall_s else job
        if job.ended_wall_s is not None:
            return job
        return structs.replace(job, ended_wall_s=now.wall_s, ended_gpus=self.gpus)

    @property
    def gpus(self) -> int:
        """That the job keeps busy."""
        return len(set(self.entities.values())) if self.known_gpus is None else self.known_gpus

    def known(self, now: Now) -> Now:
        """The moment up to which silence of a log is silence of its rank."""
        if self.known_until_s is None or self.known_until_s >= now.mono_s:
            return now
        return Now(self.known_until_s, now.wall_s - (now.mono_s - self.known_until_s), now.slept_s)

    @property
    def failed_exits(self) -> list[RankExit]:
        return [e for e in self.exits.values() if not e.ok and not e.stopped_by_us]

    @property
    def finished(self) -> bool:
        """Every rank of the incarnation ended with exit code 0 by itself."""
        return len(self.exits) >= self.job.size and all(e.ok for e in self.exits.values())

    @property
    def left_out(self) -> tuple[str, ...]:
        """Entities that the job's ranks must not use, now or from their next start."""
        return (*self.job.excluded, *(self.incident.excluded if self.incident else ()))

    def exit_code(self, rank: int | None) -> int | None:
        """What the job itself ended with: of the rank to blame, else of the first that failed; 128 + signal."""
        failed = sorted(self.failed_exits, key=lambda gone: (gone.rank != rank, gone.at_s))
        for gone in failed:
            if not gone.unknown and gone.code != 0:
                return gone.code if gone.signal is None else 128 + gone.signal
        return None

    def ended_by_save(self) -> Incident | None:
        """The incident whose save signal ended the job: no iteration came since, and nothing proved the save."""
        if self.unproved is None:
            return None
        incident, iterations = self.unproved
        last_exit_s = max((gone.at_s for gone in self.exits.values()), default=0.0)
        if self.timing.has_timing:
            return incident if self.timing.iterations <= iterations else None
        soon = last_exit_s - incident.phase_mono_s <= self.job.policy.graceful_stop_s
        return incident if soon else None

    def paced(self, incident: Incident, now: Now) -> Incident:
        """With the newest iterations that it does not have yet, for people to look at; of a slowdown with those around
        its beginning."""
        since_s = incident.pace[-1].wall_s if incident.pace else float("-inf")
        change = self.timing.history.change
        if incident.verdict.symptom is Symptom.SLOWDOWN and change is not None and not incident.pace:
            took = change.around
        else:
            newest = self.timing.newest(KEPT_PACE)
            took = tuple((one.at_s, one.e2e_ms) for one in newest if one.e2e_ms is not None)
        seen = [Pace(round(now.wall_s - (now.mono_s - at_s), 3), round(ms, 3)) for at_s, ms in took]
        fresh = [one for one in seen if one.wall_s > since_s + 1e-3]
        return structs.replace(incident, pace=(*incident.pace, *fresh)) if fresh else incident

    def with_steps(self, job: ProtectedJob) -> ProtectedJob:
        """`job`, a record of this start, with the last step that its log named and the best of all starts."""
        if (step := self.timing.last_step) is None:
            return job
        best = max(step, job.best_step or 0) if job.steps_told else step
        return structs.replace(job, last_step=step, best_step=best, steps_told=True)

    def with_progress(self) -> ProtectedJob:
        """The job's record with what was learnt of it since: last step, baseline."""
        job, learnt = self.job, self.timing.baseline()
        return structs.replace(
            self.with_steps(job),
            baseline_ms=learnt[0] if learnt else job.baseline_ms,
            baseline_ratio=learnt[1] if learnt else job.baseline_ratio,
            longest_start_s=self.timing.hang.longest_start_s,
            fast_incarnation=job.incarnation if self.was_fast else job.fast_incarnation,
        )

    def log_problem(self, report: RankReport, now: Now) -> str:
        """What its log misses, in a word; "": nothing, as far as is known. One that has vanished may belong to a pod
        that ends: `logs_missed` tells.
        """
        if report.incarnation != self.job.incarnation:
            return ""
        if report.log_problem == "vanished":
            self.logs_gone.setdefault(report.rank, now.mono_s)
            return ""
        self.logs_gone.pop(report.rank, None)
        return "" if report.log_problem == "not there yet" else report.log_problem

    def logs_missed(self, now: Now) -> list[int]:
        """The ranks that run on though their logs have vanished."""
        if self.incident is not None and self.incident.phase is Phase.STOPPING:
            return []
        gone = [rank for rank, since_s in self.logs_gone.items() if now.mono_s - since_s >= LOG_GONE_S]
        return [rank for rank in gone if rank in self.alive]

    @property
    def steps_told(self) -> bool:
        """Do its logs name steps, whether or not the present start has come to one?"""
        return self.timing.steps_told or self.job.steps_told

    @property
    def reached(self) -> int | None:
        """The last step; where its logs name none how many iterations this start has made, which only starts from the
        same checkpoint have in common."""
        return self.timing.last_step if self.steps_told else self.timing.made

    @property
    def places(self) -> frozenset[str]:
        """All that it uses, of which a finding is reason to leave."""
        return self.also_on.union(self.entities.values())

    def time_left_s(self, now: Now) -> float | None:
        if self.job.policy.max_duration_s is None:
            return None
        return self.job.policy.max_duration_s + self.job.extra_s - self.job.run_time_s(now)

    def verdict(self, now: Now, signal: TimingSignal | None = None) -> Verdict:
        return triage(
            job=self.job.name,
            size=self.job.size,
            exits=list(self.exits.values()),
            matches=self.matches,
            findings=self.findings,
            signal=signal,
            # What one rank calls its steps is not compared with what is counted of another.
            last_steps={
                rank: timing.last_step if timing.steps_told is self.steps_told else None
                for rank, timing in self.timing.ranks.items()
            },
            steps_told=self.steps_told,
            run_s=self.job.run_time_s(now),
            rank_entities=self.entities,
            rank_pids=self.pids,
            # On a cluster one pid is that of a process on each of its nodes.
            worker_pids=self.timing.hang.workers.pids() if self.job.launch is not None else {},
            child_pids=self.timing.hang.workers.children if self.job.launch is not None else {},
            failures=self.failures,
            history=self.job.failures,
            now=now,
            started_s=float("-inf") if self.job.started_mono_s is None else self.job.started_mono_s,
            others=self.others,
            stuck=self.stuck,
            last_iteration_s={
                rank: timing.last_at_s
                for rank, timing in self.timing.ranks.items()
                if timing.last_at_s is not None
            },
        )
