"""Every metric of Sentinel, declared once. `python -m sentinel.metrics.registry` makes docs/metrics.md of it.

No label is called job, namespace, pod, container or instance: those are the scrape's own, and Prometheus would rename
ours.
"""

from msgspec import Struct

# A counter or histogram has at most so many series; more are counted as "other". The largest that is an
# enumeration, incidents by symptom and cause, has 81.
MAX_SERIES = 128
MAX_FINDINGS = 200  # series of `sentinel_finding`; `sentinel_findings` counts all
MAX_NODES = 1000  # series of what names single nodes to a leader of ten thousand
MAX_POOLS = 100  # of nodes that have series of their own, the largest; more are one pool, "other"
MAX_JOBS = 5000  # that have series of their own; `sentinel_jobs` counts all
OTHER = "other"

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_CHECK_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)


class Declaration(Struct, frozen=True, kw_only=True, eq=False):
    """One metric. `name` carries unit and `_total`; `buckets` are upper bounds of a histogram."""

    name: str
    kind: str  # counter | gauge | histogram
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    most: int = MAX_SERIES  # series, where nothing else bounds them; what is more is counted as OTHER


def _counter(name: str, text: str, *labels: str, most: int = MAX_SERIES) -> Declaration:
    return Declaration(name=f"sentinel_{name}", kind="counter", help=text, labels=labels, most=most)


def _gauge(name: str, text: str, *labels: str, most: int = MAX_SERIES) -> Declaration:
    return Declaration(name=f"sentinel_{name}", kind="gauge", help=text, labels=labels, most=most)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Declaration:
    return Declaration(name=f"sentinel_{name}", kind="histogram", help=text, labels=labels, buckets=buckets)


def _kept(name: str, text: str, *labels: str) -> Declaration:
    """Of the kept records, so that it goes down as records go: the same from each leader of a cluster, where its
    counters begin anew."""
    return _gauge(f"kept_{name}", text, *labels, "cause", "owner", most=1000)


BUILD = _gauge("build_info", "Always 1; the labels name the running version.", "version", "python")
JOBS = _gauge("jobs", "Protected jobs by state.", "state")
JOBS_RECOVERING = _gauge("jobs_recovering", "Jobs with an open incident.")
JOBS_HELD = _gauge(
    "jobs_held_back", "Jobs with something to recover from, which a brake or a pause holds back."
)

# Of one job, which goes when the job is no longer protected.
JOB_INFO = _gauge(
    "job_info",
    "1; the labels say whose job it is: the first address that its mails go to, or nobody.",
    "job_name",
    "job_namespace",
    "job_kind",
    "owner",
    "policy",
)
JOB_STATE = _gauge("job_state", "1 for the state that the job is in.", "job_name", "state")
JOB_PHASE = _gauge(
    "job_phase_since_timestamp_seconds",
    "Since when the job's open incident is in its phase.",
    "job_name",
    "phase",
    "cause",
)
RANKS = _gauge("job_ranks", "Ranks of the job.", "job_name")
GPUS = _gauge("job_gpus", "GPUs that the job keeps busy.", "job_name")
ITERATION = _gauge(
    "job_iteration",
    "Newest training step that a rank of the job printed; where its log names none, iterations since its start.",
    "job_name",
)
ITERATION_AT = _gauge(
    "job_last_iteration_timestamp_seconds", "When the job's newest iteration was heard of.", "job_name"
)
STEP_TIME = _gauge("job_step_time_seconds", "Median end-to-end time of an iteration of the job.", "job_name")
HARDWARE_TIME = _gauge(
    "job_hardware_time_seconds", "Median hardware time of an iteration, of the rank with most.", "job_name"
)
RATIO = _gauge(
    "job_hardware_ratio", "Hardware time / end-to-end time of the job's iterations, 0..1.", "job_name"
)
RESTARTS_LEFT = _gauge("job_restarts_left", "Restarts that the job's budget still allows.", "job_name")
INNER_RESTARTS = _gauge(
    "job_inner_restarts",
    "Restarts of the job's ranks by a launcher inside its pods (torchrun), in the running incarnation.",
    "job_name",
)
TIME_LEFT = _gauge("job_time_left_seconds", "Run time left of the job's maxDuration.", "job_name")
PRODUCTIVE = _gauge(
    "job_productive_seconds",
    "Time in which the job made iterations that count; of a job that has not ended.",
    "job_name",
)
WALL = _gauge(
    "job_wall_seconds", "Time since the job was first seen; of a job that has not ended.", "job_name"
)
ETTR = _gauge(
    "job_ettr_ratio", "Effective training time: productive time / wall time of the job, 0..1.", "job_name"
)
JOB_INCIDENTS = _counter("job_incidents_total", "Incidents of the job, from its records.", "job_name")
JOB_RESTARTS = _counter(
    "job_restarts_total", "Starts of the job by recoveries, from its records.", "job_name", "cause"
)
# Of one rank, on its node's agent or from `sentinel run`: what its log says, summed up. The rate of a time divided by
# the rate of the iterations is the time of one.
RANK_STEP = _gauge(
    "rank_iteration",
    "Newest iteration that the rank printed.",
    "job_name",
    "rank",
)
RANK_ITERATIONS = _counter("rank_iterations_total", "Timed iterations of the rank.", "job_name", "rank")
RANK_TIME = _counter("rank_step_seconds_total", "End-to-end time of these iterations.", "job_name", "rank")
RANK_HARDWARE = _counter(
    "rank_hardware_seconds_total", "Hardware time of these iterations.", "job_name", "rank"
)

