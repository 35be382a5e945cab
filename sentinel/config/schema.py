"""The schema of what people write: JobPolicy and Settings. The only module that builds pydantic models.

Fields bear the names of the core structs that they fill (units included); the alias is what stands in YAML.
Defaults stand in the core structs alone: a field that is not written is not passed on.
"""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from sentinel import settings
from sentinel.config.kinds import (
    AbsolutePath,
    AbsolutePaths,
    Addresses,
    AutoOrDuration,
    Command,
    Components,
    Duration,
    Emails,
    ErrorLimits,
    FailureClass,
    JobPath,
    Listen,
    Meaning,
    Name,
    OffOrRatio,
    Pattern,
    PlainPattern,
    PositiveDuration,
    RuleId,
    Signal,
    Size,
    Text,
    Texts,
    Url,
    YesNo,
    duration,
    number,
    one_of,
    size,
    whole,
)
from sentinel.core import model

API_VERSION = "sentinel.dev/v1alpha1"

Share = Annotated[float, number(0, 1), Meaning("share, above 0, at most 1")]
Ratio = Annotated[float, number(0, 1), Meaning("ratio, above 0, at most 1")]
Growth = Annotated[float, number(1, 1000), Meaning("number above 1")]
SEVERITIES = tuple(severity.value for severity in model.Severity)
OWN_COMPONENTS = tuple(
    component.value for component in model.Component if component is not model.Component.AGENT
)
Count = Annotated[int, whole(0, 100_000), Meaning("whole number")]
Rate = Annotated[float, number(0, 1_000_000), Meaning("number above 0")]
Budget = Annotated[int, whole(0, 10_000), Meaning("whole number")]


def written(alias: str, meaning: str) -> Any:
    """A field that may be left out; the core struct then has its default."""
    return Field(default=None, alias=alias, description=meaning)


def required(alias: str, meaning: str) -> Any:
    return Field(alias=alias, description=meaning)


class Section(BaseModel):
    # Built when it is first read: a job with a policy starts without the schema of settings.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)
    core: ClassVar[type[Struct] | None] = None


class JobsSpec(Section):
    kinds: Texts = written("kinds", "Kinds of jobs, like PyTorchJob.")
    match_labels: dict[str, str] = written("matchLabels", "Labels that a job must bear.")
    name: Text = written("name", "The name of one job.")


class OwnerSpec(Section):
    core = model.Policy
    emails: Emails = written("emails", "Who is told by mail of each incident.")


class ProofSpec(Section):
    core = model.Proof
    log_pattern: Pattern = written(
        "logPattern", "A line of a rank's log that says that the checkpoint is whole."
    )
    file_appears: JobPath = written(
        "fileAppears",
        "A file that appears (or is written anew) and stops growing; relative to the job's directory.",
    )
    file_gone: JobPath = written("fileGone", "A file that goes when the checkpoint is whole, like a lock.")


class CheckpointSpec(Section):
    core = model.Checkpoint
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
    core = model.Resume
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
    core = model.Restart
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
    core = model.Precheck
    checks: Components = written("checks", "Components that must be healthy before each start. [] for none.")
    wait_s: Duration = written("wait", "How long a start waits for room or repair before the job gives up.")


class ElasticSpec(Section):
    core = model.Elastic
    min_nodes: Annotated[int, whole(1, 100_000), Meaning("whole number, at least 1")] = written(
        "minNodes", "The job may come back as small as this. On one machine: ranks."
    )
    allow_grow: YesNo = written("allowGrow", "Grow again up to the first size when there is room.")


class PerformanceSpec(Section):
    core = model.Performance
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
    core = model.Hang
    after_s: AutoOrDuration = written("after", "No iteration for so long is a hang; auto adapts to the job.")
    action: Annotated[str, one_of("RestartAndAlert", "Alert"), Meaning("RestartAndAlert, Alert")] = written(
        "action", "Restart and tell, or tell only."
    )


