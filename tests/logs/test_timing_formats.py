"""Which format of several counts, and that none is counted twice."""

from pathlib import Path

import pytest

from sentinel.core.now import Now
from sentinel.core.policy_model import TimingFormat
from sentinel.logs.formats import Format, TimingRow, check_row, quick_pattern
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet, load_ruleset

NOW = Now(mono_s=5.0, wall_s=1_750_000_000.0)


def hardware(value: float) -> str:
    return f"this iteration hardware time is {value} and e2e time is {value + 1} ms.\n"


def megatron(step: int) -> str:
    return f" iteration {step:8}/    1000 | consumed samples: 16 | elapsed time per iteration (ms): 7.5 |\n"


def steps(text: str, rules: RuleSet, path: Path) -> list[tuple[int | None, float | None]]:
    path.write_text(text)
    return [(one.step, one.hardware_ms) for one in RankLog(path, rules).poll(NOW).iterations]


def test_the_hardware_line_counts_and_takes_its_step_from_the_line_before(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = "".join(megatron(step) + hardware(step) for step in range(1, 6))
    got = steps(text, shipped, tmp_path / "log")
    # the first iteration was told by the poorer line before the richer one was known
    assert got == [(1, None), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0)]


def test_with_the_hardware_line_first_the_line_behind_it_names_its_step(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = "".join(hardware(step) + megatron(step) for step in range(1, 5))
    assert steps(text, shipped, tmp_path / "log") == [(None, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_a_borrowed_step_is_used_once(shipped: RuleSet, tmp_path: Path) -> None:
    text = hardware(1) + megatron(10) + hardware(2) + hardware(3)
    assert steps(text, shipped, tmp_path / "log") == [(None, 1.0), (11, 2.0), (None, 3.0)]


def test_a_format_that_fell_silent_gives_way_and_may_come_back(shipped: RuleSet, tmp_path: Path) -> None:
    text = hardware(1) + "".join(megatron(step) for step in range(1, 80))
    got = steps(text, shipped, tmp_path / "log")
    assert got[0] == (None, 1.0)
    assert got[1:] == [(step, None) for step in range(51, 80)]
    back = steps(
        text + "".join(megatron(80 + n) + hardware(n) for n in range(1, 6)), shipped, tmp_path / "log"
    )
    assert back[-1] == (85, 5.0)


def lightning(epoch: int, step: int, total: int) -> str:
    return f"Epoch {epoch}:  6%|   | {step}/{total} [00:43<00:39,  1.25it/s]\n"


def test_a_line_tells_its_step_within_its_epoch_and_the_number_that_counts_on() -> None:
    row = TimingRow(id="x", pattern=r"e(?P<epoch>\d+) (?P<step>\d+)(?:/(?P<total>\d+))?", source="")
    for text, told in (
        (b"e3 4/10", (4, 2, 24)),
        (b"e0 4/10", (4, 0, 4)),  # none comes before the first
        (b"e3 4", (4, None, 4)),
    ):
        values = Format(row, 0).parse(text)
        assert values is not None
        assert (values.step, values.epoch, values.number) == told
    assert Format(row, 0).parse(b"e99999999 4/99999999") is None, "no store takes it"


def test_a_bar_that_has_not_begun_keeps_no_shorter_one_from_being_the_training_s(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = bar(0) + "".join(f"  1%|  | {step}/90 [00:07<02:39, 7.23s/it\n" for step in range(1, 4))
    assert steps(text, shipped, tmp_path / "log") == [(0, None), (1, None), (2, None), (3, None)]


def test_a_shorter_last_epoch_counts_on(shipped: RuleSet, tmp_path: Path) -> None:
    text = "".join(
        lightning(epoch, step, total)
        for epoch, total in enumerate((10, 10, 4))
        for step in range(1, total + 1)
    )
    got = steps(text, shipped, tmp_path / "log")
    assert [step for step, _ in got] == list(range(1, 25))
    path, read = tmp_path / "parts", []
    position = None
    for part in (text[:700], text[:1100], text):  # by a new reader each time
        path.write_text(part[: part.rindex("\n") + 1])
        log = RankLog(path, shipped, position=position)
        read += [one.step for one in log.poll(NOW).iterations]
        position = log.position
    assert read == list(range(1, 25))


def test_an_epoch_s_evaluation_in_the_same_lines_moves_no_step(shipped: RuleSet, tmp_path: Path) -> None:
    lines = [
        f"Epoch {epoch} Step {step}/{total} loss: 0.5\n"
        for epoch in (1, 2, 3)
        for total in (10, 2)
        for step in range(1, total + 1)
    ]
    got = [step for step, _ in steps("".join(lines), shipped, tmp_path / "log")]
    assert max(step for step in got if step is not None) == 30


def test_what_begins_anew_behind_a_shorter_epoch_counts_from_whole_ones(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = "".join(
        lightning(epoch, step, total)
        for epoch, total in ((0, 10), (1, 4), (0, 10), (1, 4))
        for step in range(1, total + 1)
    )
    got = [step for step, _ in steps(text, shipped, tmp_path / "log")]
    assert got == [*range(1, 15)] * 2


OURS = TimingFormat(id="ours", pattern=r"^done (?P<step>\d+)\b", unless="again")


def bar(step: int) -> str:
    return f"  1%|  | {step}/90000 [00:07<02:39, 7.23s/it\r\n"


def test_the_format_that_the_owner_named_counts_alone(tmp_path: Path) -> None:
    rules = load_ruleset(extra_formats=(OURS,))
    text = "".join(
        f"done {step}\n" + f"done {step + 1} again\n" + "".join(bar(100 * step + n) for n in range(60))
        for step in range(1, 5)
    )
    assert steps(bar(1) + text, rules, tmp_path / "log") == [(1, None), (2, None), (3, None), (4, None)]
    assert steps(bar(1) + bar(2), rules, tmp_path / "log") == []


def test_a_step_that_the_owner_s_format_tells_again_is_the_same(tmp_path: Path) -> None:
    rules = load_ruleset(extra_formats=(OURS,))
    assert steps("done 1\ndone 2\n" + "done 3\n" * 50, rules, tmp_path / "log") == [
        (1, None),
        (2, None),
        (3, None),
    ]


def test_the_owner_s_epochs_may_begin_at_0(tmp_path: Path) -> None:
    zero = TimingFormat(
        id="zero",
        pattern=r"epoch (?P<epoch>\d+) batch (?P<step>\d+)/(?P<total>\d+)",
        first_epoch=0,
    )
    text = "".join(f"epoch {epoch} batch {batch}/5\n" for epoch in range(3) for batch in range(1, 6))
    got = steps(text, load_ruleset(extra_formats=(zero,)), tmp_path / "log")
    assert [step for step, _ in got] == list(range(1, 16))


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"\(?P<step> (?P<total>\d+)", "(P<step> 7"),
        (r"[](]step (?P<step>\d+)", "]step 7"),
        (r"[[:alpha:](]+ (?P<step>\d+) of", "done 7 of"),
        (r"\Q(\E(?P<step>\d+)", "(7"),
        (r"step (?P<step>\d+)|(?P<e2e_s>\d+) s", "step 7"),
    ],
)
def test_the_groups_of_a_pattern_are_those_that_it_has(pattern: str, line: str, tmp_path: Path) -> None:
    rules = load_ruleset(extra_formats=(TimingFormat(id="odd", pattern=pattern),))
    assert len(steps(f"{line}\n", rules, tmp_path / "log")) == 1


def test_an_escaped_bracket_makes_no_format_one_of_epochs(tmp_path: Path) -> None:
    """A format of epochs would give way to any other, and lend no step."""
    own = TimingFormat(id="own", pattern=r"\(?P<epoch> done")
    [form] = [form for form in load_ruleset(extra_formats=(own,)).formats if form.row.id == "own"]
    assert form.groups == ()
    assert not form.epochs_only


def test_of_two_formats_that_the_owner_named_the_second_may_follow_the_first(tmp_path: Path) -> None:
    rules = load_ruleset(extra_formats=(OURS, TimingFormat(id="tuned", pattern=r"^tuned (?P<step>\d+)")))
    text = "done 1\ndone 2\n" + "".join(f"tuned {step}\n" for step in range(3, 60))
    assert steps(text, rules, tmp_path / "log")[-1] == (59, None)


def test_the_owner_s_format_may_replace_a_shipped_one(shipped: RuleSet, tmp_path: Path) -> None:
    [row] = [form.row for form in shipped.formats if form.row.id == "megatron"]
    every = TimingFormat(id="megatron", pattern=row.pattern, unless=r"elapsed time per iteration \(ms\): 7")
    assert steps(megatron(1) + megatron(2), load_ruleset(extra_formats=(every,)), tmp_path / "log") == []


def test_the_owner_s_format_replaces_of_a_shipped_one_what_it_gives(tmp_path: Path) -> None:
    own = TimingFormat(id="pytorch-dcgan", pattern=r"^at (?P<epoch>\d+), (?P<step>\d+) of (?P<total>\d+)")
    text = "".join(f"at {epoch}, {step} of 3\n" for epoch in (0, 1) for step in (1, 2, 3))
    got = steps(text, load_ruleset(extra_formats=(own,)), tmp_path / "log")
    assert [step for step, _ in got] == [1, 2, 3, 4, 5, 6], "its epochs begin at 0"
    bars = TimingFormat(id="tqdm-s", pattern=r" (?P<step>\d+) of (?P<total>\d+) done")
    text = "|  | 1 of 3 done\nValidation | 2 of 3 done\n|  | 3 of 3 done\n"
    got = steps(text, load_ruleset(extra_formats=(bars,)), tmp_path / "log")
    assert [step for step, _ in got] == [1, 3], "its evaluations are none"


@pytest.mark.parametrize("text", ["done 1", "done 1\n", "\n\ndone 1\n\n", "done 1\nx", "x\ndone 1 \n", ""])
def test_a_format_without_a_literal_is_looked_for_in_every_line_once(text: str) -> None:
    form = Format(TimingRow(id="x", pattern=OURS.pattern, source=""), 0)
    assert [values.step for _, values in form.lines(text.encode())] == [1] * ("done" in text)


def test_a_restart_keeps_the_choice_of_the_format(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(hardware(1))
    log = RankLog(path, shipped)
    log.poll(NOW)
    with path.open("a") as file:
        file.write(megatron(7) + hardware(2))
    [iteration] = RankLog(path, shipped, position=log.position).poll(NOW).iterations
    assert (iteration.step, iteration.hardware_ms) == (8, 2.0)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<e2e_ms>[0-9.]+)5 ms",  # the number would swallow the 5
        r"a(?P<e2e_ms>[0-9.]+)(?P<hardware_ms>[0-9.]+)b",
        r"time (?:is|was) (?P<e2e_ms>[0-9.]+)",
        r"time .*(?P<e2e_ms>[0-9.]+)",
        r"time \s+ (?P<e2e_ms>\d+)",
    ],
)
def test_only_patterns_without_choices_take_the_quick_way(pattern: str) -> None:
    assert quick_pattern(pattern) is None


