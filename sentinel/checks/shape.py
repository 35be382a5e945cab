"""What hardware this node is expected to have: by the manifest, or learnt here and confirmed by a person.

A check asks `look.settings.shape`. It judges only by what is set, puts `expected(shape, "gpus")` into its
evidence or its detail, and passes the severity of a deviation through `judged`.
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from sentinel.checks.base import Look, Source
from sentinel.checks.gpus import NVIDIA_VENDOR, inventory
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import Settings, Shape

_SOURCE = Source("shape", Component.SYSTEM)

log = structlog.get_logger(__name__)

FILE = "shape.json"  # in the state directory
MAX_FILE_BYTES = 1 << 20
DRIVER_WAIT_S = 2.0  # the driver's files in /proc block when it hangs
GIB = 1 << 30
FIELDS = tuple(
    field.name for field in msgspec.structs.fields(Shape) if field.name not in ("name", "match", "source")
)
# What is worth learning of what a node has loaded, mounted and started: what training needs.
MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "gdrdrv", "mlx5_core", "mlx5_ib", "ib_uverbs")
SERVICES = ("containerd", "kubelet", "nvidia-fabricmanager", "nvidia-persistenced", "slurmd", "docker")
NETWORK_MOUNTS = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "wekafs", "ceph", "glusterfs", "cifs")


# ---------------------------------------------------------------- words for checks


def expected(shape: Shape, field: str) -> str:
    """What is expected of one field, and on whose word: "expected 8: learnt, not confirmed"."""
    value = getattr(shape, field)
    if value is None:
        return f"expected {_alias(field)}: not set"
    told = (
        ", ".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else value
    )
    whence = {
        "manifest": f"shape {shape.name}",
        "confirmed": "learnt and confirmed",
        "learnt": "learnt, not confirmed",
    }
    return f"expected {told}: {whence.get(shape.source, 'given')}"


def judged(shape: Shape, severity: Severity) -> Severity:
    """The severity of a deviation: what nobody has confirmed is told, and isolates nothing."""
    if shape.source == "learnt" and severity.order > Severity.WARNING.order:
        return Severity.WARNING
    return severity


# ---------------------------------------------------------------- which shape is this node's


def with_shape(settings: Settings, hostname: str = "") -> Settings:
    """The settings with this node's shape: the manifest's first that matches, else what was learnt here."""
    if settings.shape != Shape():
        return settings
    return msgspec.structs.replace(settings, shape=_shape(settings, hostname or socket.gethostname()))


def _shape(settings: Settings, hostname: str) -> Shape:
    cards: list[str] | None = None
    for shape in settings.shapes:
        match = shape.match
        if match.hostname and not re.search(match.hostname, hostname):
            continue
        if match.gpu:
            cards = _card_names(settings) if cards is None else cards
            if not any(re.search(match.gpu, card) for card in cards):
                continue
        return msgspec.structs.replace(shape, source="manifest")
    return Shape() if settings.shapes else load(settings)


def load(settings: Settings) -> Shape:
    """What was learnt on this node; an empty shape where nothing was, or where the file is damaged (logged)."""
    try:
        return _learnt(settings)
    except FileNotFoundError:
        return Shape()
    except (OSError, ValueError) as error:
        log.warning("learnt_shape_unreadable", path=str(settings.state_path / FILE), error=str(error))
        return Shape()


def _learnt(settings: Settings) -> Shape:
    """Raises OSError, and ValueError (as msgspec's errors are) where the file is damaged."""
    with open(settings.state_path / FILE, "rb") as file:
        return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=Shape)


def save(settings: Settings, shape: Shape) -> Path:
    """Keep a learnt shape, whole or not at all. Raises OSError."""
    path = settings.state_path / FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{FILE}.new-{os.getpid()}")
    draft.write_bytes(msgspec.json.encode(shape))
    draft.replace(path)
    return path


# ---------------------------------------------------------------- learning


def learn(settings: Settings, root: str = "") -> Shape:
    """What this machine has now. What could not be read, or is not there, stays not set. `root`: see node_root.py."""
    sysfs, procfs = Path(settings.sysfs), Path(settings.procfs)
    cards = inventory(settings.sysfs)
    information = _information(settings) if cards else []
    ports = _active_ports(sysfs)
    nics = tuple(
        sorted(name for name in _names(sysfs / "class/net") if _is_wired(sysfs / "class/net" / name))
    )
    mounts = [line.split() for line in _read(procfs / ("1/mounts" if root else "self/mounts")).splitlines()]
    network = sorted(words[1] for words in mounts if len(words) > 2 and words[2] in NETWORK_MOUNTS)
    loaded = {line.split(" ", 1)[0] for line in _read(procfs / "modules").splitlines()}
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _read(procfs / "meminfo"), re.M)
    return Shape(
        source="learnt",
        gpus=len(cards) or None,
        gpu_name=_same(info.get("Model", "") for info in information),
        driver=_driver_version(procfs) if cards else None,
        vbios=_same(info.get("Video BIOS", "") for info in information),
        ib_ports=len(ports) or None,
        ib_rate_gbps=min(ports, default=0.0) or None,
        nics=nics or None,
        memory_gib=round(int(memory[1]) * 1024 / GIB, 1) if memory else None,
        cpus=_read(procfs / "cpuinfo").count("processor\t:") or None,
        mounts=tuple(network) or None,
        modules=tuple(name for name in MODULES if name in loaded) or None,
        services=tuple(f"{name}.service" for name in SERVICES if _is_started(sysfs, name)) or None,
    )


