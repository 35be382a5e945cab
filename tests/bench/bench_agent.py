"""What the agent of a node costs: 8 GPUs (a stub of NVML), 8 InfiniBand cards (a sysfs tree), the shipped rules (at
least 60) over 8 growing logs, `/metrics` scraped every 15 s. All checks are on, at their own intervals.

The logs are followed in the agent's process, by the same code that follows a job's ranks under `sentinel run`,
looked at twice a second; each gets two lines a second. Memory (PSS) and CPU are those of the agent and all its
children, NVML's stub included; the kernel log wakes its reader and is otherwise silent. The numbers of GPUd beside
it are quoted from a run on this kind of machine without any GPU.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from sentinel.checks.network.rdma import COUNTERS, HW_COUNTERS
from tests.bench.harness import Row, at_most, cpu_seconds, process_tree, pss_bytes, wait_until
from tests.checks.conftest import HEALTHY, STUB, Scenario
from tests.checks.sysfs_tree import Tree, write
from tests.waits import until

MIB = float(1 << 20)
CARDS = 8
WARM_UP_S = 45.0  # every quick check has run, the slow start of the driver's child is over
SCRAPE_S = 15.0

HOST = """
import asyncio, socket, sys
from pathlib import Path
sys.modules.setdefault('rich', None)
from sentinel import journal
from sentinel.agent.ranks import Agent
from sentinel.cli.agent import say
from sentinel.service.control import Lock
from sentinel.agent.node import NodeAgent
from sentinel.util.clock import boot_id, system_now
from sentinel.cluster.base import RankProcess
from sentinel.core.model import ProtectedJob
from sentinel.core.policy_model import Policy
from sentinel.logs.ruleset import load_ruleset
from sentinel.settings import Settings

root = Path(sys.argv[1])
settings = Settings(
    state_dir=str(root / 'state'), listen='127.0.0.1:0', sysfs=str(root / 'sys'), kernel_log=sys.argv[2]
)
folder = settings.state_path / 'agent'
Lock(folder).take()
journal.configure(folder / 'agent.log')
rules = load_ruleset((), '', settings.state_path / 'cache')
assert len(rules.rules) >= 60
node = NodeAgent(settings, folder, settings_file=None, paths=(), say=say)
logs = Agent(
    socket.gethostname(), boot_id(), system_now, lambda report: None, lambda job: rules,
    metrics=node.metrics, output=lambda rank, data: None, look=lambda job, incarnation: {},
    read_kernel_log=asyncio.Event().wait,
    load_positions=lambda job: {}, save_positions=lambda positions: None, poll_s=0.5,
)

async def main():
    ranks = [
        RankProcess(rank=rank, pid=1, start_ticks=1, log_path=str(root / f'rank-{rank}.log')) for rank in range(8)
    ]
    logs.follow(ProtectedJob(name='bench', policy=Policy(), incarnation=1, size=8), ranks)
    follow = asyncio.create_task(logs.run())
    await node.run()
    follow.cancel()

