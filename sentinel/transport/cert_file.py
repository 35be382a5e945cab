"""Certificates in a file of one machine: for a controller outside a cluster, and for tests."""

import fcntl
import hashlib
import os

import msgspec

from sentinel.transport.certs import Conflict, Data


class FileStore:
    """One file that only its owner may read; a lock beside it makes compare-and-write one step."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def get(self) -> tuple[Data, str] | None:
        return self._read()

    def _read(self) -> tuple[Data, str] | None:
        try:
            with open(self._path, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return None
        try:
            return msgspec.msgpack.decode(text, type=dict[str, bytes]), _version(text)
        except msgspec.DecodeError:
            return {}, _version(text)  # damaged: to be written anew

    async def put(self, data: Data, version: str | None) -> None:
        text = msgspec.msgpack.encode(dict(data))
        lock = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self._read()
            if (found[1] if found else None) != version:
                raise Conflict(self._path)
            fresh = self._path + ".new"
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)
        finally:
            os.close(lock)


def _version(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