def manifest(shape: Shape, name: str) -> str:
    """The shape as the `shapes:` of a settings file, ready to be pasted. JSON values are YAML values."""
    lines = ["shapes:", f"  - name: {name}"]
    gpu = shape.gpu_name
    match = (
        {"gpu": re.escape(gpu).replace("\\ ", " ")}
        if gpu
        else {"hostname": f"^{re.escape(socket.gethostname())}$"}
    )
    for alias, value in (("match", match), *((_alias(field), getattr(shape, field)) for field in FIELDS)):
        if value is not None:
            lines.append(f"    {alias}: {msgspec.json.encode(value).decode()}")
    return "\n".join(lines) + "\n"


def _alias(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _same(values: Iterable[str]) -> str | None:
    """The one value that all cards have."""
    found = set(values)
    return found.pop() or None if len(found) == 1 else None


def _card_names(settings: Settings) -> list[str]:
    ids = [f"{NVIDIA_VENDOR}:{card.device}".replace("0x", "") for card in inventory(settings.sysfs)]
    return ids + [info.get("Model", "") for info in _information(settings)]


def _information(settings: Settings) -> list[dict[str, str]]:
    """The driver's own description of each card; nothing where it does not answer in time."""
    folder = Path(settings.procfs, "driver/nvidia/gpus")

    def work() -> list[dict[str, str]]:
        found = []
        for address in _names(folder):
            lines = (line.partition(":") for line in _read(folder / address / "information").splitlines())
            found.append({key.strip(): value.strip() for key, _, value in lines})
        return found

    return in_time(work, DRIVER_WAIT_S) or []


def in_time(work: Callable[[], Any], seconds: float) -> Any:
    """The result of `work`, None where it takes longer: a read that blocks in the driver cannot be ended."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="driver-files", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _driver_version(procfs: Path) -> str | None:
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"; the open module says
    # "NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@...)".
    found = re.search(
        r"Kernel Module.*?\s(\d+\.\d+(\.\d+)?)\s",
        in_time(lambda: _read(procfs / "driver/nvidia/version"), DRIVER_WAIT_S) or "",
    )
    return found[1] if found else None


def _active_ports(sysfs: Path) -> list[float]:
    """Rates of the InfiniBand and RoCE ports that are active, Gb/s."""
    rates = []
    for device in _names(sysfs / "class/infiniband"):
        ports = sysfs / "class/infiniband" / device / "ports"
        for port in _names(ports):
            rate = re.match(r"[\d.]+", _read(ports / port / "rate"))
            if _read(ports / port / "state").startswith("4:") and rate:
                rates.append(float(rate[0]))
    return rates


def _is_wired(interface: Path) -> bool:
    """A real Ethernet card (ARPHRD_ETHER = 1) with carrier, not a bridge, a bond or a container's end."""
    return (
        (interface / "device").exists()
        and _read(interface / "type").strip() == "1"
        and _read(interface / "carrier").strip() == "1"
    )


def _is_started(sysfs: Path, name: str) -> bool:
    """systemd keeps a control group for each active service: it need not be asked."""
    return any(
        (sysfs / "fs/cgroup" / hierarchy / "system.slice" / f"{name}.service").is_dir()
        for hierarchy in ("", "systemd", "unified")
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # not there, EINVAL of a port that is down, or a card that just left
        return ""


# ---------------------------------------------------------------- the check


def check(look: Look) -> list[Finding]:
    """Whether anything is expected of this node at all: what is not, no check can miss."""
    shape = look.settings.shape
    unset = [_alias(field) for field in FIELDS if getattr(shape, field) is None]
    look.kept.detail = f"not set: {', '.join(unset)}" if shape.source and unset else ""
    if shape.source == "learnt":
        return [
            _finding(
                "shape-unconfirmed",
                Severity.INFO,
                "CONFIRM",
                "The expected hardware was learnt here and nobody has confirmed it: deviations are only told",
                "`sentinel check --learn` shows it, `sentinel check --confirm` confirms it",
            )
        ]
    if not shape.source and look.settings.shapes:
        names = ", ".join(shape.name for shape in look.settings.shapes)
        return [
            _finding(
                "shape-unmatched",
                Severity.WARNING,
                "CHECK_SETTINGS",
                "No shape of the settings matches this node: missing hardware is not noticed",
                f"shapes: {names}",
            )
        ]
    if not shape.source:
        try:
            _learnt(look.settings)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            return [
                _finding(
                    "shape-unreadable",
                    Severity.WARNING,
                    "CONFIRM",
                    "What was learnt here cannot be read: missing hardware is not noticed",
                    f"{look.settings.state_path / FILE}: {error}; `sentinel check --learn` replaces it",
                )
            ]
        look.kept.detail = "expected hardware: not set; `sentinel check --learn` shows what is here"
    return []


def _finding(code: str, severity: Severity, action: str, summary: str, evidence: str) -> Finding:
    return _SOURCE.finding("node", code, severity, action, summary, evidence)
