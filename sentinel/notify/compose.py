"""What a mail says, decided from the records: resident, so it imports nothing heavy and renders nothing.

A MailRequest is finished text in a neutral form; `sentinel.notify.sender` makes plain text and HTML of it.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct, structs

from sentinel.core.decision.diverged import NORM_REASON
from sentinel.core.model import Cause, Incident, JobState, Phase, ProtectedJob, Stage, StageMail, Symptom
from sentinel.notify.plot import Plot, plot
from sentinel.notify.text import clean, count, duration, lines, stamp
from sentinel.settings import Settings

# Together they keep a mail under 100 KB: some readers cut longer ones off.
MAX_STEPS = 40
MAX_EVIDENCE = 30
MAX_STACK_LINES = 60
MAX_SENTENCE = 1000  # of a hang it says where the ranks wait
MAX_DIGEST = 100
MAX_NAME = 400  # of a job, where a program reads it: longer than NAMESPACE/KIND/NAME of Kubernetes can be


class Moment(Struct, frozen=True):
    """One line of the story."""

    time: str
    phase: str
    sentence: str


class MailRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mail, complete but for its form. All text is clean; `recipients` are those still to be served."""

    message_id: str
    references: str = ""  # Message-ID of the incident's first mail, "" if this is the first
    sender: str
    recipients: tuple[str, ...] = ()  # none: the mail goes to the outbox
    to: tuple[str, ...] = ()  # everyone the mail is for, shown in To
    subject: str
    headers: tuple[tuple[str, str], ...] = ()
    date_wall_s: float
    at_wall_s: float = 0.0  # when that happened which it tells, for a line of a digest; 0: its story says it
    tone: str  # good | busy | bad | info: the colour of the mail
    label: str
    title: str
    sentence: str
    facts: tuple[tuple[str, str], ...] = ()
    advice: str = ""
    story: tuple[Moment, ...] = ()
    evidence: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    look: tuple[tuple[str, str], ...] = ()
    look_title: str = "Where to look"
    plot: Plot | None = None
    page_url: str = ""
    dashboard_url: str = ""
    footer: str = ""


# ---------------------------------------------------------------- who is told besides

_WEBHOOK = "webhook:"  # before the name of one that is a recipient; no address begins so


def webhooks(settings: Settings, about: str) -> tuple[str, ...]:
    """Those that are told of `jobs` or of `nodes`, as recipients."""
    return tuple(_WEBHOOK + hook.name for hook in settings.webhooks if about in hook.about)


def webhook_of(recipient: str) -> str:
    """Its name; "": it is an address."""
    return recipient.removeprefix(_WEBHOOK) if recipient.startswith(_WEBHOOK) else ""


def page_of(settings: Settings, kind: str, name: str) -> str:
    """On a cluster's status page that of a job or a node, where the page's address is known; else the whole page."""
    base = clean(settings.page_url)
    if not base or (kind == "jobs" and name.count("/") != 2):
        return base
    return f"{base.rstrip('/')}/{kind}/{quote(name)}"


_DASHBOARDS = {"jobs": "sentinel-job?var-job_name=", "nodes": "sentinel-node?var-node="}  # of dashboards/


def dashboard_of(settings: Settings, kind: str, name: str) -> str:
    """Of a job or a node, where Grafana's address is known; else ""."""
    base = clean(settings.dashboard_url)
    return f"{base.rstrip('/')}/d/{_DASHBOARDS[kind]}{quote(name, safe='')}" if base else ""


# ---------------------------------------------------------------- identity


def slug(text: str, limit: int, extra: str = "") -> str:
    """A part of an address."""
    allowed = re.sub(rf"[^A-Za-z0-9_{extra}-]+", "-", text)[:limit]
    return re.sub(r"\.{2,}", ".", allowed).strip("-.")


def hashed(*parts: str, size: int = 12) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:size]


def host_name(host: str) -> str:
    """A host name that can stand in an address."""
    return slug(host, 100, ".").lower() or "localhost"


