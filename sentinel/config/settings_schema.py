"""The schema of Settings: what administrators write."""

from typing import Annotated, Literal

from sentinel import settings
from sentinel.config.kinds import (
    AbsolutePath,
    AbsolutePaths,
    Addresses,
    Budget,
    CheckNames,
    Command,
    Duration,
    Emails,
    ErrorLimits,
    LabelKey,
    Limit,
    Listen,
    Meaning,
    Name,
    OffOrSize,
    PlainPattern,
    PositiveDuration,
    Size,
    Text,
    Texts,
    TimeOfDay,
    Timezone,
    Url,
    duration,
    number,
    one_of,
    whole,
)
from sentinel.config.section import Section, required, written
from sentinel.core import health
from sentinel.core.fleet import settings as fleet_settings

Share = Annotated[float, number(0, 1), Meaning("share, above 0, at most 1")]
SEVERITIES = tuple(severity.value for severity in health.Severity)
OWN_COMPONENTS = tuple(
    component.value for component in health.Component if component is not health.Component.AGENT
)
Count = Annotated[int, whole(0, 100_000), Meaning("whole number")]
Rate = Annotated[float, number(0, 1_000_000), Meaning("number above 0")]


class SummarySpec(Section):
    core = settings.Summary
    at: TimeOfDay = required("at", "When it is sent.")
    days: Annotated[tuple[Annotated[str, one_of(*settings.WEEKDAYS)], ...], Meaning("list of mon to sun")] = (
        written(
            "days", "On which days; without it every day. The next after days without one tells of these too."
        )
    )
    timezone: Timezone = written("timezone", "Of the IANA database, such as Europe/Berlin; without it UTC.")


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
        "timeout", "For each answer of the server; twenty times as long once it has the whole mail."
    )
    per_hour: Annotated[int, whole(1, 10_000), Meaning("whole number, at least 1")] = written(
        "perHour", "Mails to one address per hour; half as they come, the others as digests."
    )
    outbox: AbsolutePath = written(
        "outbox", "Folder for .eml files; without it outbox in the state directory."
    )
    admins: Emails = written("admins", "Who is told of everything beside the owners.")
    summary: SummarySpec = written(
        "summary",
        "One mail a day to admins and to webhooks about nodes, from the leader of a cluster: how its nodes and jobs "
        "stand, and what happened since the last one. Without it there is none.",
    )


class WebhookSpec(Section):
    core = settings.Webhook
    name: Name = required("name", "Names it in records and logs; changed, it is another one.")
    url: Url = written("url", "Where it is told, by POST; http or https.")
    url_file: AbsolutePath = written("urlFile", "A file that holds the URL alone, where it is a secret.")
    format: Annotated[str, one_of("json", "slack"), Meaning("json, slack")] = written(
        "format", "The body: docs/webhook.schema.json, or what Slack's incoming webhooks take."
    )
    secret_file: AbsolutePath = written(
        "secretFile", "A file that holds the key alone that signs json bodies."
    )
    ca_file: AbsolutePath = written("caFile", "Certificates to trust in place of the system's.")
    about: Annotated[tuple[Annotated[str, one_of("jobs", "nodes")], ...], Meaning("list of jobs, nodes")] = (
        written("about", "What it is told of.")
    )
    timeout_s: Annotated[float, duration(1.0, 60.0), Meaning("duration, 1s to 1m", "duration")] = written(
        "timeout", "For each message."
    )


class CapsSpec(Section):
    core = settings.Caps
    max_resumes: Budget = written("maxResumes", "Highest spec.resume.maxResumes of a policy.")
    max_restarts: Budget = written("maxRestarts", "Highest spec.restart.maxRestarts of a policy.")
    graceful_stop_s: PositiveDuration = written("gracefulStop", "Longest gracefulStop of a policy.")
    checkpoint_timeout_s: PositiveDuration = written(
        "checkpointTimeout", "Longest spec.resume.checkpoint.timeout of a policy."
    )
    debug_hold_s: PositiveDuration = written("debugHold", "Longest spec.debugHold of a policy.")
    reset_after_min_s: Duration = written("resetAfterMin", "Shortest resetAfter of a policy.")


