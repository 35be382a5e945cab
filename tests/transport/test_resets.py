"""Peers that reset their connection at the moment at which they are refused."""

import asyncio
import contextlib
import socket
import ssl
import struct
from asyncio import selector_events
from pathlib import Path
from typing import Any

import pytest

from sentinel.transport.limits import Limits
from sentinel.transport.lobby import Lobby
from tests.transport.world import World, go
from tests.waits import eventually

NO_LINGER = struct.pack("ii", 1, 0)  # its end is a reset


class Peer:
    """Any program that speaks TLS, by hand: so that its end can come between any two bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60.0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.read, self.written = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.read, self.written)

    def shake_hands(self) -> None:
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                return
            self.socket.sendall(self.written.read())
            self.read.write(self.socket.recv(1 << 16))

    def say(self, text: bytes) -> None:
        self.tls.write(text)
        self.socket.sendall(self.written.read())

    def reset(self) -> None:
        self.socket.close()


@pytest.mark.parametrize("epoch", [None, 1], ids=["standby", "leader"])
def test_a_peer_that_resets_while_it_is_refused_is_no_error_of_the_controller(
    tmp_path: Path, epoch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = 0

    async def story() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with World(tmp_path) as world:
            server, port = await world.serve(epoch=epoch)
            transport = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
            write_eof = transport.write_eof

            def reset_first(own: asyncio.Transport) -> None:
                nonlocal ended
                ended += 1
                peer.reset()  # the kernel knows it, and the transport has not read it yet
                write_eof(own)

            monkeypatch.setattr(transport, "write_eof", reset_first)
            for number in range(1, 4):
                peer = await asyncio.to_thread(Peer, port)
                await asyncio.to_thread(peer.shake_hands)
                peer.say(b"POST /report HTTP/1.1\r\nContent-Length: 5\r\n\r\nxxxxx")
                await eventually(lambda number=number: ended == number, "it was not refused")
            await eventually(lambda: not server._lobby.connections, "a connection is kept")
        assert errors == []

    go(story(), 180.0)


def test_whatever_one_connection_does_the_others_get_their_turn_in_the_handshake() -> None:
    class Waits:
        peer, begun = "127.0.0.1", False

        def __init__(self, *, fails: bool) -> None:
            self.fails, self.served = fails, False

        def handshake(self) -> None:
            self.served = True
            if self.fails:
                raise OSError(107, "not connected")

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        lobby = Lobby(Limits(handshake_ms=0))
        waiting = [Waits(fails=True) for _ in range(3)] + [Waits(fails=False) for _ in range(3)]
        for one in waiting:
            lobby.shake(one)  # type: ignore[arg-type]
        await eventually(lambda: all(one.served for one in waiting), "some wait for ever")

    go(story())
