"""The NVIDIA GPUs of this machine in PCI order, which is CUDA's order under CUDA_DEVICE_ORDER=PCI_BUS_ID."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

NVIDIA_VENDOR = "0x10de"
# PCI class codes: VGA controller, 3D controller. NVSwitches are bridges (0x0680) and are not listed.
GPU_CLASSES = ("0x0300", "0x0302")


class Gpu(Struct, frozen=True):
    pci: str  # "0000:18:00.0"
    device: str  # PCI device id, "0x2330"

    @property
    def entity(self) -> str:
        """As findings and `Incident.excluded` name it."""
        return f"GPU {self.pci}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # a card that just left the bus, or EINVAL
        return ""


def pci_addresses(sysfs: str) -> list[str]:
    """All functions on the PCI bus in order; [] where sysfs has none."""
    try:
        return sorted(entry.name for entry in Path(sysfs, "bus/pci/devices").iterdir())
    except OSError:
        return []


def pci_functions(sysfs: str, vendor: str, classes: tuple[str, ...]) -> list[str]:
    """Addresses of one maker's functions of these classes, in order."""
    devices = Path(sysfs, "bus/pci/devices")
    return [
        address
        for address in pci_addresses(sysfs)
        if _read(devices / address / "vendor") == vendor
        and _read(devices / address / "class").startswith(classes)
    ]


def inventory(sysfs: str = "/sys") -> tuple[Gpu, ...]:
    """GPUs on the PCI bus in address order; empty where sysfs has no PCI bus."""
    devices = Path(sysfs, "bus/pci/devices")
    found = pci_functions(sysfs, NVIDIA_VENDOR, GPU_CLASSES)
    return tuple(Gpu(address.lower(), _read(devices / address / "device")) for address in found)


def usable(gpus: Iterable[Gpu], excluded: Iterable[str]) -> tuple[tuple[int, Gpu], ...]:
    """(CUDA index, GPU) of those whose entity is not in `excluded`. The index counts all `gpus`."""
    out = set(excluded)
    return tuple((index, gpu) for index, gpu in enumerate(gpus) if gpu.entity not in out)


def cuda_environment(gpus: Iterable[Gpu], excluded: Iterable[str]) -> dict[str, str]:
    """Variables that show a program all GPUs but the `excluded` ones, counted in PCI order."""
    indices = ",".join(str(index) for index, _ in usable(gpus, excluded))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": indices}
