"""The log path as shipped on one core: follow → match all shipped rules → parse timing lines → Iterations → fold.

Beside it the same patterns over the same file with `grep -E -c` and with Python's `re`, which read it once
and only say whether a line matches.
"""

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import RankReport
from sentinel.core.timing.job_timing import JobTiming
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet, load_ruleset
from tests.bench.harness import Row, at_least

# Lines as programs print them between iterations, three of them cut. Seen in, from the top: NVIDIA/nccl issues
# 1657 (two) and 1232, nccl-tests issues 185 and 227, pytorch/torchtitan pull request 950, a PaddleNLP log on
# GitHub, nccl issue 925, transformers pull request 4946.
CHATTER = (
    "aigc-maas-instance-leader-0:88:157 [0] NCCL INFO sendConnect ncclProxyCallAsync opId=0x7f4ff3b4c0f8",
    "aigc-maas-instance-leader-0:88:159 [0] NCCL INFO transport/net_ib.cc:985 Ib Alloc Size 181568 pointer 0x7f4f",
    "[1] node2:22555:22555 [0] NCCL INFO Channel 00/0 : 2[1] -> 1[0] [receive] via NET/Socket/0",
    "dgxh100-4:460770:460842 [0] NCCL INFO Tree 0 : -1 -> 0 -> 1/-1/-1",
    "ai-worker01:5771:5783 [0] NCCL INFO NET/IB : Using [0]irdma0:1/RoCE [1]irdma3:1/RoCE [RO]; OOB eth0",
    "[rank0]:[titan] 2025-03-12 11:10:21,603 - root - WARNING - Dataset c4_test is being re-looped",
    "[2022-08-31 15:38:20,959] [    INFO] -   Total num train samples = 8000",
    "[I socket.cpp:839] [c10d] The client socket has connected to [2.19-168-194.static.virginmediabusiness.co.uk]",
    "06/12/2020 10:05:38 - INFO - transformers.trainer_tf -     Total optimization steps = 29",
)
TIMING = "this iteration hardware time is 2{:03}.521 and e2e time is 3{:03}.794921875 ms."
NOW = Now(mono_s=1.0, wall_s=1.0)


def run(quick: bool = False) -> list[Row]:
    size_bytes = (16 if quick else 96) << 20
    runs = 5 if quick else 9
    rules = load_ruleset()
    patterns = [rule.pattern for rule in rules.rules]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path, small = Path(folder) / "rank-0.log", Path(folder) / "part.log"
        for name, goal, every in (("no rule matches", 500.0, 0), ("every tenth line is timing", 200.0, 10)):
            text = corpus(size_bytes, every)
            path.write_bytes(text)
            check(path, rules, text.count(TIMING[:20].encode()))
            small.write_bytes(path.read_bytes()[: 1 << 20])  # `re` would need minutes for all of it
            python = rate(small, 1 if quick else 3, partial(python_re, small, patterns))
            beside = (f"grep -E (re: {python:.2g})", rate(path, 3, partial(grep, path, patterns)))
            shipped = rate(path, runs, partial(read, path, rules))
            rows.append(at_least(f"log path, {name}", goal, shipped, "MB/s", beside))
    return rows


def check(path: Path, rules: RuleSet, expected: int) -> None:
    """Every timing line was folded and nothing else was told: else the measurement means nothing."""
    found = read(path, rules)
    told = RankLog(path, rules).poll(NOW).counts
    if found != expected or told:
        raise AssertionError(f"{found} iterations instead of {expected}; matches: {told}")


def corpus(size_bytes: int, every: int) -> bytes:
    """About `size_bytes` of lines, every `every`-th a timing line (0: none)."""
    block: list[str] = []
    for number in range(9000):
        if every and number % every == every - 1:
            block.append(TIMING.format(number % 1000, number % 977))
        else:
            block.append(CHATTER[number % len(CHATTER)])
    median = sorted(map(len, block))[len(block) // 2]
    if not 80 <= median <= 120:
        raise AssertionError(f"the median line has {median} bytes")
    text = ("\n".join(block) + "\n").encode()
    return text * (size_bytes // len(text) + 1)


def read(path: Path, rules: RuleSet) -> int:
    """The path as agent and controller run it, with its default bite; the number of iterations folded."""
    log = RankLog(path, rules)
    timing = JobTiming(Policy(), 1)
    timing.start(1, 1, NOW)
    while True:
        batch = log.poll(NOW)
        report = RankReport(
            job="bench", incarnation=1, rank=0, iterations=batch.iterations, caught_up=batch.caught_up
        )
        timing.fold(report)
        if batch.caught_up:
            log.close()
            return timing.iterations


def rate(path: Path, runs: int, measure: Callable[[], object]) -> float:
    """MB/s: median over the runs."""
    times: list[float] = []
    for _ in range(runs):
        begun_s = time.perf_counter()
        measure()
        times.append(time.perf_counter() - begun_s)
    return path.stat().st_size / statistics.median(times) / 1e6


def grep(path: Path, patterns: list[str]) -> None:
    """`grep -E -c` with the same patterns, in the C locale, which is its fastest."""
    extended = [
        re.sub(r"\(\?P<\w+>", "(", pattern).replace("(?i)", "").replace("(?:", "(").replace(r"\d", "[0-9]")
        for pattern in patterns
    ]
    arguments = [argument for pattern in extended for argument in ("-e", pattern)]
    command = ["grep", "-E", "-c", *arguments, str(path)]
    done = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, timeout=300)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.decode())


def python_re(path: Path, patterns: list[str]) -> int:
    """One alternation of all patterns, line by line, as a program written with `re` would do."""
    combined = re.compile(
        b"|".join(
            b"(?i:%s)" % pattern[4:].encode() if pattern.startswith("(?i)") else b"(?:%s)" % pattern.encode()
            for pattern in (re.sub(r"\(\?P<\w+>", "(?:", pattern) for pattern in patterns)
        )
    )
    with path.open("rb") as file:
        return sum(combined.search(line) is not None for line in file)
