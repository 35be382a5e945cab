"""From an Xid, an SXid or a row of kernel.toml to a Finding: severity and action come from the tables in rules/."""

import os
import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct

from sentinel.core.health import Component, Finding, Severity
from sentinel.logs.kernel import KernelEvent, KernelRule
from sentinel.rules.tables import RuleError, data_dir, load_rows

XID_COLUMNS = 5

UNKNOWN_REASON = "not in NVIDIA's catalogue: told, never a reason to isolate"


class Meaning(Struct, frozen=True):
    """What a fault means: Sentinel's severity, NVIDIA's action, and why the two belong together."""

    severity: Severity
    action: str
    title: str
    reason: str


class BucketRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    immediate: str
    severity: Severity
    reason: str
    investigatory: str = "*"
    action: str = ""


class XidRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    xid: int
    severity: Severity
    reason: str
    text: str = ""
    action: str = ""


class RecoveryRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: int
    text: str
    severity: Severity
    action: str
    reason: str


class RepeatRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `code`, or `bucket`: every code with that action that has no rows of its own.

    `jobs`: so many different jobs must have met the fault on this card. Lines less than `apart_s` apart tell of one
    occurrence. `action` "": that of the fault stays.
    """

    within_s: float
    severity: Severity
    reason: str
    code: str = ""
    bucket: str = ""
    count: int = 1
    jobs: int = 0
    apart_s: float = 0.0
    action: str = ""

    def __post_init__(self) -> None:
        if bool(self.code) == bool(self.bucket):
            raise ValueError("expected either `code` or `bucket`")
        if (self.count > 1) == (self.jobs > 1):
            raise ValueError("expected either `count` or `jobs`, above 1")


class ActionRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an action asks of a person. `boot`: a new boot is the repair, or shows the fault again at once."""

    name: str
    do: str
    boot: bool


class _Severities(Struct, frozen=True):
    buckets: list[BucketRow]
    xids: list[XidRow]
    recoveries: list[RecoveryRow]
    repeats: list[RepeatRow]
    actions: list[ActionRow]


class CatalogueRow(Struct, frozen=True, gc=False):
    number: int
    description: str
    immediate: str
    investigatory: str


def _tsv(name: str) -> Iterator[list[str]]:
    with open(data_dir("rules") / name, encoding="utf-8") as file:
        rows = (line.rstrip("\n").split("\t") for line in file if not line.startswith("#"))
        next(rows, None)  # the names of the columns
        yield from rows


@cache
def severities() -> _Severities:
    """rules/severity.toml. Raises RuleError that names every bad row."""
    path = data_dir("rules") / "severity.toml"
    return _Severities(
        load_rows(path, "bucket", BucketRow),
        load_rows(path, "xid", XidRow),
        load_rows(path, "recovery", RecoveryRow),
        load_rows(path, "repeat", RepeatRow),
        load_rows(path, "action", ActionRow),
    )


@cache
def actions() -> dict[str, ActionRow]:
    """[[action]] of rules/severity.toml by name."""
    return {row.name: row for row in severities().actions}


@cache
def catalogue() -> dict[int, CatalogueRow]:
    """rules/xid.tsv by number. Raises RuleError that names every bad row."""
    found: dict[int, CatalogueRow] = {}
    problems = []
    for row in _tsv("xid.tsv"):
        if len(row) != XID_COLUMNS or not row[0].isdecimal():
            problems.append(
                f"xid.tsv: {chr(9).join(row)!r}: expected a number and {XID_COLUMNS} columns with tabs"
            )
        elif int(row[0]) in found:
            problems.append(f"xid.tsv: {row[0]} stands twice")
        else:
            found[int(row[0])] = CatalogueRow(int(row[0]), row[2], row[3], row[4])
    if problems:
        raise RuleError(problems)
    return found


@cache
def _nvlink5() -> list[list[str]]:
    return list(_tsv("nvlink5.tsv"))


@cache
def _sxids() -> dict[int, tuple[str, str, str]]:
    return {int(row[0]): (row[1], row[2], row[3]) for row in _tsv("sxid.tsv")}


