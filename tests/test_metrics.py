"""Metrics as a scraper sees them: parsed back with prometheus-client's own parser."""

import re
import subprocess
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from sentinel.checks.base import Measure
from sentinel.controller.jobs import costs
from sentinel.controller.nodes import numbers as fleet_numbers
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.model import Budget, Cause, JobState, Lost, Symptom
from sentinel.core.reports import Iteration, RankReport
from sentinel.metrics import declared, exposition, measures
from sentinel.metrics.declared import DECLARATIONS, MAX_FINDINGS, MAX_JOBS, MAX_SERIES
from sentinel.metrics.exposition import Key, series
from sentinel.metrics.registry import JobNumbers, Metrics, markdown

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(metrics: Metrics) -> Samples:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return scrape(metrics).get((f"sentinel_{name}", tuple(sorted(labels.items()))))


# What is counted elsewhere, and told as a whole.
REPLACED = (
    *fleet_numbers.FLEET,
    *costs.ALL,
    declared.POLICY_FAILURES,
    declared.EVENTS_WRITTEN,
    declared.EVENTS_DROPPED,
    declared.POLICIES,
    declared.UNREADABLE,
    declared.CONNECTIONS,
    declared.AGENTS,
    declared.REQUESTS,
    declared.REPORTS,
    declared.REFUSED,
    declared.SLOWED,
    declared.RECEIVED,
    declared.IN_FLIGHT,
    declared.CERTIFICATE_END,
    declared.CERTIFICATE_FAILURES,
    declared.JOBS_HELD,
    declared.JOBS_RECOVERING,
    declared.AGENT,
)


FULL = JobNumbers(
    owner="ann@example.com",
    policy="all",
    state=JobState.RUNNING,
    ranks=4,
    gpus=8,
    incidents=2,
    restarts={Cause.GPU: 1},
    phase=("Saving", "gpu", 1.7e9),
    iteration=7,
    iteration_wall_s=1.8e9,
    step_ms=1500.0,
    hardware_ms=750.0,
    ratio=0.5,
    restarts_left=3,
    inner_restarts=2,
    time_left_s=60.0,
    productive_s=90.0,
    wall_s=100.0,
)
A = "ns/job.batch/a"


def every_call(metrics: Metrics) -> None:
    """Each public method once, with numbers that can be told apart."""
    metrics.jobs({JobState.RUNNING: 2, JobState.QUEUED: 1})
    metrics.job("ns/job.batch/a", FULL)
    metrics.rank(
        RankReport(
            job="ns/job.batch/a",
            incarnation=1,
            rank=3,
            iterations=[
                Iteration(1.0, 7, 750.0, 1500.0),
                Iteration(2.0, 8, 800.0, 1600.0),
                Iteration(3.0, 9),
            ],
        )
    )
    metrics.incident(Symptom.HANG, Cause.NETWORK, "ann@example.com", "node-1")
    metrics.restarted(Cause.GPU, Budget.INFRASTRUCTURE)
    metrics.detected(Symptom.HANG, 1.5)
    metrics.saved(20.0)
    metrics.stopped(0.2)
    metrics.started(0.3)
    lost = Lost(steps=12, seconds=33.0, gpu_seconds=264.0)
    metrics.recovered(Cause.GPU, 40.0, lost, "ann@example.com", "node-1")
    metrics.findings(
        [
            Finding(
                check="kmsg",
                component=Component.GPU,
                entity="GPU 0",
                code="XID 79",
                severity=Severity.FATAL,
                action="RESTART_BM",
                summary="gone",
            )
        ]
    )
    metrics.check(CheckResult(check="disk", state=CheckState.UNKNOWN, took_s=0.02))
    metrics.log_read(4096)
    metrics.log_match("nccl-timeout")
    metrics.decision("NoRoom")
    metrics.effect("start")
    metrics.effect_failed("start", permanent=False)
    metrics.mails("jobs", sent=1, failed=3, given_up=4, waiting=2)
    metrics.paused(True)
    metrics.page("https://sentinel.example")
    metrics.records_saved(3)
    metrics.record_failed()
    metrics.check_timeouts("nvml", 1)
    metrics.check_age("nvml", 3.0)
    metrics.loop_lag(0.1)
    metrics.settings_read("refused")
    metrics.controller_link(connected=True, waiting=5, dropped={"event": 6})
    metrics.self_fence_pods(3)
    metrics.self_fenced(9)
    metrics.api_request("PATCH", "ok", 0.004)
    metrics.watch("nodes", age_s=3.0, synced=True, objects=7, lists=2, breaks=4)
    metrics.leading(True, 12, 8.5)
    metrics.leads()
    metrics.round("all", 0.02)
    metrics.fence_call("timed-out")
    for number, declaration in enumerate(REPLACED, 40):
        metrics.replace(declaration, {declaration.labels: number})
    metrics.degraded(1)
    metrics.exception("effect")


