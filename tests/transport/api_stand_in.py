"""An API server, as far as an agent that has no right there sees one."""

import asyncio
import ssl
import time
from pathlib import Path

import trustme


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ApiServer:
    """What agents may ask of an API server: it refuses them, which is an answer."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = folder / "api.crt"
        authority.cert_pem.write_to_path(str(self.ca))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)
        self.asked: list[str] = []  # request lines
        self.answered_s: list[float] = []
        self.port = 0
        self.says = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        self._server: asyncio.Server

    async def serve(self, *, tls: bool = True) -> None:
        self._server = await asyncio.start_server(
            self._answer, "127.0.0.1", self.port, ssl=self._tls if tls else None
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def link(self) -> dict[str, str]:
        """What an agent's settings say of it."""
        return {"apiServer": f"127.0.0.1:{self.port}", "apiServerCaFile": str(self.ca)}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.decode())
        writer.write(self.says)
        self.answered_s.append(boot_s())
        await writer.drain()
        writer.close()

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()
