"""One sample of the cards of a family: its tool is found and asked, and whatever it does becomes a clear result."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sentinel import rights
from sentinel.checks.accelerators.cards import (
    Card,
    NotUnderstood,
    judge_bus,
    judge_card,
    judge_listed,
    judge_width,
    remember,
    slot,
)
from sentinel.checks.accelerators.families import Family
from sentinel.checks.base import Absent, Kept, Look, Measure, Unknown
from sentinel.checks.command import CommandHangs, Output, run
from sentinel.checks.gpus import pci_addresses, pci_functions
from sentinel.core.health import Component, Finding, Severity

SAMPLE_S = 30.0  # for all commands of one look
COMMAND_S = 15.0  # for each


class Memory(Struct):
    sample_s: float = SAMPLE_S  # for all commands of the next look
    stuck: subprocess.Popen[bytes] | None = None  # a command that even SIGKILL has not ended


class Tool:
    """One look through a family's tool: its commands share one deadline."""

    def __init__(self, path: str, deadline_s: float) -> None:
        self.path = path
        self.problems: list[str] = []  # of questions whose answer a look can do without
        self._until_s = time.monotonic() + deadline_s
        self._command_s = min(COMMAND_S, deadline_s)

    def ask(self, *arguments: str) -> bytes:
        """What it prints. Raises Unknown if it failed, NotUnderstood if it printed too much, CommandHangs."""
        output = self._run(arguments)
        if output.code != 0:
            raise Unknown(self._failed(arguments, output))
        if output.truncated:
            raise NotUnderstood(f"{self._named(arguments)} printed over {len(output.stdout)} bytes")
        return output.stdout

    def ask_more(self, *arguments: str) -> bytes:
        """As `ask`, for what some cards or versions cannot answer: b"" then, and the problem is noted."""
        try:
            return self.ask(*arguments)
        except Unknown as unknown:
            self.problems.append(str(unknown))
            return b""

    def _run(self, arguments: tuple[str, ...]) -> Output:
        left_s = min(self._command_s, self._until_s - time.monotonic())
        if left_s <= 0:
            raise CommandHangs(f"{self.path}: its commands together take too long", None)
        try:
            return run([self.path, *arguments], left_s, environment={"LC_ALL": "C"})
        except OSError as error:
            raise Unknown(f"{self.path}: {error.strerror}") from None

    def _named(self, arguments: tuple[str, ...]) -> str:
        return f"`{' '.join((os.path.basename(self.path), *arguments))}`"

    def _failed(self, arguments: tuple[str, ...], output: Output) -> str:
        how = f"signal {-output.code}" if output.code < 0 else f"status {output.code}"
        return f"{self._named(arguments)} ended with {how}: {output.first_line() or 'it says nothing'}"


Reader = Callable[[Tool, Kept], list[Card]]


def find_tool(family: Family, *others: str) -> str:
    """The path of the family's tool, or of the first of `others` that is installed; "" if none is."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *family.folders))
    for name in (family.tool, *others):
        if found := shutil.which(name, path=path):
            return found
    return ""


def look_at(family: Family, look: Look, read: Reader, *other_tools: str) -> list[Finding]:
    """One sample of a family's cards. `read` asks the tool and parses."""
    on_pci = pci_functions(look.settings.sysfs, family.vendor, family.classes)
    present = {slot(address) for address in pci_addresses(look.settings.sysfs)}
    if look.kept.saved is None:
        look.kept.saved = {}
    saved: dict[str, Any] = look.kept.saved
    seen: dict[str, str] = saved.setdefault("listed", {})  # address -> name, of cards that the tool listed
    bus = saved["bus"] = sorted({*saved.get("bus", ()), *on_pci})
    path = find_tool(family, *other_tools)
    if not (bus or path or seen):
        raise Absent(f"no {family.tool} and no {family.noun} on the PCI bus")
    found = judge_bus(family, bus, present) + _widths(family, look.settings.sysfs, on_pci, saved)
    look.kept.measures = ()
    try:
        if not path:
            raise Unknown(f"{len(on_pci)} {family.noun} on the PCI bus but no {family.tool}")
        cards, problems = _cards(family, look.kept, path, read)
        if on_pci and not cards and not rights.has_devices(look.settings.procfs):
            raise Unknown(f"{path} lists none of the {len(on_pci)} {family.noun} on the PCI bus")
    except (CommandHangs, NotUnderstood, Unknown) as trouble:
        unknown = _unknown(family, look, path, trouble, found)
        if bus or seen or _devices(family, look.settings.procfs):
            raise unknown from None
        # A tool may be installed everywhere: what it says where nothing is there is no trouble of the node.
        raise Absent(f"no {family.noun} on the PCI bus and no /dev/{family.devices}; {trouble}") from None
    if not (cards or bus or seen):
        raise Absent(f"{path} lists no {family.noun}")
    look.kept.measures = tuple(_measures(family, cards))
    look.kept.detail = f"{len(cards)} {family.noun}" + "".join(f"; {problem}" for problem in problems[:2])
    before: dict[str, Any] = saved.setdefault("cards", {})
    for card in cards:
        known = before.get(card.key, {})
        found += judge_card(family, card, known, look.settings.cards)
        before[card.key] = remember(card, known, look.settings.cards)
    found += judge_listed(family, cards, seen, on_pci, present, saved.setdefault("unlisted", {}))
    seen.update({card.address: card.name or family.noun for card in cards if card.address})
    saved["bus"] = sorted({*bus, *(address for address in seen if slot(address) in present)})
    return found


