"""Metrics as a scraper sees them: parsed back with prometheus-client's own parser."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sentinel import metrics as declared
from sentinel.checks.base import Measure
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
from sentinel.metrics import DECLARATIONS, MAX_FINDINGS, MAX_SERIES, Metrics, markdown

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


def every_call(metrics: Metrics) -> None:
    """Each public method once, with numbers that can be told apart."""
    metrics.jobs({JobState.RUNNING: 2, JobState.QUEUED: 1})
    metrics.job(
        "a", iteration=7, step_ms=1500.0, hardware_ms=750.0, ratio=0.5, restarts_left=3, time_left_s=60.0
    )
    metrics.job_time("a", productive_s=90.0, wall_s=100.0)
    metrics.incident(Symptom.HANG, Cause.NETWORK)
    metrics.restarted(Cause.GPU, Budget.INFRASTRUCTURE)
    metrics.detected(Symptom.HANG, 1.5)
    metrics.saved(20.0)
    metrics.stopped(0.2)
    metrics.started(0.3)
    metrics.recovered(Cause.GPU, 40.0, Lost(steps=12, seconds=33.0, gpu_seconds=264.0))
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
    metrics.mail_sent()
    metrics.mail_failed()
    metrics.mails_waiting(2)
    metrics.records_saved(3)
    metrics.record_failed()
    metrics.check_timeouts("nvml", 1)
    metrics.check_age("nvml", 3.0)
    metrics.loop_lag(0.1)
    metrics.settings_read("refused")
    metrics.controller_link(connected=True, waiting=5, dropped={"event": 6})
    metrics.api_request("PATCH", "ok", 0.004)
    metrics.watch("nodes", age_s=3.0, synced=True, objects=7, lists=2, breaks=4)
    metrics.leading(True, 12)
    metrics.degraded(1)
    metrics.exception("effect")


@pytest.mark.parametrize(
    ("expected", "name", "labels"),
    [
        (2, "jobs", {"state": "running"}),
        (0, "jobs", {"state": "error"}),
        (7, "job_iteration", {"job": "a"}),
        (1.5, "job_step_time_seconds", {"job": "a"}),
        (0.75, "job_hardware_time_seconds", {"job": "a"}),
        (0.5, "job_hardware_ratio", {"job": "a"}),
        (3, "job_restarts_left", {"job": "a"}),
        (60, "job_time_left_seconds", {"job": "a"}),
        (90, "job_productive_seconds_total", {"job": "a"}),
        (100, "job_wall_seconds_total", {"job": "a"}),
        (0.9, "job_ettr_ratio", {"job": "a"}),
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
        (264, "lost_gpu_seconds_total", {"cause": "gpu"}),
        (1, "findings", {"component": "gpu", "severity": "fatal"}),
        (0, "findings", {"component": "disk", "severity": "warning"}),
        (0.02, "check_duration_seconds_sum", {"check": "disk"}),
        (1, "check_failures_total", {"check": "disk"}),
        (4096, "log_read_bytes_total", {}),
        (1, "log_matches_total", {"failure": "nccl-timeout"}),
        (1, "decisions_total", {"reason": "NoRoom"}),
        (1, "effects_total", {"effect": "start"}),
        (1, "effect_failures_total", {"effect": "start", "kind": "temporary"}),
        (1, "mails_sent_total", {}),
        (1, "mail_failures_total", {}),
        (2, "mails_waiting", {}),
        (3, "records_saved_total", {}),
        (1, "record_save_failures_total", {}),
        (1, "controller_connected", {}),
        (5, "reports_waiting", {}),
        (6, "reports_dropped_total", {"kind": "event"}),
        (1, "api_request_seconds_count", {"method": "PATCH", "outcome": "ok"}),
        (3, "watch_age_seconds", {"kind": "nodes"}),
        (1, "watch_synced", {"kind": "nodes"}),
        (7, "watch_objects", {"kind": "nodes"}),
        (2, "watch_lists_total", {"kind": "nodes"}),
        (4, "watch_breaks_total", {"kind": "nodes"}),
        (1, "leading", {}),
        (12, "leader_epoch", {}),
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
    assert value(Metrics(), "mails_sent_total") == 0
    assert value(Metrics(), "time_to_save_seconds_count") == 0


def test_a_number_that_is_not_known_is_not_told() -> None:
    metrics = Metrics()
    metrics.job("a", iteration=1, ratio=0.5)
    metrics.job("a", iteration=2)
    assert value(metrics, "job_iteration", job="a") == 2
    assert value(metrics, "job_hardware_ratio", job="a") is None


def test_no_series_of_a_job_outlives_it() -> None:
    metrics = Metrics()
    every_call(metrics)
    metrics.job("b", iteration=1)
    metrics.job_gone("a")
    jobs = {labels for _, labels in scrape(metrics) if dict(labels).get("job")}
    assert jobs == {(("job", "b"),)}


def test_a_label_out_of_control_cannot_grow_without_bound() -> None:
    metrics = Metrics()
    for number in range(10 * MAX_SERIES):
        metrics.log_match(f"rule-{number}")
    matches = {
        labels: v for (name, labels), v in scrape(metrics).items() if name == "sentinel_log_matches_total"
    }
    assert len(matches) == MAX_SERIES + 1
    assert sum(matches.values()) == 10 * MAX_SERIES


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


def test_the_documentation_says_what_is_declared(repo: Path) -> None:
    """Make it again with: python -m sentinel.metrics > docs/metrics.md"""
    assert (repo / "docs" / "metrics.md").read_text("utf-8") == markdown()


def test_counting_does_not_import_prometheus_client() -> None:
    """Its import waits for the first scrape: memory and start-up time belong to the job."""
    program = (
        "import sys; from sentinel.metrics import Metrics; m = Metrics(); m.mail_sent();"
        "assert 'prometheus_client' not in sys.modules; m.render(); assert 'prometheus_client' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
