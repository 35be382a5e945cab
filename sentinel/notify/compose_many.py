"""Mails about many nodes at once: a network incident, a common cause, a loss, silence of all, a digest.

See compose_nodes.
"""

from collections.abc import Sequence

from sentinel.core.fleet import lost
from sentinel.core.fleet.causes import command
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.lost import Loss
from sentinel.core.fleet.model import NodeMail, NodeQuarantine
from sentinel.notify.compose import MAX_DIGEST, MailRequest, Moment, hashed, slug
from sentinel.notify.compose_nodes import (
    MAX_NAMED,
    WORDS,
    Place,
    domain,
    evidence_of,
    finding_line,
    footer_of,
    headers_of,
    message_id,
    named,
    request_of,
    words_of,
)
from sentinel.notify.text import clean, count, stamp
from sentinel.settings import Settings


def network_request(
    records: Sequence[NodeQuarantine], mail: NodeMail, settings: Settings, place: Place, now_wall_s: float
) -> MailRequest:
    """One mail for all nodes of a network incident. `records`: not empty, the oldest first; `mail`: that one's."""
    oldest, stage = records[0], Reason.NETWORK_INCIDENT.value
    codes = named(sorted({one.code for record in records for one in record.findings}))
    many = count(len(records), "node")
    return request_of(
        settings,
        place,
        now_wall_s,
        mail=mail,
        message_id=message_id(oldest, stage, place),
        subject=clean(f"[sentinel] network incident: {codes} on {many}", 200),
        headers=headers_of(place, f"{len(records)} nodes", oldest.id, stage, urgent=True),
        tone="bad",
        label=WORDS[Reason.NETWORK_INCIDENT].label,
        title=f"{codes} on {many} at once",
        sentence=f"{many} have the same network finding, so it is the network and not the nodes.",
        facts=(
            ("nodes", named([record.node for record in records])),
            ("since", stamp(oldest.since_wall_s, with_date=True)),
            ("done", "nothing: none of them is taken out of service for it"),
        ),
        advice="Look at the switch or the fabric: none of these nodes is isolated for it while it lasts.",
        evidence=evidence_of([one for record in records for one in record.findings]),
        look=(("all nodes", "sentinel status"),),
        footer="",
    )


def cause_request(
    records: Sequence[NodeQuarantine], mail: NodeMail, settings: Settings, place: Place, now_wall_s: float
) -> MailRequest:
    """One mail for all nodes that are held back for one common cause. As network_request."""
    oldest, stage = records[0], Reason.COMMON_CAUSE.value
    main = next(iter(oldest.cause), "")
    code, many = clean(main, 60), count(len(records), "node")
    every = [one for record in records for one in record.findings]
    found = [finding_line(one, over=False) for one in every if one.code == main][:1]
    others = sorted({one.code for one in every} - {main})
    return request_of(
        settings,
        place,
        now_wall_s,
        mail=mail,
        message_id=message_id(oldest, stage, place),
        subject=clean(f"[sentinel] {code} on many nodes: real, or a mistake?", 200),
        headers=headers_of(place, f"{len(records)} nodes", oldest.id, stage, urgent=True),
        tone="bad",
        label=WORDS[Reason.COMMON_CAUSE].label,
        title=f"{code} on many nodes",
        sentence=f"More nodes have {code} than chance gives, so it may be a rule, a driver or a change that went wrong "
        f"and not the nodes. {many} and all that follow stay in service, and their jobs run on, until a person says "
        "what it is.",
        facts=(
            ("nodes", named([record.node for record in records])),
            *(("found", text) for text in found),
            *((("beside it", named(others)),) if others else ()),
            ("since", stamp(oldest.since_wall_s, with_date=True)),
            ("done", "nothing to these; the first few with it were taken out of service before"),
        ),
        advice="Look at one of the nodes that are out for it. If the fault is real there, let Sentinel go on. If a "
        "rule or a driver is wrong, let it ignore the code: what is out for it alone comes back at once.",
        evidence=evidence_of(every),
        look=(
            ("it is real", clean(command(main, "--go-on"), 300)),
            ("a mistake", clean(command(main, "--ignore --why TEXT"), 300)),
            ("all nodes", "sentinel status"),
        ),
        footer="",
    )


_HEADLINES = {
    Reason.UNREACHABLE: "unreachable",
    Reason.AGENT_SILENT: "agents are silent",
    Reason.REMOVAL_BRAKED: "removal of pods is held back",
}
_LOST = {
    Reason.UNREACHABLE: "Find out whether the machines are off, and what they share: power, a switch, a rack. Their "
    "ranks may still run and write, so their pods stay where they are until a node is heard again or somebody says "
    "that it is dead.",
    Reason.AGENT_SILENT: "Look at Sentinel's agent there; the nodes themselves live. Their faults are not seen "
    "meanwhile.",
    Reason.REMOVAL_BRAKED: "It goes on by itself when there is room; look first whether so many machines are really "
    "dead.",
}


