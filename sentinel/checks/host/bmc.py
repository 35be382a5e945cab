"""Power supplies, fans and other sensors of the server, and its event log, as its management controller has them.

Asked through `ipmitool`, which takes seconds: controllers are slow.
"""

import os
import re
import shutil
from datetime import datetime
from typing import Any

from msgspec import Struct

from sentinel import rights
from sentinel.checks.base import Absent, Look, Source, Unknown
from sentinel.checks.command import CommandHangs, Output, run
from sentinel.core.health import Component, Finding, Severity

_SOURCE = Source("bmc", Component.SYSTEM)

DEADLINE_S = 20.0  # for each of two questions
NEWEST_EVENTS = 256
FIRST_LOOK_S = 24 * 3600.0  # of the log's history; what is older has been seen to, or is past

# Third column of `ipmitool sdr elist`: ok, ns (no reading), and what the threshold sensors cross: nc, cr, nr, with l
# or u before it for lower or upper.
_CROSSED = {"nc": Severity.WARNING, "cr": Severity.DEGRADED, "nr": Severity.DEGRADED}

# Words of IPMI's table of sensor-specific events (specification 2.0, table 42-3) as ipmitool prints them.
_BAD_STATES = (
    (
        re.compile(
            r"(?<!No )Failure detected|Power Supply AC lost|AC lost|out-of-range|Config Error|"
            r"Insufficient Resources|Power off/down",
            re.IGNORECASE,
        ),
        Severity.DEGRADED,
    ),
    (
        re.compile(r"Predictive failure|Redundancy Lost|Redundancy Degraded|Non-Redundant", re.IGNORECASE),
        Severity.WARNING,
    ),
)
_BAD_EVENTS = (
    (
        re.compile(
            r"(?<!\w)Uncorrectable ECC|IERR|Thermal Trip|Bus Fatal Error|Bus Uncorrectable|Non-recoverable going",
            re.IGNORECASE,
        ),
        Severity.DEGRADED,
    ),
    (
        re.compile(
            r"Failure detected|AC lost|Predictive failure|Redundancy Lost|(?<!Non-)critical going|"
            r"logging limit reached",
            re.IGNORECASE,
        ),
        Severity.WARNING,
    ),
)
_POWER, _FAN = ("10", "19", "21"), ("29", "30")  # entity ids: supplies and units; fans and cooling


class Sensor(Struct, frozen=True):
    name: str
    number: str  # "C8h"
    status: str
    entity: str  # "10.1"
    reading: str


class Event(Struct, frozen=True):
    record: int
    at_wall_s: float | None  # by the controller's clock and our time zone; None: it had none
    sensor: str
    text: str
    asserted: bool


def parse_sensors(text: str) -> list[Sensor]:
    """`ipmitool sdr elist`: "PS1 Status | C8h | ok | 10.1 | Presence detected". Other lines are left out."""
    sensors = []
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|", 4)]
        if len(columns) == 5 and columns[1].endswith("h"):
            sensors.append(Sensor(*columns))
    return sensors


def parse_events(text: str) -> list[Event]:
    """`ipmitool sel elist`: "2cd | 07/13/2015 | 12:00:27 | Memory Mmry ECC Sensor | Uncorrectable ECC | Asserted"."""
    events = []
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) < 5 or not re.fullmatch(r"[0-9a-f]+", columns[0]):
            continue
        try:  # "07/13/2015", "12:00:27", from version 1.8.19 on with a zone: "12:00:27 UTC"
            at_s = datetime.strptime(f"{columns[1]} {columns[2][:8]}", "%m/%d/%Y %H:%M:%S").timestamp()
        except ValueError:
            at_s = None
        asserted = "Deasserted" not in columns[5:]
        events.append(Event(int(columns[0], 16), at_s, columns[3], columns[4], asserted))
    return events


