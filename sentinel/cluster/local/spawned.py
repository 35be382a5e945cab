"""Ranks that a program has started by torch.multiprocessing (`mp.spawn`): known by the argument of torch's own frame.

They have RANK in their environment only once they have set it, which cannot be seen from outside.
"""

import asyncio
import re

from sentinel.cluster.local import stacks
from sentinel.cluster.local.processes import Proc, cmdline, scan, started

_MULTIPROCESSING = re.compile(r"from multiprocessing\.(?:spawn import spawn_main|forkserver import main)\b")
# A child of multiprocessing that is through with its imports.
_RUNS = re.compile(r"^ {4}(?:\S+\.)?run \(multiprocessing/process\.py\b", re.M)
_NUMBER = re.compile(
    r"^ {4}_wrap \((?:\S*/)?torch/multiprocessing/spawn\.py:\d+\)\n(?: {8,}.*\n)*? {12}i: (\d+)$", re.M
)


async def spawned(top: Proc, text: str) -> dict[int, Proc]:
    """The ranks below a program whose stack is `text`, by the numbers that torch has given them. Empty where they are
    not known for sure: it has not started any, or one of its children could not be read, or still imports."""
    if stacks.SPAWNS_RANKS.search(text) is None:
        return {}
    own = cmdline(top.pid)
    below = [proc for proc in started(top, scan()) if _may_be(cmdline(proc.pid), own)]
    gate = asyncio.Semaphore(stacks.AT_ONCE)
    until_s = asyncio.get_running_loop().time() + stacks.TOTAL_S

    async def read(proc: Proc) -> str:
        async with gate:
            left_s = until_s - asyncio.get_running_loop().time()
            return await stacks.with_values(proc.pid, min(stacks.EACH_S, left_s)) if left_s > 0.1 else ""

    texts = await asyncio.gather(*map(read, below))
    if not all(map(_RUNS.search, texts)):
        return {}
    numbered = [(int(n[1]), proc) for t, proc in zip(texts, below, strict=True) if (n := _NUMBER.search(t))]
    found = dict(sorted(numbered, key=lambda one: one[0]))
    return found if len(found) == len(numbered) else {}


def _may_be(words: list[str], own: list[str]) -> bool:
    """A fork shows the command line of its parent."""
    return words == own or any(map(_MULTIPROCESSING.search, words))