def lost_request(
    loss: Loss,
    about: Reason,
    records: Sequence[NodeQuarantine],
    mail: NodeMail,
    settings: Settings,
    place: Place,
    now_wall_s: float,
    *,
    more: bool,
) -> MailRequest:
    """One mail for what happened to nodes that fell silent together. `about`: a value of fleet.lost.TOGETHER.

    `records`: those of the loss of which it is not told yet, not empty; `more`: of others it is told; `mail`: the first
    one's.
    """
    words, stage = words_of(about.value), about.value
    over = [one for one in records if not one.state.open]
    silent = lost.nodes_of(loss.silent)
    nodes = lost.nodes_of(records)
    titled = f"{count(len(nodes), 'more node' if more else 'node')}: {_HEADLINES.get(about, words.headline)}"
    jobs = {pod.partition(" of ")[2] for one in records for pod in one.running_there} - {""}
    return request_of(
        settings,
        place,
        now_wall_s,
        mail=mail,
        message_id=message_id(records[0], stage, place),
        subject=clean(f"[sentinel] {titled}", 200),
        headers=headers_of(place, count(len(nodes), "node"), records[0].id, stage, urgent=words.urgent),
        tone=words.tone,
        label=words.label,
        title=titled,
        sentence=lost.sentence(about, records, more=more),
        facts=tuple(
            (name, value)
            for name, value in (
                ("nodes", named(nodes)),
                ("pools", named(sorted({one.pool for one in records if one.pool}))),
                ("silent since", stamp(loss.records[0].since_wall_s, with_date=True)),
                ("fell silent", f"within {max(1.0, lost.within_s(loss.records)):.0f} s of each other"),
                ("jobs there", named(sorted(jobs))),
                ("still silent", named(silent) if over else ""),
            )
            if value
        ),
        advice=_LOST.get(
            about, "Look for what they share before jobs go there again: power, a switch, a rack."
        ),
        evidence=(),
        look=(
            *((("it is off", "sentinel confirm-dead NODE"),) if about is Reason.UNREACHABLE else ()),
            ("all nodes", "sentinel status"),
        ),
        story=_ends(over, now_wall_s),
        footer="",
    )


def _ends(records: Sequence[NodeQuarantine], now_wall_s: float) -> tuple[Moment, ...]:
    """What was said last of each node, in the order of time: when it came back, and what its agent did meanwhile."""
    lines = sorted((one.ended_wall_s or 0.0, one.node, one.sentence) for one in records)
    shown = [Moment(_time(wall_s, now_wall_s), "", clean(said, 400)) for wall_s, _, said in lines[:MAX_NAMED]]
    more = [Moment("", "", f"({len(lines) - MAX_NAMED} more)")] if len(lines) > MAX_NAMED else []
    return (*shown, *more)


def notice_request(
    id: str, sentence: str, mail: NodeMail, settings: Settings, place: Place, now_wall_s: float
) -> MailRequest:
    """So many nodes went silent together that none of them is judged. `id`: of this time."""
    headline = "many nodes are silent together"
    return request_of(
        settings,
        place,
        now_wall_s,
        mail=mail,
        message_id=f"<{slug(id, 60)}@{domain(place)}>",
        subject=f"[sentinel] {headline}",
        headers=headers_of(place, "several", "", mail.stage, urgent=True),
        tone="bad",
        label="Many silent",
        title=headline[0].upper() + headline[1:],
        sentence=clean(sentence, 600),
        facts=(("since", stamp(mail.wall_s, with_date=True)), ("done", "nothing was touched")),
        advice="Look at the network between them and the controller, and at the power. Each is judged again when "
        "fewer are silent.",
        evidence=(),
        look=(("all nodes", "sentinel status"),),
        footer="",
    )


def _time(wall_s: float, now_wall_s: float) -> str:
    """With the date where it was on another day: a server that was away gets mails late."""
    day = slice(10)
    dated = stamp(wall_s, with_date=True)
    return dated if dated[day] != stamp(now_wall_s, with_date=True)[day] else stamp(wall_s, with_date=False)


def nodes_digest(
    mails: Sequence[MailRequest], settings: Settings, place: Place, now_wall_s: float
) -> MailRequest:
    """One mail instead of many to the same addresses. Its id follows from what it holds. `mails`: not empty."""
    ids = sorted(one.message_id for one in mails)
    recipients = mails[0].recipients
    labels: dict[str, int] = {}
    for one in mails:
        labels[one.label] = labels.get(one.label, 0) + 1
    said = ", ".join(
        f"{number:,} {label.lower()}" for label, number in sorted(labels.items(), key=lambda row: -row[1])
    )
    story = [Moment(_time(one.at_wall_s, now_wall_s), "", one.title) for one in mails[:MAX_DIGEST]]
    if len(mails) > MAX_DIGEST:
        story.append(Moment("", "", f"({len(mails) - MAX_DIGEST:,} more: see `kubectl get quarantines`)"))
    return MailRequest(
        message_id=f"<digest.{hashed(*ids, *recipients, size=16)}@{domain(place)}>",
        sender=mails[0].sender,
        recipients=recipients,
        to=recipients,
        subject=clean(f"[sentinel] {len(mails):,} events of nodes: {said}", 200),
        headers=headers_of(place, f"digest of {len(mails)}", "", "digest"),
        date_wall_s=now_wall_s,
        tone="bad" if any(one.tone == "bad" for one in mails) else "info",
        label="Digest",
        title=f"{len(mails):,} events of nodes: {said}",
        sentence="So much happened at once, or so many mails had gone to this address within the hour, that it "
        "comes together: one line for each.",
        advice="Many nodes at once are often one cause: power, cooling, a switch, a driver.",
        story=tuple(story),
        look=(("all nodes", "sentinel status"), ("records", "kubectl get quarantines")),
        page_url=clean(settings.page_url),
        look_title="What to use",
        footer=footer_of("", place),
    )
