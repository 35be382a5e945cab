"""Policies: what is written is what is meant, and everything wrong is told at once, with its place."""

import signal
import time
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from sentinel.config.kinds import PRECHECKS, failure_classes
from sentinel.config.load import load_policies
from sentinel.config.problems import ConfigErrors, Problem
from sentinel.core.people.caps import capped
from sentinel.core.people.policy_words import policy_words
from sentinel.core.policy_model import (
    Checkpoint,
    Elastic,
    Hang,
    LogRule,
    LostNode,
    NanLoss,
    Performance,
    Policy,
    Precheck,
    Proof,
    Restart,
    Resume,
    TimingFormat,
)
from sentinel.settings import Caps, Settings

HEAD = "apiVersion: sentinel.dev/v1alpha1\nkind: JobPolicy\nmetadata: {name: llama}\nspec:\n"

FULL = """\
apiVersion: sentinel.dev/v1alpha1
kind: JobPolicy
metadata: {name: llama, namespace: research}
spec:
  jobs: {kinds: [PyTorchJob], matchLabels: {team: nlp}}
  owner: {emails: [owner@example.com, team+ml@example.org]}
  resume:
    maxResumes: 7
    maxInfrastructure: 6
    maxJob: 2
    gracefulStop: 10m
    resetAfter: 2d
    checkpoint:
      signal: SIGUSR2
      timeout: 1m30s
      ranks: first
      ifUnproved: move
      proof: {logPattern: 'saved checkpoint \\d+'}
  precheck: {checks: [gpu, disk], wait: 5m}
  elastic: {minNodes: 2, allowGrow: false}
  performance:
    maxHardwareRatio: 0.9
    minHardwareRatio: 0.3
    maxStepGrowth: 1.4
    stragglerRatio: off
    over: 30
    onlyIfGrown: 1.2
    action: RescheduleAndAlert
  hang: {after: 90s, action: Alert}
  nanLoss: {action: RestartAndAlert}
  maxDuration: 30h
  debugHold: 4h
  startTimeout: 5m
  lostRankGrace: 500ms
  verifyAfter: 1m
  unknownExit: restart
  warningSignals: [SIGTERM, SIGUSR1]
  logRules:
    - {id: our-fs, pattern: 'lustre: .* timed out', failure: storage-io}
    - {id: tokenizing, pattern: '^tokenizing', failure: 'activity:loading'}
  timingFormats:
    - {id: ours, pattern: 'done (?P<step>\\d+) in (?P<e2e_s>[0-9.]+) s', unless: warm-up, firstEpoch: 0}
  logs: {keepBytes: 64Mi}
  mode: observe
"""


def only(text: str, settings: Settings | None = None) -> Policy:
    (policy,) = load_policies(text, settings)
    return policy


def problems(text: str, settings: Settings | None = None) -> list[Problem]:
    with pytest.raises(ConfigErrors) as caught:
        load_policies(text, settings)
    return caught.value.problems


def problem(spec: str, settings: Settings | None = None) -> Problem:
    """The only problem of a policy with these lines in its spec."""
    (one,) = problems(HEAD + spec, settings)
    return one


def test_every_field_reaches_the_policy_in_base_units() -> None:
    assert only(FULL) == Policy(
        name="llama",
        emails=("owner@example.com", "team+ml@example.org"),
        resume=Resume(
            max_resumes=7,
            max_infrastructure=6,
            max_job=2,
            graceful_stop_s=600.0,
            reset_after_s=172800.0,
            checkpoint=Checkpoint(
                signal="SIGUSR2",
                timeout_s=90.0,
                ranks="first",
                if_unproved="move",
                proof=Proof(log_pattern=r"saved checkpoint \d+"),
            ),
        ),
        restart=None,
        precheck=Precheck(checks=("gpu", "disk"), wait_s=300.0),
        elastic=Elastic(min_nodes=2, allow_grow=False),
        performance=Performance(
            max_hardware_ratio=0.9,
            min_hardware_ratio=0.3,
            max_step_growth=1.4,
            straggler_ratio=None,
            over=30,
            only_if_grown=1.2,
            action="RescheduleAndAlert",
        ),
        hang=Hang(after_s=90.0, action="Alert"),
        nan_loss=NanLoss(action="RestartAndAlert"),
        max_duration_s=108000.0,
        debug_hold_s=14400.0,
        start_timeout_s=300.0,
        lost_rank_grace_s=0.5,
        verify_after_s=60.0,
        unknown_exit="restart",
        warning_signals=("SIGTERM", "SIGUSR1"),
        log_rules=(
            LogRule(id="our-fs", pattern="lustre: .* timed out", failure="storage-io"),
            LogRule(id="tokenizing", pattern="^tokenizing", failure="activity:loading"),
        ),
        timing_formats=(
            TimingFormat(
                id="ours",
                pattern=r"done (?P<step>\d+) in (?P<e2e_s>[0-9.]+) s",
                unless="warm-up",
                first_epoch=0,
            ),
        ),
        keep_log_bytes=64 << 20,
        mode="observe",
    )


