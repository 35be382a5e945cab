"""The supervisor of one job: starts its ranks, reaps whatever dies below it, and keeps exit statuses.

It belongs to the job, not to Sentinel, and never starts or ends anything by itself. It runs in the job's
directory, in a session of its own, as the subreaper of everything that the ranks start, so "no child left"
means that nothing of the job is left. Only C modules are imported: this stays in memory for the life of a job.

Sentinel connects to `supervisor.sock` (one connection; a newer one replaces it) and sends frames: the length
(4 bytes, little endian), then fields separated by NUL, which argv, environment and paths cannot contain.

    start ID INCARNATION SIZE RUN PORT CWD PROGRAM ARGC ARG... ENVC ENV... then per rank: LOG ENVC ENV...
    quit      end as soon as no process of the job is left

It answers with lines of JSON: hello, started (with the stage and errno of a failure), exit, empty, replaced.

Exit statuses live in `status.0` and `status.1` (incarnation modulo 2): one line of JSON per rank in a slot of
256 bytes, after one for the incarnation. The last slot has the orphans that had failed before the first rank ended:
what a launcher had started, and did not wait for any more, may be why it ended. Both files are written in full at the
first start and from then on only overwritten in place, so that a disk that fills up later cannot lose a status or
hinder a restart.
"""

# `signal` and `socket` would import enum: 1 MiB for the life of the job.
import _signal  # type: ignore[import-not-found]
import _socket
import posix
import select
import sys
import time

SLOT_BYTES = 256
MAX_ORPHANS = 8  # the newest: so many fit a slot
IDLE_S = 2.0  # without children and without a connection, before the supervisor ends
MAX_FRAME_BYTES = 256 << 20
MAX_UNSENT_BYTES = 4 << 20
SIGKILL = 9
TO_DEFAULT = [n for n in range(1, 65) if n not in (9, 19, 32, 33)]
RANK_SLOT = (
    '{"rank":%d,"pid":%d,"start_ticks":%d,"started_mono_s":%.6f,"started_wall_s":%.6f,"code":%s,"signal":%s,'
    '"oom_killed":%s,"ended_mono_s":%s,"ended_wall_s":%s}'
)
ORPHAN = "[%d,%s,%s,%s]"
HEADER = (
    '{"incarnation":%d,"size":%d,"run":"%s","boot_id":"%s","port":%d,"supervisor":%d,"started_mono_s":%.6f,'
    '"started_wall_s":%.6f}'
)


