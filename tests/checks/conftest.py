"""Stand-ins for hardware: a stub libnvidia-ml.so.1, a sysfs tree, a file of kernel records, a clock."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.checks.base import Kept, Look, Unknown
from sentinel.checks.nvidia import nvml as nvml_check
from sentinel.core.health import Finding
from sentinel.core.now import Now
from sentinel.logs.kmsg import encode_record
from sentinel.settings import Settings
from tests.gate.rights import needs_root
from tests.waits import until

FIRST, SECOND = "0000:18:00.0", "0000:2a:00.0"
STUB = Path(__file__).parent / "stub_nvml" / "stub.c"
FILES = 1100  # more than select(2) knows

# What a healthy H100 that trains says; the key of a value is explained in the stub.
HEALTHY: dict[str, Any] = {
    "gpus_name": "NVIDIA H100 80GB HBM3",
    "gpus_vbios": "96.00.74.00.01",
    "gpus_inforom": "G520.0200.00.05",
    "gpus_gsp": "580.95.05",
    "gpus_temperature": 40,
    "gpus_slowdown": 87,
    "gpus_memory_max": 95,
    "gpus_margin": 40,
    "gpus_field82": 50,  # memory temperature
    "gpus_field194": -2,  # margin at which the card slows down
    "gpus_field230": 0,  # recovery action
    "gpus_field269": 0,
    "gpus_field270": 0,
    "gpus_field271": 0,
    "gpus_field74": 0,
    "gpus_field91": 4,  # NVLinks
    "gpus_ecc": 0,
    "gpus_ecc_corrected": 0,
    "gpus_ecc_mode": 1,
    "gpus_ecc_mode_pending": 1,
    "gpus_sram_exceeded": 0,
    "gpus_pending": 0,
    "gpus_failed": 0,
    "gpus_persistence": 1,
    "gpus_mig": 0,
    "gpus_reasons": 0,
    "gpus_power": 650_000,
    "gpus_power_limit": 700_000,
    "gpus_power_default": 700_000,
    "gpus_sm_clock": 1755,
    "gpus_mem_clock": 2619,
    "gpus_pstate": 0,
    "gpus_util": 99,
    "gpus_mem_util": 40,
    "gpus_memory": 80 << 30,
    "gpus_memory_used": 8 << 20,
    "gpus_pcie_gen": 5,
    "gpus_pcie_gen_max": 5,
    "gpus_pcie_width": 16,
    "gpus_pcie_width_max": 16,
    "gpus_replays": 0,
    "gpus_link0": 1,
    "gpus_link1": 1,
    "gpus_link2": 1,
    "gpus_link3": 1,
    "gpus_fabric_state": 3,
    "gpus_fabric_mask": 0x1AA,  # bandwidth, route, timeout: false; configuration: nothing wrong
    "gpus_fabric_summary": 1,
    "gpus_event_types": 0xA,
    "gpus_gpm1": 99,
    "gpus_gpm2": 90,
    "gpus_gpm5": 60,
    "gpus_gpm10": 40,
}


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """No file can be opened, as in a process that leaks them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class HandClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.mono_s = 100_000.0

    def __call__(self) -> Now:
        return Now(self.mono_s, 1_700_000_000.0 + self.mono_s)


class Machine:
    """A machine's sysfs tree and kernel log, with settings that point there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sysfs = folder / "sys"
        self.kmsg = folder / "kmsg"
        self.kmsg.touch()
        (self.sysfs / "bus/pci/devices").mkdir(parents=True)
        self._sequence = 0

    @property
    def settings(self) -> Settings:
        return Settings(sysfs=str(self.sysfs), kernel_log=str(self.kmsg), state_dir=str(self.folder))

    def add_pci(
        self, address: str, vendor: str = "0x10de", pci_class: str = "0x030200", device: str = "0x2330"
    ) -> Path:
        folder = self.sysfs / "bus/pci/devices" / address
        folder.mkdir()
        for name, value in (("vendor", vendor), ("class", pci_class), ("device", device)):
            (folder / name).write_text(value + "\n")
        return folder

    def log(self, *lines: str, facility: int = 0, at_us: int | None = None) -> None:
        with self.kmsg.open("ab") as file:
            for line in lines:
                self._sequence += 1
                file.write(encode_record(line, self._sequence, at_us, facility))


class Scenario:
    """What the stubbed NVML answers from its next call on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}

    def set(self, **values: Any) -> None:
        """Keys of a card are written gpu0_temperature=50, of all cards gpus_temperature=50; None takes one away."""
        for key, value in values.items():
            name = key
            if key.startswith("gpu"):
                card, _, name = key.removeprefix("gpu").partition("_")
                name = f"{card.replace('s', '*')}.{name}"
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        self._write()

    def load(self, path: Path) -> None:
        """Nothing but what a file of the same lines says."""
        self.values = dict(line.split(" ", 1) for line in path.read_text().splitlines())
        self._write()

    def event(self, card: int, kind: int, data: int = 0) -> None:
        """An event of `card`: kind 8 is an Xid."""
        count = self.values.get("events", 0)
        self.values |= {f"event{count}": f"{card} {kind} {data}", "events": count + 1}
        self._write()

    def field(self, card: int, field: int, value: int | None, link: int = 0) -> None:
        """An NVML field value of a link; None: it tells none."""
        self.values[f"{card}.field{field}@{link}"] = value
        if value is None:
            del self.values[f"{card}.field{field}@{link}"]
        self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self.values.items()))
        new.replace(self.path)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "machine"
    folder.mkdir()
    return Machine(folder)


