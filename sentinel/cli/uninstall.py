"""`sentinel uninstall`: take away what Sentinel has left on nodes and jobs, once its controllers are gone."""

import argparse
import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sentinel.cli import reach
from sentinel.console.tables import complain, put, silence_stdout
from sentinel.util import journal
from sentinel.web.words import printable

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.cluster.kubernetes.leftover import OnNode
    from sentinel.cluster.kubernetes.leftover_jobs import Jobs, OnJob
    from sentinel.core.agents.epochs import Epochs

AT_ONCE = 16
NAMED = 5  # of those that bear the same
# A leader that was killed keeps the Lease for 10 s from when that was seen, and a look takes a second or two.
WAIT_S = 20.0
LEASE = "sentinel-controller"
IDENTITY = "uninstall-"
RIGHTS = "docs/kubernetes.md#removing says which rights this takes; cluster-admin has them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only say what is left; 1 if anything is")
    parser.add_argument(
        "--keep-cordons", action="store_true", help="leave the nodes cordoned that Sentinel has cordoned"
    )
    reach.add_cluster(parser)


def main(args: argparse.Namespace) -> int:
    """0: nothing is left; 1: something is; 69, 77: see docs/exit-codes.md."""

    async def work(client: "Client") -> int:
        from sentinel.cluster.kubernetes import leftover
        from sentinel.core.agents.epochs import Epochs

        epochs = Epochs()
        if args.check:
            return await _check(client, epochs, keep_cordons=args.keep_cordons)
        await leftover.Isolations(
            client, epochs, lambda: 0
        ).load()  # it leads above the epochs that they bear
        async with _leading(client, epochs, reach.namespace_of(args)) as epoch:
            return await _uninstall(client, epochs, epoch, keep_cordons=args.keep_cordons)

    journal.configure(None)
    return reach.asked(args, work, roles=RIGHTS)


# ---------------------------------------------------------------- who leads


@contextlib.asynccontextmanager
async def _leading(client: "Client", epochs: "Epochs", namespace: str) -> AsyncIterator[Callable[[], int]]:
    """No controller leads meanwhile: it would write it all again. What is yielded raises NotLeading where that is not
    sure any more. Raises PermanentError where one leads."""
    from sentinel.cluster.kubernetes.errors import NotFound
    from sentinel.cluster.kubernetes.lease import Election

    await _nowhere_else(client, namespace)
    try:
        await _may_lead(client, namespace)
    except NotFound:  # the namespace is gone, and with it every controller
        yield lambda: epochs.top
        return
    identity = f"{IDENTITY}{secrets.token_hex(4)}"
    election = Election(client, epochs, identity=identity, namespace=namespace)
    leads = asyncio.Event()
    task = asyncio.create_task(election.run(lambda _: leads.set(), lambda _: None))
    try:
        with reach.late(f"the controllers' Lease, at most {WAIT_S:g} s"):
            await asyncio.wait({waits := asyncio.create_task(leads.wait())}, timeout=WAIT_S)
            waits.cancel()
        if not leads.is_set():
            raise _led_by(election.leader.identity)
        yield election.epoch
    finally:
        await election.release()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _led_by(identity: str) -> Exception:
    from sentinel.util.errors import PermanentError

    if not identity:
        return PermanentError(f"the controllers' Lease was not to be had within {WAIT_S:g} s", "NoLease")
    if identity.startswith(IDENTITY):
        return PermanentError("another `sentinel uninstall` is at work: wait for it", "Leads")
    return PermanentError(
        f"{identity} still leads and would write it all again: first `helm uninstall`, or "
        "`kubectl delete -f deploy/controller.yaml`",
        "Leads",
    )


async def _nowhere_else(client: "Client", namespace: str) -> None:
    """Raises PermanentError where controllers lead in another namespace, or have led there and never in this one."""
    from msgspec import Struct

    from sentinel.cluster.kubernetes.errors import Forbidden
    from sentinel.cluster.kubernetes.objects import LEASES, Lease
    from sentinel.util.errors import PermanentError

    class Page(Struct):
        items: list[Lease] = []

    try:
        found = await client.get(LEASES.path(), Page, {"fieldSelector": f"metadata.name={LEASE}"})
    except Forbidden:
        complain(f"you may not list Leases: a controller outside of namespace {namespace} is not noticed")
        return
    others = {one.metadata.namespace: one for one in found.items if one.metadata.namespace != namespace}
    if held := sorted(name for name, one in others.items() if one.spec.holder_identity):
        raise PermanentError(
            f"a controller leads, or was killed, in namespace {', '.join(held)}: remove it there, and name that "
            "namespace with --system",
            "WrongNamespace",
        )
    if others and len(others) == len(found.items):
        raise PermanentError(
            f"no controller ever led in namespace {namespace}, but in {', '.join(sorted(others))}: "
            "name it with --system",
            "WrongNamespace",
        )


async def _may_lead(client: "Client", namespace: str) -> None:
    """An election goes on after what it may not do: that is asked first. Raises NotFound without the namespace,
    Forbidden."""
    from sentinel.cluster.kubernetes.client import MERGE_PATCH
    from sentinel.cluster.kubernetes.errors import NotFound
    from sentinel.cluster.kubernetes.objects import LEASES

    dry = {"dryRun": "All"}
    try:
        await client.call("PATCH", LEASES.path(namespace, LEASE), {}, query=dry, how=MERGE_PATCH)
    except NotFound:
        head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}}
        await client.call("POST", LEASES.path(namespace), head, query=dry)


# ---------------------------------------------------------------- what is left


