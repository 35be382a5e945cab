"""`sentinel replay --fleet FILE…`: what the controller of a cluster decided, decided again from its recording.

With `--settings` the brakes, times and modes of those settings decide instead, and each line says what differs. Exit
codes: 0 replayed; 1 a file cannot be read, or without `--settings` something else was decided than is recorded.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from sentinel.console.tables import complain, put, put_document, table
from sentinel.core.fleet.events import Decision
from sentinel.core.fleet.recording import VERSION, Entry, Start
from sentinel.core.fleet.replay import Replay, Replayed
from sentinel.core.fleet.settings import FleetSettings, fleet_settings
from sentinel.notify.text import count

CONFIG = 78
SAME, ADDED, MISSING = "as recorded", "only now", "only recorded"


class BadRecording(Exception):
    """It cannot be replayed; the text says which line of which file, and why."""


class Line(Struct, frozen=True, kw_only=True):
    """One decision. `how`: as recorded, only now, or only recorded."""

    time: str
    node: str
    record: str
    reason: str
    sentence: str
    how: str


def main(args: argparse.Namespace) -> int:
    settings: FleetSettings | None = None
    if args.settings:
        from sentinel.cli.options import read_settings

        found = read_settings(args)
        if found is None:
            return CONFIG
        settings = fleet_settings(found.fleet)
    try:
        rounds = list(Replay(settings).run(entries(args.fleet)))
    except (BadRecording, ValueError) as error:
        complain(str(error))
        return 1
    if not rounds:
        complain("no round of decisions in what was read")
        return 1
    lines = compared(rounds)
    differs = sum(line.how != SAME for line in lines)
    if args.output == "json":
        answer = {"rounds": len(rounds), "differences": differs, "decisions": lines}
        put_document(answer)
    else:
        put(_text(rounds, lines, differs, other=settings is not None))
    return 1 if differs and settings is None else 0


def entries(names: Iterable[str]) -> Iterator[Entry]:
    """Of files in their order, and of folders with the files that a controller wrote, the oldest first."""
    for name in names:
        path = Path(name)
        files = sorted(path.glob("fleet.*.jsonl"), key=_number, reverse=True) if path.is_dir() else [path]
        if not files:
            raise BadRecording(f"{path}: no fleet.N.jsonl in this folder")
        for file in files:
            yield from _entries(file)


def _number(path: Path) -> int:
    number = path.name.split(".")[1]
    return int(number) if number.isdecimal() else 0


def _entries(path: Path) -> Iterator[Entry]:
    decode = msgspec.json.Decoder(Entry).decode
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # the controller was killed while it wrote this one
                try:
                    entry: Entry = decode(line)
                except msgspec.DecodeError as error:
                    raise BadRecording(f"{path}:{number}: no entry of a recording: {error}") from None
                if isinstance(entry, Start) and entry.version != VERSION:
                    raise BadRecording(
                        f"{path}:{number}: version {entry.version} of recordings, expected {VERSION}"
                    )
                if number == 1 and not isinstance(entry, Start):
                    raise BadRecording(f"{path}: it does not begin as a recording does")
                yield entry
    except OSError as error:
        raise BadRecording(f"{path}: {error.strerror or error}") from None


def compared(rounds: Iterable[Replayed]) -> list[Line]:
    """In the order of time. One decision is another one's twin when record and reason are the same."""
    rounds = list(rounds)
    left = Counter(_key(one) for each in rounds for one in each.recorded)
    left.subtract(_key(one) for each in rounds for one in each.decided)
    lines: list[Line] = []
    for each in rounds:
        for one in each.decided:
            extra = left[_key(one)] < 0
            left[_key(one)] += extra
            lines.append(_line(each, one, ADDED if extra else SAME))
        for one in each.recorded:
            if left[_key(one)] > 0:
                left[_key(one)] -= 1
                lines.append(_line(each, one, MISSING))
    return lines


def _key(one: Decision) -> tuple[str, str, str]:
    return one.node, one.record, one.reason.value


def _line(each: Replayed, one: Decision, how: str) -> Line:
    moment = datetime.fromtimestamp(each.now.wall_s, UTC).isoformat(timespec="milliseconds")
    return Line(
        time=moment.replace("+00:00", "Z"),
        node=one.node,
        record=one.record,
        reason=one.reason.value,
        sentence=one.sentence,
        how=how,
    )


def _text(rounds: list[Replayed], lines: list[Line], differs: int, *, other: bool) -> str:
    marks = {SAME: " ", ADDED: "+", MISSING: "-"}
    rows = [(marks[line.how], line.time, line.node, line.reason, line.sentence) for line in lines]
    shown = table(("", "TIME", "NODE", "REASON", "SENTENCE"), rows) if rows else []
    told = f"{count(len(rounds), 'round')}, {count(len(lines), 'decision')}"
    if not differs:
        end = f"{told}: all as recorded."
    elif other:
        end = (
            f"{told}: {differs} differ from what was recorded (+ only with these settings, - only recorded)."
        )
    else:
        end = f"{told}: {differs} differ from what was recorded (+ only now, - only recorded)."
    return "\n".join([*shown, end]) + "\n"
