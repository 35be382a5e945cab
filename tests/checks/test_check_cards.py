"""Accelerators other than NVIDIA's, through real executables that print what those tools were seen to print."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from sentinel.checks.accelerators import amd, ascend, cambricon
from sentinel.checks.accelerators.cards import NotUnderstood
from sentinel.checks.accelerators.families import FAMILIES, family
from sentinel.checks.accelerators.tool import SAMPLE_S, Memory
from sentinel.checks.runner import CheckRunner
from sentinel.core.health import CheckResult, CheckState, Severity
from tests.waits import runs, until

FIXTURES = Path(__file__).parent / "fixtures/cards"


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


class Bench:
    """A machine with one family's cards on the PCI bus and its tool on PATH."""

    def __init__(self, machine: Any, name: str, addresses: tuple[str, ...]) -> None:
        self.machine, self.family = machine, family(name)
        self.bin = machine.folder / "bin"
        self.bin.mkdir(exist_ok=True)
        for address in addresses:
            machine.add_pci(address, self.family.vendor, f"{self.family.classes[0]}00", "0x0370")
        self.runner = CheckRunner(machine.settings, checks=[self.family.row])

    @property
    def memory(self) -> Memory:
        return self.runner._running[self.family.check].kept.own(Memory)

    def prints(self, answers: dict[str, str], tool: str = "") -> None:
        """`answers`: arguments ("" for none, "*" for all others) -> what is printed."""
        lines = ["#!/bin/sh", 'case "$*" in']
        for number, (arguments, answer) in enumerate(answers.items()):
            path = self.machine.folder / f"answer{number}"
            path.write_text(answer)
            pattern = "*" if arguments == "*" else f'"{arguments}"'
            lines.append(f"{pattern}) exec cat {path};;")
        self.script("\n".join([*lines, "*) echo not supported; exit 1;;", "esac"]), tool)

    def script(self, body: str, tool: str = "") -> None:
        new = self.bin / "new"
        new.write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}")
        new.chmod(0o755)
        new.replace(self.bin / (tool or self.family.tool))

    def look(self, times: int = 1) -> CheckResult:
        for _ in range(times):
            (result,) = asyncio.run(self.runner.check_now((self.family.check,), max_age_s=-1))
        return result

    def found(self, times: int = 1) -> dict[str, Severity]:
        return {finding.code: finding.severity for finding in self.look(times).findings}

    def values(self, name: str) -> list[float]:
        return [m.value for m in self.runner.measures() if m.name == f"sentinel_accelerator_{name}"]


