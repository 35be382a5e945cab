"""What a log shows between iterations: a bar or a counter that advances is life, a line that only repeats is none."""

from pathlib import Path

import pytest

from sentinel.core.now import Now
from sentinel.logs.life import KEPT_SHAPES, Life, Sign
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet


def looks(*texts: str) -> list[Sign]:
    life = Life()
    return [life.look(text.encode() + b"\n") for text in texts]


BARS = (
    " {p}%|{bar}| {n}/20 [00:{n:02}<03:00, 10.63s/it]",  # tqdm, as Trainer's evaluation draws it
    " {n}/20 [{keras:.<20}] - 12s 1s/step",
    "Evaluating: {n}/5000",
    "val:{n}/100 acc 71.3",
    "[ {n}/5000] elapsed 12 s, mem used 12 GB",
    "eval progress {p}.0 % (accuracy 71.3 %)",
    "validated ({n} of 20)",
    "Testing 12:0{n} {n} / 100",
    "copied {n}/100",
    "{n}it [00:{n:02}, 0.07it/s]",  # tqdm that does not know the end
    "Predicting: {n}batch [00:{n:02}, 14.2s/batch]",
)
COUNTERS = (
    "validation batch {n}: loss 0.7",
    "[rank0]: 2026-11-25 14:59:{n:02} scored {n} samples",
    "Processed {n},000 samples",
    "samples_seen={n}",
    '{{"event": "eval", "step": {n}}}',
    "global_step={n}.",
    "batch_idx: {n}",
)


def drawn(line: str, n: int) -> str:
    return line.format(n=n, p=5 * n, bar=("█" * n).ljust(20), keras="=" * n + ">")


@pytest.mark.parametrize("line", BARS)
def test_a_bar_that_comes_closer_to_its_end_is_life_in_each_evaluation(line: str) -> None:
    _, *rest = looks(*(drawn(line, n) for _ in range(4) for n in range(1, 20)))
    assert all(sign is Sign.BAR for k, sign in enumerate(rest, 1) if k % 19)


@pytest.mark.parametrize("line", COUNTERS)
def test_a_number_that_goes_up_is_life_of_the_weaker_kind(line: str) -> None:
    assert set(looks(*(drawn(line, n) for n in range(1, 200)))) == {Sign.TEXT}


def test_short_evaluations_and_ranks_that_share_a_log_are_life() -> None:
    told = looks(*(["eval 1/2", "eval 2/2"] * 20))
    assert told.count(Sign.BAR) == 20
    told = looks(*(f"[rank{rank}]: eval {n - rank}/100" for n in range(5, 60) for rank in (0, 1)))
    assert set(told[2:]) == {Sign.BAR}


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-25 14:59:{n:02},123 WARNING waiting for the other ranks ({n} s)",
        "E1125 14:49:{n:02}.765000 1253 socket.cpp:12] cannot connect to 10.0.0.{n}:29500",
        "heartbeat 17639{n:05}.25 pid {n}",
        "nvidia-smi: util 100 %, 71 C, {n}W",
        " 45%|████▌     | 9/20 [02:{n:02}<03:00, 10.63s/it]",  # drawn again by its clock
        "Retry {n}/1000000: connection refused",
        "waited {n}/100000 s for rank 3",
        "TCPStore waiting: {n}/100000 retries",
        "watchdog iteration {n}: no progress",
        "Health check batch {n} sent",
        "[monitor] sample {n}: gpu idle",
        "Disk usage: 45.{n}%",
        "memory {n}/80 GiB",
        "sent {n} samples to statsd",
    ],
)
def test_a_line_that_only_repeats_is_none_whatever_its_numbers_say(line: str) -> None:
    _, *rest = looks(*(line.format(n=n) for n in range(10, 60)))
    assert set(rest) == {Sign.NONE}


def test_what_goes_up_and_down_counts_nothing() -> None:
    used = [12, 17, 11, 30, 8, 22, 21, 25, 9, 14] * 5
    assert set(looks(*(f"cpu {one}% of the node" for one in used))[5:]) == {Sign.NONE}


def test_a_block_that_is_printed_again_and_again_is_no_news() -> None:
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(n)) for n in range(100)]
    dump = "\n".join(f"  in {word} of train" for word in words)
    assert looks(*[dump] * 10) == [Sign.TEXT, *[Sign.NONE] * 9]


def test_memory_is_bounded_and_nothing_that_is_printed_breaks_it() -> None:
    life = Life()
    for n in range(KEPT_SHAPES + 500):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(n))
        assert life.look(f"a text of its own: {word}\n".encode()) is Sign.TEXT
    assert len(life._seen) == KEPT_SHAPES
    for text in (
        b"",
        b"\n \n",
        bytes(range(256)) * 40,
        b"9" * 5000,
        b"1/2 3% 4it [ " * 900,
        b"\xff/\xfe%" * 99,
    ):
        life.look(text)


def test_a_poll_with_iterations_says_nothing_more(shipped: RuleSet, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RankLog(path, shipped)
    now = Now(1.0, 1.0)
    path.write_bytes(b"this iteration hardware time is 10.5 and e2e time is 20.5 ms.\nloss 0.3\n")
    assert log.poll(now, signs=True).sign is Sign.NONE
    assert log.poll(now, signs=True).sign is Sign.NONE
    for n in (1, 2, 3):
        with path.open("ab") as file:
            file.write(f"\r {n}/20 evaluated".encode())
            file.write(b"\r")
        assert log.poll(now, signs=True).sign is (Sign.TEXT if n == 1 else Sign.BAR)
    log.close()
