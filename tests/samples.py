"""Records that tests of many parts begin with, and change."""

from msgspec import structs

from sentinel.core.health import Component, Finding, Severity

XID_79 = Finding(
    check="kernel",
    component=Component.GPU,
    entity="GPU 0000:18:00.0",
    code="XID 79",
    severity=Severity.FATAL,
    action="RESTART_BM",
    summary="GPU has fallen off the bus.",
    event=True,
)


def lost_gpu(**changes: object) -> Finding:
    return structs.replace(XID_79, **changes)


def killed_for_memory(pid: int | None, **changes: object) -> Finding:
    """The kernel's own word."""
    word = f"Out of memory: Killed process {pid} (python3)"
    found = Finding(
        check="kernel",
        component=Component.SYSTEM,
        entity="host",
        code="oom-kill",
        severity=Severity.WARNING,
        action="",
        summary=word,
        evidence=(word,),
        event=True,
        pid=pid,
    )
    return structs.replace(found, **changes)
