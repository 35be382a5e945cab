"""What one kernel message says: a pure parser of NVIDIA's Xid and SXid lines and of the rows of rules/kernel.toml."""

import re
from collections.abc import Sequence
from functools import cache

from msgspec import Struct

from sentinel.rules import data_dir, load_rows

MAX_TEXT = 500  # characters of a message that are kept


class KernelRule(Struct, frozen=True, kw_only=True):
    """One row of rules/kernel.toml. `pattern` may name the groups entity, pid and name."""

    code: str
    literal: str
    pattern: str
    component: str
    severity: str
    action: str
    summary: str
    source: str


class KernelEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault that the kernel reported. `kind` is "xid", "sxid" or "rule" (then `rule` is the row)."""

    kind: str
    text: str  # the message, cut at MAX_TEXT
    number: int | None = None  # of the Xid or SXid
    pci: str = ""  # "0000:18:00.0"; "" where the line does not say
    pid: int | None = None  # None also for '<unknown>'
    name: str = ""  # of the process
    rest: str = ""  # what follows number, pid and name
    entity: str = ""  # of a rule: "nvme0n1"
    recovery: str = ""  # of Xid 154: the new recovery action, "GPU Reset Required"
    previous: int | None = None  # "caused by previous Xid 149"
    word: str = ""  # of an SXid: the driver's own "Fatal" or "Non-fatal"
    rule: KernelRule | None = None


_ADDRESS = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
# The driver starts its lines with NVRM; the same words further right are somebody's quotation.
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}[^)\n]*\): (?P<number>\d{{1,5}})(?!\d)(?:, )?(?P<rest>.*)", re.DOTALL
)
_SXID = re.compile(
    rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?{_ADDRESS}\): (?P<number>\d{{1,6}})(?!\d)(?:, )?(?P<rest>.*)",
    re.DOTALL,
)
_PROCESS = re.compile(r"pid=(?P<pid>'?<unknown>'?|\d+)(?:, name=(?P<name><unknown>|[^,\n]*))?(?:, )?")
_RECOVERY = re.compile(r"recovery action changed from .*? to 0x[0-9a-fA-F]+ \((?P<action>[^)]*)\)")
_PREVIOUS = re.compile(r"caused by previous Xid (\d+)")
_ANY_ADDRESS = re.compile(rf"(?<![0-9a-fA-F]){_ADDRESS}")
_OFF_THE_BUS = "fallen off the bus"


def normal_pci(address: str) -> str:
    """`00000000:18:00.0`, `0000:18:00` -> `0000:18:00.0`: four digits of domain, lower case, with a function."""
    domain, bus, slot = address.lower().split(":")
    if "." not in slot:
        slot += ".0"
    return f"{int(domain, 16):04x}:{bus}:{slot}"


@cache
def shipped_rules() -> tuple[tuple[KernelRule, "re.Pattern[str]"], ...]:
    """The rows of rules/kernel.toml with their compiled patterns."""
    rows = load_rows(data_dir("rules") / "kernel.toml", "rule", KernelRule)
    return tuple((row, re.compile(row.pattern)) for row in rows)


def parse_kernel(
    text: str, rules: Sequence[tuple[KernelRule, "re.Pattern[str]"]] | None = None
) -> KernelEvent | None:
    """The fault that a kernel message (without prefix) reports, or None. Never raises on any text."""
    if text.startswith("NVRM: "):
        return _parse_nvrm(text)
    if "SXid" in text and (match := _SXID.match(text)):
        rest = match["rest"]
        word = rest.split(",", 1)[0].strip()
        return KernelEvent(
            kind="sxid",
            text=text[:MAX_TEXT],
            number=int(match["number"]),
            pci=normal_pci(match["pci"]),
            rest=rest[:MAX_TEXT],
            word=word if word.lower() in ("fatal", "non-fatal") else "",
        )
    for rule, pattern in shipped_rules() if rules is None else rules:
        if rule.literal in text and (match := pattern.search(text)):
            groups = match.groupdict()
            return KernelEvent(
                kind="rule",
                text=text[:MAX_TEXT],
                entity=groups.get("entity") or "",
                pid=_pid(groups.get("pid")),
                name=groups.get("name") or "",
                rule=rule,
            )
    return None


def _pid(digits: str | None) -> int | None:
    return int(digits) if digits and digits.isascii() and digits.isdigit() and len(digits) <= 10 else None


def _parse_nvrm(text: str) -> KernelEvent | None:
    match = _XID.match(text)
    if match is None:
        if _OFF_THE_BUS not in text:
            return None
        # The driver's long form ("The NVIDIA GPU 0000:b3:00.0 ... has fallen off the bus"), printed without an Xid.
        found = _ANY_ADDRESS.search(text)
        return KernelEvent(
            kind="xid",
            text=text[:MAX_TEXT],
            number=79,
            pci=normal_pci(found["pci"]) if found else "",
            rest=text[:MAX_TEXT],
        )
    rest = match["rest"]
    pid: int | None = None
    name = ""
    if process := _PROCESS.match(rest):
        pid = _pid(process["pid"])
        name = process["name"] or ""
        rest = rest[process.end() :]
    recovery = _RECOVERY.search(rest)
    previous = _PREVIOUS.search(rest)
    return KernelEvent(
        kind="xid",
        text=text[:MAX_TEXT],
        number=int(match["number"]),
        pci=normal_pci(match["pci"]),
        pid=pid,
        name="" if name == "<unknown>" else name[:64],
        rest=rest[:MAX_TEXT],
        recovery=recovery["action"] if recovery else "",
        previous=int(previous[1]) if previous else None,
    )
