"""Exits, log lines, findings and timing of one incident → one Verdict. Pure.

The order of belief: hardware evidence about a GPU that the job uses; the kernel's own word (killed for
memory); the earliest root among log lines and deaths by signal; what symptoms have in common; nothing
known. Lines that only tell of others' deaths (cascades) never win over a root.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from sentinel.core.health import Finding, Severity
from sentinel.core.model import Cause, Failure, Restartable, Symptom, Verdict
from sentinel.core.now import Now
from sentinel.core.reports import SIGNAL_OFFSET, LogMatch, RankExit
from sentinel.core.signals import TimingSignal, how_far, names
from sentinel.core.stacks.flight_record import Stuck
from sentinel.core.triage.case import (
    CLASS_OF_SYMPTOM,
    WINDOW_S,
    Case,
    Struck,
    Why,
    class_of_death,
    class_of_finding,
    finding_clause,
    rows_in_order,
)
from sentinel.core.triage.disk import by_full_disk, by_hanging_mount, named_disk, named_mount
from sentinel.core.triage.gpu import bears, by_hardware, by_program_or_gpu, overrides, rank_of
from sentinel.core.triage.launcher import (
    about_another,
    by_report,
    by_silent_end,
    ended_by_launcher,
    failed_orphan,
    killed_for_memory,
    missing_below,
    named_inner,
    of_the_reported,
    of_worker,
    speaker,
    who_waited_below,
    without_those_that_srun_ended,
)
from sentinel.core.triage.node import by_network, by_node, by_stuck_process, named_network
from sentinel.core.triage.past import weigh_past
from sentinel.core.triage.records import by_records, decides, with_records
from sentinel.core.triage.rows import AGREED, REPORT, FailureClass, Row
from sentinel.core.triage.said import SURVIVED, clause_of, ended_by_abort, outlived, survived, told_by_what
from sentinel.core.triage.words import worded

__all__ = ["AGREED", "FailureClass", "triage"]

SIGKILL = 9
# Classes of lines in which a scheduler says why it ends a job: they say more than that it is told to end.
BY_SCHEDULER = ("preempted", "time-limit", "node-lost")
# Lines and exits this close belong to one event: a poll of the log, the teardown of a rank.
MOMENT_S = 2.0
# An exception this soon after a message that others are gone is about that.
TEARDOWN_S = 60.0


def triage(
    *,
    job: str,
    size: int,
    exits: Sequence[RankExit],
    matches: Sequence[LogMatch],
    findings: Sequence[Finding],
    signal: TimingSignal | None,
    last_steps: Mapping[int, int | None],
    rank_entities: Mapping[int, str],
    rank_pids: Mapping[int, int],
    failures: Mapping[str, FailureClass],
    history: Sequence[Failure],
    now: Now,
    last_iteration_s: Mapping[int, float] | None = None,
    others: Callable[[], Iterable[Struck]] = tuple,
    worker_pids: Mapping[int, tuple[int, int]] | None = None,
    child_pids: Mapping[int, int] | None = None,
    started_s: float = float("-inf"),
    stuck: Stuck | None = None,
    steps_told: bool = True,
    run_s: float = 0.0,
) -> Verdict:
    """The one explanation of an incident of `job`.

    `exits` and `matches` are those of the running incarnation, `findings` those of the job's nodes,
    `failures` must hold every class of AGREED, `history` is newest last. `last_iteration_s` (monotonic,
    by rank) tells which lines a rank survived: it has iterated since, so they explain nothing. `others` gives
    what other jobs met, of the last day or longer. `started_s` (monotonic): the incarnation began. `stuck`: what the
    flight recorders of its ranks tell. `steps_told` False: `last_steps` are counted from the start, since the logs name
    none. `run_s`: how long the job has run, as in `Failure`.
    """
    failed = (e for e in exits if not e.ok and not e.stopped_by_us)
    lost = tuple(sorted(failed, key=lambda e: (e.at_s, _ended_s(e))))
    moment_s = lost[0].at_s if lost else now.mono_s
    since_s = moment_s - WINDOW_S
    if not lost and signal is not None and signal.symptom is Symptom.HANG:
        since_s = now.mono_s - signal.value - MOMENT_S  # a hung job survived what it had printed before
    case = Case(
        job=job,
        size=size,
        lost=lost,
        rows=without_those_that_srun_ended(
            rows_in_order(matches, failures, since_s, last_iteration_s or {}, {e.rank: e for e in lost}, now)
        ),
        findings=tuple(findings),
        signal=signal,
        last_steps=last_steps,
        entities=rank_entities,
        processes={pid: (rank, None) for rank, pid in rank_pids.items()} | dict(worker_pids or {}),
        children=child_pids or {},
        failures=failures,
        history=history,
        started_s=started_s,
        others=others,
        now=now,
        stuck=stuck,
        steps_told=steps_told,
        run_s=run_s,
    )
    return worded(case, _with_worker(case, weigh_past(case, _explain(case))))


def _with_worker(case: Case, why: Why) -> Why:
    if why.worker is None and why.finding is not None and case.rank_of_pid(why.finding.pid) == why.rank:
        why = of_worker(why, case.worker_of_pid(why.finding.pid))
    if why.worker is None and not case.lost and case.signal is not None and case.signal.rank == why.rank:
        return structs.replace(why, worker=case.signal.worker)  # its sentence names it
    return why


# ---------------------------------------------------------------- what to believe


def _explain(case: Case) -> Why:
    hardware = by_hardware(case) if case.symptom is not Symptom.STARVED else None
    root = _earliest_root(case) if case.lost or case.symptom is Symptom.HANG else None
    said = root or (by_report(case.lost[0].rank, case) if case.lost else None)
    if hardware is not None and (said is None or overrides(hardware, said, case)):
        return hardware
    if root is None and case.lost and all(_terminated(e) for e in case.lost):
        return _by_exit(case)
    if root is None and case.lost and (orphan := failed_orphan(case)) is not None:
        root = _by_orphan(case, *orphan)
    if node := by_node(case, root):
        return node
    if root is not None:
        return killed_for_memory(root, case) or named_network(named_disk(root, case), case)
    if case.lost:
        why = by_program_or_gpu(case) or ended_by_abort(
            by_silent_end(case) or _by_symptoms(case) or _by_exit(case), case
        )
        return named_network(named_mount(why, case), case)
    if case.signal is not None:
        if case.symptom is Symptom.HANG:
            signal = case.signal
            told = (
                by_hanging_mount(case, signal) or by_stuck_process(case, signal) or by_network(case, signal)
            )
            if told is not None:
                return told
        if case.symptom is Symptom.HANG and case.signal.rank is None:
            if waited := _by_symptoms(case):
                return waited
            if case.stuck is not None:
                return by_records(case, case.stuck, case.failures["hang"])
        return _by_signal(case, case.signal)
    return hardware or _by_finding(case)


def _earliest_root(case: Case) -> Why | None:
    """The first root among log lines and deaths that explain themselves."""
    for exit_ in case.lost:
        named = _named_by_oom(exit_, case)
        if exit_.oom_killed or named is not None:
            its_own = _sigkilled(exit_)
            clause = (
                ""
                if its_own
                else f"the kernel killed one of its processes ({exit_.describe()}): memory ran out"
            )
            why = Why(cls=case.failures["host-oom"], rank=exit_.rank, clause=clause)
            return why if named is None else of_worker(why, case.worker_of_pid(named))
    rows = [row for row in _roots(case) if not _torn_down(row, case) and not _told_to_end(row, case)]
    deaths = [
        (_told_s(e), e.rank, cls)
        for e in case.lost
        if (cls := class_of_death(e, case.failures)) is not None
        and not _tidied(e, case)
        and (cls.id != "interrupted" or e is case.lost[0])  # else it is a launcher's teardown
    ]
    deaths.sort(key=lambda death: death[0])
    killed = {rank for _, rank, cls in deaths if cls.id == "killed"}
    # Who is killed did not die of an error that it had printed; after any other signal its words say more.
    rows = [row for row in rows if row.match.rank not in killed or row.cls.restart is Restartable.YES]
    dead = {rank for _, rank, _ in deaths}  # no exception ends in a signal
    rows = [row for row in rows if row.match.rank not in dead or row.cls.role == "root"]
    rows = [row for row in rows if not survived(row, rows, dead, case)]
    first_row = rows[0] if rows else None
    first_death = deaths[0] if deaths else None
    if first_row and (first_death is None or _at(first_row, case) <= first_death[0]):
        why = Why(
            cls=first_row.cls,
            rank=first_row.match.rank,
            entity=_entity_if_unclear(first_row.cls, first_row.match.rank, case),
            clause=clause_of(first_row, case),
        )
        return named_inner(why, first_row, case)
    if first_death is not None:
        _, rank, cls = first_death
        if full := by_full_disk(case, rank):
            return full
        return Why(cls=cls, rank=rank, entity=_entity_if_unclear(cls, rank, case))
    return None


def _by_orphan(case: Case, number: int, exit_: RankExit) -> Why:
    """A process of a launcher, which ended by an error that followed from that before it told of it."""
    clause = f"one of its processes had ended ({exit_.describe()})"
    if exit_.oom_killed:
        cls = case.failures["host-oom"]
        clause = f"the kernel killed one of its processes ({exit_.describe()}): memory ran out"
    else:
        cls = class_of_death(exit_, case.failures) or case.failures[REPORT]
    entity = _entity_if_unclear(cls, exit_.rank, case)
    why = of_worker(Why(cls=cls, rank=exit_.rank, entity=entity, clause=clause), number)
    return ended_by_abort(why, case, exit_)


def _ended_s(exit_: RankExit) -> float:
    return exit_.at_s if exit_.ended_s is None else exit_.ended_s


def _told_s(exit_: RankExit) -> float:
    """When what ended it began."""
    return exit_.at_s if exit_.told_s is None else exit_.told_s


def _torn_down(row: Row, case: Case) -> bool:
    """A line of a rank that had been told to end from outside: what it says of its end is not why it ended."""
    exit_ = case.exit_of(row.match.rank)
    return exit_ is not None and bool(exit_.failure) and row.match.at_s >= _told_s(exit_)


def _told_to_end(row: Row, case: Case) -> bool:
    """A signal of which a rank tells and that is not why it ended: another's, Sentinel's, a teardown's after an end."""
    if about_another(row, case) or ended_by_launcher(row, case):
        return True
    if row.cls.id == "interrupted":
        first = case.lost[0] if case.lost else None
        return (
            case.size > 1 if first is None else first.rank != row.match.rank and row.match.at_s >= first.at_s
        )
    if row.cls.id != "terminated":
        return False
    by_whom = (e for e in case.lost if e.failure)
    if any(e.rank == row.match.rank or _told_s(e) <= row.match.at_s + MOMENT_S for e in by_whom):
        return True  # who told it to end says more than that it was told
    if any(other.cls.id in BY_SCHEDULER for other in case.rows):
        return True
    before = case.rows[: case.rows.index(row)]
    if any(other.cls.role == "report" and other.match.rank == row.match.rank for other in before):
        return True
    if case.exit_of(row.match.rank) is not None:
        return False
    return (
        not case.lost or row.match.at_s > case.lost[0].at_s
    )  # it has not failed by itself: then it is Sentinel's