def judge_sensors(sensors: list[Sensor]) -> list[Finding]:
    found = []
    for sensor in sensors:
        severity = _CROSSED.get(sensor.status.lower()[-2:])
        if severity is None:
            severity = next((level for words, level in _BAD_STATES if words.search(sensor.reading)), None)
        if severity is None:
            continue
        kind = sensor.entity.partition(".")[0]
        name = f"{sensor.name} ({sensor.number})"  # Dell calls each supply's sensor "Status"
        what = "power supply" if kind in _POWER else "fan" if kind in _FAN else "sensor"
        found.append(
            _finding(
                f"{what} {name}",
                f"bmc-{what.replace(' ', '-')}",
                severity,
                f"The server's controller says that a {what} is not well",
                f"{sensor.status}: {sensor.reading}",
            )
        )
    return found


def judge_events(events: list[Event]) -> list[Finding]:
    """One finding for each sensor and event whose last word is that it is so."""
    last = {(event.sensor, event.text): event for event in events}
    found = []
    for event in last.values():
        severity = next((level for words, level in _BAD_EVENTS if words.search(event.text)), None)
        if severity is None or not event.asserted:
            continue
        when = datetime.fromtimestamp(event.at_wall_s).isoformat(" ") if event.at_wall_s else "time unknown"
        found.append(
            _finding(
                f"{event.sensor}: {event.text}",
                "bmc-event",
                severity,
                "The server's controller logged a fault",
                f"record {event.record:x}, {when}: {event.sensor}, {event.text}",
                event=True,
            )
        )
    return found


def _finding(
    entity: str, code: str, severity: Severity, summary: str, evidence: str, event: bool = False
) -> Finding:
    return _SOURCE.finding(entity, code, severity, "CHECK_HARDWARE", summary, evidence, event=event)


def new_events(events: list[Event], saved: dict[str, Any], now_s: float) -> list[Event]:
    """What was logged since the last look. The numbers begin anew when the log is cleared.

    `saved` has the number and text of the newest record that was seen.
    """
    newest = saved.get("record")
    if newest is None:
        return [event for event in events if event.at_wall_s and 0 <= now_s - event.at_wall_s < FIRST_LOOK_S]
    seen = [
        index for index, event in enumerate(events) if [event.record, event.text, event.at_wall_s] == newest
    ]
    return events[seen[-1] + 1 :] if seen else events


def _ask(sysfs: str, *words: str) -> Output:
    try:
        output = run(["ipmitool", *words], DEADLINE_S)
    except CommandHangs as error:
        raise Unknown(str(error)) from None
    except OSError as error:
        raise Unknown(f"ipmitool: {error.strerror}") from None
    said = output.stderr.decode(errors="replace")
    if output.code and "Could not open device" in said:
        if "No such file" in said and not os.path.isdir(f"{sysfs}/class/ipmi/ipmi0"):
            raise Absent("no management controller: there is no /dev/ipmi0")
        raise Unknown(f"{output.first_line()}; the management controller needs root, and {rights.DEVICES}")
    return output


def check(look: Look) -> list[Finding]:
    if not shutil.which("ipmitool"):
        raise Absent("ipmitool is not installed")
    output = _ask(look.settings.sysfs, "sdr", "elist")
    sensors = parse_sensors(output.stdout.decode(errors="replace"))
    if not sensors:
        raise Unknown(f"ipmitool sdr elist: no sensors (status {output.code}): {output.first_line()}")
    found = judge_sensors(sensors)
    output = _ask(look.settings.sysfs, "sel", "elist", "last", str(NEWEST_EVENTS))
    events = parse_events(output.stdout.decode(errors="replace"))
    if output.code and not events:
        raise Unknown(f"ipmitool sel elist: status {output.code}: {output.first_line()}", tuple(found))
    saved = dict(look.kept.saved or {})
    found += judge_events(new_events(events, saved, look.now.wall_s))
    if events:
        saved["record"] = [events[-1].record, events[-1].text, events[-1].at_wall_s]
    else:
        saved["record"] = []  # an empty log: whatever comes is new
    look.kept.saved = saved
    look.kept.detail = f"{len(sensors)} sensors, {len(events)} events"
    return found
