"""The health of a node: what checks look at, and what they find."""

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"  # tell
    DEGRADED = "degraded"  # save and move when there is room
    FATAL = "fatal"  # isolate now

    @property
    def order(self) -> int:
        return _SEVERITY_ORDER[self]


_SEVERITY_ORDER = {Severity.INFO: 0, Severity.WARNING: 1, Severity.DEGRADED: 2, Severity.FATAL: 3}


class Component(StrEnum):
    GPU = "gpu"
    NIC = "nic"
    DISK = "disk"
    KERNEL = "kernel"
    SYSTEM = "system"
    RUNTIME = "runtime"
    AGENT = "agent"


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong with one entity of one node.

    `action` is NVIDIA's own bucket (RESET_GPU, RESTART_BM, ...) or one of ours (FREE_SPACE, ...).
    A sampled finding (`event` false) clears when samples no longer show it; an event finding
    (an XID) clears by time, by a new boot id, or by a person.
    """

    check: str
    component: Component
    entity: str  # "GPU 0000:18:00.0", "mlx5_0/1", "/scratch"
    code: str  # "XID 79", "disk-space"
    severity: Severity
    action: str
    summary: str
    evidence: tuple[str, ...] = ()
    event: bool = False
    first_seen_wall_s: float = 0.0
    last_seen_wall_s: float = 0.0
    seen_mono_s: float = 0.0
    count: int = 1
    pid: int | None = None  # the process that the driver named
    process: str = ""  # its name, as the kernel knows it
    cgroup: str = ""  # its cgroup, which tells the container and the pod
    job: str = ""  # what tells its job from others ("slurm 4711", "pod 77f0..."), where known
    uuid: str = ""  # of the GPU, where known
    over: bool = False  # says that the fault of this key has ended: never one that stands
    boot_id: str = ""
    node: str = ""  # of a cluster, where findings of several nodes are looked at together

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.component.value, self.entity, self.code)

    @property
    def place(self) -> str:
        """What ranks can be kept off: on a cluster the node, else the entity."""
        return self.node or self.entity


class CheckState(StrEnum):
    OK = "ok"
    FOUND = "found"  # findings say what
    ABSENT = "absent"  # this hardware is not here: neither healthy nor broken
    UNKNOWN = "unknown"  # could not look, `detail` says why: not healthy


class CheckResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    check: str
    state: CheckState
    findings: tuple[Finding, ...] = ()
    detail: str = ""
    took_s: float = 0.0
    at_mono_s: float = 0.0
