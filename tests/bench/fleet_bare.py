"""`python -m tests.bench.fleet_bare URL CA TOKEN EPOCH AT_ONCE FIRST LAST`: the writes of many isolations, and no more.

For each of these nodes: the record, then, when it is there, taint and `unschedulable` in one request with the node's
version as precondition: what the controller sends, with nothing decided and no answer read. Prints when it began, by
the wall clock.
"""

import asyncio
import json
import ssl
import sys
import time

import aiohttp

from sentinel.core.fleet import rounds
from sentinel.core.fleet.model import CheckPicture, FleetPicture, NodePicture
from sentinel.core.fleet.record import step
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import CheckState
from sentinel.core.now import Now
from sentinel.util.documents import to_document
from tests.bench.fleet_agents import lost_card
from tests.bench.fleet_bulk import node_name

QUARANTINES = "/apis/sentinel.dev/v1alpha1/quarantines"


def record_of(node: str, uid: str) -> dict[str, object]:
    """What the core makes of a card that is lost."""
    now = Now(time.monotonic(), time.time())
    found = lost_card(now.wall_s, now.mono_s)
    checks = {found.check: CheckPicture(CheckState.FOUND, now.mono_s, (found,))}
    seen = NodePicture(name=node, uid=uid, boot_id="boot", agent_mono_s=now.mono_s, checks=checks)
    picture = FleetPicture(nodes={node: seen}, epoch=1, complete=True)
    (decision,) = rounds.decide(picture, {}, FleetSettings(), now, [node])
    return to_document(step(None, decision.event, now, 1)[0])


async def main(url: str, ca: str, token: str, epoch: str, at_once: int, names: list[str]) -> float:
    tls = ssl.create_default_context(cafile=ca)
    tls.check_hostname = False
    noted = {"sentinel.dev/epoch": epoch}
    head = {"Authorization": f"Bearer {token}"}
    plain = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=head) as session:
        works = []
        for name in names:
            async with session.get(f"{url}/api/v1/nodes/{name}") as answer:
                meta = (await answer.json())["metadata"]
            record = {
                "apiVersion": "sentinel.dev/v1alpha1",
                "kind": "Quarantine",
                "metadata": {"name": f"{name}-0001", "annotations": noted},
                "spec": record_of(name, meta["uid"]),
            }
            taint = {"key": "sentinel.dev/quarantined", "value": "0001.cordoned", "effect": "NoSchedule"}
            change = [
                {"op": "replace", "path": "/metadata/uid", "value": meta["uid"]},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
                {"op": "add", "path": "/metadata/annotations", "value": noted},
                {"op": "add", "path": "/spec/taints/-", "value": taint},
                {"op": "add", "path": "/spec/unschedulable", "value": True},
            ]
            works.append((name, json.dumps(record).encode(), json.dumps(change).encode()))
        allowed = asyncio.Semaphore(at_once)

        async def one(name: str, record: bytes, change: bytes) -> None:
            async with allowed:
                async with session.post(url + QUARANTINES, data=record, headers=plain) as answer:
                    await answer.read()
                    assert answer.status == 201, await answer.text()
                kind = {"Content-Type": "application/json-patch+json"}
                async with session.patch(f"{url}/api/v1/nodes/{name}", data=change, headers=kind) as answer:
                    await answer.read()
                    assert answer.status == 200, await answer.text()

        began_wall_s = time.time()
        await asyncio.gather(*(one(*work) for work in works))
        return began_wall_s


if __name__ == "__main__":
    url, ca, token, epoch, at_once, first, last = sys.argv[1:]
    names = [node_name(k) for k in range(int(first), int(last))]
    print(asyncio.run(main(url, ca, token, epoch, int(at_once), names)))