def test_what_is_not_written_has_the_defaults_of_the_core() -> None:
    assert only(HEAD + "  mode: enforce") == Policy(name="llama")
    assert only(HEAD + "  resume: {}") == Policy(name="llama", resume=Resume(), restart=None)
    assert only(HEAD + "  restart: {maxRestarts: 0}").restart == Restart(max_restarts=0)
    assert only(HEAD + "  hang: {after: auto}").hang == Hang()


def test_defaults_stay_within_what_administrators_allow() -> None:
    settings = Settings(caps=Caps(max_resumes=2, max_restarts=1, graceful_stop_s=20.0))
    assert only(HEAD + "  mode: enforce", settings).restart == Restart(max_restarts=1, graceful_stop_s=20.0)
    assert only(HEAD + "  resume: {}", settings).resume == Resume(max_resumes=2, graceful_stop_s=20.0)
    assert capped(Policy(), settings.caps).capped == (
        "restart.maxRestarts is 1, not 3 (caps.maxRestarts of the administrators' settings)",
        "restart.gracefulStop is 20s, not 30s (caps.gracefulStop of the administrators' settings)",
    )


def test_the_design_keys_of_later_stages_are_unknown_here() -> None:
    found = problems(HEAD + "  lostNode: force\n  selfFence: 5m\n")
    assert [one.path for one in found] == ["spec.lostNode", "spec.selfFence"]


@pytest.mark.parametrize("asked", ["{}", "{forceAfter: 10m, selfFence: 5m}"])
def test_a_lost_node_means_one_of_two_things(asked: str) -> None:
    (found,) = problems(HEAD + f"  lostNode: {asked}\n")
    assert found.path == "spec.lostNode"
    assert "exactly one of forceAfter, selfFence" in str(found)


def test_a_self_fence_is_never_so_short_that_a_restart_of_the_controllers_ends_jobs() -> None:
    assert only(HEAD + "  lostNode: {selfFence: 2m}").lost_node == LostNode(self_fence_s=120.0)
    (found,) = problems(HEAD + "  lostNode: {selfFence: 119s}\n")
    assert found.path == "spec.lostNode.selfFence"


MANY = """\
apiVersion: v1
kind: JobPolicy
metadata: {name: Bad_Name}
spec:
  resume:
    maxResume: 5
    gracefulStop: 600
    checkpoint: {signal: SIGKILL, proof: {logPattern: '(a', fileGone: x}}
  restart: {}
  logRules:
    - {id: a, pattern: '(?=x)', failure: storage-oi}
    - {id: a, pattern: '.*'}
  timingFormats:
    - {id: a, pattern: '(\\d+) s'}
    - {id: a, pattern: '(?P<speed>\\d+) s', unless: '('}
  performance: {maxHardwareRatio: 0.5, minHardwareRatio: 0.6}
"""


def test_all_problems_are_told_at_once_each_with_line_column_and_path() -> None:
    found = [(one.line, one.column, one.path) for one in problems(MANY)]
    assert found == [
        (1, 13, "apiVersion"),
        (3, 18, "metadata.name"),
        (6, 5, "spec.resume.maxResume"),
        (7, 19, "spec.resume.gracefulStop"),
        (8, 26, "spec.resume.checkpoint.signal"),
        (8, 42, "spec.resume.checkpoint.proof"),
        (8, 55, "spec.resume.checkpoint.proof.logPattern"),
        (9, 12, "spec.restart"),
        (11, 24, "spec.logRules[0].pattern"),
        (11, 42, "spec.logRules[0].failure"),
        (12, 7, "spec.logRules[1].failure"),
        (12, 12, "spec.logRules[1].id"),
        (12, 24, "spec.logRules[1].pattern"),
        (14, 24, "spec.timingFormats[0].pattern"),
        (15, 12, "spec.timingFormats[1].id"),
        (15, 24, "spec.timingFormats[1].pattern"),
        (15, 52, "spec.timingFormats[1].unless"),
        (16, 58, "spec.performance.minHardwareRatio"),
    ]


