"""What one kernel message says: a pure parser of NVIDIA's Xid and SXid lines and of the rows of rules/kernel.toml.

Every pattern is anchored where the kernel begins its text: a process name, a path or an audit record that
quotes such a line further right proves nothing.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.rules.tables import data_dir, load_rows

MAX_TEXT = 500  # characters of a message that are kept


class KernelRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of rules/kernel.toml. `pattern` may name the groups entity, pci, pid, name, cgroup and count."""

    code: str
    literal: str
    pattern: str
    component: str
    severity: str
    action: str
    summary: str
    source: str
    over: bool = False  # the line says that the fault of this code has ended
    settles_s: float = (
        0.0  # so soon after the boot, or after the driver took the device, the line means nothing
    )


class KernelEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault that the kernel reported. `kind` is "xid", "sxid" or "rule" (then `rule` is the row)."""

    kind: str
    text: str  # the message, cut at MAX_TEXT
    number: int | None = None  # of the Xid or SXid
    pci: str = ""  # "0000:18:00.0"; "" where the line does not say
    uuid: str = ""  # of the GPU, where an earlier line of the driver told it
    pid: int | None = None  # None also for '<unknown>'
    name: str = ""  # of the process
    cgroup: str = ""  # of the process
    count: int = 1  # how many the line speaks of
    rest: str = ""  # what follows number, pid and name
    entity: str = ""  # of a rule: "nvme0n1"
    recovery: str = ""  # of Xid 154: the new recovery action, "GPU Reset Required"
    previous: int | None = None  # "caused by previous Xid 149"
    word: str = ""  # of an SXid: the driver's own "Fatal" or "Non-fatal"
    rule: KernelRule | None = None


_ADDRESS = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}[^)\n]*\): (?P<number>\d{{1,5}})(?!\d)(?:, )?(?P<rest>.*)", re.DOTALL
)
_SXID = re.compile(
    rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?{_ADDRESS}\): (?P<number>\d{{1,6}})(?!\d)(?:, )?(?P<rest>.*)",
    re.DOTALL,
)
# The driver prints these two below the line that names the error: nothing of their own.
_SXID_DETAIL = ("Severity ", "Data {")
_PROCESS = re.compile(r"pid=(?P<pid>'?<unknown>'?|\d+)(?:, name=(?P<name><unknown>|[^,\n]*))?(?:, )?")
_RECOVERY = re.compile(r"recovery action changed from .*? to 0x[0-9a-fA-F]+ \((?P<action>[^)]*)\)")
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,5})")
# Without an Xid: "GPU at PCI:0000:b3:00: GPU has ...", or "The NVIDIA GPU 0000:b3:00.0 ..." on one line or on three.
_OFF_THE_BUS = re.compile(
    rf"NVRM: (?:(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_ADDRESS}(?![0-9a-fA-F]).{{0,200}}?[\s:])?"
    r"(?:GPU )?(?:has\s+)?fallen off the bus",
    re.DOTALL,
)
# Where the kernel begins its text with the name of the program that it speaks of: any user chooses such a name (15
# characters), and with the path of his program what stands further right.
_NAME_FIRST = re.compile(
    r".{0,15}?(?:\[\d{1,10}\]:? | ?\(\d{1,10}\):? |/\d{1,10}:? | invoked oom-killer: | used greatest stack "
    r"|: (?:page|vmalloc|attempt|sending|potentially) )",
    re.DOTALL,
)


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
    event = _parse(text, _possible(text) if rules is None else rules)
    return None if event is None or _NAME_FIRST.match(text) else event


def _possible(text: str) -> Sequence[tuple[KernelRule, "re.Pattern[str]"]]:
    """The shipped rules with a literal that may stand in `text`. A log says much the same again and again, with other
    numbers: what was found for a text without its digits holds for all of that kind."""
    kind = _kind(text)
    return _of_kind(kind) if len(kind) <= MAX_TEXT else shipped_rules()


@lru_cache(maxsize=256)
def _of_kind(kind: bytes) -> tuple[tuple[KernelRule, "re.Pattern[str]"], ...]:
    return tuple(one for one in shipped_rules() if _kind(one[0].literal) in kind)


def _kind(text: str) -> bytes:
    return text.encode(errors="replace").translate(None, b"0123456789")


def _parse(text: str, rules: Sequence[tuple[KernelRule, "re.Pattern[str]"]]) -> KernelEvent | None:
    if text.startswith("NVRM: ") and (event := _parse_nvrm(text)) is not None:
        return event
    if "SXid" in text and (match := _SXID.match(text)):
        return _sxid(match)
    for rule, pattern in rules:
        if rule.literal in text and (match := pattern.match(text)):
            return _ruled(rule, match.groupdict(), text)
    return None


def _ruled(rule: KernelRule, groups: "dict[str, str | None]", text: str) -> KernelEvent:
    pci, count = groups.get("pci"), groups.get("count") or ""
    return KernelEvent(
        kind="rule",
        text=text[:MAX_TEXT],
        entity=(groups.get("entity") or "")[:128],
        pci=normal_pci(pci) if pci else "",
        pid=_pid(groups.get("pid")),
        name=(groups.get("name") or "")[:64],
        cgroup=(groups.get("cgroup") or "")[:MAX_TEXT],
        count=max(1, int(count)) if count.isascii() and count.isdigit() and len(count) < 10 else 1,
        rule=rule,
    )


def _sxid(match: "re.Match[str]") -> KernelEvent | None:
    rest = match["rest"]
    if rest.startswith(_SXID_DETAIL):
        return None
    word = rest.split(",", 1)[0].strip()
    return KernelEvent(
        kind="sxid",
        text=match.string[:MAX_TEXT],
        number=int(match["number"]),
        pci=normal_pci(match["pci"]),
        rest=rest[:MAX_TEXT],
        word=word if word.lower() in ("fatal", "non-fatal") else "",
    )


def _pid(digits: str | None) -> int | None:
    return int(digits) if digits and digits.isascii() and digits.isdigit() and len(digits) <= 10 else None


def _parse_nvrm(text: str) -> KernelEvent | None:
    match = _XID.match(text)
    if match is None:
        if (found := _OFF_THE_BUS.match(text)) is None:
            return None
        return KernelEvent(
            kind="xid",
            text=text[:MAX_TEXT],
            number=79,
            pci=normal_pci(found["pci"]) if found["pci"] else "",
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


# ---------------------------------------------------------------- what several lines say together

_GPU_NAMED = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}")
_GPU_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?{_ADDRESS}: (?P<uuid>GPU-[0-9a-fA-F-]{{36}})")
_OOM = re.compile(r"oom-kill:.*?[,:]task_memcg=(?P<cgroup>[^,]*),task=.*,pid=(?P<pid>\d+),uid=\d+$")
_OLD_OOM = re.compile(r"Task in (?P<cgroup>/\S*) killed as a result of limit of ")  # until Linux 4.19
_LOADED = re.compile(rf"mlx5_core {_ADDRESS}: firmware version: ")
MAX_REMEMBERED = 64  # cards, and kills whose second line has not come


class KernelLog:
    """Messages in their order → faults, with what an earlier line told: an address, a UUID, a cgroup."""

    def __init__(self) -> None:
        self._off_the_bus = ""  # the card whose three-line message has begun
        self._uuids: dict[str, str] = {}
        self._loaded_s: dict[str, float] = {}  # device -> when its driver took it
        # Of processes that are about to be killed; None: of the next one.
        self._cgroups: dict[int | None, str] = {}

    def take(self, text: str, uptime_s: float | None = None) -> KernelEvent | None:
        """The fault that this message reports, or None. Never raises on any text.

        `uptime_s`: when, since the boot. None: not known, and no line is taken for part of a start.
        """
        event = parse_kernel(text)
        if event is None:
            self._remember(text, uptime_s)
            return None
        rule = event.rule
        if rule is not None and rule.settles_s and uptime_s is not None:
            since_s = uptime_s - self._loaded_s.get(event.pci, 0.0)
            if min(uptime_s, since_s) < rule.settles_s:
                return None
        if event.kind == "xid":
            pci = event.pci or (self._off_the_bus if event.number == 79 else "")
            self._off_the_bus = ""
            if pci != event.pci or pci in self._uuids:
                return msgspec.structs.replace(event, pci=pci, uuid=self._uuids.get(pci, ""))
        elif (
            self._cgroups
            and event.pid is not None
            and event.rule is not None
            and event.rule.code == "oom-kill"
        ):
            cgroup = self._cgroups.pop(event.pid, None) or self._cgroups.pop(None, "")
            return msgspec.structs.replace(event, cgroup=cgroup)
        return event

    def _remember(self, text: str, uptime_s: float | None) -> None:
        if text.startswith("NVRM: "):
            if found := _GPU_NAMED.match(text):
                self._off_the_bus = normal_pci(found["pci"])
            elif found := _GPU_UUID.match(text):
                self._uuids[normal_pci(found["pci"])] = found["uuid"]
                _bound(self._uuids)
        elif text.startswith("oom-kill:") and (found := _OOM.match(text)):
            if (pid := _pid(found["pid"])) is not None:
                self._cgroups[pid] = found["cgroup"][:MAX_TEXT]
                _bound(self._cgroups)
        elif uptime_s is not None and text.startswith("mlx5_core ") and (found := _LOADED.match(text)):
            self._loaded_s[normal_pci(found["pci"])] = uptime_s
            _bound(self._loaded_s)
        elif text.startswith("Task in /") and (found := _OLD_OOM.match(text)):
            self._cgroups[None] = found["cgroup"][:MAX_TEXT]


def _bound(known: dict[Any, Any]) -> None:
    while len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]
