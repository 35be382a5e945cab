"""`sentinel uninstall`: take away what Sentinel has left on nodes and jobs, once its controllers are gone."""

import argparse
import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from sentinel.cli import reach
from sentinel.cli.tables import complain, put
from sentinel.web.words import printable

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.cluster.kubernetes.leftover import OnJob, OnNode

AT_ONCE = 16
NAMED = 5  # of nodes that bear the same
STILL_S = 12.0  # a leader renews its Lease at least so often


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only say what is left; 1 if anything is")
    reach.add_cluster(parser)


def main(args: argparse.Namespace) -> int:
    """0: nothing is left; 1: something is; 69, 77: see docs/exit-codes.md."""

    async def work(client: "Client") -> int:
        return await (_check(client) if args.check else _uninstall(client, args))

    return reach.asked(args, work)


async def _check(client: "Client") -> int:
    from sentinel.cluster.kubernetes import leftover

    nodes, jobs = await leftover.nodes(client), await leftover.jobs(client)
    _tell_nodes(nodes)
    for job in jobs:
        put(f"{printable(job.title)}: {printable(', '.join(job.found))}\n")
    await _tell_records(client)
    if not nodes and not jobs:
        put("Nothing of Sentinel's is left on nodes and jobs.\n")
        return 0
    return reach.EXIT_NOT_DONE


def _tell_nodes(nodes: "list[OnNode]") -> None:
    """Those that bear the same in one line."""
    same = defaultdict(list)
    for one in nodes:
        same[", ".join(one.found) + (f"; {one.stays}" if one.stays else "")].append(one.name)
    for what, names in sorted(same.items(), key=lambda item: item[1]):
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        put(f"node {printable(', '.join(names[:NAMED]))}{more}: {printable(what)}\n")


async def _tell_records(client: "Client") -> None:
    from sentinel.cluster.kubernetes import leftover

    counts = await leftover.records(client)
    if any(counts.values()):
        told = ", ".join(f"{count} {plural}" for plural, count in counts.items() if count)
        put(f"Records stay, and a new installation goes on with them: {told}.\n")


async def _uninstall(client: "Client", args: argparse.Namespace) -> int:
    from sentinel.cluster.kubernetes import leftover

    if (leader := await _leads(client, reach.namespace_of(args))) is not None:
        complain(
            f"{leader} still leads and would write it all again: first `helm uninstall`, or "
            "`kubectl delete -f deploy/controller.yaml`"
        )
        return reach.EXIT_NOT_DONE
    left = 0
    for job in await leftover.jobs(client):
        left += await _clear_job(client, job)
    nodes = await leftover.nodes(client)
    turn = asyncio.Semaphore(AT_ONCE)
    left += sum(await asyncio.gather(*(_clear_node(client, one.name, turn) for one in nodes)))
    if not left:
        put("Nothing of Sentinel's is left on nodes and jobs.\n")
    await _tell_records(client)
    return reach.EXIT_NOT_DONE if left else 0


async def _leads(client: "Client", namespace: str) -> str | None:
    """Who renews the controllers' Lease now."""
    first = await reach.lease(client, namespace)
    if first is None or not first.spec.holder_identity:
        return None
    with reach.late(f"a word of {first.spec.holder_identity}, at most {STILL_S:g} s"):
        for _ in range(int(STILL_S / reach.LOOK_S)):
            await asyncio.sleep(reach.LOOK_S)
            now = await reach.lease(client, namespace)
            if now is None or not now.spec.holder_identity:
                return None
            if now.spec.renew_time != first.spec.renew_time:
                return now.spec.holder_identity
    return None


async def _clear_job(client: "Client", job: "OnJob") -> int:
    """How much is left: 0 or 1."""
    from sentinel.cluster.kubernetes import leftover
    from sentinel.errors import PermanentError, TemporaryError

    title = printable(job.title)
    if not job.stopped:
        put(f"{title}: left as it is, since it runs: {printable(', '.join(job.found))}\n")
        return 0
    try:
        refused = await leftover.start_again(client, job)
    except (TemporaryError, PermanentError) as error:
        refused = str(error)
    if refused:
        complain(f"{title}: not started again: {printable(refused)}")
        return 1
    put(f"{title}: started again ({printable(job.found[0])})\n")
    return 0


async def _clear_node(client: "Client", name: str, turn: asyncio.Semaphore) -> int:
    from sentinel.cluster.kubernetes import leftover
    from sentinel.cluster.kubernetes.errors import Forbidden
    from sentinel.errors import PermanentError, TemporaryError

    async with turn:
        try:
            one = await leftover.clear_node(client, name)
        except Forbidden:  # of the others too: told once
            raise
        except (TemporaryError, PermanentError) as error:
            complain(f"node {printable(name)}: {printable(str(error))}")
            return 1
    put(f"node {printable(name)}: removed {printable(', '.join(one.found))}\n")
    if one.stays:
        put(f"node {printable(name)}: {printable(one.stays)}\n")
    return 0
