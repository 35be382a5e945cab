"""Memory and CPUs that a node is expected to have: what failed its test at boot is just not there."""

from pathlib import Path

from sentinel.checks.base import Look, Measure, Unknown
from sentinel.checks.host.memory import parse_meminfo
from sentinel.checks.shape import expected, judged
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import Shape

GIB = 1 << 30
# The kernel takes 1 to 2 % of what is built in, and not always the same; one module of 24 is 4 %.
MEMORY_TOLERANCE = 0.03


def count_cpus(ranges: str) -> int:
    """How many are in a list as in /sys/devices/system/cpu/online: "0-63,128-191" is 128. Raises ValueError."""
    count = 0
    for part in filter(None, ranges.strip().split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def judge_inventory(memory_gib: float, cpus: int, shape: Shape) -> list[Finding]:
    """More than expected is no fault."""
    found = []
    if shape.memory_gib is not None and memory_gib < shape.memory_gib * (1 - MEMORY_TOLERANCE):
        evidence = f"{memory_gib:.1f} GiB; {expected(shape, 'memory_gib')}"
        found.append(_missing("memory", "memory-missing", "Memory is missing", evidence, shape))
    if shape.cpus is not None and cpus < shape.cpus:
        evidence = f"{cpus} CPUs online; {expected(shape, 'cpus')}"
        found.append(_missing("cpu", "cpus-missing", "CPUs are missing", evidence, shape))
    return found


def _missing(entity: str, code: str, summary: str, evidence: str, shape: Shape) -> Finding:
    return Finding(
        check="inventory",
        component=Component.SYSTEM,
        entity=entity,
        code=code,
        severity=judged(shape, Severity.FATAL),
        action="CHECK_HARDWARE",
        summary=summary,
        evidence=(evidence,),
    )


def check(look: Look) -> list[Finding]:
    meminfo = Path(look.settings.procfs, "meminfo")
    online = Path(look.settings.sysfs, "devices/system/cpu/online")
    try:
        memory_bytes = parse_meminfo(meminfo.read_text())["MemTotal"]
        cpus = count_cpus(online.read_text())
    except (OSError, KeyError, ValueError) as error:
        raise Unknown(f"{meminfo}, {online}: {type(error).__name__}: {error}") from None
    shape = look.settings.shape
    unset = [expected(shape, field) for field in ("memory_gib", "cpus") if getattr(shape, field) is None]
    look.kept.detail = "; ".join([f"{memory_bytes / GIB:.1f} GiB, {cpus} CPUs", *unset])
    look.kept.measures = (
        Measure("node_memory_MemTotal_bytes", (), memory_bytes),
        Measure("sentinel_cpus_online", (), cpus),
    )
    return judge_inventory(memory_bytes / GIB, cpus, shape)