@pytest.fixture
def bench(machine: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    monkeypatch.setenv("PATH", f"{machine.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin")

    def make(name: str, *addresses: str) -> Bench:
        return Bench(machine, name, addresses)

    return make


CAMBRICON = ("0000:1b:00.0", "0000:36:00.0")
ASCEND = ("0000:9d:00.0", "0000:9f:00.0", "0000:99:00.0", "0000:9b:00.0")
AMD = ("0000:0b:00.0",)


def healthy(bench: Bench) -> dict[str, str]:
    """Answers of a healthy machine of the family."""
    answers = {
        "cambricon": {"": text("cnmon-5.10.10.txt"), "info": text("cnmon-info-5.10.22.txt")},
        "ascend": {"info": text("npu-smi-24.1.rc3.7.txt"), "info -t ecc -i 0": text("npu-smi-ecc.txt")},
        "amd": {
            "metric --json": text("amd-smi-metric.json"),
            "static --json": text("amd-smi-static.json"),
            "topology --json": text("amd-smi-topology.json"),
        },
    }[bench.family.name]
    bench.prints(answers)
    return answers


@pytest.fixture(params=["cambricon", "ascend", "amd"])
def any_bench(request: pytest.FixtureRequest, bench: Callable[..., Bench]) -> Bench:
    return bench(request.param, *{"cambricon": CAMBRICON, "ascend": ASCEND, "amd": AMD}[request.param])


# ---------------------------------------------------------------- what every family does


def test_healthy_cards_are_healthy_and_show_their_numbers(any_bench: Bench) -> None:
    healthy(any_bench)
    result = any_bench.look()
    assert (result.state, result.findings) == (CheckState.OK, ()), result.detail
    assert any_bench.values("temperature_celsius")
    assert any_bench.values("memory_total_bytes")
    labels = dict(any_bench.runner.measures()[0].labels)
    assert labels["family"] == any_bench.family.name
    assert labels["pci_bus_id"]


def test_neither_tool_nor_card_is_absent(any_bench: Bench) -> None:
    shutil.rmtree(any_bench.machine.sysfs / "bus/pci/devices")
    assert any_bench.look().state is CheckState.ABSENT


@pytest.mark.parametrize(
    "says", ["echo 'Driver not initialized' >&2; exit 1", "echo '[[['", "exec sleep 1000"]
)
def test_a_tool_whose_hardware_is_not_there_is_no_trouble(any_bench: Bench, says: str) -> None:
    """An image has tools of several makers."""
    shutil.rmtree(any_bench.machine.sysfs / "bus/pci/devices")
    any_bench.memory.sample_s = 0.3
    any_bench.script(says)
    result = any_bench.look()
    assert (result.state, result.findings) == (CheckState.ABSENT, ())
    assert f"no {any_bench.family.noun} on the PCI bus and no /dev/" in result.detail


def test_a_device_file_is_hardware_too(any_bench: Bench) -> None:
    """As those that are no PCI device have it."""
    shutil.rmtree(any_bench.machine.sysfs / "bus/pci/devices")
    devices = any_bench.machine.folder / "proc/self/root/dev"
    devices.mkdir(parents=True)
    (devices / any_bench.family.devices.replace("*", "0")).touch()
    settings = msgspec.structs.replace(
        any_bench.machine.settings, procfs=str(any_bench.machine.folder / "proc")
    )
    any_bench.runner = CheckRunner(settings, checks=[any_bench.family.row])
    any_bench.script("exit 1")
    assert any_bench.look().state is CheckState.UNKNOWN


def test_a_card_without_its_tool_is_unknown_and_says_what_cannot_be_seen(any_bench: Bench) -> None:
    result = any_bench.look()
    assert result.state is CheckState.UNKNOWN
    assert f"no {any_bench.family.tool}" in result.detail
    assert "ECC" in result.detail


@pytest.mark.parametrize("name", ["cambricon", "ascend"])
def test_another_device_of_the_same_maker_is_no_card(bench: Callable[..., Bench], name: str) -> None:
    one = bench(name)
    one.machine.add_pci("0000:02:00.0", one.family.vendor, "0x020000")  # a network card
    one.machine.add_pci("0000:03:00.0", one.family.vendor, "0x030000")  # the board's display
    assert one.look().state is CheckState.ABSENT


@pytest.mark.parametrize("rubbish", ["", "\x00\xff" * 50, "Segmentation fault\n", "[]]", '{"gpu_data": 3}'])
def test_rubbish_is_unknown_not_healthy(any_bench: Bench, rubbish: str) -> None:
    any_bench.prints({"*": rubbish})
    result = any_bench.look()
    assert result.state is CheckState.UNKNOWN
    assert "not understood" in result.detail
    assert any_bench.runner.stats[any_bench.family.check].exceptions == 0


def test_no_prefix_of_a_real_answer_breaks_the_check_or_invents_a_fault(any_bench: Bench) -> None:
    answers = healthy(any_bench)
    main = next(iter(answers))
    for size in range(0, len(answers[main]), 331):
        any_bench.prints({**answers, main: answers[main][:size]})
        result = any_bench.look()
        assert result.state in (CheckState.UNKNOWN, CheckState.OK, CheckState.FOUND)
        # A table that ends after whole cards looks like fewer cards: that they are not listed may be said.
        assert {finding.code for finding in result.findings} <= {"accelerator-not-listed"}
    assert any_bench.runner.stats[any_bench.family.check].exceptions == 0


def test_a_tool_that_fails_says_which_permission_it_needs(any_bench: Bench) -> None:
    any_bench.script("echo 'dcmi module initialize failed. ret is -8005' >&2; exit 5")
    result = any_bench.look()
    assert result.state is CheckState.UNKNOWN
    assert "status 5: dcmi module initialize failed. ret is -8005" in result.detail
    assert any_bench.family.permission in result.detail


def test_a_tool_that_may_not_be_run_is_unknown(any_bench: Bench) -> None:
    any_bench.script("#!/no/such/interpreter\n")
    assert any_bench.look().state is CheckState.UNKNOWN


def test_a_flood_is_cut_off_and_not_believed(any_bench: Bench) -> None:
    any_bench.script("head -c 9000000 /dev/zero | tr '\\0' '|'")
    result = any_bench.look()
    assert result.state is CheckState.UNKNOWN
    assert "printed over 1048576 bytes" in result.detail


def test_a_tool_that_hangs_is_killed_with_its_children_and_is_a_finding_until_it_answers(
    any_bench: Bench,
) -> None:
    pids = any_bench.machine.folder / "pids"
    any_bench.script(f"sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait")
    any_bench.memory.sample_s = 1.0
    assert any_bench.found() == {"accelerator-tool-hangs": Severity.DEGRADED}
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not runs(pid), "it was not killed")  # type: ignore[misc]
    any_bench.memory.sample_s = SAMPLE_S
    healthy(any_bench)
    assert any_bench.look(2).state is CheckState.OK


