"""Mails about many nodes at once: a network incident, a common cause, silence of all, a digest. See compose_nodes."""

from collections.abc import Sequence

from sentinel.core.fleet_causes import command
from sentinel.core.fleet_events import Reason
from sentinel.core.fleet_model import NodeMail, NodeQuarantine
from sentinel.notify.compose import MAX_DIGEST, MailRequest, Moment, hashed, slug
from sentinel.notify.compose_nodes import (
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
        subject=clean(f"[sentinel] {code} on many nodes at once: real, or a mistake?", 200),
        headers=headers_of(place, f"{len(records)} nodes", oldest.id, stage, urgent=True),
        tone="bad",
        label=WORDS[Reason.COMMON_CAUSE].label,
        title=f"{code} on many nodes at once",
        sentence=f"More nodes have {code} within minutes than chance gives, so it may be a rule, a driver or a change "
        f"that went wrong and not the nodes. {many} and all that follow stay in service, and their jobs run on, until "
        "a person says what it is.",
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
