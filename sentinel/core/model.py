"""A job, its incidents, and why: the records that outlive a process. Read this file first.

Beside it stand `health` (findings), `reports` (what agents tell), `policy_model` (what owners ask) and `now` (clocks).
Units stand in the names: `_s` seconds, `_ms` milliseconds, `_bytes`.
"""

from enum import StrEnum

from msgspec import Struct

from sentinel.core.health import Finding
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy

# ---------------------------------------------------------------- why


class Cause(StrEnum):
    GPU = "gpu"
    NETWORK = "network"
    STORAGE = "storage"
    NODE = "node"
    HOST_MEMORY = "host memory"
    USER_CODE = "user code"
    DATA = "data"
    PREEMPTION = "preemption"
    UNKNOWN = "unknown"


class Symptom(StrEnum):
    RANK_LOST = "rank lost"
    HANG = "hang"
    SLOW = "slow"  # hardware ratio above the owner's threshold, or step time above the baseline
    STARVED = "starved"  # hardware ratio under the owner's threshold: data loading
    STRAGGLER = "straggler"
    SLOWDOWN = "slowdown"  # steps take longer than the job's own history explains, and it lasts
    FINDING = "finding"
    DIVERGED = "diverged"  # the loss is NaN or infinite for good
    START_FAILED = "start failed"
    ENDING = "ending"  # a person, a warning signal or maxDuration ends the job
    RESIZE = "resize"
    RETRY = "retry"  # a person asks for another try of a job that was given up or stopped
    FIRST_START = "first start"  # of a job that was created suspended for Sentinel to check and start


class Budget(StrEnum):
    INFRASTRUCTURE = "infrastructure"
    JOB = "job"
    FREE = "free"  # preemption and the like


class Restartable(StrEnum):
    YES = "yes"
    ONCE = "once"  # ambiguous: retry once, then it follows the job
    NO = "no"


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one explanation of an incident."""

    symptom: Symptom
    cause: Cause
    failure: str  # failure class: a row of rules/failures.toml
    scope: str  # "node" or "job"
    sentence: str  # could stand in an e-mail
    rank: int | None = None  # the first failing rank
    worker: int | None = None  # where that is a launcher: the rank that failed of those it had started
    entity: str = ""  # the GPU or node to avoid, if one is to blame
    evidence: tuple[str, ...] = ()
    advice: str = ""
    budget: Budget = Budget.JOB
    restart: Restartable = Restartable.YES
    confidence: str = ""  # what raised or lowered it, in words
    place: str = ""  # the GPU or node that this rank used
    follows: str = ""  # "job" or "node", where faults before this one tell which it goes with

    @property
    def who(self) -> int | None:
        """The rank by the number that people know: that of its own world below a launcher."""
        return self.rank if self.worker is None else self.worker


# ---------------------------------------------------------------- the records that outlive a process


class JobState(StrEnum):
    QUEUED = "queued"  # waits for its first start, for room, or for a back-off to end
    RUNNING = "running"
    ERROR = "error"
    STOPPED = "stopped"
    EXPIRED = "expired"
    SUCCEEDED = "succeeded"

    @property
    def final(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Launch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a local job is started: `nproc` None is one plain process, no rank variables set."""

    command: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    env_bytes: dict[str, bytes] = {}  # variables that are not UTF-8: name in hex -> value
    nproc: int | None = None


class ProvedCheckpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    step: int | None
    proof: str  # the line or the path that proved it
    wall_s: float


class BadSteps(Struct, frozen=True, omit_defaults=True):
    """Steps whose checkpoints are not to be used, the first and the last among them: the loss was NaN."""

    first: int
    last: int


HANG = "hang"  # the failure class of a hang that nothing explains


# A job whose log names no steps may have come further all the same: it is taken to have, where it ran so long
# between two failures. Loading and compiling take tens of minutes.
UNSTEPPED_S = 1800.0
# Of silence that is no hang yet: one odd pause (a suspended machine) must not blind the watch for a day.
LONGEST_ALLOWANCE_S = 3600.0


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One past failure, for back-off and early give-up."""

    wall_s: float
    run_s: float = 0.0  # run time of the job when it was paid for: no step of the clock touches it
    failure: str
    budget: Budget
    step: int | None = None  # as `Incident.failed_step`
    checkpoint_step: int | None = None
    entity: str = ""
    place: str = ""  # where the rank ran, blamed or not
    pause: str = (
        ""  # of a hang: the frame of an evaluation, a save or a preparation of data in which a rank stood
    )

    def is_behind(self, step: int | None) -> bool:
        """Did a start that came to `step` come further than this one?"""
        return step is not None and (self.step is None or step > self.step)


class FollowedOrder(Struct, frozen=True, omit_defaults=True):
    """A person's order that was followed, on Kubernetes. In the record, so that it is not followed twice."""

    id: str
    sentence: str  # the answer


