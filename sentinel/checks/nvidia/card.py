"""One card as the judges see it: its newest sample, what was before, and the helper that makes a finding of it."""

from collections import deque
from typing import Any

from msgspec import Struct

from sentinel.checks.base import Source
from sentinel.checks.nvidia.nvml_sample import Device
from sentinel.core.health import Component, Finding, Severity
from sentinel.logs.kernel import normal_pci

WINDOW_S = 600.0  # what "over time" means for throttling, links and peers
UNKNOWN = "unknown"  # the error of a card for which NVML says Unknown Error (999)


class Growth:
    """How much a counter grew within the last `window_s`. A smaller value is a new start, not growth."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()
        self._last: float | None = None
        self._sum = 0.0

    def add(self, at_s: float, value: float) -> None:
        if self._points and at_s <= self._points[-1][0]:
            return  # the same reading again
        if self._last is not None and value > self._last:
            self._sum += value - self._last
        self._last = value
        self._points.append((at_s, self._sum))
        while len(self._points) > 2 and self._points[1][0] <= at_s - self._window_s:
            self._points.popleft()

    @property
    def grown(self) -> float:
        return self._points[-1][1] - self._points[0][1] if self._points else 0.0

    @property
    def span_s(self) -> float:
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0


class Past:
    """What is remembered of one card between samples."""

    def __init__(self) -> None:
        self.device: Device | None = None
        self.at_s = 0.0
        self.ecc_uncorrected: int | None = None
        self.growth: dict[str, Growth] = {}
        self.seconds: dict[str, float] = {}  # throttled so long, by kind, since the first sample
        self.since_s: dict[str, float] = {}  # how long something lasts, by code
        self.shown: set[str] = set()  # codes that a lower limit keeps up
        self.busy: deque[tuple[float, float, float, float | None]] = deque()  # time, clock, power, tensor
        self.nvlinks: set[int] = set()  # that were active in this boot
        self.pcie_best = (0, 0)  # width and generation in this boot
        self.xid = 0
        self.xid_s = 0.0

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> "Past":
        """As an earlier agent of this boot left it with `saved`."""
        past = cls()
        past.at_s = saved.get("at_s", 0.0)
        past.ecc_uncorrected = saved.get("ecc_uncorrected")
        past.nvlinks = set(saved.get("nvlinks", ()))
        past.pcie_best = tuple(saved.get("pcie_best", (0, 0)))
        past.since_s = dict(saved.get("since_s", {}))
        past.since_s.pop(
            UNKNOWN, None
        )  # it has to be seen twice by one agent: nobody looked while there was none
        past.shown = set(saved.get("shown", ()))
        return past

    def saved(self) -> dict[str, Any]:
        return {
            "at_s": self.at_s,
            "ecc_uncorrected": self.ecc_uncorrected,
            "nvlinks": sorted(self.nvlinks),
            "pcie_best": list(self.pcie_best),
            "since_s": self.since_s,
            "shown": sorted(self.shown),
        }

    def keep(self, device: Device, now_s: float) -> None:
        """Make `device` what was before. A card that does not answer leaves what was known."""
        if not device.error:
            self.device, self.at_s = device, now_s
        if device.ecc_uncorrected is not None:
            self.ecc_uncorrected = device.ecc_uncorrected

    def grown(self, name: str, at_s: float, value: float | None, window_s: float = WINDOW_S) -> Growth:
        growth = self.growth.setdefault(name, Growth(window_s))
        if value is not None:
            growth.add(at_s, value)
        return growth

    def lasts_s(self, code: str, now_s: float, shown: bool) -> float:
        """How long `shown` has been true without a break; negative while it is not."""
        if not shown:
            self.since_s.pop(code, None)
            return -1.0
        return now_s - self.since_s.setdefault(code, now_s)


class Card(Struct, frozen=True, kw_only=True):
    """One card of one sample."""

    entity: str  # as all findings name it
    device: Device
    past: Past
    now_s: float

    @property
    def title(self) -> str:
        return f"{self.device.identity.name or 'GPU'} {self.device.identity.uuid}".strip()

    @property
    def loaded(self) -> bool:
        """It works at full clocks now: what sleeps at idle (PCIe speed, clocks) is awake."""
        return (self.device.util_percent or 0) > 0 and self.device.pstate in (None, 0)

    def finding(
        self, code: str, severity: Severity, action: str, summary: str, *evidence: str, event: bool = False
    ) -> Finding:
        lines = tuple(f"{self.title}: {line}" for line in evidence) or (self.title,)
        uuid = self.device.identity.uuid
        return finding(self.entity, code, severity, action, summary, *lines, event=event, uuid=uuid)


finding = Source("nvml", Component.GPU).finding


def entity_of(pci: str, index: int) -> str:
    """By PCI address; by index where the card does not say even that."""
    try:
        return f"GPU {normal_pci(pci)}"
    except ValueError:
        return f"GPU {index}"
