"""An order is taken up, known again by its id, and answered: with the controller's rights at a real API server."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Conflict, NotLeading
from sentinel.cluster.kubernetes.nodes import read
from sentinel.cluster.kubernetes.objects import NODES, FullMeta
from sentinel.cluster.kubernetes.orders import ANSWER, ORDER, Place, node_orders
from sentinel.cluster.kubernetes.pause import Pause
from sentinel.core.fleet.model import Order, OrderKind
from sentinel.util.clock import system_now
from tests.kubernetes.conftest import NAMESPACE, PAUSE, run
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane


@pytest.fixture
def name(installed: "ControlPlane") -> str:
    name = f"n-{secrets.token_hex(4)}"
    installed.node(name)
    return name


def annotate(admin: "Api", name: str, **notes: str | None) -> None:
    annotations = {f"sentinel.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
    admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}})


def notes(admin: "Api", name: str) -> dict[str, str]:
    return admin.get(f"/api/v1/nodes/{name}")["metadata"].get("annotations", {})  # type: ignore[no-any-return]


class Leader:
    """One that leads in this epoch, and looks at one node."""

    def __init__(self, client: Client, epoch: int, name: str) -> None:
        self.orders = node_orders(client, lambda: epoch, system_now, lambda place, node: None)
        self.client, self.name = client, name
        self.place = Place(NODES, name, name)

    async def look(self) -> Any:
        node = await read(self.client, self.name)
        self.orders.observe(self.place, node.metadata)
        return self.orders.standing

    async def take(self) -> None:
        await again(lambda: self.orders.take(self.place))

    async def answer(self, order: Order, *, done: bool, sentence: str) -> None:
        await again(lambda: self.orders.answer(order, done=done, sentence=sentence))


async def again(write: Callable[[], Awaitable[None]]) -> None:
    """What somebody changed meanwhile, such as Kubernetes' own controllers a new node, is tried anew."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await write()
            except Conflict:
                await asyncio.sleep(0.05)


def test_whoever_leads_next_knows_an_order_by_the_same_id(
    admin: "Api", controller: str, epoch: int, name: str
) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            first, second = Leader(client, epoch, name), Leader(client, epoch, name)
            annotate(admin, name, hold="a look", release="")
            assert await first.look() == ()
            assert first.orders.asking == (first.place,)
            await first.take()
            (order,) = first.orders.standing
            assert (order.kind, order.node, order.why) == (OrderKind.RELEASE, name, "")
            assert order.by.startswith("a person")
            assert first.orders.asking == (), "one after the other"

            assert await second.look() == (order,)
            await second.take()
            assert await second.look() == (order,)
            await second.answer(order, done=True, sentence="It was done.")
            assert json.loads(notes(admin, name)[ANSWER])["sentence"] == "It was done."
            assert ORDER not in notes(admin, name)

            await first.answer(order, done=False, sentence="Too late.")
            assert json.loads(notes(admin, name)[ANSWER])["sentence"] == "It was done."
            assert first.orders.asking == (first.place,), "now the other one"
            await first.take()
            (order,) = first.orders.standing
            assert (order.kind, order.why) == (OrderKind.HOLD, "a look")

    run(test())


def test_who_leads_no_more_takes_and_answers_nothing(
    admin: "Api", controller: str, epoch: int, name: str
) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            leader, late = Leader(client, epoch, name), Leader(client, epoch - 1, name)
            annotate(admin, name, hold="x")
            await leader.look()
            await leader.take()
            (order,) = await late.look()
            with pytest.raises(NotLeading):
                await late.orders.answer(order, done=True, sentence="late")
            await leader.answer(order, done=True, sentence="in time")
            annotate(admin, name, hold="again")
            await late.look()
            with pytest.raises(NotLeading):
                await late.orders.take(late.place)
            assert notes(admin, name)["sentinel.dev/hold"] == "again"

    run(test())