def message_id(incident: Incident, stage: Stage, host: str, state_dir: Path) -> str:
    """The same for every attempt, also after a crash; never the same for two incidents.

    The time at which the incident was opened keeps ids apart when a state directory was deleted and
    its job's incidents are numbered from 1 again.
    """
    unique = hashed(incident.id, repr(incident.opened_wall_s))
    name = slug(incident.id, 40) or "incident"
    return f"<{name}.{stage.value}.{unique}@{_domain(host, state_dir)}>"


def _domain(host: str, state_dir: Path) -> str:
    return f"{hashed(str(state_dir), size=8)}.{host_name(host)}"


# ---------------------------------------------------------------- sentences


def called(job: str) -> str:
    """In a subject a job of a cluster has no kind: it would push out of sight what happened."""
    parts = job.split("/")
    return clean(f"{parts[0]}/{parts[2]}" if len(parts) == 3 else job, 80)


def _what(incident: Incident) -> str:
    """What happened, in words that can stand alone and after "after"."""
    verdict = incident.verdict
    rank = "the job" if verdict.who is None else f"rank {verdict.who}"
    match verdict.symptom:
        case Symptom.RANK_LOST:
            return "a rank was lost" if verdict.rank is None else f"{rank} was lost"
        case Symptom.HANG:
            return f"{rank} makes no iterations" if incident.reason == "MayBeWell" else f"{rank} hung"
        case Symptom.SLOW:
            return "steps became slow"
        case Symptom.SLOWDOWN:
            return "iterations take longer than before"
        case Symptom.STARVED:
            return "data loading starved the GPUs"
        case Symptom.STRAGGLER:
            return f"{'a rank' if verdict.rank is None else rank} fell behind its peers"
        case Symptom.FINDING:
            return f"a finding on {clean(verdict.entity, 60) or 'this machine'}"
        case Symptom.DIVERGED:
            norm = incident.reason == NORM_REASON
            return "the gradient norm became NaN" if norm else "the loss became NaN or infinite"
        case Symptom.START_FAILED:
            return "a start failed"
        case Symptom.RESIZE:
            return "the job had to change its size"
        case Symptom.ENDING:
            return "the job was asked to end"
        case Symptom.RETRY:
            return "another try was asked for"
        case Symptom.FIRST_START:
            return "the first start was asked for"


def _cause(incident: Incident) -> str:
    cause = incident.verdict.cause
    return "cause unknown" if cause == Cause.UNKNOWN else cause.value


def _left(job: ProtectedJob) -> str:
    allowed = job.policy.max_starts
    if allowed == 0:
        return "no restarts allowed"
    return f"{job.left} of {count(allowed, 'restart')} left"


def headline(incident: Incident, job: ProtectedJob, stage: Stage) -> str:
    """The subject behind the job's name."""
    what, cause = _what(incident), _cause(incident)
    asked = incident.verdict.symptom == Symptom.ENDING
    if stage == Stage.STARTED:
        going_on = "" if incident.phase.final else ", recovering"
        return f"{what} ({cause}){going_on} - {_left(job)}"
    if stage == Stage.RECOVERED:
        return f"recovered after {what} ({cause}) - {_left(job)}"
    if stage == Stage.GAVE_UP:
        why = _left(job) if incident.phase == Phase.EXHAUSTED else clean(incident.reason, 60)
        return f"gave up after {what} ({cause})" + (f" - {why}" if why else "")
    if incident.phase == Phase.ENDED or asked:
        state = incident.end_state or job.state
        return f"{state.value} - {clean(incident.reason, 60) or what}"
    if incident.phase == Phase.KEPT_RUNNING and incident.reason and not _only_told(incident):
        return f"{what} ({cause}) - still running, {clean(incident.reason, 60)}"
    return f"{what} ({cause})"


LABELS = {Stage.STARTED: "Recovering", Stage.RECOVERED: "Recovered", Stage.GAVE_UP: "Gave up"}
_TONE = {Stage.STARTED: "busy", Stage.RECOVERED: "good", Stage.GAVE_UP: "bad"}


def _only_told(incident: Incident) -> bool:
    """It may be told of a job that has just ended well, too."""
    return incident.verdict.symptom == Symptom.DIVERGED