def test_a_tool_that_hangs_in_the_kernel_is_fatal_and_gets_no_second_one_beside_it(
    bench: Callable[..., Bench], frozen: Path
) -> None:
    one = bench("cambricon", *CAMBRICON)
    starts = one.machine.folder / "starts"
    one.memory.sample_s = 0.2
    one.script(f"echo >> {starts}; echo x > {frozen}/file")
    assert one.found() == {"accelerator-tool-hangs": Severity.DEGRADED}  # it may only be slow to end
    assert one.found() == {"accelerator-tool-hangs": Severity.FATAL}
    assert starts.read_text() == "\n"
    one.memory.sample_s = SAMPLE_S
    healthy(one)
    subprocess.run(["fsfreeze", "-u", str(frozen)], check=True)
    until(lambda: one.look().state is CheckState.OK, "it did not end")


def test_a_card_that_left_the_bus_is_fatal_until_it_is_back(any_bench: Bench) -> None:
    answers = healthy(any_bench)
    assert any_bench.look().state is CheckState.OK
    folder = (
        any_bench.machine.sysfs
        / "bus/pci/devices"
        / sorted(os.listdir(any_bench.machine.sysfs / "bus/pci/devices"))[0]
    )
    shutil.move(folder, any_bench.machine.folder / "gone")
    any_bench.prints({"*": ""})  # and so its tool has trouble
    result = any_bench.look()
    assert [(finding.code, finding.severity) for finding in result.findings] == [
        ("accelerator-gone", Severity.FATAL)
    ]
    assert result.findings[0].entity == f"{any_bench.family.noun} {folder.name}"
    shutil.move(any_bench.machine.folder / "gone", folder)
    any_bench.prints(answers)
    assert any_bench.look(2).state is CheckState.OK


def test_a_pcie_link_that_lost_lanes_is_told_until_it_has_them_again(any_bench: Bench) -> None:
    healthy(any_bench)
    devices = any_bench.machine.sysfs / "bus/pci/devices"
    width = devices / sorted(os.listdir(devices))[0] / "current_link_width"
    for text_of_file, codes in (
        ("16\n", set()),
        ("8\n", {"accelerator-pcie-width"}),
        ("", set()),
        ("16\n", set()),
    ):
        width.write_text(text_of_file)
        assert set(any_bench.found(2)) == codes, text_of_file


def test_a_hang_ends_no_finding(bench: Callable[..., Bench]) -> None:
    one = bench("ascend", *ASCEND)
    answers = healthy(one)
    one.prints({**answers, "info": answers["info"].replace("| OK            |", "| Alarm         |", 1)})
    one.look()
    one.memory.sample_s = 0.2
    one.script("exec sleep 1000")
    assert set(one.found(3)) == {"accelerator-health", "accelerator-tool-hangs"}


