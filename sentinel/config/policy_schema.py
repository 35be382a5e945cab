"""The schema of a JobPolicy: what an owner writes."""

from typing import Annotated, Literal

from sentinel.config.kinds import (
    AutoOrDuration,
    Budget,
    Components,
    Duration,
    Emails,
    FailureClass,
    JobKinds,
    JobPath,
    Meaning,
    Name,
    OffOrRatio,
    Pattern,
    PositiveDuration,
    RuleId,
    Signal,
    Text,
    TimingPattern,
    YesNo,
    duration,
    number,
    one_of,
    size,
    whole,
)
from sentinel.config.section import Section, required, written
from sentinel.core import model, policy_model
from sentinel.core.agents.self_fence import LEAST_S
from sentinel.core.policy_model import NO_MAILS

Ratio = Annotated[float, number(0, 1), Meaning("ratio, above 0, at most 1")]
SelfFence = Annotated[float, duration(LEAST_S), Meaning("duration, at least 2m", "duration")]
Growth = Annotated[float, number(1, 1000), Meaning("number above 1")]
MAIL_STAGES = tuple(stage.value for stage in model.Stage)


class JobsSpec(Section):
    kinds: JobKinds = written(
        "kinds",
        "Kinds of jobs, like PyTorchJob; without it all. Job.batch where two groups have one name. Pod: pods of any "
        "other owner, never without that word.",
    )
    match_labels: dict[str, str] = written("matchLabels", "Labels that a job must bear, all of them.")
    name: Text = written("name", "The name of one job.")


class OwnerSpec(Section):
    core = policy_model.Policy
    emails: Emails = written("emails", "Who is told by mail of each incident.")
    mails: Annotated[
        tuple[Annotated[str, one_of(*MAIL_STAGES, NO_MAILS)], ...],
        Meaning(f"list of {', '.join((*MAIL_STAGES, NO_MAILS))}"),
    ] = written(
        "mails",
        "Which mails they get; without it all; [none]: none. The others are filed in the outbox, and webhooks get all.",
    )


class ProofSpec(Section):
    core = policy_model.Proof
    log_pattern: Pattern = written(
        "logPattern", "A line of a rank's log that says that the checkpoint is whole."
    )
    file_appears: JobPath = written(
        "fileAppears",
        "A file that appears (or is written anew) and stops growing; relative to the job's directory.",
    )
    file_gone: JobPath = written("fileGone", "A file that goes when the checkpoint is whole, like a lock.")


class CheckpointSpec(Section):
    core = policy_model.Checkpoint
    signal: Signal = written("signal", "Asks a rank to save. Never sent to a rank that does not catch it.")
    timeout_s: PositiveDuration = written("timeout", "How long a save may take.")
    ranks: Annotated[str, one_of("all", "first"), Meaning("all, first")] = written(
        "ranks", "Which ranks get the signal: all, or rank 0 alone."
    )
    proof: ProofSpec = written(
        "proof",
        "What proves the save: exactly one of the three. Without it, ranks that end after the signal, "
        "or the time given, count as the save, and the record says that nothing proved it.",
    )
    if_unproved: Annotated[str, one_of("keep", "move"), Meaning("keep, move")] = written(
        "ifUnproved",
        "What to do with a job that still steps when the proof does not come: keep it running, or move it anyway.",
    )


class ResumeSpec(Section):
    core = policy_model.Resume
    max_resumes: Budget = written("maxResumes", "How often the job may be resumed. Capped by administrators.")
    max_infrastructure: Budget = written(
        "maxInfrastructure", "Of these, at most so many for infrastructure faults."
    )
    max_job: Budget = written("maxJob", "Of these, at most so many for faults of the job itself.")
    graceful_stop_s: Duration = written(
        "gracefulStop", "From SIGTERM to SIGKILL when the job is stopped. Capped by administrators."
    )
    checkpoint: CheckpointSpec = written(
        "checkpoint", "How to ask the job to save. Without it the job is never asked; it saves by itself."
    )
    reset_after_s: PositiveDuration = written(
        "resetAfter",
        "The budget is full again when the job has run so long since its last restart. Without it, never.",
    )