def _ended_well(incident: Incident) -> bool:
    return incident.end_state in (JobState.SUCCEEDED, JobState.STOPPED)


def _saved(incident: Incident) -> str:
    save = incident.save
    if save is None:
        return ""
    if save.skipped:
        return f"not done: {clean(save.skipped)}"
    at = "" if save.step is None else f" at step {save.step:,}"
    took = f" in {duration(save.took_s)}" if save.took_s else ""
    if save.proved_by:
        return f"saved{at}{took}, proved by: {clean(save.proved_by)}"
    return f"asked for{at}{took}, but nothing proved it"


def _resumed_from(incident: Incident, job: ProtectedJob) -> str:
    resumed = incident.lost.resumed_from if incident.lost else None
    if resumed is not None:
        return f"step {resumed:,}" if resumed > 0 else "step 0: no checkpoint was used"
    if job.checkpoint is None:
        return ""
    step = "" if job.checkpoint.step is None else f"step {job.checkpoint.step:,}, "
    when = stamp(job.checkpoint.wall_s, with_date=True)
    return f"{step}last proved {when}: {clean(job.checkpoint.proof, 200)}"


def lost_text(incident: Incident) -> str:
    lost = incident.lost
    if lost is None:
        return ""
    steps = "steps repeated: unknown" if lost.steps is None else f"{count(lost.steps, 'step')} repeated"
    gpus = f", {lost.gpu_seconds:,.0f} GPU-seconds" if lost.gpu_seconds else ""
    return f"{steps}, {duration(lost.seconds)}{gpus}"


def _restarts(job: ProtectedJob) -> str:
    allowed = job.policy.max_starts
    if allowed == 0:
        return "none allowed by the policy"
    parts = [
        f"{used} for {name}"
        for name, used in (
            ("infrastructure", job.used_infrastructure),
            ("the job's own faults", job.used_job),
        )
        if used
    ]
    detail = f" ({', '.join(parts)})" if parts else ""
    free = f"; {job.used_free} more not counted" if job.used_free else ""
    return f"{job.used} of {allowed} used{detail}, {job.left} left{free}"


def _how_far(incident: Incident, job: ProtectedJob) -> tuple[str, str]:
    step = incident.failed_step
    if job.steps_told:
        return "last step", "" if step is None else f"{step:,}"
    return "iterations", f"{step:,} since its start" if step else ""


def _facts(incident: Incident, job: ProtectedJob, stage: Stage) -> tuple[tuple[str, str], ...]:
    verdict = incident.verdict
    ending = stage == Stage.NOTICE and incident.phase == Phase.ENDED
    whose = "" if verdict.cause is Cause.UNKNOWN else f", fault of the {clean(verdict.scope, 20)}"
    cause = f"{verdict.cause.value} ({clean(verdict.failure, 80)}{whose})"
    going = "resumed from" if incident.lost else "checkpoint"
    rows = (
        ("cause", "" if ending else cause),
        ("rank", "" if verdict.who is None else str(verdict.who)),
        ("where", clean(verdict.entity, 120)),
        _how_far(incident, job),
        ("save", _saved(incident)),
        (going, _resumed_from(incident, job)),
        ("lost", lost_text(incident)),
        ("restarts", _restarts(job)),
        (
            "size",
            f"{incident.size} of {job.original_size} ranks" if incident.size != job.original_size else "",
        ),
        ("avoided", ", ".join(clean(entity, 80) for entity in incident.excluded[:8])),
        ("exit code", "" if incident.end_code is None else str(incident.end_code)),
        ("certainty", clean(verdict.confidence)),
        ("mode", "observe: nothing was touched" if job.policy.mode == "observe" else ""),
    )
    return tuple((name, value) for name, value in rows if value)


