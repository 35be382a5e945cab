"""`sentinel logs` over real log files, followed in a real process."""

import argparse
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.cli import logs
from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import JobState
from tests.web import samples

NAME = "llama-7b"
DEADLINE_S = 120.0


def write(state: Path, incarnation: int, rank: int, text: bytes) -> Path:
    path = state / "jobs" / NAME / "logs" / str(incarnation) / f"rank-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(text)
    return path


def run(state: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    logs.add_arguments(parser)
    return logs.main(parser.parse_args(["--state-dir", str(state), *words]))


def test_one_rank_is_shown_byte_for_byte(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    told = bytes(range(256)) * 2000
    write(tmp_path, 1, 0, told)
    assert run(tmp_path, NAME) == 0
    assert capsysbinary.readouterr().out == told


def test_several_ranks_have_prefixes(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for rank in (0, 1, 10):
        write(tmp_path, 1, rank, b"a\nb")
    assert run(tmp_path, NAME) == 0
    out = capsysbinary.readouterr().out
    told = [b"[rank %d] %s" % (rank, line) for rank in (0, 1, 10) for line in (b"a", b"b")]
    assert sorted(out.splitlines()) == sorted(told)
    assert out.endswith(b"\n")


def test_one_rank_of_several_is_shown_as_it_is(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    write(tmp_path, 1, 0, b"zero\n")
    write(tmp_path, 1, 1, b"one\n")
    assert run(tmp_path, NAME, "--rank", "1") == 0
    assert capsysbinary.readouterr().out == b"one\n"


def test_the_newest_incarnation_is_shown_unless_another_is_asked_for(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for incarnation in (2, 9, 10):
        write(tmp_path, incarnation, 0, b"run %d\n" % incarnation)
    for words, told in (
        ((), b"run 10\n"),
        (("--previous",), b"run 9\n"),
        (("--incarnation", "2"), b"run 2\n"),
    ):
        assert run(tmp_path, NAME, *words) == 0
        assert capsysbinary.readouterr().out == told


@pytest.mark.parametrize(
    ("text", "lines", "told"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"x\n" * 500_000 + b"y\n", 2, b"x\ny\n"),
        (b"first\n" + b"z" * 600_000 + b"\nlast\n", 2, b"z" * 600_000 + b"\nlast\n"),
    ],
)
def test_the_last_lines(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], text: bytes, lines: int, told: bytes
) -> None:
    write(tmp_path, 1, 0, text)
    assert run(tmp_path, NAME, "-n", str(lines)) == 0
    assert capsysbinary.readouterr().out == told


def test_what_was_punched_out_of_a_bounded_log_is_not_shown_as_zeros(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = write(tmp_path, 1, 0, b"")
    with open(path, "r+b") as file:
        file.truncate(8 << 20)  # a hole
        file.seek(8 << 20)
        file.write(b"the newest line\n")
    assert run(tmp_path, NAME) == 0
    out = capsysbinary.readouterr().out
    assert out.endswith(b"the newest line\n")
    assert len(out) < 1 << 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nobody",), "no job 'nobody'; known jobs: llama-7b"),
        (("../..",), "no job '../..'; known jobs: llama-7b"),
        ((NAME, "--rank", "7"), "no log of rank 7 in incarnation 3; ranks: 0"),
        ((NAME, "--incarnation", "9"), "no logs of incarnation 9; known: 3"),
        ((NAME, "--previous"), "there is no previous incarnation"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    write(tmp_path, 3, 0, b"line\n")
    assert run(tmp_path, *words) == 1
    assert told in capsys.readouterr().err


def test_a_job_without_logs_and_a_machine_without_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, NAME) == 1
    assert "there are no jobs" in capsys.readouterr().err
    (tmp_path / "jobs" / NAME).mkdir(parents=True)
    assert run(tmp_path, NAME) == 1
    assert "has not started yet" in capsys.readouterr().err


class Follower:
    """A `sentinel logs -f` in a process of its own."""

    def __init__(self, state: Path, *words: str) -> None:
        program = (
            "import argparse, sys; from sentinel.cli import logs; parser = argparse.ArgumentParser();"
            "logs.add_arguments(parser); sys.exit(logs.main(parser.parse_args()))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "--state-dir", str(state), NAME, "-f", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.out = b""

    def wait_for(self, told: bytes) -> None:
        assert self.process.stdout is not None
        limit_s = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while told not in self.out:
                assert time.monotonic() < limit_s, self.out
                if selector.select(0.1):
                    piece = os.read(self.process.stdout.fileno(), 65536)
                    assert piece, self.out
                    self.out += piece


@pytest.fixture
def followers() -> Iterator[list[Follower]]:
    started: list[Follower] = []
    yield started
    for follower in started:
        follower.process.kill()
        follower.process.communicate()


def test_following_goes_on_across_restarts_until_the_job_has_ended(
    tmp_path: Path, followers: list[Follower]
) -> None:
    write(tmp_path, 1, 0, b"old\nstep 1\n")
    store = LocalStore(tmp_path / "state.db")
    store.save(jobs=(samples.job(),))
    follower = Follower(tmp_path, "-n", "1")
    followers.append(follower)
    follower.wait_for(b"step 1\n")
    write(tmp_path, 1, 0, b"step 2\n")
    follower.wait_for(b"step 2\n")
    write(tmp_path, 2, 0, b"step 3\n")
    write(tmp_path, 2, 1, b"from the other rank\n")
    follower.wait_for(b"other rank\n")
    write(tmp_path, 2, 0, b"the end")
    store.save(jobs=(samples.job(state=JobState.SUCCEEDED),))
    store.close()
    out, err = follower.process.communicate(timeout=DEADLINE_S)
    told = follower.out + out
    assert follower.process.returncode == 0
    assert told.startswith(b"step 1\nstep 2\n")
    assert told.endswith(b"[rank 0] the end\n")
    assert b"[rank 1] from the other rank\n" in told
    assert err == b"sentinel: incarnation 2 of llama-7b\n"


def test_a_truncated_log_is_followed_from_its_new_start(tmp_path: Path, followers: list[Follower]) -> None:
    path = write(tmp_path, 1, 0, b"a long first line\n")
    followers.append(Follower(tmp_path))
    followers[0].wait_for(b"first line\n")
    path.write_bytes(b"new\n")
    followers[0].wait_for(b"first line\nnew\n")


def test_a_reader_that_leaves_ends_it_without_a_traceback(tmp_path: Path, followers: list[Follower]) -> None:
    write(tmp_path, 1, 0, b"line\n")
    follower = Follower(tmp_path)
    followers.append(follower)
    follower.wait_for(b"line\n")
    assert follower.process.stdout is not None
    assert follower.process.stderr is not None
    follower.process.stdout.close()
    write(tmp_path, 1, 0, b"more\n")
    assert follower.process.wait(DEADLINE_S) == 0
    assert follower.process.stderr.read() == b""
