"""What moves a recovery (events), what it asks for (effects), and what follows a stop (Plan)."""

from typing import TypeAlias

from msgspec import Struct

from sentinel.core.model import JobState, Lost, SaveResult, Verdict

# ---------------------------------------------------------------- events


class Begin(Struct, frozen=True, tag=True):
    """The first event of every incident."""

    reason: str
    sentence: str


class PrecheckPassed(Struct, frozen=True, tag=True):
    size: int
    excluded: tuple[str, ...]
    sentence: str


class PrecheckRefused(Struct, frozen=True, tag=True):
    reason: str
    sentence: str


class SaveEnded(Struct, frozen=True, tag=True):
    """The save was proved, skipped, or ran out of its time. `counts`: it may be relied on. `ended`: all ranks are.
    `asked`: ranks were told to save, or may have been."""

    result: SaveResult
    counts: bool
    sentence: str
    ended: bool = False
    asked: bool = True


class StopEnded(Struct, frozen=True, tag=True):
    """Every process of the incarnation is gone; `plan` says what follows, decided with the whole evidence."""

    plan: "Plan"
    stacks: tuple[str, ...] = ()
    last_step: int | None = None  # the last iteration that the logs told before the stop


class StopStuck(Struct, frozen=True, tag=True):
    """`ended`: not even that: others have ended the job for good, in a sentence."""

    stuck: tuple[str, ...]
    stacks: tuple[str, ...] = ()
    ended: str = ""


class StopWaits(Struct, frozen=True, tag=True):
    """What is left may still run where nobody can look (a silent node), or the kind cannot be stopped now: the stop
    goes on until that is settled."""

    sentence: str
    stacks: tuple[str, ...] = ()
    reason: str = "StopWaits"


class GivenUp(Struct, frozen=True, tag=True):
    """It would not be started again, and what is left of it is kept for a look inside: nothing is stopped yet."""

    plan: "Plan"


class JobGone(Struct, frozen=True, tag=True):
    """Somebody else deleted the job or ended it for good: there is nothing left to recover."""

    reason: str
    sentence: str


class Rescaled(Struct, frozen=True, tag=True):
    """Somebody else gave the job another size while it waits for its start: it starts with that."""

    size: int
    sentence: str


class StartWaits(Struct, frozen=True, tag=True):
    """The job waits for its turn in a queue of others, which is nobody's fault. `sentence` "": it has been let in."""

    sentence: str


class RanksStarted(Struct, frozen=True, tag=True):
    sentence: str


class StartRefused(Struct, frozen=True, tag=True):
    """`tried`: a start was asked for, so something of it may be left; otherwise there was no room for it."""

    reason: str
    sentence: str
    permanent: bool
    tried: bool = False


class Progressed(Struct, frozen=True, tag=True):
    """Every rank is up and iterations move (or all ranks stayed up long enough)."""

    lost: Lost
    sentence: str


class Fault(Struct, frozen=True, tag=True):
    """A rank was lost, or the job hangs, while the recovery was under way."""

    verdict: Verdict
    failed_step: int | None = None


class JobFinished(Struct, frozen=True, tag=True):
    """All ranks ended with exit code 0 by themselves, and no save signal had been sent to them."""


class EndRequested(Struct, frozen=True, tag=True):
    """A person, a warning signal or maxDuration ends the job."""

    state: JobState
    reason: str
    sentence: str
    grace_s: float
    save: bool
    code: int | None = None


RESUMED_BY_OTHERS = "ResumedByOthers"  # of a JobGone: they let it run, though a recovery had stopped it
CANCELLED_BY_PERSON = "CancelledByPerson"  # reason of the end that this makes


class CancelRequested(Struct, frozen=True, tag=True):
    """A person gives up a recovery that has touched nothing yet, or waits: the job is left as it is."""

    sentence: str


class DeadlinePassed(Struct, frozen=True, tag=True):
    """The phase has lasted longer than its deadline."""


Event: TypeAlias = (
    Begin
    | PrecheckPassed
    | PrecheckRefused
    | SaveEnded
    | StopEnded
    | StopStuck
    | StopWaits
    | JobGone
    | GivenUp
    | Rescaled
    | StartWaits
    | RanksStarted
    | StartRefused
    | Progressed
    | Fault
    | JobFinished
    | EndRequested
    | CancelRequested
    | DeadlinePassed
)


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What follows a stop: another start after `delay_s`, or the end of the job."""

    restart: bool
    reason: str
    sentence: str
    verdict: Verdict
    delay_s: float = 0.0
    exhausted: bool = False
    failed_step: int | None = None  # the last step, from logs that were read to their end
    avoid: str = ""  # an entity that the next incarnation must not use


# ---------------------------------------------------------------- effects


class DoPrecheck(Struct, frozen=True, tag=True):
    not_before_mono_s: float


class DoSave(Struct, frozen=True, tag=True):
    pass


class DoStop(Struct, frozen=True, tag=True):
    """`stacks`: look where the ranks stand before anything is killed."""

    grace_s: float
    stacks: bool


class DoStart(Struct, frozen=True, tag=True):
    incarnation: int
    size: int
    excluded: tuple[str, ...]


Effect: TypeAlias = DoPrecheck | DoSave | DoStop | DoStart
