"""Ascend NPUs through `npu-smi info` (one table) and `npu-smi info -t ecc` (one question for each NPU)."""

import re

import msgspec

from sentinel.checks.accelerators.cards import Card, NotUnderstood, Temperature, normal_address
from sentinel.checks.accelerators.families import family
from sentinel.checks.accelerators.tool import Tool, look_at
from sentinel.checks.base import Kept, Look
from sentinel.core.health import Finding

_HEAD = ("NPU", "Name", "Health", "Power(W)", "Temp(C)")
_HEAD_2 = ("Chip", "Bus-Id", "AICore(%)", "Memory-Usage(MB)")
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
_UNCORRECTED = ("DDR Double Bit Error Count", "HBM Double Bit Error Count")
_CORRECTED = ("DDR Single Bit Error Count", "HBM Single Bit Error Count")


def parse_info(text: str) -> list[Card]:
    """The chips of `npu-smi info`, in the order printed; `index` is "NPU/chip". Raises NotUnderstood."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.strip().startswith("|")]
    head = next((n for n, row in enumerate(rows) if all(word in "|".join(row) for word in _HEAD)), None)
    if head is None or head + 1 >= len(rows) or not all(word in "|".join(rows[head + 1]) for word in _HEAD_2):
        raise NotUnderstood("the table of NPUs was not found")
    with_hbm = "HBM-Usage(MB)" in rows[head + 1][2]
    cards = []
    body = iter(rows[head + 2 :])
    for row in body:
        if len(row) > 1 and "Process id" in row[1]:
            break
        cards.append(_card(row, next(body, []), with_hbm))
    return cards


def _card(first: list[str], second: list[str], with_hbm: bool) -> Card:
    lines = f"{'|'.join(first)!r}, {'|'.join(second)!r}"
    if len(first) != 3 or len(second) != 3:
        raise NotUnderstood(f"not the two lines of a chip: {lines}")
    who, chip, power, uses = first[0].split(), second[0].split(), first[2].split(), second[2].split()
    if len(who) < 2 or not who[0].isdigit() or not chip or not chip[0].isdigit() or len(power) < 2:
        raise NotUnderstood(f"not the two lines of a chip: {lines}")
    memory = [(int(used), int(total)) for used, total in _PAIR.findall(second[2])]
    used, total = (
        (memory[1] if with_hbm and len(memory) > 1 and memory[1][1] else memory[0]) if memory else (0, 0)
    )
    celsius, watts, busy = _number(power[1]), _number(power[0]), _number(uses[0]) if uses else None
    return Card(
        index=f"{who[0]}/{chip[0]}",
        address=normal_address(second[1]),
        name=" ".join(who[1:]),
        health=first[1].strip(),
        temperatures=() if celsius is None else (Temperature("chip", celsius),),
        memory_used_bytes=used << 20 if total else None,
        memory_total_bytes=total << 20 if total else None,
        power_watts=watts,
        utilization=None if busy is None else busy / 100,
    )


def parse_ecc(text: str) -> dict[str, tuple[int | None, int | None]]:
    """`npu-smi info -t ecc -i ID`: chip -> (uncorrected, corrected) of its memories; a block ends with its Chip ID."""
    chips: dict[str, tuple[int | None, int | None]] = {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            continue
        fields[name.strip()] = value.strip()
        if name.strip() == "Chip ID":
            chips[value.strip()] = _sum(fields, _UNCORRECTED), _sum(fields, _CORRECTED)
            fields = {}
    return chips


def _sum(fields: dict[str, str], names: tuple[str, ...]) -> int | None:
    counts = [int(fields[name]) for name in names if fields.get(name, "").isdigit()]
    return sum(counts) if counts else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read(tool: Tool, kept: Kept) -> list[Card]:
    cards = parse_info(tool.ask("info").decode(errors="replace"))
    counts: dict[str, tuple[int | None, int | None]] = {}
    for npu in dict.fromkeys(card.index.partition("/")[0] for card in cards):
        answer = tool.ask_more("info", "-t", "ecc", "-i", npu).decode(errors="replace")
        counts.update({f"{npu}/{chip}": count for chip, count in parse_ecc(answer).items()})
    return [
        msgspec.structs.replace(card, ecc_uncorrected=both[0], ecc_corrected=both[1])
        for card in cards
        for both in (counts.get(card.index, (None, None)),)
    ]


def check(look: Look) -> list[Finding]:
    return look_at(family("ascend"), look, read)
