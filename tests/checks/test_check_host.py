"""The host itself: expected memory and CPUs, memory errors, fragmentation, governor, clocks, tracked connections."""

import asyncio
import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.findings import FindingBook
from sentinel.checks.host import clocks, edac, fragmentation, governor, inventory
from sentinel.checks.network import conntrack
from sentinel.checks.runner import CheckRunner
from sentinel.core.health import Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings, Shape
from tests.gate.rights import needs_root


class Tree:
    """A procfs and a sysfs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = Kept()
        self.mono_s = 1000.0
        self.shape = Shape()

    def set(self, path: str, text: str | int) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    @property
    def look(self) -> Look:
        settings = Settings(
            procfs=str(self.folder / "proc"),
            sysfs=str(self.folder / "sys"),
            state_dir=str(self.folder),
            shape=self.shape,
        )
        return Look(settings, (), Now(self.mono_s, 1_700_000_000.0), "boot", self.kept)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def told(found: list[Finding]) -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in found]


# ---------------------------------------------------------------- inventory

EXPECTED = Shape(name="h100", source="manifest", memory_gib=1000.0, cpus=128)


def with_memory(tree: Tree, gib: float, cpus: str) -> list[Finding]:
    tree.set("proc/meminfo", f"MemTotal:       {int(gib * (1 << 20))} kB")
    tree.set("sys/devices/system/cpu/online", cpus)
    return inventory.check(tree.look)


def test_a_node_that_lost_a_memory_module_is_isolated_until_it_is_back(tree: Tree) -> None:
    tree.shape = EXPECTED
    assert with_memory(tree, 990, "0-127") == []  # the kernel's own share differs a little
    (finding,) = with_memory(tree, 937, "0-127")  # one of 16 modules
    assert (finding.code, finding.severity) == ("memory-missing", Severity.FATAL)
    assert "937.0 GiB" in finding.evidence[0]
    assert "expected 1000: shape h100" in finding.evidence[0]
    assert with_memory(tree, 1000, "0-127") == []


def test_a_node_that_lost_cpus_is_isolated_until_they_are_back(tree: Tree) -> None:
    tree.shape = EXPECTED
    assert told(with_memory(tree, 1000, "0-62,64-127")) == [("cpus-missing", Severity.FATAL)]
    assert with_memory(tree, 1000, "0-127") == []
    assert with_memory(tree, 2000, "0-255") == []  # more is no fault


def test_what_nobody_confirmed_is_only_told(tree: Tree) -> None:
    tree.shape = msgspec.structs.replace(EXPECTED, source="learnt")
    assert told(with_memory(tree, 500, "0-63")) == [
        ("memory-missing", Severity.WARNING),
        ("cpus-missing", Severity.WARNING),
    ]


def test_an_inventory_that_nothing_is_expected_of_says_so(tree: Tree) -> None:
    assert with_memory(tree, 8, "0-1") == []
    assert tree.kept.detail == "8.0 GiB, 2 CPUs; expected memoryGib: not set; expected cpus: not set"


@pytest.mark.parametrize(("ranges", "count"), [("0", 1), ("0-127", 128), ("0-3,8-11,15\n", 9), ("", 0)])
def test_cpu_lists_are_counted(ranges: str, count: int) -> None:
    assert inventory.count_cpus(ranges) == count


def test_an_unreadable_inventory_is_unknown(tree: Tree) -> None:
    with pytest.raises(Unknown):
        inventory.check(tree.look)
    with pytest.raises(Unknown):
        with_memory(tree, 8, "all")


# ---------------------------------------------------------------- EDAC

MC = "sys/devices/system/edac/mc/mc0"


def modules(tree: Tree, corrected: int, uncorrected: int, unplaced: int = 0) -> list[Finding]:
    tree.set(f"{MC}/ce_count", corrected + unplaced)
    tree.set(f"{MC}/ue_count", uncorrected)
    for name, counts in (("dimm0", (0, 0)), ("dimm5", (corrected, uncorrected))):
        tree.set(f"{MC}/{name}/dimm_label", f"CPU_SrcID#0_{name}")
        tree.set(f"{MC}/{name}/dimm_ce_count", counts[0])
        tree.set(f"{MC}/{name}/dimm_ue_count", counts[1])
    return edac.check(tree.look)


def test_an_uncorrected_error_of_the_host_memory_isolates_until_a_new_boot_or_a_person(tree: Tree) -> None:
    book = FindingBook("boot")
    now = Now(tree.mono_s, 0.0)
    assert modules(tree, 0, 0) == []
    (finding,) = modules(tree, 0, 1)
    assert (finding.code, finding.severity) == ("memory-uncorrected", Severity.FATAL)
    assert finding.entity == "memory mc0 dimm5 (CPU_SrcID#0_dimm5)"
    assert finding.event  # it does not clear because no second one came
    book.fold("edac", [msgspec.structs.replace(finding, seen_mono_s=now.mono_s)], now)
    assert modules(tree, 0, 1) == []
    for _ in range(3):
        book.fold("edac", [], now)
    assert len(book.active()) == 1
    assert book.clear(finding.key)
    assert book.active() == ()
    (again,) = modules(tree, 0, 3)
    assert again.count == 2


def test_corrected_errors_warn_by_their_rate_and_clear_after_a_quiet_day(tree: Tree) -> None:
    assert modules(tree, 4, 0) == []
    tree.mono_s += 3600
    assert modules(tree, 10, 0) == []
    tree.mono_s += 3600
    assert told(modules(tree, 15, 0)) == [("memory-corrected", Severity.WARNING)]
    tree.mono_s += 22 * 3600 + 1  # the first four are older than a day
    assert told(modules(tree, 15, 0)) == [("memory-corrected", Severity.WARNING)]
    tree.mono_s += 3600
    assert modules(tree, 15, 0) == []


def test_a_flood_of_corrected_errors_keeps_one_point_for_each_hour(tree: Tree) -> None:
    for minute in range(1, 181):
        tree.mono_s += 60
        found = modules(tree, minute, 0)
    assert "180 in the last 24 h" in found[0].evidence[0]
    kept = tree.kept.saved["mc0 dimm5 (CPU_SrcID#0_dimm5)"]["points"]
    assert len(kept) == 3
    assert sum(count for _, count in kept) == 180


def test_a_few_corrected_errors_each_day_are_normal(tree: Tree) -> None:
    for day in range(1, 30):
        tree.mono_s += 86_400
        assert modules(tree, 5 * day, 0) == []


def test_counters_that_are_reset_are_no_fault(tree: Tree) -> None:
    modules(tree, 9, 0)
    assert modules(tree, 0, 0) == []
    assert modules(tree, 1, 0) == []


def test_errors_that_no_module_can_be_blamed_for_are_the_controllers(tree: Tree) -> None:
    (finding,) = modules(tree, 0, 0, unplaced=12)
    assert finding.entity == "memory mc0"


def test_what_was_counted_survives_a_restart_of_the_agent(tree: Tree) -> None:
    modules(tree, 0, 1)
    tree.kept = Kept(saved=msgspec.json.decode(msgspec.json.encode(tree.kept.saved)))
    assert modules(tree, 0, 1) == []


def test_files_that_a_driver_does_not_have_or_answers_with_an_error_do_not_break_the_rest(tree: Tree) -> None:
    modules(tree, 0, 0)
    tree.set(f"{MC}/ce_count", "")
    (tree.folder / MC / "dimm0/dimm_ce_count").unlink()
    tree.set(f"{MC}/dimm5/dimm_ue_count", 1)
    assert ("memory-uncorrected", Severity.FATAL) in told(edac.check(tree.look))


def test_a_label_of_the_firmware_may_be_any_bytes(tree: Tree) -> None:
    modules(tree, 0, 0)
    (tree.folder / MC / "dimm5/dimm_label").write_bytes(b"DIMM\xb05\n")
    tree.set(f"{MC}/dimm5/dimm_ue_count", 1)
    assert ("memory-uncorrected", Severity.FATAL) in told(edac.check(tree.look))


def test_a_machine_without_edac_is_absent(tree: Tree) -> None:
    with pytest.raises(Absent):
        edac.check(tree.look)


# ---------------------------------------------------------------- fragmentation

BUDDY = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal    120   1138    594      3    343    302    198    512    320    163    160
Node 1, zone   Normal  90000  12000   4000    900     20      4      1      0    {}"""


