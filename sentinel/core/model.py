"""The words of Sentinel as frozen records: read this file first.

Units stand in the names: `_s` seconds, `_ms` milliseconds, `_bytes`. Times come in two kinds:
`wall` is the Unix clock and is only ever shown to people; everything else is CLOCK_BOOTTIME (it
never steps, and goes on while the machine sleeps) and is compared only within one boot.
"""

from enum import StrEnum

from msgspec import Struct


class Now(Struct, frozen=True):
    """One reading of both clocks, passed into the core."""

    mono_s: float
    wall_s: float


# ---------------------------------------------------------------- health of a node


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"  # tell
    DEGRADED = "degraded"  # save and move when there is room
    FATAL = "fatal"  # isolate now

    @property
    def order(self) -> int:
        return _SEVERITY_ORDER[self]


_SEVERITY_ORDER = {Severity.INFO: 0, Severity.WARNING: 1, Severity.DEGRADED: 2, Severity.FATAL: 3}


class Component(StrEnum):
    GPU = "gpu"
    NIC = "nic"
    DISK = "disk"
    KERNEL = "kernel"
    SYSTEM = "system"
    RUNTIME = "runtime"
    AGENT = "agent"


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong with one entity of one node.

    `action` is NVIDIA's own bucket (RESET_GPU, RESTART_BM, ...) or one of ours (FREE_SPACE, ...).
    A sampled finding (`event` false) clears when samples no longer show it; an event finding
    (an XID) clears by time, by a new boot id, or by a person.
    """

    check: str
    component: Component
    entity: str  # "GPU 0000:18:00.0", "mlx5_0/1", "/scratch"
    code: str  # "XID 79", "disk-space"
    severity: Severity
    action: str
    summary: str
    evidence: tuple[str, ...] = ()
    event: bool = False
    first_seen_wall_s: float = 0.0
    last_seen_wall_s: float = 0.0
    seen_mono_s: float = 0.0
    count: int = 1
    pid: int | None = None  # the process that the driver named
    process: str = ""  # its name, as the kernel knows it
    cgroup: str = ""  # its cgroup, which tells the container and the pod
    job: str = ""  # what tells its job from others ("slurm 4711", "pod 77f0..."), where known
    uuid: str = ""  # of the GPU, where known
    over: bool = False  # says that the fault of this key has ended: never one that stands
    boot_id: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.component.value, self.entity, self.code)


class CheckState(StrEnum):
    OK = "ok"
    FOUND = "found"  # findings say what
    ABSENT = "absent"  # this hardware is not here: neither healthy nor broken
    UNKNOWN = "unknown"  # could not look, `detail` says why: not healthy


class CheckResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    check: str
    state: CheckState
    findings: tuple[Finding, ...] = ()
    detail: str = ""
    took_s: float = 0.0
    at_mono_s: float = 0.0


# ---------------------------------------------------------------- what a job's logs and processes tell


class Iteration(Struct, frozen=True, gc=False):
    """One training iteration as a log told it. Unknown numbers are None.

    `at_s` is CLOCK_BOOTTIME of the reading (in replay: the line's own time stamp, or a synthetic
    clock advanced by `e2e_ms`). `hardware_ms / e2e_ms` is the hardware ratio, 0..1.
    """

    at_s: float
    step: int | None = None
    hardware_ms: float | None = None
    e2e_ms: float | None = None


class LogMatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a rank's log that a rule named. `line` is untrusted text, at most 500 characters."""

    rule: str  # id of the rule: "nccl-timeout"
    failure: str  # failure class of the rule (rules/failures.toml), or an activity: "activity:compiling"
    rank: int
    incarnation: int
    at_s: float
    stamp_wall_s: float | None = None  # the line's own time stamp, if it has one
    line: str = ""
    job: str = ""


