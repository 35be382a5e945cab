"""Taking the records of one request: each new one once, in order; one that is damaged or that fails keeps none back."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import structlog

from sentinel.core.reports import Report
from sentinel.transport.connection import Refuse
from sentinel.transport.limits import Limits
from sentinel.transport.node import Guest
from sentinel.transport.wire import Ack, Arrived, Batch, Numbered, RawBatch, Reason, Refusal

log = structlog.get_logger(__name__)

# A record on which the controller fails is tried so often; then it is given up, so that the agent's others arrive.
TRIES = 5

_batch = msgspec.msgpack.Decoder(Batch)
_raw_batch = msgspec.msgpack.Decoder(RawBatch)
_report = msgspec.msgpack.Decoder(Report)

Reply = Callable[[Ack], bytes | None]
Work = tuple[int, Awaitable[None]]  # (sequence number, what the controller does with it)


class Taker:
    def __init__(self, take: Callable[[Arrived], Awaitable[None] | None], limits: Limits) -> None:
        self.epoch: int | None = None  # of this leadership; None: somebody else leads
        # In all, of nodes that were forgotten since too.
        self.records = 0
        self.duplicates = 0
        self.refused = {"Unreadable": 0, "GivenUp": 0}  # records
        self._take = take
        self._limits = limits

    def read(self, body: bytes) -> tuple[Batch, tuple[int, ...]]:
        """The batch, and the numbers of records in it that cannot be read. Raises Refuse."""
        try:
            return _batch.decode(body), ()
        except (msgspec.DecodeError, RecursionError):
            pass
        try:
            raw = _raw_batch.decode(body)
        except (msgspec.DecodeError, RecursionError):
            raise Refuse(Refusal(reason=Reason.BAD_BODY, text="the body is not a Batch")) from None
        records: list[Numbered] = []
        damaged: list[int] = []
        for record in raw.records:
            report = _read(record.report)
            if report is None:
                damaged.append(record.sequence)
            else:
                records.append(Numbered(record.sequence, report))
        batch = Batch(
            records=tuple(records),
            after=raw.after,
            full=_read(raw.full),
            full_after=raw.full_after,
            orders=raw.orders,
            hold_s=raw.hold_s,
            dropped=raw.dropped,
            now=raw.now,
        )
        return batch, tuple(damaged)

    def take(
        self, guest: Guest, batch: Batch, damaged: tuple[int, ...], reply: Reply
    ) -> Coroutine[Any, Any, bytes | None] | bytes | None:
        """Hand over what is new and reply. Raises Refuse."""
        node = guest.node
        if node.taking:
            raise self._not_taken("the controller is still with this node's last records")
        if batch.after > guest.reached:
            raise self._not_taken("what was sent before was not taken")
        for _ in damaged:
            node.refuse(Reason.BAD_BODY)
        self.refused["Unreadable"] += len(damaged)
        if damaged:
            log.warning("records_unreadable", node=node.name, records=len(damaged))
        node.dropped = batch.dropped
        works: list[Work] = []
        refused = list(damaged)
        if batch.full is not None:
            self._full(guest, batch, works)
        last = node.highest(guest.boot_id, guest.session)
        reached = last
        failed = False
        for record in batch.records:
            sequence, report = record.sequence, record.report
            if sequence <= reached:
                node.duplicates += 1
                self.duplicates += 1
                continue
            if report.node != node.name:
                node.refuse(Reason.OTHER_NODE)
                refused.append(sequence)
                continue
            arrived = Arrived(
                node=node.name,
                node_uid=guest.uid,
                session=guest.session,
                sequence=sequence,
                full=False,
                late=sequence <= guest.full_after,
                report=report,
            )
            try:
                waiting = self._take(arrived)
            except Exception as error:  # noqa: BLE001 - boundary: one record must not keep the others back
                if not self._give_up(guest, sequence, error):
                    failed = True
                    break
                refused.append(sequence)
                waiting = None
            if waiting is not None:
                works.append((sequence, waiting))
            node.records += 1
            self.records += 1
            reached = sequence
        if not failed and refused:
            reached = max(reached, *refused)
        if works:
            return self._wait(guest, works, reached, tuple(refused), failed, reply)
        return self._done(guest, reached, tuple(refused), failed, reply)

    def _full(self, guest: Guest, batch: Batch, works: list[Work]) -> None:
        node, report = guest.node, batch.full
        assert report is not None
        if report.node != node.name:
            node.refuse(Reason.OTHER_NODE)
            text = f"a full report of another node than {node.name}"
            raise Refuse(Refusal(reason=Reason.OTHER_NODE, text=text))
        arrived = Arrived(
            node=node.name,
            node_uid=guest.uid,
            session=guest.session,
            sequence=0,
            full=True,
            late=False,
            report=report,
        )
        try:
            waiting = self._take(arrived)
        except Exception as error:  # boundary: as above
            log.error("full_report_failed", node=node.name, exc_info=error)
            raise self._not_taken("the controller could not take the full report") from None
        guest.full_after = batch.full_after
        if waiting is not None:
            works.append((0, waiting))

    async def _wait(
        self,
        guest: Guest,
        works: list[Work],
        reached: int,
        refused: tuple[int, ...],
        failed: bool,
        reply: Reply,
    ) -> bytes | None:
        guest.node.taking = True
        try:
            async with asyncio.timeout(self._limits.take_s):
                done = await asyncio.gather(*(work for _, work in works), return_exceptions=True)
        except TimeoutError:
            raise self._not_taken("the controller did not take the records in time") from None
        finally:
            guest.node.taking = False
        for (sequence, _), error in zip(works, done, strict=True):
            if not isinstance(error, BaseException):
                continue
            if not isinstance(error, Exception):
                raise error
            if sequence == 0:
                log.error("full_report_failed", node=guest.node.name, exc_info=error)
                raise self._not_taken("the controller could not take the full report")
            if self._give_up(guest, sequence, error):
                refused += (sequence,)
                continue
            return self._done(guest, sequence - 1, refused, True, reply)
        return self._done(guest, reached, refused, failed, reply)

    def _done(
        self, guest: Guest, reached: int, refused: tuple[int, ...], failed: bool, reply: Reply
    ) -> bytes | None:
        if guest.epoch != self.epoch:  # leadership went while they were taken
            raise Refuse(
                Refusal(reason=Reason.NOT_LEADING, text="this controller leads no longer"), close=True
            )
        node = guest.node
        last = node.highest(guest.boot_id, guest.session)
        if reached > last:
            node.took(guest.boot_id, guest.session, reached)
        elif failed:
            raise self._not_taken("the controller could not take the record")
        guest.reached = max(guest.reached, reached)
        return reply(
            Ack(
                epoch=guest.epoch,
                sequence=max(reached, last),
                refused=refused,
                slow_down_s=self._limits.again_s if failed else 0.0,
            )
        )

    def _not_taken(self, text: str) -> Refuse:
        return Refuse(Refusal(reason=Reason.NOT_TAKEN, text=text, slow_down_s=self._limits.again_s))

    def _give_up(self, guest: Guest, sequence: int, error: Exception) -> bool:
        """Whether the controller has failed on this record often enough."""
        node = guest.node
        session, failing, times = node.failing
        times = times + 1 if (session, failing) == (guest.session, sequence) else 1
        node.failing = (guest.session, sequence, times)
        log.error("record_failed", node=node.name, sequence=sequence, times=times, exc_info=error)
        if times < TRIES:
            return False
        node.refuse("GivenUp")
        self.refused["GivenUp"] += 1
        return True


def _read(raw: msgspec.Raw) -> Report | None:
    if bytes(raw) == b"\xc0":
        return None
    try:
        return _report.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
