"""An order to the controller: an annotation of a node, a quarantine or a job's record, whose answer is waited for."""

import argparse
import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from sentinel.cli import reach
from sentinel.console.tables import complain, put
from sentinel.status import job_target, standing

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.cluster.kubernetes.objects import Lease
    from sentinel.cluster.kubernetes.orders import Place
    from sentinel.core.fleet.model import OrderKind
    from sentinel.core.job.orders import JobOrderKind

    Find = Callable[[Client], Awaitable[Place | None]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE")
    add_order(parser)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help=job_target.FORMS)
    add_job_order(parser)


def add_order(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--why", metavar="TEXT", default="", help="stands in the record, for those who come after"
    )
    reach.add_wait(parser)
    reach.add_cluster(parser)


def add_job_order(parser: argparse.ArgumentParser) -> None:
    job_target.add_namespace(parser)
    add_order(parser)


def order(args: argparse.Namespace, kind: "OrderKind", node: str) -> int:
    """0: done; 1: not done, and why is said; 69, 75, 77: see docs/exit-codes.md."""
    return _ordered(args, kind.value, "", lambda client: _node_place(client, kind, node))


def order_of_job(args: argparse.Namespace, kind: "JobOrderKind", job: str, argument: str = "") -> int:
    """As `order`."""
    return _ordered(
        args, kind.value, argument, lambda client: job_target.place_of(client, job, args.namespace)
    )


def _ordered(args: argparse.Namespace, kind: str, argument: str, find: "Find") -> int:
    async def work(client: "Client") -> int:
        place = await find(client)
        return (
            reach.EXIT_NOT_DONE if place is None else await _Asking(client, args, kind, place).run(argument)
        )

    return reach.asked(args, work)


async def _node_place(client: "Client", kind: "OrderKind", node: str) -> "Place | None":
    """The node; of one that is gone the record that keeps it out, for a release."""
    from sentinel.cluster.kubernetes import nodes
    from sentinel.cluster.kubernetes.errors import NotFound
    from sentinel.cluster.kubernetes.objects import NODES, QUARANTINES
    from sentinel.cluster.kubernetes.orders import Place
    from sentinel.core.fleet.model import OrderKind

    try:
        await nodes.read(client, node)
        return Place(NODES, node, node)
    except NotFound:
        pass
    if kind is OrderKind.RELEASE:
        from sentinel.cluster.kubernetes.names import object_name
        from sentinel.status.fleet_read import records

        found, _ = await records(client)
        for record in found.values():
            if record.node == node and record.state.open and record.kind.isolates:
                return Place(QUARANTINES, object_name(record.id), node)
        complain(
            f"there is no node {node}, and no open quarantine of it (a finding on this machine: "
            f"`sentinel release --here ENTITY`; a job that is held: `sentinel release NAMESPACE/JOB`)"
        )
    elif kind is OrderKind.CONFIRM_DEAD:
        complain(f"there is no node {node}: that its object is gone is proof enough")
    else:
        complain(f"there is no node {node}")
    return None


class _Asking:
    def __init__(self, client: "Client", args: argparse.Namespace, kind: str, place: "Place") -> None:
        self.client, self.args, self.kind, self.place = client, args, kind, place
        self.ask = secrets.token_hex(8)

    async def run(self, argument: str) -> int:
        from sentinel.cluster.kubernetes.orders import PREFIX, Word

        before, told = await self._lease()
        if before is None and told:
            complain(
                f"no controller ever led in namespace {reach.namespace_of(self.args)}: nothing was ordered"
            )
            return reach.EXIT_UNANSWERED
        by = await reach.who_am_i(self.client)
        word = Word(why=self.args.why, by=by, ask=self.ask, argument=argument)
        body = {"metadata": {"annotations": {PREFIX + self.kind: msgspec.json.encode(word).decode()}}}
        await self.client.patch(self.place.path, body, dict)
        with reach.late(f"the controller that leads, at most {self.args.wait:g} s; the order stands"):
            return await self._answer(before)

    async def _lease(self) -> "tuple[Lease | None, bool]":
        """The controllers' Lease, and whether it may be read: who may order in one namespace may not in theirs."""
        from sentinel.cluster.kubernetes.errors import Forbidden

        try:
            return await standing.lease(self.client, reach.namespace_of(self.args)), True
        except Forbidden:
            return None, False

    async def _answer(self, before: "Lease | None") -> int:
        from sentinel.cluster.kubernetes.errors import NotFound
        from sentinel.cluster.kubernetes.objects import Custom
        from sentinel.cluster.kubernetes.orders import ANSWER, ORDER, PREFIX, Said

        place, key = self.place, PREFIX + self.kind
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.args.wait
        while True:
            try:
                found = await self.client.get(place.path, Custom)
            except NotFound:
                complain(f"{place.name} is gone, and the order with it")
                return reach.EXIT_NOT_DONE
            notes = found.metadata.annotations
            if self.ask in notes.get(ANSWER, ""):
                said = msgspec.json.decode(notes[ANSWER], type=Said)
                put(said.sentence + "\n") if said.done else complain(said.sentence)
                return 0 if said.done else reach.EXIT_NOT_DONE
            if not any(self.ask in notes.get(one, "") for one in (key, ORDER)):
                complain(
                    f"somebody else ordered something of {place.subject} meanwhile; "
                    f"see `sentinel status {place.subject}`"
                )
                return reach.EXIT_UNANSWERED
            if loop.time() >= end_s:
                break
            await asyncio.sleep(standing.LOOK_S)
        after, told = await self._lease()
        why = (
            reach.silent(before, after, self.args.wait) if told else f"no answer within {self.args.wait:g} s"
        )
        namespace = f"-n {place.namespace} " if place.namespace else ""
        complain(
            f"{why}; the order stands and is followed when one does "
            f"(to take it back: kubectl {namespace}annotate {place.resource.plural} {place.name} {key}-)"
        )
        return reach.EXIT_UNANSWERED