@pytest.mark.parametrize(
    ("expected", "name", "labels"),
    [
        (2, "jobs", {"state": "running"}),
        (0, "jobs", {"state": "error"}),
        (7, "job_iteration", {"job_name": A}),
        (1.5, "job_step_time_seconds", {"job_name": A}),
        (0.75, "job_hardware_time_seconds", {"job_name": A}),
        (0.5, "job_hardware_ratio", {"job_name": A}),
        (3, "job_restarts_left", {"job_name": A}),
        (2, "job_inner_restarts", {"job_name": A}),
        (60, "job_time_left_seconds", {"job_name": A}),
        (90, "job_productive_seconds", {"job_name": A}),
        (100, "job_wall_seconds", {"job_name": A}),
        (0.9, "job_ettr_ratio", {"job_name": A}),
        (4, "job_ranks", {"job_name": A}),
        (8, "job_gpus", {"job_name": A}),
        (1.8e9, "job_last_iteration_timestamp_seconds", {"job_name": A}),
        (2, "job_incidents_total", {"job_name": A}),
        (1, "job_restarts_total", {"job_name": A, "cause": "gpu"}),
        (0, "job_restarts_total", {"job_name": A, "cause": "network"}),
        (1, "job_state", {"job_name": A, "state": "running"}),
        (1.7e9, "job_phase_since_timestamp_seconds", {"job_name": A, "phase": "Saving", "cause": "gpu"}),
        (9, "rank_iteration", {"job_name": A, "rank": "3"}),
        (2, "rank_iterations_total", {"job_name": A, "rank": "3"}),
        (3.1, "rank_step_seconds_total", {"job_name": A, "rank": "3"}),
        (1.55, "rank_hardware_seconds_total", {"job_name": A, "rank": "3"}),
        (0, "lost_gpu_seconds_total", {"cause": "network", "owner": "ann@example.com"}),
        (264, "node_lost_gpu_seconds_total", {"node": "node-1"}),
        (1, "incidents_total", {"symptom": "hang", "cause": "network"}),
        (1, "restarts_total", {"cause": "gpu", "budget": "infrastructure"}),
        (1.5, "time_to_detect_seconds_sum", {"symptom": "hang"}),
        (0, "time_to_detect_seconds_bucket", {"symptom": "hang", "le": "1.0"}),
        (1, "time_to_detect_seconds_bucket", {"symptom": "hang", "le": "2.5"}),
        (1, "time_to_detect_seconds_bucket", {"symptom": "hang", "le": "+Inf"}),
        (20, "time_to_save_seconds_sum", {}),
        (1, "time_to_stop_seconds_count", {}),
        (0.3, "time_to_start_seconds_sum", {}),
        (40, "time_to_recover_seconds_sum", {"cause": "gpu"}),
        (12, "lost_steps_total", {"cause": "gpu"}),
        (33, "lost_seconds_total", {"cause": "gpu"}),
        (264, "lost_gpu_seconds_total", {"cause": "gpu", "owner": "ann@example.com"}),
        (1, "findings", {"component": "gpu", "severity": "fatal"}),
        (0, "findings", {"component": "disk", "severity": "warning"}),
        (0.02, "check_duration_seconds_sum", {"check": "disk"}),
        (1, "check_failures_total", {"check": "disk"}),
        (4096, "log_read_bytes_total", {}),
        (1, "log_matches_total", {"failure": "nccl-timeout"}),
        (1, "decisions_total", {"reason": "NoRoom"}),
        (1, "effects_total", {"effect": "start"}),
        (1, "effect_failures_total", {"effect": "start", "kind": "temporary"}),
        (1, "mails_sent_total", {"about": "jobs"}),
        (3, "mail_failures_total", {"about": "jobs"}),
        (4, "mails_given_up_total", {"about": "jobs"}),
        (2, "mails_waiting", {"about": "jobs"}),
        (1, "paused", {}),
        (8.5, "lease_left_seconds", {}),
        (3, "records_saved_total", {}),
        (1, "record_save_failures_total", {}),
        (1, "controller_connected", {}),
        (5, "reports_waiting", {}),
        (6, "reports_dropped_total", {"kind": "event"}),
        (3, "self_fence_pods", {}),
        (9, "self_fenced_processes_total", {}),
        (1, "api_request_seconds_count", {"method": "PATCH", "outcome": "ok"}),
        (3, "watch_age_seconds", {"kind": "nodes"}),
        (1, "watch_synced", {"kind": "nodes"}),
        (7, "watch_objects", {"kind": "nodes"}),
        (2, "watch_lists_total", {"kind": "nodes"}),
        (4, "watch_breaks_total", {"kind": "nodes"}),
        (1, "leading", {}),
        (12, "leader_epoch", {}),
        (1, "leaderships_total", {}),
        (0.02, "round_seconds_sum", {"scope": "all"}),
        (1, "fence_calls_total", {"outcome": "timed-out"}),
        (40, "nodes", {"pool": "pool", "state": "state"}),
        (64, "events_written_total", {}),
        (1, "degraded_modes", {}),
        (1, "exceptions_total", {"place": "effect"}),
    ],
)
def test_each_number_is_told_under_its_name(expected: float, name: str, labels: dict[str, str]) -> None:
    metrics = Metrics()
    every_call(metrics)
    assert value(metrics, name, **labels) == expected


