"""Every number that a check gives is declared, with its labels, so that /metrics says what it is."""

import asyncio
import re
from typing import Any

import msgspec

from sentinel.checks.runner import CheckRunner
from sentinel.metrics.measures import render, rows
from tests.checks.sysfs_tree import Tree


def test_what_the_checks_measure_is_declared(machine: Any, eight_cards: Any, tmp_path: Any) -> None:
    tree = Tree(tmp_path / "network")
    tree.ib("mlx5_0", "0000:40:00.0")
    (machine.sysfs / "class").mkdir()
    (machine.sysfs / "class/infiniband").symlink_to(tree.sysfs / "class/infiniband")
    runner = CheckRunner(msgspec.structs.replace(machine.settings, procfs="/proc"), ("/tmp",))
    asyncio.run(runner.check_now())
    found = runner.measures()
    runner.close()
    assert {"nvml", "disk", "infiniband"} <= {result.check for result in runner.results()}
    for measure in found:
        row = rows().get(measure.name)
        assert row is not None, f"{measure.name} has no row in rules/measures.toml"
        assert [name for name, _ in measure.labels] == row.labels, measure.name
    text = render(found).decode()
    for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "node_infiniband_state_id"):
        assert re.search(rf"^# TYPE {name} (gauge|counter)\n{name}{{", text, re.M)
    assert "untyped" not in text