class RestartSpec(Section):
    core = policy_model.Restart
    max_restarts: Budget = written(
        "maxRestarts", "How often the job may be restarted. Capped by administrators."
    )
    max_infrastructure: Budget = written(
        "maxInfrastructure", "Of these, at most so many for infrastructure faults."
    )
    max_job: Budget = written("maxJob", "Of these, at most so many for faults of the job itself.")
    graceful_stop_s: Duration = written(
        "gracefulStop", "From SIGTERM to SIGKILL when the job is stopped. Capped by administrators."
    )
    reset_after_s: PositiveDuration = written(
        "resetAfter",
        "The budget is full again when the job has run so long since its last restart. Without it, never.",
    )


class PrecheckSpec(Section):
    core = policy_model.Precheck
    checks: Components = written("checks", "Components that must be healthy before each start. [] for none.")
    wait_s: Duration = written("wait", "How long a start waits for room or repair before the job gives up.")


class ElasticSpec(Section):
    core = policy_model.Elastic
    min_nodes: Annotated[int, whole(1, 100_000), Meaning("whole number, at least 1")] = written(
        "minNodes",
        "The job may come back as small as this. On Kubernetes: pods of ranks; on one machine: ranks.",
    )
    allow_grow: YesNo = written(
        "allowGrow", "Grow again up to the first size when there is room. Needs a proof of the save."
    )
    grow_after_s: Duration = written(
        "growAfter",
        "It runs at least so long at one size before it grows. After a try that failed: at least 6h.",
    )


class PerformanceSpec(Section):
    core = policy_model.Performance
    max_hardware_ratio: Ratio = written(
        "maxHardwareRatio",
        "Hardware time / end-to-end time above this over the window is slow hardware. No default.",
    )
    min_hardware_ratio: Ratio = written(
        "minHardwareRatio",
        "Hardware time / end-to-end time under this: the job waits for its data. Alert only.",
    )
    max_step_growth: Growth = written(
        "maxStepGrowth", "Step time / the job's own baseline above this is slow."
    )
    straggler_ratio: OffOrRatio = written(
        "stragglerRatio", "A rank's time / the median of its peers above this names the rank."
    )
    slowdown_ratio: OffOrRatio = written(
        "slowdownRatio",
        "Step time since a lasting change / before it above this is told, with whose fault it is.",
    )
    over: Annotated[int, whole(3, 10_000), Meaning("whole number, at least 3")] = written(
        "over", "Iterations in the window."
    )
    only_if_grown: Growth = written(
        "onlyIfGrown", "Besides maxHardwareRatio: the ratio / its own baseline must be at least this."
    )
    action: Annotated[str, one_of("Alert", "RescheduleAndAlert"), Meaning("Alert, RescheduleAndAlert")] = (
        written("action", "Tell, or save, restart elsewhere and tell (spends a resume).")
    )


class HangSpec(Section):
    core = policy_model.Hang
    after_s: AutoOrDuration = written(
        "after",
        "No iteration for so long is a hang; auto adapts to the job, and asks that its ranks stand still. A time "
        "that is named must be longer than any evaluation or save that the log is silent about; where no "
        "iterations are seen in it, also than any wait for the GPU.",
    )
    action: Annotated[str, one_of("RestartAndAlert", "Alert"), Meaning("RestartAndAlert, Alert")] = written(
        "action", "Restart and tell, or tell only."
    )


class NanLossSpec(Section):
    core = policy_model.NanLoss
    action: Annotated[str, one_of("Alert", "RestartAndAlert"), Meaning("Alert, RestartAndAlert")] = written(
        "action",
        "Tell only; or restart and tell, with the steps in SENTINEL_BAD_STEPS whose checkpoints are not to be used "
        "(docs/resume.md; spends a resume). Not again where the loss comes to be NaN at the same steps.",
    )


class LostNodeSpec(Section):
    core = policy_model.LostNode
    force_after_s: PositiveDuration = written(
        "forceAfter",
        "The job's pods on a node from which nothing was heard for so long are removed by force, though nothing "
        "proves that the node is dead. They may still run there and write: two writers of one checkpoint are possible. "
        "Excludes selfFence.",
    )
    self_fence_s: SelfFence = written(
        "selfFence",
        "An agent that reached neither a controller nor the API server for so long kills the job's ranks on its node. "
        "Half as long again after that, 1m at least, the job's pods there are removed by force, if the agent had "
        "confirmed it (docs/fleet.md says what this does not cover). Excludes forceAfter.",
    )