class LogRuleSpec(Section):
    core = model.LogRule
    id: RuleId = required("id", "Names the rule in verdicts.")
    pattern: Pattern = required("pattern", "Searched in each line.")
    failure: FailureClass = required("failure", "What a match means.")


class LogsSpec(Section):
    core = model.Policy
    keep_log_bytes: Annotated[int, size(1 << 20), Meaning("size, at least 1Mi", "size")] = written(
        "keepBytes",
        "A rank's log takes at most this on disk: what was read is released. Without it all is kept.",
    )


class PolicySpec(Section):
    core = model.Policy
    jobs: JobsSpec = written(
        "jobs", "Picks jobs on Kubernetes. `sentinel run` takes the policy for its own job."
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
    max_duration_s: PositiveDuration = written(
        "maxDuration", "Run time after which the job is saved and ends as expired. Without it, none."
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
    logs: LogsSpec = written("logs", "The job's log files.")
    mode: Annotated[str, one_of("enforce", "observe"), Meaning("enforce, observe")] = written(
        "mode", "observe: decide, record and tell, but touch nothing."
    )


class Metadata(Section):
    core = model.Policy
    name: Name = required("name", "The policy's name.")
    namespace: Name = written("namespace", "On Kubernetes: where it is in force.")


class JobPolicyDocument(Section):
    api_version: Literal["sentinel.dev/v1alpha1"] = required("apiVersion", "sentinel.dev/v1alpha1")
    kind: Literal["JobPolicy"] = required("kind", "JobPolicy")
    metadata: Metadata = required("metadata", "Names the policy.")
    spec: PolicySpec = required("spec", "What the owner asks.")


# ---------------------------------------------------------------- administrators' settings


class MailSpec(Section):
    core = settings.Mail
    host: Text = written("host", "SMTP server. Without it mails are written as .eml files into outbox.")
    port: Annotated[int, whole(0, 65535), Meaning("port")] = written(
        "port", "0: 587 with starttls, 465 with tls, 25 with none."
    )
    tls: Annotated[str, one_of("starttls", "tls", "none"), Meaning("starttls, tls, none")] = written(
        "tls", "Encryption on the way to the server; tls is implicit TLS."
    )
    ca_file: AbsolutePath = written("caFile", "Certificates to trust in place of the system's.")
    username: Text = written("username", "For authentication; needs passwordFile.")
    password_file: AbsolutePath = written("passwordFile", "A file that holds the password alone.")
    sender: Text = written("sender", "From address; without it sentinel@HOSTNAME.")
    timeout_s: Annotated[float, duration(1.0, 600.0), Meaning("duration, 1s to 10m", "duration")] = written(
        "timeout", "For each exchange with the server."
    )
    per_hour: Annotated[int, whole(1, 10_000), Meaning("whole number, at least 1")] = written(
        "perHour", "Mails to one address per hour; more become one digest."
    )
    outbox: AbsolutePath = written(
        "outbox", "Folder for .eml files; without it outbox in the state directory."
    )
    admins: Emails = written("admins", "Who is told of everything beside the owners.")


class CapsSpec(Section):
    core = settings.Caps
    max_resumes: Budget = written("maxResumes", "Highest spec.resume.maxResumes of a policy.")
    max_restarts: Budget = written("maxRestarts", "Highest spec.restart.maxRestarts of a policy.")
    graceful_stop_s: PositiveDuration = written("gracefulStop", "Longest gracefulStop of a policy.")
    reset_after_min_s: Duration = written("resetAfterMin", "Shortest resetAfter of a policy.")


class MountSpec(Section):
    core = settings.MountThresholds
    path: AbsolutePath = required("path", "The mount point.")
    warn_free_share: Share = written("warnFreeShare", "In place of that for all.")
    min_free_share: Share = written("minFreeShare", "In place of that for all.")
    min_free_bytes: Size = written("minFreeBytes", "In place of that for all.")


class DiskSpec(Section):
    core = settings.Disk
    warn_free_share: Share = written("warnFreeShare", "Less free space or inodes than this is a warning.")
    min_free_share: Share = written("minFreeShare", "Less than this is a fault: starts wait.")
    min_free_bytes: Size = written("minFreeBytes", "Less free space than this is a fault: starts wait.")
    mounts: tuple[MountSpec, ...] = written(
        "mounts", "Mount points that jobs need besides the usual ones, each with thresholds of its own."
    )
    ignore: AbsolutePaths = written(
        "ignore", "Mount points that are not looked at; `*` stands for any characters."
    )
    probe_writes: AbsolutePaths = written(
        "probeWrites",
        "Folders in which a tiny file is written and removed each minute, to see whether writing hangs. "
        "A protected job's checkpoints on a network mount are probed without being named here.",
    )


class CardsSpec(Section):
    core = settings.CardLimits
    max_temperature_celsius: Annotated[float, number(20, 150), Meaning("number above 20, at most 150")] = (
        written(
            "maxTemperatureCelsius",
            "A card as hot as this is a warning, where it does not tell its own limit.",
        )
    )


class GpuSpec(Section):
    core = settings.GpuThresholds
    throttled_s: Annotated[float, duration(30.0, 600.0), Meaning("duration, 30s to 10m", "duration")] = (
        written("throttled", "Slowed down for heat or power so much of the last 10 minutes is a fault.")
    )
    corrected_ecc_per_hour: Count = written(
        "correctedEccPerHour", "More corrected memory errors of a card in an hour are told."
    )
    pcie_replays_per_minute: Rate = written(
        "pcieReplaysPerMinute", "More packets sent again over a card's PCIe link are told."
    )
    orphan_bytes: Size = written(
        "orphanMemory", "More memory of a card that no living process holds is a fault."
    )


class NetworkSpec(Section):
    core = settings.Network
    interfaces: Texts = written(
        "interfaces",
        "Ethernet interfaces that training uses, such as those of NCCL_SOCKET_IFNAME, besides those with the "
        "default route and the physical ones that were up.",
    )
    port_down_s: PositiveDuration = written(
        "portDown", "A port that was up, or is expected, isolates the node when down so long."
    )
    flaps: Annotated[int, whole(1, 1000), Meaning("whole number, at least 1")] = written(
        "flaps", "So many failures of a link within flapWindow are a fault."
    )
    flap_window_s: PositiveDuration = written("flapWindow", "Flaps are forgotten after so long.")
    settle_s: Duration = written(
        "settle", "So long after a boot or a reload of a driver, nothing is made of links that come and go."
    )
    errors_per_minute: ErrorLimits = written(
        "errorsPerMinute",
        "Growth of a counter of rules/network.toml, such as port_xmit_discards or rx_errors, beyond which "
        "there is a warning, in place of the row there.",
    )


class OwnCheckSpec(Section):
    core = settings.OwnCheck
    name: Name = required("name", "Names it: `sentinel check own-NAME`, and its findings.")
    command: Command = required(
        "command",
        "An executable by its path, and its arguments; no shell. It answers with Nagios exit codes or JSON.",
    )
    interval_s: Annotated[float, duration(1.0, 86400.0), Meaning("duration, 1s to 1d", "duration")] = written(
        "interval", "How often it is run."
    )
    timeout_s: Annotated[float, duration(0.1, 600.0), Meaning("duration, 100ms to 10m", "duration")] = (
        written("timeout", "After that it is killed, with all that it started.")
    )
    max_severity: Annotated[str, one_of(*SEVERITIES), Meaning(", ".join(SEVERITIES))] = written(
        "maxSeverity", "The worst that it may say. fatal lets it take the node out of service."
    )
    component: Annotated[str, one_of(*OWN_COMPONENTS), Meaning(", ".join(OWN_COMPONENTS))] = written(
        "component", "What its findings are about."
    )


class ControllerSpec(Section):
    core = settings.ControllerLink
    addresses: Addresses = written(
        "addresses",
        "HOST:PORT of each controller, or of a name that stands for all of them. Without one the agent reports "
        "to nobody.",
    )
    node: Text = written("node", "The node's name in the cluster; without it $NODE_NAME, else the host name.")
    token_file: AbsolutePath = written("tokenFile", "The agent's projected service-account token.")
    ca_file: AbsolutePath = written("caFile", "Certificates of the controllers' authority.")


class ShapeMatchSpec(Section):
    core = settings.ShapeMatch
    hostname: PlainPattern = written("hostname", "Searched in the node's host name.")
    gpu: PlainPattern = written("gpu", "Searched in the model of a card, and in its PCI ids (`10de:2330`).")


class ShapeSpec(Section):
    core = settings.Shape
    name: Name = required("name", "Names the shape in results.")
    match: ShapeMatchSpec = written(
        "match",
        "Which nodes have this shape: all that is written here must be found. Without it, every node.",
    )
    gpus: Count = written("gpus", "NVIDIA cards.")
    gpu_name: Text = written("gpuName", "Model of each card, as the driver names it.")
    driver: Text = written("driver", "Version of the NVIDIA driver.")
    vbios: Text = written("vbios", "VBIOS version of each card.")
    ib_ports: Count = written("ibPorts", "InfiniBand and RoCE ports that are up.")
    ib_rate_gbps: Rate = written("ibRateGbps", "Rate of each of these ports, Gb/s.")
    nics: Texts = written("nics", "Ethernet interfaces that are up.")
    memory_gib: Rate = written("memoryGib", "Memory as the kernel counts it (MemTotal), GiB.")
    cpus: Count = written("cpus", "Logical CPUs.")
    mounts: Texts = written("mounts", "Mount points.")
    modules: Texts = written("modules", "Kernel modules that are loaded.")
    services: Texts = written("services", "systemd units that are active, like kubelet.service.")


class SettingsDocument(Section):
    core = settings.Settings
    api_version: Literal["sentinel.dev/v1alpha1"] = required("apiVersion", "sentinel.dev/v1alpha1")
    kind: Literal["Settings"] = required("kind", "Settings")
    state_dir: AbsolutePath = written(
        "stateDir",
        "Where records, logs and the outbox live. Without it $SENTINEL_STATE_DIR, "
        "else $XDG_STATE_HOME/sentinel, else ~/.local/state/sentinel.",
    )
    listen: Listen = written(
        "listen", 'Page and metrics; "" for none. A taken port falls back to a free one.'
    )
    mail: MailSpec = written("mail", "How mails leave.")
    caps: CapsSpec = written("caps", "What owners may ask at most.")
    disk: DiskSpec = written(
        "disk", "When a file system is too full, and which count. Shares are of the file system."
    )
    cards: CardsSpec = written("cards", "Accelerators other than NVIDIA's.")
    gpu: GpuSpec = written("gpu", "When a GPU is told of or faulty, beyond its own limits and NVIDIA's word.")
    network: NetworkSpec = written("network", "When InfiniBand, RoCE and Ethernet ports are findings.")
    own_checks: tuple[OwnCheckSpec, ...] = written("ownChecks", "Programs of your own, run as checks.")
    controller: ControllerSpec = written("controller", "Where `sentinel agent` reports to.")
    shapes: tuple[ShapeSpec, ...] = written(
        "shapes",
        "Expected hardware. The first shape that matches a node is its own: one file serves a fleet.",
    )
    rules_dir: AbsolutePath = written("rulesDir", "Folder of more log rules and timing formats (*.toml).")
    kernel_log: AbsolutePath = written("kernelLog", "Where kernel messages are read.")
    sysfs: AbsolutePath = written("sysfs", "Where sysfs is mounted.")
    procfs: AbsolutePath = written("procfs", "Where procfs is mounted.")
    pod_logs: AbsolutePath = written(
        "podLogs", "Where the kubelet keeps the logs of pods: the names there tell which pods are one job's."
    )
    page_url: Url = written("pageUrl", "Base of links in mails; without it the listen address.")
