"""InfiniBand and RoCE on a sysfs tree: every fault is made, and what ends it is done."""

import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from sentinel.checks.base import Kept
from sentinel.checks.network import infiniband
from sentinel.checks.sysfs import StuckReads
from sentinel.metrics.measures import rows
from sentinel.settings import Network, Settings, Shape
from tests.checks.sysfs_tree import Sampler, Tree, link, write

A, B = "0000:18:00.0", "0000:2a:00.0"
PORT = "mlx5_0/1"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def sampler(tree: Tree, shape: Shape | None = None, network: Network | None = None) -> Sampler:
    settings = Settings(
        sysfs=str(tree.sysfs),
        procfs=str(tree.procfs),
        shape=shape or Shape(),
        network=network or Network(),
    )
    return Sampler(infiniband.check, settings, "infiniband")


def expecting(ports: int, rate_gbps: float | None = None) -> Shape:
    return Shape(name="h100", source="manifest", ib_ports=ports, ib_rate_gbps=rate_gbps)


# ---------------------------------------------------------------- what is there, and what is expected


def test_a_machine_without_cards_is_absent_and_says_that_nothing_was_expected(tree: Tree) -> None:
    look = sampler(tree)
    assert look.after(0) == []
    assert look.said == "absent: no InfiniBand or RoCE card; expected ibPorts: not set"


def test_no_card_where_some_are_expected_is_a_failure_and_no_absence(tree: Tree) -> None:
    look = sampler(tree, expecting(8))
    assert look.after(0) == [("InfiniBand", "ib-ports", "degraded")]
    look.after(20)
    assert look.after(20) == [("InfiniBand", "ib-ports", "fatal")]
    assert "no such card is there" in look.sample()[0].evidence[0]
    assert "expected 8: shape h100" in look.sample()[0].evidence[0]


def test_no_card_where_none_is_expected_is_absent(tree: Tree) -> None:
    look = sampler(tree, expecting(0))
    assert look.after(0) == []
    assert look.said.startswith("absent")
    assert "expected 0: shape h100" in look.said


