"""What every check shares: what it is given, how it says that it cannot answer, and the row that names it."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings


class Absent(Exception):
    """What the check looks at is not on this machine: neither healthy nor broken."""


class Unknown(Exception):
    """The check could not look; the text says why. Findings that it did make may come along."""

    def __init__(self, detail: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(detail)
        self.findings = findings


class Source(Struct, frozen=True):
    """Whose findings they are: the name of the check, and the part of the node that it looks at."""

    check: str
    component: Component

    def finding(
        self,
        entity: str,
        code: str,
        severity: Severity,
        action: str,
        summary: str,
        *evidence: str,
        event: bool = False,
        count: int = 1,
        uuid: str = "",
    ) -> Finding:
        return Finding(
            check=self.check,
            component=self.component,
            entity=entity,
            code=code,
            severity=severity,
            action=action,
            summary=summary,
            evidence=evidence,
            event=event,
            count=count,
            uuid=uuid,
        )


class Measure(Struct, frozen=True):
    """One number for /metrics beside the findings, in the exporter's names and base units."""

    name: str  # "DCGM_FI_DEV_GPU_TEMP"
    labels: tuple[tuple[str, str], ...]
    value: float


class Look(Struct, frozen=True):
    """What one sample is given.

    `kept` is this check's own memory between samples. An object there that has `close()` is closed at the
    end; `kept["wake_fd"]` is a descriptor whose readiness asks for the next sample at once, as a true
    `kept["unfinished"]` does; what stands in `kept["saved"]` (plain data) survives a restart of the agent;
    `kept["anew"]` is true where somebody waits for what happened until just now;
    `kept["within_s"]` is there where somebody decides by this look and waits no longer for it;
    `kept["measures"]` (a tuple of Measure) is what /metrics shows of the newest sample; `kept["detail"]` is
    what a result without trouble says beside "ok", such as an expectation that is not set. `root` stands before paths
    of the node where our own are a pod's, see node_root.py.
    """

    settings: Settings
    paths: tuple[str, ...]
    now: Now
    boot_id: str
    kept: dict[str, Any]
    check: str = ""  # name of the row
    root: str = ""


CheckFunction = Callable[[Look], list[Finding]]


class Check(Struct, frozen=True, kw_only=True):
    """One row of the table. `module` is imported when the check first runs; its function is named `check`."""

    name: str
    component: Component
    module: str
    interval_s: float
    deadline_s: float  # a sample that takes longer is given up
    needs: str  # permissions or hardware without which it is absent or unknown
    slow: bool = False  # only run on an interval or when asked for by name
