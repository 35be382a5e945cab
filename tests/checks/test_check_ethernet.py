"""Ethernet: real veth pairs, bridges and routes in network namespaces; bonds and cards on a sysfs tree."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks.network import ethernet
from sentinel.checks.network.netdev import default_routes
from sentinel.metrics.measures import rows
from sentinel.settings import Network, Settings, Shape
from tests.checks.sysfs_tree import Sampler, Tree, write
from tests.gate.rights import TO_MOUNT

A, B = "0000:18:00.0", "0000:2a:00.0"

# Runs in a network namespace with a /sys of its own: takes each step, then looks so many seconds later.
SCRIPT = """
import json, subprocess, sys
from sentinel.checks.network import ethernet
from sentinel.settings import Network, Settings
from tests.checks.sysfs_tree import Sampler
look = Sampler(ethernet.check, Settings(network=Network(interfaces=tuple(json.loads(sys.argv[2])))), "ethernet")
for shell, seconds in json.loads(sys.argv[1]):
    subprocess.run(shell, shell=True, check=True)
    print(json.dumps([look.after(seconds), look.said]), flush=True)
"""
PAIR = "ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up"
ROUTE = "ip addr add 10.9.0.1/24 dev v0 && ip route add default via 10.9.0.2"


def in_namespace(
    steps: list[tuple[str, float]], repo: Path, interfaces: tuple[str, ...] = ()
) -> list[tuple[list[tuple[str, str, str]], str]]:
    """After each step: (entity, code, severity) of what the check finds, and what it says besides."""
    inside = 'mount -t sysfs sysfs /sys && exec "$@"'
    done = subprocess.run(
        ["unshare", "--net", *TO_MOUNT, "sh", "-c", inside, "sh", sys.executable, "-c", SCRIPT,
         json.dumps(steps), json.dumps(interfaces)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=180,
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(repo)},
    )  # fmt: skip
    told: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    return [([(entity, code, severity) for entity, code, severity in found], said) for found, said in told]


def found_after(steps: list[tuple[str, float]], repo: Path, interfaces: tuple[str, ...] = ()) -> list[Any]:
    return [found for found, _ in in_namespace(steps, repo, interfaces)]


# ---------------------------------------------------------------- real interfaces


def test_virtual_interfaces_that_nobody_chose_are_absent_even_when_they_go_down(repo: Path) -> None:
    steps = [
        (PAIR + " && ip link add br0 type bridge && ip link set br0 up", 0.0),
        ("ip link set v0 down", 20.0),
    ]
    for found, said in in_namespace(steps, repo):
        assert found == []
        assert said.startswith("absent")


def test_the_interface_of_the_default_route_that_goes_down_is_told_and_clears_when_it_is_back(
    repo: Path,
) -> None:
    steps = [
        (f"{PAIR} && {ROUTE}", 0.0),
        ("ip link set v1 down", 20.0),  # the other end: v0 loses its carrier
        ("true", 230.0),
        ("true", 20.0),
        ("ip link set v1 up", 20.0),
    ]
    assert found_after(steps, repo) == [
        [],
        [("v0", "port-down", "warning")],
        [("v0", "port-down", "warning")],
        [("v0", "port-down", "degraded")],
        [],
    ]


def test_an_interface_set_down_with_its_only_default_route_is_degraded_after_four_minutes(repo: Path) -> None:
    steps = [
        (f"{PAIR} && {ROUTE}", 0.0),
        ("ip link set v0 down", 20.0),  # takes the route away too
        ("true", 240.0),
        ("ip link set v0 up && ip route add default via 10.9.0.2", 20.0),
    ]
    assert found_after(steps, repo) == [
        [],
        [("v0", "port-down", "warning")],
        [("v0", "port-down", "degraded")],
        [],
    ]


def test_a_link_that_flaps_between_two_looks_warns_from_the_third_time_until_12_hours_later(
    repo: Path,
) -> None:
    flap = "ip link set v1 down && ip link set v1 up"
    steps = [(PAIR, 0.0), (flap, 20.0), (flap, 20.0), (flap, 20.0), ("true", 11 * 3600.0), ("true", 3600.0)]
    assert found_after(steps, repo, ("v0",)) == [
        [],
        [],
        [],
        [("v0", "link-flaps", "warning")],
        [("v0", "link-flaps", "warning")],
        [],
    ]


def test_an_interface_of_the_settings_that_is_missing_is_told_and_clears_when_it_comes(repo: Path) -> None:
    steps = [("true", 0.0), ("true", 20.0), ("true", 20.0), (PAIR, 20.0), ("ip link del v0", 20.0), ("true", 20.0),
             ("true", 20.0), (PAIR, 20.0)]  # fmt: skip
    gone = ("v0", "nic-vanished", "degraded")
    assert found_after(steps, repo, ("v0",)) == [
        [("v0", "nic-vanished", "warning")],
        [("v0", "nic-vanished", "warning")],
        [gone],
        [],
        [],
        [],
        [gone],
        [],
    ]


def until(holds: str) -> str:
    """The kernel looks at the links of a bridge up to a second later."""
    return f'timeout 20 sh -c "until {holds}; do sleep 0.02; done"'


def test_a_bridge_and_an_ifb_that_settings_name_are_followed(repo: Path) -> None:
    steps = [
        ("ip link add br0 type bridge && ip link add ifb7 type ifb && ip link set br0 up && ip link set ifb7 up"
         f" && {PAIR} && ip link set v0 master br0", 0.0),
        (f"ip link set ifb7 down && ip link set v1 down && {until('! ip link show br0 | grep -q LOWER_UP')}", 20.0),
        (f"ip link set ifb7 up && ip link set v1 up && {until('ip link show br0 | grep -q LOWER_UP')}", 20.0),
    ]  # fmt: skip
    assert found_after(steps, repo, ("br0", "ifb7"))[1:] == [
        [("br0", "port-down", "warning"), ("ifb7", "port-down", "warning")],
        [],
    ]


# ---------------------------------------------------------------- cards and bonds on a tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def sampler(tree: Tree, network: Network | None = None, shape: Shape | None = None) -> Sampler:
    settings = Settings(
        sysfs=str(tree.sysfs),
        procfs=str(tree.procfs),
        network=network or Network(),
        shape=shape or Shape(),
    )
    return Sampler(ethernet.check, settings, "ethernet")


def bond(tree: Tree, *members: str) -> Path:
    folder = tree.netdev("bond0", virtual=True)
    write(folder / "bonding/slaves", " ".join(members))
    write(folder / "bonding/ad_aggregator", 1)
    for name in members:
        write(tree.sysfs / "class/net" / name / "bonding_slave/mii_status", "up")
        write(tree.sysfs / "class/net" / name / "bonding_slave/ad_aggregator_id", 1)
        (tree.sysfs / "class/net" / name / "master").symlink_to(folder)
    return folder


def set_carrier(tree: Tree, name: str, carrier: int) -> None:
    write(tree.sysfs / "class/net" / name / "carrier", carrier)


def test_a_bond_that_loses_a_member_warns_until_it_carries_again(tree: Tree) -> None:
    first, second = tree.netdev("eth0", address=A), tree.netdev("eth1", address=B)
    folder = bond(tree, "eth0", "eth1")
    look = sampler(tree)
    assert look.after(0) == []
    write(second / "bonding_slave/mii_status", "down")
    set_carrier(tree, "eth1", 0)
    write(folder / "speed", 50_000)
    assert look.after(20) == [("bond0", "bond-degraded", "warning")]  # one fault, one finding
    assert look.sample()[0].evidence == ("bond0: 1 of 2 do not carry: eth1 (down)",)
    write(second / "bonding_slave/mii_status", "up")
    set_carrier(tree, "eth1", 1)
    assert look.after(20) == []
    write(first / "bonding_slave/ad_aggregator_id", 2)
    assert look.after(20) == [("bond0", "bond-degraded", "warning")]
    assert "eth0 (in another aggregator)" in look.sample()[0].evidence[0]
    write(first / "bonding_slave/ad_aggregator_id", 1)
    assert look.for_long(40) == []
    assert look.standing == []


def test_a_member_that_left_its_bond_is_told_until_it_is_back_or_half_a_day_is_over(tree: Tree) -> None:
    tree.netdev("eth0", address=A)
    tree.netdev("eth1", address=B)
    folder = bond(tree, "eth0", "eth1")
    look = sampler(tree)
    look.after(0)
    write(folder / "bonding/slaves", "eth0")
    assert look.after(20) == [("bond0", "bond-degraded", "warning")]
    look.restart()
    assert look.after(20) == [("bond0", "bond-degraded", "warning")]
    write(folder / "bonding/slaves", "eth0 eth1")
    assert look.after(20) == []
    write(folder / "bonding/slaves", "eth0")
    assert look.after(20) == [("bond0", "bond-degraded", "warning")]
    assert look.for_long(12 * 3600, 3600) == []


def test_a_bond_without_any_carrier_is_down(tree: Tree) -> None:
    tree.netdev("eth0", address=A)
    bond(tree, "eth0")
    look = sampler(tree, Network(interfaces=("bond0",)))
    look.after(0)
    write(tree.sysfs / "class/net/eth0/bonding_slave/mii_status", "down")
    set_carrier(tree, "bond0", 0)
    set_carrier(tree, "eth0", 0)
    assert look.after(20) == [("bond0", "bond-degraded", "warning"), ("bond0", "port-down", "warning")]
    assert ("bond0", "port-down", "degraded") in look.for_long(240)
    write(tree.sysfs / "class/net/eth0/bonding_slave/mii_status", "up")
    set_carrier(tree, "bond0", 1)
    set_carrier(tree, "eth0", 1)
    assert look.after(20) == []


def test_a_card_that_was_up_and_goes_down_warns_and_one_that_never_was_up_does_not(tree: Tree) -> None:
    tree.netdev("eth0", address=A)
    tree.netdev("eth1", address=B)
    (tree.sysfs / "class/net/eth1/carrier").write_text("")  # EINVAL: not enabled
    write(tree.sysfs / "class/net/eth1/flags", "0x1002")
    look = sampler(tree)
    assert look.after(0) == []
    set_carrier(tree, "eth0", 0)
    assert look.for_long(300) == [("eth0", "port-down", "warning")]
    set_carrier(tree, "eth0", 1)
    assert look.after(20) == []


def test_an_expected_card_that_never_came_up_is_told(tree: Tree) -> None:
    tree.netdev("eth0", address=A)
    set_carrier(tree, "eth0", 0)
    look = sampler(tree, shape=Shape(source="manifest", nics=("eth0",)))
    assert look.after(0) == [("eth0", "port-down", "warning")]
    assert look.for_long(240) == [("eth0", "port-down", "degraded")]
    learnt = sampler(tree, shape=Shape(source="learnt", nics=("eth0",)))
    learnt.after(0)
    assert learnt.for_long(240) == [("eth0", "port-down", "warning")]


def test_a_link_that_comes_up_slower_or_half_duplex_warns_until_it_is_as_before(tree: Tree) -> None:
    folder = tree.netdev("eth0", address=A)
    look = sampler(tree)
    look.after(0)
    write(folder / "speed", 10_000)
    write(folder / "duplex", "half")
    assert look.after(20) == [("eth0", "half-duplex", "warning"), ("eth0", "port-speed", "warning")]
    write(folder / "speed", 100_000)
    write(folder / "duplex", "full")
    assert look.after(20) == []
    write(folder / "speed", -1)  # unknown is not slow
    assert look.after(20) == []


@pytest.mark.parametrize(
    ("counter", "limit"), [("rx_errors", 600), ("tx_errors", 600), ("rx_missed_errors", 6000)]
)
def test_errors_at_a_high_rate_warn_and_clear_when_they_stop(tree: Tree, counter: str, limit: int) -> None:
    folder = tree.netdev("eth0", address=A)
    write(folder / "statistics" / counter, 5000)
    look = sampler(tree)
    assert look.after(0) == []
    write(folder / "statistics" / counter, 5000 + limit)
    assert look.after(20) == []
    write(folder / "statistics" / counter, 5001 + limit)
    assert look.after(20) == [("eth0", counter, "warning")]
    assert look.after(60) == []
    write(folder / "statistics" / counter, 0)  # reset: no fault
    assert look.after(20) == []


def test_a_boot_and_a_driver_that_is_loaded_anew_make_no_findings_for_ten_minutes(tree: Tree) -> None:
    folder = tree.netdev("eth0", address=A)
    look = sampler(tree)
    look.mono_s = 20.0
    look.after(0)
    set_carrier(tree, "eth0", 0)
    write(folder / "carrier_down_count", 9)
    assert look.for_long(560) == []
    set_carrier(tree, "eth0", 1)
    assert look.for_long(600) == []
    folder.rename(folder.with_name("old"))
    (tree.sysfs / "class/net/eth0").unlink()
    again = tree.netdev("eth1", address=B)
    again.rename(again.with_name("eth0"))
    (tree.sysfs / "class/net/eth1").unlink()
    (tree.sysfs / "class/net/eth0").symlink_to(again.with_name("eth0"))
    write(again.with_name("eth0") / "carrier_down_count", 4)
    set_carrier(tree, "eth0", 0)
    assert look.for_long(580) == []
    assert look.for_long(40) == [("eth0", "port-down", "warning")]


def test_a_card_that_left_the_bus_warns_and_one_that_a_pod_was_given_does_not(tree: Tree) -> None:
    tree.netdev("eth0", address=A)
    tree.netdev("eth1", address=B)
    look = sampler(tree)
    look.after(0)
    (tree.sysfs / "class/net/eth0").unlink()  # in another network namespace: its function stays
    (tree.sysfs / "class/net/eth1").unlink()
    (tree.sysfs / "bus/pci/devices" / B).unlink()
    assert look.for_long(60) == [("eth1", "nic-vanished", "warning")]
    assert look.for_long(13 * 3600, 3600) == []


def test_the_link_of_a_roce_card_is_told_by_its_port_alone(tree: Tree) -> None:
    folder = tree.netdev("eth0", address=A)
    (folder / "device/infiniband/mlx5_0").mkdir(parents=True)
    look = sampler(tree)
    look.after(0)
    set_carrier(tree, "eth0", 0)
    write(folder / "carrier_down_count", 7)
    assert look.after(300) == []


def test_files_that_are_empty_or_block_break_nothing(tree: Tree) -> None:
    folder = tree.netdev("eth0", address=A)
    tree.netdev("eth1", address=B)
    for file in ("speed", "duplex", "carrier_down_count", "statistics/rx_errors"):
        (folder / file).write_text("")
    look = sampler(tree)
    assert look.after(0) == []
    (folder / "speed").unlink()
    os.mkfifo(folder / "speed")
    set_carrier(tree, "eth1", 0)
    try:
        assert look.after(20) == [("eth1", "port-down", "warning")]
        assert look.said == "unknown: eth0 does not answer"
    finally:
        os.close(os.open(folder / "speed", os.O_RDWR | os.O_NONBLOCK))


def test_what_was_seen_survives_a_restart_of_the_agent(tree: Tree) -> None:
    folder = tree.netdev("eth0", address=A)
    look = sampler(tree)
    look.after(0)
    write(folder / "carrier_down_count", 2)
    look.after(20)
    look.restart()
    write(folder / "carrier_down_count", 3)
    assert look.after(20) == [("eth0", "link-flaps", "warning")]


def test_default_routes_are_read_from_both_tables(tree: Tree) -> None:
    (tree.procfs / "net").mkdir()
    write(
        tree.procfs / "net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0200090A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth1\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\ncut",
    )
    none = "0" * 32
    write(
        tree.procfs / "net/ipv6_route",
        f"{none} 00 {none} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth2\n"
        f"{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200       lo",
    )
    assert default_routes(str(tree.procfs)) == {"eth0", "eth2"}


def test_numbers_have_the_names_and_units_of_node_exporter(tree: Tree) -> None:
    tree.netdev("eth0", address=A)
    bond(tree, "eth0")
    look = sampler(tree)
    look.after(0)
    declared = rows()
    values = {(one.name, one.labels): one.value for one in look.kept.measures}
    assert all(declared[name].labels == [label for label, _ in labels] for name, labels in values)
    assert values["node_network_speed_bytes", (("device", "eth0"),)] == 12.5e9
    assert values["node_network_up", (("device", "eth0"),)] == 1.0
    assert values["node_bonding_active", (("master", "bond0"),)] == 1.0
