"""Recording rules and alerts by promtool: each alert fires for what it is made for, alone; none on a healthy fleet."""

import importlib.util
import re
import subprocess
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import yaml

from sentinel.metrics.declared import DECLARATIONS

REPO = Path(__file__).parents[2]
RULES = REPO / "rules" / "prometheus"
FILES = ("recording.yaml", "alerts.yaml")
JOB = "ns/job.batch/a"
Series = dict[str, str]


def rules() -> list[dict[str, Any]]:
    groups = [group for name in FILES for group in yaml.safe_load((RULES / name).read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPO / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_promtool_reads_the_rules() -> None:
    promtool("check", "rules", *(str(RULES / name) for name in FILES))


def test_the_prometheusrule_holds_the_same_rules() -> None:
    """Made by: make generated"""
    assert (RULES / "prometheusrule.yaml").read_text("utf-8") == script("prometheusrule").document()


def test_every_alert_says_how_urgent_it_is_what_is_wrong_and_what_to_do() -> None:
    sections = {
        line.removeprefix("## ")
        for line in (REPO / "docs" / "runbooks.md").read_text("utf-8").splitlines()
        if line.startswith("## ")
    }
    assert sections == set(alerts())
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"].keys() == {"summary", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"].endswith(f"docs/runbooks.md{{{{ end }}}}#{name.lower()}"), (
            name
        )
    assert len({rule["annotations"]["runbook_url"].rpartition("#")[0] for rule in alerts().values()}) == 1


# ---------------------------------------------------------------- what a healthy fleet tells, for a day

LEADER, STANDBY, AGENT = 'instance="one"', 'instance="two"', 'instance="agent"'
HEALTHY: Series = {
    f"sentinel_leading{{{LEADER}}}": "1x3000",
    f"sentinel_leading{{{STANDBY}}}": "0x3000",
    f"sentinel_paused{{{LEADER}}}": "0x3000",
    f'sentinel_nodes{{{LEADER},state="in-service"}}': "98x3000",
    f'sentinel_nodes{{{LEADER},state="isolated"}}': "2x3000",
    f'sentinel_nodes{{{LEADER},state="not-heard"}}': "0x3000",
    f'sentinel_gpus{{{LEADER},state="in-service"}}': "784x3000",
    f'sentinel_gpus{{{LEADER},state="isolated"}}': "16x3000",
    f'sentinel_gpus{{{LEADER},state="unreachable"}}': "0x3000",
    f'sentinel_brake_held_back{{{LEADER},brake="at-a-time"}}': "0x3000",
    f'sentinel_fence_calls_total{{{LEADER},outcome="off"}}': "0+1x3000",
    f'sentinel_fence_calls_total{{{LEADER},outcome="failed"}}': "2x3000",
    f"sentinel_network_incidents{{{LEADER}}}": "0x3000",
    f'sentinel_fleet_unjudged{{{LEADER},why="mass-silence"}}': "0x3000",
    f"sentinel_agents_clock_offset_seconds{{{LEADER}}}": "-1x3000",
    f"sentinel_jobs_held_back{{{LEADER}}}": "0x3000",
    f'sentinel_job_state{{{LEADER},job_name="{JOB}",state="running"}}': "1x3000",
    f'sentinel_job_last_iteration_timestamp_seconds{{{LEADER},job_name="{JOB}"}}': "0+60x3000",
    f'sentinel_job_restarts_left{{{LEADER},job_name="{JOB}"}}': "3x3000",
    f'sentinel_job_restarts_total{{{LEADER},job_name="{JOB}",cause="gpu"}}': "1x3000",
    f'sentinel_watch_synced{{{LEADER},kind="nodes"}}': "1x3000",
    f'sentinel_watch_synced{{{STANDBY},kind="nodes"}}': "1x3000",
    f"sentinel_record_save_failures_total{{{LEADER}}}": "2x3000",
    f'sentinel_effect_failures_total{{{LEADER},effect="isolate",kind="temporary"}}': "1x3000",
    f'sentinel_mails_waiting{{{LEADER},about="nodes"}}': "0x3000",
    f'sentinel_mail_failures_total{{{LEADER},about="nodes"}}': "0x3000",
    f'sentinel_mails_given_up_total{{{LEADER},about="nodes"}}': "0x3000",
    f'sentinel_exceptions_total{{{LEADER},place="job"}}': "1x3000",
    f"sentinel_settings_in_force{{{LEADER}}}": "1x3000",
    f'sentinel_certificate_expiry_timestamp_seconds{{{LEADER},certificate="serving"}}': "2592000x3000",
    f"sentinel_event_loop_lag_seconds{{{LEADER}}}": "0.01x3000",
    f'sentinel_reports_dropped_total{{{AGENT},kind="event"}}': "0x3000",
    f'sentinel_check_failures_total{{{AGENT},check="disk"}}': "0x3000",
    f'sentinel_check_runs_total{{{AGENT},check="disk"}}': "0+2x3000",
    f'sentinel_records_unreadable{{{LEADER},kind="quarantines"}}': "0x3000",
}
STORIES = ("test_watched", "test_node_alerts", "test_job_alerts")  # where each goes all the way to a mail
WHEN_M = 2000  # minutes after the beginning: a day and a half


class Fault(NamedTuple):
    """What is different from HEALTHY, and which alert that makes."""

    series: Series
    labels: dict[str, str]
    summary: str


def quarantine(kind: str, state: str, reason: str, since: str) -> Series:
    return {
        f'sentinel_quarantine_since_timestamp_seconds{{{LEADER},node="n1",kind="{kind}",state="{state}",'
        f'mode="enforce",reason="{reason}"}}': since
    }


def phase(name: str, since: str) -> Series:
    labels = f'{LEADER},job_name="{JOB}",phase="{name}",cause="gpu"'
    return {f"sentinel_job_phase_since_timestamp_seconds{{{labels}}}": since}


SINCE_S = WHEN_M * 60 - 3600
FAULTS: dict[str, Fault] = {
    "SentinelIsolationHeldBack": Fault(
        {f'sentinel_brake_held_back{{{LEADER},brake="at-a-time"}}': "0x1990 3x100"},
        {"brake": "at-a-time"},
        "3 nodes with faults stay in service, held back by the brake at-a-time",
    ),
    "SentinelNodeUnreachable": Fault(
        quarantine("silence", "active", "Unfenced", f"{SINCE_S}x3000"),
        {"node": "n1", "reason": "Unfenced"},
        "Node n1 is unreachable (Unfenced): its pods are not removed without a proof that it is dead",
    ),
    "SentinelFenceFails": Fault(
        {
            f'sentinel_fence_calls_total{{{LEADER},outcome="timed-out"}}': "0x1980 1x100",
            f'sentinel_fence_calls_total{{{LEADER},outcome="stopped"}}': "0x1980 1x100",
        },
        {"outcome": "timed-out"},
        "The program that powers silent nodes off does not (timed-out): their pods stay",
    ),
    "SentinelAgentSilent": Fault(
        quarantine("silence", "active", "AgentSilent", f"{SINCE_S}x3000"),
        {"node": "n1"},
        "The agent of node n1 is silent, its kubelet is not: the health of the node is not watched",
    ),
    "SentinelNodesNotHeard": Fault(
        {f'sentinel_nodes{{{LEADER},state="not-heard"}}': "25x3000"},
        {"state": "not-heard"},
        "20% of the nodes have never been heard of by this leader: no agent watches them",
    ),
    "SentinelNodeWaitsForRepair": Fault(
        quarantine("fault", "active", "FatalFinding", "12000x3000"),
        {"node": "n1", "reason": "FatalFinding"},
        "Node n1 is out of service for 1d 6h 0m 0s (FatalFinding)",
    ),
    "SentinelCapacityLost": Fault(
        {f'sentinel_gpus{{{LEADER},state="unreachable"}}': "200x3000"},
        {},
        "21.6% of all GPUs are on nodes that are out of service",
    ),
    "SentinelNetworkIncident": Fault(
        {f"sentinel_network_incidents{{{LEADER}}}": "0x1990 1x100"},
        {},
        "Many nodes have one network fault together: no node is isolated for it alone",
    ),
    "SentinelCommonCause": Fault(
        {f'sentinel_brake_held_back{{{LEADER},brake="common-cause"}}': "0x1990 40x100"},
        {},
        "40 nodes have one fatal finding at once and wait for a word: is it real, or a rule or a driver gone wrong?",
    ),
    "SentinelNotJudging": Fault(
        {f'sentinel_fleet_unjudged{{{LEADER},why="mass-silence"}}': "0x1980 1x100"},
        {"why": "mass-silence"},
        "Sentinel decides less than it could: mass-silence",
    ),
    "SentinelJobRecoveryStuck": Fault(
        phase("Stopping", f"{SINCE_S}x3000"),
        {"job_name": JOB, "phase": "Stopping"},
        f"The recovery of {JOB} has been Stopping for 1h 0m 0s",
    ),
    "SentinelJobWaitsForRoom": Fault(
        phase("Prechecking", f"{SINCE_S}x3000"),
        {"job_name": JOB},
        f"{JOB} has waited 1h 0m 0s for room to start again",
    ),
    "SentinelJobGivenUp": Fault(
        {
            f'sentinel_job_state{{{LEADER},job_name="{JOB}",state="running"}}': "1x1980 stale",
            f'sentinel_job_state{{{LEADER},job_name="{JOB}",state="error"}}': "_x1980 1x100",
        },
        {"job_name": JOB},
        f"{JOB} was given up: it failed, and is not started again",
    ),
    "SentinelJobNotStepping": Fault(
        {
            f'sentinel_job_last_iteration_timestamp_seconds{{{LEADER},job_name="{JOB}"}}': "0+60x1900 114000x200"
        },
        {"job_name": JOB},
        f"{JOB} has made no iteration for 1h 40m 0s, and nothing is done about it",
    ),
    "SentinelJobRestartsAgainAndAgain": Fault(
        {f'sentinel_job_restarts_total{{{LEADER},job_name="{JOB}",cause="gpu"}}': "1x1900 2 3 4 5x200"},
        {"job_name": JOB},
        f"{JOB} was started again 4 times within 6 hours",
    ),
    "SentinelJobBudgetSpent": Fault(
        {f'sentinel_job_restarts_left{{{LEADER},job_name="{JOB}"}}': "0x3000"},
        {"job_name": JOB},
        f"{JOB} has no restart left: its next fault ends it",
    ),
    "SentinelJobsHeldBack": Fault(
        {f"sentinel_jobs_held_back{{{LEADER}}}": "0x1980 2x100"},
        {},
        "2 jobs have a fault that is not acted on: a brake or a pause holds their recovery back",
    ),
    "SentinelNobodyLeads": Fault(
        {f"sentinel_leading{{{LEADER}}}": "1x1990 0x100"},
        {},
        "No controller of Sentinel leads: jobs run on, and nothing recovers them",
    ),
    "SentinelNoStandby": Fault(
        {f"sentinel_leading{{{STANDBY}}}": "0x1970 stale"},
        {},
        "Only one controller of Sentinel is seen: none would take over from it",
    ),
    "SentinelPaused": Fault(
        {f"sentinel_paused{{{LEADER}}}": "0x1700 1x400"},
        {},
        "Sentinel has been paused for 4 hours: it decides, and begins nothing new",
    ),
    "SentinelWatchBroken": Fault(
        {f'sentinel_watch_synced{{{LEADER},kind="nodes"}}': "1x1990 0x100"},
        {"kind": "nodes"},
        "The leader does not follow nodes of the API server: it decides by what was known before",
    ),
    "SentinelClockWrong": Fault(
        {f"sentinel_agents_clock_offset_seconds{{{LEADER}}}": "1x1980 -7200x100"},
        {"instance": "one"},
        "The clock of the leader one is 7.2k s away from those of the nodes",
    ),
    "SentinelRecordsNotSaved": Fault(
        {f"sentinel_record_save_failures_total{{{LEADER}}}": "2x1980 2+2x100"},
        {},
        "20 writes of records failed within 10 minutes: what is not saved is not done",
    ),
    "SentinelEffectFails": Fault(
        {f'sentinel_effect_failures_total{{{LEADER},effect="isolate",kind="temporary"}}': "1x1980 1+2x100"},
        {"effect": "isolate"},
        "The effect isolate failed 30 times within 15 minutes",
    ),
    "SentinelMailNotSent": Fault(
        {
            f'sentinel_mails_waiting{{{LEADER},about="nodes"}}': "0x1980 4x100",
            f'sentinel_mail_failures_total{{{LEADER},about="nodes"}}': "0x1980 0+1x100",
        },
        {"about": "nodes"},
        "4 mails about nodes wait: the mail server does not take them",
    ),
    "SentinelMailGivenUp": Fault(
        {f'sentinel_mails_given_up_total{{{LEADER},about="nodes"}}': "0x1980 6x100"},
        {"about": "nodes"},
        "6 mails about nodes will not be sent any more",
    ),
    "SentinelException": Fault(
        {f'sentinel_exceptions_total{{{LEADER},place="request"}}': "_x1980 1x100"},
        {"place": "request", "instance": "one"},
        "An unexpected exception was caught in request of one",
    ),
    "SentinelSettingsRefused": Fault(
        {f"sentinel_settings_in_force{{{LEADER}}}": "1x1980 0x100"},
        {"instance": "one"},
        "one does not go by its settings file as it is now: older settings are in force",
    ),
    "SentinelCertificateExpires": Fault(
        {
            f'sentinel_certificate_expiry_timestamp_seconds{{{LEADER},certificate="serving"}}': f"{SINCE_S + 7200}x3000"
        },
        {"certificate": "serving"},
        "The certificate serving ends in 1h 0m 0s and was not renewed",
    ),
    "SentinelLoopLags": Fault(
        {f"sentinel_event_loop_lag_seconds{{{LEADER}}}": "0x1980 3x100"},
        {"instance": "one"},
        "The event loop of one is held up for 3s",
    ),
    "SentinelReportsDropped": Fault(
        {f'sentinel_reports_dropped_total{{{AGENT},kind="event"}}': "0x1980 5x100"},
        {"instance": "agent"},
        "The agent agent gave up 5 reports: no controller took them in time",
    ),
    "SentinelCheckBlind": Fault(
        {f'sentinel_check_failures_total{{{AGENT},check="disk"}}': "0+2x3000"},
        {"check": "disk"},
        "The check disk cannot look on 1 nodes: what it would find there is not known",
    ),
    "SentinelRecordsUnreadable": Fault(
        {f'sentinel_records_unreadable{{{LEADER},kind="quarantines"}}': "0x1980 1x100"},
        {"kind": "quarantines"},
        "1 records of quarantines cannot be read by this version and count for nothing",
    ),
}


def test_each_metric_that_an_alert_asks_for_is_in_the_tests_and_is_told() -> None:
    asked = {name for rule in alerts().values() for name in re.findall(r"\bsentinel_\w+", str(rule["expr"]))}
    tried = {
        one.partition("{")[0]
        for series in (HEALTHY, *(fault.series for fault in FAULTS.values()))
        for one in series
    }
    assert asked - tried == set()
    assert asked - {item.name for item in DECLARATIONS} == set()


def case(
    name: str, series: Series, fires: dict[str, Fault], runbooks: str = "docs/runbooks.md"
) -> dict[str, Any]:
    """Every alert is asked for: what is not in `fires` must be silent."""
    checks = []
    for alert, rule in alerts().items():
        expected = []
        if alert in fires:
            labels = {**rule["labels"], **fires[alert].labels}
            told = {"summary": fires[alert].summary, "runbook_url": f"{runbooks}#{alert.lower()}"}
            expected.append({"exp_labels": labels, "exp_annotations": told})
        checks.append({"eval_time": f"{WHEN_M}m", "alertname": alert, "exp_alerts": expected})
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": checks,
    }