def test_the_quick_way_knows_fixed_text_blanks_and_numbers() -> None:
    assert quick_pattern(r"took\s+(?P<hardware_ms>\d+) of (?P<e2e_ms>[0-9.]+) ms \(all\)") is not None


def test_a_row_with_mistakes_names_them_all() -> None:
    row = TimingRow(id="x", pattern=r"[[(] (\d+) (?P<speed>\d+)", unless="(?=x)", source="")
    problems = "\n".join(check_row(row))
    for part in ("unless: not a valid RE2", "pattern: no group but", "(not speed)"):
        assert part in problems
    unnamed = TimingRow(id="x", pattern=r"(\d+) (?P<step>\d+)", source="")
    assert "a name for each group" in "\n".join(check_row(unnamed))
    assert "not a valid RE2" in "\n".join(check_row(TimingRow(id="x", pattern="(?=x)", source="")))


def test_numbers_that_are_none_and_numbers_without_end_are_refused() -> None:
    count = Format(TimingRow(id="x", pattern=r"n (?P<step>\d+)", literal="n ", source=""), 0)
    assert count.parse(b"n 123456789012345") is not None
    assert count.parse(b"n 1234567890123456") is None, "an id, a hash: no store takes it"
    form = Format(TimingRow(id="x", pattern=r"t (?P<e2e_s>[0-9.]+)", literal="t ", source=""), 0)
    assert form.parse(b"t 1.2.3") is None
    assert form.parse(b"t " + b"9" * 400) is None
    assert form.parse(b"t 1.5").e2e_ms == 1500.0  # type: ignore[union-attr]