def test_a_card_with_a_screen_is_not_gone_because_its_tool_has_trouble(bench: Callable[..., Bench]) -> None:
    one = bench("amd")
    folder = one.machine.add_pci("0000:0b:00.0", "0x1002", "0x030000")
    assert one.look().state is CheckState.ABSENT  # a graphics chip beside the CPU is no accelerator by itself
    healthy(one)
    assert one.found() == {}
    one.script("exit 1")
    assert one.found() == {}
    shutil.rmtree(folder)
    assert one.found() == {"accelerator-gone": Severity.FATAL}


def test_what_was_seen_survives_a_restart_of_the_agent(any_bench: Bench) -> None:
    healthy(any_bench)
    any_bench.look()
    snapshot = any_bench.runner.snapshot()
    shutil.rmtree(any_bench.machine.sysfs / "bus/pci/devices")
    any_bench.prints({"*": ""})
    any_bench.runner = CheckRunner(any_bench.machine.settings, checks=[any_bench.family.row])
    any_bench.runner.restore(snapshot)
    assert set(any_bench.found().values()) == {Severity.FATAL}


def test_every_family_has_a_row_that_says_what_is_proved() -> None:
    for one in FAMILIES:
        assert "untested on hardware" in one.row.needs
        assert one.tool in one.row.needs


# ---------------------------------------------------------------- Cambricon


def test_the_tables_of_three_versions_of_cnmon_are_read() -> None:
    new, hidden, old = (
        cambricon.parse_table(text(f"cnmon-{version}.txt")) for version in ("5.10.10", "5.10.31", "1.16.0")
    )
    assert [(card.index, card.address, card.name) for card in new] == [
        ("0", "0000:1b:00.0", "MLU370-X4"),
        ("1", "0000:36:00.0", "MLU370-X4"),
    ]
    assert (new[0].temperatures[0].celsius, new[0].power_watts) == (41.0, 27.0)
    assert (new[0].memory_total_bytes, new[0].ecc_unspecified) == (23308 << 20, None)
    assert [card.ecc_unspecified for card in hidden] == [0] * 8
    assert hidden[7].memory_total_bytes is None
    assert [(card.name, card.address, card.power_watts) for card in old] == [("MLU220-M2", "", 3.7)]


def test_health_and_uuid_of_an_mlu_come_from_cnmon_info(bench: Callable[..., Bench]) -> None:
    one = bench("cambricon", *CAMBRICON)
    answers = healthy(one)
    assert one.look().state is CheckState.OK
    assert dict(one.runner.measures()[0].labels)["uuid"] == "77013006-2457-0000-0000-000000000000"
    assert one.values("temperature_celsius") == [41.0, 78.0, 63.0, 41.0, 51.0]
    one.prints({**answers, "info": answers["info"].replace(": Good", ": Bad", 1)})
    (finding,) = one.look().findings
    assert (finding.entity, finding.code, finding.severity) == (
        "MLU 0000:1b:00.0",
        "accelerator-health",
        Severity.WARNING,
    )
    one.prints(answers)
    assert one.look(2).findings == ()


def test_more_memory_errors_of_an_mlu_are_told_and_a_counter_that_starts_anew_is_not(
    bench: Callable[..., Bench],
) -> None:
    one = bench("cambricon")

    def errors(count: int) -> dict[str, Severity]:
        table = text("cnmon-5.10.31.txt").replace(
            "| 0%                  0 |", f"| 0%                  {count} |", 1
        )
        one.prints({"": table, "info": text("cnmon-info-5.10.22.txt")})
        return one.found()

    assert errors(5) == {}
    assert errors(0) == {}
    assert errors(7) == {"ecc-errors": Severity.WARNING}


# ---------------------------------------------------------------- Ascend