def run(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    document = {
        "rule_files": [str(RULES / name) for name in FILES],
        "evaluation_interval": "5m",  # 2000 minutes of all rules for each alert: every minute takes a minute itself
        "group_eval_order": ["sentinel.recording", "sentinel.fleet", "sentinel.jobs", "sentinel.itself"],
        "tests": cases,
    }
    file = tmp_path / "rules.test.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    promtool("test", "rules", str(file))


def test_no_alert_fires_on_a_healthy_fleet(tmp_path: Path) -> None:
    run(tmp_path, [case("healthy", HEALTHY, {})])


def test_every_alert_has_its_fault_for_promtool_and_in_a_running_sentinel() -> None:
    assert FAULTS.keys() == alerts().keys()
    stories = [import_module(f"tests.prometheus.{name}").SHOWN for name in STORIES]
    assert sorted(name for shown in stories for name in shown) == sorted(alerts())


@pytest.mark.parametrize("part", range(3))
def test_each_alert_fires_for_its_fault_alone(tmp_path: Path, part: int) -> None:
    names = sorted(FAULTS)[part::3]
    run(tmp_path, [case(name, HEALTHY | FAULTS[name].series, {name: FAULTS[name]}) for name in names])


def of_cluster(name: str, series: Series) -> Series:
    """As a scrape of that cluster names them."""
    return {one.replace("{", f'{{cluster="{name}",', 1): values for one, values in series.items()}


@pytest.mark.parametrize("part", range(3))
def test_of_two_clusters_that_one_prometheus_watches_each_is_judged_by_itself(
    tmp_path: Path, part: int
) -> None:
    """The one is well and has nodes, jobs and instances of the same names; whatever is wrong is the other one's."""
    cases = []
    for name in sorted(FAULTS)[part::3]:
        fault = FAULTS[name]
        both = of_cluster("a", HEALTHY) | of_cluster("b", HEALTHY | fault.series)
        mine = fault._replace(labels={**fault.labels, "cluster": "b"})
        cases.append(case(name, both, {name: mine}))
    run(tmp_path, cases)


def test_a_cluster_is_told_that_is_not_heard_of_any_more_while_another_one_goes_on(tmp_path: Path) -> None:
    gone = {one: values.replace("x3000", "x1900") + " stale" for one, values in HEALTHY.items()}
    fault = FAULTS["SentinelNobodyLeads"]
    both = of_cluster("a", HEALTHY) | of_cluster("b", gone)
    run(
        tmp_path,
        [
            case("one", both, {"SentinelNobodyLeads": fault._replace(labels={"cluster": "b"})}),
            case("all", gone, {"SentinelNobodyLeads": fault}),
        ],
    )


def test_recording_rules_mix_no_clusters(tmp_path: Path) -> None:
    def lost(gpus: int) -> Series:
        return HEALTHY | {f'sentinel_gpus{{{LEADER},state="isolated"}}': f"{gpus}x3000"}

    def told(samples: dict[str, float]) -> list[dict[str, Any]]:
        return [{"labels": labels, "value": value} for labels, value in samples.items()]

    tests = case("recording", of_cluster("a", lost(196)) | of_cluster("b", lost(0)), {})
    tests["alert_rule_test"] = []
    wanted: dict[str, dict[str, float]] = {
        "sentinel:gpus_out_of_service:ratio": {
            'sentinel:gpus_out_of_service:ratio{cluster="a"}': 0.2,
            'sentinel:gpus_out_of_service:ratio{cluster="b"}': 0.0,
        },
        'sum by (cluster) (sentinel:nodes:max{state="isolated"})': {
            '{cluster="a"}': 2,
            '{cluster="b"}': 2,
        },
    }
    tests["promql_expr_test"] = [
        {"expr": expr, "eval_time": f"{WHEN_M}m", "exp_samples": told(samples)}
        for expr, samples in wanted.items()
    ]
    run(tmp_path, [tests])


@pytest.mark.parametrize(
    "heard", ["1x3000", "1x1900"]
)  # the second: every controller died an hour and more ago
def test_a_runbook_is_a_link_where_a_controller_knows_or_knew_its_pages_address(
    tmp_path: Path, heard: str
) -> None:
    page = {f'sentinel_page_info{{{LEADER},url="https://sentinel.example"}}': heard}
    page[f'sentinel_page_info{{{STANDBY},url="https://sentinel.example"}}'] = heard
    name = "SentinelMailNotSent"
    fires = {name: FAULTS[name]}
    run(
        tmp_path,
        [case(name, HEALTHY | FAULTS[name].series | page, fires, "https://sentinel.example/runbooks")],
    )


def test_each_cluster_has_the_page_of_its_own_controllers(tmp_path: Path) -> None:
    name, two = "SentinelMailNotSent", 'cluster="two",'
    page = {
        f'sentinel_page_info{{{LEADER},url="https://one.example"}}': "1x3000",
        f'sentinel_page_info{{{two}{LEADER},url="https://two.example"}}': "1x3000",
    }
    other = {series.replace("{", f"{{{two}", 1): told for series, told in FAULTS[name].series.items()}
    fault = FAULTS[name]._replace(labels={"cluster": "two", **FAULTS[name].labels})
    tests = case(name, HEALTHY | other | page, {name: fault}, "https://two.example/runbooks")
    run(tmp_path, [tests])


def test_the_page_that_is_served_now_is_preferred(tmp_path: Path) -> None:
    page = {f'sentinel_page_info{{{LEADER},url="https://new.example"}}': "_x1970 1x100"}
    page[f'sentinel_page_info{{{LEADER},url="https://a-former.example"}}'] = "1x1960"
    name = "SentinelMailNotSent"
    fires = {name: FAULTS[name]}
    run(tmp_path, [case(name, HEALTHY | FAULTS[name].series | page, fires, "https://new.example/runbooks")])


def test_the_page_of_the_runbooks_says_what_the_docs_say() -> None:
    """Made by: make generated"""
    page = (REPO / "sentinel" / "web" / "runbooks.html").read_text("utf-8")
    assert page == script("runbooks").document()
    assert all(f'<section id="{name.lower()}">' in page for name in alerts())


def test_recording_rules_say_what_they_are_called(tmp_path: Path) -> None:
    more = {
        f'sentinel_jobs{{{LEADER},state="running"}}': "2x3000",
        f'sentinel_page_info{{{LEADER},url="https://sentinel.example"}}': "1x3000",
    }
    wanted = {
        "sentinel:gpus_out_of_service:ratio": ({}, 0.02),
        'sentinel:jobs:max{state="running"}': ({"state": "running"}, 2),
        'sentinel:nodes:max{state="isolated"}': ({"state": "isolated"}, 2),
        'sentinel:gpus:max{state="isolated"}': ({"state": "isolated"}, 16),
        "sentinel:effect_failures:increase15m": ({"effect": "isolate"}, 0),
        "sentinel:page:info": ({"url": "https://sentinel.example"}, 1),
    }
    assert {name.partition("{")[0] for name in wanted} == {
        one["record"] for one in rules() if "record" in one
    }
    tests = case("recording", HEALTHY | more, {})
    tests["alert_rule_test"] = []
    tests["promql_expr_test"] = []
    for expression, (labels, value) in wanted.items():
        told = ",".join(f'{key}="{text}"' for key, text in labels.items())
        sample = {"labels": f"{expression.partition('{')[0]}{{{told}}}", "value": value}
        tests["promql_expr_test"].append(
            {"expr": expression, "eval_time": f"{WHEN_M}m", "exp_samples": [sample]}
        )
    run(tmp_path, [tests])
