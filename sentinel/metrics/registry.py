"""The numbers behind what `declared` names, and the text of them for a scrape.

Counting costs a dictionary update. Text is made of what has changed since the last scrape, so that one of ten thousand
nodes and two thousand jobs holds nothing up. Not thread-safe: call it on the event loop.
"""

import platform
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

import sentinel
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.model import Budget, Cause, JobState, Lost, Symptom
from sentinel.core.reports import RankReport
from sentinel.metrics import declared, measures
from sentinel.metrics.declared import DECLARATIONS, MAX_FINDINGS, MAX_JOBS, MAX_SERIES, OTHER, Declaration
from sentinel.metrics.exposition import Family, Histogram, Key, key_of

K = TypeVar("K", bound=tuple[str, ...])

NOBODY = "nobody"  # owner of a job whose mails go to nobody
# What a leader does to nodes, records and jobs.
LEADER_EFFECTS = (
    *(
        "take-over",
        "round",
        "isolate",
        "show",
        "remove",
        "save",
        "prune",
        "order",
        "answer",
        "tell",
        "mail-record",
        "record-status",
    ),
    *("DoPrecheck", "DoSave", "DoStop", "DoStart"),
)


class JobNumbers(Struct, frozen=True, kw_only=True):
    """What is told of one job. None: not known now, and shown by no series."""

    owner: str
    policy: str
    state: JobState
    ranks: int
    gpus: int
    incidents: int
    restarts: dict[Cause, int] = {}
    phase: tuple[str, str, float] | None = None  # of the open incident: phase, cause, since when (Unix time)
    iteration: int | None = None
    iteration_wall_s: float | None = None
    step_ms: float | None = None
    hardware_ms: float | None = None
    ratio: float | None = None
    restarts_left: int | None = None
    inner_restarts: int | None = None
    time_left_s: float | None = None
    productive_s: float | None = None
    wall_s: float | None = None


_OF_A_JOB = (
    *(declared.RANKS, declared.GPUS, declared.ITERATION, declared.ITERATION_AT, declared.STEP_TIME),
    *(declared.HARDWARE_TIME, declared.RATIO, declared.RESTARTS_LEFT, declared.INNER_RESTARTS),
    *(declared.TIME_LEFT, declared.PRODUCTIVE, declared.WALL, declared.ETTR, declared.JOB_INCIDENTS),
)


def _of_a_job(job: JobNumbers) -> tuple[float | None, ...]:
    """The values of _OF_A_JOB."""
    ettr = min(1.0, (job.productive_s or 0.0) / job.wall_s) if job.wall_s else None
    return (
        *(job.ranks, job.gpus, job.iteration, job.iteration_wall_s, _seconds(job.step_ms)),
        *(_seconds(job.hardware_ms), job.ratio, job.restarts_left, job.inner_restarts),
        *(job.time_left_s, job.productive_s, job.wall_s, ettr, job.incidents),
    )