@pytest.fixture(scope="session")
def build_stub(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Compiles the stub (once for each driver generation) and returns the folder of libnvidia-ml.so.1."""
    built: dict[bool, Path] = {}

    def build(old_driver: bool = False) -> Path:
        if old_driver not in built:
            folder = tmp_path_factory.mktemp("nvml")
            options = ["-DOLD_DRIVER"] if old_driver else []
            command = [
                "gcc",
                "-shared",
                "-fPIC",
                "-Wall",
                "-Werror",
                *options,
                "-Wl,-soname,libnvidia-ml.so.1",  # as NVIDIA's own has it
                "-o",
                str(folder / "libnvidia-ml.so.1"),
                str(STUB),
            ]
            subprocess.run(command, check=True)
            built[old_driver] = folder
        return built[old_driver]

    return build


@pytest.fixture
def nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build_stub: Callable[[bool], Path]
) -> Iterator[Callable[..., Scenario]]:
    """Puts the stub where the loader finds it; returns a scenario of healthy cards."""
    scenarios: list[Scenario] = []

    def start(*addresses: str, old_driver: bool = False) -> Scenario:
        library = build_stub(old_driver)
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}")
        scenario = Scenario(tmp_path / "scenario")
        monkeypatch.setenv("SENTINEL_STUB_NVML", str(scenario.path))
        scenario.set(driver="580.95.05", devices=len(addresses), **HEALTHY)
        for index, address in enumerate(addresses):
            named = {"pci": f"0000{address}", "uuid": f"GPU-0000000{index}", "minor": index}
            scenario.set(**{f"gpu{index}_{key}": value for key, value in named.items()})
        scenarios.append(scenario)
        return scenario

    yield start
    for scenario in scenarios:
        scenario.set(hang=0)  # lets a hung child end


class Sampler:
    """Takes samples as the runner does, with one memory."""

    def __init__(self, machine: Any, clock: Any) -> None:
        self.machine, self.clock = machine, clock
        self.kept = Kept()
        self.settings: dict[str, Any] = {}
        self.root = ""

    def __call__(self, seconds: float = 30.0) -> dict[tuple[str, str], Finding]:
        """One sample, `seconds` after the one before."""
        self.clock.mono_s += seconds
        settings = msgspec.structs.replace(self.machine.settings, **self.settings)
        look = Look(settings, (), self.clock(), "boot", self.kept, root=self.root)
        return {(finding.entity, finding.code): finding for finding in nvml_check.check(look)}

    def until(self, minutes: float) -> dict[tuple[str, str], Finding]:
        """Samples every 30 s for so long; what the last one shows."""
        for _ in range(round(minutes * 2) - 1):
            self()
        return self()

    def measure(self, name: str, index: int = 0) -> float | None:
        """What /metrics shows of one card."""
        for measure in self.kept.measures:
            if measure.name == name and ("gpu", str(index)) in measure.labels:
                return float(measure.value)
        return None

    def hang(self) -> Finding:
        """A sample that is expected to hang."""
        with pytest.raises(Unknown) as unknown:
            self()
        (finding,) = unknown.value.findings
        return finding

    @property
    def memory(self) -> nvml_check.Memory:
        return self.kept.own(nvml_check.Memory)

    @property
    def child_pid(self) -> int | None:
        child = self.memory.child
        return child.pid if child else None


@pytest.fixture
def sample(machine: Any, clock: Any) -> Iterator[Sampler]:
    sampler = Sampler(machine, clock)
    yield sampler
    sampler.kept.close()


@pytest.fixture
def cards(machine: Any, nvml: Callable[..., Any]) -> Any:
    """Two healthy cards, on the bus and in NVML."""
    machine.add_pci(FIRST)
    machine.add_pci(SECOND)
    return nvml(FIRST, SECOND)


@pytest.fixture
def eight_cards(machine: Any, nvml: Callable[..., Any]) -> Any:
    """Eight healthy cards that train."""
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(0x18, 0x20)]
    for address in addresses:
        machine.add_pci(address)
    return nvml(*addresses)


@pytest.fixture
@needs_root
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A frozen ext4 file system of its own: who writes to it waits in the kernel."""
    image, where = tmp_path / "image", tmp_path / "ext4"
    where.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(where)], check=True, capture_output=True)
    subprocess.run(["fsfreeze", "-f", str(where)], check=True)
    yield where
    subprocess.run(["fsfreeze", "-u", str(where)], capture_output=True, check=False)
    until(
        lambda: subprocess.run(["umount", str(where)], capture_output=True, check=False).returncode == 0,
        "cannot unmount",
    )


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many are open as in an agent that reads the logs of many pods."""
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(FILES)]
    yield
    for descriptor in held:
        os.close(descriptor)
