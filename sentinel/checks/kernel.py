"""Findings from the kernel's messages: Xid, SXid, OOM kills, hung tasks, file systems and disks."""

import time
from pathlib import Path

import msgspec

from sentinel.checks.base import Look, Unknown
from sentinel.checks.gpus import inventory
from sentinel.checks.xid import finding_of, job_of_cgroup
from sentinel.core.model import Component, Finding, Severity
from sentinel.logs.kernel import KernelLog
from sentinel.logs.kmsg import KmsgPosition, KmsgReader, KmsgRecord

SAME_PROCESS_S = 5.0  # so soon after the line its pid has not gone to another process


def _reader(look: Look) -> KmsgReader:
    reader = look.kept.get("reader")
    if not isinstance(reader, KmsgReader):
        saved = look.kept.get("saved")
        resume = KmsgPosition(str(saved["boot_id"]), int(saved["sequence"])) if saved else None
        reader = look.kept["reader"] = KmsgReader(
            look.settings.kernel_log, resume=resume, procfs=look.settings.procfs
        )
    return reader


def _findings(records: list[KmsgRecord], look: Look) -> list[Finding]:
    """Message times become wall and boot times; the kernel's stamp is never later than now."""
    uptime_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    told = look.kept.setdefault("log", KernelLog())
    cgroups: dict[int, str] = {}
    found = []
    for record in records:
        event = told.take(record.text)
        if event is None:
            continue
        age_s = max(0.0, (uptime_us - record.at_us) / 1e6)
        finding = finding_of(event, look.now.wall_s - age_s, look.now.mono_s - age_s, look.boot_id)
        if finding.pid is not None and not finding.cgroup and age_s < SAME_PROCESS_S:
            if finding.pid not in cgroups:
                cgroups[finding.pid] = cgroup_of(finding.pid, look.settings.procfs)
            cgroup = cgroups[finding.pid]
            finding = msgspec.structs.replace(finding, cgroup=cgroup, job=job_of_cgroup(cgroup))
        found.append(on_card(finding, look.settings.sysfs) if finding.entity.startswith("PCI ") else finding)
    return found


def cgroup_of(pid: int, procfs: str = "/proc") -> str:
    """The cgroup of a process, of its memory under cgroup v1; "" where it is gone. Never blocks, as environ may."""
    try:
        lines = Path(procfs, str(pid), "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    paths = {kind: path for line in lines if line.count(":") >= 2 for _, kind, path in [line.split(":", 2)]}
    return paths.get("memory") or paths.get("") or next(iter(paths.values()), "")


def on_card(finding: Finding, sysfs: str = "/sys") -> Finding:
    """A fault of the PCIe device that is a GPU is the GPU's: it is named, and isolated, as one."""
    address = finding.entity.removeprefix("PCI ")
    if all(gpu.pci != address for gpu in inventory(sysfs)):
        return finding
    return msgspec.structs.replace(finding, component=Component.GPU, entity=f"GPU {address}")


def _lost(count: int, look: Look) -> list[Finding]:
    if count <= 0:
        return []
    return [
        Finding(
            check="kernel",
            component=Component.AGENT,
            entity=look.settings.kernel_log,
            code="kernel-log-lost",
            severity=Severity.INFO,
            action="",
            summary="Kernel messages were overwritten before they were read: a fault among them was not seen",
            evidence=(f"{count} messages",),
            event=True,
            first_seen_wall_s=look.now.wall_s,
            last_seen_wall_s=look.now.wall_s,
            seen_mono_s=look.now.mono_s,
            boot_id=look.boot_id,
        )
    ]


def check(look: Look) -> list[Finding]:
    reader = _reader(look)
    records = reader.read()  # everything first: a flood must not overtake the reader
    found = _findings(records, look)
    position = reader.position
    look.kept["saved"] = {"boot_id": position.boot_id, "sequence": position.sequence}
    if reader.pollable:
        look.kept["wake_fd"] = reader.fileno()
    else:
        look.kept.pop("wake_fd", None)
    found += _lost(reader.lost - look.kept.get("counters", {}).get("lost", 0), look)
    look.kept["counters"] = {"lost": reader.lost, "untrusted": reader.untrusted, "garbled": reader.garbled}
    if reader.problem:
        raise Unknown(reader.problem, tuple(found))
    return found
