"""What the controller needs of the place where jobs run, and of the place where records live."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from sentinel.core.model import Incident, JobEvent, Launch, ProtectedJob, Quarantine
from sentinel.core.reports import Files, RankExit
from sentinel.core.stacks.flight_record import Stuck


class RankProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A started rank. `start_ticks` is field 22 of /proc/PID/stat: with the pid it names a process for one boot."""

    rank: int
    pid: int
    start_ticks: int
    log_path: str
    started_mono_s: float = 0.0
    cri: bool = False  # the log is one of a container runtime


class StopOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`stuck` names what could not be ended: "pid 42 (D in nvidia_close)". `waits`: why it goes on trying instead.
    `reason`: of that, a word. `theirs`: it does not, for somebody else has let it run again, as `waits` says. `ended`:
    its kind has ended the job for good, in a sentence."""

    gone: bool
    killed: int = 0  # processes that needed SIGKILL
    stuck: tuple[str, ...] = ()
    waits: str = ""
    reason: str = "StopWaits"
    theirs: bool = False
    ended: str = ""


class SignalOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which ranks got the signal, and why others did not: rank -> "gone", "does not catch SIGUSR1"."""

    sent: tuple[int, ...] = ()
    refused: dict[int, str] = {}


class Room(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the ranks of the next incarnation would run. `size` 0: no room, `reason` and `sentence` say why."""

    size: int
    entities: dict[int, str] = {}  # rank -> GPU
    excluded: tuple[str, ...] = ()
    env: dict[str, str] = {}
    reason: str = ""
    sentence: str = ""


class Cluster(Protocol):
    """All calls are idempotent: repeated after a crash they find what is already done."""

    async def start(
        self,
        job: str,
        launch: Launch | None,
        incarnation: int,
        size: int,
        env: dict[str, str],
        excluded: Sequence[str] = (),
    ) -> list[RankProcess]:
        """Start `size` ranks together, off `excluded` nodes. Raises PermanentError (no such command) or TemporaryError.

        `launch`: None where the cluster itself knows how. `env` keeps a local rank off GPUs.
        """

    async def stop(self, job: str, incarnation: int, grace_s: float, ends: Callable[[], bool]) -> StopOutcome:
        """SIGTERM to every rank, SIGKILL to all that is left of the job after `grace_s`. `ends`: is it to end for good,
        as it is known by now, whoever starts it meanwhile?"""

    async def signal_ranks(
        self, job: str, incarnation: int, ranks: Iterable[int], name: str
    ) -> SignalOutcome:
        """Send a save signal to ranks that catch it, never to their helpers."""

    async def save_capable(self, job: str, incarnation: int, name: str) -> dict[int, bool]:
        """Does each living rank catch the signal `name`? Raises TemporaryError where that of one cannot be told."""

    async def files(self, job: str, incarnation: int, cwd: str, pattern: str) -> Files:
        """What a path or glob names that the job's owner wrote; `cwd`: where its ranks were started, if that is known.
        Raises TemporaryError, PermanentError: it cannot be told."""

    async def room(
        self, job: ProtectedJob, size: int, excluded: tuple[str, ...], *, starts: bool = False
    ) -> Room:
        """Is there room for `size` ranks without `excluded`; an elastic job may get less. `starts`: right before its
        start, which may have been ordered already: then there is. Never raises."""

    def unpromise(self, job: str) -> None:
        """What `room` found for it last is not held for it any longer, where it was."""

    async def stacks(self, job: str, incarnation: int, ranks: Iterable[int]) -> tuple[str, ...]:
        """Where the ranks stand, for the evidence. Bounded in time and size; never raises."""

    async def stuck(self, job: str, incarnation: int) -> Stuck | None:
        """Who is missing, as the flight recorders tell that its ranks wrote. Bounded in time; never raises."""

    async def release(self, job: str) -> None:
        """The job has ended for good: let go of what keeps its exit statuses."""


class Records(Protocol):
    """The four records, saved before anything is done about them."""

    async def written(self, job: str) -> None:
        """Wait until what was saved about the job outlives this process: only then its effects begin.

        A store that cannot write (its disk is full) and goes on without lets them begin too.
        """

    def save(
        self,
        *,
        jobs: Iterable[ProtectedJob] = (),
        incidents: Iterable[Incident] = (),
        quarantines: Iterable[Quarantine] = (),
        events: Iterable[JobEvent] = (),
    ) -> None: ...

    def jobs(self) -> list[ProtectedJob]: ...
    def job(self, name: str) -> ProtectedJob | None: ...
    def incidents(self, job: str | None = None) -> list[Incident]: ...
    def quarantines(self, active_only: bool = True) -> list[Quarantine]: ...
    def events(self, job: str, limit: int = 100) -> list[JobEvent]: ...


class ExitListener(Protocol):
    def __call__(self, job: str, exit: RankExit) -> None: ...