def test_a_problem_reads_as_file_line_column_path_found_and_expected(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(HEAD + "  resume: {maxResumes: five}\n")
    with pytest.raises(ConfigErrors) as caught:
        load_policies(file)
    assert str(caught.value) == (
        f"{file}:5:24: spec.resume.maxResumes: found 'five', expected a whole number from 0 to 10000"
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("  reusme: {}", "did you mean resume?"),
        ("  resume: {max_resumes: 3}", "did you mean maxResumes?"),
        ("  maxResumes: 3", "did you mean spec.resume.maxResumes?"),
        ("  emails: [a@b.c]", "did you mean spec.owner.emails?"),
        ("  zzzzzz: 3", "one of jobs, owner, resume"),
    ],
)
def test_an_unknown_key_gets_the_key_that_was_meant(spec: str, expected: str) -> None:
    assert expected in problem(spec).expected


@pytest.mark.parametrize(
    ("spec", "path", "expected"),
    [
        ("  resume: {}\n  restart: {}", "spec.restart", "not both"),
        ("  elastic: {minNodes: 1}", "spec.elastic", "resume beside"),
        ("  nanLoss: {action: RestartAndAlert}", "spec.nanLoss.action", "resume beside"),
        (
            "  performance: {maxHardwareRatio: 0.9, action: RescheduleAndAlert}",
            "spec.performance.action",
            "resume beside",
        ),
        (
            "  resume: {}\n  performance: {action: RescheduleAndAlert}",
            "spec.performance.action",
            "no default",
        ),
        (
            "  performance: {maxHardwareRatio: 0.5, minHardwareRatio: 0.5}",
            "spec.performance.minHardwareRatio",
            "less than maxHardwareRatio (0.5)",
        ),
        ("  performance: {onlyIfGrown: 1.2}", "spec.performance.onlyIfGrown", "maxHardwareRatio beside"),
        (
            "  resume: {checkpoint: {proof: {logPattern: a, fileAppears: b}}}",
            "spec.resume.checkpoint.proof",
            "exactly one of logPattern, fileAppears, fileGone",
        ),
        ("  resume: {checkpoint: {proof: {}}}", "spec.resume.checkpoint.proof", "exactly one"),
        ("  resume: {checkpoint: {ifUnproved: move}}", "spec.resume.checkpoint.ifUnproved", "a proof beside"),
        ("  owner: {mails: [none, started]}", "spec.owner.mails", "none alone"),
        ("  resume: {maxResumes: 2, maxJob: 3}", "spec.resume.maxJob", "at most maxResumes (2)"),
    ],
)
def test_contradictions_are_refused(spec: str, path: str, expected: str) -> None:
    one = problem(spec)
    assert one.path == path
    assert expected in one.expected