def _advice(incident: Incident, job: ProtectedJob, stage: Stage) -> str:
    """What to do now. The verdict's own advice first; the rest says what is true of the stage."""
    own = clean(incident.verdict.advice, 600)
    if stage == Stage.STARTED:
        then = "" if incident.phase.final else "Sentinel is bringing the job back and will write again."
    elif stage == Stage.RECOVERED:
        then = "The job is training again; nothing has to be done for it to go on."
        if job.policy.max_starts and job.left == 0:
            then += " It has no restarts left: the next fault ends it."
    elif stage == Stage.GAVE_UP:
        then = "The job is not running and Sentinel will not start it again."
        if incident.phase == Phase.EXHAUSTED:
            then += " All its restarts are used: find the reason before you start it with a larger budget."
        elif incident.sentence not in ("", incident.verdict.sentence):
            then = f"{clean(incident.sentence, 300)} {then}"
    elif incident.phase == Phase.ENDED:
        then = "" if _ended_well(incident) else "The job has ended and will not be started again."
    else:
        then = "" if _only_told(incident) else "The job was left running."
    return " ".join(part for part in (then, own) if part)


def _story(incident: Incident) -> tuple[Moment, ...]:
    steps = incident.steps
    if len(steps) <= MAX_STEPS:
        shown = [_moment(step.wall_s, step.phase.value, step.sentence) for step in steps]
    else:
        half = MAX_STEPS // 2
        shown = [_moment(step.wall_s, step.phase.value, step.sentence) for step in steps[:half]]
        shown.append(Moment("", "", f"({len(steps) - 2 * half} more steps)"))
        shown += [_moment(step.wall_s, step.phase.value, step.sentence) for step in steps[-half:]]
    return tuple(shown)


def _moment(wall_s: float, phase: str, sentence: str) -> Moment:
    return Moment(stamp(wall_s, with_date=False), phase, clean(sentence, 400))


def _evidence(incident: Incident) -> tuple[str, ...]:
    evidence = incident.verdict.evidence
    more = [f"({len(evidence) - MAX_EVIDENCE} more lines)"] if len(evidence) > MAX_EVIDENCE else []
    return (*(clean(line) for line in evidence[:MAX_EVIDENCE]), *more)


# ---------------------------------------------------------------- the mail


def mail_request(
    incident: Incident,
    job: ProtectedJob,
    stage: Stage,
    settings: Settings,
    host: str,
    now_wall_s: float,
    log_paths: Sequence[str] = (),
) -> MailRequest:
    """The mail of one stage. `host` is this machine's name; `log_paths` are shown as where to look.

    Owners come from the policy, else the administrators get it, else nobody: then it is only filed.
    """
    name, short = clean(job.name, MAX_NAME), called(job.name)
    chosen = not job.policy.mails or stage.value in job.policy.mails
    owners = (job.policy.emails if chosen else ()) if job.policy.emails else settings.mail.admins
    everyone = (*owners, *webhooks(settings, "jobs"))
    record = next((mail for mail in incident.mails if mail.stage == stage), StageMail(stage=stage))
    first = incident.mails[0].stage if incident.mails else stage
    references = "" if first == stage else message_id(incident, first, host, settings.state_path)
    said = headline(incident, job, stage)
    ending = stage == Stage.NOTICE and incident.phase == Phase.ENDED
    tone = _TONE.get(stage, "good" if ending and _ended_well(incident) else "info")
    look = [("history", f"sentinel status {name}"), *_where(incident, job.name)]
    look += [("log file", clean(path)) for path in log_paths[:8]]
    return MailRequest(
        message_id=message_id(incident, stage, host, settings.state_path),
        references=references,
        sender=settings.mail.sender or f"sentinel@{host_name(host)}",
        recipients=tuple(a for a in everyone if a not in record.done and a not in record.refused),
        to=everyone,
        subject=clean(f"[sentinel] {short}: {said}", 200),
        headers=_headers(host, name, incident.id, stage.value, incident.verdict.cause.value),
        date_wall_s=now_wall_s,
        tone=tone,
        label=LABELS.get(stage, "Ended" if ending else "Notice"),
        title=f"{short}: {said}",
        sentence=clean(incident.sentence if ending else incident.verdict.sentence, MAX_SENTENCE),
        facts=_facts(incident, job, stage),
        advice=_advice(incident, job, stage),
        story=_story(incident),
        evidence=_evidence(incident),
        stacks=tuple(line for text in incident.stacks for line in lines(text, MAX_STACK_LINES))[
            :MAX_STACK_LINES
        ],
        look=tuple(look),
        page_url=page_of(settings, "jobs", job.name),
        dashboard_url=dashboard_of(settings, "jobs", job.name),
        plot=plot(
            incident.pace, incident.opened_wall_s, changes=incident.verdict.symptom is Symptom.SLOWDOWN
        ),
        footer=f"Incident {clean(incident.id, 120)}, opened {stamp(incident.opened_wall_s, with_date=True)}, "
        f"on {clean(host, 100)}. Times are those of that machine.{_chosen_in(job)}",
    )


