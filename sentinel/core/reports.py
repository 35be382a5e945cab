"""What an agent reports: what a job's logs and processes tell, what checks found, and answers to what was asked."""

from msgspec import Struct

from sentinel.core.health import CheckResult
from sentinel.core.now import Now


class Iteration(Struct, frozen=True, gc=False):
    """One training iteration as a log told it. Unknown numbers are None.

    `at_s` is CLOCK_BOOTTIME of the reading (in replay: the line's own time stamp, or a synthetic
    clock advanced by `e2e_ms`). `hardware_ms / e2e_ms` is the hardware ratio, 0..1.
    """

    at_s: float
    step: int | None = None
    hardware_ms: float | None = None
    e2e_ms: float | None = None


ACTIVITY = "activity:"  # instead of a failure class: what a program does that makes no iteration


class LogMatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a rank's log that a rule named. `line` is untrusted text, at most 500 characters."""

    rule: str  # id of the rule: "nccl-timeout"
    failure: str  # failure class of the rule (rules/failures.toml), or an activity: "activity:compiling"
    rank: int
    incarnation: int
    at_s: float
    stamp_wall_s: float | None = None  # the line's own time stamp, if it has one
    line: str = ""
    job: str = ""
    step: int | None = None  # that of LOSS_LOST, NORM_LOST
    good_step: int | None = None  # the last before it whose loss was a number; None: not known
    outrun: bool = False  # an activity that new steps follow which came with it: it is over


# Rules of our own, which no file holds: the loss is no number for good, the gradient norm is NaN for good
# (logs/losses.py). Their line is the first one.
LOSS_LOST = "loss-lost"
LOSS_SOUND = "loss-sound"  # it is a number again
NORM_LOST = "norm-lost"


class Orphan(Struct, frozen=True, array_like=True):
    """A process of a job that had failed when its parent ended, which had not waited for it."""

    pid: int
    code: int | None
    signal: int | None
    oom_killed: bool


class RankExit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one rank. Neither code nor signal: the status is unknown (its supervisor was killed)."""

    rank: int
    incarnation: int
    at_s: float
    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    stopped_by_us: bool = False
    failure: str = ""  # class of what ended it, where its pod tells: then exit code 0 is no success
    told_s: float | None = None  # when it was told to end, of such an end
    ended_s: float | None = None  # when it ended by the clock of its node, where that was known; `at_s`: seen
    evidence: str = ""  # a line that says how its pod ended
    orphans: tuple[Orphan, ...] = ()  # of any rank, from before the first rank's end

    @property
    def unknown(self) -> bool:
        return self.code is None and self.signal is None

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.failure

    def describe(self) -> str:
        if self.unknown:
            return "exit status unknown"
        if self.signal is not None:
            return f"killed by signal {self.signal}" + (" (out of memory)" if self.oom_killed else "")
        return f"exit code {self.code}"


# containerd reports a container that signal N killed as exit code 128 + N (pkg/sys/reaper: exitSignalOffset), as a
# shell does of its child.
SIGNAL_OFFSET, LAST_SIGNAL = 128, 31


def signal_of(code: int | None) -> int | None:
    """The signal of which such an exit code tells."""
    return code - SIGNAL_OFFSET if code and 0 < code - SIGNAL_OFFSET <= LAST_SIGNAL else None


class Worker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank that the program of a job's rank, a launcher (torchrun, mpirun), has started: as far as was seen."""

    number: int  # as its launcher numbers it: RANK
    pid: int = 0  # 0: no process is known
    state: str = ""  # of the process, as in /proc/PID/stat; "": it was there and is gone
    told: int = 0  # iterations that it has told, where lines tell whose they are
    step: int | None = None  # of the newest of them


PRINTS_S = 60.0  # after its first output


MOVES = 2  # iterations after a start that show that they move: a single one may be a left-over line
PACED = 8  # that show its pace too, since the first ones are warm-up


class RankReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one poll of one rank's log brought. Iterations are in log order."""

    job: str
    incarnation: int
    rank: int
    iterations: list[Iteration] = []
    before: int = 0  # how many the log has told before these, where its reader knows
    unsure: bool = False  # they are told in no format of a known trainer, and may be none
    again: bool = False  # some may have been told already: those up to the number that is known count no more
    caught_up: bool = True  # the log was read to its end: only then may silence mean a hang
    log_problem: str = ""  # "vanished", "truncated": a degraded mode named in status
    alive_s: float | None = (
        None  # when it told, without an iteration, that the program gets on (clock of `at_s`)
    )
    alive_line: str = ""  # by which it told so; untrusted
    prints: bool = False  # it printed PRINTS_S after its first output, whatever it was
    state: str = ""  # of the process, as in /proc/PID/stat, when it was looked at
    io_bytes: int | None = None  # read and written so far by the rank and its helpers
    restarts: int = 0  # how often a launcher inside its pod has started it again, where that is known
    workers: tuple[Worker, ...] = ()  # of each of its launcher's, or of itself: that which is new
    children: tuple[int, ...] = ()  # pids of what a program without numbered ranks has started


Files = dict[str, tuple[int, int]]  # path -> bytes, newest mtime in ns; a folder with all that is in it


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of something that a controller asked of a node: `agents.orders.Ask`. Ranks are the controller's."""

    order: str
    sent: tuple[int, ...] = ()  # ranks that got the signal, or were let go
    refused: dict[int, str] = {}  # rank -> why it was not: "gone", "does not catch SIGUSR1", "not held"
    capable: dict[int, bool] = {}  # rank -> catches the signal
    texts: tuple[str, ...] = ()  # stacks, or processes that are left
    able: int | None = None  # of these processes, how many may still run user code; None: an older agent
    files: Files = {}

    @property
    def may_run(self) -> bool:
        """May something that is left still run user code? An older agent names processes and does not tell."""
        return bool(self.texts) if self.able is None else self.able > 0


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Agent to controller."""

    node: str
    boot_id: str
    sequence: int
    now: Now
    ranks: tuple[RankReport, ...] = ()
    matches: tuple[LogMatch, ...] = ()
    exits: tuple[tuple[str, RankExit], ...] = ()  # (job, exit)
    checks: tuple[CheckResult, ...] = ()
    answers: tuple[Answer, ...] = ()
    # Uid of a pod -> after how long without anybody the agent ends it, in s: all of them. None: as told before.
    fences: dict[str, float] | None = None