def test_the_tables_of_two_versions_of_npu_smi_are_read() -> None:
    new, old = (ascend.parse_info(text(f"npu-smi-{version}.txt")) for version in ("24.1.rc3.7", "22.0.0"))
    assert [(card.index, card.address) for card in new] == [
        ("0/0", "0000:9d:00.0"),
        ("0/1", "0000:9f:00.0"),
        ("1/0", "0000:99:00.0"),
        ("1/1", "0000:9b:00.0"),
    ]
    assert [card.power_watts for card in new] == [178.9, None, 186.1, None]
    assert (new[0].memory_used_bytes, new[0].memory_total_bytes) == (3412 << 20, 65536 << 20)
    assert [(card.name, card.health, card.memory_total_bytes) for card in old] == [
        ("310P3", "OK", 21534 << 20)
    ]
    assert ascend.parse_ecc(text("npu-smi-ecc.txt")) == {"0": (0, 0)}


@pytest.mark.parametrize(
    ("word", "severity"),
    [
        ("Warning", Severity.WARNING),
        ("Alarm", Severity.DEGRADED),
        ("Critical", Severity.FATAL),
        ("UNKNOWN", Severity.DEGRADED),
        ("Fine?", Severity.WARNING),
    ],
)
def test_an_npu_that_is_not_ok_is_a_finding_until_it_is(
    bench: Callable[..., Bench], word: str, severity: Severity
) -> None:
    one = bench("ascend", *ASCEND)
    answers = healthy(one)
    one.prints({**answers, "info": answers["info"].replace("| OK            |", f"| {word:<14}|", 1)})
    assert one.found() == {"accelerator-health": severity}
    one.prints(answers)
    assert one.found(2) == {}


def test_an_uncorrected_error_of_an_npu_isolates(bench: Callable[..., Bench]) -> None:
    one = bench("ascend", *ASCEND)
    answers = healthy(one)
    assert one.found() == {}
    more = answers["info -t ecc -i 0"].replace(
        "HBM Double Bit Error Count               : 0", "HBM Double Bit Error Count : 2"
    )
    one.prints({**answers, "info -t ecc -i 0": more})
    (finding,) = one.look().findings
    assert (finding.code, finding.severity, finding.event) == ("ecc-uncorrected", Severity.FATAL, True)
    assert "2 more since the last sample" in finding.evidence[0]
    assert one.look(3).findings[0].count == 1  # the counter stands still: no new fault


def test_a_chip_that_its_tool_listed_before_and_no_longer_does_is_fatal(bench: Callable[..., Bench]) -> None:
    one = bench("ascend", *ASCEND)
    answers = healthy(one)
    one.look()
    lines = answers["info"].splitlines(keepends=True)
    one.prints({**answers, "info": "".join(lines[:12] + lines[15:])})
    assert one.found() == {"accelerator-not-listed": Severity.WARNING}  # it may be in a reset
    assert one.found() == {"accelerator-not-listed": Severity.FATAL}
    one.prints(answers)
    assert one.found(2) == {}


# ---------------------------------------------------------------- AMD


def test_both_layouts_of_amd_smi_are_read() -> None:
    for suffix, names in (("", "Navi 23 [Radeon RX 6600/6600 XT"), ("-7", "AMD Instinct MI210")):
        static = amd.gpus_of(text(f"amd-smi-static{suffix}.json").encode(), "static")
        (card,) = amd.parse_amd_smi(text(f"amd-smi-metric{suffix}.json").encode(), static, {})
        assert card.name == names
        assert (card.ecc_uncorrected, len(card.temperatures)) == (0, 3)
        assert all(reading.limit_celsius for reading in card.temperatures)
    assert card.memory_total_bytes == 30576 << 20


def test_a_card_as_hot_as_its_own_limit_is_degraded_until_it_is_clearly_cooler(
    bench: Callable[..., Bench],
) -> None:
    one = bench("amd", *AMD)
    answers = healthy(one)

    def hotspot(celsius: int) -> dict[str, Severity]:
        metric = answers["metric --json"].replace('"value": 37', f'"value": {celsius}')
        one.prints({**answers, "metric --json": metric})
        return one.found(3)

    assert hotspot(109) == {}
    assert hotspot(110) == {"accelerator-temperature-hotspot": Severity.DEGRADED}
    assert hotspot(107) == {"accelerator-temperature-hotspot": Severity.DEGRADED}
    assert hotspot(104) == {}