def test_memory_in_small_pieces_warns_per_numa_node_until_it_is_compacted(tree: Tree) -> None:
    tree.set("proc/buddyinfo", BUDDY.format("  9      0      0"))
    (finding,) = fragmentation.check(tree.look)
    assert (finding.severity, finding.entity) == (Severity.WARNING, "memory of NUMA node 1")
    tree.set("proc/buddyinfo", BUDDY.format("  4      3      3"))
    assert fragmentation.check(tree.look) == []


def test_nonsense_instead_of_buddyinfo_is_unknown(tree: Tree) -> None:
    tree.set("proc/buddyinfo", "nothing of the kind")
    with pytest.raises(Unknown):
        fragmentation.check(tree.look)


# ---------------------------------------------------------------- governor


def test_a_governor_that_saves_power_warns_until_it_is_set_to_performance(tree: Tree) -> None:
    for cpu in range(4):
        tree.set(f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor", "performance")
    assert governor.check(tree.look) == []
    tree.set("sys/devices/system/cpu/cpufreq/policy2/scaling_governor", "powersave")
    (finding,) = governor.check(tree.look)
    assert finding.severity is Severity.WARNING
    assert finding.evidence == ("powersave on 1 of 4 frequency domains",)
    tree.set("sys/devices/system/cpu/cpufreq/policy2/scaling_governor", "performance")
    assert governor.check(tree.look) == []


def test_governors_that_cannot_be_read_are_unknown_and_do_not_hide_the_others(tree: Tree) -> None:
    unreadable = tree.folder / "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
    unreadable.mkdir(parents=True)  # reading it is an error, as EINVAL of a CPU that is offline
    with pytest.raises(Unknown, match="policy0"):
        governor.check(tree.look)
    tree.set("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave")
    assert told(governor.check(tree.look)) == [("cpu-governor", Severity.WARNING)]


def test_a_machine_without_governors_is_absent(tree: Tree) -> None:
    with pytest.raises(Absent):
        governor.check(tree.look)


# ---------------------------------------------------------------- clocks

CLOCK = "sys/devices/system/clocksource/clocksource0"
ADJ_MAXERROR, ADJ_STATUS = 0x0004, 0x0010


def adjust(status: int, error_s: float = 0.001) -> None:
    """Tell the kernel what a time service would. Root only."""
    modes = ADJ_STATUS | ADJ_MAXERROR
    timex = clocks._Timex(modes=modes, maxerror=int(error_s * 1e6), status=status)
    assert ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) >= 0, ctypes.get_errno()


