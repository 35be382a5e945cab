"""The summary of the day that the leader of a cluster sends its administrators: when, and what it tells.

Until when it is told stands on the Lease, so that a successor sends what its predecessor could not, and nothing twice.
"""

from collections.abc import Callable, Iterator

import structlog
from msgspec import Struct, structs

from sentinel.controller.daemon import site
from sentinel.controller.daemon.pages import Parts
from sentinel.controller.daemon.slow_work import Times
from sentinel.controller.effects.notify import Waiting
from sentinel.core.fleet.model import NodeMail
from sentinel.core.now import Now
from sentinel.notify.compose import MailRequest
from sentinel.notify.compose_nodes import Place
from sentinel.notify.compose_summary import STAGE, Standing, Summary, summary_request
from sentinel.settings import Settings
from sentinel.status import fleet_read, fleet_show, jobs_read, jobs_show
from sentinel.util.clock import Clock
from sentinel.util.documents import time_of, time_text
from sentinel.web.fleet_view import unheard

log = structlog.get_logger(__name__)

TOLD = "sentinel.dev/summary"  # annotation of the Lease: until when
SETTLE_S = 60.0  # in which the agents of a new leader tell it what they know
LATE_S = 12 * 3600.0  # one that could not be sent for longer is left to the next
AHEAD_S = 86_400.0  # what is further ahead on the Lease was written by a person, or by a clock gone wrong


class _Due(Struct, frozen=True):
    """`request`: composed once, of what was known then."""

    id: str
    until_wall_s: float
    mail: NodeMail
    request: MailRequest


class DailySummary:
    """`look` makes what is due, `waiting` gives it to who sends, `record` hears what became of it."""

    def __init__(
        self,
        settings: Settings,
        place: Place,
        parts: Parts,
        troubles: Callable[[], list[str]],
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._settings, self._place, self._clock, self._wake = settings, place, clock, wake
        self._parts, self._troubles = parts, troubles
        self._told_wall_s = 0.0
        self._led_mono_s: float | None = None
        self._due: _Due | None = None
        asked = settings.mail.summary
        self.times = Times(asked.at, asked.days, asked.timezone) if asked.at else None

    # ------------------------------------------------------------ who leads

    def begin(self) -> None:
        """This controller leads. The first leader ever has nothing to tell of what was before it."""
        now = self._clock()
        self._led_mono_s, self._due = now.mono_s, None
        self._since(now)

    def end(self) -> None:
        """Another one tells it now."""
        self._led_mono_s = self._due = None

    def notes(self) -> dict[str, str | None]:
        """For the Lease: what stands there already, where that is later."""
        if self.times is None:
            return {TOLD: None}
        until_s = self._until(self._clock())
        return {TOLD: time_text(until_s)} if until_s else {}

    def _until(self, now: Now) -> float:
        """Until when it was told; 0: never."""
        try:
            there_s = time_of(self._parts.election.annotations.get(TOLD, ""))
        except ValueError:
            there_s = 0.0
        return max((one for one in (self._told_wall_s, there_s) if one < now.wall_s + AHEAD_S), default=0.0)

    def _since(self, now: Now) -> float:
        self._told_wall_s = self._until(now) or now.wall_s
        return self._told_wall_s

    # ------------------------------------------------------------ what is due

    async def look(self) -> bool:
        """False: not everything is known yet."""
        if self.times is None or self._led_mono_s is None:
            return True
        now = self._clock()
        settling = now.mono_s - self._led_mono_s < SETTLE_S and self._parts.controller.nodes.unheard
        if settling or self._parts.jobs.controller is None or not self._parts.controller.lead_began.is_set():
            return False
        since_s = self._since(now)
        at_s = self.times.last(max(since_s, now.wall_s - LATE_S), now.wall_s)
        if at_s is None:
            return True
        mail = NodeMail(stage=STAGE, wall_s=at_s)
        summary = gathered(self._parts, self._troubles(), since_s, at_s, now)
        request = summary_request(summary, mail, self._settings, self._place, self.times.zone, now.wall_s)
        log.info("summary_due", since=time_text(since_s), nodes=len(summary.standing))
        self._due = _Due(f"{STAGE}-{time_text(at_s)}", at_s, mail, request)
        self._wake()
        return True

    def waiting(self, now: Now) -> Iterator[Waiting]:
        if (due := self._due) is not None:
            had = (*due.mail.done, *due.mail.refused)
            left = tuple(one for one in due.request.to if one not in had)
            request = structs.replace(due.request, recipients=left, date_wall_s=now.wall_s)
            yield Waiting(due.id, STAGE, due.mail, request, alone=True)

    def record(self, id: str, mail: NodeMail) -> bool:
        """False: it is no summary."""
        due = self._due
        if due is not None and due.id == id:
            if mail.done or mail.state not in ("waiting", "failed"):
                # Somebody has it: a successor would send it to him again. The others get it while this one leads.
                self._told_wall_s = max(self._told_wall_s, due.until_wall_s)
            # One that was given up is told by the next.
            self._due = structs.replace(due, mail=mail) if mail.state == "waiting" else None
        return mail.stage == STAGE


def gathered(
    parts: Parts, troubles: list[str], since_wall_s: float, until_wall_s: float, now: Now
) -> Summary:
    """How everything stands now, and what may have happened between the two times."""
    nodes = fleet_read.joined(parts.fleet.nodes(), parts.fleet.records, documents=False)
    jobs = jobs_read.view(parts.jobs.rows(now), [])
    return Summary(
        since_wall_s=since_wall_s,
        until_wall_s=until_wall_s,
        nodes=fleet_show.counted(nodes),
        jobs=jobs_show.counted(jobs),
        standing=[
            Standing(row.state, row.node, row.since_wall_s, row.why, row.waits_for) for row in nodes.rows
        ],
        notes=[*_heard(parts), *site.notes(parts, now)],
        troubles=troubles,
        records=list(parts.fleet.records.values()),
        incidents=parts.jobs.since(since_wall_s),
    )


def _heard(parts: Parts) -> Iterator[str]:
    if parts.fleet.paused:
        yield f"Paused by {parts.fleet.paused}: new isolations and removals wait."
    if parts.controller.nodes.unheard:
        yield unheard(parts.controller.nodes.unheard)
