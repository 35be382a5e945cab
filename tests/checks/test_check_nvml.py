"""The NVML check through the real pynvml in its real child, over a stub of the library that a scenario drives."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks.base import Absent, Kept, Unknown
from sentinel.checks.child import LineChild
from sentinel.checks.gpus import hidden
from sentinel.checks.node_root import node_root
from sentinel.checks.nvidia import nvml as check_module
from sentinel.checks.nvidia.driver_library import of_node
from sentinel.checks.proc_scan import INIT_PID_NAMESPACE
from sentinel.core.health import Severity
from tests.waits import runs, until

CAPTURED = Path(__file__).parent / "fixtures" / "cards"
FIRST, SECOND = "0000:18:00.0", "0000:2a:00.0"


def test_healthy_cards_have_no_findings_and_one_child_serves_all_samples(sample: Any, cards: Any) -> None:
    assert sample() == {}
    child = sample.child_pid
    assert sample() == {}
    assert sample.child_pid == child


@pytest.mark.usefixtures("many_files")
def test_an_agent_that_holds_many_files_open_reads_its_cards(sample: Any, cards: Any) -> None:
    cards.set(gpu1_error=15)
    assert [finding.code for finding in sample().values()] == ["gpu-lost"]


@pytest.mark.parametrize("card", ["nvidia-h100-580.159.04", "nvidia-h200-580.159.04"])
def test_a_well_card_as_a_real_driver_tells_of_it_has_no_findings(
    sample: Any, machine: Any, nvml: Any, card: str
) -> None:
    machine.add_pci("0000:00:06.0")
    scenario = nvml("0000:00:06.0")
    scenario.load(CAPTURED / f"{card}.txt")
    scenario.set(gpu0_processes=f"{os.getpid()}:784334848")
    assert sample.until(15) == {}
    assert sample.measure("DCGM_FI_DEV_GPU_TEMP") == float(scenario.values["0.temperature"])
    assert sample.measure("DCGM_FI_DEV_POWER_USAGE") == float(scenario.values["0.power"]) / 1000


def test_without_cards_and_library_the_check_is_absent_and_starts_nothing(
    sample: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(check_module, "is_here", lambda: False)
    with pytest.raises(Absent):
        sample()
    assert sample.child_pid is None


def test_a_pod_that_brings_no_library_takes_that_of_its_node(
    tmp_path: Path, sample: Any, machine: Any, nvml: Any, build_stub: Any, monkeypatch: Any
) -> None:
    """Its own would have to be of the version of the driver that the node has loaded. Links lead within the node."""
    machine.add_pci("0000:18:00.0")
    scenario = nvml("0000:18:00.0")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    with pytest.raises(Unknown, match="Not Found"):
        sample()
    node = tmp_path / "node"
    for folder in ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib", "store/driver"):
        (node / folder).mkdir(parents=True, exist_ok=True)
    (node / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.1")  # in a circle
    (node / "usr/lib/libnvidia-ml.so.1").write_text("of another machine")
    shutil.copy(build_stub(False) / "libnvidia-ml.so.1", node / "store/driver/libnvidia-ml.so.580.95.05")
    (node / "usr/lib64/libnvidia-ml.so.1").symlink_to("/current/libnvidia-ml.so.580.95.05")
    (node / "current").symlink_to("/store/driver")
    sample.root = str(node)
    sample.memory.child.close()
    sample.memory.child = None  # it was told of no node
    scenario.set(gpu0_error=15)
    assert [finding.code for finding in sample().values()] == ["gpu-lost"]


def test_a_driver_containers_links_lead_within_it(tmp_path: Path) -> None:
    root = tmp_path / "run/nvidia/driver"
    for folder in ("usr/lib/x86_64-linux-gnu", "opt"):
        (root / folder).mkdir(parents=True)
    (root / "opt/ml").write_text("")
    (root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to("/opt/ml")
    assert of_node(str(tmp_path)) == [str(root / "opt/ml")]


def test_the_root_of_a_node_is_found_in_a_pod_that_sees_its_processes(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    monkeypatch.delenv("INVOCATION_ID", raising=False)
    (tmp_path / "node").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "1/root").symlink_to(tmp_path / "node")
    assert node_root(str(tmp_path)) == "", "process 1 may be another container's"
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(INIT_PID_NAMESPACE)
    assert node_root(str(tmp_path)) == str(tmp_path / "1/root")
    (tmp_path / "1/root").unlink()
    (tmp_path / "1/root").symlink_to("/")
    assert node_root(str(tmp_path)) == "", "ours is the node's"
    monkeypatch.setenv("INVOCATION_ID", "0123")
    assert node_root(str(tmp_path)) == "", "its mounts are not to be seen"
    (tmp_path / "1/ns").mkdir()
    (tmp_path / "1/ns/mnt").symlink_to("mnt:[1]")
    (tmp_path / "self/ns/mnt").symlink_to("mnt:[1]")
    assert node_root(str(tmp_path)) == "", "a service with the node's mounts"
    (tmp_path / "self/ns/mnt").unlink()
    (tmp_path / "self/ns/mnt").symlink_to("mnt:[2]")
    assert node_root(str(tmp_path)) == str(tmp_path / "1/root"), "the service has mounts of its own"
    monkeypatch.delenv("INVOCATION_ID")
    assert node_root(str(tmp_path)) == "", "what a person mounts for himself is what he looks at"


def test_a_lost_card_is_fatal_and_the_other_card_is_not_blamed(sample: Any, cards: Any) -> None:
    sample()
    cards.set(gpu1_error=15)
    found = list(sample().values())
    assert [(finding.code, finding.severity, finding.action) for finding in found] == [
        ("gpu-lost", Severity.FATAL, "RESTART_BM")
    ]


def test_a_card_of_which_nvml_says_unknown_error_is_fatal_at_the_second_look(sample: Any, cards: Any) -> None:
    """What a card that fell off the bus answers by many drivers: `Unable to determine the device handle`."""
    sample()
    child = sample.child_pid
    cards.set(gpu1_error=999)
    (first,) = sample().values()
    assert (first.code, first.severity, first.entity) == ("gpu-no-answer", Severity.WARNING, f"GPU {SECOND}")
    assert sample.child_pid != child, "a new NVML was asked as well"
    child = sample.child_pid
    (second,) = sample().values()
    assert (second.severity, second.action) == (Severity.FATAL, "RESTART_BM")
    assert (
        "NVML says Unknown Error for it, for 30 s; its configuration on the PCI bus can be read"
        in second.evidence[0]
    )
    assert sample.child_pid == child
    cards.set(gpu1_error=0)
    assert sample() == {}
    cards.set(gpu1_error=999)
    (again,) = sample().values()
    assert again.severity is Severity.WARNING, "the time counts from when it began"


def test_what_the_bus_reads_of_such_a_card_is_evidence_and_no_second_look(
    sample: Any, cards: Any, machine: Any
) -> None:
    """A card in a reset is off the bus for a moment, and NVML cannot reach it either."""
    sample()
    (machine.sysfs / "bus/pci/devices" / SECOND / "config").write_bytes(b"\xff" * 64)
    cards.set(gpu1_error=999)
    (first,) = sample().values()
    assert (first.code, first.severity) == ("gpu-no-answer", Severity.WARNING)
    assert "reads ff" in first.evidence[0]
    (second,) = sample().values()
    assert second.severity is Severity.FATAL


def test_the_second_look_is_of_the_same_agent(sample: Any, cards: Any) -> None:
    sample()
    cards.set(gpu1_error=999)
    sample()
    sample.kept.close()
    sample.kept = Kept(saved=json.loads(json.dumps(sample.kept.saved)))  # another agent of this boot
    (found,) = sample().values()
    assert found.severity is Severity.WARNING, "nobody looked while there was none"
    (again,) = sample().values()
    assert again.severity is Severity.FATAL


def test_the_time_of_a_card_that_answers_nothing_does_not_run_on_while_it_is_not_listed(
    sample: Any, cards: Any
) -> None:
    """As where its driver is loaded anew."""
    sample()
    cards.set(gpu1_error=999)
    sample()
    cards.set(devices=1)
    sample()
    cards.set(devices=2)
    (found,) = sample().values()
    assert found.severity is Severity.WARNING


def test_a_card_that_gives_no_handle_for_another_reason_is_told(sample: Any, cards: Any) -> None:
    sample()
    cards.set(gpu1_error=8)  # NVML_ERROR_INSUFFICIENT_POWER
    (found,) = sample().values()
    assert (found.code, found.severity) == ("gpu-no-answer", Severity.WARNING)


def test_a_card_that_needs_a_reset_is_fatal(sample: Any, cards: Any) -> None:
    cards.set(gpu0_error=16)
    assert {finding.code: finding.action for finding in sample().values()} == {
        "gpu-reset-required": "RESET_GPU"
    }


@pytest.mark.parametrize(
    ("value", "severity", "action"),
    [
        (1, Severity.FATAL, "RESET_GPU"),
        (2, Severity.FATAL, "RESTART_BM"),
        (3, Severity.DEGRADED, "DRAIN_P2P"),
        (4, Severity.DEGRADED, "DRAIN_AND_RESET"),
        (7, Severity.FATAL, "RESTART_BM"),
        (99, Severity.WARNING, "CONTACT_SUPPORT"),
    ],
)
def test_the_drivers_recovery_action_is_followed(
    sample: Any, cards: Any, value: int, severity: Severity, action: str
) -> None:
    cards.set(gpu0_field230=value)
    finding = sample()[f"GPU {FIRST}", "gpu-recovery-action"]
    assert (finding.severity, finding.action) == (severity, action)
    cards.set(gpu0_field230=0)
    assert sample() == {}


def test_a_card_on_the_bus_that_the_driver_does_not_list_is_fatal(
    sample: Any, cards: Any, machine: Any
) -> None:
    cards.set(devices=1)
    finding = sample()[f"GPU {SECOND}", "gpu-missing"]
    assert finding.severity is Severity.FATAL
    assert "1 of 2" in finding.evidence[0]
    cards.set(devices=2)
    assert sample() == {}


DEVICES = Path("self", "root", "dev")  # below /proc: as a process sees them


@pytest.fixture
def bound(sample: Any, cards: Any, machine: Any, tmp_path: Path) -> Path:
    """Both cards have NVIDIA's driver; the tree is what /proc shows of a process in the host's own namespaces."""
    proc = tmp_path / "proc"
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(INIT_PID_NAMESPACE)
    (proc / DEVICES).mkdir(parents=True)
    for minor, pci in enumerate((FIRST, SECOND)):
        bind(machine, pci, "nvidia")
        information = proc / "driver/nvidia/gpus" / pci / "information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t {minor}\n")
        (proc / DEVICES / f"nvidia{minor}").touch()
    sample.settings["procfs"] = str(proc)
    return proc


def bind(machine: Any, pci: str, driver: str) -> None:
    link = machine.sysfs / "bus/pci/devices" / pci / "driver"
    link.unlink(missing_ok=True)
    link.symlink_to(f"../../../bus/pci/drivers/{driver}")


def test_a_card_that_the_driver_has_and_we_may_use_but_is_not_listed_is_fatal(
    sample: Any, cards: Any, bound: Path
) -> None:
    cards.set(devices=1)
    assert sample()[f"GPU {SECOND}", "gpu-missing"].severity is Severity.FATAL
    (bound / DEVICES / "nvidia1").unlink()  # on the host a card that never started has no device file
    assert sample()[f"GPU {SECOND}", "gpu-missing"].severity is Severity.FATAL


@pytest.mark.parametrize("without", [str(DEVICES / "nvidia1"), f"driver/nvidia/gpus/{SECOND}/information"])
def test_cards_that_a_container_was_not_given_are_not_missing(
    sample: Any, cards: Any, bound: Path, without: str
) -> None:
    """As in a pod with one of the node's cards, where `sentinel check` is its init container."""
    (bound / "self/ns/pid").unlink()
    (bound / "self/ns/pid").symlink_to("pid:[4026532999]")
    (bound / without).unlink()
    cards.set(devices=1)
    assert sample() == {}
    assert f"not ours to use, so not looked at: GPU {SECOND}" in sample.kept.detail


