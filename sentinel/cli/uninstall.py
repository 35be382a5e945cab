"""`sentinel uninstall`: take away what Sentinel has left on nodes and jobs, once its controllers are gone."""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
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
ROLES = "docs/kubernetes.md#removing says which rights this takes; cluster-admin has them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only say what is left; 1 if anything is")
    reach.add_cluster(parser)


def main(args: argparse.Namespace) -> int:
    """0: nothing is left; 1: something is; 69, 77: see docs/exit-codes.md."""

    async def work(client: "Client") -> int:
        return await (_check(client) if args.check else _uninstall(client, reach.namespace_of(args)))

    return reach.asked(args, work, roles=ROLES)


async def _check(client: "Client") -> int:
    from sentinel.cluster.kubernetes import leftover

    isolations = await leftover.Isolations(client).in_force()
    jobs, nodes = await leftover.jobs(client), await leftover.nodes(client)
    for record in isolations:
        _say(f"isolation {record.id}", record.sentence)
    stopped = [job for job in jobs if job.mark]
    for job in stopped:
        _say(job.title, f"stopped by Sentinel: {', '.join(job.found)}")
    _tell_nodes(nodes)
    return await _rest(client, jobs, len(isolations) + len(stopped) + len(nodes))


def _tell_nodes(nodes: "Iterable[OnNode]") -> None:
    """Those that bear the same in one line."""
    same = defaultdict(list)
    for one in nodes:
        same[f"{', '.join(one.found)}. {one.stays}".strip()].append(one.name)
    for what, names in same.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        _say(f"node {', '.join(names[:NAMED])}{more}", what)


async def _uninstall(client: "Client", namespace: str) -> int:
    from sentinel.cluster.kubernetes import leftover

    if (leader := await _leads(client, namespace)) is not None:
        complain(
            f"{printable(leader)} still leads and would write it all again: first `helm uninstall`, or "
            "`kubectl delete -f deploy/controller.yaml`"
        )
        return reach.EXIT_NOT_DONE
    isolations, kept = leftover.Isolations(client), set[str]()
    # First: a node without its mark whose isolation is in force would be taken for one that a person gave back.
    for record in await isolations.in_force():
        did = f"ended. Its record said: {record.sentence}"
        if await _done(f"isolation {record.id}", isolations.end(record), did):
            kept.add(record.node)
    left = len(kept)
    jobs = await leftover.jobs(client)
    for job in jobs:
        if job.mark:
            left += await _done(job.title, leftover.start_again(client, job), "started again.")
    turn = asyncio.Semaphore(AT_ONCE)

    async def clear(one: "OnNode") -> int:
        async with turn:
            removed = f"removed {', '.join(one.found)}. {one.stays}".strip()
            return await _done(f"node {one.name}", leftover.clear_node(client, one), removed)

    free = [one for one in await leftover.nodes(client) if one.name not in kept]
    left += sum(await asyncio.gather(*map(clear, free)))
    return await _rest(client, jobs, left)


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


async def _done(what: str, doing: Awaitable[None], did: str) -> int:
    """How much of it is left: 0 or 1."""
    from sentinel.cluster.kubernetes.errors import Forbidden, NotFound
    from sentinel.errors import PermanentError, TemporaryError

    try:
        await doing
    except Forbidden:  # of the others too: told once
        raise
    except NotFound:
        did = "gone meanwhile."
    except (TemporaryError, PermanentError) as error:
        complain(printable(f"{what}: {error}"))
        return 1
    _say(what, did)
    return 0


async def _rest(client: "Client", jobs: "Sequence[OnJob]", left: int) -> int:
    """Tells what stays; the exit code."""
    from sentinel.cluster.kubernetes import leftover

    for job in jobs:
        if job.waits:
            _say(job.title, "stays suspended: its owner has left its start to Sentinel, and must start it.")
        elif not job.mark:
            _say(job.title, f"keeps what goes with it: {', '.join(job.found)}.")
    if not left:
        put("Nothing is left to take away.\n")
    counts = await leftover.records(client)
    if any(counts.values()):
        told = ", ".join(f"{count} {plural}" for plural, count in counts.items() if count)
        put(f"Records stay, and a new installation goes on with them: {told}.\n")
    return reach.EXIT_NOT_DONE if left else 0


def _say(what: str, said: str) -> None:
    put(printable(f"{what}: {said}") + "\n")
