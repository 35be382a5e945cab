"""Services: systemd is a stub that prints what `systemctl show` prints; processes are real ones, linked into a tree."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.host import services
from sentinel.checks.host.services import parse_show
from sentinel.checks.proc_scan import INIT_PID_NAMESPACE
from sentinel.core.health import Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings, Shape
from tests.waits import until

# One paragraph for each unit, see systemctl(1); the keys as systemd 255 prints them.
UNIT = """\
NRestarts={restarts}
Id={name}.service
LoadState={load}
ActiveState={active}
SubState={sub}
UnitFileState={file}
"""


class Node:
    """A node with or without systemd."""

    def __init__(self, folder: Path, machine: Any) -> None:
        self.folder = folder
        self.machine = machine
        self.procfs = folder / "proc"
        (self.procfs / "self/ns").mkdir(parents=True)
        self.namespace(INIT_PID_NAMESPACE)
        self.shape = Shape()
        self.kept = Kept()
        self.mono_s = 1000.0
        self.units: dict[str, str] = {}

    def namespace(self, name: str) -> None:
        link = self.procfs / "self/ns/pid"
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def systemd(self, monkeypatch: pytest.MonkeyPatch, command: str = 'cat "$0.out"') -> None:
        Path(self.procfs, "self", "root", "run/systemd/system").mkdir(parents=True)
        stub = self.folder / "bin/systemctl"
        stub.parent.mkdir()
        stub.write_text(f"#!/bin/sh\n{command}\n")
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")

    def unit(
        self,
        name: str,
        active: str,
        sub: str,
        *,
        load: str = "loaded",
        file: str = "enabled",
        restarts: int = 0,
    ) -> None:
        self.units[name] = UNIT.format(
            name=name, active=active, sub=sub, load=load, file=file, restarts=restarts
        )
        (self.folder / "bin/systemctl.out").write_text("\n".join(self.units.values()))

    def check(self) -> list[Finding]:
        self.mono_s += 60
        settings = Settings(procfs=str(self.procfs), sysfs=str(self.machine.sysfs), shape=self.shape)
        return services.check(Look(settings, (), Now(self.mono_s, 1.0), "boot", self.kept))

    def told(self) -> list[tuple[str, str, Severity]]:
        return [(item.entity, item.code, item.severity) for item in self.check()]


@pytest.fixture
def node(tmp_path: Path, machine: Any) -> Node:
    return Node(tmp_path, machine)


@pytest.fixture
def booted(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """With systemd, and all well."""
    node.systemd(monkeypatch)
    node.unit("containerd", "active", "running")
    node.unit("kubelet", "active", "running")
    node.unit("docker", "inactive", "dead", file="disabled")
    node.unit("slurmd", "inactive", "dead", load="not-found", file="")
    return node


# ---------------------------------------------------------------- with systemd


def test_services_that_run_are_fine_and_those_that_are_not_enabled_are_not_missed(booted: Node) -> None:
    assert booted.check() == []
    assert booted.kept.detail == "containerd, kubelet; expected services: not set"


@pytest.mark.parametrize("name", ["containerd", "kubelet", "nvidia-fabricmanager", "slurmd"])
def test_a_service_that_failed_is_degraded_until_it_runs_again(booted: Node, name: str) -> None:
    booted.unit(name, "active", "running")
    assert booted.check() == []
    booted.unit(name, "failed", "failed")
    assert booted.check() == []  # somebody may be restarting it
    (finding,) = booted.check()
    assert (finding.entity, finding.code) == (f"service {name}", "service-down")
    assert finding.severity is Severity.DEGRADED
    assert finding.evidence == ("systemd: failed (failed)",)
    booted.unit(name, "active", "running")
    assert booted.check() == []


def test_who_looks_once_is_told_at_once(booted: Node) -> None:
    booted.unit("kubelet", "failed", "failed")
    assert booted.told() == [("service kubelet", "service-down", Severity.DEGRADED)]


def test_a_service_that_has_not_yet_been_started_after_a_boot_is_waited_for(booted: Node) -> None:
    booted.mono_s = 20.0
    booted.unit("kubelet", "inactive", "dead")
    assert booted.check() == []
    assert booted.told() == [("service kubelet", "service-down", Severity.DEGRADED)]
    booted.unit("kubelet", "active", "running")
    assert booted.check() == []


def test_a_service_that_is_being_started_is_waited_for(booted: Node) -> None:
    booted.unit("kubelet", "activating", "start")
    assert booted.check() == []
    assert len(booted.check()) == 1


def test_a_service_that_systemd_starts_again_and_again_is_named_until_it_stays(booted: Node) -> None:
    assert booted.check() == []
    for restarts in (1, 2):
        booted.unit("kubelet", "active", "running", restarts=restarts)
        assert booted.check() == []
    booted.unit("kubelet", "active", "running", restarts=3)
    assert booted.told() == [("service kubelet", "service-restarts", Severity.WARNING)]
    booted.mono_s += 4000
    assert booted.check() == []


def test_restarts_from_before_the_first_look_do_not_count(booted: Node) -> None:
    booted.unit("kubelet", "active", "running", restarts=500)
    assert booted.check() == []
    booted.unit("kubelet", "active", "running", restarts=0)  # its unit was loaded anew
    assert booted.check() == []


def test_an_expected_service_that_is_not_even_installed_is_named(booted: Node) -> None:
    booted.shape = Shape(name="slurm", source="manifest", services=("containerd.service", "slurmd.service"))
    (finding,) = booted.check()
    assert (finding.entity, finding.severity) == ("service slurmd", Severity.DEGRADED)
    assert finding.evidence == ("not installed; expected containerd.service, slurmd.service: shape slurm",)
    booted.unit("slurmd", "active", "running")
    assert booted.check() == []


def test_an_expectation_that_nobody_confirmed_is_only_told(booted: Node) -> None:
    booted.shape = Shape(source="learnt", services=("slurmd.service",))
    assert booted.told() == [("service slurmd", "service-down", Severity.WARNING)]


def test_nvswitches_need_the_fabric_manager(booted: Node) -> None:
    booted.machine.add_pci("0000:07:00.0", pci_class="0x068000", device="0x22a3")
    booted.unit("nvidia-fabricmanager", "inactive", "dead", file="disabled")
    assert booted.told() == [("service nvidia-fabricmanager", "service-down", Severity.DEGRADED)]
    booted.unit("nvidia-fabricmanager", "active", "running")
    assert booted.check() == []


def test_a_container_that_sees_no_service_of_the_node_calls_none_down(node: Node) -> None:
    """As in the init container of a pod: the NVSwitches are in its /sys, the fabric manager is not in its /proc."""
    node.machine.add_pci("0000:07:00.0", pci_class="0x068000", device="0x22a3")
    assert node.told() == [("service nvidia-fabricmanager", "service-down", Severity.DEGRADED)]
    node.namespace("pid:[4026532999]")
    node.kept = Kept()
    with pytest.raises(Absent, match="in this container"):
        node.check()
    node.shape = Shape(source="manifest", services=("kubelet.service",))
    with pytest.raises(Unknown, match=r"not seen: kubelet"):
        node.check()


def test_a_systemd_that_does_not_answer_is_unknown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.systemd(monkeypatch, "exec sleep 60")
    monkeypatch.setattr(services, "DEADLINE_S", 0.2)
    with pytest.raises(Unknown, match="no end within"):
        node.check()


def test_paragraphs_of_odd_units_are_read() -> None:
    assert parse_show("") == []
    (service,) = parse_show("Id=x.service\nNRestarts=[not set]\nnonsense\n")
    assert not service.alive
    assert service.restarts == 0


# ---------------------------------------------------------------- without systemd


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process of that name."""
    program = tmp_path / "containerd"
    shutil.copy("/usr/bin/sleep", program)
    process = subprocess.Popen([program, "600"])
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "containerd\n", "not started")
    yield process
    process.kill()
    process.wait()