def test_without_a_limit_of_its_own_the_one_of_the_settings_is_a_warning(bench: Callable[..., Bench]) -> None:
    one = bench("amd", *AMD)
    answers = healthy(one)
    del answers["static --json"]
    one.prints({**answers, "metric --json": answers["metric --json"].replace('"value": 32', '"value": 96')})
    (finding,) = one.look().findings
    assert (finding.code, finding.severity) == ("accelerator-temperature-mem", Severity.WARNING)
    assert "limit 95 °C (of the settings" in finding.evidence[0]


def test_an_uncorrected_error_of_an_amd_card_isolates_and_a_reloaded_driver_does_not(
    bench: Callable[..., Bench],
) -> None:
    one = bench("amd", *AMD)
    answers = healthy(one)

    def errors(count: int) -> dict[str, Severity]:
        metric = answers["metric --json"].replace(
            '"total_uncorrectable_count": 0', f'"total_uncorrectable_count": {count}'
        )
        one.prints({**answers, "metric --json": metric})
        return one.found()

    assert errors(3) == {}  # before the agent started
    assert errors(0) == {}
    assert errors(1) == {"ecc-uncorrected": Severity.FATAL}


def test_a_link_between_amd_cards_that_was_up_and_is_down_is_told_until_it_is_back(
    bench: Callable[..., Bench],
) -> None:
    one = bench("amd")
    answers = healthy(one)
    down = text("amd-smi-topology-2.json")
    up = down.replace("DISABLED", "ENABLED")
    one.prints({**answers, "topology --json": down})
    assert one.found() == {}  # it never was: these cards have none
    one.prints({**answers, "topology --json": up})
    assert one.found() == {}
    one.prints({**answers, "topology --json": down})
    assert one.found() == {"accelerator-link-down": Severity.DEGRADED}
    one.prints({**answers, "topology --json": up})
    assert one.found(2) == {}


def test_a_card_that_tells_nothing_is_not_called_healthy(bench: Callable[..., Bench]) -> None:
    one = bench("amd", *AMD)
    answers = healthy(one)
    one.prints({**answers, "metric --json": '[{"gpu": 0, "temperature": {"edge": "N/A"}, "mem_usage": {}}]'})
    assert one.found() == {"accelerator-silent": Severity.WARNING}


def test_where_only_rocm_smi_is_installed_it_is_asked(bench: Callable[..., Bench]) -> None:
    one = bench("amd", "0000:83:00.0", "0000:a3:00.0")
    one.prints({"-a --showmeminfo vram --json": text("rocm-smi-mi100.json")}, tool="rocm-smi")
    assert one.look().state is CheckState.OK
    assert one.values("memory_total_bytes") == [34342961152.0] * 2
    with pytest.raises(NotUnderstood):
        amd.parse_rocm_smi(b"{}")


def test_a_partition_that_changes_the_functions_of_a_card_loses_no_card(bench: Callable[..., Bench]) -> None:
    one = bench("amd", *AMD)
    answers = healthy(one)
    part = answers["topology --json"].replace("0000:0b:00.0", "0000:0b:00.3")
    one.prints({**answers, "topology --json": part})
    assert one.found() == {}
    one.prints(answers)
    assert one.found() == {}


def test_a_tool_that_sees_no_card_for_want_of_devices_is_unknown_and_finds_nothing(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    cards = bench("amd", "0000:0c:00.0")
    cards.prints({"*": "[]"})
    settings = structs.replace(cards.machine.settings, procfs=str(tmp_path / "proc"))
    cards.runner = CheckRunner(settings, checks=[cards.family.row])
    result = cards.look(3)
    assert (result.state, result.findings) == (CheckState.UNKNOWN, ())
    assert "lists none of the 1 GPU" in result.detail
    assert "a privileged container" in result.detail
