"""The services that a node lives by: container runtime, kubelet, fabric manager and the like, asked of systemd.

Where systemd cannot be asked (a container, another init) their processes are looked for. Expected are those of the
shape; without it those that are enabled in systemd, those whose process was seen since the boot, and the fabric
manager where there are NVSwitches.
"""

import os
import shutil
import socket
from pathlib import Path

from msgspec import Struct

from sentinel.checks.base import Absent, Kept, Look, Source, Unknown
from sentinel.checks.command import CommandHangs, run
from sentinel.checks.gpus import NVIDIA_VENDOR
from sentinel.checks.proc_scan import in_hosts_pid_namespace
from sentinel.checks.shape import expected, judged
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import Shape

_SOURCE = Source("services", Component.RUNTIME)

DEADLINE_S = 3.0
DOWN_LOOKS = 2  # a service that somebody restarts is down for a moment
BOOTS_S = 600.0
RESTARTS = 3  # by systemd, within an hour
RESTARTS_WITHIN_S = 3600.0
SEARCH_EVERY = 10  # looks; a service may be started after the agent
FORGOTTEN_S = 24 * 3600.0  # a process that was there once is missed for so long
KUBELET_HEALTH = ("127.0.0.1", 10248)  # its default; nothing listens there where it is switched off
NVSWITCH_CLASS = "0x0680"

# unit without ".service" -> (name of its process, at most 15 characters, what its loss means)
KNOWN = {
    "containerd": ("containerd", Severity.DEGRADED),
    "crio": ("crio", Severity.DEGRADED),
    "docker": ("dockerd", Severity.DEGRADED),
    "kubelet": ("kubelet", Severity.DEGRADED),
    "slurmd": ("slurmd", Severity.DEGRADED),
    "nvidia-fabricmanager": ("nv-fabricmanage", Severity.DEGRADED),
    "nvidia-imex": ("nvidia-imex", Severity.DEGRADED),
    "nvidia-persistenced": ("nvidia-persiste", Severity.WARNING),
    "nvidia-dcgm": ("nv-hostengine", Severity.WARNING),
}
FABRIC_MANAGER = "nvidia-fabricmanager"

_PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,NRestarts"


class Service(Struct, frozen=True):
    """One service as it is now. `restarts` since its unit was loaded."""

    name: str
    alive: bool
    installed: bool = True
    starting: bool = False
    restarts: int = 0
    told: str = ""


class Memory(Struct):
    """What is known from earlier samples of this agent, by services' names."""

    pids: dict[str, str] = {}  # of processes that were found
    searches: int = 0  # samples that looked for processes
    restarts: dict[str, list[tuple[float, int]]] = {}  # each number of them, and when it was first seen
    down: dict[str, int] | None = None  # samples in a row; None: there was no sample yet
    hangs: int = 0  # samples in a row in which the kubelet did not answer


# ---------------------------------------------------------------- asking systemd


def parse_show(text: str) -> list[Service]:
    """`systemctl show --property=... UNIT...`: a paragraph of KEY=VALUE for each unit."""
    services = []
    for paragraph in text.strip().split("\n\n"):
        values = dict(line.partition("=")[::2] for line in paragraph.splitlines())
        active, sub = values.get("ActiveState", ""), values.get("SubState", "")
        restarts = values.get("NRestarts", "")
        services.append(
            Service(
                name=values.get("Id", "").removesuffix(".service"),
                alive=active in ("active", "reloading"),
                installed=values.get("LoadState") == "loaded"
                and values.get("UnitFileState", "").startswith("enabled"),
                starting=active == "activating" and sub != "auto-restart",
                restarts=int(restarts) if restarts.isdecimal() else 0,
                told=f"systemd: {active} ({sub})"
                if values.get("LoadState") != "not-found"
                else "not installed",
            )
        )
    return [service for service in services if service.name]


def ask_systemd(names: list[str], procfs: Path) -> list[Service] | None:
    """None: there is no systemd here that answers. Raises Unknown when it hangs."""
    # As sd_booted(3) knows it.
    if not Path(procfs, "self", "root", "run/systemd/system").is_dir() or not shutil.which("systemctl"):
        return None
    units = [f"{name}.service" for name in names]
    try:
        output = run(["systemctl", "show", "--no-pager", f"--property={_PROPERTIES}", *units], DEADLINE_S)
    except CommandHangs as error:
        raise Unknown(str(error)) from None
    except OSError:
        return None
    return parse_show(output.stdout.decode(errors="replace")) if output.code == 0 else None


# ---------------------------------------------------------------- looking for processes