@pytest.mark.parametrize(
    ("spec", "note", "changes"),
    [
        (
            "  resume: {maxResumes: 4, maxJob: 4, gracefulStop: 1m}",
            "resume.maxResumes is 3, not 4 (caps.maxResumes of the administrators' settings)",
            {"resume": Resume(max_resumes=3, max_job=3, graceful_stop_s=60.0), "restart": None},
        ),
        (
            "  restart: {maxRestarts: 3}",
            "restart.maxRestarts is 2, not 3 (caps.maxRestarts of the administrators' settings)",
            {"restart": Restart(max_restarts=2)},
        ),
        (
            "  restart: {maxRestarts: 1, gracefulStop: 6m}",
            "restart.gracefulStop is 5m, not 6m (caps.gracefulStop of the administrators' settings)",
            {"restart": Restart(max_restarts=1, graceful_stop_s=300.0)},
        ),
        (
            "  restart: {maxRestarts: 1, resetAfter: 1h}",
            "restart.resetAfter is 2h, not 1h (caps.resetAfterMin of the administrators' settings)",
            {"restart": Restart(max_restarts=1, reset_after_s=7200.0)},
        ),
        (
            "  resume: {maxResumes: 1, gracefulStop: 1m, checkpoint: {timeout: 20m}}",
            "resume.checkpoint.timeout is 10m, not 20m (caps.checkpointTimeout of the administrators' settings)",
            {
                "resume": Resume(max_resumes=1, graceful_stop_s=60.0, checkpoint=Checkpoint(timeout_s=600.0)),
                "restart": None,
            },
        ),
        (
            "  restart: {maxRestarts: 1}\n  debugHold: 5h",
            "debugHold is 4h, not 5h (caps.debugHold of the administrators' settings)",
            {"restart": Restart(max_restarts=1), "debug_hold_s": 14_400.0},
        ),
    ],
)
def test_what_exceeds_the_administrators_cap_becomes_what_they_allow_and_is_told(
    spec: str, note: str, changes: dict[str, object]
) -> None:
    caps = Caps(
        max_resumes=3,
        max_restarts=2,
        graceful_stop_s=300.0,
        checkpoint_timeout_s=600.0,
        debug_hold_s=14_400.0,
        reset_after_min_s=7200.0,
    )
    policy = only(HEAD + spec, Settings(caps=caps))
    assert policy == structs.replace(Policy(name="llama", capped=(note,)), **changes)
    assert f"Not as it was asked: {note}" in policy_words(policy)
    assert only(HEAD + spec).capped == (), "the caps that nobody has set are wide"


@pytest.mark.parametrize(
    "pattern",
    [
        "(a",
        "(?=x)y",
        "(?<!x)y",
        r"(a)\1",
        "(a{1000}){1000}",
        "a{1001}",
        ".*",
        "a?",
        "",
        "^",
        "x" * 1001,
        r"a\nb\z",
    ],
)
def test_patterns_that_are_broken_hostile_or_match_everything_are_refused(pattern: str) -> None:
    started = time.process_time()
    quoted = pattern.replace("'", "''")
    one = problem(f"  resume: {{checkpoint: {{proof: {{logPattern: '{quoted}'}}}}}}")
    assert one.path == "spec.resume.checkpoint.proof.logPattern"
    assert "a regular expression" in one.expected
    assert len(str(one)) < 400
    assert time.process_time() - started < 5, "refusing must not be the attack"


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$b", r"saved (?i:checkpoint)\b", "чекпойнт", r"^\s*epoch \d+/\d+"]
)
def test_patterns_that_only_look_hard_are_taken(pattern: str) -> None:
    policy = only(HEAD + f"  resume: {{checkpoint: {{proof: {{logPattern: '{pattern}'}}}}}}")
    assert policy.resume
    assert policy.resume.checkpoint
    assert policy.resume.checkpoint.proof == Proof(log_pattern=pattern)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("SIGKILL", "can catch"),
        ("SIGSTOP", "can catch"),
        ("USR1", "(SIGUSR1?)"),
        ("sigusr1", "like SIGUSR1"),
        ("10", "the name of a signal"),
        ("SIG_IGN", "the name of a signal"),
    ],
)
def test_signals_that_are_unknown_or_cannot_be_caught_are_refused(written: str, expected: str) -> None:
    assert expected in problem(f"  resume: {{checkpoint: {{signal: {written}}}}}").expected
    assert problem(f"  warningSignals: [SIGTERM, {written}]").path == "spec.warningSignals[1]"


def test_every_catchable_signal_of_this_system_is_taken() -> None:
    for one in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        assert only(HEAD + f"  warningSignals: [{one.name}]").warning_signals == (one.name,)


@pytest.mark.parametrize(
    "written",
    ['"a@b\\r\\nBcc: c@d"', "nobody", "a@b@c", "'a b@c'", "'Me <a@b>'", "3", "'@b'", "'a@'", '"a@\\u202eb"'],
)
def test_addresses_that_could_write_headers_or_reach_nobody_are_refused(written: str) -> None:
    one = problem(f"  owner: {{emails: [ok@example.com, {written}]}}")
    assert one.path == "spec.owner.emails[1]"
    assert "\n" not in str(one)


