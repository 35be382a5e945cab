"""What Sentinel would have seen and decided: the same picture, policy, triage and recovery over told lines."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from sentinel.core.decision import policy
from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import Finding
from sentinel.core.model import JobState, ProtectedJob, Symptom, Verdict
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import LOSS_SOUND, Iteration, LogMatch, RankExit, RankReport
from sentinel.core.timing.performance import RankTiming
from sentinel.core.timing.statistics import Histogram
from sentinel.core.triage.verdict import FailureClass
from sentinel.replay.exits import TEARDOWN, exits_told
from sentinel.replay.paper import Foreseen, foresee
from sentinel.replay.read import Told

REPORT_S = 0.1  # a match waits so long for what belongs to it, as the agent polls
# Deciding costs more than reading a line. What iterations tell is looked at this many times in a window
# of the policy; where no threshold is set and no peers can be compared, once in so many iterations.
LOOKS = 5
UNWATCHED = 100
ENDING_S = 10.0  # other logs may tell iterations of the moment in which a rank ended
QUIET_S = 30.0  # a shorter silence is no hang unless the policy says so
MATCHES_OF_A_RULE = 3  # shown, of each rule


class RuleSeen(Struct, kw_only=True):
    """Lines that a rule named."""

    rule: str
    failure: str
    count: int
    first_at_s: float
    ranks: list[int]
    lines: list[str]


class RankSeen(Struct, kw_only=True):
    """Step times of one rank, in ms; `ratio` is hardware / end-to-end time over all of its iterations."""

    iterations: int = 0
    first_step: int | None = None
    last_step: int | None = None
    hardware_ms: float = 0.0
    paired_ms: float = 0.0
    last_at_s: float | None = None
    failed_at: tuple[int, int] | None = None  # (own, job's) iterations at the newest line of a failure
    histogram: Histogram

    @property
    def ratio(self) -> float | None:
        return self.hardware_ms / self.paired_ms if self.paired_ms else None


class Replay:
    """Takes what logs told in the order of time. `judge_hangs` false: their clock cannot show silence."""

    def __init__(
        self, name: str, asked: Policy, failures: Mapping[str, FailureClass], size: int, start_s: float
    ) -> None:
        job = ProtectedJob(
            name=name,
            policy=asked,
            state=JobState.RUNNING,
            incarnation=1,
            size=size,
            original_size=size,
            created_wall_s=start_s,
            started_mono_s=start_s,
        )
        self.picture = JobPicture(job, failures)
        self.picture.waits_for_logs = False  # all is told in its order
        self.now_s = start_s
        self.start_s = start_s
        self.decisions: list[Foreseen] = []
        self.rules: dict[str, RuleSeen] = {}
        self.ranks: dict[int, RankSeen] = {}
        self.unstamped: set[int] = set()  # ranks whose iterations tell no time
        self.ended: Foreseen | None = None
        self.assumed_ends: list[int] = []
        self._failures = failures
        self._iterations: dict[int, list[Iteration]] = {}
        self._matches: list[LogMatch] = []
        self._matched_s = start_s  # the oldest of them
        self._deadline_s: float | None = None  # when silence would have lasted too long, as far as was folded
        self._look_every = 1
        self._quiet_s = min(QUIET_S, (asked.hang.after_s or QUIET_S) / 2)
        self._told_exits: dict[int, RankExit] = {}
        self._seen: set[str] = set()
        self._failures_before = job.failures  # the end
        self._begin(size)

    @property
    def size(self) -> int:
        return self.picture.job.size

    def _begin(self, size: int) -> None:
        """All ranks run, from now on."""
        picture = self.picture
        picture.job = structs.replace(picture.job, size=size, original_size=size)
        picture.begin_incarnation(self._now)
        picture.alive = set(range(size))
        for rank in range(size):
            self._follow(rank)
        self._watch()

    def _watch(self) -> None:
        asked = self.picture.job.policy.performance
        limits = (
            asked.max_hardware_ratio,
            asked.min_hardware_ratio,
            asked.max_step_growth,
            asked.slowdown_ratio,
        )
        peers = self.size > 1 and asked.straggler_ratio is not None
        watched = peers or any(limit is not None for limit in limits)
        self._look_every = max(1, asked.over // LOOKS) if watched else UNWATCHED

    def _follow(self, rank: int) -> None:
        timing = self.picture.timing
        seen = self.ranks.setdefault(rank, RankSeen(histogram=Histogram()))
        over = timing.policy.performance.over
        timing.ranks[rank] = RankTiming(rank, over, seen.histogram, timing.gaps)
        timing.fold(self._rank_report(rank, []))

    def _grow(self, rank: int) -> None:
        """A line of a rank that was not known yet."""
        picture = self.picture
        known = self.size
        picture.job = structs.replace(picture.job, size=rank + 1, original_size=rank + 1)
        picture.timing.size = rank + 1
        for new in range(known, rank + 1):
            picture.alive.add(new)
            self._follow(new)
        self._watch()

    @property
    def _now(self) -> Now:
        return Now(self.now_s, self.now_s)

    def _rank_report(self, rank: int, iterations: list[Iteration]) -> RankReport:
        return RankReport(
            job=self.picture.job.name,
            incarnation=1,
            rank=rank,
            iterations=iterations,
            caught_up=rank not in self.unstamped,
        )

    # ------------------------------------------------------------ folding

    def take(self, told: Told) -> None:
        at_s = max(told.at_s, self.now_s)
        if told.rank >= self.size:
            self._grow(told.rank)
        silence = at_s - self.now_s >= self._quiet_s
        if silence or (self._deadline_s is not None and at_s >= self._deadline_s):
            self._report()
            self._pass_to(at_s)
        elif self._matches and at_s - self._matched_s >= REPORT_S:
            self._report()
        self.now_s = at_s
        if told.iteration is not None:
            self._iteration(told.rank, told.iteration, told.stamped)
        elif told.match is not None:
            self._match(told.match)

    def _iteration(self, rank: int, iteration: Iteration, stamped: bool) -> None:
        seen = self.ranks[rank]
        if self._begins_anew(rank, seen, iteration):
            self._report()
            self._settle_ends(self._told_exits or self._assumed())
            self._begin(self.size)
        if not stamped:
            self.unstamped.add(rank)
        seen.iterations += 1
        seen.last_at_s = self.now_s
        if iteration.step is not None:
            if seen.first_step is None:
                seen.first_step = iteration.step
            seen.last_step = iteration.step
        if iteration.hardware_ms is not None and iteration.e2e_ms:
            seen.hardware_ms += iteration.hardware_ms
            seen.paired_ms += iteration.e2e_ms
        if iteration.at_s < self.now_s:
            iteration = Iteration(self.now_s, iteration.step, iteration.hardware_ms, iteration.e2e_ms)
        waiting = self._iterations.setdefault(rank, [])
        waiting.append(iteration)
        if len(waiting) >= self._look_every:
            self._report()

    def _begins_anew(self, rank: int, seen: RankSeen, iteration: Iteration) -> bool:
        """Somebody started the job again: a rank steps that had ended, or after a failure the steps go back."""
        gone = self._told_exits.get(rank)
        if gone is not None and self.now_s > gone.at_s + ENDING_S:
            return True
        step, last = iteration.step, seen.last_step
        if step is None or last is None or step > last:
            return False
        return bool(self._told_exits or self._failing())

    def _match(self, match: LogMatch) -> None:
        if match.failure == "activity:exit":
            for gone in exits_told(match.line, self.now_s):
                teardown = self._told_exits and gone.signal in TEARDOWN
                if gone.rank < self.size and not teardown:
                    self._told_exits.setdefault(gone.rank, gone)
            return
        if match.rule != LOSS_SOUND:  # that is no fault
            self._count(match)
        if not self._matches:
            self._matched_s = self.now_s
            self._report()  # iterations before it are folded before it
        self._matches.append(match)

    def _count(self, match: LogMatch) -> None:
        known = self.rules.get(match.rule)
        if known is None:
            known = self.rules[match.rule] = RuleSeen(
                rule=match.rule, failure=match.failure, count=0, first_at_s=self.now_s, ranks=[], lines=[]
            )
        known.count += 1
        if match.rank not in known.ranks:
            known.ranks.append(match.rank)
        if len(known.lines) < MATCHES_OF_A_RULE:
            known.lines.append(match.line)
        if match.failure in self._failures:
            seen = self.ranks[match.rank]
            seen.failed_at = (seen.iterations, max(r.iterations for r in self.ranks.values()))

    def _report(self) -> None:
        """What one poll of the agent would have brought, then a decision."""
        timing = self.picture.timing
        for rank, iterations in self._iterations.items():
            timing.fold(self._rank_report(rank, iterations))
        self._iterations.clear()
        for match in self._matches:
            if match.failure.startswith("activity:"):
                timing.activity(match)
            else:
                self.picture.add_match(match)
        self._matches.clear()
        self._decide()
        self._deadline_s = self._next_deadline_s()

    def _pass_to(self, at_s: float) -> None:
        """Nothing was logged until `at_s`: decide whenever silence has lasted too long."""
        for _ in range(100):
            if self._deadline_s is None or self._deadline_s >= at_s:
                return
            self.now_s = max(self.now_s, self._deadline_s)
            self._decide()
            self._deadline_s = self._next_deadline_s()

    def _next_deadline_s(self) -> float | None:
        deadline_s = self.picture.timing.hang.next_deadline(self._now)
        left_s = self.picture.time_left_s(self._now)
        if left_s is not None and left_s > 0:
            deadline_s = min(deadline_s or self.now_s + left_s, self.now_s + left_s)
        return deadline_s

    # ------------------------------------------------------------ deciding

    def _decide(self) -> None:
        self.picture.note(self._now)
        for _ in range(4):  # as the controller does
            decision = policy.decide(self.picture, self._now)
            if not isinstance(decision, policy.Open):
                return
            key = self._key(decision)
            if key in self._seen:
                return
            self._seen.add(key)
            if decision.key:
                self.picture.told.add(decision.key)
            self._foresee(decision)

    def _key(self, decision: policy.Open) -> str:
        """The old log went on whatever was decided: each thing is told once, a hang once in each place."""
        if decision.verdict.symptom in (Symptom.HANG, Symptom.RANK_LOST):
            return f"{decision.reason}@{sum(seen.iterations for seen in self.ranks.values())}"
        return decision.key or decision.reason

    def _foresee(self, decision: policy.Open) -> None:
        told, settled = foresee(self.picture, decision, self._now)
        self.decisions.append(told)
        self._keep_books(settled)

    def _keep_books(self, settled: ProtectedJob) -> None:
        """Budgets go on as if the recovery had happened; the job goes on as the log says."""
        job = self.picture.job
        asked = job.policy
        if settled.state == JobState.EXPIRED:
            asked = structs.replace(asked, max_duration_s=None)
        self.picture.job = structs.replace(
            job,
            policy=asked,
            used_infrastructure=settled.used_infrastructure,
            used_job=settled.used_job,
            used_free=settled.used_free,
            failures=settled.failures,
            performance_moves_run_s=settled.performance_moves_run_s,
            performance_frozen=settled.performance_frozen,
            incidents=job.incidents + 1,
        )

    # ------------------------------------------------------------ ends

    def _failing(self) -> list[int]:
        """Ranks that told of a failure and made no iteration after it."""
        most = max((seen.iterations for seen in self.ranks.values()), default=0)
        found = []
        for rank, seen in self.ranks.items():
            if seen.failed_at is None:
                continue
            own, all_of_job = seen.failed_at
            if seen.iterations == own and (own or most <= all_of_job + 1):
                found.append(rank)
        return found

    def _assumed(self) -> dict[int, RankExit]:
        ranks = self._failing()
        self.assumed_ends = ranks
        return {rank: RankExit(rank=rank, incarnation=1, at_s=self.now_s) for rank in ranks}

    def _settle_ends(self, exits: Mapping[int, RankExit]) -> None:
        picture = self.picture
        for gone in exits.values():
            picture.exits[gone.rank] = gone
            picture.alive.discard(gone.rank)
            if gone.ok:
                picture.timing.hang.exited.add(gone.rank)
        picture.note(self._now)
        decision = policy.decide(picture, self._now)
        if isinstance(decision, policy.Open):
            self._foresee(decision)
        elif isinstance(decision, policy.Finish):
            verdict = picture.verdict(self._now) if picture.failed_exits else None
            self.decisions.append(
                Foreseen(
                    at_s=self.now_s,
                    reason=decision.reason,
                    kind="end",
                    sentence=decision.sentence,
                    verdict=verdict,
                    step=picture.timing.last_step,
                    outcome=decision.state.value,
                )
            )
        for seen in self.ranks.values():
            seen.failed_at = None
        self._told_exits.clear()

    def finish(self, given: Mapping[int | None, RankExit]) -> str:
        """The logs have ended. `given`: how ranks ended, None for all that are not named.

        Returns where the exit status comes from: given, log, assumed or unknown.
        """
        self._report()
        self._failures_before = self.picture.job.failures
        exits, source = self._ends(given)
        if exits:
            before = len(self.decisions)
            self._settle_ends(exits)
            if len(self.decisions) > before:
                self.ended = self.decisions[-1]
        return source

    def verdict_with(self, findings: Sequence[Finding], cards: Mapping[int, str]) -> Verdict:
        """After `finish`: what the verdict is where these were found on the machine, and ranks had these GPUs."""
        picture = self.picture
        picture.job = structs.replace(
            picture.job, failures=self._failures_before
        )  # this end is no past of its own
        picture.findings = [*findings]
        picture.entities |= cards
        return picture.verdict(self._now)

    def _ends(self, given: Mapping[int | None, RankExit]) -> tuple[dict[int, RankExit], str]:
        if given:
            exits = {rank: gone for rank, gone in given.items() if rank is not None}
            rest = given.get(None)
            if rest is not None:
                everyone = range(self.size)
                of = everyone if rest.ok else [r for r in self._failing() if r not in exits] or everyone
                exits |= {rank: structs.replace(rest, rank=rank) for rank in of if rank not in exits}
            return {rank: structs.replace(gone, at_s=self.now_s) for rank, gone in exits.items()}, "given"
        if self._told_exits:
            return dict(self._told_exits), "log"
        assumed = self._assumed()
        return assumed, "assumed" if assumed else "unknown"