def test_every_declared_metric_can_get_a_value() -> None:
    metrics = Metrics()
    every_call(metrics)
    told = {name for name, _ in scrape(metrics)}
    silent = [
        item.name
        for item in DECLARATIONS
        if not told & {item.name, f"{item.name}_count", f"{item.name}_total"}
    ]
    assert silent == []


def test_counters_without_labels_start_at_zero_so_that_the_first_increase_shows() -> None:
    assert value(Metrics(), "records_saved_total") == 0
    assert value(Metrics(), "time_to_save_seconds_count") == 0


def test_what_a_leader_may_count_begins_at_zero_too() -> None:
    metrics = Metrics()
    metrics.leads()
    assert value(metrics, "incidents_total", symptom="hang", cause="network") == 0
    assert value(metrics, "restarts_total", cause="gpu", budget="free") == 0
    assert value(metrics, "effect_failures_total", effect="isolate", kind="permanent") == 0
    assert value(metrics, "time_to_recover_seconds_count", cause="gpu") == 0
    metrics.incident(Symptom.HANG, Cause.NETWORK, "ann@example.com", "node-1")
    assert value(metrics, "lost_gpu_seconds_total", cause="network", owner="ann@example.com") == 0
    assert value(metrics, "node_lost_gpu_seconds_total", node="node-1") == 0


def test_a_number_that_is_not_known_is_not_told() -> None:
    metrics = Metrics()
    metrics.job(A, FULL)
    metrics.job(A, structs.replace(FULL, iteration=8, ratio=None, phase=None, state=JobState.ERROR))
    assert value(metrics, "job_iteration", job_name=A) == 8
    told = {(name, dict(labels).get("state")) for name, labels in scrape(metrics)}
    assert not {name for name, _ in told} & {
        "sentinel_job_hardware_ratio",
        "sentinel_job_phase_since_timestamp_seconds",
    }
    assert {state for name, state in told if name == "sentinel_job_state"} == {"error"}


