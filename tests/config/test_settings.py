"""Administrators' settings, units, and the way of both kinds of file into resident processes."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.client import ConfigProblem, load_in_child
from sentinel.config.load import load_settings
from sentinel.config.problems import ConfigErrors, Problem
from sentinel.config.reference import reference
from sentinel.core.fleet.model import Mode
from sentinel.core.fleet.settings import Allowance, FenceHook, FleetSettings, Limit, fleet_settings
from sentinel.core.policy_model import Policy, Restart
from sentinel.core.units import duration_text, parse_duration, parse_size, size_text
from sentinel.settings import (
    Caps,
    CertificateFiles,
    Disk,
    EndedJobs,
    Mail,
    MountThresholds,
    Network,
    OwnerRule,
    Settings,
    Shape,
    Summary,
)
from tests.config.test_policy import FULL, HEAD, only

SETTINGS_HEAD = "apiVersion: sentinel.dev/v1alpha1\nkind: Settings\n"

FULL_SETTINGS = (
    SETTINGS_HEAD
    + """\
stateDir: /var/lib/sentinel
listen: "[::1]:9000"
mail:
  host: smtp.example.com
  port: 2525
  tls: tls
  caFile: /etc/ca.pem
  username: sentinel
  passwordFile: ~/secret
  sender: sentinel@example.com
  timeout: 5s
  perHour: 3
  outbox: /var/mail/outbox
  admins: [admin@example.com]
  summary: {at: 18:30, days: [mon, fri], timezone: Europe/Berlin}
caps: {maxResumes: 9, maxRestarts: 8, gracefulStop: 30m, checkpointTimeout: 20m, debugHold: 8h, resetAfterMin: 2h}
owners:
  - {namespace: research, matchLabels: {team: nlp}, emails: [nlp@example.com]}
  - {emails: [cluster@example.com]}
disk: {warnFreeShare: 0.2, minFreeShare: 0.05, minFreeBytes: 2Gi}
network:
  {interfaces: [bond0], portDown: 2m, flaps: 5, flapWindow: 1h, settle: 1m, errorsPerMinute: {rx_errors: 10}}
certificates: {certFile: /etc/tls/tls.crt, keyFile: ~/tls.key, caFile: /etc/tls/ca.crt}
rulesDir: /etc/sentinel/rules
kernelLog: /tmp/kmsg
sysfs: /host/sys
procfs: /host/proc
pageUrl: https://sentinel.example.com/page
dashboardUrl: https://grafana.example.com
"""
)


def problems(text: str) -> list[Problem]:
    with pytest.raises(ConfigErrors) as caught:
        load_settings(text)
    return caught.value.problems


def test_every_setting_arrives_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/admin")
    assert load_settings(FULL_SETTINGS) == Settings(
        state_dir="/var/lib/sentinel",
        listen="[::1]:9000",
        mail=Mail(
            host="smtp.example.com",
            port=2525,
            tls="tls",
            ca_file="/etc/ca.pem",
            username="sentinel",
            password_file="/home/admin/secret",
            sender="sentinel@example.com",
            timeout_s=5.0,
            per_hour=3,
            outbox="/var/mail/outbox",
            admins=("admin@example.com",),
            summary=Summary(at="18:30", days=("mon", "fri"), timezone="Europe/Berlin"),
        ),
        caps=Caps(
            max_resumes=9,
            max_restarts=8,
            graceful_stop_s=1800.0,
            checkpoint_timeout_s=1200.0,
            debug_hold_s=28_800.0,
            reset_after_min_s=7200.0,
        ),
        owners=(
            OwnerRule(namespace="research", match_labels={"team": "nlp"}, emails=("nlp@example.com",)),
            OwnerRule(emails=("cluster@example.com",)),
        ),
        disk=Disk(warn_free_share=0.2, min_free_share=0.05, min_free_bytes=2 << 30),
        network=Network(
            interfaces=("bond0",),
            port_down_s=120.0,
            flaps=5,
            flap_window_s=3600.0,
            settle_s=60.0,
            errors_per_minute={"rx_errors": 10.0},
        ),
        certificates=CertificateFiles(
            cert_file="/etc/tls/tls.crt", key_file="/home/admin/tls.key", ca_file="/etc/tls/ca.crt"
        ),
        rules_dir="/etc/sentinel/rules",
        kernel_log="/tmp/kmsg",
        sysfs="/host/sys",
        procfs="/host/proc",
        page_url="https://sentinel.example.com/page",
        dashboard_url="https://grafana.example.com",
    )


def test_the_brakes_that_are_written_are_those_of_the_controller() -> None:
    text = """fleet:
  mode: observe
  poolLabel: example.com/pool
  isolations: {atATime: {atLeast: 1}, window: 2h}
  removals: {perWindow: {atLeast: 0}}
  releaseAfter: 5m
