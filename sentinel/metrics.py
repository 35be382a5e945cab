"""Every metric of Sentinel, declared once in DECLARATIONS, and the numbers behind them.

The numbers live in plain dictionaries, so counting costs one dictionary update and a job's series go
when the job goes. prometheus-client is imported by the first scrape and not before: a Sentinel that
nobody scrapes pays neither its memory (4 MB) nor its start-up time. Not thread-safe: call it on the
event loop.
"""

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

import sentinel
from sentinel import measures
from sentinel.core.model import (
    Budget,
    Cause,
    CheckResult,
    CheckState,
    Component,
    Finding,
    JobState,
    Lost,
    Severity,
    Symptom,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

# Prometheus text format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# A counter or histogram has at most so many series; more are counted as "other". The largest that is an
# enumeration, incidents by symptom and cause, has 81.
MAX_SERIES = 128
MAX_FINDINGS = 200  # series of `sentinel_finding`; `sentinel_findings` counts all
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


def _counter(name: str, text: str, *labels: str) -> Declaration:
    return Declaration(name=f"sentinel_{name}", kind="counter", help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Declaration:
    return Declaration(name=f"sentinel_{name}", kind="gauge", help=text, labels=labels)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Declaration:
    return Declaration(name=f"sentinel_{name}", kind="histogram", help=text, labels=labels, buckets=buckets)


BUILD = _gauge("build_info", "Always 1; the labels name the running version.", "version", "python")
JOBS = _gauge("jobs", "Protected jobs by state.", "state")
ITERATION = _gauge("job_iteration", "Newest iteration (training step) that a rank of the job printed.", "job")
STEP_TIME = _gauge("job_step_time_seconds", "Median end-to-end time of an iteration of the job.", "job")
HARDWARE_TIME = _gauge("job_hardware_time_seconds", "Median hardware time of an iteration of the job.", "job")
RATIO = _gauge("job_hardware_ratio", "Hardware time / end-to-end time of the job's iterations, 0..1.", "job")
RESTARTS_LEFT = _gauge("job_restarts_left", "Restarts that the job's budget still allows.", "job")
TIME_LEFT = _gauge("job_time_left_seconds", "Run time left of the job's maxDuration.", "job")
PRODUCTIVE = _counter(
    "job_productive_seconds_total", "Time in which the job made iterations that count.", "job"
)
WALL = _counter("job_wall_seconds_total", "Time since the job's first start.", "job")
ETTR = _gauge(
    "job_ettr_ratio", "Effective training time: productive time / wall time of the job, 0..1.", "job"
)
RESTARTS = _counter(
    "restarts_total", "Restarts of jobs, by the cause and the budget it was charged to.", "cause", "budget"
)
INCIDENTS = _counter("incidents_total", "Incidents opened, by symptom and cause.", "symptom", "cause")
DETECT = _histogram("time_to_detect_seconds", "From a fault's first trace to its incident.", "symptom")
SAVE = _histogram("time_to_save_seconds", "From the save signal to its proof or its time limit.")
STOP = _histogram("time_to_stop_seconds", "From the order to stop a job to its last process gone.")
START = _histogram("time_to_start_seconds", "From the order to start a job to all its ranks running.")
RECOVER = _histogram("time_to_recover_seconds", "From the fault to the first new iteration.", "cause")
LOST_STEPS = _counter("lost_steps_total", "Iterations that had to be repeated.", "cause")
LOST_TIME = _counter(
    "lost_seconds_total", "Time without progress, from the fault to the first new iteration.", "cause"
)
LOST_GPU_TIME = _counter("lost_gpu_seconds_total", "The same, multiplied by the job's GPUs.", "cause")
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
    "settings_in_force", "1: the settings file as it is now is in force; 0: it was refused, an older one is."
)
SETTINGS_RELOADS = _counter(
    "settings_reloads_total", "Settings read again; outcome is applied, unchanged or refused.", "outcome"
)
CONTROLLER_CONNECTED = _gauge(
    "controller_connected", "1: a controller takes the reports of this node; 0: none does."
)
REPORTS_WAITING = _gauge("reports_waiting", "Reports that no controller has taken yet.")
REPORTS_DROPPED = _counter(
    "reports_dropped_total", "Reports that this node had to give up; kind is progress or event.", "kind"
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
MAILS_SENT = _counter("mails_sent_total", "Mails that a server (or the outbox) took.")
MAILS_FAILED = _counter("mail_failures_total", "Attempts to send a mail that failed.")
MAILS_WAITING = _gauge("mails_waiting", "Mails that wait for their next attempt.")
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
LEADING = _gauge("leading", "1: this controller leads; 0: it stands by.")
EPOCH = _gauge("leader_epoch", "Counts the controllers that have led.")
DEGRADED = _gauge("degraded_modes", "Degraded modes that are on now; `sentinel status` names them.")
EXCEPTIONS = _counter("exceptions_total", "Unexpected exceptions caught at a named boundary.", "place")

DECLARATIONS: tuple[Declaration, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Declaration)
)


class Histogram:
    """Counts per bucket (not cumulated; the last is +Inf) and the sum of what was observed."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum = 0.0


class Metrics:
    """The numbers of one process. Durations are in seconds; None means not known, and shows nothing.

    `measured` gives what the checks measured: it is asked at each scrape.
    """

    def __init__(self) -> None:
        self.measured: Callable[[], Iterable[measures.Measured]] = tuple
        self._values: dict[Declaration, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[Declaration, dict[tuple[str, ...], Histogram]] = {}
        for declaration in DECLARATIONS:
            if declaration.kind == "histogram":
                self._histograms[declaration] = {}
            else:
                self._values[declaration] = {}
            if declaration.kind != "gauge" and not declaration.labels:
                # Counters start at 0, so that the first increase is an increase to Prometheus.
                self._start(declaration)
        self._registry: CollectorRegistry | None = None
        self._set(BUILD, 1.0, sentinel.__version__, platform.python_version())

    # ------------------------------------------------------------ jobs

    def jobs(self, by_state: Mapping[JobState, int]) -> None:
        """How many jobs are in each state; a state that is not named has none."""
        for state in JobState:
            self._set(JOBS, by_state.get(state, 0), state)

    def job(
        self,
        name: str,
        *,
        iteration: int | None = None,
        step_ms: float | None = None,
        hardware_ms: float | None = None,
        ratio: float | None = None,
        restarts_left: int | None = None,
        time_left_s: float | None = None,
    ) -> None:
        """The live numbers of a job. A number that is None is not known now, and its series goes."""
        self._set(ITERATION, iteration, name)
        self._set(STEP_TIME, None if step_ms is None else step_ms / 1000.0, name)
        self._set(HARDWARE_TIME, None if hardware_ms is None else hardware_ms / 1000.0, name)
        self._set(RATIO, ratio, name)
        self._set(RESTARTS_LEFT, restarts_left, name)
        self._set(TIME_LEFT, time_left_s, name)

    def job_time(self, name: str, *, productive_s: float, wall_s: float) -> None:
        """Productive and wall time of a job since its first start; their quotient is its ETTR."""
        self._set(PRODUCTIVE, productive_s, name)
        self._set(WALL, wall_s, name)
        self._set(ETTR, min(1.0, productive_s / wall_s) if wall_s > 0 else None, name)

    def job_gone(self, name: str) -> None:
        """Forget every series of a job: no label lives longer than its job."""
        for declaration, series in self._values.items():
            if declaration.labels == ("job",):
                series.pop((name,), None)

    # ------------------------------------------------------------ recoveries

    def incident(self, symptom: Symptom, cause: Cause) -> None:
        self._add(INCIDENTS, 1, symptom, cause)

    def restarted(self, cause: Cause, budget: Budget) -> None:
        self._add(RESTARTS, 1, cause, budget)

    def detected(self, symptom: Symptom, seconds: float) -> None:
        self._observe(DETECT, seconds, symptom)

    def saved(self, seconds: float) -> None:
        self._observe(SAVE, seconds)

    def stopped(self, seconds: float) -> None:
        self._observe(STOP, seconds)

    def started(self, seconds: float) -> None:
        self._observe(START, seconds)

    def recovered(self, cause: Cause, seconds: float, lost: Lost | None = None) -> None:
        """A recovery that ended well, `seconds` after its fault, and what was lost."""
        self._observe(RECOVER, seconds, cause)
        if lost is not None:
            self._add(LOST_STEPS, lost.steps or 0, cause)
            self._add(LOST_TIME, lost.seconds, cause)
            self._add(LOST_GPU_TIME, lost.gpu_seconds, cause)

    # ------------------------------------------------------------ node and logs

    def findings(self, standing: Iterable[Finding]) -> None:
        """All findings that stand now."""
        for component in Component:
            for severity in Severity:
                self._set(FINDINGS, 0, component, severity)
        series = self._values[FINDING]
        series.clear()
        for finding in standing:
            self._values[FINDINGS][(finding.component.value, finding.severity.value)] += 1
            if len(series) < MAX_FINDINGS:
                self._set(
                    FINDING,
                    1,
                    finding.component,
                    finding.entity,
                    finding.code,
                    finding.severity,
                    finding.action,
                )

    def check(self, result: CheckResult) -> None:
        self._observe(CHECK_TIME, result.took_s, result.check)
        self._add(CHECK_RUNS, 1, result.check)
        self._add(CHECK_FAILURES, 1 if result.state is CheckState.UNKNOWN else 0, result.check)

    def check_timeouts(self, check: str, count: int) -> None:
        """Timeouts of a check since the start."""
        self._set(CHECK_TIMEOUTS, count, check)

    def controller_link(self, *, connected: bool, waiting: int, dropped: Mapping[str, int]) -> None:
        """How this node's reports fare; `dropped` by kind, since the link began."""
        self._set(CONTROLLER_CONNECTED, int(connected))
        self._set(REPORTS_WAITING, waiting)
        for kind, count in dropped.items():
            self._set(REPORTS_DROPPED, count, kind)

    def check_age(self, check: str, seconds: float) -> None:
        self._set(CHECK_AGE, seconds, check)

    def log_read(self, count_bytes: int) -> None:
        self._add(LOG_BYTES, count_bytes)

    def log_match(self, failure: str) -> None:
        self._add(LOG_MATCHES, 1, failure)

    # ------------------------------------------------------------ Sentinel itself

    def decision(self, reason: str) -> None:
        self._add(DECISIONS, 1, reason)

    def effect(self, name: str) -> None:
        self._add(EFFECTS, 1, name)

    def effect_failed(self, name: str, *, permanent: bool) -> None:
        self._add(EFFECT_FAILURES, 1, name, "permanent" if permanent else "temporary")

    def mail_sent(self) -> None:
        self._add(MAILS_SENT, 1)

    def mail_failed(self) -> None:
        self._add(MAILS_FAILED, 1)

    def mails_waiting(self, count: int) -> None:
        self._set(MAILS_WAITING, count)

    def records_saved(self, count: int = 1) -> None:
        self._add(RECORDS_SAVED, count)

    def record_failed(self) -> None:
        self._add(RECORD_FAILURES, 1)

    def loop_lag(self, seconds: float) -> None:
        self._set(LOOP_LAG, seconds)

    def settings_read(self, outcome: str) -> None:
        """The settings were read again: "applied", "unchanged" or "refused"."""
        self._add(SETTINGS_RELOADS, 1, outcome)
        self._set(SETTINGS_IN_FORCE, 0 if outcome == "refused" else 1)

    def api_request(self, method: str, outcome: str, seconds: float) -> None:
        """`outcome`: "ok", or the name of the error."""
        self._observe(API_TIME, seconds, method, outcome)

    def watch(self, kind: str, *, age_s: float, synced: bool, objects: int, lists: int, breaks: int) -> None:
        """How the copy of a kind stands; the last two since the start."""
        self._set(WATCH_AGE, age_s if age_s != float("inf") else None, kind)
        self._set(WATCH_SYNCED, int(synced), kind)
        self._set(WATCH_OBJECTS, objects, kind)
        self._set(WATCH_LISTS, lists, kind)
        self._set(WATCH_BREAKS, breaks, kind)

    def leading(self, leads: bool, epoch: int) -> None:
        """`epoch`: of whoever leads."""
        self._set(LEADING, int(leads))
        self._set(EPOCH, epoch)

    def degraded(self, count: int) -> None:
        self._set(DEGRADED, count)

    def exception(self, place: str) -> None:
        """An unexpected exception at a named boundary: "check", "effect", "request"."""
        self._add(EXCEPTIONS, 1, place)

    # ------------------------------------------------------------ rendering

    def render(self) -> bytes:
        """The text format 0.0.4 of all numbers. The first call imports prometheus-client (about 20 ms)."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)  # a collector by duck type
        return generate_latest(self._registry) + measures.render(self.measured())

    def collect(self) -> "Iterator[Metric]":
        """The collector protocol of prometheus-client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for declaration in DECLARATIONS:
            name, text, labels = declaration.name, declaration.help, declaration.labels
            if declaration.kind == "histogram":
                histogram = HistogramMetricFamily(name, text, labels=labels)
                for key, observed in self._histograms[declaration].items():
                    histogram.add_metric(key, _cumulated(declaration.buckets, observed), observed.sum)
                yield histogram
                continue
            family = CounterMetricFamily if declaration.kind == "counter" else GaugeMetricFamily
            metric = family(name, text, labels=labels)
            for key, value in self._values[declaration].items():
                metric.add_metric(key, value)
            yield metric

    # ------------------------------------------------------------ counting

    def _start(self, declaration: Declaration) -> None:
        if declaration.kind == "histogram":
            self._histograms[declaration][()] = Histogram(len(declaration.buckets))
        else:
            self._values[declaration][()] = 0.0

    def _set(self, declaration: Declaration, value: float | None, *labels: str) -> None:
        series = self._values[declaration]
        key = _key(labels)
        if value is None:
            series.pop(key, None)
        else:
            series[key] = float(value)

    def _add(self, declaration: Declaration, amount: float, *labels: str) -> None:
        series = self._values[declaration]
        key = _bounded(series, _key(labels))
        series[key] = series.get(key, 0.0) + amount

    def _observe(self, declaration: Declaration, value: float, *labels: str) -> None:
        series = self._histograms[declaration]
        key = _bounded(series, _key(labels))
        if key not in series:
            series[key] = Histogram(len(declaration.buckets))
        value = max(0.0, value)
        series[key].counts[bisect_left(declaration.buckets, value)] += 1
        series[key].sum += value


def _key(labels: tuple[str, ...]) -> tuple[str, ...]:
    # str() of a StrEnum member is its value, but a dictionary key must not keep the member itself.
    return tuple(str(label.value) if isinstance(label, Enum) else str(label) for label in labels)


def _bounded(series: Mapping[tuple[str, ...], object], key: tuple[str, ...]) -> tuple[str, ...]:
    """The key, or the one that stands for all more once there are MAX_SERIES."""
    return key if key in series or len(series) < MAX_SERIES else (OTHER,) * len(key)


def _cumulated(buckets: tuple[float, ...], observed: Histogram) -> list[tuple[str, float]]:
    total = 0
    rows = []
    for bound, count in zip((*buckets, float("inf")), observed.counts, strict=True):
        total += count
        rows.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return rows


def markdown() -> str:
    """docs/metrics.md, made from the declarations."""
    lines = [
        "# Metrics",
        "",
        "Served as `/metrics` on the address that `listen` names. This page is made from the declarations:",
        "`python -m sentinel.metrics > docs/metrics.md`.",
        "",
        f"A counter or histogram has at most {MAX_SERIES} series; more are counted as `{OTHER}`.",
        "A series with the label `job` goes when the job is no longer protected.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for item in DECLARATIONS:
        labels = ", ".join(f"`{label}`" for label in item.labels)
        lines.append(f"| `{item.name}` | {item.kind} | {labels} | {item.help} |")
    return "\n".join(lines) + "\n" + measures.markdown()


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())