def test_healthy_ports_without_an_expectation_say_that_it_is_not_set(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    assert look.after(0) == []
    assert "expected ibPorts: not set" in look.said


@pytest.mark.parametrize("layer", ["InfiniBand", "Ethernet"])
def test_too_few_ports_at_the_expected_rate_are_degraded_then_fatal_until_they_come(
    tree: Tree, layer: str
) -> None:
    tree.ib("mlx5_0", A, layer=layer)
    tree.ib("mlx5_1", B, layer=layer, rate="200 Gb/sec (4X HDR)")
    look = sampler(tree, expecting(2, 400.0))
    assert look.after(0) == [("InfiniBand", "ib-ports", "degraded")]
    assert look.for_long(240) == [("InfiniBand", "ib-ports", "fatal")]
    assert "mlx5_1/1 ACTIVE at 200 Gb/s" in look.sample()[0].evidence[0]
    write(tree.sysfs / "class/infiniband/mlx5_1/ports/1/rate", "400 Gb/sec (4X NDR)")
    assert look.for_long(40) == []
    assert look.standing == []


def test_what_was_learnt_and_not_confirmed_only_warns(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree, msgspec.structs.replace(expecting(2), source="learnt"))
    assert look.for_long(300) == [("InfiniBand", "ib-ports", "warning")]


def test_where_only_the_rate_is_expected_a_slow_port_is_degraded(tree: Tree) -> None:
    tree.ib("mlx5_0", A, rate="200 Gb/sec (4X HDR)")
    look = sampler(tree, Shape(source="manifest", ib_rate_gbps=400.0))
    assert look.after(0) == [(PORT, "port-rate", "degraded")]
    write(tree.sysfs / "class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)")
    assert look.after(20) == []


# ---------------------------------------------------------------- down


@pytest.mark.parametrize("layer", ["InfiniBand", "Ethernet"])
def test_a_port_that_was_up_and_stays_down_four_minutes_isolates_until_it_is_up(
    tree: Tree, layer: str
) -> None:
    tree.ib("mlx5_0", A, layer=layer)
    look = sampler(tree)
    assert look.after(0) == []
    tree.down(PORT)
    assert look.after(20) == [(PORT, "port-down", "warning")]
    assert look.for_long(220) == [(PORT, "port-down", "warning")]
    assert look.after(20) == [(PORT, "port-down", "fatal")]
    tree.up(PORT)
    assert look.for_long(40) == []
    assert look.standing == []


def test_a_port_that_was_never_up_is_said_but_no_fault(tree: Tree) -> None:
    tree.ib("mlx5_0", A, ports=2)
    tree.down("mlx5_0/2")
    look = sampler(tree)
    assert look.for_long(600) == []
    assert "down since the boot, which may be meant so: mlx5_0/2" in look.said


def test_a_port_down_is_remembered_over_a_restart_of_the_agent(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    tree.down(PORT)
    look.after(20)
    look.restart()
    assert look.after(240) == [(PORT, "port-down", "fatal")]


def test_a_port_without_a_subnet_manager_moves_the_job_but_does_not_isolate(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    tree.port(PORT, "2: INIT", "5: LinkUp")
    assert look.after(20) == [(PORT, "port-inactive", "warning")]
    assert look.for_long(260) == [(PORT, "port-inactive", "degraded")]
    tree.up(PORT)
    assert look.after(20) == []


def test_a_port_that_comes_up_slower_is_degraded_until_it_is_as_fast_as_before(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    rate = tree.sysfs / "class/infiniband/mlx5_0/ports/1/rate"
    write(rate, "100 Gb/sec (1X NDR)")
    assert look.after(20) == [(PORT, "port-rate", "degraded")]
    write(rate, "400 Gb/sec (4X NDR)")
    assert look.after(20) == []


# ---------------------------------------------------------------- flaps


def test_flaps_shorter_than_the_interval_are_degraded_from_the_third_and_forgotten_after_12_hours(
    tree: Tree,
) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    for downs, expected in ((1, []), (2, []), (3, [(PORT, "link-flaps", "degraded")])):
        tree.counter(PORT, "link_downed", downs)  # down and up again between two samples
        assert look.after(3600) == expected
    assert look.after(3600) == [(PORT, "link-flaps", "degraded")]
    assert look.for_long(12 * 3600, 1800) == []
    assert look.standing == []


def test_flaps_that_only_the_samples_see_count_too(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    for _ in range(3):
        tree.down(PORT)
        look.after(30)
        tree.up(PORT)
        found = look.after(30)
    assert found == [(PORT, "link-flaps", "degraded")]


def test_the_flaps_of_a_roce_port_are_counted_by_its_network_interface(tree: Tree) -> None:
    tree.ib("mlx5_0", A, layer="Ethernet")
    interface = tree.sysfs / "class/infiniband/mlx5_0/device/net/eth2"
    write(interface / "dev_port", 0)
    write(interface / "carrier_down_count", 7)
    link(tree.sysfs / "class/net/eth2", interface)
    look = sampler(tree)
    assert look.after(0) == []
    write(interface / "carrier_down_count", 10)
    assert look.after(20) == [(PORT, "link-flaps", "degraded")]
    assert look.for_long(12 * 3600 + 20, 3600) == []


def test_a_single_failure_of_the_link_is_no_finding(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    for counter in ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors"):
        tree.counter(PORT, counter, 1)
    assert look.after(20) == []


def test_flaps_are_remembered_over_a_restart_of_the_agent_and_what_it_missed_counts(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    tree.counter(PORT, "link_downed", 2)
    look.after(20)
    look.restart()
    tree.counter(PORT, "link_downed", 3)
    assert look.after(60) == [(PORT, "link-flaps", "degraded")]


def test_nothing_is_made_of_links_in_the_first_ten_minutes_after_a_boot(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.mono_s = 30.0
    look.after(0)
    tree.down(PORT)
    tree.counter(PORT, "link_downed", 9)
    assert look.for_long(540) == []
    assert look.for_long(40) == [(PORT, "port-down", "fatal")]  # it is down still, and was up
    tree.up(PORT)
    assert look.after(20) == []  # the nine flaps were those of a boot


def test_a_reload_of_the_driver_makes_no_findings_for_ten_minutes(tree: Tree) -> None:
    folder = tree.ib("mlx5_0", A)
    look = sampler(tree)
    tree.counter(PORT, "link_downed", 40)
    tree.counter(PORT, "symbol_error", 60_000)
    look.after(0)
    reload(folder)
    tree.down(PORT)
    assert look.after(20) == []
    tree.counter(PORT, "link_downed", 5)
    assert look.for_long(560) == []
    tree.up(PORT)
    assert look.for_long(60) == []
    tree.counter(PORT, "link_downed", 8)
    assert look.after(20) == [(PORT, "link-flaps", "degraded")]


def reload(folder: Path) -> None:
    """The driver makes the device's folder anew: same names, another inode."""
    folder.rename(folder.with_name("old"))
    shutil.copytree(folder.with_name("old"), folder, symlinks=True)
    shutil.rmtree(folder.with_name("old"))


def test_a_counter_that_wraps_or_is_reset_is_no_fault(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    tree.counter(PORT, "port_rcv_errors", 2**32 - 10)
    tree.counter(PORT, "link_downed", 200)
    look = sampler(tree)
    look.after(0)
    tree.counter(PORT, "port_rcv_errors", 5)
    tree.counter(PORT, "link_downed", 0)
    assert look.after(20) == []
    tree.counter(PORT, "port_rcv_errors", 605)
    assert look.after(20) == []
    tree.counter(PORT, "port_rcv_errors", 700)
    assert look.after(20) == [(PORT, "port_rcv_errors", "warning")]


def test_a_counter_of_flaps_at_its_end_is_said(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    tree.counter(PORT, "link_downed", 255)
    look = sampler(tree)
    assert look.after(0) == [(PORT, "link-downed-full", "info")]
    tree.counter(PORT, "link_downed", 0)
    assert look.after(20) == []


# ---------------------------------------------------------------- error rates


@pytest.mark.parametrize(
    ("counter", "within", "beyond", "seconds"),
    [
        ("symbol_error", 120, 121, 3600),
        ("link_error_recovery", 5, 6, 60),
        ("port_rcv_errors", 600, 601, 60),
        ("local_ack_timeout_err", 60, 61, 60),
        ("port_xmit_discards", 6000, 6001, 60),
        ("roce_slow_restart", 600, 601, 60),
        ("out_of_sequence", 6000, 6001, 60),
    ],
)
def test_errors_at_a_high_rate_warn_and_clear_when_they_stop(
    tree: Tree, counter: str, within: int, beyond: int, seconds: int
) -> None:
    tree.ib("mlx5_0", A, layer="Ethernet" if counter.startswith("roce") else "InfiniBand")
    tree.counter(PORT, counter, 1000)  # what was before the first look is no news
    look = sampler(tree)
    assert look.after(0) == []
    tree.counter(PORT, counter, 1000 + within)
    assert look.after(20) == []
    assert look.after(seconds) == []
    tree.counter(PORT, counter, 1000 + within + beyond)
    assert look.after(20) == [(PORT, counter, "warning")]
    assert look.after(seconds) == []
    look.after(20)
    assert look.standing == []


def test_errors_of_a_long_silence_of_the_agent_are_spread_over_it(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    look.restart()
    tree.counter(PORT, "port_rcv_errors", 5000)  # 0.7/s over two hours
    assert look.after(7200) == []
    tree.counter(PORT, "port_rcv_errors", 5000 + 90_000)
    assert look.after(7200) == [(PORT, "port_rcv_errors", "warning")]


def test_a_limit_of_the_settings_replaces_the_shipped_one(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree, network=Network(errors_per_minute={"port_rcv_errors": 3.0}))
    look.after(0)
    tree.counter(PORT, "port_rcv_errors", 4)
    assert look.after(20) == [(PORT, "port_rcv_errors", "warning")]


def test_what_is_kept_stays_small_however_long_errors_go_on(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    sizes = []
    for sample in range(120):
        for counter in ("symbol_error", "link_downed", "port_rcv_errors"):
            tree.counter(PORT, counter, sample * 10)
        look.after(600)
        sizes.append(len(msgspec.json.encode(look.kept.saved)))
    assert max(sizes) < 1200  # bytes


# ---------------------------------------------------------------- files that do not tell


def test_counters_that_cannot_be_read_break_nothing(tree: Tree) -> None:
    folder = tree.ib("mlx5_0", A)
    tree.ib("mlx5_1", B)
    counters = folder / "ports/1/counters"
    (counters / "symbol_error").write_text("")
    (counters / "port_rcv_errors").unlink()
    (counters / "port_rcv_errors").mkdir()  # EISDIR: an error of read(), as EINVAL is
    write(counters / "port_xmit_discards", "N/A (no PMA)")
    look = sampler(tree)
    assert look.after(0) == []
    tree.counter(PORT, "link_downed", 3)
    assert look.after(20) == [(PORT, "link-flaps", "degraded")]


def test_a_state_that_cannot_be_read_is_unknown_and_ends_no_finding(tree: Tree) -> None:
    folder = tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    tree.down(PORT)
    look.for_long(260)
    (folder / "ports/1/state").write_text("")
    look.for_long(100)
    assert look.said == "unknown: mlx5_0/1: its state cannot be read"
    assert (PORT, "port-down", "fatal") in look.standing


def test_a_port_whose_state_cannot_be_read_is_not_taken_to_be_down(tree: Tree) -> None:
    folder = tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    (folder / "ports/1/state").write_text("")
    assert look.for_long(300) == []
    tree.up(PORT)
    assert look.after(20) == []


def test_a_card_that_blocks_hides_no_other_card(tree: Tree) -> None:
    folder = tree.ib("mlx5_0", A)
    tree.ib("mlx5_1", B)
    look = sampler(tree)
    look.after(0)
    tree.counter(PORT, "link_downed", 2)
    look.after(20)
    blocked = folder / "ports/1/counters/symbol_error"
    blocked.unlink()
    os.mkfifo(blocked)
    tree.down("mlx5_1/1")
    threads = threading.active_count()
    try:
        assert look.after(20) == [("mlx5_1/1", "port-down", "warning")]
        assert look.said == "unknown: mlx5_0 does not answer"
        assert look.for_long(300, 100) == [("mlx5_1/1", "port-down", "fatal")]
        assert threading.active_count() == threads + 1  # the one that hangs, not one for every sample
    finally:
        os.close(os.open(blocked, os.O_RDWR | os.O_NONBLOCK))
    blocked.unlink()
    write(blocked, 0)
    deadline = threading.Event()
    while any(thread.is_alive() for thread in look.kept.own(StuckReads).threads.values()):
        assert not deadline.wait(0.01)
    tree.up("mlx5_1/1")
    tree.counter(PORT, "link_downed", 3)
    assert look.after(20) == [(PORT, "link-flaps", "degraded")]  # it was not forgotten meanwhile
    assert "does not answer" not in look.said


# ---------------------------------------------------------------- what vanished


@pytest.mark.parametrize("from_bus", [True, False])
def test_a_card_that_vanished_isolates_after_three_samples_until_it_is_back(
    tree: Tree, from_bus: bool
) -> None:
    tree.ib("mlx5_0", A)
    tree.ib("mlx5_1", B)
    look = sampler(tree)
    look.after(0)
    tree.unplug("mlx5_1", B, from_bus=from_bus)
    assert look.after(20) == []
    assert look.after(20) == []
    assert look.after(20) == [("mlx5_1", "nic-vanished", "fatal")]
    evidence = look.sample()[0].evidence[0]
    assert ("is gone" if from_bus else "has its driver mlx5_core but no RDMA device") in evidence
    look.restart()
    assert look.after(20) == [("mlx5_1", "nic-vanished", "fatal")]
    (tree.sysfs / "bus/pci/devices" / B).unlink(missing_ok=True)
    tree.ib("mlx5_1", B)
    assert look.after(20) == []
    assert look.after(20) == []
    assert look.standing == []


def test_the_last_card_that_vanished_is_a_failure_and_no_absence(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    tree.unplug("mlx5_0", A)
    assert look.for_long(60) == [("mlx5_0", "nic-vanished", "fatal")]


def test_a_port_that_vanished_isolates_until_it_is_back(tree: Tree) -> None:
    folder = tree.ib("mlx5_0", A, ports=2)
    look = sampler(tree)
    look.after(0)
    (folder / "ports/2").rename(folder / "away")
    assert look.after(20) == []
    assert look.after(20) == []
    assert look.after(20) == [("mlx5_0/2", "port-vanished", "fatal")]
    (folder / "away").rename(folder / "ports/2")
    assert look.after(20) == []


def test_a_card_under_a_new_name_has_not_vanished(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.after(0)
    old = tree.sysfs / "class/infiniband/mlx5_0"
    old.rename(old.with_name("ibp24s0"))
    assert look.for_long(100) == []


def test_a_card_that_was_given_away_has_not_vanished(tree: Tree) -> None:
    """To a virtual machine, or to a pod's network namespace where RDMA devices belong to one alone."""
    tree.ib("mlx5_0", A)
    tree.ib("mlx5_1", B)
    look = sampler(tree)
    look.after(0)
    tree.unplug("mlx5_1", B, from_bus=False)
    tree.bind(B, "vfio-pci")
    assert look.for_long(100) == []
    write(tree.sysfs / "module/ib_core/parameters/netns_mode", "N")
    (tree.sysfs / "class/infiniband/mlx5_0").unlink()
    assert look.for_long(100) == []


def test_ports_that_were_bonded_into_one_device_have_not_vanished(tree: Tree) -> None:
    tree.ib("mlx5_0", A, layer="Ethernet")
    tree.ib("mlx5_1", A.replace(".0", ".1"), layer="Ethernet")
    look = sampler(tree)
    look.after(0)
    (tree.sysfs / "class/infiniband/mlx5_1").unlink()
    old = tree.sysfs / "class/infiniband/mlx5_0"
    old.rename(old.with_name("mlx5_bond_0"))
    assert look.for_long(100) == []


def test_virtual_functions_come_and_go_unnoticed(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    tree.ib("mlx5_9", B)
    (tree.sysfs / "bus/pci/devices" / B / "physfn").symlink_to(tree.sysfs / "bus/pci/devices" / A)
    look = sampler(tree)
    look.after(0)
    tree.down("mlx5_9/1")
    assert look.for_long(300) == []
    tree.unplug("mlx5_9", B)
    assert look.for_long(100) == []
    scalable = tree.sysfs / "devices/pci0000:00/0000:00:18.0/0000:18:00.0/mlx5_core.sf.4/infiniband/mlx5_7"
    link(scalable / "device", scalable.parents[1])
    link(tree.sysfs / "class/infiniband/mlx5_7", scalable)
    look.after(20)
    (tree.sysfs / "class/infiniband/mlx5_7").unlink()
    assert look.for_long(100) == []


# ---------------------------------------------------------------- the cards


def test_a_card_with_other_firmware_than_its_like_warns_until_it_is_updated(tree: Tree) -> None:
    for index in range(3):
        tree.ib(f"mlx5_{index}", f"0000:{index + 1}8:00.0")
    storage = tree.ib("mlx5_3", "0000:48:00.0", board="MT_0000000359", firmware="20.1.1")
    odd = tree.sysfs / "class/infiniband/mlx5_1/fw_ver"
    write(odd, "28.36.1010")
    look = sampler(tree)
    assert look.after(0) == [("mlx5_1", "firmware-drift", "warning")]
    assert storage.exists()  # another board may have other firmware
    write(odd, "28.39.1002")
    assert look.after(20) == []


@pytest.mark.parametrize(
    ("file", "value", "good"),
    [
        ("current_link_speed", "16.0 GT/s PCIe", "32.0 GT/s PCIe"),
        ("current_link_width", 8, 16),
    ],
)
def test_a_card_with_a_slow_or_narrow_pcie_link_is_degraded(
    tree: Tree, file: str, value: object, good: object
) -> None:
    tree.ib("mlx5_0", A)
    at = tree.sysfs / "bus/pci/devices" / A / file
    write(at, value)
    look = sampler(tree)
    assert look.after(0) == [("mlx5_0", "nic-pcie", "degraded")]
    write(at, good)
    assert look.after(20) == []


def test_a_card_in_a_slow_slot_is_as_fast_as_it_can_be(tree: Tree) -> None:
    folder = Path(os.path.realpath(tree.ib("mlx5_0", A) / "device"))
    write(folder.parent / "max_link_speed", "16.0 GT/s PCIe")
    write(folder / "current_link_speed", "16.0 GT/s PCIe")
    look = sampler(tree)
    assert look.after(0) == []
    write(folder / "current_link_speed", "Unknown")
    assert look.after(20) == []


def test_numbers_have_the_names_and_units_of_node_exporter(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    tree.counter(PORT, "port_rcv_data", 10)
    tree.counter(PORT, "port_rcv_errors", 3)
    look = sampler(tree)
    look.after(0)
    port = (("device", "mlx5_0"), ("port", "1"))
    values = {(one.name, one.labels): one.value for one in look.kept.measures}
    assert values["node_infiniband_port_data_received_bytes_total", port] == 40.0
    assert values["node_infiniband_port_errors_received_total", port] == 3.0
    assert values["node_infiniband_rate_bytes_per_second", port] == 50e9
    assert values["node_infiniband_state_id", port] == 4.0
    declared = rows()
    assert all(declared[one.name].labels == [label for label, _ in one.labels] for one in look.kept.measures)
    info = (("board_id", "MT_0000000838"), ("device", "mlx5_0"), ("firmware_version", "28.39.1002"))
    assert values["node_infiniband_info", (*info, ("hca_type", "MT4129"))] == 1.0


def test_a_memory_of_another_version_is_set_aside(tree: Tree) -> None:
    tree.ib("mlx5_0", A)
    look = sampler(tree)
    look.kept = Kept(saved={"cards": [1, 2], "ports": 7})
    assert look.after(0) == []