def test_a_card_that_the_jobs_control_group_forbids_is_not_missing(machine: Any, bound: Path) -> None:
    """As in a job step of Slurm, which has all device files and may open some."""
    os.chmod(bound / DEVICES / "nvidia1", 0)
    if os.geteuid() == 0:  # whom only a control group can forbid it
        assert not hidden(str(machine.sysfs), str(bound), SECOND, False)
        for folder in (bound, *bound.parents):
            if folder.stat().st_uid == 0 and folder.name.startswith(("pytest", "test", "popen")):
                folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        os._exit(hidden(str(machine.sysfs), str(bound), SECOND, False))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_card_that_was_given_to_a_guest_is_not_missing(sample: Any, cards: Any, machine: Any) -> None:
    bind(machine, SECOND, "vfio-pci")
    cards.set(devices=1)
    assert sample() == {}
    (machine.sysfs / "bus/pci/devices" / SECOND / "driver").unlink()
    assert sample()[f"GPU {SECOND}", "gpu-missing"].severity is Severity.FATAL


def test_a_hang_is_a_finding_the_child_is_killed_and_the_next_one_answers(
    sample: Any, cards: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample()
    child = sample.child_pid
    assert child is not None
    sample.memory.call_deadline_s = 0.3
    cards.set(gpu1_hang=1)
    assert sample.hang().severity is Severity.WARNING
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert sample.kept.again_s < 10, "it is asked again soon"
    sample.memory.call_deadline_s = 600.0
    monkeypatch.setattr(check_module, "CALL_DEADLINE_S", 0.3)
    clock.mono_s += 119.7 - 30  # the next sample is 30 s later
    assert sample.hang().severity is Severity.FATAL, (
        "told when it has lasted, and not when one more call is over"
    )
    cards.set(gpu1_hang=0)
    sample.memory.call_deadline_s = 20.0
    assert sample() == {}
    assert sample.child_pid not in (None, child)


def test_a_driver_that_is_back_just_before_its_hang_is_fatal_gets_time_to_answer(
    sample: Any, cards: Any, clock: Any
) -> None:
    sample()
    sample.memory.call_deadline_s = 0.3
    cards.set(gpu1_hang=1)
    assert sample.hang().severity is Severity.WARNING
    sample.memory.call_deadline_s = 600.0
    cards.set(gpu1_hang=0)
    clock.mono_s += 119.999 - 30
    assert sample() == {}


def test_a_hang_is_degraded_for_who_decides_by_this_look(sample: Any, cards: Any) -> None:
    """He does not see whether it lasts, and is to be told before his own time is over."""
    cards.set(gpu1_hang=1)
    sample.kept.within_s, sample.memory.call_deadline_s = 60.0, 0.3
    assert sample.hang().severity is Severity.DEGRADED


def test_whoever_has_more_time_gives_the_driver_more(
    sample: Any, cards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without persistence mode it wakes every card first."""
    monkeypatch.setattr(check_module, "START_DEADLINE_S", 0.001)
    sample.kept.within_s = 60.0
    assert sample() == {}


def test_a_child_that_cannot_be_killed_at_once_is_fatal_only_when_that_lasts(
    sample: Any, cards: Any, clock: Any, frozen: Path
) -> None:
    """A driver that wakes its cards at a boot answers late, and is not killed before it is done."""
    child = LineChild(["sh", "-c", f"read line; echo x > {frozen}/file"])
    sample.memory.child, sample.memory.call_deadline_s = child, 0.3
    assert sample.hang().severity is Severity.WARNING
    found = sample.hang()
    assert (found.severity, "cannot be killed" in found.evidence[0]) == (Severity.WARNING, True)
    clock.mono_s += 120
    assert sample.hang().severity is Severity.FATAL
    subprocess.run(["fsfreeze", "-u", str(frozen)], check=True)
    child.close()
    sample.kept = Kept()
    assert sample() == {}


def test_an_old_driver_without_the_newer_functions_is_no_fault(
    sample: Any, machine: Any, nvml: Callable[..., Any]
) -> None:
    machine.add_pci(FIRST)
    scenario = nvml(FIRST, old_driver=True)
    assert sample() == {}
    scenario.set(gpu0_temperature=95)
    assert list(sample()) == [(f"GPU {FIRST}", "gpu-temperature")]


def test_a_driver_that_does_not_start_is_unknown_and_seen_when_it_does(sample: Any, cards: Any) -> None:
    cards.set(init=9)  # driver not loaded
    with pytest.raises(Unknown, match="NVML"):
        sample()
    cards.set(init=0)
    assert sample() == {}


def test_a_container_that_may_not_open_the_driver_says_what_it_needs(
    sample: Any, cards: Any, tmp_path: Path
) -> None:
    cards.set(init=9)
    sample.settings["procfs"] = str(tmp_path / "proc")
    with pytest.raises(
        Unknown, match="/dev/nvidiactl is not here: it needs a privileged container, or the runtime"
    ):
        sample()
    (tmp_path / "proc/self/root/dev").mkdir(parents=True)
    (tmp_path / "proc/self/root/dev/kmsg").touch()
    with pytest.raises(Unknown) as unknown:
        sample()
    assert "needs" not in str(unknown.value), "the devices are the machine's: the driver itself is not there"


def test_a_card_whose_device_a_container_does_not_have_is_not_missing(
    sample: Any, nvml: Any, machine: Any, tmp_path: Path
) -> None:
    """It sees the node's processes, and its /dev is its own."""
    proc = tmp_path / "proc"
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(INIT_PID_NAMESPACE)
    for minor, address in enumerate((FIRST, SECOND)):
        machine.add_pci(address)
        (machine.sysfs / "bus/pci/devices" / address / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
        (proc / "driver/nvidia/gpus" / address).mkdir(parents=True)
        (proc / "driver/nvidia/gpus" / address / "information").write_text(f"Device Minor: \t {minor}\n")
    nvml(FIRST)
    sample.settings["procfs"] = str(proc)
    assert sample() == {}
    (proc / "self/root/dev").mkdir(parents=True)
    (proc / "self/root/dev/kmsg").touch()
    sample.memory.doubted.clear()
    assert [code for _, code in sample()] == ["gpu-missing"]


def test_a_child_that_somebody_killed_is_started_again(sample: Any, cards: Any) -> None:
    sample()
    child = sample.child_pid
    assert child is not None
    os.kill(child, 9)
    sample.memory.child._process.wait()  # until the kernel has it ended
    assert sample() == {}
    assert sample.child_pid != child


def test_modules_in_the_current_directory_are_not_imported(
    sample: Any, cards: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sample() == {}


def test_the_child_ends_when_the_agent_is_gone(machine: Any, cards: Any) -> None:
    program = (
        "import sys, json, os; from sentinel.checks.nvidia import nvml; from sentinel.checks.base import Kept, Look\n"
        "from sentinel.core.now import Now; from sentinel.settings import Settings\n"
        "kept = Kept(); nvml.check(Look(Settings(sysfs=sys.argv[1]), (), Now(1.0, 1.0), 'boot', kept))\n"
        "print(kept.own(nvml.Memory).child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(machine.sysfs)], stdout=subprocess.PIPE)
    until(lambda: not runs(int(done.stdout)), "the child outlived its agent")
