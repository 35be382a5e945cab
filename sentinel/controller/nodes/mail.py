"""Which mails about nodes wait, and what became of those that went: kept until it stands in their records."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from msgspec import structs

from sentinel.core.fleet import lost
from sentinel.core.fleet.events import Reason, Told
from sentinel.core.fleet.model import Brake, Kind, NodeMail, NodePicture, NodeQuarantine
from sentinel.core.fleet.record import step
from sentinel.core.now import Now

AT_ONCE = 8  # records that are written for mails
SHARED = (Brake.NETWORK_INCIDENT, Brake.COMMON_CAUSE)  # one message for all nodes that are held back for it


class MailBook:
    """`changed` is called when there is something to write."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._mails: dict[tuple[str, str], NodeMail] = {}  # (record, stage): newer than what is saved
        self._unsaved: set[tuple[str, str]] = set()
        self._all_saved = asyncio.Event()
        self._all_saved.set()

    def clear(self) -> None:
        """The records tell it now: another one may have led."""
        self._mails.clear()
        self._unsaved.clear()
        self._all_saved.set()

    @property
    def unsaved(self) -> bool:
        return bool(self._unsaved)

    def to_tell(self, records: Mapping[str, NodeQuarantine]) -> Iterator[NodeQuarantine]:
        """The records of which something is not told yet, and those that may share a message with others."""
        silent_wall_s = min(
            (
                one.since_wall_s
                for one in records.values()
                if one.kind is Kind.SILENCE and _waits(self._newest(one))
            ),
            default=math.inf,
        )
        for record in records.values():
            mails = self._newest(record)
            if record.kind is Kind.SILENCE:
                shares = record.since_wall_s >= silent_wall_s - lost.LONGEST_S
            else:
                shares = record.held_by in SHARED
            if shares or _waits(mails):
                yield structs.replace(record, mails=mails)

    def _newest(self, record: NodeQuarantine) -> tuple[NodeMail, ...]:
        return tuple(self._mails.get((record.id, mail.stage), mail) for mail in record.mails)

    def record(self, record: str, mail: NodeMail) -> None:
        """What became of a mail. How often it was tried is not written down: a successor counts anew."""
        self._mails[record, mail.stage] = mail
        if mail.state != "waiting" or mail.done or mail.refused:
            self._unsaved.add((record, mail.stage))
            self._all_saved.clear()
            self._changed()

    def due(
        self,
        records: Mapping[str, NodeQuarantine],
        now: Now,
        epoch: int,
        may: Callable[[str], bool],
        most: int,
    ) -> dict[str, NodeQuarantine]:
        """So many records at `most` as they are to be saved, one of a node. `may`: can that node's be saved now?"""
        moved: dict[str, NodeQuarantine] = {}
        nodes: set[str] = set()
        for id, stage in sorted(self._unsaved):
            before = moved.get(id) or records.get(id)
            if before is None or all(mail.stage != stage for mail in before.mails):
                # It was deleted meanwhile, and may have been made anew: that mail is no longer in it.
                self._done(id, stage)
                continue
            if id not in moved and (len(moved) >= most or before.node in nodes or not may(before.node)):
                continue
            nodes.add(before.node)
            told = Told(reason=Reason.TOLD, sentence="A mail has gone.", mail=self._mails[id, stage])
            moved[id], _ = step(before, told, now, epoch)
        return moved

    def saved(self, record: NodeQuarantine) -> None:
        for mail in record.mails:
            if self._mails.get((record.id, mail.stage)) == mail:
                self._done(record.id, mail.stage)

    async def all_saved(self, timeout_s: float) -> None:
        """Until nothing is left to write, for at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_saved.wait()

    def _done(self, id: str, stage: str) -> None:
        self._unsaved.discard((id, stage))
        if self._mails[id, stage].state != "waiting":
            del self._mails[id, stage]
        if not self._unsaved:
            self._all_saved.set()


def _waits(mails: tuple[NodeMail, ...]) -> bool:
    return any(mail.state == "waiting" for mail in mails)


def may_be_told(
    due: Iterable[NodeQuarantine], saving: Container[str], joined: Callable[[str], NodePicture | None]
) -> Iterator[NodeQuarantine]:
    """That a node is out of service is told when it shows that; of a record that is being saved nothing, but a silence
    counts for what is told of others. `joined`: a node as it shows itself."""
    for one in due:
        node = joined(one.node) if one.isolating else None
        if one.id not in saving and (node is None or node.mark is not None):
            yield one
        elif one.kind is Kind.SILENCE:
            yield _told_only(one)


def _told_only(record: NodeQuarantine) -> NodeQuarantine:
    """Without the mails that wait."""
    return structs.replace(record, mails=tuple(mail for mail in record.mails if mail.state != "waiting"))