def _command(procfs: Path, pid: str) -> str:
    try:
        return (procfs / pid / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def find_processes(names: list[str], procfs: Path, kept: Kept, now_s: float) -> list[Service]:
    """All of /proc is only gone through at times, and while a process that was there is gone."""
    wanted = {KNOWN.get(name, (name[:15], None))[0]: name for name in names}
    memory = kept.own(Memory)
    pids, is_due = memory.pids, memory.searches % SEARCH_EVERY == 0
    memory.searches += 1
    seen = {name: at_s for name, at_s in (kept.saved or {}).items() if now_s - at_s <= FORGOTTEN_S}
    missed = [name for name in seen if wanted.get(_command(procfs, pids.get(name, "none"))) != name]
    if missed or is_due:
        pids.clear()
        for pid in os.listdir(procfs):
            if pid[0] in "123456789" and (name := wanted.get(_command(procfs, pid))):
                pids.setdefault(name, pid)
    seen.update(dict.fromkeys(pids, now_s))
    kept.saved = seen
    return [
        Service(
            name=name,
            alive=name in pids,
            installed=name in seen,
            told=f"pid {pids[name]}"
            if name in pids
            else "no such process" + (", there was one" * (name in seen)),
        )
        for name in names
    ]


def answers(address: tuple[str, int], deadline_s: float = 1.0) -> str:
    """What is wrong with the answer to GET /healthz: "" where it is ok, or where nothing listens."""
    try:
        with socket.create_connection(address, deadline_s) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            line = connection.recv(256).split(b"\r\n")[0].decode(errors="replace")
    except ConnectionError:
        return ""
    except OSError as error:
        return f"no answer at {address[0]}:{address[1]}: {error}"
    return "" if " 200" in line else f"{address[0]}:{address[1]}/healthz: {line[:80] or 'nothing'}"


# ---------------------------------------------------------------- judging


def has_nvswitches(sysfs: Path) -> bool:
    def read(path: Path) -> str:
        try:
            return path.read_text(errors="replace").strip()
        except OSError:
            return ""

    return any(
        read(device / "vendor") == NVIDIA_VENDOR and read(device / "class").startswith(NVSWITCH_CLASS)
        for device in (sysfs / "bus/pci/devices").glob("*")
    )


def _finding(name: str, code: str, severity: Severity, summary: str, evidence: str) -> Finding:
    return _SOURCE.finding(f"service {name}", code, severity, "CHECK_SERVICE", summary, evidence)


def judge_down(down: list[Service], shape: Shape) -> list[Finding]:
    found = []
    for service in down:
        severity = KNOWN.get(service.name, ("", Severity.DEGRADED))[1]
        evidence = service.told
        if f"{service.name}.service" in (shape.services or ()):
            severity = judged(shape, severity)
            evidence += f"; {expected(shape, 'services')}"
        found.append(_finding(service.name, "service-down", severity, "The service does not run", evidence))
    return found


def judge_restarts(
    services: list[Service], now_s: float, points: dict[str, list[tuple[float, int]]]
) -> list[Finding]:
    """systemd starts again what fails: at each look it may be up. `points`: `Memory.restarts`."""
    found = []
    for service in services:
        mine = [point for point in points.get(service.name, []) if now_s - point[0] <= RESTARTS_WITHIN_S]
        if mine and service.restarts < mine[-1][1]:
            mine = []  # its unit was loaded anew
        if not mine or mine[-1][1] != service.restarts:
            mine.append((now_s, service.restarts))
        points[service.name] = mine
        count = service.restarts - mine[0][1]
        if count >= RESTARTS:
            summary, evidence = "The service fails again and again", f"systemd restarted it {count} times"
            found.append(_finding(service.name, "service-restarts", Severity.WARNING, summary, evidence))
    return found


def _down(services: list[Service], wanted: set[str], memory: Memory, now_s: float) -> list[Service]:
    """Those that are down at DOWN_LOOKS looks in a row. Who looks for the first time judges what it sees, but not while
    the node boots: services start one after the other."""
    before = memory.down or {}
    first = memory.down is None and now_s > BOOTS_S
    down = [service for service in services if service.name in wanted and not service.alive]
    looks = memory.down = {service.name: before.get(service.name, 0) + 1 for service in down}
    return [
        service for service in down if looks[service.name] >= DOWN_LOOKS or (first and not service.starting)
    ]


def check(look: Look) -> list[Finding]:
    procfs, shape = Path(look.settings.procfs), look.settings.shape
    named = [unit.removesuffix(".service") for unit in shape.services or ()]
    names = list(dict.fromkeys([*named, *KNOWN]))
    try:
        asked = ask_systemd(names, procfs)
        services = asked or find_processes(names, procfs, look.kept, look.now.mono_s)
    except OSError as error:
        raise Unknown(f"{procfs}: {error.strerror}") from None
    seen = {item.name for item in services if item.installed}
    sees_all = asked is not None or in_hosts_pid_namespace(str(procfs))
    if shape.services is not None and not sees_all and not seen.issuperset(named):
        missing = ", ".join(name for name in named if name not in seen)
        raise Unknown(f"in a process namespace of its own, where the node's services are not seen: {missing}")
    wanted = set(named) if shape.services is not None else seen
    if sees_all and has_nvswitches(Path(look.settings.sysfs)):
        wanted.add(FABRIC_MANAGER)
    if not wanted:
        where = "is installed" if sees_all else "runs in this container"
        raise Absent(f"none of {', '.join(KNOWN)} {where}; {expected(shape, 'services')}")
    told = ", ".join(sorted(wanted))
    look.kept.detail = told if shape.services is not None else f"{told}; {expected(shape, 'services')}"
    memory, now_s = look.kept.own(Memory), look.now.mono_s
    found = judge_down(_down(services, wanted, memory, now_s), shape)
    found += judge_restarts([item for item in services if item.name in wanted], now_s, memory.restarts)
    if any(service.name == "kubelet" and service.alive for service in services):
        problem = answers(KUBELET_HEALTH)
        memory.hangs = memory.hangs + 1 if problem else 0
        if memory.hangs >= DOWN_LOOKS:
            summary = "The kubelet runs but does not answer: pods are not started, stopped or watched"
            found.append(_finding("kubelet", "service-hangs", Severity.DEGRADED, summary, problem))
    return found