class OwnerRuleSpec(Section):
    core = settings.OwnerRule
    namespace: Text = written("namespace", "The namespace of the jobs.")
    match_labels: dict[str, str] = written("matchLabels", "Labels that a job must bear, all of them.")
    emails: Emails = required("emails", "Who is told by mail of each incident.")


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
    api_server: Listen = written(
        "apiServer",
        "HOST:PORT of the API server, asked only where a job has lostNode.selfFence: once in 5m, and more often while "
        "no controller answers; without it as each pod is told ($KUBERNETES_SERVICE_HOST).",
    )
    api_server_ca_file: AbsolutePath = written(
        "apiServerCaFile", "Certificates of the API server's authority."
    )


class CertificatesSpec(Section):
    core = settings.CertificateFiles
    cert_file: AbsolutePath = required(
        "certFile",
        "The chain, the controllers' own certificate first, for the DNS name sentinel-controller.",
    )
    key_file: AbsolutePath = required("keyFile", "Its key, RSA or EC, without a passphrase.")
    ca_file: AbsolutePath = required("caFile", "The authorities by which agents know it, 16 at most.")


class WindowSpec(Section):
    core = fleet_settings.Allowance
    per_window: Limit = written("perWindow", "At most so many begun within the window.")
    window_s: PositiveDuration = written("window", "How long what was begun counts.")


class AllowanceSpec(WindowSpec):
    at_a_time: Limit = written(
        "atATime",
        "At most so many at a time, of those younger than provenAfter that nobody has acknowledged.",
    )


class FenceSpec(Section):
    core = fleet_settings.FenceHook
    command: Command = required(
        "command",
        "An executable by its path, and its arguments; no shell. The node's name is appended. Exit code 0: the "
        "machine is off.",
    )
    after_s: PositiveDuration = written("after", "How long neither agent nor kubelet was heard.")
    timeout_s: Annotated[float, duration(1.0, 600.0), Meaning("duration, 1s to 10m", "duration")] = written(
        "timeout", "After that it is killed, with all that it started, and has failed."
    )


class FleetSpec(Section):
    core = fleet_settings.FleetSettings
    mode: Annotated[str, one_of("enforce", "observe"), Meaning("enforce, observe")] = written(
        "mode", "observe: decide, record and tell, but touch no node and no pod. `--observe` says the same."
    )
    observe_pools: Texts = written("observePools", "Pools whose nodes are only observed.")
    observe_namespaces: Texts = written(
        "observeNamespaces", "Namespaces whose pods are never removed by force: it is only recorded."
    )
    pool_label: LabelKey = written(
        "poolLabel", "The label of nodes whose value names their pool. Nodes without it are one pool too."
    )
    isolations: AllowanceSpec = written("isolations", "Nodes isolated for fatal findings, in all.")
    pool_isolations: AllowanceSpec = written("poolIsolations", "The same, in each pool.")
    proven_after_s: PositiveDuration = written(
        "provenAfter",
        "An isolation that stood so long, or that a person has acknowledged, does not count at a time any more.",
    )
    disks: AllowanceSpec = written("disks", "Nodes isolated for full disks, in all.")
    pool_disks: AllowanceSpec = written("poolDisks", "The same, in each pool.")
    removals: WindowSpec = written("removals", "Nodes whose pods are removed by force, in all.")
    pool_removals: WindowSpec = written("poolRemovals", "The same, in each pool.")
    stops: WindowSpec = written(
        "stops", "Jobs that still step and are stopped to be moved, of all protected jobs."
    )
    pool_stops: WindowSpec = written("poolStops", "The same, in each pool.")
    fence: FenceSpec = written(
        "fence", "A program that powers a silent machine off, so that its pods can be removed by force."
    )
    network_nodes: Annotated[int, whole(2, 100_000), Meaning("whole number, at least 2")] = written(
        "networkNodes", "So many nodes with one network finding are one network incident: none is isolated."
    )
    network_window_s: PositiveDuration = written(
        "networkWindow", "So near to each other they must have been found with it."
    )
    network_settle_s: Duration = written(
        "networkSettle", "So long a node with only network findings waits, to see whether others have them."
    )
    cause_nodes: Annotated[int, whole(2, 100_000), Meaning("whole number, at least 2")] = written(
        "causeNodes",
        "So many nodes with one fatal finding, or more where chance alone brings that in a fleet of this size, are one "
        "common cause: the rest of them wait for a person's word.",
    )
    cause_window_s: Annotated[float, duration(1.0, 86_400.0), Meaning("duration, 1s to 1d", "duration")] = (
        written(
            "causeWindow",
            "So near to each other they must have been found with it. Within a day it takes twice as many.",
        )
    )
    cause_worst: Annotated[int, whole(0, 100_000), Meaning("whole number")] = written(
        "causeWorst", "So many of them are isolated all the same: the first, and of many at once the worst."
    )
    release_after_s: PositiveDuration = written(
        "releaseAfter", "Findings must be gone for so long before a node comes back."
    )
    disk_release_after_s: PositiveDuration = written("diskReleaseAfter", "The same for a disk that was full.")
    repeat_limit: Annotated[int, whole(1, 1000), Meaning("whole number, at least 1")] = written(
        "repeatLimit",
        "A node isolated so often, each time within repeatWindow of its return, stays until a person releases it.",
    )
    repeat_window_s: PositiveDuration = written(
        "repeatWindow",
        "For so long a node that came back is on probation: less isolates it, and see repeatLimit.",
    )
    probation_settle_s: Duration = written(
        "probationSettle",
        "So long a node on probation waits before less than a fatal finding isolates it, to see whether many have it.",
    )
    keep_records: Annotated[int, whole(100, 100_000), Meaning("whole number, at least 100")] = written(
        "keepRecords",
        "Ended quarantines are deleted when no rule reads them any more; of more than so many the oldest go before "
        "repeatWindow has passed.",
    )
    lease_s: Annotated[float, duration(20.0, 3600.0), Meaning("duration, 20s to 1h", "duration")] = written(
        "lease", "A kubelet whose lease was not renewed for so long is silent. It renews every 10 s."
    )
    agent_silent_s: Annotated[float, duration(30.0, 3600.0), Meaning("duration, 30s to 1h", "duration")] = (
        written("agentSilent", "An agent that was not heard for so long is silent. It reports every 10 s.")
    )
    together_share: Share = written(
        "togetherShare", "When more of the nodes than this fall silent together, none is judged."
    )
    together_s: PositiveDuration = written("together", "Within so long of each other is together.")


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


