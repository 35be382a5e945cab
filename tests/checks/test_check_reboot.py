"""Boots: by the system's own log of them, and as remembered where there is none."""

import struct
from pathlib import Path

import pytest

from sentinel.checks.base import Kept, Look, Unknown
from sentinel.checks.host import reboot
from sentinel.checks.host.reboot import parse_wtmp
from sentinel.core.health import Severity
from sentinel.core.now import Now
from sentinel.settings import Settings

NOW_S = 1_700_000_000.0
RUN_LVL, BOOT_TIME, LOGIN = 1, 2, 7


def record(kind: int, user: str, ago_s: float, arm: bool = False) -> bytes:
    """One record of wtmp as utmp(5) lays it out."""
    head = struct.pack("<hxxi32s4s32s256shh", kind, 1, b"~", b"~~", user.encode(), b"6.8.0-60-generic", 0, 0)
    wall_s = int(NOW_S - ago_s)
    tail = struct.pack("<qqq16x20x4x", 0, wall_s, 0) if arm else struct.pack("<iii16x20x", 0, wall_s, 0)
    return head + tail


def boot(ago_s: float) -> bytes:
    return record(BOOT_TIME, "reboot", ago_s)


def shutdown(ago_s: float) -> bytes:
    return record(RUN_LVL, "shutdown", ago_s)


def login(ago_s: float) -> bytes:
    return record(LOGIN, "root", ago_s)


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir()
        self.wtmp = folder.joinpath("proc", "1", "root", "var", "log", "wtmp")
        self.wtmp.parent.mkdir(parents=True)
        self.now_s = NOW_S

    def look(self, uptime_s: float, boot_id: str = "this", kept: Kept | None = None) -> Look:
        (self.folder / "proc/uptime").write_text(f"{uptime_s:.2f} 1.0\n")
        settings = Settings(
            procfs=str(self.folder / "proc"), sysfs=str(self.folder / "sys"), state_dir=str(self.state)
        )
        return Look(settings, (), Now(uptime_s, self.now_s), boot_id, kept or Kept())

    def found(self, uptime_s: float, boot_id: str = "this") -> list[tuple[str, Severity]]:
        return [(item.code, item.severity) for item in reboot.check(self.look(uptime_s, boot_id))]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_node_that_has_just_booted_is_held_for_ten_minutes(node: Node) -> None:
    kept = Kept()
    (finding,) = reboot.check(node.look(30.0, kept=kept))
    assert (finding.code, finding.severity, finding.action) == ("recent-boot", Severity.INFO, "HOLD")
    assert reboot.check(node.look(601.0, kept=kept)) == []


def test_a_boot_without_a_shutdown_before_is_unexpected_and_told_for_a_day(node: Node) -> None:
    runlevel = record(RUN_LVL, "runlevel", 80_000)  # written at each start, of the same type as a shutdown
    node.wtmp.write_bytes(boot(90_000) + runlevel + login(80_000) + boot(3600) + login(3000))
    assert node.found(3600) == [("unexpected-reboot", Severity.WARNING)]
    kept = Kept()
    reboot.check(node.look(3600, kept=kept))
    assert reboot.check(node.look(86_401, kept=kept)) == []


def test_a_boot_after_an_orderly_shutdown_is_none(node: Node) -> None:
    node.wtmp.write_bytes(boot(90_000) + login(80_000) + shutdown(3700) + boot(3600) + login(3000))
    assert node.found(3600) == []


def test_the_first_boot_in_the_log_says_nothing_of_what_was_before(node: Node) -> None:
    node.wtmp.write_bytes(boot(3600) + login(3000))
    assert node.found(3600) == []


