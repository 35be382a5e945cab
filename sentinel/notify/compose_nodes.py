"""What a mail about a node says, decided from its Quarantine: for administrators, one mail for each thing told.

All of it follows from the record, so that a successor of the controller that wrote it sends the same mail.
"""

from collections.abc import Sequence

from msgspec import Struct

from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.model import Brake, FenceState, Kind, Mode, NodeMail, NodeQuarantine, Repair, State
from sentinel.core.health import Finding
from sentinel.notify.compose import (
    MAX_EVIDENCE,
    MAX_STEPS,
    MailRequest,
    Moment,
    dashboard_of,
    hashed,
    host_name,
    page_of,
    slug,
    webhooks,
)
from sentinel.notify.text import clean, count, stamp
from sentinel.settings import Settings

MAX_NAMED = 12  # nodes, pods or findings in one line


class Place(Struct, frozen=True):
    """Where it happens. `name`: of the installation, the same for all its controllers; `cluster`: for people."""

    name: str
    cluster: str = ""


class _Words(Struct, frozen=True):
    """Of one reason. `headline` stands behind the node's name."""

    tone: str
    label: str
    headline: str
    urgent: bool = False


_OUT = _Words("bad", "Out of service", "taken out of service")
_HELD = _Words("busy", "Held back", "stays in service though it should not")
_BACK = _Words("good", "Back", "back in service")
WORDS: dict[Reason, _Words] = {
    Reason.FATAL_FINDING: _OUT,
    Reason.ON_PROBATION: _OUT,
    Reason.DISK_FULL: _OUT,
    Reason.ROOM_AGAIN: _OUT,
    Reason.HELD_BY_PERSON: _Words("info", "Held", "held out of service"),
    Reason.DRAIN_ORDERED: _Words("info", "Drain", "is drained"),
    Reason.DRAINED: _Words("good", "Drained", "drained: no protected job is left on it"),
    Reason.DRAIN_TAKEN_BACK: _Words("info", "Drain taken back", "is not drained any more"),
    Reason.MARK_FOUND: _Words("info", "Record made anew", "is isolated and its record was deleted"),
    Reason.BRAKED: _HELD,
    Reason.PAUSED: _HELD,
    Reason.NETWORK_SETTLING: _HELD,
    Reason.SETTLING: _HELD,
    Reason.NETWORK_INCIDENT: _Words("bad", "Network incident", "network incident", urgent=True),
    Reason.COMMON_CAUSE: _Words(
        "bad", "Common cause", "stays in service, many nodes have the same", urgent=True
    ),
    Reason.CODE_IGNORED: _Words("info", "Ignored", "back in service, its finding is ignored"),
    Reason.RELEASED: _BACK,
    Reason.RELEASED_BY_PERSON: _BACK,
    Reason.NOT_NEEDED: _Words("good", "Over", "need not be taken out any more"),
    Reason.UNCORDONED: _Words("info", "Overridden", "given back by a person's uncordon"),
    Reason.TAINT_REMOVED: _Words("info", "Overridden", "given back: Sentinel's taint was taken away"),
    Reason.UNINSTALLED: _Words("info", "Uninstalled", "given back: Sentinel was uninstalled"),
    Reason.NODE_GONE: _Words("info", "Gone", "its node object is gone"),
    Reason.NODE_REPLACED: _Words("info", "Replaced", "replaced by another machine"),
    Reason.NODE_RECREATED: _Words("info", "Recreated", "the same machine has a new node object"),
    Reason.AGENT_SILENT: _Words("busy", "Agent silent", "its agent is silent"),
    Reason.UNREACHABLE: _Words("bad", "Unreachable", "unreachable", urgent=True),
    Reason.UNFENCED: _Words("bad", "Unfenced", "unreachable, its pods are left alone", urgent=True),
    Reason.FENCING: _Words("bad", "Fencing", "unreachable, the fencing program powers it off", urgent=True),
    Reason.FENCED: _Words("info", "Fenced", "powered off"),
    Reason.FENCE_FAILED: _Words(
        "bad", "Fencing failed", "unreachable, the fencing program failed", urgent=True
    ),
    Reason.REMOVAL_BRAKED: _Words("busy", "Held back", "removal of its pods is held back"),
    Reason.REMOVED_BY_FORCE: _Words("bad", "Removed by force", "its pods are removed by force", urgent=True),
    Reason.SPEAKS_AGAIN: _Words("good", "Heard again", "heard again"),
    Reason.DOUBLED: _Words("info", "Record closed", "one of two records of the same was closed"),
    Reason.DEAD: _Words("info", "Gone", "dead and gone"),
}
_OTHER = _Words("info", "Notice", "something to know")