def test_no_series_of_a_job_outlives_it() -> None:
    metrics = Metrics()
    every_call(metrics)
    metrics.job("b", FULL)
    metrics.job_gone(A)
    metrics.ranks_gone(A)
    jobs = {dict(labels).get("job_name") for _, labels in scrape(metrics)}
    assert jobs == {None, "b"}


def test_so_many_jobs_have_series_and_not_more() -> None:
    metrics = Metrics()
    for number in range(MAX_JOBS + 3):
        metrics.job(f"ns/job.batch/{number}", FULL)
    assert sum(name == "sentinel_job_state" for name, _ in scrape(metrics)) == MAX_JOBS
    metrics.job_gone("ns/job.batch/0")
    metrics.job("ns/job.batch/new", FULL)
    assert value(metrics, "job_gpus", job_name="ns/job.batch/new") == 8


def test_a_label_out_of_control_cannot_grow_without_bound() -> None:
    metrics = Metrics()
    for number in range(10 * MAX_SERIES):
        metrics.log_match(f"rule-{number}")
    matches = {
        labels: v for (name, labels), v in scrape(metrics).items() if name == "sentinel_log_matches_total"
    }
    assert len(matches) == MAX_SERIES + 1
    assert sum(matches.values()) == 10 * MAX_SERIES


def test_of_numbers_that_are_told_as_a_whole_the_largest_stay_and_none_is_lost() -> None:
    metrics = Metrics()
    metrics.replace(declared.FLEET_FINDINGS, {("gpu", "fatal", "gone"): 1})
    series = {("gpu", "fatal", f"XID {number}"): number for number in range(2 * MAX_SERIES)}
    metrics.replace(declared.FLEET_FINDINGS, series)
    told = {labels: v for (name, labels), v in scrape(metrics).items() if name == "sentinel_fleet_findings"}
    assert len(told) == MAX_SERIES + 1
    assert sum(told.values()) == sum(series.values())
    assert value(metrics, "fleet_findings", component="gpu", severity="fatal", code="gone") is None
    assert value(metrics, "fleet_findings", component="gpu", severity="fatal", code="XID 255") == 255


def test_findings_are_series_of_a_bounded_number_and_end_with_the_finding() -> None:
    metrics = Metrics()
    many = [
        Finding(
            check="kernel",
            component=Component.GPU,
            entity=f"GPU {number}",
            code="XID 79",
            severity=Severity.FATAL,
            action="RESTART_BM",
            summary="",
        )
        for number in range(10 * MAX_FINDINGS)
    ]
    metrics.findings(many)
    assert sum(name == "sentinel_finding" for name, _ in scrape(metrics)) == MAX_FINDINGS
    assert value(metrics, "findings", component="gpu", severity="fatal") == len(many)
    metrics.findings(many[:1])
    assert [dict(labels)["entity"] for name, labels in scrape(metrics) if name == "sentinel_finding"] == [
        "GPU 0"
    ]


def test_measures_keep_their_names_and_cannot_forge_lines() -> None:
    metrics = Metrics()
    metrics.measured = lambda: [
        Measure("DCGM_FI_DEV_GPU_TEMP", (("gpu", "0"), ("UUID", 'x"} 1\nforged 1')), 40.0),
        Measure("new_name", (), 0.5),
        Measure("DCGM_FI_DEV_GPU_TEMP", (("gpu", "1"),), float("nan")),
    ]
    text = metrics.render().decode()
    found = {name: labels for name, labels in scrape(metrics) if name.startswith(("DCGM", "new", "forged"))}
    assert found.keys() == {"DCGM_FI_DEV_GPU_TEMP", "new_name"}
    assert text.count("# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n") == 1
    assert "# TYPE new_name untyped\nnew_name 0.5\n" in text
    assert 'DCGM_FI_DEV_GPU_TEMP{gpu="1"} NaN\n' in text


def test_label_values_from_outside_cannot_forge_lines() -> None:
    metrics = Metrics()
    metrics.decision('x"} 1\nsentinel_forged 1')
    assert value(metrics, "forged") is None
    assert value(metrics, "decisions_total", reason='x"} 1\nsentinel_forged 1') == 1


