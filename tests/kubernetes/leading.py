"""A controller that does nothing but lead: `python -m tests.kubernetes.leading KUBECONFIG ID [quick]`.

It prints `lead EPOCH`, `lost`, and once, who leads: `sees ID`. Lines on its standard input make it write: `mark NODE`,
`record NODE`, `fence NODE`, `remove NODE` (the pod of that name). Where such a line ends with `frozen` it stops itself
with SIGSTOP after every check, right before the request is sent, and has said `checked`.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from sentinel.cluster.kubernetes import nodes
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.lease import Election, Pace
from sentinel.cluster.kubernetes.objects import PODS, QUARANTINES, Pod
from sentinel.cluster.kubernetes.store import Store
from sentinel.core.agents.epochs import Epochs
from sentinel.core.fleet.marks import MarkWrite
from sentinel.core.fleet.model import Kind, Needs, NodeMark, NodeQuarantine, State
from sentinel.util.errors import PermanentError, TemporaryError
from tests.waits import eventually

PACES = {
    "usual": Pace(),
    "quick": Pace(duration_s=6, margin_s=2.0, renew_s=0.5, look_s=0.2, deadline_s=1.5),
    "long": Pace(duration_s=60),
}


def say(text: str) -> None:
    print(text, flush=True)


class Frozen(Client):
    """Stops the process between the last check and the request, once."""

    armed = False

    async def call(self, method: str, path: str, *more: Any, **options: Any) -> bytes:
        if self.armed and method in ("PATCH", "POST", "DELETE") and "leases" not in path:
            self.armed = False
            say("checked")
            os.kill(os.getpid(), signal.SIGSTOP)
        return await super().call(method, path, *more, **options)


async def act(client: Frozen, election: Election, store: Store[NodeQuarantine], line: str) -> None:
    what, name, *frozen = line.split()
    try:
        node = await nodes.read(client, name)
        await store.load()
        if what == "remove":
            pod = await client.get(PODS.path("default", name), Pod)
        client.armed = bool(frozen)
        if what == "mark":
            wanted = MarkWrite(
                node=name,
                node_uid=node.metadata.uid,
                resource_version=node.metadata.resource_version,
                taint=NodeMark(1, True).taint(),
                unschedulable=True,
            )
            await nodes.mark(client, node, wanted, election.epoch())
        elif what == "remove":
            await nodes.remove_pod(
                client, f"default/{name}/{pod.metadata.uid}", pod.metadata.resource_version
            )
        elif what == "fence":
            await nodes.fence(client, node, election.epoch())
        else:
            record = NodeQuarantine(
                id=f"{name}-0001",
                kind=Kind.FAULT,
                node=name,
                node_uid=node.metadata.uid,
                state=State.ACTIVE,
                needs=Needs(sentence="a person"),
                epoch=election.epoch(),
            )
            await store.save(record)
        say("written")
    except (TemporaryError, PermanentError) as error:
        say(f"refused {type(error).__name__} {error}")


async def main(config: str, identity: str, pace: str = "usual") -> None:
    client = Frozen(await _access(config))
    epochs = Epochs()
    election = Election(
        client,
        epochs,
        identity=identity,
        namespace="sentinel-system",
        address=f"https://{identity}",
        pace=PACES[pace],
    )
    store = Store(
        client, QUARANTINES, NodeQuarantine, key=lambda one: one.id, epoch=election.epoch, epochs=epochs
    )
    lead = asyncio.create_task(
        election.run(lambda epoch: say(f"lead {epoch}"), lambda why: say(f"lost {why}"))
    )
    await eventually(lambda: election.leader.identity, "nobody leads")
    say(f"sees {election.leader.identity}")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode().strip():
        await act(client, election, store, line)
    lead.cancel()
    await election.release()
    await client.aclose()


async def _access(config: str) -> Any:
    from sentinel.cluster.kubernetes import access

    return await access.load(config)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