def words_of(stage: str) -> _Words:
    """What a newer Sentinel wrote and this one does not know is told as it is."""
    return WORDS.get(Reason(stage), _OTHER) if stage in set(Reason) else _OTHER


# ---------------------------------------------------------------- identity


def message_id(record: NodeQuarantine, stage: str, place: Place) -> str:
    """The same for every attempt of every controller; never the same for two records."""
    unique = hashed(record.id, record.node_uid, repr(record.since_wall_s))
    return f"<{slug(record.id, 60)}.{slug(stage, 30)}.{unique}@{domain(place)}>"


def domain(place: Place) -> str:
    return f"nodes.{host_name(place.name)}"


# ---------------------------------------------------------------- the parts


def _worst(found: Sequence[Finding]) -> str:
    if not found:
        return ""
    worst = max(found, key=lambda one: one.severity.order)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{clean(worst.code, 40)} of {clean(worst.entity, 60)}{more}"


def headline(record: NodeQuarantine, stage: str) -> str:
    words = words_of(stage)
    said = words.headline
    if words is _OUT and record.mode is Mode.OBSERVE:
        said = "would be taken out of service (observe mode)"
    if stage == Reason.FENCING.value and _only_observed(record):
        said = "unreachable, the fencing program would be called (observe mode)"
    if stage in (Reason.HELD_BY_PERSON.value, Reason.DRAIN_ORDERED.value) and record.by:
        said = f"{'is drained' if record.drain else 'held out of service'} by {clean(record.by, 60)}"
    why = _worst(record.findings)
    was = "" if record.state.open else "was "
    return f"{said} - {was}{why}" if why else said


def _only_observed(record: NodeQuarantine) -> bool:
    """Was the fencing program not called, since the node or a pod there is only observed?"""
    return record.fence is not None and record.fence.mode is Mode.OBSERVE


def finding_line(one: Finding, *, over: bool) -> str:
    times = f", {one.count:,} times" if one.count > 1 else ""
    seen = (
        f"first seen {stamp(one.first_seen_wall_s, with_date=True)}{times}" if one.first_seen_wall_s else ""
    )
    action = f"; to be done: {clean(one.action, 60)}" if one.action and not over else ""
    summary = clean(one.summary.removeprefix(f"{one.code}: "), 200).rstrip(".")
    return (
        f"{clean(one.code, 60)} of {clean(one.entity, 100)}: {summary}"
        + (f" ({seen})" if seen else "")
        + action
    )


def _done(record: NodeQuarantine) -> str:
    if record.mode is Mode.OBSERVE:
        return "nothing was touched (observe mode)"
    if record.kind is Kind.SILENCE:
        removed = sum(len(one.pods) for one in record.removals if one.mode is Mode.ENFORCE)
        fence = record.fence
        off = "powered off by the fencing program" if fence and fence.state is FenceState.OFF else ""
        pods = f"{count(removed, 'pod')} removed by force" if removed else ""
        return "; ".join(filter(None, (off, pods))) or "nothing was touched"
    if record.state is State.HELD:
        return "nothing yet: the node takes new pods"
    if not record.state.open:
        return "" if record.acted_wall_s else "nothing: the node was never touched"
    when = f" at {stamp(record.acted_wall_s, with_date=False)}" if record.acted_wall_s else ""
    return f"unschedulable and tainted (NoSchedule){when}; no running pod was touched"


