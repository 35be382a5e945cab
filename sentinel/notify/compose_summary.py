"""The daily summary of a cluster for its administrators: how everything stands, and what was told since the last."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo

from msgspec import Struct

from sentinel.core.fleet.model import NodeMail, NodeQuarantine, Repair
from sentinel.core.model import Incident, ProtectedJob, Stage
from sentinel.notify import compose, compose_nodes
from sentinel.notify.compose import MailRequest, Moment, called, hashed, slug
from sentinel.notify.compose_nodes import MAX_NAMED, Place, domain, headers_of, named, request_of, words_of
from sentinel.notify.text import clean, count, duration
from sentinel.settings import Settings

STAGE = "summary"
MAX_EVENTS = 60  # lines of the story: the newest


class Standing(Struct, frozen=True):
    """A node of which something is known."""

    state: str  # "isolated", "unreachable", …
    node: str
    since_wall_s: float  # 0: not known
    why: str
    ends: str = ""  # what must hold before it is over


class Summary(Struct, frozen=True, kw_only=True):
    """`records`, `incidents`: all that there are, or those that may have been told of between the two times."""

    since_wall_s: float
    until_wall_s: float
    nodes: str  # a sentence that counts them
    jobs: str
    standing: Sequence[Standing] = ()  # what matters most first
    notes: Sequence[str] = ()  # what concerns many nodes
    troubles: Sequence[str] = ()  # what the controller cannot do
    records: Sequence[NodeQuarantine] = ()
    incidents: Sequence[tuple[Incident, ProtectedJob]] = ()


class _Event(Struct, frozen=True, order=True):
    wall_s: float
    label: str
    text: str


def summary_request(
    summary: Summary, mail: NodeMail, settings: Settings, place: Place, zone: tzinfo, now_wall_s: float
) -> MailRequest:
    """`mail.wall_s`: when it was due. Times are told in `zone`."""
    events = sorted((*_of_nodes(summary), *_of_jobs(summary)))
    ended = [one for one, _ in summary.incidents if _in(summary, one.closed_wall_s) and one.mails]
    recovered, given_up = _jobs_of(ended, Stage.RECOVERED), _jobs_of(ended, Stage.GAVE_UP)
    title = ", ".join(_headlines(summary, recovered, given_up)) or "all is well"
    due = _time(mail.wall_s, zone, "%Y-%m-%dT%H%M%z")
    return request_of(
        settings,
        place,
        now_wall_s,
        mail=mail,
        message_id=f"<{STAGE}-{slug(due, 40)}.{hashed(place.cluster, place.name)}@{domain(place)}>",
        subject=clean(f"[sentinel] summary: {title}", 200),
        headers=headers_of(place, "all nodes", "", STAGE),
        tone="bad" if given_up or summary.troubles else "info" if summary.standing or events else "good",
        label="Summary",
        title=title[0].upper() + title[1:],
        sentence=_sentence(summary, events, zone),
        facts=tuple(_facts(summary, ended, zone)),
        advice=_advice(summary, given_up),
        story=_story(events, zone),
        evidence=(),
        look=(("everything", "sentinel status"), ("one of it", "sentinel status NAME")),
        footer="mail.summary of the settings says when this comes.",
        times=f"those of {clean(str(zone), 64)}",
    )


# ---------------------------------------------------------------- what happened


def _in(summary: Summary, wall_s: float | None) -> bool:
    return wall_s is not None and summary.since_wall_s < wall_s <= summary.until_wall_s


def _of_nodes(summary: Summary) -> Iterator[_Event]:
    """What was told of nodes by mail, each by itself or with others."""
    for record in summary.records:
        for mail in record.mails:
            if _in(summary, mail.wall_s):
                text = f"{clean(record.node, 120)}: {compose_nodes.headline(record, mail.stage)}"
                yield _Event(mail.wall_s, words_of(mail.stage).label, text)


def _of_jobs(summary: Summary) -> Iterator[_Event]:
    """Incidents that began or ended; a first start and the like is told of nobody."""
    for incident, job in summary.incidents:
        closed_s = incident.closed_wall_s
        later = closed_s is not None and closed_s > summary.until_wall_s  # the next one tells how it ended
        at_s = incident.opened_wall_s if closed_s is None or later else closed_s
        if not incident.mails or not (_in(summary, at_s) or _in(summary, incident.opened_wall_s)):
            continue
        stage = incident.mails[0 if later else -1].stage
        lost = "" if later else compose.lost_text(incident)
        text = f"{called(job.name)}: {compose.headline(incident, job, stage)}" + (
            f"; lost: {lost}" if lost else ""
        )
        yield _Event(at_s, compose.LABELS.get(stage, "Notice"), text)


def _jobs_of(ended: Sequence[Incident], stage: Stage) -> list[str]:
    """The jobs of incidents whose last word was that."""
    return sorted({called(one.job) for one in ended if one.mails[-1].stage is stage})


# ---------------------------------------------------------------- how it is said


def _headlines(summary: Summary, recovered: Sequence[str], given_up: Sequence[str]) -> Iterator[str]:
    worst = {one.node: one.state for one in reversed(summary.standing)}
    counts = Counter(worst.values())
    for state in dict.fromkeys(one.state for one in summary.standing):
        if number := counts[state]:
            yield f"{count(number, 'node')} {state}"
    if recovered:
        yield f"{count(len(recovered), 'job')} recovered"
    if given_up:
        yield f"{count(len(given_up), 'job')} given up"
    if summary.troubles:
        yield f"{count(len(summary.troubles), 'trouble')} of Sentinel's own"


def _sentence(summary: Summary, events: Sequence[_Event], zone: tzinfo) -> str:
    since, until = (
        _time(at_s, zone, "%a %d %b %H:%M") for at_s in (summary.since_wall_s, summary.until_wall_s)
    )
    return f"{count(len(events), 'event') if events else 'Nothing happened'} from {since} to {until}."


def _facts(summary: Summary, ended: Sequence[Incident], zone: tzinfo) -> Iterator[tuple[str, str]]:
    yield "nodes", clean(summary.nodes, 400)
    for one in summary.standing[:MAX_NAMED]:
        since = f" since {_time(one.since_wall_s, zone, '%a %d %b %H:%M')}" if one.since_wall_s else ""
        over = f"; over when: {clean(one.ends, 200)}" if one.ends else ""
        yield one.state, f"{clean(one.node, 120)}{since}: {clean(one.why, 300).rstrip('.')}{over}"
    if (more := len(summary.standing) - MAX_NAMED) > 0:
        yield "and", count(more, "more node")
    for note in summary.notes[:MAX_NAMED]:
        yield "note", clean(note, 400)
    yield "jobs", clean(summary.jobs, 400)
    if ended:
        causes = Counter(one.verdict.cause.value for one in ended).most_common()
        told = ", ".join(f"{cause} {number}" for cause, number in causes)
        yield "incidents", f"{len(ended)} ended, by cause: {told}"
    lost = [one.lost for one in ended if one.lost is not None]
    if lost:
        gpus = sum(one.gpu_seconds for one in lost) / 3600
        yield "lost", f"{gpus:,.1f} GPU-hours, {duration(sum(one.seconds for one in lost))} of the jobs' time"
    for trouble in summary.troubles[:MAX_NAMED]:
        yield "trouble", clean(trouble, 300)


def _advice(summary: Summary, given_up: Sequence[str]) -> str:
    """What goes on by nobody but a person."""
    open_ones = [one for one in summary.records if one.state.open]
    waits = sorted({one.node for one in open_ones if one.isolating and one.needs.repair is Repair.PERSON})
    held = sorted({one.node for one in open_ones if one.held_by})
    said = []
    if waits:
        said.append(f"Only a person gives back {named(waits)}: repair, then sentinel release NODE.")
    if held:
        said.append(
            f"In service though they should not be: {named(held)}; sentinel status says what holds it."
        )
    if given_up:
        said.append(
            f"Given up: {named(given_up)}; sentinel retry JOB starts one again when its cause is gone."
        )
    return " ".join(said)


def _story(events: Sequence[_Event], zone: tzinfo) -> tuple[Moment, ...]:
    shown = [
        Moment(_time(one.wall_s, zone, "%a %H:%M"), one.label, clean(one.text, 400))
        for one in events[-MAX_EVENTS:]
    ]
    if len(events) > MAX_EVENTS:
        left_out = Counter(one.label for one in events[:-MAX_EVENTS]).most_common()
        text = ", ".join(f"{label.lower()} {number:,}" for label, number in left_out)
        shown.insert(0, Moment("", "", f"({len(events) - MAX_EVENTS:,} earlier: {text})"))
    return tuple(shown)


def _time(wall_s: float, zone: tzinfo, form: str) -> str:
    try:
        return datetime.fromtimestamp(wall_s, zone).strftime(form)
    except (OverflowError, ValueError, OSError):  # a clock that was never set can hold anything
        return "unknown time"
