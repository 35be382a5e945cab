"""Findings from the kernel's messages: Xid, SXid, OOM kills, hung tasks, file systems and disks."""

import time

from sentinel.checks.base import Look, Unknown
from sentinel.checks.xid import finding_of
from sentinel.core.model import Component, Finding, Severity
from sentinel.logs.kernel import parse_kernel
from sentinel.logs.kmsg import KmsgPosition, KmsgReader, KmsgRecord


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
    found = []
    for record in records:
        event = parse_kernel(record.text)
        if event is None:
            continue
        age_s = max(0.0, (uptime_us - record.at_us) / 1e6)
        found.append(finding_of(event, look.now.wall_s - age_s, look.now.mono_s - age_s, look.boot_id))
    return found


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