def named(names: Sequence[str]) -> str:
    shown = ", ".join(clean(name, 120) for name in names[:MAX_NAMED])
    return shown + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def _facts(record: NodeQuarantine) -> tuple[tuple[str, str], ...]:
    rows = [("node", clean(record.node, 120)), ("pool", clean(record.pool, 80))]
    over = not record.state.open
    rows += [("found", finding_line(one, over=over)) for one in record.findings[:MAX_NAMED]]
    rows += [
        ("since", stamp(record.since_wall_s, with_date=True) if record.since_wall_s else ""),
        ("done", _done(record)),
        ("held by", record.held_by.value if record.state.open else ""),
        ("ran there", named(record.running_there) or ("no pods" if record.state.open else "")),
        (
            "over when" if record.state is State.HELD else "comes back",
            clean(record.needs.sentence, 300) if record.state.open else "",
        ),
        ("isolated", f"{count(record.repeats, 'time')} before, lately" if record.repeats else ""),
        ("by", clean(record.by, 80)),
        ("ended", stamp(record.ended_wall_s, with_date=True) if record.ended_wall_s else ""),
    ]
    return tuple((name, value) for name, value in rows if value)


def _advice(record: NodeQuarantine, stage: str) -> str:
    if record.mode is Mode.OBSERVE and record.state.open:
        return "Nothing: this pool is only observed."
    if stage == Reason.FENCING.value and _only_observed(record):
        stage = Reason.UNREACHABLE.value
    match stage:
        case Reason.UNREACHABLE.value | Reason.UNFENCED.value:
            return (
                "Find out whether the machine is off. Its ranks may still run and write, so its pods stay where they "
                "are until it is heard again or somebody says that it is dead."
            )
        case Reason.FENCING.value:
            return "Nothing yet: when it is off its pods are removed by force, and their jobs may start elsewhere."
        case Reason.FENCE_FAILED.value:
            return "Find out why the program failed, and power the machine off by hand: its pods stay until then."
        case Reason.AGENT_SILENT.value:
            return "Look at Sentinel's agent there; the node itself lives. Its faults are not seen meanwhile."
        case Reason.REMOVED_BY_FORCE.value:
            return "Their jobs may start elsewhere. Look at the machine before it takes part again."
        case Reason.REMOVAL_BRAKED.value:
            return "It goes on by itself when there is room; look first whether so many machines are really dead."
        case Reason.BRAKED.value:
            return (
                "So many nodes at once are often one cause: look for it. The node follows by itself when there is "
                "room; cordon it yourself if it must not take new pods now."
            )
        case Reason.PAUSED.value:
            return "Sentinel is paused: cordon the node yourself if it must not take new pods now."
    if not record.state.open:
        return ""  # the sentence says what will be
    if record.kind is Kind.HOLD:
        return "It stays out of service until somebody releases it."
    if record.needs.repair is Repair.PERSON:
        return "Sentinel does not give it back by itself: repair it, and release it then."
    if record.kind is Kind.DISK:
        return "Free space there; the node comes back by itself."
    return "Repair it. Sentinel gives it back by itself when what stands under 'comes back' holds."


def _commands(record: NodeQuarantine, stage: str) -> tuple[tuple[str, str], ...]:
    node = clean(record.node, 120)
    rows = [("story", f"kubectl describe quarantine {clean(record.id, 140)}")]
    if not record.state.open:
        return tuple(rows)
    if record.kind is Kind.SILENCE:
        if record.reason == Reason.AGENT_SILENT.value:  # it lives: its kubelet is heard
            return tuple(rows)
        return (*rows, ("it is off", f"sentinel confirm-dead {node}"))
    if record.state is State.HELD:
        if record.held_by in (Brake.AT_A_TIME, Brake.POOL_AT_A_TIME):
            rows.append(("make room", "sentinel acknowledge NODE, of each that is out rightly"))
        return (*rows, ("take out", f"sentinel hold {node}"), ("let it be", f"sentinel release {node}"))
    rows += [("give back", f"sentinel release {node}"), ("likewise", f"kubectl uncordon {node}")]
    if record.kind is not Kind.HOLD:
        rows.append(("keep out", f"sentinel hold {node}"))
    return tuple(rows)


def _story(record: NodeQuarantine) -> tuple[Moment, ...]:
    shown = [
        Moment(stamp(one.wall_s, with_date=False), one.state.value, clean(one.sentence, 400))
        for one in record.story
    ]
    if len(shown) == 1:  # the mail's own sentence
        return ()
    if len(shown) > MAX_STEPS:
        half = MAX_STEPS // 2
        left_out = Moment("", "", f"({len(shown) - 2 * half} more lines)")
        shown = [*shown[:half], left_out, *shown[-half:]]
    return tuple(shown)