async def _check(client: "Client", epochs: "Epochs", *, keep_cordons: bool) -> int:
    from sentinel.cluster.kubernetes import leftover
    from sentinel.cluster.kubernetes.leftover_jobs import Jobs

    isolations = leftover.Isolations(client, epochs, lambda: 0)
    await isolations.load()
    jobs = Jobs(client, lambda: 0)
    keep = leftover.Keep(isolations.holders, keep_cordons)
    found, nodes = await jobs.find(), await leftover.nodes(client, keep)
    for record in isolations.in_force:
        _say(f"isolation {record.id}", record.sentence)
    for name, why in isolations.unreadable.items():
        _say(f"isolation {name}", f"cannot be read: {why}")
    ours = [job for job in found if job.mark and not job.stays]
    for job in ours:
        said = "stopped by Sentinel, and was to go on." if job.stopped else "bears the mark of a stop."
        _say(job.title, job.problem or said)
    _tell_nodes(nodes)
    left = len(isolations.in_force) + len(isolations.unreadable) + len(ours) + len(nodes)
    return await _rest(client, found, jobs, left, forbidden=False)


def _tell_nodes(nodes: "Iterable[OnNode]") -> None:
    """Those that bear the same in one line."""
    same = defaultdict(list)
    for one in nodes:
        same[f"{', '.join(one.found)}. {one.stays}".strip()].append(one.name)
    for what, names in same.items():
        _say(f"node {_named(names)}", what)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


class _Work:
    """`left`: how much could not be done. `forbidden`: some of it because it may not be."""

    def __init__(self) -> None:
        self.left = 0
        self.forbidden = False

    async def do(self, what: str, doing: Awaitable[None], did: str) -> bool:
        """False: it is left, and was told."""
        from sentinel.cluster.kubernetes.errors import Forbidden, NotFound
        from sentinel.util.errors import PermanentError, TemporaryError

        try:
            await doing
        except NotFound:
            did = "gone meanwhile."
        except (TemporaryError, PermanentError) as error:
            self.forbidden |= isinstance(error, Forbidden)
            self.fail(what, error)
            return False
        _say(what, did)
        return True

    def fail(self, what: str, why: object) -> None:
        self.left += 1
        complain(printable(f"{what}: {why}"))


async def _uninstall(
    client: "Client", epochs: "Epochs", epoch: Callable[[], int], *, keep_cordons: bool
) -> int:
    from sentinel.cluster.kubernetes import leftover
    from sentinel.cluster.kubernetes.leftover_jobs import Jobs
    from sentinel.util.errors import PermanentError, TemporaryError

    work, kept = _Work(), set[str]()
    isolations, jobs = leftover.Isolations(client, epochs, epoch), Jobs(client, epoch)
    await isolations.load()
    # First: a node without its mark whose isolation is in force would be taken for one that a person gave back.
    for name, why in isolations.unreadable.items():
        work.fail(f"isolation {name}", f"cannot be read: {why}")
        kept.add(await isolations.node_of(name))
    try:
        await isolations.show()
    except (TemporaryError, PermanentError) as error:
        work.fail("the status of isolations that have ended", error)
    for record in isolations.in_force:
        did = f"ended. Its record said: {record.sentence}"
        if not await work.do(f"isolation {record.id}", isolations.end(record), did):
            kept.add(record.node)
    found = await jobs.find()
    for job in found:
        if job.mark and not job.stays:
            did = "started again." if job.stopped else "not stopped any more; its mark was removed."
            await work.do(job.title, jobs.start(job), did)
    turn, keep = asyncio.Semaphore(AT_ONCE), leftover.Keep(isolations.holders, keep_cordons)

    async def clear(one: "OnNode") -> None:
        async with turn:
            removed = f"removed {', '.join(one.found)}. {one.stays}".strip()
            doing = leftover.clear_node(client, one.name, keep, epoch)
            await work.do(f"node {one.name}", doing, removed)

    free = [one for one in await leftover.nodes(client, keep) if one.name not in kept]
    await asyncio.gather(*map(clear, free))
    return await _rest(client, found, jobs, work.left, forbidden=work.forbidden)


async def _rest(
    client: "Client", found: "Sequence[OnJob]", jobs: "Jobs", left: int, *, forbidden: bool
) -> int:
    """Tells what stays, and what could not be looked at; the exit code."""
    from sentinel.cluster.kubernetes import leftover
    from sentinel.cluster.kubernetes.errors import Forbidden
    from sentinel.util.errors import PermanentError, TemporaryError

    for kind, error in jobs.unread.items():
        complain(printable(f"{kind} could not be listed: {error}"))
        forbidden |= isinstance(error, Forbidden)
    for job in found:
        if job.stays:
            _say(job.title, job.stays)
    if run := [job.title for job in found if not job.mark and not job.stays]:
        _put(f"With annotations of Sentinel, which go when they end: {_named(run)}.")
    left += len(jobs.unread)
    if not left:
        _put("Nothing is left to take away.")
    try:
        counts = await leftover.records(client)
    except (TemporaryError, PermanentError) as problem:
        complain(printable(f"records stay, and could not be counted: {problem}"))
        counts = {}
    if any(counts.values()):
        told = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)
        _put(f"Records stay, and a new installation goes on with them: {told}.")
    if forbidden:
        complain(RIGHTS)
        return reach.EXIT_FORBIDDEN
    return reach.EXIT_NOT_DONE if left else 0


def _say(what: str, said: str) -> None:
    _put(f"{what}: {said}")


def _put(text: str) -> None:
    """Whether or not anybody reads it: the work goes on."""
    try:
        put(printable(text) + "\n")
    except BrokenPipeError:
        silence_stdout()