def _unknown(family: Family, look: Look, path: str, trouble: Exception, found: list[Finding]) -> Unknown:
    if isinstance(trouble, CommandHangs):
        memory = look.kept.own(Memory)
        still = trouble.stuck is not None and trouble.stuck is memory.stuck
        memory.stuck = trouble.stuck
        return Unknown(str(trouble), (*found, _hangs(family, trouble, still)))
    if isinstance(trouble, NotUnderstood):
        return Unknown(f"{path} is not understood (another version?): {trouble}", tuple(found))
    needs = f"{family.tool}, and {family.permission}"
    if not rights.has_devices(look.settings.procfs):
        needs += f": {rights.DEVICES}"
    return Unknown(f"{trouble}. To see health, temperature, ECC and memory it needs {needs}", tuple(found))


def _devices(family: Family, procfs: str) -> bool:
    return next(Path(procfs, "self/root/dev").glob(family.devices), None) is not None


def _widths(family: Family, sysfs: str, on_pci: list[str], saved: dict[str, Any]) -> list[Finding]:
    widest: dict[str, int] = saved.setdefault("lanes", {})
    found = []
    for address in on_pci:
        try:
            width = int(Path(sysfs, "bus/pci/devices", address, "current_link_width").read_text())
        except (OSError, ValueError):  # behind a bridge that has none, or EINVAL of a card that just left
            continue
        widest[address] = max(width, widest.get(address, 0))
        found += judge_width(family, address, width, widest[address])
    return found


def _cards(family: Family, kept: Kept, path: str, read: Reader) -> tuple[list[Card], list[str]]:
    memory = kept.own(Memory)
    if (stuck := memory.stuck) is not None:
        if stuck.poll() is None:  # a second one would hang beside it
            raise CommandHangs(f"{path}: pid {stuck.pid} still hangs in the kernel", stuck)
        memory.stuck = None
    tool = Tool(path, memory.sample_s)
    return read(tool, kept), tool.problems


def _hangs(family: Family, hang: CommandHangs, still: bool) -> Finding:
    """One that SIGKILL has not ended at the next look waits inside the driver: only a restart gets it out."""
    return Finding(
        check=family.check,
        component=Component.GPU,
        entity=f"{family.noun} driver",
        code="accelerator-tool-hangs",
        severity=Severity.FATAL if still else Severity.DEGRADED,
        action="RESTART_BM",
        summary=f"{family.tool} does not answer: the cards are not known to be healthy",
        evidence=(str(hang),),
    )


def _measures(family: Family, cards: Iterable[Card]) -> Iterable[Measure]:
    for card in cards:
        labels = (
            ("family", family.name),
            ("card", card.index),
            ("uuid", card.uuid),
            ("pci_bus_id", card.address),
            ("model", card.name),
        )
        values: Mapping[str, float | None] = {
            "memory_used_bytes": card.memory_used_bytes,
            "memory_total_bytes": card.memory_total_bytes,
            "power_watts": card.power_watts,
            "utilization_ratio": card.utilization,
            "ecc_uncorrected_errors": card.ecc_uncorrected,
            "ecc_corrected_errors": card.ecc_corrected,
            "ecc_unspecified_errors": card.ecc_unspecified,
        }
        for name, value in values.items():
            if value is not None:
                yield Measure(f"sentinel_accelerator_{name}", labels, float(value))
        for temperature in card.temperatures:
            sensor = (*labels, ("sensor", temperature.sensor))
            yield Measure("sentinel_accelerator_temperature_celsius", sensor, temperature.celsius)