class LogRuleSpec(Section):
    core = policy_model.LogRule
    id: RuleId = required("id", "Names the rule in verdicts.")
    pattern: Pattern = required("pattern", "Searched in each line.")
    failure: FailureClass = required("failure", "What a match means.")


class TimingFormatSpec(Section):
    core = policy_model.TimingFormat
    id: RuleId = required(
        "id",
        "Names the format. With the name of a shipped one it replaces the fields of that which are written here.",
    )
    pattern: TimingPattern = required("pattern", "Searched in each line; its named groups are the numbers.")
    unless: Pattern = written("unless", "A line in which this is found too does not tell an iteration.")
    first_epoch: Annotated[int, whole(0, 1), Meaning("0, 1")] = written(
        "firstEpoch",
        "The number of the first epoch; without it, and without a shipped format of this name, 1.",
    )


class LogsSpec(Section):
    core = policy_model.Policy
    keep_log_bytes: Annotated[int, size(1 << 20), Meaning("size, at least 1Mi", "size")] = written(
        "keepBytes",
        "A rank's log takes at most this on disk: what was read is released. Without it all is kept.",
    )


class PolicySpec(Section):
    core = policy_model.Policy
    jobs: JobsSpec = written(
        "jobs",
        "Picks jobs of the policy's namespace on Kubernetes: all that fit everything written here, {} every one, and "
        "without it none. `sentinel run` takes the policy for its own job.",
    )
    owner: OwnerSpec = written("owner", "Who owns the job.")
    resume: ResumeSpec = written("resume", "Resume from checkpoints. Excludes restart.")
    restart: RestartSpec = written(
        "restart", "Plain restart of a failed job. Excludes resume. In force if neither is."
    )
    precheck: PrecheckSpec = written("precheck", "What is looked at before each start.")
    elastic: ElasticSpec = written("elastic", "The size may change. Needs resume.")
    performance: PerformanceSpec = written("performance", "What is too slow.")
    hang: HangSpec = written("hang", "What is a hang.")
    nan_loss: NanLossSpec = written("nanLoss", "What to do when the loss is NaN or infinite for good.")
    lost_node: LostNodeSpec = written(
        "lostNode", "On Kubernetes: when a node falls silent. Without it, pods stay until it is proved dead."
    )
    max_duration_s: PositiveDuration = written(
        "maxDuration", "Run time after which the job is saved and ends as expired. Without it, none."
    )
    debug_hold_s: PositiveDuration = written(
        "debugHold",
        "On Kubernetes: a job that failed is kept so long for a look inside (docs/hold.md), then let go. Without it, "
        "not at all.",
    )
    start_timeout_s: PositiveDuration = written("startTimeout", "All ranks must run after so long.")
    lost_rank_grace_s: Duration = written(
        "lostRankGrace", "From SIGTERM to SIGKILL for the survivors when a rank was lost."
    )
    verify_after_s: PositiveDuration = written(
        "verifyAfter", "A job that prints no iterations counts as recovered when all ranks were up so long."
    )
    unknown_exit: Annotated[str, one_of("auto", "restart", "fail"), Meaning("auto, restart, fail")] = written(
        "unknownExit", "When the exit status was lost. auto: restart with resume, else fail."
    )
    warning_signals: tuple[Signal, ...] = written(
        "warningSignals", "Sent to Sentinel, by Slurm for example, they mean: save, stop, exit."
    )
    log_rules: tuple[LogRuleSpec, ...] = written("logRules", "Patterns of this job beside the shipped ones.")
    timing_formats: tuple[TimingFormatSpec, ...] = written(
        "timingFormats",
        "How this job prints its iterations, where no shipped format reads it (docs/timing.md).",
    )
    logs: LogsSpec = written("logs", "The job's log files.")
    mode: Annotated[str, one_of("enforce", "observe"), Meaning("enforce, observe")] = written(
        "mode", "observe: decide, record and tell, but touch nothing."
    )


class Metadata(Section):
    core = policy_model.Policy
    name: Name = required("name", "The policy's name.")
    namespace: Name = written("namespace", "On Kubernetes: where it is in force.")


class JobPolicyDocument(Section):
    api_version: Literal["sentinel.dev/v1alpha1"] = required("apiVersion", "sentinel.dev/v1alpha1")
    kind: Literal["JobPolicy"] = required("kind", "JobPolicy")
    metadata: Metadata = required("metadata", "Names the policy.")
    spec: PolicySpec = required("spec", "What the owner asks.")
