"""Cambricon MLU cards through `cnmon` (its table) and `cnmon info` (health, UUID, more temperatures)."""

import re
from collections.abc import Iterator

import msgspec

from sentinel.checks.accelerators.cards import Card, NotUnderstood, Temperature, normal_address
from sentinel.checks.accelerators.families import family
from sentinel.checks.accelerators.tool import Tool, look_at
from sentinel.checks.base import Kept, Look
from sentinel.core.health import Finding

_HEAD = ("Card", "Name", "Firmware", "Util", "Ecc-Error")
_HEAD_2 = ("Temp", "Pwr:Usage/Cap", "Memory-Usage")
_FIRST = re.compile(r"(?P<index>\d+)\s+\S+\s+(?P<name>\S+)\s+\S+")
_USES = re.compile(r"(?P<util>\d+)\s*%\s+(?P<ecc>\S+)")
_SECOND = re.compile(r"\S+\s+(?P<celsius>-?\d+|N/A)\s*C?\s+(?P<watts>[\d.]+|N/A)\s*W?\s*/.*")
_MEMORY = re.compile(r"(?P<used>\d+) MiB/\s*(?P<total>\S+) MiB")


def parse_table(text: str) -> list[Card]:
    """The cards of `cnmon` without arguments. Raises NotUnderstood.

    Two lines for each card, in three columns: 5.x has the Bus-Id in the second, 4.x has not.
    """
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    head = next((n for n, row in enumerate(rows) if all(word in "|".join(row) for word in _HEAD)), None)
    if head is None or head + 1 >= len(rows) or not all(word in "|".join(rows[head + 1]) for word in _HEAD_2):
        raise NotUnderstood("the table of cards was not found")
    with_address = "Bus-Id" in rows[head][1]
    cards: list[Card] = []
    body = iter(rows[head + 2 :])
    for row in body:
        if "Processes:" in row[0]:
            return cards
        if set("".join(row)) <= set("=+"):
            continue
        cards.append(_card(row, next(body, []), with_address))
    raise NotUnderstood("the table is cut off")


def _card(first: list[str], second: list[str], with_address: bool) -> Card:
    lines = f"{'|'.join(first)!r}, {'|'.join(second)!r}"
    if len(first) != 3 or len(second) != 3:
        raise NotUnderstood(f"not the two lines of a card: {lines}")
    who, uses = _FIRST.fullmatch(first[0].strip()), _USES.fullmatch(first[2].strip())
    state, memory = _SECOND.fullmatch(second[0].strip()), _MEMORY.fullmatch(second[1].strip())
    address = normal_address(first[1]) if with_address else ""
    if not (who and uses and state and memory) or (with_address and not address):
        raise NotUnderstood(f"not the two lines of a card: {lines}")
    celsius, watts, total = _number(state["celsius"]), _number(state["watts"]), _number(memory["total"])
    ecc = _number(uses["ecc"])
    return Card(
        index=who["index"],
        address=address,
        name=who["name"],
        temperatures=() if celsius is None else (Temperature("board", celsius),),
        ecc_unspecified=None if ecc is None else int(ecc),
        memory_used_bytes=int(memory["used"]) << 20,
        memory_total_bytes=None if total is None else int(total) << 20,
        power_watts=watts,
        utilization=int(uses["util"]) / 100,
    )


def parse_info(text: str) -> dict[str, dict[str, str]]:
    """`cnmon info`: index of a card -> {"Health State/Device": "Good", "UUID": ...}. Raises NotUnderstood.

    Each level of "name : value" lines is indented by four blanks more.
    """
    cards: dict[str, dict[str, str]] = {}
    path: list[str] = []
    fields: dict[str, str] | None = None
    for line in text.splitlines():
        if match := re.fullmatch(r"Card (\d+)\s*:?\s*", line):
            fields = cards.setdefault(match[1], {})
            continue
        name, colon, value = line.partition(":")
        if fields is None or not colon:
            continue
        depth = max(0, (len(name) - len(name.lstrip())) // 4 - 1)
        path = [*path[:depth], name.strip()]
        if value.strip():
            fields.setdefault("/".join(path), value.strip())
    if not cards:
        raise NotUnderstood("`cnmon info` names no card")
    return cards


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _temperatures(fields: dict[str, str]) -> Iterator[Temperature]:
    for sensor in ("Chip", "Memory"):
        celsius = _number(fields.get(f"Temperature/{sensor}", "").removesuffix("C").strip())
        if celsius is not None:
            yield Temperature(sensor.lower(), celsius)


def _told(value: str) -> str:
    return "" if value.upper() in ("N/A", "NA") else value


def read(tool: Tool, kept: Kept) -> list[Card]:
    cards = parse_table(tool.ask().decode(errors="replace"))
    if not cards:
        return []
    answer = tool.ask_more("info").decode(errors="replace")
    details = parse_info(answer) if answer else {}
    return [
        msgspec.structs.replace(
            card,
            health=_told(details.get(card.index, {}).get("Health State/Device", "")),
            uuid=_told(details.get(card.index, {}).get("UUID", "")),
            temperatures=(*card.temperatures, *_temperatures(details.get(card.index, {}))),
        )
        for card in cards
    ]


def check(look: Look) -> list[Finding]:
    return look_at(family("cambricon"), look, read)
