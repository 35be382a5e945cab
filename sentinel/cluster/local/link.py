"""The connection to a job's supervisor, and how one is brought to life."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from sentinel.cluster.local import launch_supervisor
from sentinel.cluster.local.status import Slot
from sentinel.core.reports import Orphan
from sentinel.util.errors import TemporaryError

ANSWER_S = 60.0  # a supervisor that does not answer a start in this time is not waited for
CONNECT_S = 5.0


class Event(Struct, frozen=True):
    """A line from the supervisor; which fields are set depends on `event`."""

    event: str
    incarnation: int = 0
    pid: int = 0
    slot: Slot | None = None
    orphans: tuple[Orphan, ...] = ()
    id: int = 0
    stage: str = ""
    errno: int = 0
    rank: int = 0


class Link(asyncio.Protocol):
    """`on_event` gets exit and empty, `on_lost` is called once with whether a newer Sentinel took over."""

    def __init__(self, on_event: Callable[[Event], None], on_lost: Callable[[bool], None]) -> None:
        self.on_event, self.on_lost = on_event, on_lost
        self.hello: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self.supervisor_pid = 0
        self.replaced = False
        self.closed = False
        self._answers: dict[int, asyncio.Future[Event]] = {}
        self._last_id = 0
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._decoder = msgspec.json.Decoder(Event)

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._take(self._decoder.decode(line))

    def connection_lost(self, exc: Exception | None) -> None:
        was_closed, self.closed = self.closed, True
        greeted = self.hello.done()  # a dying supervisor's socket may take one more connection
        error = TemporaryError("the job's supervisor went away")
        for answer in (self.hello, *self._answers.values()):
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # looked at: nobody may be waiting
        if greeted and not was_closed:
            self.on_lost(self.replaced)

    def _take(self, event: Event) -> None:
        if event.event == "hello":
            self.supervisor_pid = event.pid
            if not self.hello.done():
                self.hello.set_result(event)
        elif event.event == "started":
            answer = self._answers.pop(event.id, None)
            if answer and not answer.done():
                answer.set_result(event)
        elif event.event == "replaced":
            self.replaced = True
        else:
            self.on_event(event)

    # ------------------------------------------------------------ what Sentinel asks

    async def start(self, fields: list[bytes]) -> Event:
        """Raises TemporaryError when the supervisor goes away or does not answer."""
        self._last_id += 1
        answer = self._answers[self._last_id] = asyncio.get_running_loop().create_future()
        self._send([b"start", b"%d" % self._last_id, *fields])
        try:
            return await asyncio.wait_for(answer, ANSWER_S)
        except TimeoutError:
            raise TemporaryError("the job's supervisor does not answer") from None

    def quit(self) -> None:
        self._send([b"quit"])

    def close(self) -> None:
        """Let go of the supervisor; it goes on keeping the job's exit statuses."""
        self.closed = True
        if self._transport:
            self._transport.close()

    def _send(self, fields: list[bytes]) -> None:
        frame = b"\0".join(fields)
        if self._transport and not self._transport.is_closing():
            self._transport.write(len(frame).to_bytes(4, "little") + frame)


async def connect(
    job_dir: Path, on_event: Callable[[Event], None], on_lost: Callable[[bool], None]
) -> Link | None:
    """None: no supervisor of this job lives. Returns after its hello; exits before that are in the status file."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(CONNECT_S)
    try:
        folder = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # socket addresses end after 107 bytes; this one is short whatever the job's path is
            client.connect(f"/proc/self/fd/{folder}/supervisor.sock")
        finally:
            os.close(folder)
    except OSError:
        client.close()
        return None
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: Link(on_event, on_lost), sock=client)
    try:
        await asyncio.wait_for(asyncio.shield(link.hello), CONNECT_S)
    except (TimeoutError, TemporaryError):
        link.close()
        return None
    return None if link.closed else link


async def launch(job_dir: Path) -> None:
    """Bring a supervisor to life; harmless where one lives. Raises TemporaryError with what was printed."""
    program = os.path.abspath(launch_supervisor.__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", "-E", "-X", "utf8"),
        program,
        str(job_dir),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    _, errors = await process.communicate()
    if process.returncode not in (0, launch_supervisor.ALREADY_RUNNING):
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
        raise TemporaryError(f"cannot start the job's supervisor: {last or process.returncode}")
