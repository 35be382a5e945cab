"""`sentinel validate`: all files, all problems, and what good files say in words."""

import argparse
from pathlib import Path

import msgspec
import pytest

from sentinel.cli import validate
from tests.config.test_policy import FULL, HEAD
from tests.config.test_settings import FULL_SETTINGS, SETTINGS_HEAD

RULES = """\
[[rule]]
id = "our-fs"
pattern = 'lustre: .* timed out'
failure = "storage-io"
source = "our logs"

[[timing]]
id = "ours"
pattern = 'step (?P<step>\\d+) took (?P<e2e_ms>[0-9.]+) ms'
literal = " took "
source = "our logs"
"""

BAD_RULES = """\
[[rule]]
id = "a"
pattern = '(x'
failure = "storage-oi"

[[rule]]
id = "a"
pattern = 'x'
failure = "unknown"
patern = 'y'

[[rule]]
id = 5

[[timing]]
id = "t"
pattern = '(?P<bogus>x)'
literal = "x"
source = "x"

[[tming]]
id = "t"
"""


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    validate.add_arguments(parser)
    return validate.main(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "policy.yaml").write_text(FULL)
    (tmp_path / "below" / "settings.yml").write_text(FULL_SETTINGS)
    (tmp_path / "below" / "rules.toml").write_text(RULES)
    (tmp_path / "README.md").write_text("not looked at")
    return tmp_path


def test_good_files_are_told_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        f"{folder}/below/rules.toml: rules: 1 rule row, 1 timing row",
        f"{folder}/below/settings.yml: settings: mails through smtp.example.com, page on [::1]:9000, "
        "owners may ask at most 9 resumes, 8 restarts and 30m to stop",
        f"{folder}/policy.yaml: policy llama: resumes up to 7 times after a proved save (SIGUSR2, log pattern), "
        "may shrink to 2, detects a hang after 1m30s and tells, moves at a hardware ratio above 0.9 or steps "
        "1.4 times the baseline over 30 iterations, expires after 30h, "
        "mails owner@example.com, team+ml@example.org, only observes",
    ]


def test_problems_of_all_files_are_listed_with_exit_code_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = folder / "bad.yaml"
    bad.write_text(HEAD + "  mode: x\n  hang: {after: 5}\n---\n" + SETTINGS_HEAD + "listen: 3\n")
    rules = folder / "bad.toml"
    rules.write_text(BAD_RULES)
    assert run(bad, folder / "policy.yaml", rules, folder / "none.yaml") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    places = [line.split(": found")[0].split(": expected")[0] for line in err.splitlines()]
    assert places == [
        f"{bad}:5:9: spec.mode",
        f"{bad}:6:17: spec.hang.after",
        f"{bad}:10:9: listen",
        f"{rules}:1:1: rule[0].pattern",
        f"{rules}:1:1: rule[0].failure",
        f"{rules}:6:1: rule[1].patern",
        f"{rules}:12:1: rule[2].id",
        f"{rules}:12:1: rule[2].pattern",
        f"{rules}:12:1: rule[2].failure",
        f"{rules}:15:1: timing[0].pattern",
        f"{rules}:21:1: tming",
        f"{folder}/none.yaml",
        "12 problem(s) in 3 file(s)",
    ]


def test_json_has_the_same_for_programs(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (folder / "bad.yaml").write_text(HEAD + "  mode: x\n")
    assert run("-o", "json", folder) == 1
    answer = msgspec.json.decode(capsysbinary.readouterr().out)
    assert answer["ok"] is False
    assert [one["kind"] for one in answer["files"]] == ["rules", "Settings", "JobPolicy"]
    assert answer["problems"] == [
        {
            "file": f"{folder}/bad.yaml",
            "line": 5,
            "column": 9,
            "path": "spec.mode",
            "found": "'x'",
            "expected": "one of enforce, observe",
        }
    ]


def test_policies_are_held_against_the_caps_of_given_settings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caps = folder / "caps.yaml"
    caps.write_text(SETTINGS_HEAD + "caps: {maxResumes: 3}")
    assert run("--settings", caps, folder / "policy.yaml") == 0
    told = (
        "Not as it was asked: resume.maxResumes is 3, not 7 (caps.maxResumes of the administrators' settings)"
    )
    assert told in capsys.readouterr().out


def test_a_pattern_that_only_the_log_engine_refuses_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RE2 knows ungreedy mode; the engine that scans whole logs does not."""
    from sentinel.logs.match import check_pattern

    pattern = "(?U)a+b"
    assert check_pattern(pattern)
    (folder / "policy.yaml").write_text(
        HEAD + f"  logRules: [{{id: a, pattern: '{pattern}', failure: unknown}}]\n"
    )
    assert run(folder / "policy.yaml") == 1
    assert ":5:31: spec.logRules[0].pattern" in capsys.readouterr().err
    (folder / "policy.yaml").write_text(
        HEAD + f"  timingFormats: [{{id: a, pattern: 'done', unless: '{pattern}'}},"
        f" {{id: b, pattern: '{pattern}'}}]\n"
    )
    assert run(folder / "policy.yaml") == 1
    told = capsys.readouterr().err
    assert "spec.timingFormats[0].unless" in told
    assert "spec.timingFormats[1].pattern" in told


@pytest.mark.parametrize(
    "content", ["a = [1", "a = 1\na = 2", "\0", "", "rule = 5", "x = " + "[" * 5000, "[rule]\nid = 3"]
)
def test_rule_files_that_are_broken_are_told_as_that(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.toml"
    file.write_text(content)
    assert run(file) == 1
    assert str(file) in capsys.readouterr().err


def test_an_empty_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 1
    assert "no such file in it" in capsys.readouterr().err


def test_what_is_shipped_is_good(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(repo / "rules", repo / "examples" / "policies") == 0, capsys.readouterr().err
