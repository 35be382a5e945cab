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

from sentinel.core.model import Now, Policy, RankReport
from sentinel.core.timing import JobTiming
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet, load_ruleset
from tests.bench.harness import Row, at_least

# Lines as programs print them between iterations, 80 to 120 bytes at the median. Seen in: NVIDIA/nccl issue 1657,
# pytorch/torchtitan pull request 950, hiyouga/LlamaFactory issue 7396, MIC-DKFZ/nnUNet issue 1254.
CHATTER = (
    "node0:13571:13571 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0 comm 0x55d9607ee240",
    "aigc-instance-leader-0:88:157 [0] NCCL INFO sendConnect ncclProxyCallAsync opId=0x7f4ff3b4c0f8 nranks 16",
    "[rank0]:[titan] 2025-03-12 11:10:21,603 - root - WARNING - Dataset c4_test is being re-looped, epoch 12",
    "[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] learning rate warm-up reached 4.998e-05 of 5e-05",
    "dgxh100-4:460770:460842 [0] NCCL INFO Tree 0 : -1 -> 0 -> 1/-1/-1 through 2 coll channels, 0 nvls channels",
    "2025-04-07 15:34:27,308 - [data/loader.py:529] - INFO - prefetched shard 00311 of 01024 in 0.311 seconds",
    "[2022-08-31 15:38:20,959] [    INFO] -   Total num train samples = 8000, per device batch size = 4",
    "07/28/2024 06:14:12 - INFO - root - tokens seen 1,048,576,000 of 15,000,000,000,000; lr 2.97e-06; gnorm 0.83",
    "mmf.trainers.core: max mem: 4378.0, ups: 0.72, time: 02m 18s 331ms, time_since_start: 53m 30s 477ms",
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
