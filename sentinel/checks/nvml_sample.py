"""The wire format between the NVML child and the check. None: this card or driver has no such value."""

from msgspec import Struct


class Process(Struct, frozen=True):
    pid: int
    used_bytes: int


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One card in NVML's order. `error` is "", "lost", "reset-required" or "no-handle"."""

    index: int
    pci: str = ""
    uuid: str = ""
    name: str = ""
    recovery_action: int | None = None  # NVML field 230
    ecc_uncorrected: int | None = None  # since the driver was loaded
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    temperature_celsius: int | None = None
    slowdown_celsius: int | None = None  # the card's own limit
    processes: list[Process] = []
    error: str = ""


class Sample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at all cards. `problem` is set where NVML itself could not be used."""

    driver: str = ""
    devices: list[Device] = []
    problem: str = ""
    problem_code: int = 0
