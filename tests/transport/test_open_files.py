"""The controller's limit of open files: raised as far as it may be, and what it means for agents."""

import subprocess
import sys

import pytest

from sentinel.transport.limits import Limits
from sentinel.transport.open_files import fitting, too_few

RAISE = "from sentinel.transport.open_files import *; import resource; "
RAISE += "print(room_for(Limits(connections={})), *resource.getrlimit(resource.RLIMIT_NOFILE))"


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "found"),
    [
        (64, 2000, 60_000, "2000 2000 2000"),
        (64, 2000, 500, "1012 1012 2000"),  # no more than it needs
        (1600, 2000, 500, "1600 1600 2000"),  # never less than it had
        (100, 100, 60_000, "100 100 100"),
    ],
)
def test_the_limit_is_raised_for_all_connections_as_far_as_the_hard_one(
    soft: int, hard: int, connections: int, found: str
) -> None:
    words = ["prlimit", f"--nofile={soft}:{hard}", sys.executable, "-c", RAISE.format(connections)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == found


def test_with_few_files_there_are_few_connections_and_it_is_said_of_more_nodes() -> None:
    assert fitting(Limits(), 524_288) == Limits()
    few = fitting(Limits(), 4096)
    assert few.connections == 3584
    fewest = fitting(Limits(), 100)
    assert (fewest.connections, fewest.accepts) == (50, 6)
    assert fitting(Limits(), 8).accepts == 1
    assert too_few(few, 4096, 3584) == ""
    said = too_few(few, 4096, 3585)
    assert said.startswith(
        "at most 3584 agents are served at once, for 3585 nodes: this process may open 4096 files"
    )
