"""`sentinel pause`: no new isolations and removals in the whole cluster, until `sentinel pause --off`."""

import argparse
import asyncio
from typing import TYPE_CHECKING

from sentinel.cli import reach
from sentinel.console.tables import complain, put
from sentinel.status import standing
from sentinel.status.standing import GOES_ON, PAUSED, paused

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--off", action="store_true", help="go on")
    parser.add_argument("--why", metavar="TEXT", default="", help="shown by `sentinel status`")
    reach.add_wait(parser)
    reach.add_cluster(parser)


def main(args: argparse.Namespace) -> int:
    """0: done; 69, 75, 77: see docs/exit-codes.md."""

    async def work(client: "Client") -> int:
        return await (_resume(client, args) if args.off else _pause(client, args))

    return reach.asked(args, work)


async def _pause(client: "Client", args: argparse.Namespace) -> int:
    from sentinel.cluster.kubernetes.errors import AlreadyExists
    from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, ConfigMap
    from sentinel.cluster.kubernetes.pause import NAME, told

    namespace = reach.namespace_of(args)
    data = {"who": await reach.who_am_i(client), "why": args.why}
    try:
        body = {"metadata": {"name": NAME}, "data": data}
        made = await client.create(CONFIG_MAPS.path(namespace), body, ConfigMap)
    except AlreadyExists:
        made = await client.patch(CONFIG_MAPS.path(namespace, NAME), {"data": data}, ConfigMap)
    return await _follows(client, args, told(made), PAUSED)


async def _resume(client: "Client", args: argparse.Namespace) -> int:
    from sentinel.cluster.kubernetes.objects import CONFIG_MAPS
    from sentinel.cluster.kubernetes.pause import NAME

    if await paused(client, reach.namespace_of(args)) is None:
        put("It was not paused.\n")
        return 0
    await client.delete(CONFIG_MAPS.path(reach.namespace_of(args), NAME))
    return await _follows(client, args, "", GOES_ON)


async def _follows(client: "Client", args: argparse.Namespace, text: str, done: str) -> int:
    """Wait until the leader says on its Lease that it goes by this."""
    with reach.late(f"the controller that leads, at most {args.wait:g} s"):
        return await _heard(client, args, text, done)


async def _heard(client: "Client", args: argparse.Namespace, text: str, done: str) -> int:
    from sentinel.cluster.kubernetes.pause import PAUSED as NOTE

    loop = asyncio.get_running_loop()
    end_s = loop.time() + args.wait
    first = now = await standing.lease(client, reach.namespace_of(args))
    while True:
        fresh = now is not None and first is not None and now.spec.renew_time != first.spec.renew_time
        if now is not None and fresh and now.metadata.annotations.get(NOTE, "") == text:
            put(done + "\n")
            return 0
        if loop.time() >= end_s or now is None:
            complain(f"{reach.silent(first, now, args.wait)}; the next one that leads goes by it")
            return reach.EXIT_UNANSWERED
        await asyncio.sleep(standing.LOOK_S)
        now = await standing.lease(client, reach.namespace_of(args))