"""
    written = load_in_child_as(load_settings(SETTINGS_HEAD + text))
    made = fleet_settings(written.fleet)
    assert made == FleetSettings(
        mode=Mode.OBSERVE,
        pool_label="example.com/pool",
        isolations=Allowance(at_a_time=Limit(1), per_window=Limit(3, 0.05), window_s=7200.0),
        removals=Allowance(per_window=Limit(0)),
        release_after_s=300.0,
    )
    assert fleet_settings(Settings().fleet) == FleetSettings()


def test_the_program_that_is_written_is_the_one_that_powers_machines_off() -> None:
    text = "fleet: {fence: {command: [/usr/local/bin/fence-node, --now], timeout: 30s}}"
    made = fleet_settings(load_in_child_as(load_settings(SETTINGS_HEAD + text)).fleet)
    assert made.fence == FenceHook(
        command=("/usr/local/bin/fence-node", "--now"), after_s=120.0, timeout_s=30.0
    )


def test_every_contradiction_is_told_beside_every_error_of_a_field() -> None:
    found = problems(
        SETTINGS_HEAD + "fleet: {mode: observe, observePools: [a], networkSettle: 10m, lease: 5s, stop: {}}"
    )
    assert [one.path for one in found] == [
        "fleet.observePools",
        "fleet.networkSettle",
        "fleet.lease",
        "fleet.stop",
    ]


def load_in_child_as(settings: Settings) -> Settings:
    """As it comes from the child that reads the file."""
    return msgspec.json.decode(msgspec.json.encode(settings), type=Settings)


def test_what_is_not_set_has_its_default() -> None:
    assert load_settings(SETTINGS_HEAD) == Settings()
    assert load_settings(SETTINGS_HEAD + 'listen: ""').listen == ""


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("stateDir: relative/dir", "stateDir", "begins with / or ~"),
        ("stateDir: ~nobody-of-that-name/x", "stateDir", "no such user"),
        ("listen: '9810'", "listen", "HOST:PORT"),
        ("listen: 9810", "listen", "HOST:PORT"),
        ("listen: 'localhost:99999'", "listen", "HOST:PORT"),
        ("mail: {port: 70000}", "mail.port", "from 0 to 65535"),
        ("mail: {tls: ssl}", "mail.tls", "one of starttls, tls, none"),
        ("mail: {username: me}", "mail.username", "passwordFile beside it"),
        ("mail: {passwordFile: /x}", "mail.passwordFile", "username beside it"),
        ("mail: {perHour: 0}", "mail.perHour", "from 1"),
        ("mail: {timeout: 1h}", "mail.timeout", "between 1s and 600s"),
        ("mail: {password: x}", "mail.password", "did you mean passwordFile?"),
        ("mail: {admins: [a@b.example], summary: {at: 1030}}", "mail.summary.at", "00:00 to 23:59"),
        ("mail: {admins: [a@b.example], summary: {at: '24:00'}}", "mail.summary.at", "00:00 to 23:59"),
        ("mail: {admins: [a@b.example], summary: {days: [mon]}}", "mail.summary.at", ""),
        (
            "mail: {admins: [a@b.example], summary: {at: '08:00', days: [monday]}}",
            "mail.summary.days[0]",
            "one of mon, tue",
        ),
        (
            "mail: {admins: [a@b.example], summary: {at: '08:00', timezone: Berlin}}",
            "mail.summary.timezone",
            "such as Europe/Berlin",
        ),
        (
            "mail: {admins: [a@b.example], summary: {at: '08:00', timezone: ../../etc/passwd}}",
            "mail.summary.timezone",
            "IANA",
        ),
        ("mail: {summary: {at: '08:00'}}", "mail.summary", "nobody would get it"),
        ("webhooks: [{url: 'https://x'}]", "webhooks[0].name", ""),
        ("webhooks: [{name: a}]", "webhooks[0].url", "one of url and urlFile"),
        ("webhooks: [{name: a, url: 'https://x', urlFile: /x}]", "webhooks[0].url", "one of url and urlFile"),
        ("webhooks: [{name: a, url: nonsense}]", "webhooks[0].url", "http"),
        (
            "webhooks: [{name: a, url: 'https://x', about: [pods]}]",
            "webhooks[0].about[0]",
            "one of jobs, nodes",
        ),
        (
            "webhooks: [{name: a, url: 'https://x', format: slack, secretFile: /k}]",
            "webhooks[0].secretFile",
            "format: json",
        ),
        (
            "webhooks: [{name: a, url: 'https://x'}, {name: a, url: 'https://y'}]",
            "webhooks[1].name",
            "a name that no other webhook",
        ),
        ("disk: {minFreeShare: 0.5}", "disk.minFreeShare", "at most warnFreeShare (0.1)"),
        ("disk: {warnFreeShare: 0.01}", "disk.warnFreeShare", "minFreeShare (0.02) at most"),
        ("disk: {mounts: [{minFreeShare: 0.1}]}", "disk.mounts[0].path", ""),
        ("disk: {mounts: [{path: a}]}", "disk.mounts[0].path", "begins with /"),
        (
            "disk: {minFreeShare: 0.05, mounts: [{path: /a, warnFreeShare: 0.04}]}",
            "disk.mounts[0].warnFreeShare",
            "minFreeShare (0.05) at most warnFreeShare (0.04)",
        ),
        ("disk: {ignore: [mnt]}", "disk.ignore[0]", "begins with /"),
        ("network: {flaps: 0}", "network.flaps", "from 1"),
        ("network: {portDown: 0s}", "network.portDown", "between"),
        (
            "network: {errorsPerMinute: {rx_bytes: 5}}",
            "network.errorsPerMinute",
            "of any of symbol_error",
        ),
        ("network: {errorsPerMinute: {rx_errors: -1}}", "network.errorsPerMinute", "numbers from 0"),
        ("disk: {minFreeBytes: 500}", "disk.minFreeBytes", "has no unit"),
        ("fleet: {isolations: {atATime: 1}}", "fleet.isolations.atATime", "{atLeast: a whole number"),
        ("fleet: {isolations: {atATime: {share: 0.5}}}", "fleet.isolations.atATime", "{atLeast: a whole"),
        ("fleet: {isolations: {atATime: {atLeast: 0}}}", "fleet.isolations.atATime", "mode: observe"),
        ("fleet: {poolDisks: {perWindow: {atLeast: 0, share: 0}}}", "fleet.poolDisks.perWindow", "one node"),
        ("fleet: {removals: {atATime: {atLeast: 1}}}", "fleet.removals.atATime", "did you mean"),
        ("fleet: {mode: observe, observePools: [a]}", "fleet.observePools", "mode: enforce beside it"),
        ("fleet: {networkSettle: 5m}", "fleet.networkSettle", "shorter than networkWindow (5m)"),
        ("fleet: {networkWindow: 9s}", "fleet.networkWindow", "networkSettle (10s) shorter"),
        ("fleet: {repeatWindow: 10m}", "fleet.repeatWindow", "releaseAfter (10m) shorter"),
        ("fleet: {agentSilent: 5s}", "fleet.agentSilent", "between 30s"),
        ("certificates: {certFile: /c, keyFile: /k}", "certificates.caFile", "a value"),
        ("certificates: {certFile: c, keyFile: /k, caFile: /a}", "certificates.certFile", "begins with /"),
        ("certificates: {certFile: /c, keyFile: '', caFile: /a}", "certificates.keyFile", "begins with /"),
        ("certificates: {secret: x, certFile: /c, keyFile: /k, caFile: /a}", "certificates.secret", "caFile"),
        ("fleet: {fence: {after: 1m}}", "fleet.fence.command", ""),
        ("fleet: {fence: {command: [fence-node]}}", "fleet.fence.command", "which begins with /"),
        ("fleet: {fence: {command: [/f, 1]}}", "fleet.fence.command", "its arguments in quotes"),
        ("fleet: {fence: {command: [/f], after: 0s}}", "fleet.fence.after", "between 1s"),
        ("fleet: {fence: {command: [/f], timeout: 1h}}", "fleet.fence.timeout", "between 1s and 600s"),
        ("fleet: {fence: {command: [/f], tries: 4}}", "fleet.fence.tries", "one of command, after, timeout"),
        ("fleet: {poolLabel: a b}", "fleet.poolLabel", "the key of a label"),
        ("pageUrl: javascript:alert(1)", "pageUrl", "http:// or https://"),
        ("caps: {maxResume: 5}", "caps.maxResume", "did you mean maxResumes?"),
        ("metadata: {}", "metadata", "one of apiVersion, kind, stateDir"),
    ],
)
def test_settings_that_do_not_fit_are_refused_where_they_stand(text: str, path: str, expected: str) -> None:
    (one,) = problems(SETTINGS_HEAD + text)
    assert (one.path, one.line) == (path, 3)
    assert expected in one.expected


def test_a_policy_or_two_documents_are_no_settings() -> None:
    assert "found 'JobPolicy', expected Settings" in str(problems(HEAD)[0])
    assert "2 documents" in problems(SETTINGS_HEAD + "---\n" + SETTINGS_HEAD)[0].found


# ------------------------------------------------------------ units


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("1m500ms", 60.5),
        ("0s", 0),
    ],
)
def test_durations(written: str, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        "5",
        5,
        5.0,
        True,
        None,
        "5 m",
        "5min",
        "m",
        "-5m",
        "1m1h",
        "1m1m",
        "1e3s",
        "٣s",
        "5M",
        "1h 30m",
        [],
        "9" * 99 + "s",
    ],
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(ValueError, match="a duration like 90s, 5m, 1h30m or 2d"):
        parse_duration(written)


def test_a_bare_number_is_answered_with_its_unit() -> None:
    for written in (300, "300"):
        with pytest.raises(ValueError, match="no unit: write 300s for seconds"):
            parse_duration(written)


@given(st.integers(0, 10**9))
def test_a_duration_in_words_reads_back(seconds: int) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("written", "count"),
    [("4Mi", 4 << 20), ("1G", 10**9), ("1.5k", 1500), ("2TiB", 2 << 40), ("500M", 500_000_000)],
)
def test_sizes(written: str, count: int) -> None:
    assert parse_size(written) == count


@pytest.mark.parametrize("written", ["", "4", 4, 4.0, True, None, "4 Mi", "4mi", "-4Mi", "Mi", "4Pi"])
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(ValueError, match="a size like 500M, 4Mi or 1G"):
        parse_size(written)


@given(st.integers(1, 999), st.sampled_from(["k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti"]))
def test_a_size_in_words_reads_back(count: int, unit: str) -> None:
    count_bytes = parse_size(f"{count}{unit}")
    assert parse_size(size_text(count_bytes)) == count_bytes


# ------------------------------------------------------------ the child


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_the_child_brings_policy_and_settings(tmp_path: Path) -> None:
    policy, settings = (
        write(tmp_path, "p.yaml", FULL),
        write(tmp_path, "s.yaml", SETTINGS_HEAD + "listen: ''"),
    )
    assert load_in_child(policy, settings) == (only(FULL), Settings(listen=""))
    assert load_in_child(policy, None) == (only(FULL), Settings())
    assert load_in_child(None, None) == (Policy(), Settings())


def test_caps_hold_for_the_policy_that_stands_in_no_file(tmp_path: Path) -> None:
    settings = write(tmp_path, "s.yaml", SETTINGS_HEAD + "caps: {maxRestarts: 1}")
    policy, _ = load_in_child(None, settings)
    assert policy.restart == Restart(max_restarts=1)


def test_the_problems_of_both_files_come_together(tmp_path: Path) -> None:
    policy = write(tmp_path, "p.yaml", HEAD + "  mode: x\n  hang: {after: 5}\n")
    settings = write(tmp_path, "s.yaml", SETTINGS_HEAD + "listen: 3\n")
    with pytest.raises(ConfigProblem) as caught:
        load_in_child(policy, settings)
    places = [line.split(": ")[0] for line in caught.value.text.splitlines()]
    assert places == [f"{policy}:5:9", f"{policy}:6:17", f"{settings}:3:9"]


def test_a_run_takes_one_policy(tmp_path: Path) -> None:
    text = HEAD + "  mode: observe\n---\n" + HEAD.replace("llama", "b") + "  mode: observe\n"
    with pytest.raises(ConfigProblem, match="found 2 policies, expected one policy for one job"):
        load_in_child(write(tmp_path, "p.yaml", text), None)


def test_the_module_answers_in_json_or_with_exit_code_78(tmp_path: Path, repo: Path) -> None:
    command = [sys.executable, "-m", "sentinel.config", "--policy"]
    good = subprocess.run(
        [*command, write(tmp_path, "p.yaml", FULL)], capture_output=True, cwd=repo, check=True
    )
    assert msgspec.json.decode(good.stdout)["policy"]["name"] == "llama"
    bad = subprocess.run([*command, tmp_path / "none"], capture_output=True, cwd=repo, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (os.EX_CONFIG, "")
    assert bad.stderr == f"{tmp_path}/none: found no such file, expected a YAML file\n"


def test_modules_in_the_jobs_folder_are_not_taken_for_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("yaml.py", "pydantic.py", "signal.py", "re2.py"):
        write(tmp_path, name, "raise SystemExit('imported from the job')")
    monkeypatch.chdir(tmp_path)
    assert load_in_child(write(tmp_path, "p.yaml", FULL), None)[0] == only(FULL)


def test_a_path_that_looks_like_an_option_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "--help", FULL)
    assert load_in_child("--help", None)[0].name == "llama"


def test_the_client_imports_no_schema_library(repo: Path) -> None:
    script = (
        "import sys, sentinel.config.client\n"
        "print({'pydantic', 'yaml', 're2', 'hyperscan', 'argparse'} & sys.modules.keys())"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=repo, check=True
    )
    assert told.stdout == "set()\n"


# ------------------------------------------------------------ the reference


def test_the_reference_in_the_docs_is_that_of_the_code(repo: Path) -> None:
    written = (repo / "docs" / "policy.md").read_text()
    assert written == reference(), "run: make generated"


NAMES = {"name": "name", "keep_log_bytes": "keepBytes", "recording_bytes": "recording"}


def test_every_field_of_the_core_can_be_written_and_is_in_the_reference() -> None:
    """A field that owners cannot reach would be an option that does nothing."""
    page = reference()
    for struct, path in [
        (Policy, "spec"),
        (Settings, ""),
        (Mail, "mail"),
        (Caps, "caps"),
        (EndedJobs, "endedJobs"),
        (OwnerRule, "owners[]"),
        (Disk, "disk"),
        (MountThresholds, "disk.mounts[]"),
        (Network, "network"),
        (Shape, "shapes[]"),
    ]:
        for field in msgspec.structs.fields(struct):
            if (struct, field.name) in ((Settings, "shape"), (Shape, "source"), (Policy, "capped")):
                continue  # are found on the node, or said of it, not written
            words = NAMES.get(field.name)
            if words is None:
                bare = field.name.removesuffix("_s")
                first, *rest = bare.split("_")
                words = first + "".join(word.title() for word in rest)
            assert f"| `{words}` |" in page, (path, field.name)
