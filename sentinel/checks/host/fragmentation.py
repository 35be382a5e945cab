"""Memory that is free only in small pieces: pinned buffers of GPUs and NICs, and huge pages, need large ones."""

from pathlib import Path

from sentinel.checks.base import Look, Unknown
from sentinel.core.health import Component, Finding, Severity

LARGE_ORDER = 8  # 2^8 pages of 4 KiB: 1 MiB
MIN_LARGE_BLOCKS = 10


def parse_buddyinfo(text: str) -> dict[str, int]:
    """NUMA node -> free blocks of LARGE_ORDER and larger, in all its zones. Raises ValueError.

    "Node 0, zone   Normal   120   1138 ...": the free blocks of order 0, 1, ... (proc(5), /proc/buddyinfo).
    """
    blocks: dict[str, int] = {}
    for line in text.splitlines():
        head, zone, counts = line.partition(", zone")
        if not zone or not head.startswith("Node"):
            raise ValueError(f"unexpected line {line!r}")
        large = [int(count) for count in counts.split()[1 + LARGE_ORDER :]]
        blocks[head.removeprefix("Node").strip()] = blocks.get(head.removeprefix("Node").strip(), 0) + sum(
            large
        )
    return blocks


def check(look: Look) -> list[Finding]:
    path = Path(look.settings.procfs, "buddyinfo")
    try:
        blocks = parse_buddyinfo(path.read_text())
    except (OSError, ValueError) as error:
        raise Unknown(f"{path}: {error}") from None
    return [
        Finding(
            check="fragmentation",
            component=Component.SYSTEM,
            entity=f"memory of NUMA node {node}",
            code="memory-fragmented",
            severity=Severity.WARNING,
            action="COMPACT_MEMORY",
            summary="Free memory is in small pieces: large pinned buffers and huge pages will fail or be slow",
            evidence=(f"{count} free blocks of 1 MiB or more, fewer than {MIN_LARGE_BLOCKS}",),
        )
        for node, count in blocks.items()
        if count < MIN_LARGE_BLOCKS
    ]
