"""Records in a real API server: nothing is lost, nothing of another is overwritten, and repeating does no harm."""

import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import AlreadyExists, Conflict, NotLeading, Superseded, Unavailable
from sentinel.cluster.kubernetes.names import object_name
from sentinel.cluster.kubernetes.objects import PROTECTED_JOBS, QUARANTINES, Custom
from sentinel.cluster.kubernetes.record_index import RecordIndex
from sentinel.cluster.kubernetes.store import Store
from sentinel.core.agents.epochs import Epochs
from sentinel.core.fleet.model import Kind, Needs, NodeQuarantine, State
from sentinel.core.model import ProtectedJob
from sentinel.core.policy_model import Policy, Resume
from tests.kubernetes.conftest import run
from tests.kubernetes.proxy import Fault, Proxy

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

Records = Store[NodeQuarantine]


def record(**fields: Any) -> NodeQuarantine:
    node = f"n-{secrets.token_hex(4)}"
    given: dict[str, Any] = {
        "id": f"{node}-0001",
        "kind": Kind.FAULT,
        "node": node,
        "node_uid": "u",
        "state": State.ACTIVE,
        "needs": Needs(sentence="a person"),
        "since_wall_s": 1.8e9 + 1 / 3,
    }
    return NodeQuarantine(**{**given, **fields})


def quarantines(
    client: Client, epoch: int, epochs: Epochs | None = None, index: RecordIndex | None = None
) -> Records:
    return Store(
        client,
        QUARANTINES,
        NodeQuarantine,
        key=lambda one: one.id,
        epoch=lambda: epoch,
        epochs=epochs or Epochs(),
        moved=(index or RecordIndex()).moved,
    )


