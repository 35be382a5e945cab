"""A controller's end in a process of its own, to be killed or frozen: writes what it took, one line each.

python -m tests.transport.controller FOLDER PORT EPOCH
"""

import asyncio
import sys
from pathlib import Path

import structlog

from sentinel.transport.wire import Arrived, Order, Orders
from tests.transport.world import Issuer, World


async def main(folder: Path, port: int, epoch: int) -> None:
    from cryptography.hazmat.primitives import serialization

    issuer = Issuer()
    issuer.key = serialization.load_pem_private_key((folder / "issuer.key").read_bytes(), None)
    world = World(folder, issuer)
    await world.certificates.renew()

    def take(arrived: Arrived) -> None:
        codes = " ".join(f.code for result in arrived.report.checks for f in result.findings)
        with open(folder / "took", "a") as log:
            log.write(f"{epoch} {arrived.node} {'full' if arrived.full else arrived.sequence} {codes}\n")

    orders = Orders(version=str(epoch), items=(Order(kind="epoch", id=str(epoch)),))
    await world.serve(epoch, port, take=take, orders=lambda node: orders)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
