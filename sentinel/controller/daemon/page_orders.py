"""What people order on a controller's page: who they are, whether they may, and then the same order that the command
line gives. The API server answers both questions; the order is written in the person's name and stands in the record.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import AlreadyExists, Conflict, NotFound
from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, ConfigMap, Custom
from sentinel.cluster.kubernetes.orders import ANSWER, MAX_TEXT, Place, Said, Word
from sentinel.cluster.kubernetes.pause import NAME
from sentinel.cluster.kubernetes.people import People, Right, Somebody
from sentinel.core.fleet.model import OrderKind
from sentinel.status.standing import GOES_ON, PAUSED
from sentinel.util.errors import PermanentError, TemporaryError
from sentinel.web.server import Asked, Told

log = structlog.get_logger(__name__)

AT_ONCE = 4  # people who are looked up together
WAIT_S = 8.0  # for what becomes of an order: no connection lives longer than 10 s
LOOK_S = 0.2
TRIES = 5  # where the object is changed just then
_NODE_ORDERS = {kind.value: kind for kind in (OrderKind.RELEASE, OrderKind.ACKNOWLEDGE, OrderKind.HOLD)}
_PAUSES = frozenset({"pause", "unpause"})
IN_THE_CLEAR = (
    "Nobody signs in over a connection that others may read: use `kubectl port-forward`, or a proxy with TLS that sets "
    "X-Forwarded-Proto."
)


class _Body(Struct, forbid_unknown_fields=True):
    order: str
    node: str = ""
    why: str = ""


class Refusal(Exception):
    """The sentence for the person, and the HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class PageOrders:
    """`leading`: who does not lead orders nothing."""

    def __init__(
        self, client: Client, fleet: KubernetesFleet, namespace: str, leading: Callable[[], bool]
    ) -> None:
        self._client, self._fleet, self._namespace, self._leading = client, fleet, namespace, leading
        self._people = People(client)
        self._room = asyncio.Semaphore(AT_ONCE)

    async def me(self, asked: Asked) -> Told:
        """Whose token this is."""
        return await _answered(self._me(asked))

    async def order(self, asked: Asked) -> Told:
        return await _answered(self._order(asked))

    async def _me(self, asked: Asked) -> dict[str, object]:
        return {"name": (await self._who(asked)).username}

    async def _order(self, asked: Asked) -> dict[str, object]:
        who = await self._who(asked)
        try:
            wanted = msgspec.json.decode(asked.body, type=_Body)
        except msgspec.DecodeError as error:
            raise Refusal(400, f"This is no order: {error}") from None
        if wanted.order not in _NODE_ORDERS and wanted.order not in _PAUSES:
            raise Refusal(400, "There is no such order.")
        if not self._leading():
            raise Refusal(503, "This controller does not lead: nothing was ordered.")
        why = wanted.why.strip()[:MAX_TEXT]
        if wanted.order in _PAUSES:
            done, sentence = await self._pause(who, why, on=wanted.order == "pause")
        else:
            done, sentence = await self._about_node(who, _NODE_ORDERS[wanted.order], wanted.node, why)
        log.info(
            "page_order",
            order=wanted.order,
            node=wanted.node,
            by=who.username,
            why=why,
            done=done,
            sentence=sentence,
        )
        return {"done": done, "sentence": sentence}

    async def _who(self, asked: Asked) -> Somebody:
        if not asked.private:
            raise Refusal(403, IN_THE_CLEAR)
        if not asked.token:
            raise Refusal(401, "Sign in first.")
        async with self._room:
            who = await self._people.who(asked.token)
        if who is None:
            log.info("page_sign_in_refused")
            raise Refusal(401, "The cluster does not know this token, or it has expired.")
        return who

    async def _allowed(self, who: Somebody, right: Right) -> None:
        async with self._room:
            if await self._people.may(who, right):
                return
        log.info("page_order_forbidden", by=who.username, right=str(right))
        raise Refusal(403, f"{who.username} may not: the cluster does not allow to {right}.")

    # ------------------------------------------------------------ nodes

    async def _about_node(self, who: Somebody, kind: OrderKind, node: str, why: str) -> tuple[bool, str]:
        place = self._fleet.place_of(kind, node)
        if place is None:
            raise Refusal(404, f"There is no node {node} about which this can be ordered.")
        await self._allowed(who, Right("patch", place.resource, place.name))
        word = Word(why=why, by=who.username[:MAX_TEXT], ask=secrets.token_hex(8))
        for _ in range(TRIES):
            try:
                await self._fleet.order(place, kind, word)
                break
            except Conflict:
                await asyncio.sleep(LOOK_S)
            except NotFound:
                raise Refusal(404, f"{node} is gone.") from None
            except PermanentError as error:
                if error.reason != "OrderStands":
                    raise
                raise Refusal(
                    409, f"Somebody else ordered something of {node} just now: wait for it."
                ) from None
        else:
            raise Refusal(409, f"{node} is changed again and again: nothing was ordered. Try again.")
        return await self._outcome(place, word.ask)

    async def _outcome(self, place: Place, ask: str) -> tuple[bool, str]:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    notes = (await self._client.get(place.path, Custom)).metadata.annotations
                    if ask in notes.get(ANSWER, ""):
                        said = msgspec.json.decode(notes[ANSWER], type=Said)
                        return said.done, said.sentence
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return True, "It was ordered, and will be followed: this page shows when."
        except NotFound:
            return True, "It was ordered; what it stood on is gone."

    # ------------------------------------------------------------ the brake

    async def _pause(self, who: Somebody, why: str, *, on: bool) -> tuple[bool, str]:
        path = CONFIG_MAPS.path(self._namespace, NAME)
        if not on:
            await self._allowed(who, Right("delete", CONFIG_MAPS, NAME, self._namespace))
            await self._client.delete(path)
            return True, GOES_ON
        await self._allowed(who, Right("create", CONFIG_MAPS, NAME, self._namespace))
        data = {"who": who.username[:MAX_TEXT], "why": why}
        body = {"metadata": {"name": NAME}, "data": data}
        try:
            await self._client.create(CONFIG_MAPS.path(self._namespace), body, ConfigMap)
        except AlreadyExists:
            await self._client.patch(path, {"data": data}, ConfigMap)
        return True, PAUSED


async def _answered(work: Awaitable[dict[str, object]]) -> Told:
    try:
        return _json(200, await work)
    except Refusal as refusal:
        return _json(refusal.status, {"sentence": str(refusal)})
    except (TemporaryError, PermanentError) as error:
        log.warning("page_order_failed", error=f"{type(error).__name__}: {error}")
        return _json(503, {"sentence": f"The API server does not do it now: {error}"})


def _json(status: int, body: dict[str, object]) -> Told:
    return Told(body=msgspec.json.encode(body), content_type="application/json", status=status)
