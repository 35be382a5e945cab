"""Several ranks that print into one log: each iteration counts once, and that of a single rank is not lost."""

from pathlib import Path

import pytest

from sentinel.agent.ranks import _labels
from sentinel.core.now import Now
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet
from sentinel.logs.writers import Writers


def line(step: int, mark: str = "") -> str:
    return f"{mark} iteration {step:8d}/  1000 | elapsed time per iteration (ms): 100.0 |\n"


def steps(
    tmp_path: Path, rules: RuleSet, text: str, writers: int = 1, labelled: bool = False
) -> list[int | None]:
    path = tmp_path / "rank-0.log"
    path.write_text(text)
    log = RankLog(path, rules)
    log.expect(writers)
    if labelled:
        log.labelled()
    return [iteration.step for iteration in log.poll(Now(1.0, 1.0)).iterations]


@pytest.mark.parametrize("mark", ["[default{}]:", "[rank{}]: ", "[rank {}] ", "[1,{}]<stdout>:"])
def test_marked_lines_of_several_ranks_are_one_iteration_each_and_tell_how_far_each_rank_is(
    mark: str, shipped: RuleSet, tmp_path: Path
) -> None:
    path = tmp_path / "rank-0.log"
    told = [(step, rank) for step in range(1, 11) for rank in (step % 2, 1 - step % 2)][:-1]
    path.write_text("".join(line(step, mark.format(rank)) for step, rank in told))
    batch = RankLog(path, shipped).poll(Now(1.0, 1.0))
    assert [iteration.step for iteration in batch.iterations] == list(range(1, 11))
    assert {n: (one.told, one.step) for n, one in batch.workers.items()} == {0: (10, 10), 1: (9, 9)}
    assert batch.told_again == 9  # which is a sign of life


@pytest.mark.parametrize("mark", ["[default{}]:", "[1,{}]<stdout>:"])
@pytest.mark.parametrize("end", ["{}\n", "\n"])
def test_lines_of_two_ranks_that_a_launcher_put_into_one_are_told_by_each(
    mark: str, end: str, shipped: RuleSet, tmp_path: Path
) -> None:
    """As Open MPI 4.1 and torchrun of torch 1.13 did."""
    one, other = mark.format(0), mark.format(1)
    path = tmp_path / "rank-0.log"
    ends = "\n" + end.format(one)
    path.write_text("".join(line(step, one)[:-1] + line(step, other)[:-1] + ends for step in range(1, 11)))
    batch = RankLog(path, shipped).poll(Now(1.0, 1.0))
    assert [iteration.step for iteration in batch.iterations] == list(range(1, 11))
    assert {n: (one.told, one.step) for n, one in batch.workers.items()} == {0: (10, 10), 1: (10, 10)}


def test_lines_without_a_step_count_once_too_where_they_are_marked(shipped: RuleSet, tmp_path: Path) -> None:
    text = "".join(
        f"[default{rank}]:this iteration hardware time is 10.5 and e2e time is 20.5 ms.\n"
        for _ in range(7)
        for rank in range(4)
    )
    assert len(steps(tmp_path, shipped, text)) == 7


@pytest.mark.parametrize("mark", ["[default3]:", "[rank3]: ", "[rank 3] ", "[1,3]<stdout>:"])
def test_only_a_mark_of_a_line_of_iterations_keeps_them_from_the_quick_way(mark: str) -> None:
    """Nearly every log has some marked line, and the quick way is twice as fast."""
    told = "time is 1.5 ms"
    for text, marked in (
        (f"{mark}other\n{told}\n", False),
        (f"{told}\n{mark}other\n", False),
        (f"{told} {mark}\n", False),
        (f"other\n{mark}{told}\n", True),
        (f"{mark}step 3: {told}\n", True),
    ):
        assert Writers().marked(text.encode(), "time is ") is marked, text