class EndedJobsSpec(Section):
    core = settings.EndedJobs
    keep_for_s: PositiveDuration = written("keepFor", "Those that ended longer ago are forgotten.")
    at_most: Count = written("atMost", "Of more than this the oldest are forgotten.")


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
    webhooks: tuple[WebhookSpec, ...] = written("webhooks", "Programs that are told what mails tell.")
    caps: CapsSpec = written(
        "caps",
        "What owners may ask at most. A policy that asks for more gets as much as is allowed, and is told so.",
    )
    ended_jobs: EndedJobsSpec = written(
        "endedJobs",
        "On one machine: how long records and logs of jobs that have ended are kept. `sentinel forget` removes them "
        "sooner. One that runs or can be attached is never forgotten.",
    )
    owners: tuple[OwnerRuleSpec, ...] = written(
        "owners",
        "On Kubernetes: owners of jobs whose policy names none, and where neither the job nor its namespace has an "
        "annotation sentinel.dev/owner. The first that fits counts; what has no owner is told to mail.admins.",
    )
    disk: DiskSpec = written(
        "disk", "When a file system is too full, and which count. Shares are of the file system."
    )
    cards: CardsSpec = written("cards", "Accelerators other than NVIDIA's.")
    gpu: GpuSpec = written("gpu", "When a GPU is told of or faulty, beyond its own limits and NVIDIA's word.")
    network: NetworkSpec = written("network", "When InfiniBand, RoCE and Ethernet ports are findings.")
    own_checks: tuple[OwnCheckSpec, ...] = written("ownChecks", "Programs of your own, run as checks.")
    skip_checks: CheckNames = written(
        "skipChecks",
        "Checks that do not look: for what is known not to be seen on these machines. They answer `absent`, and what "
        "they would have found is not known.",
    )
    controller: ControllerSpec = written("controller", "Where `sentinel agent` reports to.")
    certificates: CertificatesSpec = written(
        "certificates",
        "PEM files of yours by which agents know `sentinel controller`, in place of certificates of its own making. "
        "They are read again every 20 s (docs/transport.md).",
    )
    fleet: FleetSpec = written(
        "fleet",
        "What `sentinel controller` may do to nodes. It reads them when it starts. A limit is the larger of "
        "atLeast and the share of the nodes.",
    )
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
    recording_bytes: OffOrSize = written(
        "recording",
        "How much the controller of a cluster may keep, in the state directory, of what it decided from: for "
        "`sentinel replay --fleet`.",
    )
    page_url: Url = written(
        "pageUrl", "Base of links in mails and alerts; without it mails have the listen address."
    )
    dashboard_url: Url = written(
        "dashboardUrl",
        "Address of the Grafana that has Sentinel's dashboards: mails and webhooks lead there.",
    )
