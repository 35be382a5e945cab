"""How long a person waits for the command itself."""

import statistics
import sys
from pathlib import Path

from tests.bench.harness import Row, alternate, at_most, wall_seconds

SENTINEL = str(Path(sys.executable).with_name("sentinel"))


def run(quick: bool) -> list[Row]:
    bare, help_ = alternate(
        lambda: wall_seconds([sys.executable, "-c", "pass"]),
        lambda: wall_seconds([SENTINEL, "--help"]),
        pairs=5 if quick else 20,
    )
    beside = ("python -c pass", statistics.median(bare))
    return [at_most("sentinel --help", 0.25, statistics.median(help_), "s", beside)]
