"""The NVIDIA GPUs of this machine in PCI order, which is CUDA's order under CUDA_DEVICE_ORDER=PCI_BUS_ID."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

NVIDIA_VENDOR = "0x10de"
# PCI class codes: VGA controller, 3D controller. NVSwitches are bridges (0x0680) and are not listed.
GPU_CLASSES = ("0x0300", "0x0302")
# It is not the card that refuses: nothing can be told of it.
_NOT_THE_CARDS_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


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
    except OSError as error:  # a card that just left the bus, or EINVAL
        if error.errno in _NOT_THE_CARDS_ERRORS:
            raise
        return ""


def pci_addresses(sysfs: str) -> list[str]:
    """All functions on the PCI bus in order; [] where sysfs has none. Raises OSError where that cannot be told."""
    try:
        return sorted(os.listdir(f"{sysfs}/bus/pci/devices"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def pci_functions(sysfs: str, vendor: str, classes: tuple[str, ...]) -> list[str]:
    """Addresses of one maker's functions of these classes, in order; without virtual ones, which are for guests."""
    devices = Path(sysfs, "bus/pci/devices")
    return [
        address
        for address in pci_addresses(sysfs)
        if _read(devices / address / "vendor") == vendor
        and _read(devices / address / "class").startswith(classes)
        and not os.path.lexists(devices / address / "physfn")
    ]


def inventory(sysfs: str = "/sys") -> tuple[Gpu, ...]:
    """GPUs on the PCI bus in address order; empty where sysfs has no PCI bus."""
    devices = Path(sysfs, "bus/pci/devices")
    found = pci_functions(sysfs, NVIDIA_VENDOR, GPU_CLASSES)
    return tuple(Gpu(address.lower(), _read(devices / address / "device")) for address in found)


def driver_of(sysfs: str, pci: str) -> str:
    """The kernel's driver that has the function; "" where none has."""
    try:
        return os.path.basename(os.readlink(f"{sysfs}/bus/pci/devices/{pci}/driver"))
    except OSError:
        return ""


def given_away(sysfs: str, pci: str) -> bool:
    """Whether another driver than NVIDIA's has the card: vfio-pci for a guest, nouveau for a screen."""
    driver = driver_of(sysfs, pci)
    return driver != "" and not driver.startswith("nvidia")


def reads_nothing(sysfs: str, pci: str) -> bool:
    """Whether the bus answers for the card with ones alone, as it does where nobody answers."""
    try:
        with open(f"{sysfs}/bus/pci/devices/{pci}/config", "rb") as file:
            return file.read(4) == b"\xff\xff\xff\xff"
    except OSError:
        return False


def hidden(sysfs: str, procfs: str, pci: str, contained: bool) -> bool:
    """Whether NVIDIA's driver has the card but we may not use it: a container or a job was given others.

    `contained`: our /dev is a container's, which has only what it was given; elsewhere a card that never started may
    have no device file.
    """
    if not driver_of(sysfs, pci).startswith("nvidia"):
        return False
    lines = _read(Path(procfs, "driver/nvidia/gpus", pci, "information")).splitlines()
    minor = next((line.partition(":")[2].strip() for line in lines if line.startswith("Device Minor")), "")
    if not minor:
        return True  # a container's /proc names only the cards that it was given
    try:
        # As NVML does it; where a control group forbids the device this is what says so.
        device = Path(procfs, "self", "root", "dev", f"nvidia{minor}")
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        return True
    except FileNotFoundError:
        return contained
    except OSError:  # the card's own answer
        pass
    return False


def usable(gpus: Iterable[Gpu], excluded: Iterable[str]) -> tuple[tuple[int, Gpu], ...]:
    """(CUDA index, GPU) of those whose entity is not in `excluded`. The index counts all `gpus`."""
    out = set(excluded)
    return tuple((index, gpu) for index, gpu in enumerate(gpus) if gpu.entity not in out)


def cuda_environment(gpus: Iterable[Gpu], excluded: Iterable[str]) -> dict[str, str]:
    """Variables that show a program all GPUs but the `excluded` ones, counted in PCI order."""
    indices = ",".join(str(index) for index, _ in usable(gpus, excluded))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": indices}