def evidence_of(found: Sequence[Finding]) -> tuple[str, ...]:
    lines = [clean(line) for one in found for line in one.evidence]
    more = [f"({len(lines) - MAX_EVIDENCE} more lines)"] if len(lines) > MAX_EVIDENCE else []
    return (*lines[:MAX_EVIDENCE], *more)


# ---------------------------------------------------------------- the mails


def node_request(
    record: NodeQuarantine,
    mail: NodeMail,
    settings: Settings,
    place: Place,
    now_wall_s: float,
    *,
    brief: bool = False,
) -> MailRequest:
    """The mail about one thing that happened to one node. `brief`: only what a digest of hundreds needs of it."""
    stage, node = mail.stage, clean(record.node, 120)
    words, said = words_of(stage), headline(record, stage)
    line = next((one for one in record.story if (one.wall_s, one.reason) == (mail.wall_s, stage)), None)
    first = record.mails[0].stage if record.mails else stage
    threaded = first not in (stage, Reason.NETWORK_INCIDENT.value, Reason.COMMON_CAUSE.value)
    return request_of(
        settings,
        place,
        now_wall_s,
        mail=mail,
        message_id=message_id(record, stage, place),
        references=message_id(record, first, place) if threaded else "",
        subject=clean(f"[sentinel] {node}: {said}", 200),
        headers=headers_of(place, node, record.id, stage, urgent=words.urgent),
        tone="info" if record.mode is Mode.OBSERVE and words.tone == "bad" else words.tone,
        label=words.label,
        title=f"{node}: {said}",
        sentence=clean(record.sentence if line is None else line.sentence, 600),
        facts=() if brief else _facts(record),
        advice="" if brief else _advice(record, stage),
        story=() if brief else _story(record),
        evidence=() if brief else evidence_of(record.findings),
        look=() if brief else _commands(record, stage),
        node=record.node,
        footer=f"Quarantine {clean(record.id, 140)}.",
    )


def request_of(
    settings: Settings,
    place: Place,
    now_wall_s: float,
    *,
    mail: NodeMail,
    message_id: str,
    subject: str,
    headers: tuple[tuple[str, str], ...],
    tone: str,
    label: str,
    title: str,
    sentence: str,
    facts: tuple[tuple[str, str], ...],
    advice: str,
    evidence: tuple[str, ...],
    look: tuple[tuple[str, str], ...],
    footer: str,
    references: str = "",
    story: tuple[Moment, ...] = (),
    node: str = "",
    times: str = "those of the controller",
) -> MailRequest:
    everyone = (*settings.mail.admins, *webhooks(settings, "nodes"))
    return MailRequest(
        message_id=message_id,
        references=references,
        sender=settings.mail.sender or f"sentinel@{host_name(place.name)}",
        recipients=tuple(one for one in everyone if one not in mail.done and one not in mail.refused),
        to=everyone,
        subject=subject,
        headers=headers,
        date_wall_s=now_wall_s,
        at_wall_s=mail.wall_s,
        tone=tone,
        label=label,
        title=title,
        sentence=sentence,
        facts=facts,
        advice=advice,
        story=story,
        evidence=evidence,
        look=look,
        look_title="What to use",
        page_url=page_of(settings, "nodes", node) if node else clean(settings.page_url),
        dashboard_url=dashboard_of(settings, "nodes", node) if node else "",
        footer=footer_of(footer, place, times),
    )


def footer_of(what: str, place: Place, times: str = "those of the controller") -> str:
    cluster = f"Cluster {clean(place.cluster, 200)}." if place.cluster else ""
    return " ".join(part for part in (what, cluster, f"Times are {times}.") if part)


def headers_of(
    place: Place, node: str, record: str, stage: str, *, urgent: bool = False
) -> tuple[tuple[str, str], ...]:
    rows = [
        ("X-Sentinel-Node", node),
        ("X-Sentinel-Quarantine", clean(record, 140)),
        ("X-Sentinel-Stage", stage),
        ("List-Id", f"Sentinel, nodes of {clean(place.name, 60)} <nodes.sentinel.{host_name(place.name)}>"),
        ("Auto-Submitted", "auto-generated"),
        ("X-Auto-Response-Suppress", "All"),  # what Exchange reads instead
        ("Importance", "high" if urgent else ""),
    ]
    return tuple((name, value) for name, value in rows if value)
