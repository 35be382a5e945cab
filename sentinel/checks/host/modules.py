"""Kernel modules and driver libraries that training needs, and whether they fit each other."""

import os
import re
from pathlib import Path

from msgspec import Struct

from sentinel.checks.base import Absent, Look, Source, Unknown
from sentinel.checks.gpus import inventory
from sentinel.checks.node_root import HIDDEN, is_hidden
from sentinel.checks.nvidia.driver_library import DRIVER_ROOT, NVML, places
from sentinel.checks.shape import expected, judged
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import Shape

# The node's root where its processes can be seen (hostPID and root), else our own.
ROOTS = ("1/root", "self/root")
LIBRARIES = ("libcuda.so.1", NVML)
INFINIBAND_CLASS = "0x0207"

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ...", and of the open one
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@...)"
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_LIBRARY = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")


class Seen(Struct, frozen=True):
    """What there is. `libraries`: name -> versions found of it ("" where its file does not say)."""

    modules: frozenset[str]
    gpus: int = 0  # NVIDIA cards that are not given to a virtual machine
    bound_to: str = ""  # the driver that has them
    infiniband_cards: int = 0
    infiniband_devices: int = 0
    driver: str = ""  # version of the loaded module
    open_driver: bool = False
    libraries: dict[str, tuple[str, ...]] = {}


# ---------------------------------------------------------------- reading


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: Path, limit: int = 1 << 20) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


def _bound_to(device: Path) -> str:
    try:
        return os.path.basename(os.readlink(device / "driver"))
    except OSError:
        return ""


def _versions(procfs: Path, library: str) -> tuple[str, ...]:
    """The link that the loader follows names the version: libcuda.so.1 -> libcuda.so.550.54.15."""
    for name in ROOTS:
        found = []
        for root in (procfs / name, procfs / name / DRIVER_ROOT):
            for path in places(str(root), library):
                try:
                    target = os.readlink(root / path)
                except OSError:
                    continue
                version = _LIBRARY.search(target)
                found.append(version[1] if version else "")
        if found:
            return tuple(dict.fromkeys(found))
    return ()


def read_modules(sysfs: Path, procfs: Path) -> Seen:
    """Nothing that is not there is an error: what is needed is judged."""
    devices = sysfs / "bus/pci/devices"
    drivers = [_bound_to(devices / gpu.pci) for gpu in inventory(str(sysfs))]
    cards = [driver for driver in drivers if not driver.startswith("vfio")]
    text = _read(procfs / "driver/nvidia/version")
    version = _VERSION.search(text)
    loaded = {line.partition(" ")[0] for line in _read(procfs / "modules").splitlines()}
    driver = version[1] if version else _read(sysfs / "module/nvidia/version").strip()
    return Seen(
        modules=frozenset(loaded | set(_names(sysfs / "module"))),  # the latter has what is built in
        gpus=len(cards),
        bound_to=", ".join(sorted({name for name in cards if name})),
        infiniband_cards=sum(
            _read(devices / name / "class").startswith(INFINIBAND_CLASS) for name in _names(devices)
        ),
        infiniband_devices=len(_names(sysfs / "class/infiniband")),
        driver=driver,
        open_driver="Open Kernel Module" in text,
        libraries={name: _versions(procfs, name) for name in LIBRARIES} if driver else {},
    )


# ---------------------------------------------------------------- judging


def _component(module: str) -> Component:
    if module.startswith(("nvidia", "nv_", "gdrdrv")):
        return Component.GPU
    return Component.NIC if module.startswith(("ib_", "mlx", "rdma")) else Component.SYSTEM


def judge_modules(seen: Seen, shape: Shape) -> list[Finding]:
    found = []
    missing: dict[str, tuple[Severity, str]] = {}
    if seen.gpus and "nvidia" not in seen.modules:
        why = f"{seen.gpus} NVIDIA cards on the PCI bus" + (
            f", bound to {seen.bound_to}" if seen.bound_to else ""
        )
        missing["nvidia"] = (Severity.DEGRADED, why)
    if seen.infiniband_cards:
        for name in ("ib_core", "ib_uverbs"):
            if name not in seen.modules:
                missing[name] = (
                    Severity.DEGRADED,
                    f"{seen.infiniband_cards} InfiniBand cards on the PCI bus",
                )
    peer = {"nvidia_peermem", "nv_peer_mem"} & seen.modules
    if seen.gpus and seen.driver and seen.infiniband_devices and not peer and not seen.open_driver:
        # The open driver gives its memory to the NIC by dma-buf.
        missing["nvidia_peermem"] = (
            Severity.WARNING,
            "GPUs and RDMA devices are here: without it data goes through the host's memory",
        )
    for name in shape.modules or ():
        told = missing.get(name, (Severity.INFO, ""))[0]
        if name.replace("-", "_") not in seen.modules and told is not Severity.DEGRADED:
            missing[name] = (judged(shape, Severity.DEGRADED), expected(shape, "modules"))
    for name, (severity, why) in missing.items():
        entity, summary = f"module {name}", f"The kernel module {name} is not loaded"
        found.append(
            Source("modules", _component(name)).finding(
                entity, "module-missing", severity, "LOAD_MODULE", summary, why
            )
        )
    return found


def judge_libraries(seen: Seen) -> list[Finding]:
    found = []
    for name, versions in seen.libraries.items():
        if not versions:
            # Only told: in a container they need not be where we look.
            summary = "A library of the NVIDIA driver is missing: no program can use the GPUs"
            evidence = f"driver {seen.driver} is loaded; {name} is not where the loader looks"
            code, severity, action = "library-missing", Severity.WARNING, "REINSTALL_DRIVER"
        elif seen.driver in versions or "" in versions:
            continue
        else:
            summary = "Driver/library version mismatch: programs that start now cannot use the GPUs"
            evidence = f"{name} is of {', '.join(versions)}, the loaded driver is {seen.driver}"
            code, severity, action = "driver-library-mismatch", Severity.DEGRADED, "RESTART_BM"
        found.append(
            Source("modules", Component.GPU).finding(
                f"library {name}", code, severity, action, summary, evidence
            )
        )
    return found


def check(look: Look) -> list[Finding]:
    shape = look.settings.shape
    seen = read_modules(Path(look.settings.sysfs), Path(look.settings.procfs))
    if shape.modules is None and not seen.gpus and not seen.infiniband_cards:
        raise Absent("no GPU and no InfiniBand card needs a module; " + expected(shape, "modules"))
    look.kept.detail = "" if shape.modules else expected(shape, "modules")
    found = judge_modules(seen, shape)
    if seen.libraries and is_hidden(look.root):
        raise Unknown(f"{HIDDEN}: whether the driver's libraries fit it is not known", tuple(found))
    return [*found, *judge_libraries(seen)]