class RankExit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one rank. Neither code nor signal: the status is unknown (its supervisor was killed)."""

    rank: int
    incarnation: int
    at_s: float
    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    stopped_by_us: bool = False

    @property
    def unknown(self) -> bool:
        return self.code is None and self.signal is None

    @property
    def ok(self) -> bool:
        return self.code == 0

    def describe(self) -> str:
        if self.unknown:
            return "exit status unknown"
        if self.signal is not None:
            return f"killed by signal {self.signal}" + (" (out of memory)" if self.oom_killed else "")
        return f"exit code {self.code}"


class RankReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one poll of one rank's log brought. Iterations are in log order."""

    job: str
    incarnation: int
    rank: int
    iterations: list[Iteration] = []
    caught_up: bool = True  # the log was read to its end: only then may silence mean a hang
    log_problem: str = ""  # "vanished", "truncated": a degraded mode named in status
    state: str = ""  # of the process, as in /proc/PID/stat, when it was looked at
    io_bytes: int | None = None  # read and written so far by the rank and its helpers


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Agent to controller."""

    node: str
    boot_id: str
    sequence: int
    now: Now
    ranks: tuple[RankReport, ...] = ()
    matches: tuple[LogMatch, ...] = ()
    exits: tuple[tuple[str, RankExit], ...] = ()  # (job, exit)
    checks: tuple[CheckResult, ...] = ()


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
    FINDING = "finding"
    START_FAILED = "start failed"
    ENDING = "ending"  # a person, a warning signal or maxDuration ends the job
    RESIZE = "resize"


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
    entity: str = ""  # the GPU or node to avoid, if one is to blame
    evidence: tuple[str, ...] = ()
    advice: str = ""
    budget: Budget = Budget.JOB
    restart: Restartable = Restartable.YES
    confidence: str = ""  # what raised or lowered it, in words


# ---------------------------------------------------------------- what an owner asks (defaults included)


class Proof(Struct, frozen=True, omit_defaults=True):
    """What proves a save: exactly one field is set."""

    log_pattern: str = ""
    file_appears: str = ""  # a path or glob, relative to the job's working directory
    file_gone: str = ""


class Checkpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    signal: str = "SIGUSR1"
    timeout_s: float = 300.0
    ranks: str = "all"  # or "first"
    proof: Proof | None = None
    if_unproved: str = "keep"  # or "move": only read where a named proof did not come


class Resume(Struct, frozen=True, kw_only=True, omit_defaults=True):
    max_resumes: int = 5
    max_infrastructure: int | None = None  # of them for infrastructure faults; None: only max_resumes counts
    max_job: int | None = None  # of them for faults of the job itself
    graceful_stop_s: float = 600.0
    checkpoint: Checkpoint | None = None
    reset_after_s: float | None = None


class Restart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    max_restarts: int = 3
    max_infrastructure: int | None = None
    max_job: int | None = None
    graceful_stop_s: float = 30.0
    reset_after_s: float | None = None


class Precheck(Struct, frozen=True, kw_only=True, omit_defaults=True):
    checks: tuple[str, ...] = ("gpu", "disk", "system")  # components
    wait_s: float = 3600.0  # how long a start waits for room or repair before it gives up


class Elastic(Struct, frozen=True, kw_only=True, omit_defaults=True):
    min_nodes: int = 1  # on one machine: ranks
    allow_grow: bool = True


class Performance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ratios are hardware time / end-to-end time, 0..1. None: not asked for."""

    max_hardware_ratio: float | None = None
    min_hardware_ratio: float | None = None
    max_step_growth: float | None = None  # step time / the job's own baseline
    straggler_ratio: float | None = 1.5  # a rank's hardware (else step) time / median of its peers; None: off
    over: int = 20  # iterations in the window
    only_if_grown: float | None = None  # besides: ratio / baseline ratio must be at least this
    action: str = "Alert"  # or "RescheduleAndAlert"


class Hang(Struct, frozen=True, kw_only=True, omit_defaults=True):
    after_s: float | None = None  # None: adapts to the job
    action: str = "RestartAndAlert"  # or "Alert"


class LogRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An owner's or a shipped pattern. `failure` is a failure class or `activity:NAME`."""

    id: str
    pattern: str
    failure: str
    source: str = ""
    literal: str = ""  # a string that every match contains: lets the engine skip lines


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JobPolicy after validation, in base units. `Policy()` is what protects a job without a file."""

    name: str = "default"
    emails: tuple[str, ...] = ()
    resume: Resume | None = None
    restart: Restart | None = Restart()
    precheck: Precheck = Precheck()
    elastic: Elastic | None = None
    performance: Performance = Performance()
    hang: Hang = Hang()
    max_duration_s: float | None = None
    start_timeout_s: float = 600.0
    lost_rank_grace_s: float = 2.0
    verify_after_s: float = (
        120.0  # a job without timing lines counts as recovered when all ranks were up so long
    )
    unknown_exit: str = "auto"  # restart | fail | auto (restart with `resume`, else fail)
    warning_signals: tuple[str, ...] = ("SIGUSR1", "SIGUSR2")
    log_rules: tuple[LogRule, ...] = ()
    keep_log_bytes: int | None = None  # punch holes behind the reader so that a rank's log takes at most this
    mode: str = "enforce"  # or "observe"

    @property
    def graceful_stop_s(self) -> float:
        if self.resume:
            return self.resume.graceful_stop_s
        return self.restart.graceful_stop_s if self.restart else 30.0

    @property
    def max_starts(self) -> int:
        """Restarts allowed after the first start."""
        if self.resume:
            return self.resume.max_resumes
        return self.restart.max_restarts if self.restart else 0


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


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One past failure, for back-off and early give-up."""

    wall_s: float
    run_s: float = 0.0  # run time of the job when it was paid for: no step of the clock touches it
    failure: str
    budget: Budget
    step: int | None = None
    checkpoint_step: int | None = None
    entity: str = ""


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
    started_mono_s: float | None = None  # of the running incarnation
    run_s: float = 0.0  # used of maxDuration by earlier incarnations
    extra_s: float = 0.0  # granted by `extend`
    used_infrastructure: int = 0
    used_job: int = 0
    used_free: int = 0
    performance_moves_run_s: tuple[float, ...] = ()  # run time of the job at each
    performance_frozen: str = ""  # why performance is alert-only from now on
    fast_incarnation: int = 0  # the newest that ran a whole window within the thresholds
    elastic_frozen: str = ""
    last_step: int | None = None  # of the running incarnation, at the last save of this record
    best_step: int | None = None
    baseline_ms: float | None = None
    baseline_ratio: float | None = None
    checkpoint: ProvedCheckpoint | None = None
    failures: tuple[Failure, ...] = ()  # newest last, at most 20
    excluded: tuple[str, ...] = ()  # entities that its ranks must not use
    incidents: int = 0  # how many were opened: numbers the next one
    exit_code: int | None = None
    boot_id: str = ""
    save_note: str = ""  # "" or why the job is not save-capable
    degraded: tuple[str, ...] = ()  # degraded modes, named in status

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


class StageMail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    stage: Stage
    state: str = "waiting"  # waiting | sent | digested | failed
    attempts: int = 0
    next_wall_s: float = 0.0
    error: str = ""
    done: tuple[str, ...] = ()  # addresses that the server took the mail for
    refused: tuple[str, ...] = ()  # addresses that it refused for good


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
    seconds: float = 0.0  # from the fault to the first new iteration
    gpu_seconds: float = 0.0
    resumed_from: int | None = None


class Incident(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One incident of one job, with or without a recovery. The record that `recovery.step` moves."""

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
    failed_step: int | None = None  # last step before the fault
    top_step: int | None = None  # the furthest step that earlier faults of this incident undid
    save: SaveResult | None = None
    lost: Lost | None = None
    steps: tuple[Step, ...] = ()
    mails: tuple[StageMail, ...] = ()
    stacks: tuple[str, ...] = ()


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