def bucket_meaning(immediate: str, investigatory: str, title: str) -> Meaning:
    """Severity of a pair of NVIDIA's actions. One that no row names warns."""
    for row in severities().buckets:
        if row.immediate == immediate and row.investigatory in ("*", investigatory):
            action = row.action or immediate or investigatory or "CONTACT_SUPPORT"
            return Meaning(row.severity, action, title, row.reason)
    return Meaning(
        Severity.WARNING, immediate, title, f"unknown action {immediate}: told, never a reason to isolate"
    )


def recovery_meaning(text: str = "", value: int | None = None) -> Meaning:
    """What the driver's own recovery action (the words of Xid 154, or NVML field 230) asks for."""
    title = "GPU recovery action: " + (text or f"0x{value or 0:x}")
    words = text.lower()
    for row in severities().recoveries:
        if (value is not None and value == row.value) or (words and row.text in words):
            return Meaning(row.severity, row.action, title, row.reason)
    return Meaning(
        Severity.WARNING, "CONTACT_SUPPORT", title, "unknown recovery action: told, never a reason to isolate"
    )


def xid_meaning(number: int, rest: str = "", recovery: str = "") -> Meaning:
    """What Xid `number` means; `rest` is the text behind it, `recovery` the new action of Xid 154."""
    known = catalogue().get(number)
    if known is None:
        return Meaning(Severity.WARNING, "CONTACT_SUPPORT", "unknown Xid", UNKNOWN_REASON)
    title = known.description or "no description in NVIDIA's catalogue"
    for row in severities().xids:
        if row.xid == number and row.text in rest.lower():
            return Meaning(row.severity, row.action or known.immediate, title, row.reason)
    if known.immediate == "XID_154":
        return recovery_meaning(recovery) if recovery else bucket_meaning("", "", title)
    if known.immediate == "WORKFLOW_NVLINK5_ERR" and (decoded := decode_nvlink5(number, rest)):
        return decoded
    return bucket_meaning(known.immediate, known.investigatory, title)


