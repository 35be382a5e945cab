"""The server's management controller: a stub ipmitool prints what ipmitool really printed elsewhere."""

import time
from pathlib import Path

import pytest

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.host import bmc
from sentinel.checks.table import select
from sentinel.core.health import Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings

# Captured: `ipmitool sdr type 0x08` on a server with one of two supplies built in, from its owner's public notes.
ONE_SUPPLY = """\
PSU1_STATUS      | 26h | ok  | 10.1 | Presence detected
PSU1_PWRGD       | 28h | ok  | 10.1 | State Asserted
PSU1_POUT        | 2Bh | ok  | 10.1 | 120 Watts
PSU2_STATUS      | 2Ch | ok  | 10.2 |
PSU2_PWRGD       | 2Eh | ns  | 10.2 | No Reading
PSU2_POUT        | 31h | ns  | 10.2 | No Reading
POWER_USAGE      | AEh | ok  |  7.0 | 128 Watts
"""
# Captured: a Dell server (iDRAC) whose second supply had no mains, from its owner's public notes.
DELL = """\
Temp             | 0Eh | ns  |  3.1 | No Reading
Status           | 62h | ok  | 10.1 | Presence detected
Status           | 63h | ok  | 10.2 | {}
PS Redundancy    | 74h | ns  |  7.1 | No Reading
"""
# From documentation: the ipmi check of Checkmk shows these.
FAILED = "PS1 Status       | C8h | ok | 10.1 | Presence detected, Failure detected\n"
# Layout as above; the third column as ipmitool's source has it for a fan below its thresholds.
FAN = "FAN2             | 31h | {:<3} | 29.2 | {} RPM\n"
# Captured: `ipmitool sel elist` of an Intel server board, from a public bug report.
INTEL_LOG = """\
 2cb | 07/09/2015 | 06:33:04 | Temperature SSB Temp | Lower Critical going low  | Deasserted | Reading 43 \
< Threshold 0 degrees C
 2cd | 07/13/2015 | 12:00:27 | Memory Mmry ECC Sensor | Uncorrectable ECC | Asserted
 2ce | 07/13/2015 | 12:00:28 | Critical Interrupt PCIe Cor Sensor |  | Asserted
 2cf | 07/13/2015 | 12:01:33 | System Event BIOS Evt Sensor | Timestamp Clock Sync | Asserted
"""
# Captured: `ipmitool sel list` while power cables were pulled, from a public plug-in's notes.
CABLES_LOG = """\
 532 | 08/14/2023 | 11:25:37 | Power Supply #0x3c | Failure detected | Asserted
 533 | 08/14/2023 | 11:25:39 | Power Supply #0x3c | Power Supply AC lost | Asserted
 534 | 08/14/2023 | 11:25:39 | Power Supply #0x3e | Redundancy Lost | Asserted
 535 | 08/14/2023 | 11:25:41 | Power Supply #0x3e | Redundancy Lost | Deasserted
"""
EMPTY_LOG = "SEL has no entries\n"


class Server:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.kept = Kept()
        stub = folder / "ipmitool"
        stub.write_text('#!/bin/sh\nexec cat "$0.$1"\n')
        stub.chmod(0o755)
        self.stub = stub
        self.says("sdr", ONE_SUPPLY)
        self.says("sel", EMPTY_LOG)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def says(self, question: str, text: str) -> None:
        (self.folder / f"ipmitool.{question}").write_text(text)

    def check(self) -> list[Finding]:
        return bmc.check(Look(Settings(sysfs=str(self.folder)), (), Now(1.0, time.time()), "boot", self.kept))

    def told(self) -> list[tuple[str, Severity]]:
        return [(item.entity, item.severity) for item in self.check()]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path, monkeypatch)


def test_a_place_without_a_supply_is_no_fault(server: Server) -> None:
    assert server.check() == []
    assert server.kept.detail == "7 sensors, 0 events"


def test_a_supply_without_mains_is_degraded_until_it_has_it_again(server: Server) -> None:
    server.says("sdr", DELL.format("Presence detected, Power Supply AC lost"))
    assert server.told() == [("power supply Status (63h)", Severity.DEGRADED)]
    server.says("sdr", DELL.format("Presence detected"))
    assert server.check() == []


def test_a_supply_that_failed_is_degraded(server: Server) -> None:
    server.says("sdr", FAILED)
    assert server.told() == [("power supply PS1 Status (C8h)", Severity.DEGRADED)]


@pytest.mark.parametrize(
    ("status", "rpm", "severity"),
    [("nc", 900, Severity.WARNING), ("lcr", 300, Severity.DEGRADED), ("nr", 0, Severity.DEGRADED)],
)
def test_a_fan_that_is_too_slow_is_found_until_it_turns_again(
    server: Server, status: str, rpm: int, severity: Severity
) -> None:
    server.says("sdr", ONE_SUPPLY + FAN.format(status, rpm))
    assert server.told() == [("fan FAN2 (31h)", severity)]
    server.says("sdr", ONE_SUPPLY + FAN.format("ok", 5200))
    assert server.check() == []