def _tidied(exit_: RankExit, case: Case) -> bool:
    """Its pod was deleted after another rank had ended by itself: an operator, or a person, clears up."""
    if exit_.failure != "pod-deleted":
        return False
    return any(_ended_s(e) <= _told_s(exit_) for e in case.lost if not e.failure)


def _at(row: Row, case: Case) -> float:
    """A line was written before its rank died, however late it was read."""
    exit_ = case.exit_of(row.match.rank)
    return min(row.match.at_s, exit_.at_s) if exit_ else row.match.at_s


def _named_by_oom(exit_: RankExit, case: Case) -> int | None:
    """The process of this rank, or of its workers, whose pid the kernel's memory killer wrote into its log."""
    codes = case.failures["host-oom"].codes
    named = (f.pid for f in case.findings if f.code in codes and case.rank_of_pid(f.pid) == exit_.rank)
    # A rank that ended otherwise was not killed: such a pid is one of another time, or of another machine.
    return next((pid for pid in named if case.worker_of_pid(pid) is not None or _sigkilled(exit_)), None)


def _sigkilled(exit_: RankExit) -> bool:
    return exit_.unknown or exit_.signal == SIGKILL or exit_.code == SIGNAL_OFFSET + SIGKILL


def _roots(case: Case) -> list[Row]:
    """Root lines. A generic one (a bare exception) counts only where its rank says nothing better, and of one line the
    rule that stands first."""
    told: dict[int, list[Row]] = {}
    passed = (row for row in case.rows if outlived(row, case) or told_by_what(row, case))
    past = {(row.match.rank, row.match.line) for row in passed}
    rows = [
        row
        for row in case.rows
        if (row.match.rank, row.match.line) not in past or row.cls.role not in ("root", "generic")
    ]
    for row in rows:
        told.setdefault(row.match.rank, []).append(row)
    found = []
    first: dict[tuple[int, str], FailureClass] = {}
    for row in rows:
        own = told[row.match.rank]
        if row.cls.role == "root":
            if first.setdefault((row.match.rank, row.match.line), row.cls) is row.cls:
                found.append(row)
        elif row.cls.role == "generic" and not _better_said(row, own, case):
            found.append(row)
    return found


