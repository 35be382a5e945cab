"""What every check shares: what it is given, how it says that it cannot answer, and the row that names it."""

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings

T = TypeVar("T")


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


class Kept(Struct, kw_only=True):
    """What is kept of one check between samples: what it and the runner tell each other, and its own memory."""

    # The check tells the runner.
    measures: tuple[Measure, ...] = ()  # what /metrics shows of the newest sample
    detail: str = ""  # what a result without trouble says beside "ok", such as an expectation that is not set
    saved: Any = None  # plain data that survives a restart of the agent, though not a boot
    counters: dict[str, int] = {}  # totals since the agent started, by what they count
    wake_fd: int | None = None  # a descriptor whose readiness asks for the next sample at once
    unfinished: bool = False  # there was more than one sample takes: the next one follows at once
    again_s: float | None = None  # seconds until the next sample where the interval is too long; holds once
    # The runner tells the check.
    anew: bool = False  # somebody waits for what happened until just now; the check takes it back
    within_s: float | None = None  # seconds: somebody decides by this look, and waits no longer for it
    resident: bool = False  # samples follow on an interval: worth a child that stays
    _owned: dict[type, Any] = {}

    def own(self, kind: type[T]) -> T:
        """The check's memory of this kind, made at first use.

        One that has `close()` is closed and forgotten when the runner ends, but not under a sample's thread: while that
        has not come back only `abandon()` is called, if there is one, and from another thread.
        """
        if kind not in self._owned:
            self._owned.setdefault(kind, kind())  # two threads that come at once get the same
        memory = self._owned[kind]
        assert isinstance(memory, kind)
        return memory

    def close(self) -> None:
        """Let go of what is to be closed, the latest first: it may use what came before."""
        for kind, memory in reversed(list(self._owned.items())):
            if hasattr(memory, "close"):
                del self._owned[kind]
                memory.close()
        self.wake_fd = None

    def abandon(self) -> None:
        """End what would stay behind a thread that hangs, and leave it the rest."""
        for memory in list(self._owned.values()):
            if hasattr(memory, "abandon"):
                memory.abandon()


class Look(Struct, frozen=True):
    """What one sample is given. `root` stands before paths of the node where our own are a pod's, see node_root.py."""

    settings: Settings
    paths: tuple[str, ...]
    now: Now
    boot_id: str
    kept: Kept
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