def test_lost_redundancy_warns(server: Server) -> None:
    server.says("sdr", "PS_RDNDNT_MODE   | ADh | ok  | 20.0 | Non-Redundant: Sufficient from Redundant\n")
    assert [severity for _, severity in server.told()] == [Severity.WARNING]
    server.says("sdr", "Power Redundancy | 02h | ok | 21.1 | Fully Redundant\n")
    assert server.check() == []


def test_what_the_controller_logs_is_told_once_and_ends_as_events_do(server: Server) -> None:
    assert server.check() == []
    server.says("sel", INTEL_LOG)
    (finding,) = server.check()
    assert finding.severity is Severity.DEGRADED
    assert finding.entity == "Memory Mmry ECC Sensor: Uncorrectable ECC"
    assert finding.event
    assert server.check() == []
    server.says("sel", INTEL_LOG + CABLES_LOG)
    assert server.told() == [
        ("Power Supply #0x3c: Failure detected", Severity.WARNING),
        ("Power Supply #0x3c: Power Supply AC lost", Severity.WARNING),
    ]  # the redundancy came back


def test_old_history_is_not_told_at_the_first_look_but_that_of_today_is(server: Server) -> None:
    server.says("sel", INTEL_LOG)
    assert server.check() == []
    server.kept = Kept()
    today = time.strftime("%m/%d/%Y | %H:%M:%S", time.localtime(time.time() - 600))
    server.says("sel", INTEL_LOG + f" 2d0 | {today} UTC | Processor CPU1 | IERR | Asserted\n")
    assert server.told() == [("Processor CPU1: IERR", Severity.DEGRADED)]


def test_a_log_that_was_cleared_begins_anew(server: Server) -> None:
    server.says("sel", INTEL_LOG)
    server.check()
    server.says("sel", "   1 | 07/14/2015 | 09:00:00 | Memory #0x02 | Uncorrectable ECC | Asserted\n")
    assert server.told() == [("Memory #0x02: Uncorrectable ECC", Severity.DEGRADED)]


def test_correctable_errors_in_the_log_are_not_taken_for_uncorrectable_ones() -> None:
    line = "   1 | 07/14/2015 | 09:00:00 | Memory #0x02 | Correctable ECC | Asserted"
    assert bmc.judge_events(bmc.parse_events(line)) == []


def test_garbage_is_left_out() -> None:
    text = "malformed row\n | | | | \nfe3c | never | now | x\nzz | 1 | 2 | 3 | 4 | 5\n"
    assert bmc.parse_events(text) == []
    assert bmc.parse_sensors(text) == []
    (event,) = bmc.parse_events(
        "   5 |  Pre-Init  |0000000123| System Event #0x01 | Timestamp Clock Sync | Asserted"
    )
    assert event.at_wall_s is None


def test_a_controller_that_does_not_answer_is_unknown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stub.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(bmc, "DEADLINE_S", 0.2)
    with pytest.raises(Unknown, match="no end within"):
        server.check()


def test_a_server_without_a_controller_is_absent_and_one_that_needs_root_unknown(server: Server) -> None:
    said = "Could not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0: {}"
    server.stub.write_text(f"#!/bin/sh\necho '{said.format('No such file or directory')}' >&2; exit 1\n")
    with pytest.raises(Absent, match="no management controller"):
        server.check()
    server.stub.write_text(f"#!/bin/sh\necho '{said.format('Permission denied')}' >&2; exit 1\n")
    with pytest.raises(Unknown, match="needs root"):
        server.check()


def test_a_controller_whose_device_a_container_does_not_have_is_unknown(server: Server) -> None:
    said = "Could not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0: No such file or directory"
    server.stub.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    (server.folder / "class/ipmi/ipmi0").mkdir(parents=True)
    with pytest.raises(Unknown, match="a privileged container"):
        server.check()


def test_without_ipmitool_it_is_absent(server: Server) -> None:
    server.stub.unlink()
    with pytest.raises(Absent, match="not installed"):
        server.check()


def test_an_error_instead_of_sensors_is_unknown(server: Server) -> None:
    server.stub.write_text("#!/bin/sh\necho 'Get Device ID command failed' >&2; exit 1\n")
    with pytest.raises(Unknown, match="Get Device ID"):
        server.check()


def test_a_pre_check_of_the_system_does_not_wait_for_it() -> None:
    assert "bmc" not in [row.name for row in select(("system",))]
    assert "bmc" in [row.name for row in select(("system", "bmc"))]
