"""Every shipped row: real lines match, near misses do not, sources are named, patterns are sound."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from sentinel.core.now import Now
from sentinel.logs.formats import check_row
from sentinel.logs.match import check_pattern
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet
from sentinel.logs.text import plain
from sentinel.rules.tables import data_dir

HERE = Path(__file__).parent
LINES = tomllib.loads((HERE / "rule_lines.toml").read_text())
TIMING = tomllib.loads((HERE / "timing_lines.toml").read_text())["line"]
ADVICE = [(entry["rule"], entry["line"]) for entry in LINES["ignored"]]
QUIET = [
    line
    for line in (HERE / "says_nothing.txt").read_text().splitlines()
    if line and not line.startswith("# ")
]
NOW = Now(mono_s=100.0, wall_s=1_750_000_000.0)


def matched(rules: RuleSet, path: Path, line: str) -> set[str]:
    path.write_text(line + "\n")
    return set(RankLog(path, rules).poll(NOW).counts)


@pytest.mark.parametrize("entry", LINES["line"], ids=lambda entry: entry["rule"])
def test_a_real_line_matches_its_rule_and_a_near_miss_does_not(
    entry: dict[str, str], shipped: RuleSet, tmp_path: Path
) -> None:
    assert entry["rule"] in matched(shipped, tmp_path / "yes", entry["yes"])
    assert entry["rule"] not in matched(shipped, tmp_path / "no", entry["no"])


def test_every_rule_has_lines_and_every_line_a_rule(shipped: RuleSet) -> None:
    assert {rule.id for rule in shipped.rules} == {entry["rule"] for entry in LINES["line"]}


def test_an_xid_that_a_job_quotes_means_what_the_table_of_failures_says(
    shipped: RuleSet, tmp_path: Path
) -> None:
    classes = tomllib.loads((data_dir("rules") / "failures.toml").read_text())["class"]
    claimed = {code: row for row in classes for code in row.get("codes", {}) if code.startswith("XID ")}
    for number in range(1, 174):
        row = claimed.get(f"XID {number}", {})
        sure = row.get("cause") == "gpu" and row.get("restart") == "yes"
        line = f"NVRM: Xid (PCI:0000:41:00): {number}, pid=1, name=python, x"
        assert matched(shipped, tmp_path / "log", line) == ({f"xid-{row['id']}"} if sure else set()), number


@pytest.mark.parametrize(("rule", "line"), ADVICE, ids=[rule for rule, _ in ADVICE])
def test_advice_is_no_failure(rule: str, line: str, shipped: RuleSet, tmp_path: Path) -> None:
    assert matched(shipped, tmp_path / "log", line) <= {"chained"}


def test_advice_on_the_line_of_an_error_hides_no_error(shipped: RuleSet, tmp_path: Path) -> None:
    line = (
        "RuntimeError: CUDA error: an illegal memory access was encountered CUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect. For debugging consider passing "
        "CUDA_LAUNCH_BLOCKING=1."
    )
    assert "illegal-access" in matched(shipped, tmp_path / "log", line)


@pytest.mark.parametrize("line", QUIET)
def test_what_healthy_jobs_print_means_no_failure(line: str, shipped: RuleSet, tmp_path: Path) -> None:
    assert matched(shipped, tmp_path / "log", line) == set()


FORMS = """
program-error     [default1]:[rank1]: NameError: name 'x' is not defined
torchrun-killed   ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 123)
cuda-oom          n:1:2 [0] NCCL INFO Channel 00 : via P2Ptorch.OutOfMemoryError: CUDA out of memory. Tried
argparse          main.py fit: error: unrecognized arguments: --foo
argparse          0: train.py: error: argument -b/--beta BETA: invalid float value: 'x'
c-abort           terminate called after throwing an instance of 'c10::Error'
launcher-sigint   torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGINT
launcher-sigterm  subprocess.CalledProcessError: Command '['python3', 'k.py']' died with <Signals.SIGTERM: 15>.
"""


@pytest.mark.parametrize(("rule", "line"), [row.split(maxsplit=1) for row in FORMS.strip().split("\n")])
def test_other_forms_of_a_line_match_too(rule: str, line: str, shipped: RuleSet, tmp_path: Path) -> None:
    assert rule in matched(shipped, tmp_path / "log", f"Traceback (most recent call last):\n{line}")


def test_a_program_that_a_job_runs_beside_itself_is_no_rank_of_a_launcher(
    shipped: RuleSet, tmp_path: Path
) -> None:
    line = "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."
    assert matched(shipped, tmp_path / "log", line) == {"python-exception"}


def test_patterns_are_valid_and_every_rule_names_its_source(shipped: RuleSet) -> None:
    for rule in shipped.rules:
        assert check_pattern(rule.pattern) is None, rule.id
        assert rule.source, rule.id
    for form in shipped.formats:
        assert check_row(form.row) == [], form.row.id
        assert form.row.source


def test_failures_named_by_rules_are_classes_or_activities(shipped: RuleSet) -> None:
    classes = {row["id"] for row in tomllib.loads((data_dir("rules") / "failures.toml").read_text())["class"]}
    named = {rule.failure for rule in shipped.rules if not rule.failure.startswith("activity:")}
    assert named <= classes
    assert {rule.failure for rule in shipped.rules if rule.failure.startswith("activity:")} == {
        f"activity:{name}" for name in ("compiling", "saving", "saved", "evaluating", "loading")
    }


@pytest.mark.parametrize("entry", TIMING, ids=lambda entry: f"{entry['format']}-{entry['seen'][:20]}")
def test_a_timing_line_tells_its_numbers(entry: dict[str, object], shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    [form] = [form for form in shipped.formats if form.row.id == entry["format"]]
    # What may be a stray line, or tell where a job begins, counts from the second one on, if that has a higher number.
    first = "" if form.proves else re.sub(r"(?<!\d)0*([1-9]\d*)(?![.\d])", "0", str(entry["line"])) + "\n"
    path.write_text(f"{first}{entry['line']}\n")
    [iteration] = RankLog(path, shipped).poll(NOW).iterations
    assert iteration.at_s == NOW.mono_s
    assert iteration.step == entry.get("step")
    assert iteration.hardware_ms == entry.get("hardware_ms")
    expected = entry.get("e2e_ms")
    assert iteration.e2e_ms == (expected if expected is None else pytest.approx(expected, rel=1e-5))


def test_every_format_has_a_line_and_the_line_is_parsed_by_that_format(shipped: RuleSet) -> None:
    by_id = {form.row.id: form for form in shipped.formats}
    assert set(by_id) == {entry["format"] for entry in TIMING}
    for entry in TIMING:
        line = plain(entry["line"].encode())
        assert by_id[entry["format"]].parse(line) is not None, entry["format"]
        literal = by_id[entry["format"]].literal
        assert literal, "without it every line is looked at"
        assert literal in line


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:12<00:00,  6.00s/it]",
        "Map: 100%|██████████| 1000/1000 [00:00<00:00, 12000.00 examples/s]",
        "  0%|          | 0/1000 [00:00<?, ?it/s]",
        "Validation DataLoader 0:  50%|█████     | 5/10 [00:01<00:01,  4.00it/s]",
        "this iteration hardware time is fast and e2e time is slow ms.",
        "this iteration hardware time is 1.2.3 and e2e time is 4.5 ms.",
    ],
)
def test_what_only_looks_like_an_iteration_is_none(line: str, shipped: RuleSet, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line + "\n")
    assert RankLog(tmp_path / "log", shipped).poll(NOW).iterations == []


def test_matches_are_plain_records(shipped: RuleSet, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LINES["line"][1]["yes"] + "\n")
    batch = RankLog(tmp_path / "log", shipped, rank=3, incarnation=2).poll(NOW)
    [match] = batch.matches
    assert (match.rank, match.incarnation, match.failure) == (3, 2, "gpu-hardware")
    assert msgspec.json.decode(msgspec.json.encode(match), type=type(match)) == match


def test_every_rule_that_knows_the_marks_of_launchers_knows_all_of_them(shipped: RuleSet) -> None:
    marks = r"(?:\[\w+\]: ?|\(\w+ pid=\d+[^)]*\) | {0,4}\d+: )*"
    for rule in shipped.rules:
        assert r"\[\w+\]: ?" not in rule.pattern.replace(marks, ""), rule.id
