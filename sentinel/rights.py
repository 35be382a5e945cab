"""What the agent may need of a node, and what it does not see or do without: told at its start, and in docs/checks.md.

Tried with containerd and its seccomp profile (RuntimeDefault), one capability at a time, as far as there was hardware.
"""

import os
import re

from msgspec import Struct

# include/uapi/linux/capability.h
DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SETGID, SETUID, SYS_PTRACE, SYS_ADMIN, SYSLOG = 1, 2, 5, 6, 7, 19, 21, 34
DEVICES = "a privileged container"  # what opens the node's devices, in the words of results

_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)", re.M)


class Right(Struct, frozen=True):
    name: str  # as manifests have it
    needed: str  # what needs it
    without: str  # what is so without it
    capabilities: tuple[int, ...] = ()


PRIVILEGED = Right(
    "`privileged`",
    "the node's devices: `kernel` (/dev/kmsg), `nvml` (/dev/nvidia\\*), `nvme`, `bmc`, and the tools of other cards",
    "`kernel` is unknown: no Xid, hung task or I/O error is seen; the others are where their hardware is, but `nvml`, "
    "with its Xids, where `agent.runtimeClassName: nvidia` brings the devices",
)
RIGHTS = (
    PRIVILEGED,
    Right(
        "`SYS_ADMIN`",
        "`acs`, `nvme`, and in stacks what the kernel does; `privileged` alone has it",
        "`acs` and `nvme` are unknown, and stacks lack the kernel's part",
        (SYS_ADMIN,),
    ),
    Right(
        "`SYSLOG`",
        "/dev/kmsg, where kernel.dmesg_restrict is 1; `privileged` alone has it",
        "`kernel` is unknown there",
        (SYSLOG,),
    ),
    Right(
        "`SYS_PTRACE`",
        "the node's files, by /proc/1/root: `disk`, `reboot` (wtmp), NVIDIA's library for `nvml` and `modules`; "
        "`environment`; stacks of ranks, and where each waits; files that prove a save",
        "`disk`, `reboot`, `nvml`, `modules` and `environment` are unknown; stacks, and files as proof of a save, are "
        "refused with this reason",
        (SYS_PTRACE,),
    ),
    Right(
        "`DAC_READ_SEARCH`",
        "what is other users': `environment`, the numbers of ranks below launchers, what ranks read and write; "
        "mounts in folders that only they may enter",
        "`environment` is unknown; ranks of other users in one pod are not told apart, and seem to read nothing",
        (DAC_READ_SEARCH,),
    ),
    Right(
        "`KILL`",
        "save signals to ranks of other users; `selfFence`; letting go of what is held after an error",
        "these signals are refused with this reason; `selfFence` is not confirmed, so that no controller counts on it",
        (KILL,),
    ),
    Right(
        "`SETUID`, `SETGID`",
        "files that prove a save: they are looked at as the rank's own user",
        "files as proof of a save are refused with this reason",
        (SETUID, SETGID),
    ),
    Right(
        "`DAC_OVERRIDE`",
        "the tiny file of `disk.probeWrites` in folders that are not root's",
        "`disk` says that it is not written there",
        (DAC_OVERRIDE,),
    ),
)
# What Sentinel cannot tell by itself: it is so for the pod, or it is not made.
OF_THE_POD = (
    Right(
        "`hostPID`",
        "ranks in pods: signals, stacks, hangs, `selfFence`; all that /proc/1/root shows; `services`, `environment`",
        "none of it: only the agent's own processes and files are seen",
    ),
    Right(
        "`hostNetwork`",
        "`ethernet`, `conntrack`, the kubelet's health in `services`; the node's loopback for its numbers",
        "the pod's own network is looked at",
    ),
    Right(
        "hostPath /var/lib/sentinel",
        "findings, counters, positions in logs and reports that wait, over a new pod",
        "each pod of the agent begins anew",
    ),
    Right("hostPath /var/log/pods", "output of ranks", "no iteration, error, hang or proof in a log is seen"),
    Right(
        "hostPath /dev",
        "devices that come after the pod; `privileged` alone has it",
        "as without `privileged`",
    ),
)


def may(*capabilities: int, procfs: str = "/proc") -> bool:
    """Have we all of them? Yes, where that cannot be told: what is refused then says so."""
    try:
        with open(f"{procfs}/self/status", encoding="ascii", errors="replace") as file:
            found = _EFFECTIVE.search(file.read())
    except OSError:
        found = None
    return found is None or all(int(found[1], 16) >> one & 1 for one in capabilities)


def has_devices(procfs: str = "/proc") -> bool:
    """Are the machine's devices in our /dev? A container that is not privileged has a few of its own."""
    return os.path.exists(f"{procfs}/self/root/dev/kmsg")


def missing(procfs: str = "/proc") -> list[Right]:
    held = {right.name for right in RIGHTS if may(*right.capabilities, procfs=procfs)}
    if not has_devices(procfs):
        held.discard(PRIVILEGED.name)
    return [right for right in RIGHTS if right.name not in held]
