"""The dashboards for Grafana: `python scripts/dashboards.py` writes dashboards/*.json. They are made in boards/."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # run as a file, and loaded by a test
from boards.cost import cost
from boards.fleet import fleet
from boards.grafana import uid
from boards.itself import itself
from boards.job import job
from boards.node import node

FOLDER = Path(__file__).parents[1] / "dashboards"
DASHBOARDS = (fleet, job, node, cost, itself)


def texts() -> dict[str, str]:
    """File name -> content."""
    return {
        f"{uid(one.__name__)}.json": json.dumps(one(), indent=1, ensure_ascii=False) + "\n"
        for one in DASHBOARDS
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, "utf-8")