RESTARTS = _counter(
    "restarts_total", "Restarts of jobs, by the cause and the budget it was charged to.", "cause", "budget"
)
INCIDENTS = _counter("incidents_total", "Incidents opened, by symptom and cause.", "symptom", "cause")
DETECT = _histogram("time_to_detect_seconds", "From a fault's first trace to its incident.", "symptom")
SAVE = _histogram("time_to_save_seconds", "From the save signal to its proof or its time limit.")
STOP = _histogram("time_to_stop_seconds", "From the order to stop a job to its last process gone.")
START = _histogram("time_to_start_seconds", "From the order to start a job to all its ranks running.")
RECOVER = _histogram(
    "time_to_recover_seconds", "From the last iteration before the fault to the first new one.", "cause"
)
LOST_STEPS = _counter("lost_steps_total", "Iterations that had to be repeated.", "cause")
LOST_TIME = _counter(
    "lost_seconds_total",
    "Time without progress, from the last iteration before the fault to the first new one.",
    "cause",
)
LOST_GPU_TIME = _counter(
    "lost_gpu_seconds_total", "The same, multiplied by the job's GPUs.", "cause", "owner", most=1000
)
BLAMED = _counter(
    "node_lost_gpu_seconds_total",
    "GPU time lost to what one node (on one machine: one GPU) is to blame for.",
    "node",
    most=1000,
)
KEPT_INCIDENTS = _kept("incidents", "Incidents of which the cluster keeps records.", "symptom")
KEPT_RESTARTS = _kept("restarts", "Starts by recoveries, from the kept records.")
KEPT_RECOVERIES = _kept("recoveries", "Kept incidents after which the job made iterations again.")
KEPT_LOST_STEPS = _kept("lost_steps", "Iterations that these repeated.")
KEPT_LOST_TIME = _kept(
    "lost_seconds",
    "Time of these without progress, from the last iteration before the fault to the first new one.",
)
KEPT_LOST_GPU_TIME = _kept("lost_gpu_seconds", "The same, multiplied by the job's GPUs.")
KEPT_BLAMED = _gauge(
    "kept_node_lost_gpu_seconds",
    "GPU time lost to what one node is to blame for, from the kept records.",
    "node",
    most=1000,
)
KEPT_JOB_TIME = _gauge(
    "kept_job_gpu_seconds",
    "Time of all jobs with a kept record, ended ones too, times GPUs; time is productive, or wall since first seen.",
    "time",
    "owner",
    most=2000,  # of a thousand owners
)
FINDINGS = _gauge("findings", "Health findings that stand now.", "component", "severity")
CHECK_TIME = _histogram(
    "check_duration_seconds", "How long a health check took.", "check", buckets=_CHECK_SECONDS
)
CHECK_FAILURES = _counter(
    "check_failures_total", "Runs of a check that could not look (failed or too slow).", "check"
)
CHECK_RUNS = _counter("check_runs_total", "Results of a check, of any state.", "check")
CHECK_TIMEOUTS = _counter(
    "check_timeouts_total", "Samples of a check that were given up at their deadline.", "check"
)
CHECK_AGE = _gauge("check_last_result_age_seconds", "Age of the newest result of a check.", "check")
FINDING = _gauge(
    "finding",
    "1 for each health finding that stands now, the worst first, at most 200.",
    "component",
    "entity",
    "code",
    "severity",
    "action",
)
LOOP_LAG = _gauge("event_loop_lag_seconds", "Longest delay of the event loop in the last minute.")
SETTINGS_IN_FORCE = _gauge(
    "settings_in_force",
    "1: the settings file as it is now is in force; 0: an older one is, for it was refused or waits for a restart.",
)
SETTINGS_RELOADS = _counter(
    "settings_reloads_total",
    "Settings read again; outcome is applied, unchanged, refused or, at a controller, restart.",
    "outcome",
)
AGENT = _gauge("agent_info", "1; the node that this agent watches.", "node")
CONTROLLER_CONNECTED = _gauge(
    "controller_connected", "1: a controller takes the reports of this node; 0: none does."
)
REPORTS_WAITING = _gauge("reports_waiting", "Reports that no controller has taken yet.")
REPORTS_DROPPED = _counter(
    "reports_dropped_total", "Reports that this node had to give up; kind is progress or event.", "kind"
)
SELF_FENCE_PODS = _gauge(
    "self_fence_pods",
    "Pods of jobs with lostNode.selfFence that this agent has confirmed to end if it is cut off.",
)
SELF_FENCED = _counter(
    "self_fenced_processes_total",
    "Processes of jobs with lostNode.selfFence that the agent killed: it reached nobody.",
)
LOG_BYTES = _counter("log_read_bytes_total", "Bytes read of the logs of ranks.")
LOG_MATCHES = _counter("log_matches_total", "Log lines that a rule named, by failure class.", "failure")
DECISIONS = _counter("decisions_total", "Decisions of the policy, doing nothing included.", "reason")
EFFECTS = _counter("effects_total", "Effects performed.", "effect")
EFFECT_FAILURES = _counter(
    "effect_failures_total",
    "Attempts at an effect that failed; kind is temporary or permanent.",
    "effect",
    "kind",
)
# `about`: jobs (to their owners) or nodes (to administrators).
MAILS_SENT = _counter("mails_sent_total", "Mails that a server (or the outbox) took.", "about")
MAILS_FAILED = _counter("mail_failures_total", "Attempts to send a mail that failed.", "about")
MAILS_GIVEN_UP = _counter("mails_given_up_total", "Mails that will not be sent any more.", "about")
MAILS_WAITING = _gauge("mails_waiting", "Mails that wait for their next attempt.", "about")
RECORDS_SAVED = _counter("records_saved_total", "Records written to the store.")
RECORD_FAILURES = _counter("record_save_failures_total", "Attempts to save records that failed.")
API_TIME = _histogram(
    "api_request_seconds",
    "Requests to the Kubernetes API server, by their outcome.",
    "method",
    "outcome",
    buckets=_CHECK_SECONDS,
)
WATCH_AGE = _gauge("watch_age_seconds", "Since the API server last said anything of a kind.", "kind")
WATCH_SYNCED = _gauge("watch_synced", "1: the copy of a kind is whole and followed; 0: it is not.", "kind")
WATCH_OBJECTS = _gauge("watch_objects", "Objects of a kind in the copy.", "kind")
WATCH_LISTS = _counter("watch_lists_total", "Times that a kind was listed as a whole.", "kind")
WATCH_BREAKS = _counter("watch_breaks_total", "Watches that did not end as they should.", "kind")
PAGE = _gauge(
    "page_info",
    "1; the address of the status page, where `pageUrl` has it: alerts lead to its runbooks.",
    "url",
)
LEADING = _gauge("leading", "1: this controller leads; 0: it stands by.")
EPOCH = _gauge("leader_epoch", "Counts the controllers that have led.")
LEASE_LEFT = _gauge("lease_left_seconds", "For how long it is sure that this controller leads.")
PAUSED = _gauge("paused", "1: a person has paused Sentinel; it decides, and begins nothing new.")
LEADERSHIPS = _counter("leaderships_total", "Times that this controller began to lead.")
# The leader of a cluster tells these of the fleet; its standby does not, so that a sum counts nothing twice.
NODES = _gauge(
    "nodes",
    "Nodes by their worst state: isolated, held-back, unreachable, agent-silent, observed, not-heard, in-service.",
    "pool",
    "state",
)
FLEET_FINDINGS = _gauge(
    "fleet_findings", "Findings that stand on the nodes.", "component", "severity", "code"
)
NODE_FINDING = _gauge(
    "node_finding",
    "1 for what is degraded or fatal on a node, the worst first, at most 1000.",
    "node",
    "pool",
    "component",
    "severity",
    "code",
)
NODE_GPUS = _gauge(
    "gpus", "GPUs that the kubelets offer, by the worst state of their nodes.", "pool", "state"
)
QUARANTINE = _gauge(
    "quarantine_since_timestamp_seconds",
    "Since when a node has an open record, the newest 1000; state is active, or held (back by a brake).",
    "node",
    "pool",
    "kind",
    "state",
    "mode",
    "reason",
)
QUARANTINES = _gauge("quarantines", "Quarantines that are kept, ended ones too.", "kind", "state", "mode")
NETWORK_INCIDENTS = _gauge("network_incidents", "Network findings that many nodes have together.")
BRAKE_LIMIT = _gauge(
    "brake_limit",
    "What a brake allows; window is at-a-time or per-window, pool is empty for all nodes.",
    "brake",
    "window",
    "pool",
)
BRAKE_USED = _gauge("brake_used", "What of it is used.", "brake", "window", "pool")
BRAKE_HELD = _gauge("brake_held_back", "Nodes that a brake holds back now.", "brake")
UNJUDGED = _gauge(
    "fleet_unjudged",
    "1: the leader decides less than it could; why is incomplete, leases-new, agents-wait or mass-silence.",
    "why",
)
AGENTS_CLOCK = _gauge(
    "agents_clock_offset_seconds",
    "By how much the nodes' clocks are ahead of the leader's: the median of the agents heard within the last minute.",
)
# Of the queue in which the leader writes to nodes and records: what waits there is decided and not done yet.
WORKS = _gauge(
    "works",
    "Writes of the leader to nodes and their records; state is waiting, running, or resting after a failure.",
    "effect",
    "state",
)
WORKS_FAILING = _gauge(
    "works_failing", "Of these writes, those that failed when last tried and are still wanted.", "effect"
)
WORKS_OLDEST = _gauge(
    "works_oldest_seconds",
    "For how long the oldest of these writes has been in its state; 0: there is none.",
    "effect",
    "state",
)
ROUND_TIME = _histogram(
    "round_seconds",
    "Rounds of the leader, from looking to the last write; scope is all nodes or those that changed.",
    "scope",
)
FENCE_CALLS = _counter(
    "fence_calls_total",
    "Calls of the program that powers silent nodes off; outcome is off, failed, timed-out, not-started, or stopped "
    "as its node is heard again or the leadership ends.",
    "outcome",
)
EVENTS_WRITTEN = _counter("events_written_total", "Kubernetes events that were written.")
EVENTS_DROPPED = _counter("events_dropped_total", "Kubernetes events that came too fast or were refused.")
POLICIES = _gauge("policies", "JobPolicies: accepted, refused, unjudged, conflicted (accepted too).", "state")
POLICY_FAILURES = _counter(
    "policy_failures_total", "JobPolicies not judged or not told so, to be tried again."
)
UNREADABLE = _gauge(
    "records_unreadable",
    "Records that this version cannot read, or that are under the name of another.",
    "kind",
)
CONNECTIONS = _gauge(
    "transport_connections", "Connections of agents; stranger: no good token shown yet.", "state"
)
AGENTS = _gauge("transport_agents", "Nodes whose agents are remembered.")
REQUESTS = _counter("transport_requests_total", "Requests of agents that were looked at.")
REPORTS = _counter("transport_reports_total", "Reports of agents; outcome is new or repeated.", "outcome")
REFUSED = _counter("transport_refused_total", "Requests refused and connections ended, by reason.", "reason")
SLOWED = _counter("transport_slowed_total", "Answers that asked an agent for a pause.")
RECEIVED = _counter("transport_received_bytes_total", "Bodies of agents' requests.")
IN_FLIGHT = _gauge("transport_in_flight_bytes", "Bodies that wait to be whole.")
CERTIFICATE_END = _gauge(
    "certificate_expiry_timestamp_seconds", "When a certificate of the controllers ends.", "certificate"
)
CERTIFICATE_FAILURES = _counter(
    "certificate_renewal_failures_total", "Looks at the certificates that failed."
)
DEGRADED = _gauge("degraded_modes", "Degraded modes that are on now; `sentinel status` names them.")
EXCEPTIONS = _counter("exceptions_total", "Unexpected exceptions caught at a named boundary.", "place")

DECLARATIONS: tuple[Declaration, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Declaration)
)
