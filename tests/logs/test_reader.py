"""A rank's log as a whole: what one batch tells does not depend on how the bytes arrived."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.core.now import Now
from sentinel.core.policy_model import LogRule
from sentinel.core.reports import Iteration, LogMatch
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet, load_ruleset

NOW = Now(mono_s=5.0, wall_s=1_750_000_000.0)
HARDWARE = b"this iteration hardware time is %d.5 and e2e time is %d.25 ms."
LINES = [
    *(
        entry["yes"].encode()
        for entry in tomllib.loads((Path(__file__).parent / "rule_lines.toml").read_text())["line"]
    ),
    *(
        entry["line"].encode()
        for entry in tomllib.loads((Path(__file__).parent / "timing_lines.toml").read_text())["line"]
    ),
]


def read_all(
    log: RankLog, limit_bytes: int = 1 << 20
) -> tuple[list[Iteration], list[tuple[str, str]], dict[str, int]]:
    iterations: list[Iteration] = []
    matches: list[tuple[str, str]] = []
    counts: dict[str, int] = {}
    for _ in range(100_000):
        batch = log.poll(NOW, limit_bytes)
        iterations += batch.iterations
        matches += [(match.rule, match.line) for match in batch.matches]
        for rule, count in batch.counts.items():
            counts[rule] = counts.get(rule, 0) + count
        if batch.caught_up:
            return iterations, matches, counts
    raise AssertionError("never caught up")


line = st.one_of(
    st.sampled_from(LINES),
    st.builds(lambda a, b: HARDWARE % (a, b), st.integers(0, 9999), st.integers(1, 9999)),
    st.builds(
        lambda step: b"iteration %8d/ 1000 | elapsed time per iteration (ms): 12.5 |" % step,
        st.integers(1, 99),
    ),
    st.binary(max_size=30),
    st.just(b"\x1b[32mplain\x1b[0m words of a program"),
)
ending = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.tuples(line, ending), max_size=40),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=20),
    resume_after=st.integers(0, 10),
)
def test_any_chunking_and_a_restart_in_between_tell_the_same(
    lines: list[tuple[bytes, bytes]], sizes: list[int], resume_after: int, shipped: RuleSet, tmp_path: Path
) -> None:
    """One line at a time, all at once, and in random pieces with a restart of the reader: all equal."""
    data = b"".join(text + end for text, end in lines) + b"\n"
    path = tmp_path / "log"
    path.write_bytes(data)
    whole = RankLog(path, shipped)
    iterations, _, counts = read_all(whole)
    whole.close()

    by_line = RankLog(path, shipped)
    path.write_bytes(b"")
    by_line_counts: dict[str, int] = {}
    by_line_iterations: list[Iteration] = []
    with path.open("ab", buffering=0) as file:
        for piece in data.splitlines(keepends=True):
            file.write(piece)
            batch = by_line.poll(NOW)
            by_line_iterations += batch.iterations
            for rule, count in batch.counts.items():
                by_line_counts[rule] = by_line_counts.get(rule, 0) + count
    by_line.close()
    assert by_line_iterations == iterations
    assert by_line_counts == counts

    chunked = RankLog(path, shipped)
    got: list[Iteration] = []
    got_counts: dict[str, int] = {}
    for turn in range(2 * len(data) + 20):
        if turn == resume_after:
            position = chunked.position
            chunked.close()
            chunked = RankLog(path, shipped, position=position)
        batch = chunked.poll(NOW, sizes[turn % len(sizes)])
        got += batch.iterations
        for rule, count in batch.counts.items():
            got_counts[rule] = got_counts.get(rule, 0) + count
        if batch.caught_up and turn > resume_after:
            break
    chunked.close()
    assert got == iterations
    assert got_counts == counts


def test_a_line_is_held_back_until_it_ends(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"this iteration hardware time is 1.5 and e2e ti")
    log = RankLog(path, shipped)
    first = log.poll(NOW)
    assert (first.iterations, first.caught_up) == ([], True)
    with path.open("ab") as file:
        file.write(b"me is 2.5 ms.\n")
    assert log.poll(NOW).iterations == [Iteration(5.0, None, 1.5, 2.5)]


def test_what_an_error_stands_below_may_have_come_in_several_pieces(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RankLog(path, shipped)
    counts: dict[str, int] = {}
    for line in (
        "usage: train.py [-h] [--lr LR]",
        "  [--size SIZE]",
        "train.py: error: --lr must be positive",
    ):
        with path.open("a") as file:
            file.write(f"{line}\n")
        counts |= log.poll(NOW).counts
    assert counts == {"argparse-own": 1}


def test_the_last_line_counts_without_a_line_end_once_the_writer_has_ended(
    shipped: RuleSet, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"ok\nSegmentation fault (core dumped)")
    log = RankLog(path, shipped)
    assert log.poll(NOW).matches == []
    batch = log.poll(NOW, final=True)
    assert [match.rule for match in batch.matches] == ["segfault"]


def test_a_flood_of_one_rule_folds_into_a_count_and_the_first_and_last_lines(
    shipped: RuleSet, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"OSError: [Errno 5] Input/output error %d\n" % n for n in range(5000)))
    batch = RankLog(path, shipped).poll(NOW)
    shown = [match.line[-4:] for match in batch.matches if match.rule == "io-error"]
    assert batch.counts["io-error"] >= 5000
    assert shown[0] == "or 0"
    assert shown[-1] == "4999"
    assert len(shown) <= 4 * 2  # of each of the two pieces in which the file was read


def test_an_overlong_line_is_matched_at_its_beginning_and_then_dropped(
    shipped: RuleSet, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    long = b"RuntimeError: CUDA error: unknown error " + b"x" * 1_000_000 + b" No space left on device"
    path.write_bytes(long + b"\n" + HARDWARE % (1, 2) + b"\n")
    log = RankLog(path, shipped)
    iterations, matches, counts = read_all(log)
    assert len(iterations) == 1
    assert "no-space" not in counts
    assert counts["cuda-unknown-error"] == 1
    assert all(len(text) <= 500 for _, text in matches)
    assert log.overlong_lines == 1


def test_a_restart_in_the_middle_of_an_overlong_line_does_not_take_its_rest_for_a_line(
    shipped: RuleSet, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000)
    log = RankLog(path, shipped)
    read_all(log)
    with path.open("ab") as file:
        file.write(b" No space left on device\nOSError: [Errno 5] Input/output error\n")
    _, _, counts = read_all(RankLog(path, shipped, position=log.position))
    assert "no-space" not in counts
    assert counts["io-error"] == 1


def test_memory_stays_bounded_on_a_line_without_end(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        for _ in range(40):
            file.write(b"y" * 1_000_000)
    log = RankLog(path, shipped)
    read_all(log)
    with path.open("ab") as file:
        file.write(b"\n" + HARDWARE % (3, 4) + b"\n")
    assert len(read_all(log)[0]) == 1
    assert log.overlong_lines == 1
    position = log.position
    assert position is not None
    assert not position.dropping


def test_binary_content_and_invalid_utf8_are_read_over_and_shown_safely(
    shipped: RuleSet, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    junk = bytes(range(256)) * 200
    path.write_bytes(
        junk + b"\n\xff\xfe\x1b[31mOSError: [Errno 28] No space left on device \xc3\x28\x07\n" + junk
    )
    _, matches, _ = read_all(RankLog(path, shipped))
    shown = [text for rule, text in matches if rule == "no-space"]
    assert len(shown) == 1
    assert "No space left on device" in shown[0]
    assert shown[0].isprintable()


def test_progress_bars_tell_each_step_once(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    bar = "\r 10%|#         | {}/100 [00:0{}<01:30,  1.00s/it]"
    path.write_text("".join(bar.format(step, step) for step in (1, 2, 2, 3)) + "\r")
    assert [one.step for one in RankLog(path, shipped).poll(NOW).iterations] == [1, 2, 3]


def test_a_short_bar_inside_the_training_bar_is_not_training(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    bar = "\r  5%|#   | {}/{} [00:01<01:30,  1.00s/it]"
    path.write_text(
        "".join(bar.format(*pair) for pair in ((1, 100), (2, 100), (1, 5), (2, 5), (3, 100))) + "\n"
    )
    assert [one.step for one in RankLog(path, shipped).poll(NOW).iterations] == [1, 2, 3]


def test_cri_parts_are_joined_and_give_the_stamp(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(
        "2016-10-06T00:17:09.669794202Z stdout P this iteration hardware time is 1.5 \n"
        "2016-10-06T00:17:09.669794202Z stderr F OSError: [Errno 28] No space left on device\n"
        "2016-10-06T00:17:09.769794202Z stdout F and e2e time is 2.5 ms.\n"
    )
    batch = RankLog(path, shipped, cri=True).poll(NOW)
    assert batch.iterations == [Iteration(5.0, None, 1.5, 2.5)]
    match = next(match for match in batch.matches if match.rule == "no-space")
    assert match.line == "OSError: [Errno 28] No space left on device"
    assert match.stamp_wall_s == pytest.approx(1475713029.669794)


def test_a_cri_line_cut_by_a_restart_is_not_lost(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(
        "2016-10-06T00:17:09.669794202Z stdout P this iteration hardware time is 1.5 \n2016-10-06T00:1"
    )
    log = RankLog(path, shipped, cri=True)
    assert log.poll(NOW).iterations == []
    resumed = RankLog(path, shipped, cri=True, position=log.position)
    with path.open("a") as file:
        file.write("7:09.769794202Z stdout F and e2e time is 2.5 ms.\n")
    assert resumed.poll(NOW).iterations == [Iteration(5.0, None, 1.5, 2.5)]


def test_stamps_of_iterations_are_told_on_request(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "2025-04-13T23:41:12.500Z this iteration hardware time is 1.5 and e2e time is 2.5 ms.\nx\n"
    )
    batch = RankLog(path, shipped, stamps=True).poll(NOW)
    assert batch.stamps == [pytest.approx(1744587672.5)]


def test_an_owners_pattern_is_told_even_on_a_line_that_is_advice_to_the_shipped_rules(tmp_path: Path) -> None:
    rule = LogRule(id="mine", pattern="will retry", failure="proof")
    rules = load_ruleset((rule,))
    (tmp_path / "log").write_text("checkpoint stored, will retry upload\n")
    assert RankLog(tmp_path / "log", rules).poll(NOW).counts == {"mine": 1}


def test_the_raw_bytes_are_handed_on_unchanged(shipped: RuleSet, tmp_path: Path) -> None:
    data = b"\x1b[31ma\r\n" * 70_000
    (tmp_path / "log").write_bytes(data)
    log = RankLog(tmp_path / "log", shipped)
    assert log.poll(NOW, 1000).data + log.poll(NOW, 8 << 20).data == data


def test_a_match_tells_after_which_iteration_it_came_and_cri_stamps_go_before_the_programs_own(
    shipped: RuleSet, tmp_path: Path
) -> None:
    step = "2025-04-13T23:41:{}.000000000Z stdout F [2020-01-01 00:00:00] completed step: {}, seconds: 1.0\n"
    path = tmp_path / "log"
    path.write_text(
        step.format(12, 1)
        + "2025-04-13T23:41:13.000000000Z stderr F OSError: [Errno 28] No space left on device\n"
        + step.format(14, 2)
    )
    batch = RankLog(path, shipped, stamps=True, cri=True).poll(NOW)
    told = [(match.rule, after) for match, after in zip(batch.matches, batch.after or [], strict=True)]
    assert ("no-space", 1) in told
    assert batch.stamps == [pytest.approx(1744587672), pytest.approx(1744587674)]
    assert batch.matches[0].stamp_wall_s == pytest.approx(1744587673)


def told_by(path: Path, *reads: str, writers: int = 1) -> list[LogMatch]:
    """What is told when the last of these is read, each by one look at the log. `writers`: so many ranks are seen after
    the first look."""
    log = RankLog(path, load_ruleset())
    found: list[LogMatch] = []
    with path.open("a", buffering=1) as file:
        for text in reads:
            file.write(text)
            found = log.poll(NOW).matches
            log.expect(writers)
    log.close()
    return found


ITER, SAVES = "iter {}: loss 8.8350, time 14.42ms\n", "saving checkpoint to ckpt.pt\n"


@pytest.mark.parametrize(
    ("together", "outrun"),
    [
        (ITER.format(20) + SAVES, False),
        (SAVES + ITER.format(20), True),
        (ITER.format(20) + SAVES + ITER.format(20), False),  # of a second rank, which nobody knows of
        (SAVES + ITER.format(19), False),
        (SAVES + ITER.format(2), False),  # begun anew
        (ITER.format(20) + SAVES + ITER.format(21) + SAVES, False),
    ],
)
def test_of_a_pause_it_is_told_whether_new_steps_follow_that_came_with_it(
    together: str, outrun: bool, tmp_path: Path
) -> None:
    found = told_by(tmp_path / "log", ITER.format(18), ITER.format(19), together)
    assert (found[-1].failure, found[-1].outrun) == ("activity:saving", outrun)


@pytest.mark.parametrize(
    ("before", "outrun"),
    [
        ("".join(ITER.format(step) for step in range(1, 20)), True),  # the first of two ranks prints alone
        ("".join(ITER.format(step) for step in range(1, 10)), False),
        ("".join(2 * ITER.format(step) for step in range(1, 20)), False),
        (
            2 * "".join(ITER.format(step) for step in range(1, 20)),
            False,
        ),  # each writes when its buffer is full
    ],
)
def test_among_unmarked_lines_of_several_ranks_one_new_step_behind_a_pause_counts_where_one_prints_alone(
    before: str, outrun: bool, tmp_path: Path
) -> None:
    (found,) = told_by(tmp_path / "log", before, SAVES + ITER.format(20), writers=2)
    assert found.outrun == outrun


@pytest.mark.parametrize(("printed", "outrun"), [([1], False), ([1, 1], True), ([0], True)])
def test_among_marked_lines_one_new_step_behind_a_pause_counts_where_it_is_of_the_rank_that_paused(
    printed: list[int], outrun: bool, tmp_path: Path
) -> None:
    reads = ["".join(f"[default{rank}]:{ITER.format(step)}" for rank in (0, 1)) for step in (1, 2, 3)]
    behind = "".join(f"[default{rank}]:{ITER.format(4 + k)}" for k, rank in enumerate(printed))
    (found,) = told_by(tmp_path / "log", *reads, "[default0]:" + SAVES + behind)
    assert found.outrun == outrun