def read_file(path: str) -> bytes:
    """The first 64 KiB of a small file of /proc or /sys; empty where it cannot be read."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return posix.read(fd, 65536)
    except OSError:
        return b""
    finally:
        posix.close(fd)


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat; 0 where the process is gone."""
    fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def oom_kills(root: str = "/sys/fs/cgroup", own: bytes | None = None) -> int:
    """Processes of our cgroup that the kernel killed for memory (else of the machine, from /proc/vmstat)."""
    text = read_file("/proc/self/cgroup") if own is None else own
    candidates = []
    for line in text.decode("utf-8", "replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            candidates += [root + path + "/memory.events", root + "/memory.events"]
        elif "memory" in controllers.split(","):
            candidates += [
                root + "/memory" + path + "/memory.oom_control",
                root + "/memory/memory.oom_control",
            ]
    for name in [*candidates, "/proc/vmstat"]:
        for row in read_file(name).splitlines():
            if row.startswith(b"oom_kill "):
                return int(row.split()[1])
    return 0


class StartError(Exception):
    """`stage` is status, cwd, log, exec or busy."""

    def __init__(self, stage: str, errno: int, rank: int = 0) -> None:
        self.stage, self.errno, self.rank = stage, errno, rank


class Order:
    """A start order, taken from the fields of a frame."""

    def __init__(self, fields: list[bytes]) -> None:
        rest = iter(fields)
        self.incarnation, self.size = int(next(rest)), int(next(rest))
        self.run, self.port = next(rest).decode(), int(next(rest))
        self.cwd, self.program = next(rest), next(rest)
        self.argv = [next(rest) for _ in range(int(next(rest)))]
        common = [next(rest) for _ in range(int(next(rest)))]
        self.ranks: list[tuple[bytes, dict[bytes, bytes]]] = []
        for _ in range(self.size):
            log = next(rest)
            own = [next(rest) for _ in range(int(next(rest)))]
            pairs = [entry.partition(b"=") for entry in common + own]
            self.ranks.append((log, {name: value for name, _, value in pairs}))


def how_ended(status: int, oom_killed: bool) -> tuple[str, str, str]:
    """Exit code, signal and whether it was for memory, as JSON has them."""
    signo = posix.WTERMSIG(status) if posix.WIFSIGNALED(status) else None
    return (
        "null" if signo is not None else str(posix.WEXITSTATUS(status)),
        "null" if signo is None else str(signo),
        "true" if oom_killed else "false",
    )


class Rank:
    """A started rank and, once it has ended, its status."""

    def __init__(self, rank: int, pid: int) -> None:
        self.rank, self.pid = rank, pid
        self.started_mono_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.started_wall_s = time.time()
        self.start_ticks = start_ticks(pid)
        self.end: tuple[str, str, str, str, str] = ("null", "null", "false", "null", "null")

    def ended(self, status: int, oom_killed: bool) -> None:
        self.end = (
            *how_ended(status, oom_killed),
            f"{time.clock_gettime(time.CLOCK_BOOTTIME):.6f}",
            f"{time.time():.6f}",
        )

    def line(self) -> str:
        started = (self.rank, self.pid, self.start_ticks, self.started_mono_s, self.started_wall_s)
        return RANK_SLOT % (started + self.end)


class Supervisor:
    def __init__(self, listener: _socket.socket) -> None:
        self.listener = listener
        self.home = posix.open(".", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
        self.boot_id = read_file("/proc/sys/kernel/random/boot_id").decode().strip()
        self.incarnation = 0
        self.children: dict[int, Rank] = {}
        self.size = 0
        self.orphans: list[str] = []
        self.childless = True
        self.status_fd = -1
        self.oom_baseline = 0
        self.client: _socket.socket | None = None
        self.received = b""
        self.unsent = b""
        self.quitting = False

    # ------------------------------------------------------------ status file

    def write_slot(self, index: int, line: str) -> None:
        """One write of one slot that exists already: it needs no room on the disk."""
        posix.pwrite(self.status_fd, line.encode().ljust(SLOT_BYTES - 1) + b"\n", index * SLOT_BYTES)

    def open_status(self, incarnation: int, size: int) -> None:
        """Blank the incarnation's file; at the first start also allocate its twin for the next one."""
        for number in (incarnation + 1, incarnation):
            name = f"status.{number % 2}"
            fd = posix.open(name, posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC, 0o600)
            try:
                wanted = (size + 2) * SLOT_BYTES
                have = posix.fstat(fd).st_size
                if number == incarnation:
                    posix.ftruncate(fd, min(have, wanted))
                    self._write_all(fd, b" " * wanted, 0)
                elif have < wanted:
                    self._write_all(fd, b" " * (wanted - have), have)
            except OSError:
                posix.close(fd)
                raise
            if number != incarnation:
                posix.close(fd)
                continue
            if self.status_fd >= 0:
                posix.close(self.status_fd)
            self.status_fd = fd

    @staticmethod
    def _write_all(fd: int, data: bytes, offset: int) -> None:
        while data:
            done = posix.pwrite(fd, data, offset)
            data, offset = data[done:], offset + done

    # ------------------------------------------------------------ starting

    def start(self, order: Order) -> None:
        """Start all ranks or none. Idempotent for the running incarnation. Raises StartError."""
        if order.incarnation == self.incarnation:
            return
        if not self.childless:
            raise StartError("busy", 16)
        try:
            self.open_status(order.incarnation, order.size)
        except OSError as error:
            raise StartError("status", error.errno or 0) from None
        clocks = (time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
        head = (order.incarnation, order.size, order.run, self.boot_id, order.port, posix.getpid(), *clocks)
        self.write_slot(0, HEADER % head)
        self.oom_baseline = oom_kills()
        self.size, self.orphans = order.size, []
        try:
            self.spawn_all(order)
        except StartError:
            self.write_slot(0, "")
            self.incarnation = 0
            self.abandon()
            raise
        self.incarnation = order.incarnation

    def spawn_all(self, order: Order) -> None:
        try:
            posix.chdir(order.cwd)
        except OSError as error:
            raise StartError("cwd", error.errno or 0) from None
        try:
            for rank in range(order.size):
                self.spawn(order, rank)
        finally:
            posix.fchdir(self.home)

    def spawn(self, order: Order, rank: int) -> None:
        log_path, env = order.ranks[rank]
        try:
            mode = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC
            log = posix.open(log_path, mode, 0o644)
        except OSError as error:
            raise StartError("log", error.errno or 0, rank) from None
        actions = [
            (posix.POSIX_SPAWN_OPEN, 0, "/dev/null", posix.O_RDONLY, 0),
            (posix.POSIX_SPAWN_DUP2, log, 1),
            (posix.POSIX_SPAWN_DUP2, log, 2),
        ]
        try:
            pid = posix.posix_spawn(
                order.program,
                order.argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=TO_DEFAULT,
            )
        except OSError as error:
            raise StartError("exec", error.errno or 0, rank) from None
        finally:
            posix.close(log)
        self.childless = False
        self.children[pid] = Rank(rank, pid)
        self.write_slot(rank + 1, self.children[pid].line())

    def abandon(self) -> None:
        """End the ranks of a start that did not complete; nobody has been told of them."""
        for pid in self.children:
            posix.kill(pid, SIGKILL)
        for pid in list(self.children):
            posix.waitpid(pid, 0)
            del self.children[pid]
        self.reap()

    # ------------------------------------------------------------ reaping

    def reap(self) -> None:
        """Take in every death: note the ranks' statuses first, then tell."""
        if self.childless:
            return
        # Told last: orphans come with the rank whose they were. For memory: in the order of the deaths.
        ranks: list[tuple[Rank, int, bool]] = []
        whole = len(self.children) == self.size
        while not self.childless:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                self.childless = True
                break
            if pid == 0:
                break
            rank = self.children.pop(pid, None)
            if rank is not None:
                ranks.append((rank, status, self.killed_for_memory(status)))
            elif whole and status != 0:
                self.note_orphan(pid, status)
        for rank, status, oom_killed in ranks:
            self.note_exit(rank, status, oom_killed)
        if self.childless:
            self.tell(f'{{"event":"empty","incarnation":{self.incarnation}}}')

    def note_orphan(self, pid: int, status: int) -> None:
        self.orphans.append(ORPHAN % (pid, *how_ended(status, self.killed_for_memory(status))))
        del self.orphans[:-MAX_ORPHANS]
        self.write_slot(self.size + 1, f"[{','.join(self.orphans)}]")

    def note_exit(self, rank: Rank, status: int, oom_killed: bool) -> None:
        rank.ended(status, oom_killed)
        line = rank.line()
        self.write_slot(rank.rank + 1, line)
        orphans = ",".join(self.orphans)
        self.tell(f'{{"event":"exit","incarnation":{self.incarnation},"slot":{line},"orphans":[{orphans}]}}')

    def killed_for_memory(self, status: int) -> bool:
        if not posix.WIFSIGNALED(status) or posix.WTERMSIG(status) != SIGKILL:
            return False
        killed = oom_kills() > self.oom_baseline
        self.oom_baseline += killed  # each kill explains one death
        return killed

    # ------------------------------------------------------------ the connection

    def tell(self, line: str) -> None:
        if self.client is None:
            return
        self.unsent += line.encode() + b"\n"

    def flush(self) -> None:
        """Send what the socket takes. A Sentinel that does not read is let go: the files say the same."""
        try:
            while self.client is not None and self.unsent:
                self.unsent = self.unsent[self.client.send(self.unsent) :]
        except BlockingIOError:
            if len(self.unsent) > MAX_UNSENT_BYTES:
                self.drop_client()
        except OSError:
            self.drop_client()

    def drop_client(self) -> None:
        if self.client is not None:
            self.client.close()
        self.client, self.received, self.unsent = None, b"", b""

    def accept(self) -> None:
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        if self.client is not None:
            self.tell('{"event":"replaced"}')
            self.flush()
            self.drop_client()
        self.client = _socket.socket(fileno=fd)
        self.client.setblocking(False)
        self.tell(f'{{"event":"hello","incarnation":{self.incarnation},"pid":{posix.getpid()}}}')
        if self.childless:
            self.tell(f'{{"event":"empty","incarnation":{self.incarnation}}}')

    def receive(self) -> None:
        assert self.client is not None
        try:
            data = self.client.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop_client()
            return
        self.received += data
        while len(self.received) >= 4:
            length = int.from_bytes(self.received[:4], "little")
            if length > MAX_FRAME_BYTES:
                self.drop_client()
                return
            if len(self.received) < 4 + length:
                return
            frame, self.received = self.received[4 : 4 + length], self.received[4 + length :]
            self.obey(frame.split(b"\0"))

    def obey(self, fields: list[bytes]) -> None:
        if fields[0] == b"quit":
            self.quitting = True
        elif fields[0] == b"start":
            try:
                self.start(Order(fields[2:]))
                outcome = ("", 0, 0)
            except StartError as error:
                outcome = (error.stage, error.errno, error.rank)
            answer = '{"event":"started","id":%d,"stage":"%s","errno":%d,"rank":%d}'
            self.tell(answer % (int(fields[1]), *outcome))

    def serve(self) -> None:
        """Until nothing is left to do: no child, and no connection for IDLE_S or told to quit."""
        wake_r, wake_w = posix.pipe2(posix.O_NONBLOCK | posix.O_CLOEXEC)
        _signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
            _signal.signal(number, self.asked_to_quit)
        self.listener.setblocking(False)
        while not (self.childless and self.quitting):
            poller = select.poll()
            poller.register(self.listener, select.POLLIN)
            poller.register(wake_r, select.POLLIN)
            if self.client is not None:
                poller.register(self.client, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            idle = self.childless and self.client is None
            ready = dict(poller.poll(IDLE_S * 1000 if idle else None))
            if idle and not ready:
                return
            if wake_r in ready:
                posix.read(wake_r, 4096)
                self.reap()
            if self.client is not None and self.client.fileno() in ready:
                self.receive()
            if self.listener.fileno() in ready:
                self.accept()
            self.flush()  # once a round: the last rank's exit and "empty" arrive together

    def asked_to_quit(self, *_: object) -> None:
        """A signal to the supervisor never costs the job its exit statuses: it ends when the job has."""
        self.quitting = True


def main(lock_fd: int, listener_fd: int) -> None:
    posix.set_inheritable(lock_fd, False)
    posix.set_inheritable(listener_fd, False)
    Supervisor(_socket.socket(fileno=listener_fd)).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
