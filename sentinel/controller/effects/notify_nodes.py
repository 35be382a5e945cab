"""Mails to administrators about nodes, from what their records say is not told yet.

What happens together comes together: after the first news it is waited until nothing more has come for a moment. The
nodes of one network incident are one mail, nodes that fell silent together are one, and a storm is one digest.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import structs

from sentinel.controller.effects.notify import TOGETHER, Notifier, Record, Waiting
from sentinel.core.fleet import lost
from sentinel.core.fleet.causes import network_codes
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.lost import Loss
from sentinel.core.fleet.model import Brake, Kind, NodeMail, NodeQuarantine
from sentinel.core.now import Now
from sentinel.notify.compose import MailRequest
from sentinel.notify.compose_many import (
    cause_request,
    lost_request,
    network_request,
    nodes_digest,
)
from sentinel.notify.compose_nodes import Place, node_request
from sentinel.settings import Settings

QUIET_S = 2.0
LONGEST_S = 10.0
NETWORK = Reason.NETWORK_INCIDENT.value
SHARED = {
    NETWORK: Brake.NETWORK_INCIDENT,
    Reason.COMMON_CAUSE.value: Brake.COMMON_CAUSE,
}  # stage -> while it lasts

_Row: TypeAlias = tuple[NodeQuarantine, NodeMail]
# How often a mail was tried, when it is tried again, who has got it, and who refused it.
_Tried: TypeAlias = tuple[int, float, tuple[str, ...], tuple[str, ...]]
_UNTRIED: _Tried = (0, 0.0, (), ())


class NodeNotifier(Notifier):
    """`records`: those with mails that wait, and all that may share one. `record` writes down what became of a mail.

    `notices`: what waits and belongs to no record.
    """

    about = "nodes"

    def __init__(
        self,
        settings: Settings,
        records: Callable[[], Iterable[NodeQuarantine]],
        record: Record,
        place: Callable[[], Place],
        notices: Callable[[Now], Iterable[Waiting]] = lambda _: (),
    ) -> None:
        super().__init__(settings, lambda: [], record, host=place().name, together=TOGETHER)
        self._records, self._place, self._notices = records, place, notices

    async def _gather(self) -> None:
        end_s = time.monotonic() + LONGEST_S
        while self._wake.is_set() and time.monotonic() < end_s:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUIET_S):
                    await self._wake.wait()

    def _requests(self, now: Now) -> Iterable[Waiting]:
        shared: dict[tuple[str, frozenset[str]], list[NodeQuarantine]] = {}
        records = sorted(self._records(), key=lambda one: (one.since_wall_s, one.id))
        for loss in lost.losses(records):
            yield from self._of_loss(loss, now)
        for record in records:
            stages = {mail.stage for mail in record.mails if mail.state == "waiting"}
            for mail in record.mails:
                if record.kind is Kind.SILENCE and mail.stage in lost.TOGETHER:
                    continue
                waits = mail.state == "waiting"
                if (brake := SHARED.get(mail.stage)) and (waits or record.held_by is brake):
                    shared.setdefault((mail.stage, _about(record, brake)), []).append(record)
                elif waits:
                    yield self._of_node(record, mail, stages, now)
        yield from self._notices(now)
        for (stage, _), members in shared.items():
            yield from self._of_many(stage, members, now)

    def _of_loss(self, loss: Loss, now: Now) -> Iterable[Waiting]:
        """What is told together of nodes that fell silent together; of few of them, a mail for each."""
        waiting: dict[tuple[Reason, _Tried], list[_Row]] = {}
        told: set[Reason] = set()
        for record in loss.records:
            for mail in record.mails:
                if (about := lost.TOGETHER.get(mail.stage)) is None:
                    continue
                if mail.state != "waiting":
                    told.add(about)
                    continue
                # What was tried together stays one mail, without those who joined since: some may have got it.
                tried = (mail.attempts, mail.next_wall_s, mail.done, mail.refused)
                waiting.setdefault((about, tried), []).append((record, mail))
        for about, tried in sorted(waiting, key=lambda key: -key[1][0]):
            rows = waiting[about, tried]
            if tried == _UNTRIED:
                due_wall_s = lost.due_wall_s(loss, about, [mail for _, mail in rows], now)
                rows = [(record, structs.replace(mail, next_wall_s=due_wall_s)) for record, mail in rows]
            request = self._of_lost(loss, about, rows, now, more=about in told)
            told.add(about)
            for record, mail in rows:
                if request is not None:
                    yield Waiting(record.id, mail.stage, mail, request, since_wall_s=record.since_wall_s)
                else:
                    stages = {one.stage for own, one in rows if own is record}
                    yield self._of_node(record, mail, stages, now)

    def _of_lost(
        self, loss: Loss, about: Reason, rows: Sequence[_Row], now: Now, *, more: bool
    ) -> MailRequest | None:
        """None: it is told of each node by itself."""
        records = [*{record.id: record for record, _ in rows}.values()]
        if not loss.many or len(lost.nodes_of(records)) == 1:
            return None
        mail, place = rows[0][1], self._place()
        return lost_request(loss, about, records, mail, self._settings, place, now.wall_s, more=more)

    def _of_node(self, record: NodeQuarantine, mail: NodeMail, stages: set[str], now: Now) -> Waiting:
        about = mail
        if mail.stage == Reason.UNREACHABLE.value and Reason.UNFENCED.value in stages:
            # That its pods stay says that it is unreachable, too: one mail.
            about = next(one for one in record.mails if one.stage == Reason.UNFENCED.value)
        make = partial(node_request, record, about, self._settings, self._place(), now.wall_s)
        return Waiting(record.id, mail.stage, mail, make(brief=True), make, since_wall_s=record.since_wall_s)

    def _of_many(self, stage: str, members: list[NodeQuarantine], now: Now) -> Iterable[Waiting]:
        """One mail for all. Who joins what was told is told by that."""
        mails = {one.id: next(mail for mail in one.mails if mail.stage == stage) for one in members}
        waiting = [one for one in members if mails[one.id].state == "waiting"]
        told = any(mails[one.id].state != "waiting" and one.held_by is SHARED[stage] for one in members)
        if told:
            for one in waiting:
                self._save(
                    (one.id, stage, one.since_wall_s), structs.replace(mails[one.id], state="digested")
                )
        elif waiting:
            mail, make = mails[waiting[0].id], network_request if stage == NETWORK else cause_request
            request = make(waiting, mail, self._settings, self._place(), now.wall_s)
            for one in waiting:
                yield Waiting(one.id, stage, mails[one.id], request, since_wall_s=one.since_wall_s)

    def _digest(self, mails: Sequence[MailRequest], now: Now) -> MailRequest:
        return nodes_digest(mails, self._settings, self._place(), now.wall_s)


def _about(record: NodeQuarantine, brake: Brake) -> frozenset[str]:
    """Codes of which there is one mail."""
    return network_codes(record.findings) if brake is Brake.NETWORK_INCIDENT else frozenset(record.cause[:1])