def test_without_systemd_a_process_that_is_gone_is_missed_until_it_is_back(
    node: Node, containerd: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.systemd(monkeypatch, "echo 'System has not been booted with systemd as init system.' >&2; exit 1")
    (node.procfs / str(containerd.pid)).symlink_to(f"/proc/{containerd.pid}")
    assert node.check() == []
    assert node.kept.detail.startswith("containerd;")
    containerd.kill()
    containerd.wait()
    assert node.check() == []
    (finding,) = node.check()
    assert (finding.entity, finding.severity) == ("service containerd", Severity.DEGRADED)
    assert finding.evidence == ("no such process, there was one",)
    (node.procfs / "77").mkdir()
    (node.procfs / "77/comm").write_text("containerd\n")
    assert node.check() == []


def test_a_service_that_was_given_up_is_not_missed_for_ever(node: Node) -> None:
    (node.procfs / "77").mkdir()
    (node.procfs / "77/comm").write_text("dockerd\n")
    node.check()
    (node.procfs / "77/comm").write_text("sh\n")
    node.check()
    assert len(node.check()) == 1
    node.mono_s += services.FORGOTTEN_S
    with pytest.raises(Absent):
        node.check()


def test_an_expected_process_that_never_was_is_missed(node: Node) -> None:
    node.shape = Shape(name="x", source="manifest", services=("nvidia-fabricmanager.service",))
    assert node.told() == [("service nvidia-fabricmanager", "service-down", Severity.DEGRADED)]
    (node.procfs / "77").mkdir()
    (node.procfs / "77/comm").write_text("nv-fabricmanage\n")  # the kernel keeps 15 characters
    node.kept = Kept()
    assert node.check() == []


def test_a_machine_without_any_of_them_is_absent(node: Node) -> None:
    with pytest.raises(Absent, match="not set"):
        node.check()


# ---------------------------------------------------------------- the kubelet's own word


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A server in the kubelet's place that says what the list says, or nothing where it is empty."""
    says: list[bytes] = [b"HTTP/1.0 200 OK\r\n\r\nok"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(services, "KUBELET_HEALTH", server.getsockname())

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(says[0])

        thread = threading.Thread(target=serve)
        thread.start()
        yield says
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_kubelet_that_runs_but_is_not_well_is_degraded_until_it_is(
    booted: Node, health: list[bytes]
) -> None:
    assert booted.check() == []
    health[0] = b"HTTP/1.0 500 Internal Server Error\r\n\r\nPLEG is not healthy"
    assert booted.check() == []
    assert booted.told() == [("service kubelet", "service-hangs", Severity.DEGRADED)]
    health[0] = b"HTTP/1.0 200 OK\r\n\r\nok"
    assert booted.check() == []


def test_a_kubelet_that_accepts_and_says_nothing_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert "no answer" in services.answers(address, 0.05)
    assert services.answers(address, 0.05) == ""  # nothing listens: its endpoint is switched off
