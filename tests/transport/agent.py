"""An agent's end in a process of its own, to be killed: tells numbered event findings until it is.

python -m tests.transport.agent FOLDER PORT FIRST
"""

import asyncio
import sys
from pathlib import Path

import structlog

from tests.transport.world import BOOT, finding, report


async def main(folder: Path, port: int, first: int) -> None:
    from sentinel.transport.client import Client, ClientSettings

    settings = ClientSettings(
        node="node-1",
        boot_id=BOOT,
        addresses=(f"127.0.0.1:{port}",),
        token_path=str(folder / "token-node-1"),
        bundle_path=str(folder / "ca.crt"),
        folder=str(folder / "agent-node-1"),
    )
    client = Client(settings, lambda orders: None)
    running = asyncio.create_task(client.run())
    for number in range(first, first + 100_000):
        client.send(report(finding(f"event {number}", event=True), check=f"check-{number % 7}"))
        print(number, flush=True)
        await asyncio.sleep(0.002)
    await running


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