def _better_said(generic: Row, own: Sequence[Row], case: Case) -> bool:
    """Whether another line of the same rank says more than this exception does. That another process of a launcher
    complains does not, where the launcher tells of the end of the one that raised this."""
    who = of_the_reported(generic, case)
    header = generic.match.line.lstrip().startswith("Traceback")
    place = own.index(generic)
    for k, row in enumerate(own):
        later_s = row.match.at_s - generic.match.at_s
        if row.match.line == generic.match.line and (row.cls.role != "generic" or _says_more(row, generic)):
            return True
        if not (row.cls.role == "root" or row.cls.complains) or (k < place and row.cls.id in SURVIVED):
            continue
        if row.cls.role == "root" and abs(later_s) <= MOMENT_S:
            return True
        if row.cls.complains and who is not None and speaker(row, case) not in (None, who):
            continue
        if k < place and -later_s <= TEARDOWN_S:  # it had a reason to raise
            return True
        if k > place and header and later_s <= MOMENT_S:  # the traceback ends in that line
            return True
    return False


def _says_more(one: Row, other: Row) -> bool:
    """Of two generic classes of one line: which names more than that something was raised?"""
    return one.cls.restart is Restartable.NO and other.cls.restart is not Restartable.NO


def _entity_if_unclear(cls: FailureClass, rank: int, case: Case) -> str:
    """Where it happened: only a second time tells whether it stays with the GPU or goes with the job."""
    unclear = cls.restart is Restartable.ONCE and cls.cause in (Cause.UNKNOWN, Cause.USER_CODE)
    exit_ = case.exit_of(rank)
    by_node = exit_ is not None and exit_.failure == cls.id and cls.scope == "node"
    return case.entities.get(rank, "") if unclear or by_node or cls.cause is Cause.GPU else ""


