"""Expected hardware: by the manifest, or learnt here and confirmed; what is not set is said."""

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.checks import shape as shapes
from sentinel.checks.base import Kept, Look
from sentinel.checks.runner import CheckRunner
from sentinel.config.load import load_settings
from sentinel.config.problems import ConfigErrors
from sentinel.core.health import Severity
from sentinel.core.now import Now
from sentinel.settings import Settings, Shape, ShapeMatch

HEAD = "apiVersion: sentinel.dev/v1alpha1\nkind: Settings\n"
FLEET = """\
shapes:
  - name: h100-8
    match: {gpu: "H100", hostname: "^gpu-"}
    gpus: 8
    gpuName: NVIDIA H100 80GB HBM3
    driver: "570.124.06"
    ibPorts: 8
    ibRateGbps: 400
    mounts: [/scratch]
  - name: by-id
    match: {gpu: "10de:20b2"}
    gpus: 4
  - name: rest
    memoryGib: 60
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def node(machine: Any) -> Any:
    """A node with two H100, two InfiniBand ports of which one is down, and an Ethernet card."""
    proc = machine.folder / "proc"
    for address in ("0000:18:00.0", "0000:2a:00.0"):
        machine.add_pci(address)
        text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 24\nVideo BIOS: \t 96.00.99.00.01\n"
        write(proc / f"driver/nvidia/gpus/{address}/information", text)
    # In the layout of the open kernel module, as its source prints it (nvidia/nv-procfs.c).
    version = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder)\n"
    )
    write(proc / "driver/nvidia/version", version)
    for port, state in (("mlx5_0/ports/1", "4: ACTIVE"), ("mlx5_1/ports/1", "1: DOWN")):
        write(machine.sysfs / "class/infiniband" / port / "state", state + "\n")
        write(machine.sysfs / "class/infiniband" / port / "rate", "400 Gb/sec (4X NDR)\n")
    for name, value in (("type", "1"), ("carrier", "1"), ("device/vendor", "0x15b3")):
        write(machine.sysfs / "class/net/eth0" / name, value + "\n")
    write(machine.sysfs / "class/net/docker0/type", "1\n")
    (machine.sysfs / "fs/cgroup/system.slice/kubelet.service").mkdir(parents=True)
    write(proc / "meminfo", "MemTotal:       65831556 kB\nMemFree: 1 kB\n")
    write(proc / "cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n")
    write(proc / "self/mounts", "/dev/sda1 / ext4 rw 0 0\nnas:/data /data nfs4 rw 0 0\n")
    write(proc / "modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\next4 1 0 - Live 0x0\n")
    return msgspec.structs.replace(machine.settings, procfs=str(proc))


LEARNT = Shape(
    source="learnt",
    gpus=2,
    gpu_name="NVIDIA H100 80GB HBM3",
    driver="570.124.06",
    vbios="96.00.99.00.01",
    ib_ports=1,
    ib_rate_gbps=400.0,
    nics=("eth0",),
    memory_gib=62.8,
    cpus=2,
    mounts=("/data",),
    modules=("nvidia", "nvidia_uvm"),
    services=("kubelet.service",),
)


def resolved(settings: Settings, text: str, hostname: str) -> Shape:
    fleet = load_settings(HEAD + text)
    return shapes.with_shape(msgspec.structs.replace(settings, shapes=fleet.shapes), hostname).shape


def look(settings: Settings) -> Look:
    return Look(shapes.with_shape(settings), (), Now(1.0, 1.0), "boot", Kept())


def test_one_settings_file_serves_a_fleet(node: Settings) -> None:
    found = resolved(node, FLEET, "gpu-17")
    assert (found.name, found.source, found.gpus, found.ib_rate_gbps) == ("h100-8", "manifest", 8, 400.0)
    assert resolved(node, FLEET, "login-1").name == "rest"  # the card matches, the host name does not


def test_a_card_is_found_by_its_pci_id_where_the_driver_is_not_loaded(machine: Any) -> None:
    machine.add_pci("0000:18:00.0", device="0x20b2")
    assert resolved(machine.settings, FLEET, "gpu-17").name == "by-id"


def test_what_is_here_is_learnt(node: Settings) -> None:
    assert shapes.learn(node) == LEARNT


def test_an_empty_tree_teaches_nothing(tmp_path: Path) -> None:
    assert shapes.learn(Settings(sysfs=str(tmp_path), procfs=str(tmp_path))) == Shape(source="learnt")


def test_what_was_learnt_can_be_pasted_into_the_settings(node: Settings) -> None:
    found = resolved(node, shapes.manifest(LEARNT, "here"), "any")
    empty = {"name": "", "match": ShapeMatch(), "source": "learnt"}
    assert msgspec.structs.replace(found, **empty) == LEARNT


def test_a_driver_whose_files_block_is_waited_for_a_moment_only(
    node: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "DRIVER_WAIT_S", 0.05)
    version = Path(node.procfs, "driver/nvidia/version")
    version.unlink()
    os.mkfifo(version)  # blocks whoever opens it
    assert shapes.learn(node).driver is None
    with open(version, "w"):  # let the reader go
        pass


def test_learnt_is_told_confirmed_is_quiet_and_the_manifest_wins(node: Settings) -> None:
    shapes.save(node, LEARNT)
    first = look(node)
    assert [(one.code, one.severity) for one in shapes.check(first)] == [("shape-unconfirmed", Severity.INFO)]
    shapes.save(node, msgspec.structs.replace(LEARNT, source="confirmed"))
    assert shapes.check(look(node)) == []
    assert resolved(node, FLEET, "gpu-17").name == "h100-8"


def test_a_node_that_no_shape_matches_is_told_and_cleared_by_one_that_does(node: Settings) -> None:
    only = load_settings(HEAD + "shapes: [{name: other, match: {hostname: nowhere}, gpus: 8}]")
    (finding,) = shapes.check(look(msgspec.structs.replace(node, shapes=only.shapes)))
    assert (finding.code, finding.severity) == ("shape-unmatched", Severity.WARNING)
    every = load_settings(HEAD + "shapes: [{name: every, gpus: 8}]")
    assert shapes.check(look(msgspec.structs.replace(node, shapes=every.shapes))) == []


def detail_of(settings: Settings) -> str:
    (result,) = asyncio.run(CheckRunner(settings).check_now(("shape",)))
    return result.detail


def test_a_result_says_what_is_not_set(node: Settings) -> None:
    assert "expected hardware: not set" in detail_of(node)
    every = load_settings(HEAD + "shapes: [{name: every, gpus: 8}]")
    detail = detail_of(msgspec.structs.replace(node, shapes=every.shapes))
    assert detail.startswith("not set: gpuName, driver")
    assert "gpus" not in detail


def codes(settings: Settings) -> list[str]:
    (result,) = asyncio.run(CheckRunner(settings).check_now(("shape",)))
    return [finding.code for finding in result.findings]


def test_a_damaged_file_of_what_was_learnt_counts_as_nothing_and_is_told_until_it_is_replaced(
    node: Settings,
) -> None:
    path = shapes.save(node, LEARNT)
    path.write_bytes(path.read_bytes()[:40])
    assert shapes.load(node) == Shape()
    path.write_bytes(b"\xff\xfe")
    assert shapes.load(node) == Shape()
    assert codes(node) == ["shape-unreadable"]
    shapes.save(node, msgspec.structs.replace(LEARNT, source="confirmed"))
    assert codes(node) == []


def test_words_for_checks() -> None:
    manifest = Shape(name="h100-8", source="manifest", gpus=8, mounts=("/a", "/b"))
    assert shapes.expected(manifest, "gpus") == "expected 8: shape h100-8"
    assert shapes.expected(manifest, "mounts") == "expected /a, /b: shape h100-8"
    assert shapes.expected(manifest, "vbios") == "expected vbios: not set"
    assert shapes.expected(LEARNT, "gpus") == "expected 2: learnt, not confirmed"
    assert shapes.judged(LEARNT, Severity.FATAL) is Severity.WARNING
    assert shapes.judged(LEARNT, Severity.INFO) is Severity.INFO
    assert shapes.judged(manifest, Severity.FATAL) is Severity.FATAL


def test_a_shape_that_could_never_match_is_refused() -> None:
    text = "shapes:\n  - {name: a, gpus: 8}\n  - {name: a, gpu: 8, match: {hostname: '('}}\n"
    with pytest.raises(ConfigErrors) as caught:
        load_settings(HEAD + text)
    assert {problem.path for problem in caught.value.problems} == {
        "shapes[0].match",
        "shapes[1].name",
        "shapes[1].gpu",
        "shapes[1].match.hostname",
    }