_REGISTERS = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]*)\b.*?[(\[](?P<intrinfo>0x[0-9a-fA-F]{1,8})[ ,]+(?P<status>0x[0-9a-fA-F]{1,8})"
)


def _fits(pattern: str, bits: str) -> bool:
    return all(want in ("-", have) for want, have in zip(pattern, bits, strict=True))


def decode_nvlink5(number: int, rest: str) -> Meaning | None:
    """Xid 144-150 by its registers: `RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...)`.

    Where several bits of the error status are set, the row with the worst action counts. None: no row fits.
    """
    match = _REGISTERS.search(rest)
    if match is None:
        return None
    bits = f"{int(match['intrinfo'], 16):032b}"
    status = int(match["status"], 16)
    worst: Meaning | None = None
    for xid, unit, before_r575, r575, error_status, immediate, investigatory, _ in _nvlink5():
        if int(xid) != number or not (_fits(before_r575, bits) or _fits(r575, bits)):
            continue
        if not any(
            match["unit"].startswith(name) or name.startswith(match["unit"]) for name in unit.split("/")
        ):
            continue
        # The status of 149 is a number, that of the others a set of bits.
        wanted = int(error_status, 16)
        if wanted != status and (number == 149 or not wanted & status):
            continue
        found = bucket_meaning(immediate, investigatory, f"{unit} error status {error_status}")
        if worst is None or found.severity.order > worst.severity.order:
            worst = found
    return worst


def sxid_meaning(number: int, word: str = "") -> Meaning:
    """What an NVSwitch error means. The table is not NVIDIA's; the driver's own `word` in the line wins over it."""
    known = _sxids().get(number)
    if known is None:
        return Meaning(
            Severity.WARNING,
            "CONTACT_SUPPORT",
            "unknown SXid",
            "not in the table: told, never a reason to isolate",
        )
    name, event, actions = known
    fatal = (word or event).lower() == "fatal"
    reason = "the driver's word in the line" if word else "GPUd's reading, not NVIDIA's catalogue"
    if not fatal:
        return Meaning(Severity.WARNING, "CONTACT_SUPPORT", name, reason)
    return Meaning(
        Severity.FATAL, "RESTART_BM" if "Reboot" in actions or not actions else actions, name, reason
    )


_PLACES = {Component.NIC: "NIC", Component.GPU: "GPU"}


def _of_rule(event: KernelEvent, rule: KernelRule) -> tuple[Component, str, Meaning]:
    component = Component(rule.component)
    process = f"pid {event.pid} ({event.name})" if event.pid is not None else ""
    device = f"{_PLACES.get(component, 'PCI')} {event.pci}" if event.pci else ""
    # A hung or killed process is its own entity; elsewhere the process is only who met the fault.
    entity = event.entity or device or process or component.value
    title = rule.summary + (f": {event.name}" if event.name else "")
    return component, entity, Meaning(Severity(rule.severity), rule.action, title, "")


def finding_of(event: KernelEvent, at_wall_s: float, at_mono_s: float, boot_id: str) -> Finding:
    """The finding that a kernel event makes; times are those of the message."""
    number = event.number or 0
    over = False
    if event.rule is not None:
        component, entity, meaning = _of_rule(event, event.rule)
        code, summary, over = event.rule.code, meaning.title, event.rule.over
    else:
        switch = event.kind == "sxid"
        component = Component.GPU
        entity = f"{'NVSwitch' if switch else 'GPU'} {event.pci or '(address unknown)'}"
        code = f"{'SXID' if switch else 'XID'} {number}"
        meaning = (
            sxid_meaning(number, event.word) if switch else xid_meaning(number, event.rest, event.recovery)
        )
        summary = f"{code}: {meaning.title} ({meaning.reason})"
    return Finding(
        check="kernel",
        component=component,
        entity=entity,
        code=code,
        severity=meaning.severity,
        action=meaning.action,
        summary=summary,
        evidence=(event.text,),
        event=True,
        first_seen_wall_s=at_wall_s,
        last_seen_wall_s=at_wall_s,
        seen_mono_s=at_mono_s,
        count=event.count,
        pid=event.pid,
        process=event.name,
        cgroup=event.cgroup,
        job=job_of_cgroup(event.cgroup),
        uuid=event.uuid,
        over=over,
        boot_id=boot_id,
    )


_JOB = re.compile(
    r"/job_(?P<slurm>\d+)(?:/|$)"
    r"|[/-]pod(?P<pod>[0-9a-f]{8}[-_][0-9a-f_-]{4,27})(?:\.slice)?(?:/|$)"
    r"|(?:/docker[/-]|[/-]libpod-|/lxc/|/lxc\.payload\.)(?P<container>[\w.-]{1,64}?)(?:\.scope)?(?:/|$)"
)


def job_of_cgroup(cgroup: str) -> str:
    """The job, pod or container that a cgroup path tells: "slurm 4711", "pod 77f06c5c-...". "": none."""
    found = _JOB.search(cgroup) if cgroup else None
    if found is None:
        return ""
    kind = str(found.lastgroup)
    return f"{kind} {found[kind].replace('_', '-') if kind == 'pod' else found[kind]}"


# What controllers append to a pod's name: an index, a hash of five or of eight to ten letters, none of them a vowel.
_APPENDED = re.compile(r"-(?:\d+|[bcdfghjklmnpqrstvwxz2456789]{5}|[bcdfghjklmnpqrstvwxz2456789]{8,10})$")


def named_pod(job: str, folder: str) -> str:
    """ "pod UID" as "pod NAMESPACE/NAME" without what was appended: one that a controller made anew is the same job.

    The kubelet names the folders of logs NAMESPACE_NAME_UID. Where it has none the UID stays.
    """
    kind, _, uid = job.partition(" ")
    if kind != "pod":
        return job
    try:
        found = next((name for name in os.listdir(folder) if name.endswith(f"_{uid}")), "")
    except OSError:
        found = ""
    parts = found.split("_")
    if len(parts) != 3:
        return job
    name = parts[1]
    while shorter := _APPENDED.sub("", name):
        if shorter == name:
            break
        name = shorter
    return f"pod {parts[0]}/{name}"
