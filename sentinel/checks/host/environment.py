"""Settings of running programs that spoil training: variables that break or slow down CUDA, little lockable memory.

Programs are found by the devices that they hold open. The list of variables is that of NVIDIA's DCGM, which looks
for them before its diagnostics; CUDA_LAUNCH_BLOCKING is left over from a search for an error more often than any.
"""

import os
import re
from pathlib import Path

from msgspec import Struct

from sentinel.checks.base import Absent, Look, Unknown
from sentinel.checks.gpus import inventory
from sentinel.core.health import Component, Finding, Severity

BAD_VARIABLES = {
    "NSIGHT_CUDA_DEBUGGER": "a debugger is attached",
    "CUDA_INJECTION32_PATH": "a profiler is loaded into each process",
    "CUDA_INJECTION64_PATH": "a profiler is loaded into each process",
    "CUDA_AUTO_BOOST": "changes clocks",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "writes GPU memory to disk after an error",
    "CUDA_COREDUMP_FILE": "writes GPU memory to disk after an error",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "waits for a debugger after an error: a fault becomes a hang",
    "CUDA_PROFILE": "profiles each kernel",
    "COMPUTE_PROFILE": "profiles each kernel",
    "OPENCL_PROFILE": "profiles each kernel",
    "CUDA_LAUNCH_BLOCKING": "waits for each kernel",
}
# Buffers that a NIC reads are locked in memory; those of one rank take gigabytes. Distributions allow 8 MiB or less.
MIN_LOCKED_BYTES = 1 << 30
CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h: exempt from the limit
MAX_FDS_READ = 1024  # devices are opened early
MAX_ENVIRON_BYTES = 1 << 18

_LOCKED = re.compile(r"^Max locked memory\s+(\d+)", re.MULTILINE)  # "unlimited" does not match
_CAPABILITIES = re.compile(r"^CapEff:\s+([0-9a-f]+)", re.MULTILINE)


class Holder(Struct, frozen=True):
    """A process that holds a GPU or an RDMA device open."""

    pid: int
    name: str
    gpu: bool
    rdma: bool


# ---------------------------------------------------------------- reading


def find_holders(procfs: Path) -> tuple[list[Holder], int]:
    """Also how many processes could not be looked into. Raises OSError when /proc itself cannot be read.

    Of init it says nothing that it is hidden: it may have capabilities that root itself lacks (a virtual machine whose
    init keeps one for itself), and trains nothing.
    """
    holders, hidden = [], 0
    for name in os.listdir(procfs):
        if name[0] not in "123456789":
            continue
        try:
            gpu, rdma = _devices(f"{procfs}/{name}/fd")
            if gpu or rdma:
                command = (procfs / name / "comm").read_text(errors="replace").strip()
                holders.append(Holder(int(name), command, gpu, rdma))
        except PermissionError:
            hidden += name != "1"
        except (OSError, ValueError):  # it ended
            continue
    return holders, hidden


def _devices(folder: str) -> tuple[bool, bool]:
    """Raises OSError."""
    gpu = rdma = False
    for number in os.listdir(folder)[:MAX_FDS_READ]:
        try:
            target = os.readlink(f"{folder}/{number}")
        except FileNotFoundError:  # closed meanwhile
            continue
        gpu = gpu or target.startswith("/dev/nvidia")
        rdma = rdma or target.startswith("/dev/infiniband/uverbs")
        if gpu and rdma:
            break
    return gpu, rdma


def bad_variables(environ: bytes) -> tuple[str, ...]:
    """Those of the list that are set to something else than "" or "0"; `environ` as in /proc/PID/environ."""
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0"))
    return tuple(
        sorted(
            name.decode(errors="replace")
            for name, _, value in pairs
            if value not in (b"", b"0") and name.decode(errors="replace") in BAD_VARIABLES
        )
    )


def locked_limit(limits: str, status: str) -> int | None:
    """Bytes that the process may lock; None: no limit holds it."""
    capabilities = _CAPABILITIES.search(status)
    if capabilities and int(capabilities[1], 16) >> CAP_IPC_LOCK & 1:
        return None
    found = _LOCKED.search(limits)
    return int(found[1]) if found else None


# ---------------------------------------------------------------- judging


def judge_environment(holders: list[tuple[Holder, tuple[str, ...]]]) -> list[Finding]:
    """One finding for each program and variable, however many ranks have it."""
    pids: dict[tuple[str, str], list[int]] = {}
    for holder, names in holders:
        for name in names:
            pids.setdefault((holder.name, name), []).append(holder.pid)
    return [
        Finding(
            check="environment",
            component=Component.RUNTIME,
            entity=f"process {program}",
            code=f"environment {variable}",
            severity=Severity.WARNING,
            action="UNSET_VARIABLE",
            summary=f"{variable} is set in a program that uses a GPU: {BAD_VARIABLES[variable]}",
            evidence=(f"pid {_pids(those)}",),
            pid=min(those),
        )
        for (program, variable), those in sorted(pids.items())
    ]


def judge_locked(holders: list[tuple[Holder, int]]) -> list[Finding]:
    """(process, bytes that it may lock) of those that hold an RDMA device."""
    found: dict[str, Finding] = {}
    for holder, limit in holders:
        if limit < MIN_LOCKED_BYTES and holder.name not in found:
            those = [other.pid for other, _ in holders if other.name == holder.name]
            found[holder.name] = Finding(
                check="environment",
                component=Component.RUNTIME,
                entity=f"process {holder.name}",
                code="memlock",
                severity=Severity.WARNING,
                action="RAISE_LIMIT",
                summary="May lock little memory: registering buffers with the RDMA device will fail",
                evidence=(f"pid {_pids(those)}: {limit >> 10} KiB; `ulimit -l unlimited` is usual",),
                pid=min(those),
            )
    return list(found.values())


def _pids(pids: list[int]) -> str:
    shown = ", ".join(map(str, sorted(pids)[:8]))
    return shown + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")


# ---------------------------------------------------------------- the check


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_ENVIRON_BYTES)


def check(look: Look) -> list[Finding]:
    procfs, sysfs = Path(look.settings.procfs), Path(look.settings.sysfs)
    if not inventory(str(sysfs)) and not (sysfs / "class/infiniband").is_dir():
        raise Absent("no GPU and no RDMA device that a program could hold")
    try:
        holders, hidden = find_holders(procfs)
    except OSError as error:
        raise Unknown(f"{procfs}: {error.strerror}") from None
    environments: list[tuple[Holder, tuple[str, ...]]] = []
    locked: list[tuple[Holder, int]] = []
    for holder in holders:
        folder = procfs / str(holder.pid)
        try:
            if holder.gpu:
                environments.append((holder, bad_variables(_read(folder / "environ"))))
            if holder.rdma:
                limit = locked_limit(_read(folder / "limits").decode(), _read(folder / "status").decode())
                if limit is not None:
                    locked.append((holder, limit))
        except PermissionError:
            hidden += 1
        except OSError:  # it ended
            continue
    found = [*judge_environment(environments), *judge_locked(locked)]
    look.kept.detail = f"{len(holders)} programs hold a GPU or an RDMA device"
    if hidden:
        text = f"processes that cannot be looked into: {hidden}; that needs root (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH)"
        raise Unknown(text, tuple(found))
    return found