@pytest.mark.parametrize(
    ("value", "why", "by"),
    [
        ("its power is off", "its power is off", "a person"),
        ('{"why": "off", "by": "anna", "ask": "1"}', "off", "anna"),
        ('{"no": [', '{"no": [', "a person"),
        ('{"by": 7}', '{"by": 7}', "a person"),
        ("x" * 1000, "x" * 300, "a person"),
    ],
)
def test_what_a_person_wrote_is_taken_as_it_is_and_what_the_command_line_wrote_as_meant(
    admin: "Api", controller: str, epoch: int, name: str, value: str, why: str, by: str
) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            leader = Leader(client, epoch, name)
            annotate(admin, name, confirm_dead=value)
            await leader.look()
            await leader.take()
            (order,) = leader.orders.standing
            assert order.why == why
            assert order.by.startswith(by)

    run(test())


def test_what_stands_under_the_orders_name_and_is_none_is_replaced_by_the_next_one(
    admin: "Api", controller: str, epoch: int, name: str
) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            leader = Leader(client, epoch, name)
            annotate(admin, name, order="nonsense")
            assert await leader.look() == ()
            assert leader.orders.asking == ()
            annotate(admin, name, hold="x")
            await leader.look()
            await leader.take()
            assert len(leader.orders.standing) == 1
            admin.delete(f"/api/v1/nodes/{name}")
            await leader.answer(leader.orders.standing[0], done=True, sentence="gone")
            assert leader.orders.standing == ()

    run(test())


def test_an_order_is_not_taken_from_a_node_that_changes_meanwhile(
    admin: "Api", controller: str, epoch: int, name: str
) -> None:
    class Slow(Client):
        async def patch(self, *words: Any, **more: Any) -> Any:
            annotate(admin, name, hold=None)
            return await super().patch(*words, **more)

    async def test() -> None:
        async with await Slow.connect(controller) as client:
            leader = Leader(client, epoch, name)
            annotate(admin, name, hold="x")
            await leader.look()
            with pytest.raises(Conflict):
                await leader.orders.take(leader.place)
            assert ORDER not in notes(admin, name)

    run(test())


def test_it_is_paused_while_the_config_map_is_there_and_while_that_may_not_be_read(
    installed: "ControlPlane", admin: "Api", controller: str
) -> None:
    nobody = str(installed.user_kubeconfig("nobody-at-all"))

    async def test() -> None:
        async with await Client.connect(controller) as client, await Client.connect(nobody) as other:
            pause, blind = (Pause(one, NAMESPACE, system_now) for one in (client, other))
            assert pause.text.startswith("whether it is paused cannot be read yet")
            tasks = [asyncio.create_task(one.reflector.run()) for one in (pause, blind)]
            await eventually(lambda: not pause.text, "never read")
            await eventually(lambda: "forbidden" in blind.text, "not said")
            meta = {"name": "sentinel-pause", "namespace": NAMESPACE}
            made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            admin.create(made)
            await eventually(lambda: pause.text == "a person", "not seen")
            admin.patch(PAUSE, {"data": {"who": "anna", "why": "drill"}})
            await eventually(lambda: pause.text == "anna: drill", "not seen")
            admin.delete(PAUSE)
            await eventually(lambda: not pause.text, "not gone")
            admin.create({**made, "metadata": {**meta, "name": "another"}})
            assert not pause.text
            admin.delete(f"/api/v1/namespaces/{NAMESPACE}/configmaps/another")
            for task in tasks:
                task.cancel()

    run(test())


def test_an_order_without_an_id_is_none() -> None:
    """It would be followed in every round: no record could say that it has followed it."""
    orders = node_orders(None, lambda: 1, system_now, lambda place, now: None)  # type: ignore[arg-type]
    for id, standing in (("", 0), ("a", 1)):
        word = json.dumps({"id": id, "kind": "confirm-dead", "seen_wall_s": 1.0})
        orders.observe(Place(NODES, "n", "n"), FullMeta(name="n", annotations={ORDER: word}))
        assert len(orders.standing) == standing
