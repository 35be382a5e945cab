"""Ports that tests choose: no two of them the same one."""

import contextlib
import subprocess
import sys

from tests.conftest import REPO

COUNT = 300  # of two who know nothing of each other some ten would be the same
TAKES = f"""
import sys
from tests.rig.processes import free_port
print(*(free_port() for _ in range({COUNT})), flush=True)
sys.stdin.read()
"""


def test_workers_that_choose_ports_side_by_side_never_choose_the_same_one() -> None:
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TAKES],
                    cwd=REPO,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        chosen = [worker.stdout.readline().split() for worker in workers if worker.stdout]
    assert [len(one) for one in chosen] == [COUNT] * 2
    assert len({*chosen[0], *chosen[1]}) == 2 * COUNT
