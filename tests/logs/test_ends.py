"""From what a program prints when it ends to the words of the verdict: they are true of it, and so is the decision."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.health import Finding
from sentinel.core.model import Verdict
from sentinel.core.now import Now
from sentinel.core.reports import LogMatch, RankExit
from sentinel.core.triage.verdict import triage
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet
from sentinel.rules.failures import failure_classes
from tests.samples import killed_for_memory

ENDS = tomllib.loads((Path(__file__).parent / "ends.toml").read_text())["end"]
NOW = Now(mono_s=100.0, wall_s=1_764_000_000.0)
HUB = "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out."


def said(rules: RuleSet, path: Path, text: str, at_s: float = 100.0, rank: int = 0) -> list[LogMatch]:
    path.write_text(text)
    log = RankLog(path, rules, rank=rank, incarnation=1)
    try:
        return log.poll(Now(at_s, NOW.wall_s)).matches
    finally:
        log.close()


def verdict(
    matches: list[LogMatch], *exits: RankExit, size: int = 1, findings: tuple[Finding, ...] = ()
) -> Verdict:
    return triage(
        job="j",
        size=size,
        exits=exits or (RankExit(rank=0, incarnation=1, at_s=NOW.mono_s, code=1),),
        matches=matches,
        findings=findings,
        signal=None,
        last_steps={},
        rank_entities={},
        rank_pids={rank: 4000 + rank for rank in range(size)},
        failures=failure_classes(),
        history=(),
        now=NOW,
    )


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end["name"])
def test_what_is_said_of_an_end_is_true(end: dict[str, Any], shipped: RuleSet, tmp_path: Path) -> None:
    assert end["source"]
    how = {key: end[key] for key in ("code", "signal") if key in end} or {"code": 1}
    exit_ = RankExit(rank=0, incarnation=1, at_s=NOW.mono_s, **how)
    v = verdict(said(shipped, tmp_path / "log", end["log"].lstrip("\n")), exit_)
    assert (v.failure, v.restart) == (end["failure"], end["restart"]), v
    assert end["says"] in v.sentence
    if end["failure"] != "host-oom" and "signal" not in end:
        assert "kill" not in v.sentence
    if end["failure"] == "unreachable":
        assert (v.budget, v.scope, v.cause) == ("infrastructure", "job", "network")
        assert "rank" not in v.sentence
        assert "orrect the program" not in v.advice


@pytest.mark.parametrize(
    "raised",
    [
        "NameError: name 'optimiser' is not defined",
        "UnboundLocalError: cannot access local variable 'loss' where it is not associated with a value",
        "AttributeError: 'Linear' object has no attribute 'wieght'",
        "TypeError: train() missing 1 required positional argument: 'loader'",
        "AssertionError: the vocabulary is smaller than its tokens",
        "AssertionError",
        "NotImplementedError",
    ],
)
def test_what_can_only_fail_again_is_not_started_again(raised: str, shipped: RuleSet, tmp_path: Path) -> None:
    for mark in ("", "[rank0]: ", "[default0]:[rank0]: "):
        text = f"{mark}Traceback (most recent call last):\n{mark}{raised}\n"
        v = verdict(said(shipped, tmp_path / "log", text))
        assert (v.cause, v.restart) == ("user code", "no"), v
        assert "orrect the program" in v.advice


def test_a_host_that_a_program_could_not_reach_and_did_without_does_not_explain_a_later_end(
    shipped: RuleSet, tmp_path: Path
) -> None:
    before = said(shipped, tmp_path / "a", f"{HUB}\n", at_s=70.0)
    assert verdict(before).failure == "unreachable"
    later = said(shipped, tmp_path / "b", "KeyError: 'optimizer'\n")
    assert verdict([*before, *later]).failure == "exception"
    between = "".join(f"step: {k}  loss: 2.31\n" for k in range(199))
    timed_out = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE)"
    gone = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited"
    for last, failure in (
        ("Traceback (most recent call last):\nKeyError: 'optimizer'", "exception"),
        (f"{timed_out}\n{gone}", "nccl-timeout"),
        ("ncclSystemError: System call failed", "nccl-abort"),
        (
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with status=12 opcode=0",
            "nccl-abort",
        ),
    ):
        for first in (HUB, "OSError: [Errno 98] Address already in use"):
            matches = said(shipped, tmp_path / "c", f"{first}\n{between}{last}\n")
            assert verdict(matches).failure == failure, (first, last)
    again = said(shipped, tmp_path / "d", f"{HUB}\n{between}KeyError: 'optimizer'\n{between}{HUB}\n")
    assert verdict(again).failure == "unreachable", "the last that it says"
    for how, failure in (({"signal": 9}, "killed"), ({"signal": 11}, "segfault")):
        v = verdict(before, RankExit(rank=0, incarnation=1, at_s=NOW.mono_s, **how))
        assert v.failure == failure, "no exception ends in a signal"


def test_a_host_that_one_rank_could_not_reach_explains_the_end_only_of_ranks_that_waited_for_it(
    shipped: RuleSet, tmp_path: Path
) -> None:
    before = said(shipped, tmp_path / "a", f"{HUB}\n", at_s=70.0)
    ended = RankExit(rank=1, incarnation=1, at_s=NOW.mono_s, code=1)
    assert verdict(before, ended, size=2).failure == "unknown"
    waited = said(
        shipped, tmp_path / "b", "RuntimeError: Rank 0 failed to pass monitoredBarrier in 30000 ms\n", rank=1
    )
    v = verdict([*before, *waited], ended, size=2)
    assert (v.failure, v.rank) == ("unreachable", 0)
    own = said(shipped, tmp_path / "c", "KeyError: 'optimizer'\n", rank=1)
    assert verdict([*before, *own], ended, size=2).rank == 1


def test_the_kernels_word_that_a_job_prints_counts_only_where_the_kernel_says_it_too(
    shipped: RuleSet, tmp_path: Path
) -> None:
    printed = said(
        shipped,
        tmp_path / "log",
        "Out of memory: Killed process 4000 (python3) total-vm:9512340kB, anon-rss:8388608kB\n",
    )
    killed = RankExit(rank=0, incarnation=1, at_s=NOW.mono_s, signal=9)
    assert verdict(printed, killed).failure == "killed"
    word = killed_for_memory(4000, seen_mono_s=99.0)
    v = verdict(printed, killed, findings=(word,))
    assert (v.failure, "the kernel killed it" in v.sentence) == ("host-oom", True)
