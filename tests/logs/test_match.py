"""Patterns: what is refused, that both engines agree, that nothing takes more than linear time."""

import re
import time
import tomllib
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentinel.core.policy_model import LogRule, TimingFormat
from sentinel.logs import match
from sentinel.logs.match import LinePattern, Scanner, as_bytes, check_pattern
from sentinel.logs.ruleset import RuleSet, load_ruleset
from sentinel.rules.tables import RuleError

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "empty"),
        ("(unclosed", "not a valid RE2"),
        (r"(?=look)ahead", "not a valid RE2"),
        (r"(a)\1", "not a valid RE2"),
        ("x*", "empty line"),
        ("a" * 1001, "1001 characters"),
        ("a\nb", "line end"),
        (r"\Astart", "use ^ and $"),
        ("[äö]x", "outside ASCII"),
        ("((a{1,100}){1,100}){1,100}", "not a valid RE2"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_with_the_reason(pattern: str, said: str) -> None:
    problem = check_pattern(pattern)
    assert problem is not None
    assert said in problem


@pytest.mark.parametrize(
    "pattern",
    ["saved checkpoint", r"^step \d+ done$", "(?i)error|failed", "(a+)+b", "gespeichert ä+", r"\\A"],
)
def test_ordinary_patterns_are_accepted(pattern: str) -> None:
    assert check_pattern(pattern) is None


def test_a_pattern_that_makes_other_engines_backtrack_forever_takes_linear_time() -> None:
    hostile = LogRule(id="hostile", pattern="(a+)+b", failure="unknown")
    rules = load_ruleset((hostile,))
    text = b"a" * 50_000 + b"\n" + b"b\n"
    begun_s = time.process_time()
    present, _ = rules.present(text)
    for index, start in present:
        assert list(rules.patterns[index].lines(text, start)) == []
    assert time.process_time() - begun_s < 20.0  # `re` would need longer than the universe has lasted


def test_characters_outside_ascii_are_matched_as_a_whole() -> None:
    pattern = LinePattern("gespeichert ä+!")
    assert pattern.matches("gespeichert äää!".encode())
    assert not pattern.matches("gespeichert ö!".encode())


PATTERNS = [
    ("CUDA out of memory", ""),
    (r"^Traceback", ""),
    (r"loss[^x]*nan$", ""),
    (r"a\s+b", ""),
    (r"(?i)error: .*full", ""),
    ("needle", "needle"),
]
words = st.sampled_from(
    [
        "CUDA out of memory",
        "Traceback",
        "loss",
        "nan",
        "a",
        "b",
        " ",
        "\t",
        "\n",
        "\n",
        "x",
        "Error: ",
        "FULL",
        "needle",
    ]
)


def present_lines(scanner: Scanner, text: bytes) -> dict[int, list[int]]:
    found = {}
    for index, start in scanner.present(text):
        lines = [bounds[0] for bounds in LinePattern(*PATTERNS[index]).lines(text, start)]
        if lines:
            found[index] = lines
    return found


@settings(max_examples=200)
@given(st.lists(words, max_size=40))
@example(["loss", "\n", "nan"])
@example(["a", "\n", "b", "\n", "a", "\t", "b"])
@example(["loss", "\n", "loss", " ", "nan", "\n", "loss", "nan"])
def test_a_chunk_tells_the_same_as_each_of_its_lines(parts: list[str]) -> None:
    text = "".join(parts).encode()
    expected: dict[int, list[int]] = {}
    offset = 0
    for one in text.split(b"\n"):
        for index, (pattern, _) in enumerate(PATTERNS):
            if re.search(pattern.encode(), one):
                expected.setdefault(index, []).append(offset)
        offset += len(one) + 1
    assert present_lines(SCANNER, text) == expected
    assert present_lines(FALLBACK, text) == expected


def make_fallback() -> Scanner:
    """The engine that is used where there is no hyperscan."""
    saved = match.hyperscan_module
    match.hyperscan_module = lambda: None  # type: ignore[assignment]
    try:
        return Scanner([as_bytes(pattern) for pattern, _ in PATTERNS])
    finally:
        match.hyperscan_module = saved


SCANNER = Scanner([as_bytes(pattern) for pattern, _ in PATTERNS])
FALLBACK = make_fallback()


def test_both_engines_are_there() -> None:
    assert (SCANNER.engine, FALLBACK.engine) == ("hyperscan", "re2")


def test_hyperscan_overlooks_no_shipped_rule_in_real_text() -> None:
    """It did once, where one pattern of three had a line's beginning in one of its branches: RE2 is what counts."""
    rules = load_ruleset()
    known = tomllib.loads((HERE / "rule_lines.toml").read_text())["line"]
    texts = [log.read_text() for log in sorted((HERE / "launchers").glob("*.log"))]
    texts += [end["log"] for end in tomllib.loads((HERE / "ends.toml").read_text())["end"]]
    lines = [entry["yes"] for entry in known] + [line for text in texts for line in text.split("\n")]
    mixed = Random(7)
    texts += ["\n".join(mixed.sample(lines, count)) for count in (3, 10, 40, 200) for _ in range(40)]
    alone = [LinePattern(rule.pattern) for rule in rules.rules]
    for text in (text.encode() for text in texts):
        seen = {index for index, _ in rules.scanner.present(text)}
        missed = [rules.rules[k].id for k, one in enumerate(alone) if k not in seen and one.matches(text)]
        assert missed == []


def test_compiled_patterns_are_kept_and_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    load_ruleset(cache_dir=tmp_path)
    [kept] = tmp_path.iterdir()
    good = kept.read_bytes()
    before = kept.stat().st_mtime_ns
    again = load_ruleset(cache_dir=tmp_path)
    assert kept.stat().st_mtime_ns == before
    assert again.present(b"OSError: [Errno 28] No space left on device\n")[0]
    kept.write_bytes(b"nonsense")
    healed = load_ruleset(cache_dir=tmp_path)
    assert healed.present(b"OSError: [Errno 28] No space left on device\n")[0]
    assert kept.read_bytes() == good


def test_other_patterns_use_another_file(tmp_path: Path) -> None:
    load_ruleset(cache_dir=tmp_path)
    load_ruleset((LogRule(id="mine", pattern="mine", failure="proof"),), cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert isinstance(load_ruleset(cache_dir=blocked / "cache"), RuleSet)


def test_every_problem_of_added_rules_is_listed_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[[rule]]\nid = "One"\npattern = "("\nfailure = "x y"\n[[rule]]\nid = "two"\npatern = "x"\n'
    )
    (tmp_path / "b.toml").write_text('[[timing]]\nid = "t"\npattern = "(x"\nsource = ""\n')
    (tmp_path / "c.toml").write_text("not toml")
    (tmp_path / "d.toml").write_text('[[rule]]\nid = "ok"\npattern = "("\nunless = "["\nfailure = "proof"\n')
    with pytest.raises(RuleError) as caught:
        load_ruleset(
            (LogRule(id="mine", pattern="(?=x)", failure="proof"),),
            str(tmp_path),
            extra_formats=(TimingFormat(id="mine", pattern="x", unless="[x"),),
        )
    text = "\n".join(caught.value.problems)
    for part in (
        "a.toml: rule[1]",
        "b.toml: timing[0].pattern",
        "c.toml",
        "d.toml: rule[0].pattern",
        "d.toml: rule[0].unless",
        "logRules[0]",
        "timingFormats[0].unless",
    ):
        assert part in text


def test_an_added_row_replaces_the_shipped_one_of_its_id(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[[rule]]\nid = "no-space"\npattern = "disco pieno"\nfailure = "storage-full"\n'
    )
    rules = load_ruleset(extra_dir=str(tmp_path))
    [mine] = [rule for rule in rules.rules if rule.id == "no-space"]
    assert mine.pattern == "disco pieno"
    assert len(rules.rules) == len(load_ruleset().rules)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="nowhere: not a folder"):
        load_ruleset(extra_dir=str(tmp_path / "nowhere"))