def _by_symptoms(case: Case) -> Why | None:
    """Only symptoms and cascades: who did not complain of others is the one they complain of."""
    rows = case.complaints
    if not rows:
        return None
    complaining = {row.match.rank for row in rows}
    silent_dead = [e for e in case.lost if e.rank not in complaining and not _terminated(e) and not e.failure]
    if silent_dead:
        exit_ = silent_dead[0]
        others = names(sorted(complaining))
        return structs.replace(_by_exit(case, exit_), note=f"The messages of {others} follow from that.")
    symptoms = [row for row in rows if row.cls.role == "symptom"]
    first = symptoms[0] if symptoms else rows[0]
    if case.stuck is not None and decides(case.stuck):
        return by_records(case, case.stuck, first.cls)
    why = _silent_rank(case, first, complaining)
    return why if case.stuck is None else with_records(why, case.stuck)


def _silent_rank(case: Case, first: Row, complaining: set[int]) -> Why:
    """Of ranks that waited for each other: the one that did not say so, else the one that is behind."""
    if below := missing_below(first, case):
        return below
    silent = [rank for rank in range(case.size) if rank not in complaining]
    if silent and len(silent) < case.size:
        ordered = sorted(silent, key=lambda r: _step(case, r))
        if len(silent) == 1 or _step(case, ordered[0]) < _step(case, ordered[1]):
            rank = ordered[0]
            note = f"{names(sorted(complaining)).capitalize()} waited for it in vain."
            return Why(cls=first.cls, rank=rank, note=note, clause="it did not join a collective operation")
        note = f"{names(silent).capitalize()} did not report it: one of them is the first."
        return Why(cls=first.cls, rank=None, note=note)
    known = {rank: step for rank in complaining if (step := case.last_steps.get(rank)) is not None}
    least = [rank for rank, step in known.items() if step == min(known.values())]
    if len(least) == 1 and len(known) > 1:
        note = f"It stopped after {how_far(known[least[0]], case.steps_told)}, the others came further."
        return Why(cls=first.cls, rank=least[0], note=note)
    return Why(cls=first.cls, rank=first.match.rank, note=who_waited_below(case))