def test_a_node_that_goes_down_again_and_again_is_degraded_until_it_is_up_for_a_day(node: Node) -> None:
    node.wtmp.write_bytes(boot(400_000) + boot(50_000) + boot(20_000) + boot(1000))
    assert node.found(1000) == [
        ("unexpected-reboot", Severity.WARNING),
        ("repeated-reboots", Severity.DEGRADED),
    ]
    kept = Kept()
    reboot.check(node.look(1000, kept=kept))
    assert reboot.check(node.look(86_401, kept=kept)) == []


def test_maintenance_with_several_orderly_reboots_is_no_fault(node: Node) -> None:
    node.wtmp.write_bytes(
        boot(400_000) + b"".join(shutdown(ago + 60) + boot(ago) for ago in (50_000, 20_000, 5000, 1000))
    )
    assert node.found(1000) == []


def test_what_the_kernel_saved_of_its_crash_proves_one(node: Node) -> None:
    node.wtmp.write_bytes(b"")
    pstore = node.folder / "sys/fs/pstore"
    pstore.mkdir(parents=True)
    (pstore / "dmesg-efi-170000000001001").touch()
    (finding,) = reboot.check(node.look(3600))
    assert finding.code == "unexpected-reboot"
    assert "dmesg-efi" in finding.evidence[0]
    (pstore / "dmesg-efi-170000000001001").unlink()
    assert node.found(3600) == []


def test_without_the_systems_log_a_new_boot_id_tells_of_a_reboot(node: Node) -> None:
    assert node.found(500_000, "first") == []
    assert node.found(500_030, "first") == []
    node.now_s += 5000
    assert node.found(1000, "second") == [("rebooted", Severity.INFO)]
    assert node.found(1030, "second") == [
        ("rebooted", Severity.INFO)
    ]  # an agent that starts again says the same
    assert node.found(90_000, "second") == []
    for index in range(2):
        node.now_s += 2000
        last = node.found(1000, f"later-{index}")
    assert ("repeated-reboots", Severity.WARNING) in last  # somebody may have shut it down each time


def test_a_log_that_does_not_know_this_boot_is_not_believed(node: Node) -> None:
    node.wtmp.write_bytes(boot(900_000) + boot(800_000))  # given up by a newer C library
    assert node.found(3600) == []


def test_a_node_without_a_state_directory_says_that_boots_are_not_remembered(node: Node) -> None:
    node.state.rmdir()
    kept = Kept()
    assert reboot.check(node.look(3600, kept=kept)) == []
    assert "not remembered" in kept.detail


def test_a_memory_of_boots_that_cannot_be_read_is_said(node: Node) -> None:
    (node.state / reboot.FILE).mkdir()
    kept = Kept()
    assert reboot.check(node.look(3600, kept=kept)) == []
    assert "not remembered" in kept.detail


@pytest.mark.parametrize("garbage", [b"", b"{", b'{"boots": 1}', b"\x00" * 100])
def test_damaged_memory_of_boots_starts_anew(node: Node, garbage: bytes) -> None:
    (node.state / reboot.FILE).write_bytes(garbage)
    assert node.found(3600, "first") == []
    assert node.found(1000, "second") != []


def test_records_of_both_layouts_are_read_and_garbage_is_not() -> None:
    x86 = boot(900) + shutdown(800) + boot(700)
    arm = b"".join(
        record(kind, user, ago, arm=True)
        for kind, user, ago in ((2, "reboot", 900), (1, "shutdown", 800), (2, "reboot", 700))
    )
    assert len(x86) == 3 * 384
    assert len(arm) == 3 * 400
    assert [(item.at_wall_s, item.orderly) for item in parse_wtmp(x86)] == [
        (NOW_S - 900, None),
        (NOW_S - 700, True),
    ]
    assert parse_wtmp(arm) == parse_wtmp(x86)
    assert parse_wtmp(b"\xff" * 384) == []
    assert parse_wtmp(b"short") == []


def test_an_unreadable_uptime_is_unknown(node: Node) -> None:
    look = node.look(1.0)
    (node.folder / "proc/uptime").write_text("")
    with pytest.raises(Unknown):
        reboot.check(look)
