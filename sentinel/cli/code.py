"""`sentinel code CODE --go-on|--ignore|--off`: what a person says of a finding that many nodes have at once."""

import argparse
import asyncio
import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sentinel.cli import reach
from sentinel.console.tables import complain, put
from sentinel.status import standing
from sentinel.status.standing import said

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.cluster.kubernetes.objects import ConfigMap
    from sentinel.core.fleet.model import NodeQuarantine

MAX_CODE = 300  # characters
GOES_ON = "Goes on: for a day no node is held back because many have {code}."
IGNORED = "Ignored: no node is isolated for {code}, and those that were for it alone are given back."
TAKEN_BACK = "Taken back: {code} counts as any other finding again."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "code", nargs="?", default="", help="as mails and `sentinel status` name it, like 'XID 79'"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--go-on", action="store_true", help="the faults are real: isolate the nodes, within the brakes"
    )
    what.add_argument("--ignore", action="store_true", help="it is a mistake: isolate no node for it")
    what.add_argument("--off", action="store_true", help="take back what was said of it")
    parser.add_argument("--why", metavar="TEXT", default="", help="shown by `sentinel status`")
    reach.add_wait(parser)
    reach.add_cluster(parser)


def main(args: argparse.Namespace) -> int:
    """0: done; 2: the arguments do not fit; 1, 69, 75, 77: see docs/exit-codes.md."""
    says = args.go_on or args.ignore or args.off
    if not args.code.strip() or not says or len(args.code) > MAX_CODE:
        complain(
            "a code and one of --go-on, --ignore, --off belong together" if args.code or says else _NOTHING
        )
        return 2
    from sentinel.core.fleet.release import DISK_CODES

    if args.code in DISK_CODES and not args.off:
        complain(
            f"{args.code} is no fault: full disks have an allowance of their own, `fleet.disks` of the settings"
        )
        return 2

    async def work(client: "Client") -> int:
        return await _say(client, args)

    return reach.asked(args, work)


_NOTHING = "which code, and one of --go-on, --ignore, --off? `sentinel status` names what many nodes have"


async def _say(client: "Client", args: argparse.Namespace) -> int:
    from sentinel.cluster.kubernetes import codes
    from sentinel.cluster.kubernetes.errors import AlreadyExists, NotFound
    from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, ConfigMap
    from sentinel.core.fleet.model import Say

    namespace = reach.namespace_of(args)
    there, named = await said(client, namespace), await _named(client, args.code)
    path = CONFIG_MAPS.path(namespace, codes.NAME)
    before = codes.keys_of(there, args.code) if there is not None else set()
    if args.off:
        if not before:
            put(f"Nothing was said of {args.code}.\n")
            return 0
        made = await client.patch(path, {"data": dict.fromkeys(before)}, ConfigMap)
        return await _follows(client, args, made, TAKEN_BACK.format(code=args.code))
    say = Say.GO_ON if args.go_on else Say.IGNORE
    now = await _now(client, namespace)
    value = codes.written(args.code, say, await reach.who_am_i(client), args.why, now)
    gone = before | codes.stale(there, now.timestamp()) if there is not None else set()
    if there is not None and len(there.data.keys() - gone) >= codes.MAX_WORDS:
        complain(
            f"the ConfigMap {codes.NAME} names {codes.MAX_WORDS} codes, and more do not count: take some back"
        )
        return reach.EXIT_NOT_DONE
    data = {**dict.fromkeys(gone), codes.key_of(args.code): value}
    try:
        made = await client.patch(path, {"data": data}, ConfigMap)
    except NotFound:
        body = {"metadata": {"name": codes.NAME}, "data": {codes.key_of(args.code): value}}
        try:
            made = await client.create(CONFIG_MAPS.path(namespace), body, ConfigMap)
        except AlreadyExists:
            made = await client.patch(path, {"data": data}, ConfigMap)
    done = (GOES_ON if args.go_on else IGNORED).format(code=args.code)
    nodes = "1 node has" if named == 1 else f"{named} nodes have"
    known = f"{nodes} an open quarantine that names it." if named else "No open quarantine names it now."
    return await _follows(client, args, made, f"{done} {known}")


async def _now(client: "Client", namespace: str) -> datetime:
    """By the controllers' clock, by which the word is to hold, where that is ahead of this machine's."""
    from sentinel.util.documents import time_of

    now, lease = datetime.now(UTC), await standing.lease(client, namespace)
    with contextlib.suppress(ValueError):
        if lease is not None and lease.spec.renew_time:
            return max(now, datetime.fromtimestamp(time_of(lease.spec.renew_time), UTC))
    return now


async def _named(client: "Client", code: str) -> int:
    """How many nodes have an open quarantine with this code: 0 tells who mistyped it."""
    from sentinel.status import fleet_read

    def names(one: "NodeQuarantine") -> bool:
        return one.state.open and any(finding.code == code for finding in one.findings)

    found, _ = await fleet_read.records(client)
    return len({one.node for one in found.values() if names(one)})


async def _follows(client: "Client", args: argparse.Namespace, made: "ConfigMap", done: str) -> int:
    """Wait until the leader says on its Lease that it goes by this version, or by a later one."""
    from sentinel.cluster.kubernetes.codes import FOLLOWED

    namespace, loop = reach.namespace_of(args), asyncio.get_running_loop()
    end_s, version = loop.time() + args.wait, made.metadata.resource_version
    with reach.late(f"the controller that leads, at most {args.wait:g} s"):
        first = now = await standing.lease(client, namespace)
        while True:
            if now is not None and now.metadata.annotations.get(FOLLOWED, "") == version:
                put(done + "\n")
                return 0
            if loop.time() >= end_s or now is None:
                complain(f"{reach.silent(first, now, args.wait)}; the next one that leads goes by it")
                return reach.EXIT_UNANSWERED
            await asyncio.sleep(standing.LOOK_S)
            now = await standing.lease(client, namespace)
            if (newer := await said(client, namespace)) is not None:  # somebody else has said something since
                version = newer.metadata.resource_version
