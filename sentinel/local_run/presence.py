"""Which Sentinel protects a job, as `sentinel.json` in the job's folder says, and what its page answers."""

import socket
from pathlib import Path

import msgspec

from sentinel.cluster.local.processes import is_same
from sentinel.service.control import Presence

FILE = "sentinel.json"
ANSWER_S = 1.0  # the page is on this machine and answers in milliseconds, or does not
ANSWER_BYTES = 16 << 20


def read(job_dir: Path) -> Presence | None:
    """The Sentinel that protects the job, if it lives."""
    try:
        presence = msgspec.json.decode((job_dir / FILE).read_bytes(), type=Presence)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return presence if is_same(presence.pid, presence.start_ticks) else None


def fetch(url: str, path: str) -> bytes | None:
    """The body of GET `url``path` from a page on this machine; None where there is no good answer in time.

    An HTTP/1.0 request by hand: http.client costs more to import than the whole `sentinel status` takes.
    """
    host, _, port = url.removeprefix("http://").rpartition(":")
    if not host or not port.isdigit():
        return None
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode()
    answer = bytearray()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as connection:
            connection.sendall(request)
            while piece := connection.recv(65536):
                answer += piece
                if len(answer) > ANSWER_BYTES:
                    return None
    except (OSError, ValueError):
        return None
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return body if head.split(b"\r\n", 1)[0].split(b" ")[1:2] == [b"200"] else None