class Metrics:
    """The numbers of one process. Durations are in seconds; None means not known, and shows nothing.

    `measured` gives what the checks measured: it is asked at each scrape.
    """

    def __init__(self) -> None:
        self.measured: Callable[[], Iterable[measures.Measured]] = tuple
        self._families: dict[Declaration, Family] = {}
        self._histograms: dict[Declaration, Histogram] = {}
        for one in DECLARATIONS:
            if one.kind == "histogram":
                self._histograms[one] = Histogram(one.name, one.help, one.labels, one.buckets)
            else:
                self._families[one] = Family(one.name, one.kind, one.help, one.labels)
            if one.kind != "gauge" and not one.labels:
                self._start(one)
        self._told_of: dict[str, JobNumbers] = {}  # of each job, as it is shown
        self._set(declared.BUILD, 1.0, sentinel.__version__, platform.python_version())

    # ------------------------------------------------------------ jobs

    def jobs(self, by_state: Mapping[JobState, int]) -> None:
        """How many jobs are in each state; a state that is not named has none."""
        for state in JobState:
            self._set(declared.JOBS, by_state.get(state, 0), state)

    def job(self, name: str, job: JobNumbers) -> None:
        """A cluster's job is called NAMESPACE/KIND/NAME. Of more than MAX_JOBS only `jobs` tells."""
        before = self._told_of.get(name)
        if before is None:
            if len(self._told_of) >= MAX_JOBS:
                return
            for cause in Cause:
                self._start(declared.LOST_GPU_TIME, cause, job.owner)
        self._told_of[name] = job
        known = (None,) * len(_OF_A_JOB) if before is None else _of_a_job(before)
        for declaration, value, was in zip(_OF_A_JOB, _of_a_job(job), known, strict=True):
            if value != was:
                self._of(declaration, name, {} if value is None else {(): value})
        if before is None or (before.owner, before.policy) != (job.owner, job.policy):
            namespace, _, rest = name.partition("/")
            where = (namespace, rest.partition("/")[0]) if rest else ("", "")
            self._of(declared.JOB_INFO, name, {(*where, job.owner, job.policy): 1})
        if before is None or before.state is not job.state:
            self._of(declared.JOB_STATE, name, {(job.state.value,): 1})
        if before is None or before.phase != job.phase:
            self._of(declared.JOB_PHASE, name, {} if job.phase is None else {job.phase[:2]: job.phase[2]})
        if before is None or before.restarts != job.restarts:
            restarts: dict[Key, float] = {(cause.value,): job.restarts.get(cause, 0) for cause in Cause}
            self._of(declared.JOB_RESTARTS, name, restarts)

    def job_gone(self, name: str) -> None:
        """Forget every series of a job: no label lives longer than its job."""
        self._told_of.pop(name, None)
        for declaration, family in self._families.items():
            if declaration.labels[:1] == ("job_name",):
                family.set_of(name, {})

    def rank(self, report: RankReport) -> None:
        """What a poll of the rank's log brought. An iteration without a time is not summed up."""
        timed = [one for one in report.iterations if one.e2e_ms is not None]
        ran_ms = sum(one.e2e_ms or 0.0 for one in timed)
        hardware_ms = sum(one.hardware_ms or 0.0 for one in timed)
        key = (report.job, str(report.rank))
        for declaration, amount in (
            (declared.RANK_ITERATIONS, float(len(timed))),
            (declared.RANK_TIME, ran_ms / 1000),
            (declared.RANK_HARDWARE, hardware_ms / 1000),
        ):
            family = self._families[declaration]
            family.set(key, family.values.get(key, 0.0) + amount)
        steps = [one.step for one in report.iterations if one.step is not None]
        if steps:
            self._families[declared.RANK_STEP].set(key, steps[-1])

    def ranks_gone(self, job: str) -> None:
        """This process reads the logs of the job's ranks no more."""
        for declaration in (
            declared.RANK_STEP,
            declared.RANK_ITERATIONS,
            declared.RANK_TIME,
            declared.RANK_HARDWARE,
        ):
            family = self._families[declaration]
            for key in [key for key in family.values if key[0] == job]:
                family.set(key, None)

    # ------------------------------------------------------------ recoveries

    def incident(self, symptom: Symptom, cause: Cause, owner: str, blamed: str) -> None:
        """`blamed`: the node or GPU, "" for none."""
        self._add(declared.INCIDENTS, 1, symptom, cause)
        self._start(declared.LOST_GPU_TIME, cause, owner)
        if blamed:
            self._start(declared.BLAMED, blamed)

    def restarted(self, cause: Cause, budget: Budget) -> None:
        self._add(declared.RESTARTS, 1, cause, budget)

    def detected(self, symptom: Symptom, seconds: float) -> None:
        self._observe(declared.DETECT, seconds, symptom)

    def saved(self, seconds: float) -> None:
        self._observe(declared.SAVE, seconds)

    def stopped(self, seconds: float) -> None:
        self._observe(declared.STOP, seconds)

    def started(self, seconds: float) -> None:
        self._observe(declared.START, seconds)

    def recovered(self, cause: Cause, seconds: float, lost: Lost, owner: str, blamed: str) -> None:
        """A recovery that ended well, `seconds` after its fault, and what was lost."""
        self._observe(declared.RECOVER, seconds, cause)
        self._add(declared.LOST_STEPS, lost.steps or 0, cause)
        self._add(declared.LOST_TIME, lost.seconds, cause)
        self._add(declared.LOST_GPU_TIME, lost.gpu_seconds, cause, owner)
        if blamed:
            self._add(declared.BLAMED, lost.gpu_seconds, blamed)

    # ------------------------------------------------------------ node and logs

    def findings(self, standing: Iterable[Finding]) -> None:
        """All findings that stand now."""
        counts: dict[Key, float] = {
            (component.value, severity.value): 0 for component in Component for severity in Severity
        }
        shown: dict[Key, float] = {}
        for one in standing:
            counts[one.component.value, one.severity.value] += 1
            if len(shown) < MAX_FINDINGS:
                shown[key_of((one.component, one.entity, one.code, one.severity, one.action))] = 1.0
        self._families[declared.FINDINGS].replace(counts)
        self._families[declared.FINDING].replace(shown)

    def check(self, result: CheckResult) -> None:
        self._observe(declared.CHECK_TIME, result.took_s, result.check)
        self._add(declared.CHECK_RUNS, 1, result.check)
        self._add(declared.CHECK_FAILURES, 1 if result.state is CheckState.UNKNOWN else 0, result.check)

    def check_timeouts(self, check: str, count: int) -> None:
        """Timeouts of a check since the start."""
        self._set(declared.CHECK_TIMEOUTS, count, check)

    def controller_link(self, *, connected: bool, waiting: int, dropped: Mapping[str, int]) -> None:
        """How this node's reports fare; `dropped` by kind, since the link began."""
        self._set(declared.CONTROLLER_CONNECTED, int(connected))
        self._set(declared.REPORTS_WAITING, waiting)
        for kind, count in dropped.items():
            self._set(declared.REPORTS_DROPPED, count, kind)

    def self_fence_pods(self, count: int) -> None:
        self._set(declared.SELF_FENCE_PODS, count)

    def self_fenced(self, processes: int) -> None:
        self._add(declared.SELF_FENCED, processes)

    def check_age(self, check: str, seconds: float) -> None:
        self._set(declared.CHECK_AGE, seconds, check)

    def log_read(self, count_bytes: int) -> None:
        self._add(declared.LOG_BYTES, count_bytes)

    def log_match(self, failure: str) -> None:
        self._add(declared.LOG_MATCHES, 1, failure)

    # ------------------------------------------------------------ Sentinel itself

    def decision(self, reason: str) -> None:
        self._add(declared.DECISIONS, 1, reason)

    def fence_calls_begin(self) -> None:
        """At 0, where there is a program: the first call of each outcome is an increase then, as alerts see it."""
        for outcome in ("off", "failed", "timed-out", "not-started", "stopped"):
            self._add(declared.FENCE_CALLS, 0, outcome)

    def fence_call(self, outcome: str) -> None:
        self._add(declared.FENCE_CALLS, 1, outcome)

    def effect(self, name: str) -> None:
        self._add(declared.EFFECTS, 1, name)

    def effect_failed(self, name: str, *, permanent: bool) -> None:
        self._add(declared.EFFECT_FAILURES, 1, name, "permanent" if permanent else "temporary")

    def mails(self, about: str, *, sent: int, failed: int, given_up: int, waiting: int) -> None:
        """`about`: "jobs" or "nodes"; all but `waiting` since its notifier began."""
        self._set(declared.MAILS_SENT, sent, about)
        self._set(declared.MAILS_FAILED, failed, about)
        self._set(declared.MAILS_GIVEN_UP, given_up, about)
        self._set(declared.MAILS_WAITING, waiting, about)

    def records_saved(self, count: int = 1) -> None:
        self._add(declared.RECORDS_SAVED, count)

    def record_failed(self) -> None:
        self._add(declared.RECORD_FAILURES, 1)

    def loop_lag(self, seconds: float) -> None:
        self._set(declared.LOOP_LAG, seconds)

    def settings_read(self, outcome: str) -> None:
        """The settings were read again: "applied", "unchanged", "refused", or "restart": they count after one."""
        self._add(declared.SETTINGS_RELOADS, 1, outcome)
        self._set(declared.SETTINGS_IN_FORCE, int(outcome not in ("refused", "restart")))

    def api_request(self, method: str, outcome: str, seconds: float) -> None:
        """`outcome`: "ok", or the name of the error."""
        self._observe(declared.API_TIME, seconds, method, outcome)

    def watch(self, kind: str, *, age_s: float, synced: bool, objects: int, lists: int, breaks: int) -> None:
        """How the copy of a kind stands; the last two since the start."""
        self._set(declared.WATCH_AGE, age_s if age_s != float("inf") else None, kind)
        self._set(declared.WATCH_SYNCED, int(synced), kind)
        self._set(declared.WATCH_OBJECTS, objects, kind)
        self._set(declared.WATCH_LISTS, lists, kind)
        self._set(declared.WATCH_BREAKS, breaks, kind)

    def leading(self, leads: bool, epoch: int, left_s: float = 0.0) -> None:
        """`epoch`: of whoever leads. `left_s`: see `lease_left_seconds`."""
        self._set(declared.LEADING, int(leads))
        self._set(declared.EPOCH, epoch)
        self._set(declared.LEASE_LEFT, left_s)

    def agents_clock(self, offset_s: float | None) -> None:
        """None: too few agents are heard."""
        self._set(declared.AGENTS_CLOCK, offset_s)

    def page(self, url: str) -> None:
        """Where people open the status page."""
        self._set(declared.PAGE, 1.0, url)

    def paused(self, paused: bool) -> None:
        self._set(declared.PAUSED, int(paused))

    def leads(self) -> None:
        """This controller begins to lead. What it may count begins at 0, so that the first shows as an increase."""
        self._add(declared.LEADERSHIPS, 1)
        for cause in Cause:
            self._start(declared.RECOVER, cause)
            self._start(declared.LOST_STEPS, cause)
            self._start(declared.LOST_TIME, cause)
            for symptom in Symptom:
                self._start(declared.INCIDENTS, symptom, cause)
            for budget in Budget:
                self._start(declared.RESTARTS, cause, budget)
        for symptom in Symptom:
            self._start(declared.DETECT, symptom)
        for effect in LEADER_EFFECTS:
            self._start(declared.EFFECTS, effect)
            for kind in ("temporary", "permanent"):
                self._start(declared.EFFECT_FAILURES, effect, kind)

    def round(self, scope: str, seconds: float) -> None:
        """A round of the leader; `scope`: "all" or "changed"."""
        self._observe(declared.ROUND_TIME, seconds, scope)

    def replace(self, declaration: Declaration, series: Mapping[K, float]) -> None:
        """All series of a counter or gauge, by their labels: what is not in `series` goes.

        Of more than it may have the largest stay, and the rest is one series of `other`.
        """
        first, most = list(series.items()), declaration.most
        if len(first) > most:
            first.sort(key=lambda one: -one[1])
        shown = {key_of(key): float(value) for key, value in first[:most]}
        if len(first) > most:
            shown[(OTHER,) * len(declaration.labels)] = float(sum(value for _, value in first[most:]))
        self._families[declaration].replace(shown)

    def show(self, declaration: Declaration, series: Mapping[Key, float]) -> None:
        """All series of a gauge whose number its caller bounds."""
        self._families[declaration].replace(series)

    def degraded(self, count: int) -> None:
        self._set(declared.DEGRADED, count)

    def exception(self, place: str) -> None:
        """An unexpected exception at a named boundary: "check", "effect", "request"."""
        self._add(declared.EXCEPTIONS, 1, place)

    # ------------------------------------------------------------ rendering

    def render(self) -> bytes:
        """The text of all numbers."""
        texts = [one.text() for one in self._families.values()]
        texts += [one.text() for one in self._histograms.values()]
        return "".join(texts).encode(errors="replace") + measures.render(self.measured())

    # ------------------------------------------------------------ counting

    def _start(self, declaration: Declaration, *labels: str) -> None:
        """A counter or histogram with nothing counted: to Prometheus the first one is then an increase."""
        if declaration.kind == "histogram":
            self._histograms[declaration].start(key_of(labels))
            return
        family = self._families[declaration]
        key = _bounded(family.values, key_of(labels), declaration.most)
        if key not in family.values:
            family.set(key, 0.0)

    def _set(self, declaration: Declaration, value: float | None, *labels: str) -> None:
        self._families[declaration].set(key_of(labels), value)

    def _of(self, declaration: Declaration, job: str, values: Mapping[Key, float]) -> None:
        self._families[declaration].set_of(job, values)

    def _add(self, declaration: Declaration, amount: float, *labels: str) -> None:
        family = self._families[declaration]
        key = _bounded(family.values, key_of(labels), declaration.most)
        family.set(key, family.values.get(key, 0.0) + amount)

    def _observe(self, declaration: Declaration, value: float, *labels: str) -> None:
        histogram = self._histograms[declaration]
        histogram.observe(_bounded(histogram.values, key_of(labels), declaration.most), value)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000.0


def _bounded(series: Mapping[Key, object], key: Key, most: int) -> Key:
    """The key, or the one that stands for all more once there are so many."""
    return key if key in series or len(series) < most else (OTHER,) * len(key)


def markdown() -> str:
    """docs/metrics.md, made from the declarations."""
    lines = [
        "# Metrics",
        "",
        "Served as `/metrics` on the address that `listen` names, by jobs, agents and controllers.",
        "This page is made from the declarations:",
        "`python -m sentinel.metrics.registry > docs/metrics.md`.",
        "",
        f"A counter or histogram has at most {MAX_SERIES} series, of owners or nodes 1000; more count as `{OTHER}`.",
        "A series with the label `job_name` goes when the job is no longer protected.",
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
