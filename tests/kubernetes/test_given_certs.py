"""A real controller that serves agents with certificates that people gave."""

from pathlib import Path

import trustme
from cryptography import x509

from sentinel.transport.channel import Channel
from sentinel.transport.credentials import Trust
from tests.chaos.fleet_nodes import SimNode
from tests.kubernetes.conftest import NAMESPACE
from tests.kubernetes.local_fleet import Fleet, Page
from tests.kubernetes.test_machines import Machines
from tests.samples import XID_79
from tests.transport.given import Mounted

BUNDLE = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"


def test_it_waits_for_good_ones_and_takes_up_newer_ones_while_agents_report(
    fleet: Fleet, tmp_path: Path
) -> None:
    mounted, ca, files = Mounted(tmp_path / "tls"), trustme.CA(), ("tls.crt", "tls.key", "ca.crt")
    paths = zip(("certFile", "keyFile", "caFile"), files, strict=True)
    fleet.settings["certificates"] = {name: str(tmp_path / "tls" / file) for name, file in paths}
    fleet.settings["listen"] = "127.0.0.1:0"
    if fleet.found(BUNDLE):
        fleet.admin.delete(BUNDLE)
    mounted.by(ca, "sentinel.example.com")
    controller = fleet.begun("given")
    why = "found a certificate whose DNS names are: sentinel.example.com, expected sentinel-controller"
    controller.said(f"waits for good certificates: certificates.certFile {tmp_path}/tls/tls.crt: {why}")
    page = Page(controller)
    status, text = page.get("/readyz")
    assert (status, why in text) == (503, True)
    first = serial(mounted.by(ca))
    fleet.serves(controller)
    controller.said("leads, epoch")

    machines = Machines(fleet, controller)
    assert machines.bundle.read_bytes() == ca.cert_pem.bytes()
    nodes = [machines.made(f"given-{number}") for number in range(3)]
    told = dict.fromkeys(nodes, 0)

    async def shown() -> int:
        channel = await Channel.open(machines.address, Trust(str(machines.bundle)), 120.0)
        try:
            return int(channel._writer.get_extra_info("peercert")["serialNumber"], 16)
        finally:
            channel._writer.close()

    def report() -> None:
        """Each tells the next as soon as the controller has taken the last one."""
        for node in nodes:
            if node.client is not None and not node.client.spool.waiting:
                node.tell()
                told[node] += 1

    async def reporting(node: SimNode) -> None:
        begun = told[node]

        def more() -> bool:
            report()
            return told[node] > begun + 3

        await machines.until(more)

    async def in_force(number: int) -> None:
        async def looks() -> bool:
            report()
            return await shown() == number

        await machines.until(looks)

    async def story() -> None:
        for node in nodes:
            machines.join(node)
        for node in nodes:
            await reporting(node)
        await in_force(first)
        second = serial(mounted.by(ca))
        await in_force(second)
        assert [node.client.status.connections for node in nodes if node.client] == [1, 1, 1]
        for node in nodes:
            await node.restart_agent()
        mounted.by(ca, "sentinel.example.com")
        await machines.until(lambda: "in trouble for 20 s: certificates that cannot serve" in controller.err)
        assert (page.number("certificate_renewal_failures_total") or 0) > 0
        assert await shown() == second
        for node in nodes:
            await reporting(node)
            assert node.client is not None
            assert not any(node.client.spool.dropped.values())
        nodes[0].breaks(XID_79)
        await machines.until(lambda: fleet.isolated(nodes[0].name))
        assert "Traceback" not in controller.err

    machines.run(story)


def serial(chain: bytes) -> int:
    return x509.load_pem_x509_certificates(chain)[0].serial_number
