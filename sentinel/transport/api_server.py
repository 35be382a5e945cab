"""Whether the API server answers an agent, which holds no right there: any answer to `GET /livez` will do."""

import asyncio
import os
import ssl

from sentinel.transport.channel import abort
from sentinel.transport.credentials import CredentialError

ANSWER_S = 5.0


def address_of_pods() -> str:
    """HOST:PORT, as each pod is told; "": this is none."""
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST", ""),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host else ""


def context(ca_file: str) -> ssl.SSLContext:
    """Raises CredentialError: no authority there."""
    try:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.load_verify_locations(ca_file)
        return made
    except OSError as error:  # ssl.SSLError is one
        raise CredentialError(f"no certificate authority in {ca_file}: {error}") from None


async def answers(address: str, ca_file: str, within_s: float = ANSWER_S) -> str:
    """ "": it does, be it that it refuses; else why not."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    writer = None
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=context(ca_file), server_hostname=host
            )
            writer.write(f"GET /livez HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            line = await reader.readline()
    except TimeoutError:
        return f"{address} does not answer"
    except (CredentialError, OSError, ValueError) as error:
        return f"{address}: {error}"
    finally:
        if writer is not None:
            abort(writer)
    return "" if line.startswith(b"HTTP/1.") else f"{address}: not an answer of an API server"
