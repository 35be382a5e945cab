"""What an owner asks, defaults included."""

from collections.abc import Collection

from msgspec import Struct


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
    checks: tuple[str, ...] = ("gpu", "disk", "system", "runtime")  # components
    wait_s: float = 12 * 3600.0  # how long a start waits for room or repair before it gives up: over a night


class Elastic(Struct, frozen=True, kw_only=True, omit_defaults=True):
    min_nodes: int = 1  # on Kubernetes: pods of ranks; on one machine: ranks
    allow_grow: bool = True
    grow_after_s: float = 600.0  # of run time at one size


class Performance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ratios are hardware time / end-to-end time, 0..1. None: not asked for."""

    max_hardware_ratio: float | None = None
    min_hardware_ratio: float | None = None
    max_step_growth: float | None = None  # step time / the job's own baseline
    straggler_ratio: float | None = 1.5  # a rank's hardware (else step) time / median of its peers; None: off
    slowdown_ratio: float | None = 1.035  # step time since a lasting change / before it; None: off
    over: int = 20  # iterations in the window
    only_if_grown: float | None = None  # besides: ratio / baseline ratio must be at least this
    action: str = "Alert"  # or "RescheduleAndAlert"


class Hang(Struct, frozen=True, kw_only=True, omit_defaults=True):
    after_s: float | None = None  # None: adapts to the job
    action: str = "RestartAndAlert"  # or "Alert"


class NanLoss(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a loss that is NaN or infinite for good."""

    action: str = "Alert"  # or "RestartAndAlert": from a checkpoint of a step whose loss was a number


class LostNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When pods on a node that is silent are removed by force without a proof that it is dead: exactly one is set."""

    force_after_s: float | None = None  # it was silent for so long
    self_fence_s: float | None = (
        None  # its agent ends the ranks when it reached nobody for so long: core.self_fence
    )


PROOF_RULE = "save-proof"  # the id of the rule that is made of a policy's proof pattern


class LogRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An owner's or a shipped pattern. `failure` is a failure class or `activity:NAME`."""

    id: str
    pattern: str
    failure: str
    source: str = ""
    literal: str = ""  # a string that every match contains: lets the engine skip lines


TIMING_NUMBERS = frozenset({"hardware_ms", "hardware_s", "e2e_ms", "e2e_s", "rate_per_s"})
TIMING_COUNTS = frozenset({"step", "total", "epoch"})


def groups_problem(names: Collection[str], count: int) -> str:
    """What a format's pattern with `count` groups, of which these have names, should have had, or ""."""
    known = TIMING_COUNTS | TIMING_NUMBERS
    if unknown := sorted(set(names) - known):
        return f"no group but {', '.join(sorted(known))} (not {', '.join(unknown)})"
    if count > len(names):
        return "a name for each group, (?P<step>...), or none that counts, (?:...)"
    return ""


class TimingFormat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job tells its iterations. Named groups of `pattern`: TIMING_COUNTS (integers; commas allowed) and
    TIMING_NUMBERS (`rate_per_s`: iterations per second).

    With `epoch` and `total` the step counts on across epochs; a format with `epoch` alone tells epochs only.
    """

    id: str
    pattern: str
    unless: str = ""  # a line that matches this too is none of this format
    first_epoch: int | None = None  # None: as the shipped format of this id has it, else 1


NO_MAILS = "none"


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JobPolicy after validation, in base units. `Policy()` is what protects a job without a file."""

    name: str = "default"
    emails: tuple[str, ...] = ()
    mails: tuple[str, ...] = ()  # stages of which they are told, or NO_MAILS alone; without it of all
    resume: Resume | None = None
    restart: Restart | None = Restart()
    precheck: Precheck = Precheck()
    elastic: Elastic | None = None
    performance: Performance = Performance()
    hang: Hang = Hang()
    nan_loss: NanLoss = NanLoss()
    lost_node: LostNode | None = None  # on Kubernetes; None: only after a proof
    max_duration_s: float | None = None
    debug_hold_s: float | None = None  # on Kubernetes: how long a job that failed is kept for a look inside
    start_timeout_s: float = 600.0
    lost_rank_grace_s: float = 2.0
    verify_after_s: float = (
        120.0  # a job without timing lines counts as recovered when all ranks were up so long
    )
    unknown_exit: str = "auto"  # restart | fail | auto (restart with `resume`, else fail)
    warning_signals: tuple[str, ...] = ("SIGUSR1", "SIGUSR2")
    log_rules: tuple[LogRule, ...] = ()
    timing_formats: tuple[TimingFormat, ...] = ()
    keep_log_bytes: int | None = None  # punch holes behind the reader so that a rank's log takes at most this
    capped: tuple[str, ...] = ()  # what administrators do not allow as it was asked, in words
    mode: str = "enforce"  # or "observe"

    @property
    def rules(self) -> tuple[LogRule, ...]:
        """What its jobs' logs are searched for besides what is shipped: its own rules, and the proof of a save."""
        checkpoint = self.resume.checkpoint if self.resume else None
        if checkpoint is None or checkpoint.proof is None or not checkpoint.proof.log_pattern:
            return self.log_rules
        proof = LogRule(id=PROOF_RULE, pattern=checkpoint.proof.log_pattern, failure="proof")
        return (*self.log_rules, proof)

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