def with_store(config: str, epoch: int, test: Callable[[Records, Client], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        async with await Client.connect(config) as client:
            store = quarantines(client, epoch)
            await store.load()
            await test(store, client)

    run(opened())


def path_of(one: NodeQuarantine) -> str:
    return QUARANTINES.path(name=object_name(one.id))


def test_what_was_saved_is_there_for_the_next_one(controller: str, epoch: int) -> None:
    async def test(store: Records, client: Client) -> None:
        made = record()
        await store.save(made)
        ended = replace(made, state=State.RELEASED, ended_wall_s=1.8e9)
        await store.save(ended)
        epochs = Epochs()
        other = quarantines(client, epoch, epochs)
        assert ended in await other.load()
        assert other.get(made) == ended
        assert epochs.top >= epoch
        await other.delete(ended)
        await other.delete(ended)
        assert ended not in await store.load()

    with_store(controller, epoch, test)


def test_a_save_that_changes_nothing_is_not_sent(proxy: Proxy, behind_proxy: str, epoch: int) -> None:
    async def test(store: Records, _: Client) -> None:
        made = record()
        await store.save(made)
        asked = len(proxy.seen)
        await store.save(made)
        assert len(proxy.seen) == asked

    with_store(behind_proxy, epoch, test)


def test_what_somebody_else_wrote_is_not_overwritten_and_is_in_hand_afterwards(
    admin: "Api", controller: str, epoch: int
) -> None:
    async def test(store: Records, _: Client) -> None:
        made = record()
        await store.save(made)
        admin.patch(path_of(made), {"spec": {"state": "overridden", "by": "jane"}})
        with pytest.raises(Conflict):
            await store.save(replace(made, repeats=3))
        newest = store.get(made)
        assert newest is not None
        assert (newest.state, newest.by) == (State.OVERRIDDEN, "jane")
        await store.save(replace(newest, repeats=3))
        assert admin.get(path_of(made))["spec"]["by"] == "jane"
        admin.delete(path_of(made))
        with pytest.raises(Exception, match=r"404|409"):
            await store.save(replace(newest, repeats=4))
        assert store.get(made) is None

    with_store(controller, epoch, test)


def test_two_that_create_the_same_record_make_one(controller: str, epoch: int) -> None:
    async def test(store: Records, client: Client) -> None:
        made = record()
        other = quarantines(client, epoch)
        await store.save(made)
        with pytest.raises(AlreadyExists):
            await other.save(replace(made, repeats=9))
        assert other.get(made) == made

    with_store(controller, epoch, test)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_save_whose_answer_was_lost_is_looked_after(
    proxy: Proxy, behind_proxy: str, admin: "Api", epoch: int, method: str
) -> None:
    async def test(store: Records, _: Client) -> None:
        made = record()
        if method == "PATCH":
            await store.save(made)
        proxy.faults = [Fault(method=method, path="quarantines", lose_reply=True)]
        wanted = replace(made, repeats=2)
        await store.save(wanted)
        assert store.get(made) == wanted
        assert admin.get(path_of(made))["spec"]["repeats"] == 2
        proxy.faults = [Fault(method="PATCH", path="quarantines", answer=500)]
        with pytest.raises(Unavailable):
            await store.save(replace(wanted, repeats=3))
        await store.save(replace(wanted, repeats=3))

    with_store(behind_proxy, epoch, test)


def test_a_save_of_which_nothing_can_be_learnt_is_looked_after_before_anything_is_counted(
    proxy: Proxy, behind_proxy: str, epoch: int
) -> None:
    async def test(store: Records, client: Client) -> None:
        made = record()
        proxy.faults = [Fault(method="POST", lose_reply=True), Fault(method="GET", answer=503, times=2)]
        with pytest.raises(Unavailable):
            await store.save(made)
        assert store.get(made) is None
        assert store.unsure(made)
        with pytest.raises(Unavailable):
            await store.settle(made)
        assert store.unsure(made)
        await store.settle(made)
        assert not store.unsure(made)
        assert store.get(made) == made
        proxy.seen.clear()
        await store.settle(made)
        assert proxy.seen == []

    with_store(behind_proxy, epoch, test)


def test_the_predecessors_late_save_is_refused_once_its_record_was_claimed(
    controller: str, admin: "Api", epoch: int
) -> None:
    async def test(store: Records, client: Client) -> None:
        made = record()
        await store.save(made)
        admin.patch(path_of(made), {"metadata": {"annotations": {"sentinel.dev/epoch": str(epoch - 1)}}})
        before = quarantines(client, epoch - 1)
        await before.load()
        await store.load()
        await store.claim(made)
        with pytest.raises((Conflict, Superseded)):
            await before.save(replace(made, repeats=1))
        with pytest.raises(NotLeading):
            await before.save(replace(made, repeats=1))
        assert admin.get(path_of(made))["spec"].get("repeats", 0) == 0

    with_store(controller, epoch, test)


def test_one_who_does_not_lead_sends_nothing(proxy: Proxy, behind_proxy: str, epoch: int) -> None:
    def not_leading() -> int:
        raise NotLeading("not ours", "NotLeading")

    async def test(_: Records, client: Client) -> None:
        store = Store(
            client, QUARANTINES, NodeQuarantine, key=lambda one: one.id, epoch=not_leading, epochs=Epochs()
        )
        asked = len(proxy.seen)
        with pytest.raises(NotLeading):
            await store.save(record())
        assert len(proxy.seen) == asked

    with_store(behind_proxy, epoch, test)


def test_fields_of_a_newer_sentinel_are_kept(controller: str, admin: "Api", epoch: int) -> None:
    async def test(store: Records, _: Client) -> None:
        made = record()
        await store.save(made)
        admin.patch(path_of(made), {"spec": {"future": {"a": [1]}, "needs": {"later": True}}})
        await store.load()
        await store.save(replace(made, repeats=1))
        spec = admin.get(path_of(made))["spec"]
        assert spec["future"] == {"a": [1]}
        assert spec["needs"]["later"] is True
        assert spec["repeats"] == 1

    with_store(controller, epoch, test)


def test_a_record_that_cannot_be_read_is_named_and_not_taken_for_absent(
    controller: str, admin: "Api", epoch: int
) -> None:
    async def test(store: Records, _: Client) -> None:
        made = record()
        await store.save(made)
        # A year that API servers read and Python does not.
        admin.patch(path_of(made), {"spec": {"since": "0000-01-01T00:00:00Z"}})
        await store.load()
        assert store.get(made) is None
        assert "RFC 3339" in store.unreadable["", made.id]
        admin.patch(path_of(made), {"spec": {"since": "2026-01-01T00:00:00Z"}})
        await store.refresh(("", made.id))
        assert store.get(made) is not None
        assert ("", made.id) not in store.unreadable  # other tests of the run leave some there

    with_store(controller, epoch, test)


def test_the_index_of_records_is_what_the_store_has_in_the_order_of_its_list(
    controller: str, admin: "Api", epoch: int
) -> None:
    first = record()
    second = replace(first, id=f"{first.node}-0002")
    third = replace(first, id=f"{first.node}-0003")

    async def test(_: Records, client: Client) -> None:
        index = RecordIndex()
        store = quarantines(client, epoch, index=index)
        await store.load()

        def same(node: str, *expected: NodeQuarantine) -> bool:
            assert [*index.records.values()] == [*store.records.values()]
            assert all(id == one.id for id, one in index.records.items())
            return index.of(node) == [*expected]

        for one in (first, second, third):
            await store.save(one)
        changed = replace(first, repeats=1)
        await store.save(changed)
        assert same(first.node, changed, second, third), "one that is written again is not the last for it"

        admin.patch(path_of(third), {"spec": {"since": "0000-01-01T00:00:00Z"}})
        await store.refresh(("", object_name(third.id)))
        assert same(first.node, changed, second), "one that cannot be read is not there"
        await store.delete(second)
        assert same(first.node, changed)
        await store.load()
        assert same(first.node, changed)
        await store.delete(changed)
        assert same(first.node)
        admin.delete(path_of(third))

    with_store(controller, epoch, test)


def test_a_record_that_is_of_another_node_now_is_no_more_of_the_first() -> None:
    index = RecordIndex()
    first = record()
    moved = replace(first, node="another")
    index.moved(None, first)
    index.moved(first, moved)
    assert (index.of(first.node), index.of("another")) == ([], [moved])
    index.moved(moved, None)
    assert (index.of("another"), {**index.records}) == ([], {})


def test_a_copy_of_a_record_under_another_name_is_not_that_record(
    controller: str, admin: "Api", epoch: int
) -> None:
    async def test(store: Records, _: Client) -> None:
        made = record()
        await store.save(made)
        there = admin.get(path_of(made))
        head = {key: there[key] for key in ("apiVersion", "kind", "spec")}
        admin.create({**head, "metadata": {"name": f"{made.id}-copy"}})
        assert made in await store.load()
        assert ("", f"{made.id}-copy") not in store.records
        assert made.id in store.unreadable["", f"{made.id}-copy"]
        admin.delete(path_of(made) + "-copy")

    with_store(controller, epoch, test)


def test_what_a_watch_tells_late_does_not_undo_our_own_write(
    controller: str, admin: "Api", epoch: int
) -> None:
    async def test(store: Records, client: Client) -> None:
        made = record()
        await store.save(made)
        place = ("", made.id)
        old = await client.get(path_of(made), Custom)
        await store.save(replace(made, repeats=1))
        assert not store.observe(place, old)
        assert store.get(made) == replace(made, repeats=1)
        admin.patch(path_of(made), {"spec": {"repeats": 5}})
        assert store.observe(place, await client.get(path_of(made), Custom))
        assert store.get(made) == replace(made, repeats=5)
        assert not store.observe(place, None, gone="of one that was there before")
        assert store.observe(place, None)
        assert store.get(made) is None

    with_store(controller, epoch, test)


def test_records_of_jobs_live_in_their_namespaces_and_keep_what_is_none_on_purpose(
    installed: "ControlPlane", controller: str, epoch: int
) -> None:
    space = installed.namespace("jobs")

    async def test() -> None:
        async with await Client.connect(controller) as client:
            store: Store[ProtectedJob] = Store(
                client,
                PROTECTED_JOBS,
                ProtectedJob,
                key=lambda one: one.name,
                epoch=lambda: epoch,
                epochs=Epochs(),
                namespace=lambda _: space,
            )
            job = ProtectedJob(name="PyTorchJob/Llama 70B", policy=Policy(resume=Resume(), restart=None))
            await store.save(job)
            await store.save(replace(job, incarnation=1))
            await store.load()
            assert store.get(job) == replace(job, incarnation=1)
            ((namespace, name),) = [place for place in store.records if place[0] == space]
            assert namespace == space
            assert name.startswith("pytorchjob-llama-70b-")

    run(test())


@pytest.mark.parametrize("text", ["a", "a-0001", "x.y"])
def test_a_name_that_fits_is_kept(text: str) -> None:
    assert object_name(text) == text


@pytest.mark.parametrize("text", ["A", "a/b", "", "-", "a_b", "x" * 300, "é", "a..b"])
def test_a_name_that_does_not_fit_is_made_to_and_stays_one(text: str) -> None:
    found = object_name(text)
    assert object_name(found) == found
    assert len(found) <= 253
    assert found != object_name(text + "x")
