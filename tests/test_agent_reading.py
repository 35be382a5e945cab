"""The agent of one node reads what is behind without a pause, and no faster than that where nothing is."""

import asyncio
from pathlib import Path

import pytest

from sentinel.agent.ranks import Agent
from sentinel.cluster.base import RankProcess
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import PRINTS_S, RankReport, Report
from sentinel.logs.follow import BEHIND
from sentinel.logs.ruleset import RuleSet, load_ruleset
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock, boot_id, system_now
from tests.waits import eventually

KEEP_BYTES = 1 << 20
NEVER_S = 1e6  # a pause that no test outlasts


@pytest.fixture(scope="module")
def shipped() -> RuleSet:
    return load_ruleset()


def an_agent(rules: RuleSet, reports: list[Report], shown: list[bytes], clock: Clock = system_now) -> Agent:
    async def nothing() -> None: ...

    return Agent(
        "node",
        boot_id(),
        clock,
        reports.append,
        lambda job: rules,
        metrics=Metrics(),
        output=lambda rank, data: shown.append(data),
        look=lambda job, incarnation: {},
        read_kernel_log=nothing,
        load_positions=lambda job: {},
        save_positions=lambda positions: None,
        poll_s=NEVER_S,
    )


def test_a_flood_is_read_to_its_end_without_a_pause_and_takes_no_more_disk_than_it_may(
    tmp_path: Path, shipped: RuleSet
) -> None:
    """With a pause after each bite a log at 50 MB/s came to stay at forty times its bound."""
    log = tmp_path / "rank-0.log"
    line = b"x" * 99 + b"\n"
    log.write_bytes(line * (160 * KEEP_BYTES // 1000))
    size = log.stat().st_size
    reports: list[Report] = []
    shown: list[bytes] = []
    agent = an_agent(shipped, reports, shown)

    def problems() -> list[str]:
        return [rank.log_problem for report in reports for rank in report.ranks]

    async def whole() -> None:
        job = ProtectedJob(name="job", policy=Policy(keep_log_bytes=KEEP_BYTES), incarnation=1)
        agent.follow(job, [RankProcess(rank=0, pid=1, start_ticks=1, log_path=str(log))])
        task = asyncio.create_task(agent.run())
        await eventually(lambda: sum(map(len, shown)) == size)
        await eventually(lambda: problems()[-1] == "")
        task.cancel()

    asyncio.run(whole())
    agent.close()
    assert problems()[0] == BEHIND, "until then more is on the disk, which is said"
    assert log.stat().st_blocks * 512 <= 2 * KEEP_BYTES


class Reading:
    """An agent that reads what is printed, at times of one's own."""

    def __init__(self, folder: Path, rules: RuleSet) -> None:
        self.now_s = 1000.0
        self.reports: list[Report] = []
        self.log = folder / "rank-0.log"
        self.log.touch()
        self.agent = an_agent(rules, self.reports, [], lambda: Now(self.now_s, self.now_s))
        self.agent.poll_s = 1.0
        job = ProtectedJob(name="job", policy=Policy(), incarnation=1)
        self.agent.follow(job, [RankProcess(rank=0, pid=1, start_ticks=1, log_path=str(self.log))])

    def prints(self, text: str, after_s: float) -> RankReport | None:
        """What of it is reported."""
        self.now_s += after_s
        with open(self.log, "a") as file:
            file.write(text)
        self.reports.clear()
        self.agent.poll()
        return self.reports[-1].ranks[-1] if self.reports and self.reports[-1].ranks else None


def test_that_a_log_goes_on_for_a_minute_is_told_once_also_where_it_only_repeats(
    tmp_path: Path, shipped: RuleSet
) -> None:
    """Of such a log nothing else is told, and nobody would learn that its iterations cannot be read."""
    reading = Reading(tmp_path, shipped)
    first = reading.prints("took 2.1 sec loss 0.5\n", 0.0)
    assert first is not None
    assert not first.prints
    told = [reading.prints(f"took 2.{n} sec loss 0.5\n", PRINTS_S / 10) for n in range(30)]
    assert [n for n, one in enumerate(told, 1) if one is not None and one.prints] == [10]
    reading.agent.close()


def test_the_line_by_which_a_log_tells_that_it_goes_on_is_told(tmp_path: Path, shipped: RuleSet) -> None:
    reading = Reading(tmp_path, shipped)
    for n in range(1, 30):
        told = reading.prints(f"Evaluating: {n}/5000 [00:{n}<99:00]\r", 20.0)
    assert told is not None
    assert told.alive_line == "Evaluating: 29/5000 [00:29<99:00]"
    reading.agent.close()
