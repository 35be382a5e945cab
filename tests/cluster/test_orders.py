"""Orders that come while another one is answered."""

import asyncio
from typing import Any

from sentinel.cluster.kubernetes.objects import PROTECTED_JOBS, FullMeta
from sentinel.cluster.kubernetes.orders import ANSWER, ORDER, PREFIX, Orders, Place
from sentinel.core.job.orders import JobOrder, JobOrderKind
from sentinel.core.now import Now

PLACE = Place(PROTECTED_JOBS, "train", "team/train", "team")
STANDS = '{"id":"1","kind":"extend","seen_wall_s":0.0}'


def meta(version: int, **notes: str) -> FullMeta:
    return FullMeta(name="train", resource_version=str(version), annotations=notes)


def test_an_order_that_the_watch_tells_of_before_the_answer_to_the_last_one_is_known_is_not_lost() -> None:
    class Client:
        """The API server answers a write when the watch has told of it and of what a person wrote after it."""

        async def get(self, path: str, kind: Any) -> Any:
            return kind(meta(1, **{ORDER: STANDS}))

        async def patch(self, path: str, operations: Any, kind: Any, how: str) -> Any:
            orders.observe(PLACE, meta(2, **{ANSWER: "{}"}))
            orders.observe(PLACE, meta(3, **{ANSWER: "{}", PREFIX + "stop": "enough"}))
            return kind(metadata=meta(2, **{ANSWER: "{}"}))

    def made(taken: Any, job: str) -> JobOrder:
        return JobOrder(id=taken.id, kind=JobOrderKind(taken.kind), job=job)

    client: Any = Client()
    orders = Orders(
        client, lambda: 1, lambda: Now(0.0, 0.0), lambda place, now: None, kinds=JobOrderKind, make=made
    )
    orders.observe(PLACE, meta(1, **{ORDER: STANDS}))
    (order,) = orders.standing
    asyncio.run(orders.answer(order, done=True, sentence="It may run longer."))
    assert not orders.standing
    assert orders.asking == (PLACE,)
