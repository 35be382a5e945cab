"""The agent of one node reads what is behind without a pause, and no faster than that where nothing is."""

import asyncio
from pathlib import Path

import pytest

from sentinel.agent import Agent
from sentinel.clock import boot_id, system_now
from sentinel.cluster.base import RankProcess
from sentinel.core.model import ProtectedJob
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Report
from sentinel.logs.follow import BEHIND
from sentinel.logs.ruleset import RuleSet, load_ruleset
from sentinel.metrics import Metrics
from tests.waits import eventually

KEEP_BYTES = 1 << 20
NEVER_S = 1e6  # a pause that no test outlasts


@pytest.fixture(scope="module")
def shipped() -> RuleSet:
    return load_ruleset()


def an_agent(rules: RuleSet, reports: list[Report], shown: list[bytes]) -> Agent:
    async def nothing() -> None: ...

    return Agent(
        "node",
        boot_id(),
        system_now,
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