class RankPlace(Struct, frozen=True, omit_defaults=True):
    """Where a rank of a cluster's job runs: its pod, its node, and how often its container had been started again."""

    rank: int
    uid: str
    node: str
    restarts: int = 0


class Placed(Struct, frozen=True):
    """Where the ranks of an incarnation run, for who takes over."""

    incarnation: int
    ranks: tuple[RankPlace, ...]


class ProtectedJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One protected job. Key: `name`. `incarnation` counts its starts; 0: never started."""

    name: str
    policy: Policy
    state: JobState = JobState.QUEUED
    reason: str = ""
    sentence: str = ""
    launch: Launch | None = None
    incarnation: int = 0
    first_incarnation: int = 1  # a name that is used again goes on counting
    size: int = 1
    original_size: int = 1
    created_wall_s: float = 0.0
    uid: str = ""  # on Kubernetes: of the object; another one of the same name is another job
    started_mono_s: float | None = None  # of the running incarnation
    started_wall_s: float = 0.0  # the same, for a successor on another machine
    run_s: float = 0.0  # used of maxDuration by earlier incarnations
    extra_s: float = 0.0  # granted by `extend`
    used_infrastructure: int = 0
    used_job: int = 0
    used_free: int = 0
    performance_moves_run_s: tuple[float, ...] = ()  # run time of the job at each
    performance_frozen: str = ""  # why performance is alert-only from now on
    fast_incarnation: int = 0  # the newest that ran a whole window within the thresholds
    elastic_frozen: str = ""
    grows_after_run_s: float = 0.0  # run time of the job before which it is not made larger
    last_step: int | None = None  # of the running incarnation, at the last save of this record
    best_step: int | None = None
    # Its log has named a step; else those of its failures are counted from each start. `best_step` does not tell:
    # records of older versions have such a count there.
    steps_told: bool = False
    baseline_ms: float | None = None
    baseline_ratio: float | None = None
    longest_start_s: float = 0.0  # from a start to the first iteration
    checkpoint: ProvedCheckpoint | None = None
    bad_steps: BadSteps | None = None
    failures: tuple[Failure, ...] = ()  # newest last, at most 20
    excluded: tuple[str, ...] = ()  # entities that its ranks must not use
    incidents: int = 0  # how many were opened: numbers the next one
    exit_code: int | None = None
    ended_wall_s: float | None = None
    ended_gpus: int = 0  # that it kept busy then
    hold_until_wall_s: float | None = None  # a job that failed is kept until then for a look inside
    boot_id: str = ""
    placed: Placed | None = None  # on Kubernetes
    inner_restarts: int = 0  # of the running incarnation: made by a launcher inside its pods (torchrun)
    save_note: str = ""  # "" or why the job is not save-capable
    degraded: tuple[str, ...] = ()  # degraded modes, named in status
    order: FollowedOrder | None = None  # the last: they are followed one after the other

    def run_time_s(self, now: Now) -> float:
        """Seconds that the job has run, over all its incarnations; by the monotonic clock, reboots included."""
        running = now.mono_s - self.started_mono_s if self.started_mono_s is not None else 0.0
        return self.run_s + max(0.0, running)

    @property
    def used(self) -> int:
        return self.used_infrastructure + self.used_job

    @property
    def left(self) -> int:
        return max(0, self.policy.max_starts - self.used)


class IncidentKind(StrEnum):
    FORCED = "forced"  # a rank is lost, a hang
    CHOSEN = "chosen"  # the job still steps
    ENDING = "ending"  # stop, expiry, a warning signal
    NOTICE = "notice"  # told, nothing done


class Phase(StrEnum):
    DETECTED = "Detected"
    PRECHECKING = "Prechecking"
    SAVING = "Saving"
    STOPPING = "Stopping"
    STARTING = "Starting"
    VERIFYING = "Verifying"
    RECOVERED = "Recovered"
    EXHAUSTED = "Exhausted"
    CANCELLED = "Cancelled"
    FAILED = "Failed"
    KEPT_RUNNING = "KeptRunning"
    ENDED = "Ended"

    @property
    def final(self) -> bool:
        return self in _FINAL_PHASES


_FINAL_PHASES = frozenset(
    {Phase.RECOVERED, Phase.EXHAUSTED, Phase.CANCELLED, Phase.FAILED, Phase.KEPT_RUNNING, Phase.ENDED}
)


class Stage(StrEnum):
    """Stages of an incident that are told by mail: at most one mail each."""

    STARTED = "started"
    RECOVERED = "recovered"
    GAVE_UP = "gave-up"
    NOTICE = "notice"


class Mailing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one mail is."""

    state: str = "waiting"  # waiting | sent | digested | failed
    attempts: int = 0
    next_wall_s: float = 0.0
    error: str = ""
    sent_wall_s: float = 0.0  # when the server took it last: stages of one mail have the same
    done: tuple[str, ...] = ()  # addresses that the server took the mail for
    refused: tuple[str, ...] = ()  # addresses that it refused for good