def test_labels_of_srun_are_ranks_where_they_were_asked_for(shipped: RuleSet, tmp_path: Path) -> None:
    text = "".join(line(step, f"{rank}: ") for step in range(1, 101) for rank in range(3))
    assert steps(tmp_path, shipped, text, labelled=True) == list(range(1, 101))


@pytest.mark.parametrize("lines", [1, 3, 45])
def test_a_number_at_the_beginning_that_the_program_prints_is_no_rank(
    lines: int, shipped: RuleSet, tmp_path: Path
) -> None:
    told = [(epoch, step) for epoch in range(30) for step in range(1, lines + 1)]
    text = "".join(line(step, f"{epoch}: ") for epoch, step in told)
    assert len(steps(tmp_path, shipped, text)) == len(told)


def test_what_counts_does_not_depend_on_how_much_is_read_at_once(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    text = "this iteration hardware time is 10.5 and e2e time is 20.5 ms.\n" * 3
    text += "".join(
        f"[rank{rank}]: this iteration hardware time is 10.5 and e2e time is 20.5 ms.\n"
        for _ in range(200)
        for rank in (1, 2, 3)
    )
    path.write_text(text)
    for limit in (100, 1000, 1 << 20):
        log, count = RankLog(path, shipped), 0
        while not (batch := log.poll(Now(1.0, 1.0), limit_bytes=limit)).caught_up or batch.data:
            count += len(batch.iterations)
        assert count == 203


def test_unmarked_lines_of_so_many_processes_as_are_known_are_one_iteration_each(
    shipped: RuleSet, tmp_path: Path
) -> None:
    order = [1, 1, 2, 2, 3, 4, 3, 4, 5, 5]  # one of them is ahead by an iteration for a moment
    text = "".join(map(line, order))
    assert steps(tmp_path, shipped, text, writers=2) == [1, 1, 2, 3, 4, 5]  # the second pair is believed
    assert steps(tmp_path, shipped, text) == order  # of one process: it says so


def test_where_only_one_of_several_prints_nothing_is_left_out(shipped: RuleSet, tmp_path: Path) -> None:
    text = "".join(line(step) for step in range(10, 1000, 10))
    assert steps(tmp_path, shipped, text, writers=8) == list(range(10, 1000, 10))


@pytest.mark.parametrize("epoch", [1, 2, 3, 5, 10, 17, 100])
@pytest.mark.parametrize("writers", [2, 4, 8, 64])
def test_short_epochs_of_one_that_prints_are_never_silent_for_long(epoch: int, writers: int) -> None:
    several = Writers()
    several.expected = writers
    silent = longest = counted = 0
    for k in range(4000):
        new = several.counts(None, 1 + k % epoch)
        counted += new
        silent = 0 if new else silent + 1
        longest = max(longest, silent)
    assert longest <= 2 * writers
    assert epoch == 1 or counted == 4000


def test_when_who_leads_prints_no_more_the_others_are_heard() -> None:
    several = Writers()
    for _ in range(1000):
        several.counts(15, None)
    several.counts(7, None)
    heard = [several.counts(7, None) for _ in range(20)]
    assert all(heard[8:])


def test_a_leader_of_many_that_prints_more_often_stays_the_measure() -> None:
    several = Writers()
    counted = 0
    for step in range(1, 1001):
        for rank in range(8):
            if rank == 0 or step % 10 == 0:
                counted += several.counts(rank, step)
    assert counted == 1000


@pytest.mark.parametrize(
    ("command", "labelled"),
    [
        ("srun -l python train.py", True),
        ("/usr/bin/srun --nodes 2 --label ./train.sh", True),
        ("srun -n 8 -lu python train.py", True),
        ("srun bash -l run.sh", False),
        ("srun -n 8 python train.py -l 2", False),
        ("python train.py -l", False),
    ],
)
def test_labels_are_believed_where_srun_was_asked_for_them(command: str, labelled: bool) -> None:
    assert _labels(command.split()) == labelled