@pytest.fixture
@needs_root
def clock_status() -> Iterator[None]:
    before = clocks.kernel_clock()
    yield
    adjust(*before)


@pytest.mark.usefixtures("clock_status")
def test_a_clock_that_nothing_keeps_right_warns_until_something_does(tree: Tree) -> None:
    tree.set(f"{CLOCK}/current_clocksource", "tsc")
    tree.set(f"{CLOCK}/available_clocksource", "tsc hpet acpi_pm")
    adjust(clocks.STA_UNSYNC)
    assert told(clocks.check(tree.look)) == [("clock-unsynchronised", Severity.WARNING)]
    adjust(0)
    assert clocks.check(tree.look) == []


@pytest.mark.usefixtures("clock_status")
@pytest.mark.parametrize("good", sorted(clocks.GOOD_SOURCES))
def test_a_slow_clock_source_warns_until_it_is_the_right_one(tree: Tree, good: str) -> None:
    adjust(0)
    tree.set(f"{CLOCK}/current_clocksource", "hpet")
    tree.set(f"{CLOCK}/available_clocksource", "hpet acpi_pm")
    (finding,) = clocks.check(tree.look)
    assert (finding.code, finding.severity) == ("clocksource", Severity.WARNING)
    tree.set(f"{CLOCK}/current_clocksource", good)
    assert clocks.check(tree.look) == []


def test_a_clock_source_that_cannot_be_read_is_unknown(tree: Tree) -> None:
    with pytest.raises(Unknown, match="clocksource"):
        clocks.check(tree.look)


# ---------------------------------------------------------------- tracked connections


@pytest.mark.parametrize(("used", "found"), [(0, False), (900, False), (901, True), (1000, True)])
def test_a_full_table_of_connections_warns_until_it_empties(tree: Tree, used: int, found: bool) -> None:
    tree.set("proc/sys/net/netfilter/nf_conntrack_max", 1000)
    tree.set("proc/sys/net/netfilter/nf_conntrack_count", used)
    assert told(conntrack.check(tree.look)) == ([("conntrack-full", Severity.WARNING)] if found else [])
    tree.set("proc/sys/net/netfilter/nf_conntrack_count", 10)
    assert conntrack.check(tree.look) == []


def test_a_machine_that_tracks_no_connections_is_absent(tree: Tree) -> None:
    with pytest.raises(Absent):
        conntrack.check(tree.look)


# ---------------------------------------------------------------- as the agent runs them


def looks(runner: CheckRunner, name: str) -> list[tuple[str, Severity]]:
    (result,) = asyncio.run(runner.check_now([name], max_age_s=-1.0))
    return told(list(result.findings))


def test_a_finding_stays_for_one_clean_look_and_then_ends(tree: Tree) -> None:
    tree.set("proc/sys/net/netfilter/nf_conntrack_max", 1000)
    tree.set("proc/sys/net/netfilter/nf_conntrack_count", 950)
    runner = CheckRunner(tree.look.settings)
    found = [("conntrack-full", Severity.WARNING)]
    assert looks(runner, "conntrack") == found
    tree.set("proc/sys/net/netfilter/nf_conntrack_count", 10)
    assert looks(runner, "conntrack") == found  # it may flap around its limit
    assert looks(runner, "conntrack") == []


def test_a_lost_memory_is_still_known_and_not_counted_twice_after_a_restart_of_the_agent(tree: Tree) -> None:
    modules(tree, 0, 1)
    first = CheckRunner(tree.look.settings)
    found = [("memory-uncorrected", Severity.FATAL)]
    assert looks(first, "edac") == found
    second = CheckRunner(tree.look.settings)
    second.restore(first.snapshot())
    assert looks(second, "edac") == found
    (finding,) = second.book.active("edac")
    assert finding.count == 1


def test_this_machines_own_files_are_read() -> None:
    look = Look(Settings(), (), Now(1.0, 1.0), "boot", Kept())
    for module in (inventory, fragmentation, clocks):
        module.check(look)
    for module in (conntrack, edac, governor):
        with suppress(Absent):  # a machine may have them or not
            module.check(look)
