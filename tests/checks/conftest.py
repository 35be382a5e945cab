"""Stand-ins for hardware: a stub libnvidia-ml.so.1, a sysfs tree, a file of kernel records, a clock."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.model import Now
from sentinel.logs.kmsg import encode_record
from sentinel.settings import Settings

STUB = Path(__file__).parent / "stub_nvml" / "stub.c"


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
        """Keys of a card are written gpu0_temperature=50."""
        for key, value in values.items():
            name = key.removeprefix("gpu").replace("_", ".", 1) if key.startswith("gpu") else key
            self.values[name] = value
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
        scenario.set(driver="580.95.05", devices=len(addresses))
        for index, address in enumerate(addresses):
            for key, value in {
                "pci": f"0000{address}",
                "uuid": f"GPU-0000000{index}",
                "name": "NVIDIA H100 80GB HBM3",
                "temperature": 40,
                "slowdown": 87,
                "ecc": 0,
                "recovery": 0,
                "pending": 0,
                "failed": 0,
            }.items():
                scenario.set(**{f"gpu{index}_{key}": value})
        scenarios.append(scenario)
        return scenario

    yield start
    for scenario in scenarios:
        scenario.set(hang=0)  # lets a hung child end
