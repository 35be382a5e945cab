"""What faults have cost, as the kept records of jobs tell it.

The counters of a process begin anew with each leader, and those of one that leads again go on where they stood. A sum
over records needs no memory: each leader says the same, and what an earlier one counted is never lost. It goes down as
records go.
"""

from collections import defaultdict
from collections.abc import Iterable

from sentinel.core.model import Cause, Incident, ProtectedJob, Symptom
from sentinel.core.now import Now
from sentinel.core.timing.productive import lost_run_s
from sentinel.metrics import declared
from sentinel.metrics.declared import Declaration
from sentinel.metrics.exposition import Key
from sentinel.metrics.registry import Metrics

BY_CAUSE = (
    declared.KEPT_RESTARTS,
    declared.KEPT_RECOVERIES,
    declared.KEPT_LOST_STEPS,
    declared.KEPT_LOST_TIME,
)
ALL = (
    declared.KEPT_INCIDENTS,
    *BY_CAUSE,
    declared.KEPT_LOST_GPU_TIME,
    declared.KEPT_BLAMED,
    declared.KEPT_JOB_TIME,
)
PRODUCTIVE, WALL = "productive", "wall"
NOBODY = ""  # whose sums are told as 0 where there is none: to Prometheus that is no owner


class Costs:
    """`add` each job that has a record, then `show` the sums."""

    def __init__(self) -> None:
        causes: dict[Key, float] = {(cause.value, NOBODY): 0.0 for cause in Cause}
        both: dict[Key, float] = {(symptom.value, *cause): 0.0 for symptom in Symptom for cause in causes}
        self._sums: dict[Declaration, defaultdict[Key, float]] = {one: defaultdict(float) for one in ALL}
        self._sums[declared.KEPT_INCIDENTS].update(both)
        for one in BY_CAUSE:
            self._sums[one].update(causes)

    def add(
        self, job: ProtectedJob, owner: str, gpus: int | None, incidents: Iterable[Incident], now: Now
    ) -> None:
        """`gpus`: those that it keeps busy; None: it is not followed, and only what it had at its end is known."""
        lost_s = 0.0
        for one in incidents:
            self._incident(one, owner)
            lost_s += lost_run_s(one, job.baseline_ms)
        until_s = now.wall_s
        if job.state.final:
            gpus, until_s = job.ended_gpus, job.ended_wall_s or job.created_wall_s
        if gpus:
            time = self._sums[declared.KEPT_JOB_TIME]
            time[PRODUCTIVE, owner] += gpus * max(0.0, job.run_time_s(now) - lost_s)
            time[WALL, owner] += gpus * max(0.0, until_s - job.created_wall_s)

    def _incident(self, one: Incident, owner: str) -> None:
        cause, sums = one.verdict.cause.value, self._sums
        sums[declared.KEPT_INCIDENTS][one.verdict.symptom.value, cause, owner] += 1
        if one.verdict.symptom is not Symptom.FIRST_START:
            sums[declared.KEPT_RESTARTS][cause, owner] += one.attempt
        if one.lost is None:
            return
        sums[declared.KEPT_RECOVERIES][cause, owner] += 1
        sums[declared.KEPT_LOST_STEPS][cause, owner] += one.lost.steps or 0
        sums[declared.KEPT_LOST_TIME][cause, owner] += one.lost.seconds
        sums[declared.KEPT_LOST_GPU_TIME][cause, owner] += one.lost.gpu_seconds
        if one.verdict.entity:
            sums[declared.KEPT_BLAMED][(one.verdict.entity,)] += one.lost.gpu_seconds

    def show(self, metrics: Metrics, *, time: bool = True) -> None:
        """`time`: also that of all jobs, which is not known before each of them is followed."""
        for declaration, series in self._sums.items():
            if time or declaration is not declared.KEPT_JOB_TIME:
                metrics.replace(declaration, series)


def forget(metrics: Metrics) -> None:
    """Another one leads."""
    for declaration in ALL:
        metrics.replace(declaration, {})