class StageMail(Mailing, frozen=True, kw_only=True, omit_defaults=True):
    stage: Stage


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an incident's story."""

    phase: Phase
    wall_s: float
    reason: str
    sentence: str


class SaveResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the save. `proved_by` and `skipped` empty: nothing proved it."""

    proved_by: str = ""
    skipped: str = ""
    step: int | None = None
    ranks: tuple[int, ...] = ()
    took_s: float = 0.0


class Lost(Struct, frozen=True, kw_only=True, omit_defaults=True):
    steps: int | None = None  # iterations repeated
    seconds: float = 0.0  # from the last iteration before the fault to the first new one
    gpu_seconds: float = 0.0
    resumed_from: int | None = None


class Pace(Struct, frozen=True, omit_defaults=True):
    """How long one iteration took, and when it was seen."""

    wall_s: float
    step_ms: float


class Incident(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One incident of one job, with or without a recovery. The record that `transitions.step` moves."""

    id: str  # JOB-0001
    job: str
    kind: IncidentKind
    verdict: Verdict
    phase: Phase = Phase.DETECTED
    reason: str = ""
    sentence: str = ""
    opened_wall_s: float = 0.0
    opened_mono_s: float = 0.0
    phase_mono_s: float = 0.0
    deadline_mono_s: float | None = None  # when the phase has lasted too long
    closed_wall_s: float | None = None
    incarnation: int = 0  # the one that the fault hit, then each one that the recovery started
    attempt: int = 0  # starts made by this recovery
    failed_starts: int = 0  # of them, the last in a row of which not all ranks came up
    paid: bool = False  # the present fault's start was counted against the budget
    size: int = 1
    from_size: int = 1  # the job's size when the incident was opened: where a failed resize goes back to
    excluded: tuple[str, ...] = ()
    end_state: JobState | None = None  # where the job ends instead of starting again
    end_code: int | None = None
    reason_of_end: str = ""
    sentence_of_end: str = ""
    save_wanted: bool = False
    grace_s: float = 30.0
    boot_id: str = ""
    key: str = ""  # what it was opened for: told once per incarnation
    refusals: int = 0  # of the same move before, in this incarnation
    # Last step before the fault; where the log names none, how many iterations that start had made.
    failed_step: int | None = None
    top_step: int | None = None  # the furthest step that earlier faults of this incident undid
    bad_steps: BadSteps | None = None  # up to the first report of the NaN loss that is undone
    save: SaveResult | None = None
    lost: Lost | None = None
    steps: tuple[Step, ...] = ()
    mails: tuple[StageMail, ...] = ()
    stacks: tuple[str, ...] = ()
    pace: tuple[Pace, ...] = ()  # of one rank: its last iterations before, and the newest ones at the end


class Quarantine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One isolation of one entity (locally a GPU, on Kubernetes a node)."""

    entity: str
    since_wall_s: float
    findings: tuple[Finding, ...]
    needs: str  # what must hold before it ends
    boot_id: str = ""
    ended_wall_s: float | None = None
    ended_by: str = ""


class JobEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a job's history, shown by `status` and the page."""

    job: str
    wall_s: float
    reason: str
    sentence: str
    incarnation: int = 0
    warning: bool = False


class StoredJob(ProtectedJob, frozen=True, kw_only=True, omit_defaults=True):
    """A job with its newest incident: where one write holds one object, both are saved by one. The Incident that
    people read is a copy, written after it."""

    incident: Incident | None = None
