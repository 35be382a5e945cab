"""Addresses and names of services on one real node: `python -m tests.rig.services ...`, run by `Node` on the node.

What kube-proxy and DNS do, as far as tests need it: each service's cluster address is one of the node's own, and its
connections (TCP) go to one of the service's ready pods. Names stand in the node's /etc/hosts, which the kubelet copies
for each container of the host's network when it starts. So the file keeps its names over a boot, no kubelet is started
before they were shown (the file `served` beside it), and a later name is written into the copies too.
"""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path

from tests.rig.api import Api, ApiError, Object

KUBERNETES = "10.96.0.1"  # the first address of the range of services: the API server's
PODS = Path("/var/lib/kubelet/pods")
OF_THE_NODE = "# Kubernetes-managed hosts file (host network)."  # pkg/kubelet/kubelet_pods.go
LOOK_S = 0.5
CONNECT_S = 5.0
Target = tuple[str, int]


class Services:
    """`api`: where the API server really is, which has no pods that could be found."""

    def __init__(self, api: Target, hosts: Path) -> None:
        self._hosts = hosts
        self._targets: Mapping[Target, Sequence[Target]] = {}
        self._servers: dict[Target, asyncio.Server] = {}
        self._api: Mapping[Target, Sequence[Target]] = {(KUBERNETES, 443): (api,)}

    async def run(self, ca: Path, files: tuple[Path, Path]) -> None:
        client = Api(f"https://{KUBERNETES}", ca, files=files)
        while True:
            with contextlib.suppress(OSError, ApiError, HTTPException, ValueError):  # tried again: see LOOK_S
                if not self._servers:
                    await self._show(self._api)
                services = await asyncio.to_thread(client.items, "/api/v1/services")
                slices = await asyncio.to_thread(client.items, "/apis/discovery.k8s.io/v1/endpointslices")
                await self._show({**targets(services, slices), **self._api})
                text = f"127.0.0.1 localhost\n{names(services)}"
                write_over(self._hosts, text)
                for copy in PODS.glob("*/etc-hosts"):
                    if copy.read_text().startswith(OF_THE_NODE):
                        write_over(copy, f"{OF_THE_NODE}\n{text}")
                self._hosts.with_name("served").touch()
            await asyncio.sleep(LOOK_S)

    async def _show(self, found: Mapping[Target, Sequence[Target]]) -> None:
        self._targets = found
        for address, port in found.keys() - self._servers.keys():
            await asyncio.to_thread(ip_add, address)
            answer = partial(self._pass, (address, port))
            self._servers[address, port] = await asyncio.start_server(answer, address, port)
        for gone in self._servers.keys() - found.keys():
            self._servers.pop(gone).close()

    async def _pass(
        self, service: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection, to any of its pods that takes it."""
        behind = list(self._targets.get(service, ()))
        random.shuffle(behind)
        for host, port in behind:
            try:
                theirs = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
            except (OSError, TimeoutError):
                continue
            await asyncio.gather(_copy(reader, theirs[1]), _copy(theirs[0], writer))
            return
        writer.close()


def write_over(file: Path, text: str) -> None:
    """In place, since it is mounted over the node's /etc/hosts, and with no moment in which it is empty."""
    if file.read_text() != text:
        with file.open("r+") as writing:
            writing.write(text)
            writing.truncate()


def ip_add(address: str) -> None:
    """One of the node's own; it may be that already."""
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], stderr=subprocess.DEVNULL)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()  # both sides end together: nobody here speaks to a half-closed connection


def targets(services: list[Object], slices: list[Object]) -> dict[Target, Sequence[Target]]:
    """(cluster address, port) -> where its ready pods are."""
    found: dict[Target, Sequence[Target]] = {}
    for service in services:
        meta, spec = service["metadata"], service["spec"]
        own = [
            one
            for one in slices
            if one["metadata"]["namespace"] == meta["namespace"]
            and one["metadata"].get("labels", {}).get("kubernetes.io/service-name") == meta["name"]
        ]
        if spec.get("clusterIP", "None") == "None":
            continue
        for port in spec["ports"]:
            found[spec["clusterIP"], port["port"]] = [
                (address, there["port"])
                for one in own
                for there in one.get("ports") or ()
                if there.get("name", "") == port.get("name", "")
                for endpoint in one["endpoints"] or ()
                if endpoint["conditions"].get("ready", True)
                for address in endpoint["addresses"]
            ]
    return found


def names(services: list[Object]) -> str:
    """Lines of /etc/hosts."""
    lines = []
    for service in services:
        name, space = service["metadata"]["name"], service["metadata"]["namespace"]
        if (address := service["spec"].get("clusterIP", "None")) != "None":
            lines.append(
                f"{address} {name} {name}.{space} {name}.{space}.svc {name}.{space}.svc.cluster.local\n"
            )
    return "".join(sorted(lines))


def main(argv: Sequence[str]) -> None:
    host, port, hosts, ca, certificate, key = argv
    services = Services((host, int(port)), Path(hosts))
    asyncio.run(services.run(Path(ca), (Path(certificate), Path(key))))


if __name__ == "__main__":
    main(sys.argv[1:])