asyncio.run(main())
"""


def tree(root: Path) -> dict[str, str]:
    """Cards on the bus, ports with every counter, NVML with the same cards. Returns the environment."""
    machine = Tree(root)
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(0x18, 0x18 + CARDS)]
    for address in addresses:
        folder = machine.pci(address, vendor="0x10de", kind="0x030200", driver="nvidia")
        write(folder / "device", "0x2330")
    for index in range(CARDS):
        card = machine.ib(f"mlx5_{index}", f"0000:{0x40 + index:02x}:00.0")
        for names, where in ((COUNTERS, "counters"), (HW_COUNTERS, "hw_counters")):
            for counter in names:
                write(card / "ports/1" / where / counter, 12345)
    library = root / "nvml"
    library.mkdir()
    command = ["gcc", "-shared", "-fPIC", "-o", str(library / "libnvidia-ml.so.1"), str(STUB)]
    subprocess.run(command, check=True)
    scenario = Scenario(root / "scenario")
    scenario.set(driver="580.95.05", devices=CARDS, **HEALTHY)
    for index, address in enumerate(addresses):
        named = {"pci": f"0000{address}", "uuid": f"GPU-0000000{index}", "minor": index}
        scenario.set(**{f"gpu{index}_{key}": value for key, value in named.items()})
    stub = {"SENTINEL_STUB_NVML": str(scenario.path), "SENTINEL_STUB_NVML_POLL_US": "10000000"}
    return {**os.environ, "LD_LIBRARY_PATH": str(library), **stub}


class Writers:
    """What eight ranks print: called as often as one likes, it writes what is due."""

    def __init__(self, root: Path) -> None:
        self._logs = [root / f"rank-{rank}.log" for rank in range(8)]
        for log in self._logs:
            log.touch()
        self._began_s = time.monotonic()
        self._step = 0

    def pump(self) -> None:
        while self._step < time.monotonic() - self._began_s:
            self._step += 1
            for log in self._logs:
                with open(log, "a") as file:
                    file.write(
                        f"step: {self._step}  loss: 1.250000  tps: 5,120\n"
                        "this iteration hardware time is 820.521 and e2e time is 1000.125 ms.\n"
                    )


def lives(writers: Writers, seconds: float, beside: Callable[[], None] = lambda: None) -> None:
    """The node goes on for so long."""
    end_s = time.monotonic() + seconds

    def over() -> bool:
        writers.pump()
        beside()
        return time.monotonic() >= end_s

    until(over, "the node does not go on", seconds + 60.0, every_s=0.1)


def name_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return "NVML child" if any(b"nvml_child" in word for word in words) else "agent"


def measured(
    url: str, agent: int, seconds: float, writers: Writers
) -> tuple[dict[str, float], dict[str, float]]:
    """Share of a core (%) and PSS (MiB), by process, over the next `seconds`."""
    processes = process_tree(agent)
    before_s = {pid: cpu_seconds((pid,)) for pid in processes}
    begun_s, scraped_s = time.monotonic(), 0.0

    def scrape() -> None:
        nonlocal scraped_s
        if time.monotonic() - scraped_s >= SCRAPE_S:
            scraped_s = time.monotonic()
            urllib.request.urlopen(url + "/metrics", timeout=10).read()

    lives(writers, seconds, scrape)
    passed_s = time.monotonic() - begun_s
    share: dict[str, float] = {}
    memory: dict[str, float] = {}
    for pid in process_tree(agent):
        name = name_of(pid)
        used_s = cpu_seconds((pid,)) - before_s.get(pid, 0.0)
        share[name] = share.get(name, 0.0) + 100 * used_s / passed_s
        memory[name] = memory.get(name, 0.0) + pss_bytes((pid,)) / MIB
    return share, memory


def check_seconds(root: Path, environment: dict[str, str], runs: int) -> float:
    """Median time of `sentinel check`, from its start to its end, on the same machine."""
    settings = root / "settings.yaml"
    settings.write_text(
        f"apiVersion: sentinel.dev/v1alpha1\nkind: Settings\nsysfs: {root}/sys\nkernelLog: {root}/kmsg\n"
        f"stateDir: {root}/other\n"
    )
    command = [
        str(Path(sys.executable).with_name("sentinel")),
        "check",
        "--settings",
        str(settings),
        "-o",
        "json",
    ]
    took = []
    for _ in range(runs):
        begun_s = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
        took.append(time.perf_counter() - begun_s)
        checks = json.loads(done.stdout)["checks"]
        assert {"nvml", "infiniband"} <= {check["check"] for check in checks if check["state"] != "absent"}
    return statistics.median(took)


def run(quick: bool = False) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="sentinel-bench-") as temporary:
        root = Path(temporary)
        environment = tree(root)
        writers = Writers(root)
        # The machine's own log belongs to others too; like it, this one wakes its reader and is otherwise silent.
        kernel_log = root / "kmsg"
        os.mkfifo(kernel_log)
        writer = os.open(kernel_log, os.O_RDWR)
        told = root / "told"
        with open(told, "wb") as errors:
            agent = subprocess.Popen(
                [sys.executable, "-c", HOST, str(root), str(kernel_log)], env=environment, stderr=errors
            )
        try:
            mark = "findings on "
            wait_until(lambda: mark in told.read_text(), 30, f"the agent to listen: {told.read_text()}")
            url = told.read_text().rpartition(mark)[2].split()[0]
            lives(writers, 15.0 if quick else WARM_UP_S)
            share, memory = measured(url, agent.pid, 20.0 if quick else 60.0, writers)
            check_s = check_seconds(root, environment, 3 if quick else 9)
            numbers = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
        finally:
            agent.terminate()
            agent.wait(20)
            os.close(writer)
    cards = numbers.count("DCGM_FI_DEV_GPU_TEMP{")
    ports = numbers.count("node_infiniband_state_id{")
    assert (cards, ports) == (CARDS, CARDS), f"{cards} cards and {ports} ports were measured"
    of_cpu = ", ".join(f"{name} {value:.2f}" for name, value in share.items())
    of_memory = ", ".join(f"{name} {value:.1f}" for name, value in memory.items())
    return [
        at_most(
            f"memory (PSS): {of_memory}", 70.0, sum(memory.values()), "MiB", ("GPUd without a GPU", 70.0)
        ),
        at_most("`sentinel check` with every quick check", 2.0, check_s, "s"),
        at_most(f"CPU: {of_cpu}", 0.5, sum(share.values()), "% of a core", ("GPUd without a GPU", 0.12)),
    ]
