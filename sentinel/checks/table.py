"""All checks of this machine, one row each."""

import shlex

from sentinel.checks.accelerators.families import FAMILIES
from sentinel.checks.base import Check
from sentinel.core.health import Component
from sentinel.settings import Settings

OWN_PREFIX = "own-"  # a name in the settings is never that of a shipped check

CHECKS: tuple[Check, ...] = (
    Check(
        name="shape",
        component=Component.SYSTEM,
        module="sentinel.checks.shape",
        interval_s=300.0,
        deadline_s=2.0,
        needs="nothing; expected hardware is written under `shapes:` of the settings, or learnt and confirmed",
    ),
    Check(
        name="disk",
        component=Component.DISK,
        module="sentinel.checks.disk.file_systems",
        interval_s=15.0,
        deadline_s=12.0,
        needs="nothing; what an unprivileged user may not enter is not seen; in a pod the node's process namespace and "
        "CAP_SYS_PTRACE, to see the node's file systems, by the node's paths, and not those of the container",
    ),
    Check(
        name="block",
        component=Component.DISK,
        module="sentinel.checks.disk.block",
        interval_s=30.0,
        deadline_s=5.0,
        needs="a block device",
    ),
    Check(
        name="nvme",
        component=Component.DISK,
        module="sentinel.checks.disk.nvme",
        interval_s=600.0,
        deadline_s=60.0,
        needs="an NVMe drive; root (CAP_SYS_ADMIN), /dev/nvme\\* and `nvme` or `smartctl`",
        slow=True,
    ),
    Check(
        name="memory",
        component=Component.SYSTEM,
        module="sentinel.checks.host.memory",
        interval_s=15.0,
        deadline_s=2.0,
        needs="nothing; pressure needs a kernel with PSI",
    ),
    Check(
        name="processes",
        component=Component.SYSTEM,
        module="sentinel.checks.host.processes",
        interval_s=30.0,
        deadline_s=5.0,
        needs="nothing; CAP_SYS_PTRACE to see in which function of the kernel a process is stuck, CAP_SYS_ADMIN to see "
        "its stack there",
    ),
    Check(
        name="inventory",
        component=Component.SYSTEM,
        module="sentinel.checks.host.inventory",
        interval_s=300.0,
        deadline_s=2.0,
        needs="memoryGib and cpus of the expected shape, to compare",
    ),
    Check(
        name="edac",
        component=Component.SYSTEM,
        module="sentinel.checks.host.edac",
        interval_s=60.0,
        deadline_s=5.0,
        needs="memory with ECC and its EDAC driver",
    ),
    Check(
        name="fragmentation",
        component=Component.SYSTEM,
        module="sentinel.checks.host.fragmentation",
        interval_s=60.0,
        deadline_s=2.0,
        needs="nothing",
    ),
    Check(
        name="governor",
        component=Component.SYSTEM,
        module="sentinel.checks.host.governor",
        interval_s=300.0,
        deadline_s=2.0,
        needs="a machine whose kernel sets the CPUs' frequency",
    ),
    Check(
        name="clocks",
        component=Component.SYSTEM,
        module="sentinel.checks.host.clocks",
        interval_s=60.0,
        deadline_s=2.0,
        needs="nothing; CAP_SYS_TIME in a container that filters adjtimex (containerd's own filter does not)",
    ),
    Check(
        name="conntrack",
        component=Component.SYSTEM,
        module="sentinel.checks.network.conntrack",
        interval_s=30.0,
        deadline_s=2.0,
        needs="nf_conntrack, in the node's network namespace",
    ),
    Check(
        name="reboot",
        component=Component.SYSTEM,
        module="sentinel.checks.host.reboot",
        interval_s=60.0,
        deadline_s=2.0,
        needs="wtmp, in a pod by the node's process namespace and CAP_SYS_PTRACE; else boots are only remembered",
    ),
    Check(
        name="oom",
        component=Component.SYSTEM,
        module="sentinel.checks.host.oom",
        interval_s=15.0,
        deadline_s=5.0,
        needs="the node's control groups, to name the one in which it happened",
    ),
    Check(
        name="modules",
        component=Component.SYSTEM,
        module="sentinel.checks.host.modules",
        interval_s=300.0,
        deadline_s=5.0,
        needs="a GPU, an InfiniBand card or expected modules; in a pod the node's process namespace and "
        "CAP_SYS_PTRACE, to see the driver's libraries",
    ),
    Check(
        name="environment",
        component=Component.RUNTIME,
        module="sentinel.checks.host.environment",
        interval_s=300.0,
        deadline_s=5.0,
        needs="a GPU or an RDMA device; root (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH) to look into other users' programs",
    ),
    Check(
        name="services",
        component=Component.RUNTIME,
        module="sentinel.checks.host.services",
        interval_s=60.0,
        deadline_s=8.0,
        needs="systemd, or the node's process namespace",
    ),
    Check(
        name="bmc",
        component=Component.SYSTEM,
        module="sentinel.checks.host.bmc",
        interval_s=600.0,
        deadline_s=45.0,
        needs="ipmitool, a management controller, root and /dev/ipmi0",
        slow=True,
    ),
    Check(
        name="gpu-pci",
        component=Component.GPU,
        module="sentinel.checks.pci.gpu_pci",
        interval_s=10.0,
        deadline_s=5.0,
        needs="an NVIDIA GPU on the PCI bus",
    ),
    Check(
        name="infiniband",
        component=Component.NIC,
        module="sentinel.checks.network.infiniband",
        interval_s=30.0,
        deadline_s=5.0,
        needs="an InfiniBand or RoCE card; ibPorts and ibRateGbps of the expected shape, to miss what never came up",
    ),
    Check(
        name="ethernet",
        component=Component.NIC,
        module="sentinel.checks.network.ethernet",
        interval_s=20.0,
        deadline_s=5.0,
        needs="the node's network namespace; nics of the shape or network.interfaces, to miss what never came up",
    ),
    Check(
        name="nic-aer",
        component=Component.NIC,
        module="sentinel.checks.pci.nic_aer",
        interval_s=30.0,
        deadline_s=5.0,
        needs="a network card on PCIe, and a kernel with AER counters (4.19)",
    ),
    Check(
        name="acs",
        component=Component.SYSTEM,
        module="sentinel.checks.pci.acs",
        interval_s=3600.0,
        deadline_s=5.0,
        needs="a GPU with a peer, bare metal, CAP_SYS_ADMIN",
    ),
    Check(
        name="kernel",
        component=Component.KERNEL,
        module="sentinel.checks.kernel.messages",
        interval_s=1.0,
        deadline_s=10.0,
        needs="/dev/kmsg, which a container opens only where it is privileged; CAP_SYSLOG, or kernel.dmesg_restrict=0",
    ),
    Check(
        name="nvml",
        component=Component.GPU,
        module="sentinel.checks.nvidia.nvml",
        interval_s=30.0,
        deadline_s=45.0,
        needs="libnvidia-ml.so.1 of the NVIDIA driver, in a pod by the node's process namespace and CAP_SYS_PTRACE; "
        "/dev/nvidia\\*, in a pod that is privileged or of the runtime class nvidia",
    ),
    *(family.row for family in FAMILIES),
)


def all_checks(settings: Settings) -> tuple[Check, ...]:
    """CHECKS, and a row for each check that the settings add."""
    return CHECKS + tuple(
        Check(
            name=OWN_PREFIX + own.name,
            component=Component(own.component),
            module="sentinel.checks.own",
            interval_s=own.interval_s,
            deadline_s=2 * own.timeout_s + 5.0,  # it may wait for its turn as long as it may run
            needs=f"`{shlex.join(own.command)}`, of the settings",
        )
        for own in settings.own_checks
    )


def select(names: tuple[str, ...], rows: tuple[Check, ...] = CHECKS) -> tuple[Check, ...]:
    """The rows whose name or component is in `names`; all when empty. Slow ones only by their own name.

    Raises KeyError for a name that is neither, and that no shipped check has.
    """
    known = {row.name for row in (*CHECKS, *rows)} | {component.value for component in Component}
    for name in names:
        if name not in known:
            raise KeyError(name)
    if not names:
        return tuple(row for row in rows if not row.slow)
    return tuple(row for row in rows if row.name in names or (row.component.value in names and not row.slow))
