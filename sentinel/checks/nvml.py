"""What NVIDIA's driver says about its cards, asked through a child process that can be killed when a call hangs."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from sentinel.checks.base import Absent, Look, Unknown
from sentinel.checks.child import ChildBroke, ChildHangs, LineChild
from sentinel.checks.gpus import inventory
from sentinel.checks.nvml_sample import Device, Sample
from sentinel.checks.xid import recovery_meaning
from sentinel.core.model import Component, Finding, Severity
from sentinel.logs.kernel import normal_pci

CALL_DEADLINE_S = 10.0  # a healthy sample of 8 cards takes well under 1 s
HANG_FATAL_S = 120.0  # an NVML that hangs so long does not come back without a restart
ORPHAN_BYTES = 15 << 20  # what a context without data takes
INIT_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel; elsewhere NVML's pids are not ours
LIBRARY = "libnvidia-ml.so.1"
# Isolated, with our own root: modules in the current directory or a PYTHONPATH, which are the job's, stay out.
_ROOT = str(Path(__file__).resolve().parents[2])
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from sentinel.checks.nvml_child import main; main()"
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)


def find_library() -> str:
    """Where the dynamic loader would find NVML, "" where it would not. Loads nothing, starts nothing."""
    for folder in (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *LIBRARY_FOLDERS):
        if folder and os.path.exists(os.path.join(folder, LIBRARY)):
            return os.path.join(folder, LIBRARY)
    try:
        return "ld.so.cache" if LIBRARY.encode() in Path("/etc/ld.so.cache").read_bytes() else ""
    except OSError:
        return ""


def _finding(
    entity: str, code: str, severity: Severity, action: str, summary: str, evidence: str, event: bool = False
) -> Finding:
    return Finding(
        check="nvml",
        component=Component.GPU,
        entity=entity,
        code=code,
        severity=severity,
        action=action,
        summary=summary,
        evidence=(evidence,),
        event=event,
    )


def entity_of(device: Device) -> str:
    """As all findings name a card: by PCI address, by index where the card does not say even that."""
    try:
        return f"GPU {normal_pci(device.pci)}"
    except ValueError:
        return f"GPU {device.index}"


def judge_device(device: Device, earlier: Device | None, gone: Callable[[int], bool]) -> list[Finding]:
    """Findings of one card. `earlier` is its sample before; `gone(pid)` tells whether no such process exists."""
    entity = entity_of(device)
    title = f"{device.name or 'GPU'} {device.uuid}".strip()
    found = []
    if device.error == "lost":
        found.append(
            _finding(
                entity,
                "gpu-lost",
                Severity.FATAL,
                "RESTART_BM",
                "The GPU is lost",
                f"{title}: NVML says GPU is lost",
            )
        )
    elif device.error == "reset-required":
        found.append(
            _finding(
                entity,
                "gpu-reset-required",
                Severity.FATAL,
                "RESET_GPU",
                "The GPU needs a reset",
                f"{title}: NVML says reset required",
            )
        )
    elif device.error:
        found.append(
            _finding(
                entity,
                "gpu-no-answer",
                Severity.WARNING,
                "CONTACT_SUPPORT",
                "NVML gives no handle of the GPU",
                f"index {device.index}",
            )
        )
    if device.recovery_action:
        meaning = recovery_meaning(value=device.recovery_action)
        found.append(
            _finding(
                entity,
                "gpu-recovery-action",
                meaning.severity,
                meaning.action,
                meaning.title,
                f"{title}: {meaning.reason}",
            )
        )
    found += _judge_memory(device, earlier, entity, title)
    if (
        device.temperature_celsius is not None
        and device.slowdown_celsius
        and device.temperature_celsius >= device.slowdown_celsius
    ):
        found.append(
            _finding(
                entity,
                "gpu-temperature",
                Severity.DEGRADED,
                "CHECK_COOLING",
                "The GPU is as hot as its own slowdown limit",
                f"{title}: {device.temperature_celsius} °C, limit {device.slowdown_celsius} °C",
            )
        )
    before = {process.pid for process in earlier.processes} if earlier else set()
    for process in device.processes:
        # Twice in a row: a process that just ended may still be listed for a moment.
        if process.used_bytes >= ORPHAN_BYTES and process.pid in before and gone(process.pid):
            found.append(
                _finding(
                    entity,
                    "gpu-orphan-memory",
                    Severity.DEGRADED,
                    "RESET_GPU",
                    "GPU memory is held by a process that is gone",
                    f"{title}: {process.used_bytes >> 20} MiB of pid {process.pid}",
                )
            )
    return found


def _judge_memory(device: Device, earlier: Device | None, entity: str, title: str) -> list[Finding]:
    """ECC and remapped rows. The counter starts again with the driver: a smaller number is a new start."""
    found = []
    count, before = device.ecc_uncorrected, earlier.ecc_uncorrected if earlier else None
    if count is not None and before is not None and count > before:
        found.append(
            _finding(
                entity,
                "ecc-uncorrected",
                Severity.FATAL,
                "RESET_GPU",
                "The GPU's memory had uncorrected errors",
                f"{title}: {count - before} more since the last sample, {count} since the driver was loaded",
                event=True,
            )
        )
    if device.remap_failed:
        found.append(
            _finding(
                entity,
                "rows-remap-failed",
                Severity.FATAL,
                "CONTACT_SUPPORT",
                "Remapping a memory row failed: the card is worn out",
                title,
            )
        )
    if device.remap_pending:
        found.append(
            _finding(
                entity,
                "rows-remap-pending",
                Severity.DEGRADED,
                "RESET_GPU",
                "A memory row is remapped only after a reset",
                title,
            )
        )
    return found


def judge_count(devices: list[Device], on_pci: list[str]) -> list[Finding]:
    """Cards that are on the PCI bus but that NVML does not list."""
    named = {entity_of(device) for device in devices}
    if any(device.error and not device.pci for device in devices):
        return []  # a card that is lost tells no address: which one is missing is not known
    return [
        _finding(
            entity,
            "gpu-missing",
            Severity.FATAL,
            "RESTART_BM",
            "The GPU is on the PCI bus but the driver does not list it",
            f"NVML lists {len(devices)} of {len(on_pci)} GPUs",
        )
        for entity in on_pci
        if entity not in named
    ]


def _sample(look: Look) -> Sample | Finding:
    child = look.kept.get("child")
    if not isinstance(child, LineChild):
        child = look.kept["child"] = LineChild([sys.executable, "-I", "-c", _CHILD, _ROOT])
    try:
        line = child.ask(b"sample", look.kept.get("call_deadline_s", CALL_DEADLINE_S))
        look.kept.pop("hangs_since_s", None)
        return msgspec.json.decode(line, type=Sample)
    except ChildHangs as hang:
        since_s = look.kept.setdefault("hangs_since_s", look.now.mono_s)
        lasting = hang.unkillable or look.now.mono_s - since_s >= HANG_FATAL_S
        severity = Severity.FATAL if lasting else Severity.DEGRADED
        return _finding(
            "node", "nvml-hangs", severity, "RESTART_BM", "NVIDIA's driver does not answer", str(hang)
        )
    except (ChildBroke, msgspec.DecodeError) as error:
        raise Unknown(f"NVML child: {error}") from None


def check(look: Look) -> list[Finding]:
    on_pci = [gpu.entity for gpu in inventory(look.settings.sysfs)]
    if not on_pci and not find_library():
        raise Absent("no NVIDIA GPU on the PCI bus and no NVML library")
    sample = _sample(look)
    if isinstance(sample, Finding):
        return [sample]
    if sample.problem:
        if not on_pci:
            raise Absent(f"no NVIDIA GPU on the PCI bus; NVML: {sample.problem}")
        raise Unknown(f"NVML: {sample.problem}")
    if not sample.devices and not on_pci:
        raise Absent(f"driver {sample.driver} lists no GPU")
    ours = os.path.realpath(os.path.join(look.settings.procfs, "self/ns/pid")).endswith(INIT_PID_NAMESPACE)

    def gone(pid: int) -> bool:
        return ours and not os.path.exists(os.path.join(look.settings.procfs, str(pid)))

    earlier: dict[str, Device] = look.kept.get("earlier", {})
    found = [
        item
        for device in sample.devices
        for item in judge_device(device, earlier.get(entity_of(device)), gone)
    ]
    look.kept["earlier"] = {entity_of(device): device for device in sample.devices}
    return found + judge_count(sample.devices, on_pci)
