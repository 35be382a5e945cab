"""What the NVML child answers, as the check reads it. None: this card or driver has no such value.

The child writes the same names as plain JSON: it does without these classes, which would only cost it memory.
"""

from msgspec import Struct


class Process(Struct, frozen=True):
    pid: int
    used_bytes: int


class Fabric(Struct, frozen=True):
    """nvmlGpuFabricInfoV_t: state 0 not supported, 1 not started, 2 in progress, 3 completed."""

    state: int
    status: int = 0  # an NVML return code, meant once the state is completed
    health_mask: int = 0
    health_summary: int = 0  # version 3 of the structure: 1 healthy, 2 unhealthy, 3 limited capacity


class Identity(Struct, frozen=True, omit_defaults=True):
    """What hardly ever changes; read every ten minutes."""

    pci: str = ""
    uuid: str = ""
    name: str = ""
    minor: int | None = None  # N of /dev/nvidiaN
    vbios: str = ""
    inforom: str = ""
    inforom_corrupt: bool | None = None
    gsp: str = ""
    ecc_mode: int | None = None
    ecc_mode_pending: int | None = None
    persistence: int | None = None
    mig: int | None = None
    numa_node: int | None = None  # whose memory the card's is: the kernel uses it too (Grace)
    power_limit_mw: int | None = None
    power_default_mw: int | None = None
    slowdown_celsius: int | None = None
    memory_max_celsius: int | None = None
    slowdown_margin_celsius: int | None = None  # of cards that tell a margin: it throttles at this one
    pcie_gen_max: int | None = None  # of this card in this slot
    pcie_width_max: int | None = None


class Links(Struct, frozen=True, omit_defaults=True):
    """What changes seldom or costs many calls; read every minute. Counters are since the driver was loaded."""

    at_s: float  # of the reading, by the agent's clock
    pcie_replays: int | None = None
    sram_exceeded: bool | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    nvlink_active: list[int] = []
    nvlink_inactive: list[int] = []
    nvlink_errors: dict[str, int] = {}  # kind -> sum over the links


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One card in NVML's order. `error` is "", "lost", "reset-required", "unknown" or "no-handle".

    `throttled_ns` counts since the driver was loaded: hw_thermal, hw_brake, sw_thermal, sw_power.
    """

    index: int
    identity: Identity = Identity()
    links: Links | None = None
    error: str = ""
    recovery_action: int | None = None  # NVML field 230
    ecc_uncorrected: int | None = None  # since the driver was loaded
    ecc_corrected: int | None = None
    rows_corrected: int | None = None
    rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    temperature_celsius: int | None = None
    memory_celsius: int | None = None
    margin_celsius: int | None = None  # until the card slows down
    reasons: int | None = None  # nvmlClocksEventReason bits
    throttled_ns: dict[str, int] = {}
    power_mw: int | None = None
    energy_mj: int | None = None
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    pstate: int | None = None
    util_percent: int | None = None
    mem_util_percent: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    fabric: Fabric | None = None
    gpm: dict[str, float] = {}  # shares 0..1 of the time since the sample before: graphics, sm, tensor, dram
    processes: list[Process] | None = None


class Event(Struct, frozen=True):
    """One event of NVML's event set."""

    pci: str
    kind: int  # nvmlEventType bit
    data: int  # with kind 8: the Xid
    age_s: float  # since it was taken out of the set


class Sample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at all cards. `problem` is set where NVML itself could not be used."""

    driver: str = ""
    devices: list[Device] = []
    events: list[Event] = []
    missing: list[str] = []  # functions that this driver does not have
    denied: list[str] = []  # functions that this user may not call
    problem: str = ""
    problem_code: int = 0