def _step(case: Case, rank: int) -> float:
    step = case.last_steps.get(rank)
    return float("inf") if step is None else step


def _terminated(exit_: RankExit) -> bool:
    return exit_.signal in (2, 15) or exit_.code in (130, 143)


def _by_exit(case: Case, exit_: RankExit | None = None) -> Why:
    """Nothing but the exit status of the rank that was lost first."""
    if exit_ is None:
        if all(_terminated(e) for e in case.lost):
            return Why(cls=case.failures["terminated"], rank=case.lost[0].rank if case.size == 1 else None)
        # SIGTERM beside another end is some launcher's teardown.
        exit_ = next(e for e in case.lost if not _terminated(e))
    if full := by_full_disk(case, exit_.rank):
        return full
    known = class_of_death(exit_, case.failures)
    if known is not None:
        return Why(cls=known, rank=exit_.rank, entity=_entity_if_unclear(known, exit_.rank, case))
    if exit_.unknown:
        return Why(cls=case.failures["exit-unknown"], rank=exit_.rank)
    if told := by_report(exit_.rank, case):
        return told
    own_word = exit_.code is not None and 1 < exit_.code < 128
    return Why(cls=case.failures["user-exit" if own_word else "unknown"], rank=exit_.rank)


def _by_signal(case: Case, signal: TimingSignal) -> Why:
    """Slow, starved, straggling or hung; what is known of the GPUs is told with it."""
    cls = case.failures[CLASS_OF_SYMPTOM.get(signal.symptom, "unknown")]
    entity = (
        case.entities.get(signal.rank, "")
        if signal.rank is not None and signal.symptom not in (Symptom.HANG, Symptom.SLOWDOWN)
        else ""
    )
    for finding in case.findings:
        if (
            finding.component != "gpu"
            or finding.severity is Severity.INFO
            or signal.symptom is Symptom.STARVED
        ):
            continue
        rank = rank_of(finding, case)
        if rank is None or signal.rank not in (None, rank) or not bears(finding, rank, case):
            continue
        note = f"{finding_clause(finding, '')}."
        its = class_of_finding(finding, case.failures)[0]
        if its.role != "root" or its.restart is Restartable.ONCE:  # worth telling, blames nobody
            return Why(cls=cls, rank=signal.rank, finding=finding, note=note)
        blamed = structs.replace(cls, cause=Cause.GPU, scope="node")
        return Why(cls=blamed, rank=rank, entity=finding.entity, finding=finding, note=note)
    return Why(cls=cls, rank=signal.rank, entity=entity)


def _by_finding(case: Case) -> Why:
    """A finding alone, of whatever node part: the worst one."""
    if not case.findings:
        return Why(cls=case.failures["unknown"], clause="nothing is known to be wrong")
    worst = max(case.findings, key=lambda f: (f.severity.order, -f.first_seen_wall_s))
    cls, phrase = class_of_finding(worst, case.failures)
    return Why(
        cls=cls,
        rank=rank_of(worst, case),
        entity=worst.place,
        finding=worst,
        code=worst.code,
        clause=finding_clause(worst, phrase),
    )
