"""What people order of jobs, by annotations of ProtectedJobs: `sentinel.dev/extend: "2h"`.

orders = JobOrders(client, epoch, clock, records.observe, wake)
group.create_task(orders.run())           # while it leads
People(orders, hands, ...).turn()         # sentinel/controller/jobs/people.py: judged, followed, answered
"""

from collections.abc import Awaitable, Callable, Mapping

import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Conflict
from sentinel.cluster.kubernetes.objects import PROTECTED_JOBS, Custom, FullMeta, Node
from sentinel.cluster.kubernetes.orders import Orders, Place, Taken
from sentinel.cluster.kubernetes.reflector import Change, Pace, Reflector
from sentinel.core.job.orders import JobOrder, JobOrderKind, split
from sentinel.util.clock import Clock

log = structlog.get_logger(__name__)


class _Spec(Struct, frozen=True, gc=False):
    name: str = ""


class _Recorded(Struct, frozen=True, gc=False):
    """Of a ProtectedJob only what an order needs: two thousand of them are rewritten every half minute."""

    metadata: FullMeta
    spec: _Spec = _Spec()


class JobOrders:
    """`wrote` is told of what taking up or answering an order has made of a ProtectedJob: namespace and name, and the
    object. `changed` is called when there is something to take up or to follow."""

    def __init__(
        self,
        client: Client,
        epoch: Callable[[], int],
        clock: Clock,
        wrote: Callable[[tuple[str, str], Custom], None],
        changed: Callable[[], None],
        pace: Pace = Pace(),  # noqa: B008  frozen
    ) -> None:
        self._changed, self._tell = changed, wrote
        self._orders = Orders(
            client, epoch, clock, self._wrote, kinds=JobOrderKind, make=_of_job, split=split
        )
        self.reflector = Reflector(client, PROTECTED_JOBS, _Recorded, self._seen, pace=pace, clock=clock)

    async def run(self) -> None:
        """Follow ProtectedJobs, until cancelled."""
        await self.reflector.run()

    @property
    def standing(self) -> tuple[JobOrder, ...]:
        """Taken up, and not answered yet."""
        return self._orders.standing

    def take(self) -> Mapping[str, Awaitable[None]]:
        """For each record where an order waits and it is its turn: what makes it stand. Raises Temporary- and
        PermanentError."""
        return {place.subject: self._kept(self._orders.take(place), place) for place in self._orders.asking}

    async def answer(self, order: JobOrder, *, done: bool, sentence: str) -> None:
        """Take it away and leave the answer. Raises Temporary- and PermanentError: it still stands then."""
        place = self._orders.place_of(order)
        if place is not None:
            await self._kept(self._orders.answer(order, done=done, sentence=sentence), place)

    async def _kept(self, work: Awaitable[None], place: Place) -> None:
        try:
            await work
        except (
            Conflict
        ) as error:  # its record was saved just now: the watch tells of that, and it is tried again
            log.info("order_changed_meanwhile", job=place.subject, why=str(error))
            self._changed()

    def _seen(self, change: Change[_Recorded]) -> None:
        one = change.after or change.before
        if one is not None and one.spec.name:
            meta = one.metadata
            place = Place(PROTECTED_JOBS, meta.name, one.spec.name, meta.namespace)
            self._orders.observe(place, meta, gone=change.after is None)
            if self._orders.asking or self._orders.standing:
                self._changed()

    def _wrote(self, place: Place, now: Node | Custom) -> None:
        if isinstance(now, Custom):
            self._tell((place.namespace, place.name), now)
        self._changed()


def _of_job(taken: Taken, job: str) -> JobOrder:
    return JobOrder(
        id=taken.id,
        kind=JobOrderKind(taken.kind),
        job=job,
        argument=taken.argument,
        by=taken.by,
        why=taken.why,
        seen_wall_s=taken.seen_wall_s,
    )