@pytest.mark.parametrize(
    "spec",
    [
        "  resume: {maxResumes: -1}",
        "  resume: {maxResumes: 1.5}",
        "  resume: {maxResumes: '5'}",
        "  resume: {maxResumes: true}",
        "  resume: {maxResumes: 99999999999999999999}",
        "  resume:",
        "  resume: 5",
        "  resume: [maxResumes]",
        "  elastic: {allowGrow: 1}\n  resume: {}",
        "  elastic: {minNodes: 0}\n  resume: {}",
        "  performance: {maxHardwareRatio: .nan}",
        "  performance: {maxHardwareRatio: 90}",
        "  performance: {maxHardwareRatio: 0}",
        "  performance: {stragglerRatio: 1}",
        "  performance: {stragglerRatio: true}",
        "  performance: {over: 2}",
        "  hang: {after: .inf}",
        "  hang: {after: 0s}",
        "  hang: {after: never}",
        "  hang: {action: RescheduleAndAlert}",
        "  maxDuration: 0s",
        "  maxDuration: 1000d",
        "  mode: on",
        "  unknownExit: maybe",
        "  precheck: {checks: gpu}",
        "  precheck: {checks: [gpus]}",
        "  precheck: {checks: [[gpu]]}",
        "  logs: {keepBytes: 1k}",
        "  logs: {keepBytes: 1000000}",
        "  logRules: {id: a}",
        "  logRules: [3]",
        "  logRules: [{id: a.b, pattern: x, failure: unknown}]",
        "  logRules: [{id: a, pattern: x, failure: 'activity:juggling'}]",
        "  timingFormats: [{id: a}]",
        "  timingFormats: [{id: a, pattern: '(?P<step>x)', literal: x}]",
        "  jobs: {matchLabels: {a: 1}}",
        "  resume: {checkpoint: {proof: {fileAppears: ''}}}",
        "  resume: {checkpoint: {proof: {fileAppears: 3}}}",
        '  resume: {checkpoint: {proof: {fileAppears: "a\\0b"}}}',
    ],
)
def test_values_that_do_not_fit_are_refused_where_they_stand(spec: str) -> None:
    one = problem(spec)
    assert one.line in (4, 5)
    assert one.path.startswith("spec.")
    assert one.expected


def test_several_policies_in_one_file_are_all_read() -> None:
    text = HEAD + "  mode: observe\n---\n" + HEAD.replace("llama", "other") + "  mode: enforce\n"
    assert [(one.name, one.mode) for one in load_policies(text)] == [
        ("llama", "observe"),
        ("other", "enforce"),
    ]


def test_problems_in_several_documents_and_a_name_used_twice_have_their_lines() -> None:
    text = HEAD + "  mode: x\n---\n" + HEAD + "  mode: observe\n---\n" + HEAD + "  mode: enforce\n"
    assert [(one.line, one.path) for one in problems(text)] == [(5, "spec.mode"), (15, "metadata.name")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: Settings", "found 'Settings', expected JobPolicy"),
        ("spec: {}", "expected kind: JobPolicy"),
        ("just text", "found 'just text', expected a JobPolicy document"),
        ("- a\n- b", "found a list, expected a JobPolicy document"),
        ("kind: [JobPolicy]", "found a list, expected JobPolicy"),
    ],
)
def test_a_document_of_another_kind_is_told_in_one_sentence(text: str, expected: str) -> None:
    (one,) = problems(text)
    assert expected in str(one)


def test_components_of_a_precheck_and_failure_classes_are_those_that_exist() -> None:
    from sentinel.checks.table import CHECKS

    assert set(PRECHECKS) <= {check.component.value for check in CHECKS}
    assert {"nccl-timeout", "storage-io"} <= failure_classes()


def test_a_policy_survives_the_way_to_another_process() -> None:
    policy = only(FULL)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy


def test_every_example_policy_is_good(repo: Path) -> None:
    files = sorted((repo / "examples" / "policies").glob("*.yaml"))
    assert files
    for file in files:
        assert load_policies(file)


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ("{}", "names no owner to mail"),  # its job may name one
        ("{mails: [gave-up]}", "names no owner to mail of gave-up"),
        ("{mails: [none]}", "mails nobody"),
        ("{emails: [ann@example.com], mails: [none]}", "mails nobody"),
        ("{emails: [ann@example.com], mails: [notice]}", "mails ann@example.com of notice"),
    ],
)
def test_who_is_mailed_is_said_as_far_as_the_policy_tells(owner: str, words: str) -> None:
    assert policy_words(only(f"{HEAD}  owner: {owner}\n")).endswith(f", {words}")