def _chosen_in(job: ProtectedJob) -> str:
    if not job.policy.emails:
        return ""
    return f" owner.mails of the policy {clean(job.policy.name, 100)} says which of these are sent."


def _where(incident: Incident, job: str) -> list[tuple[str, str]]:
    """Where the rest of it is: on a cluster the Incident, on one machine the output."""
    if job.count("/") != 2:
        return [("output", f"sentinel logs {clean(job, 80)}")]
    namespace, kind, name = job.split("/")
    number = incident.id.removeprefix(job)
    return [("incident", clean(f"kubectl -n {namespace} describe incident {name}.{kind}{number}", 400))]


def _headers(host: str, job: str, incident: str, stage: str, cause: str) -> tuple[tuple[str, str], ...]:
    return (
        ("X-Sentinel-Job", job),
        ("X-Sentinel-Incident", clean(incident, 120)),
        ("X-Sentinel-Stage", stage),
        ("X-Sentinel-Cause", cause),
        ("List-Id", f"Sentinel on {clean(host, 60)} <sentinel.{host_name(host)}>"),
        ("Auto-Submitted", "auto-generated"),
        ("X-Auto-Response-Suppress", "All"),  # what Exchange reads instead
        *((("Importance", "high"),) if stage == Stage.GAVE_UP.value else ()),
    )


def digest_request(
    mails: Sequence[MailRequest], settings: Settings, host: str, now_wall_s: float
) -> MailRequest:
    """One mail instead of many to the same addresses. Its id follows from what it holds.

    `mails` is not empty and all have the same `recipients`.
    """
    ids = sorted(mail.message_id for mail in mails)
    recipients = mails[0].recipients
    unique = hashed(*ids, *recipients, size=16)
    jobs = sorted({value for mail in mails for name, value in mail.headers if name == "X-Sentinel-Job"})
    named = ", ".join(map(called, jobs[:3])) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
    headline = f"{count(len(mails), 'event')} of {named}"
    story = [
        Moment(mail.story[0].time if mail.story else "", mail.label, mail.title)
        for mail in mails[:MAX_DIGEST]
    ]
    if len(mails) > MAX_DIGEST:
        story.append(Moment("", "", f"({len(mails) - MAX_DIGEST} more)"))
    return structs.replace(
        mails[0],
        message_id=f"<digest.{unique}@{_domain(host, settings.state_path)}>",
        references="",
        to=recipients,
        subject=clean(f"[sentinel] digest: {headline}", 200),
        headers=_headers(host, clean(named, 200), f"digest of {len(mails)}", "digest", "several"),
        date_wall_s=now_wall_s,
        tone="bad" if any(mail.tone == "bad" for mail in mails) else "info",
        label="Digest",
        title=headline[0].upper() + headline[1:],
        sentence="So much happened at once, or so many mails had gone to this address within the hour, that it "
        "comes together: one line for each.",
        facts=(),
        advice="A job that fails this often is worth stopping until its reason is known."
        if len(jobs) == 1
        else "Many jobs at once are often one cause: power, cooling, a switch, a file system.",
        story=tuple(story),
        evidence=(),
        stacks=(),
        look=(("one job", "sentinel status NAME"), ("all jobs", "sentinel status")),
        plot=None,
        page_url=mails[0].page_url if len(jobs) == 1 else clean(settings.page_url),
        dashboard_url=mails[0].dashboard_url if len(jobs) == 1 else "",
        footer=f"From {clean(host, 100)}.",
    )
