"""What administrators set for the isolation of nodes, with the defaults."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field, structs

from sentinel.core.fleet.model import Mode, Repair
from sentinel.core.health import Component

S = TypeVar("S", bound=Struct)


class Limit(Struct, frozen=True):
    """max(at_least, share of the nodes that it counts over)."""

    at_least: int
    share: float = 0.0  # 0..1

    def of(self, nodes: int) -> int:
        return max(self.at_least, int(self.share * nodes))


class Allowance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may be done: standing at a time and not proven (None: not counted), and begun within the window."""

    at_a_time: Limit | None = None
    per_window: Limit
    window_s: float = 3600.0


class FenceHook(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program that powers a machine off; the node's name is appended to its arguments."""

    command: tuple[str, ...]  # an executable by its path, and its arguments
    after_s: float = 120.0  # since neither agent nor kubelet is heard
    timeout_s: float = 120.0


class RepairCondition(Struct, frozen=True):
    """A node condition on which a repair system acts: written where a finding of this component isolates."""

    component: Component
    type: str


class FleetSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What administrators set, with the defaults. `pool_*`: the same, counted over each pool."""

    mode: Mode = Mode.ENFORCE
    observe_pools: frozenset[str] = frozenset()
    observe_namespaces: frozenset[str] = frozenset()  # their pods are not removed
    pool_label: str = "sentinel.dev/pool"  # nodes with the same value of this label are one pool
    # By the year of tests/core/fleet_year.py: all faults pass, and most of a planned test that finds 14 of 400 at once.
    isolations: Allowance = Allowance(at_a_time=Limit(2, 0.05), per_window=Limit(3, 0.05))
    pool_isolations: Allowance = Allowance(at_a_time=Limit(2, 0.1), per_window=Limit(3, 0.1))
    proven_after_s: float = 6 * 3600.0  # an isolation that stood so long counts at a time no more
    disks: Allowance = Allowance(at_a_time=Limit(4, 0.2), per_window=Limit(6, 0.4))
    pool_disks: Allowance = Allowance(at_a_time=Limit(4, 0.25), per_window=Limit(6, 0.5))
    removals: Allowance = Allowance(per_window=Limit(1, 0.02))  # nodes whose pods are removed by force
    pool_removals: Allowance = Allowance(per_window=Limit(1, 0.05))
    stops: Allowance = Allowance(per_window=Limit(2, 0.02))  # of jobs that still step
    pool_stops: Allowance = Allowance(per_window=Limit(2, 0.05))
    fence: FenceHook | None = None
    network_nodes: int = 4  # so many nodes with one network finding are one network incident
    network_window_s: float = 300.0
    network_settle_s: float = 10.0
    # So many nodes with one code, or more where chance alone brings that (causes.py), are one cause.
    cause_nodes: int = 3
    cause_window_s: float = 600.0
    cause_worst: int = 2  # of them so many are isolated all the same
    release_after_s: float = 600.0
    disk_release_after_s: float = 120.0
    # Isolations of one node, each within the window of its return: then a person releases it. By the year of
    # tests/core/fleet_year.py the second tells nearly all of those that were not repaired.
    repeat_limit: int = 2
    repeat_window_s: float = 7 * 86400.0
    # Agents have told by then, and what befalls many nodes has reached them. What is less than fatal is not urgent.
    probation_settle_s: float = 300.0
    keep_records: int = 5000  # ended ones; of more the oldest go before repeat_window_s has passed
    # The kubelet renews its lease every 10 s and calls it expired after 40 s (--node-lease-duration-seconds).
    lease_s: float = 40.0
    agent_silent_s: float = 60.0
    together_share: float = 0.25  # more nodes than this that go silent together: it is not the nodes
    together_s: float = 300.0
    repairs: dict[str, Repair] = field(
        default_factory=lambda: {
            "RESTART_BM": Repair.REBOOT,
            "RESTART_VM": Repair.REBOOT,
            "RESET_GPU": Repair.RESET,
            "DRAIN_AND_RESET": Repair.RESET,
        }
    )
    # The names that EKS node repair and Karpenter's repair policies read (RepairPolicies in karpenter-provider-aws).
    repair_conditions: tuple[RepairCondition, ...] = (
        RepairCondition(Component.GPU, "AcceleratedHardwareReady"),
        RepairCondition(Component.NIC, "NetworkingReady"),
        RepairCondition(Component.DISK, "StorageReady"),
        RepairCondition(Component.KERNEL, "KernelReady"),
        RepairCondition(Component.RUNTIME, "ContainerRuntimeReady"),
    )

    @property
    def brakes_s(self) -> float:
        """The longest window of a brake."""
        windows = (self.isolations, self.pool_isolations, self.disks, self.pool_disks, self.removals)
        together = (self.network_window_s, self.cause_window_s)
        return max(*together, self.pool_removals.window_s, *(one.window_s for one in windows))

    @property
    def keep_s(self) -> float:
        """How long an ended record is kept: the longest window that reads it."""
        return max(self.repeat_window_s, self.brakes_s)

    def mode_of(self, pool: str) -> Mode:
        return Mode.OBSERVE if pool in self.observe_pools else self.mode


def fleet_settings(written: Mapping[str, Any]) -> FleetSettings:
    """The defaults, with what was written in their place: the section `fleet` after its validation."""
    return _filled(FleetSettings(), written)


def _filled(base: S, written: Mapping[str, Any]) -> S:
    """A limit is written as a whole; of an allowance, what is not written keeps its default."""
    values = structs.asdict(base)
    for name, value in written.items():
        before = values[name]
        values[name] = _filled(before, value) if isinstance(before, Allowance) else value
    return msgspec.convert(values, type(base))


def pool_of(labels: dict[str, str], settings: FleetSettings) -> str:
    """The pool of a node by its labels; "": of none."""
    return labels.get(settings.pool_label, "")