def test_names_follow_the_conventions() -> None:
    """https://prometheus.io/docs/practices/naming/: base units as suffix, counters end in _total."""
    for item in DECLARATIONS:
        assert re.fullmatch(r"sentinel_[a-z][a-z_]*", item.name), item.name
        assert item.name.endswith("_total") == (item.kind == "counter"), item.name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)(_|$)", item.name), item.name
        assert item.help.endswith("."), item.name
        assert item.kind != "histogram" or (item.name.endswith("_seconds") and item.buckets)
    names = [item.name for item in DECLARATIONS]
    assert len(set(names)) == len(names)


def test_every_public_constant_of_the_module_is_in_the_table() -> None:
    assert {id(v) for v in vars(declared).values() if isinstance(v, declared.Declaration)} == {
        id(item) for item in DECLARATIONS
    }


def test_what_sets_a_metric_is_called_somewhere(repo: Path) -> None:
    code = "\n".join(
        file.read_text("utf-8") for file in (repo / "sentinel").rglob("*.py") if file.name != "registry.py"
    )
    methods = [name for name, value in vars(Metrics).items() if callable(value) and not name.startswith("_")]
    assert [name for name in methods if f".{name}" not in code] == []


def test_the_documentation_says_what_is_declared(repo: Path) -> None:
    """Made by: make generated"""
    assert (repo / "docs" / "metrics.md").read_text("utf-8") == markdown()


def test_what_was_told_before_is_told_again_only_as_it_changed() -> None:
    """Text is kept between scrapes: no change may be missed."""
    metrics = Metrics()
    every_call(metrics)
    first = metrics.render()
    assert metrics.render() == first
    metrics.job(A, structs.replace(FULL, iteration=8))
    metrics.detected(Symptom.HANG, 3.0)
    metrics.decision("NoRoom")
    assert value(metrics, "job_iteration", job_name=A) == 8
    assert value(metrics, "time_to_detect_seconds_count", symptom="hang") == 2
    assert value(metrics, "decisions_total", reason="NoRoom") == 2
    assert len(metrics.render().splitlines()) == len(first.splitlines())


def test_only_the_lines_of_series_that_changed_are_made_for_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    made: list[Key] = []

    def counted(name: str, labels: tuple[str, ...], key: Key) -> str:
        made.append(key)
        return series(name, labels, key)

    monkeypatch.setattr(exposition, "series", counted)
    jobs = [f"ns/job.batch/{number}" for number in range(100)]
    for name in jobs:
        metrics.job(name, FULL)
    metrics.decision("NoRoom")
    metrics.detected(Symptom.HANG, 3.0)
    first = metrics.render()
    assert len(made) > 1000

    made.clear()
    for name in jobs:
        metrics.job(name, FULL)
    assert metrics.render() == first
    assert made == []

    metrics.job(jobs[7], structs.replace(FULL, iteration=8))
    metrics.decision("NoRoom")
    metrics.render()
    assert made == [(jobs[7],), ("NoRoom",)]

    made.clear()
    metrics.detected(Symptom.HANG, 3.0)
    metrics.render()
    buckets = declared.DETECT.buckets
    assert len(made) == len(buckets) + 3, "of a histogram every bucket with these labels, +Inf, sum and count"
    assert {key[0] for key in made} == {"hang"}


def promtool(text: bytes) -> list[str]:
    """What `promtool check metrics` complains of."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=180)
    return done.stderr.decode().splitlines() + done.stdout.decode().splitlines()


def test_promtool_has_no_complaint_of_any_metric_of_sentinel() -> None:
    metrics = Metrics()
    every_call(metrics)
    metrics.leads()
    assert promtool(metrics.render()) == []


def test_promtool_complains_of_no_name_of_a_measure_but_of_those_that_other_exporters_chose() -> None:
    metrics = Metrics()
    metrics.measured = lambda: [
        Measure(name, tuple((label, "x") for label in row.labels), 1.0)
        for name, row in measures.rows().items()
    ]
    ours = {name for name, row in measures.rows().items() if row.source == ""}
    assert ours
    assert [line for line in promtool(metrics.render()) if line.split(" ", 1)[0] in ours] == []
