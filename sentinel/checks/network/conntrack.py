"""The kernel's table of tracked connections: when it is full new connections are dropped without a word."""

from pathlib import Path

from sentinel.checks.base import Absent, Look, Measure, Unknown
from sentinel.core.health import Component, Finding, Severity

FULL = 0.90


def check(look: Look) -> list[Finding]:
    folder = Path(look.settings.procfs, "sys/net/netfilter")
    try:
        used = int((folder / "nf_conntrack_count").read_text())
        most = int((folder / "nf_conntrack_max").read_text())
    except FileNotFoundError:
        raise Absent("connections are not tracked here (no nf_conntrack)") from None
    except (OSError, ValueError) as error:
        raise Unknown(f"{folder}: {error}") from None
    look.kept.measures = (
        Measure("node_nf_conntrack_entries", (), used),
        Measure("node_nf_conntrack_entries_limit", (), most),
    )
    if not most or used / most <= FULL:
        return []
    return [
        Finding(
            check="conntrack",
            component=Component.SYSTEM,
            entity="conntrack",
            code="conntrack-full",
            severity=Severity.WARNING,
            action="RAISE_LIMIT",
            summary="The table of tracked connections is almost full: new connections will be dropped",
            evidence=(f"{used} of {most} ({used / most:.0%})",),
        )
    ]
