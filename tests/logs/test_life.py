"""What a log shows between iterations: a bar or a counter that advances is life, a line that only repeats is none."""

from pathlib import Path

import pytest

from sentinel.core.now import Now
from sentinel.logs.life import KEPT_SHAPES, Life
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet


def looks(*texts: str) -> list[bool]:
    life = Life()
    return [life.look(text.encode() + b"\n") for text in texts]


@pytest.mark.parametrize(
    "line",
    [
        " {p}%|{bar}| {n}/20 [00:{n:02}<03:00, 10.63s/it]",  # tqdm, as Trainer's evaluation draws it
        "Evaluating: {n}/5000",
        "{n}it [00:{n:02}, 0.07it/s]",
        "validation batch {n}: loss 0.7",
        "[rank0]: 2026-11-25 14:59:{n:02} scored {n} samples",
        "Saving shard {n} of the checkpoint",
        "eval progress {p}.0 % (accuracy 71.3 %)",
    ],
)
def test_a_counter_that_advances_is_life(line: str) -> None:
    texts = [line.format(n=n, p=5 * n, bar="█" * n) for n in range(1, 12)]
    assert all(looks(*texts))


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-25 14:59:{n:02},123 WARNING waiting for the other ranks ({n} s)",
        "E1125 14:49:{n:02}.765000 1253 socket.cpp:12] cannot connect to 10.0.0.{n}:29500",
        "heartbeat 17639{n:05}.25 pid {n}",
        "nvidia-smi: util 100 %, 71 C, {n}W",
        " 45%|████▌     | 9/20 [02:{n:02}<03:00, 10.63s/it]",  # drawn again by its clock
    ],
)
def test_a_line_that_only_repeats_is_none_whatever_its_stamps_say(line: str) -> None:
    first, *rest = looks(*(line.format(n=n) for n in range(10, 60)))
    assert first, "the first of its kind is news"
    assert not any(rest)


def test_what_goes_up_and_down_counts_nothing() -> None:
    used = [12, 17, 11, 30, 8, 22, 21, 25, 9, 14] * 5
    told = looks(*(f"cpu {one}% of the node" for one in used))
    assert not any(told[5:])


def test_an_evaluation_that_begins_again_is_life_once_more() -> None:
    once = [f"Evaluating: {n}/10" for n in range(1, 11)]
    told = looks(*once, *once, *once)
    assert [k for k, alive in enumerate(told) if not alive] == [10, 20], "only where it begins at 1"


def test_memory_is_bounded_whatever_is_printed() -> None:
    life = Life()
    for n in range(1000):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(n))
        assert life.look(f"a text of its own: {word}\n".encode())
    assert len(life._seen) == KEPT_SHAPES
    assert not life.look(b"")
    assert not life.look(b"\n \n")


def test_a_poll_with_iterations_says_nothing_more(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RankLog(path, shipped)
    now = Now(1.0, 1.0)
    path.write_bytes(b"this iteration hardware time is 10.5 and e2e time is 20.5 ms.\nloss 0.3\n")
    assert not log.poll(now).alive
    assert not log.poll(now).alive
    for n in (1, 2, 3):
        with path.open("ab") as file:
            file.write(f"\r {n}/20 evaluated".encode())
            file.write(b"\r")
        assert log.poll(now).alive
    log.close()
