"""What a launcher (torchrun, mp.spawn, accelerate) says of the processes that it started, in its own log. Pure.

To Sentinel the launcher is one rank, and what its processes print is that rank's log.
"""

import re
from collections.abc import Iterable

from msgspec import structs

from sentinel.core.reports import RankExit
from sentinel.core.signals import names
from sentinel.core.triage.case import Case, Why, class_of_death, finding_clause
from sentinel.core.triage.rows import REPORT, Row

TOLD_TO_END = (2, 15)  # SIGINT, SIGTERM
# How launchers number their processes: `[rank1]: ` and `[default1]:` before a line, torchrun's own report, mp.spawn's,
# two of mpirun's, srun's. Before each of them may stand what `srun --label` puts there.
_LABEL = r"^(?: {0,4}\d{1,5}: )?"
_INNER = re.compile(
    _LABEL
    + r"\[(?:rank|default)(\d+)\]:|\bfailed \(exitcode: -?\d+\) local_rank: (\d+)|\bprocess (\d+) terminated\b"
    r"|\bprocess rank (\d+) with PID|\bProcess name: \[\[\d+,\d+\],(\d+)\]"
    r"|^srun: error: \S+: tasks? (\d+): "
)
# Numbers in the whole job: before each line that torch logs, and in what NCCL's watchdog says. That of a smaller group
# counts in that group.
_RANK = re.compile(_LABEL + r"(?:\[default\d+\]: ?)?\[rank(\d+)\]:")
_WATCHDOG = re.compile(r"\[(?:PG [^\]]*\(default_pg\) )?Rank (\d+)\].*\b[Ww]atchdog\b")
_ASYNC = re.compile(r"\basync exception: NCCL error: ")
_ASSERTED = re.compile(r"\bCUDA error: device-side assert triggered\b")
_SMALLER_GROUP = re.compile(r"\[PG (?![^\]]*\(default_pg\))")
# mp.spawn's head of the traceback of one that raised.
_RAISED = re.compile(r"^-- Process (\d+) terminated with the following error:")
# deepspeed's report: whichever ended, it names the command of the last one that it had started.
_LAST = re.compile(r"'--local_rank=(\d+)'.*\] exits with return code = ")
_REPORT = re.compile(
    r"\bfailed \(exitcode: |\bProcessExitedException: |\bdied with <Signals\.|\bprocess rank \d+ with PID "
    r"|^srun: error: \S+: tasks? [\d,-]+: "
)
# torchrun looks at its processes from time to time, torch 1.13 each 5 s: of several that have ended meanwhile it
# reports the one of the lowest number, and then lists all. Who exits, or aborts as it ends, may have lost the first.
_FIRST = re.compile(r"\bfailed \(exitcode: -?\d+\) local_rank: ")
_LISTED = re.compile(r"^ *exitcode +: -?\d+ \(pid: ")
_FORCED = re.compile(r"\bUnable to shutdown process (\d+) via ")
_PID = re.compile(r"\(pid: (\d+)\)")
_TASK = re.compile(r" {0,4}(\d{1,5}): ")
_SRUN, _SRUN_ENDS = "srun: error: ", re.compile(r"^srun: (?:\S+: )*(?:Term|Job step aborted|forcing)")
# mp.spawn tells no pid.
_SPAWNED_KILLED = re.compile(r"\bprocess \d+ terminated with signal SIGKILL\b")


def without_those_that_srun_ended(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Without its words on tasks that it ended itself after another one, or that exited since they had lost another. Of
    one that was killed for memory Slurm's daemon says more."""
    told = list(rows)
    for_memory = {row.match.rank for row in told if row.cls.id == "host-oom"}
    # Where a task is a launcher itself, the numbers of its ranks are not those of tasks.
    launchers = {
        row.match.rank for row in told if row.cls.role == "report" and not row.match.line.startswith(_SRUN)
    }
    lost_another = {
        (row.match.rank, process_of(row.match.line))
        for row in told
        if row.cls.complains
        if row.match.rank not in launchers or _TASK.match(row.match.line)
    }
    ending: set[int] = set()
    kept, follows, by_itself = [], [], set()
    for row in told:
        rank, line = row.match.rank, row.match.line
        if _SRUN_ENDS.match(line):
            ending.add(rank)
        elif line.startswith(_SRUN):
            if rank in ending or (row.cls.id == "killed" and rank in for_memory):
                continue
            number = inner_rank(line)
            if row.cls.role == "report" and number is not None and (rank, number) in lost_another:
                follows.append(row)
            else:
                by_itself.add(rank)
        kept.append(row)
    left_out = {id(row) for row in follows if row.match.rank in by_itself}
    return tuple(row for row in kept if id(row) not in left_out)


def process_of(line: str) -> int | None:
    """The number of the process whose line it is or that it is about. What `srun --label` puts before it goes first:
    not every line has another."""
    label = _TASK.match(line)
    return int(label[1]) if label else inner_rank(line)


def in_whole_job(number: int | None, row: Row, case: Case) -> int | None:
    """`[default1]:` counts the processes of its own launcher, whose numbers in the job are higher on other machines."""
    below = sorted(_below(row.match.rank, case))
    if number is None or number in below or not row.match.line.startswith("[default"):
        return number
    return below[number] if number < len(below) else number


def inner_rank(line: str) -> int | None:
    """The number, among the processes of a launcher, of the one that a line is about."""
    found = _INNER.search(line)
    return next(int(number) for number in found.groups() if number is not None) if found else None


def _complaining(rank: int, case: Case) -> set[int]:
    """The processes of a launcher that said something themselves, as those do that lost another one."""
    # Of one line the rules may know two things: that it is a report, and that it is an exception.
    reports = {row.match.line for row in case.of("report") if row.match.rank == rank}
    own = (row for row in case.rows if row.match.rank == rank and row.cls.role not in ("report", "abort"))
    said = (inner_rank(row.match.line) for row in own if row.match.line not in reports)
    return {number for number in said if number is not None}


def _number_that_complains(line: str) -> int | None:
    if found := _RANK.search(line):
        return int(found[1])
    if not _SMALLER_GROUP.search(line) and (found := _WATCHDOG.search(line)):
        return int(found[1])
    return inner_rank(line)


def speaker(row: Row, case: Case) -> int | None:
    """The process of a launcher that said this, by its number in the whole job, where that is known. Torch logs an
    error of NCCL in two lines, of which only the first tells whose it is."""
    line = row.match.line
    number = _number_that_complains(line)
    if number is None and line.startswith("nccl"):
        same = (one.match for one in case.rows if one.cls is row.cls and one.match.rank == row.match.rank)
        heads = (one.line for one in same if one.at_s == row.match.at_s and _ASYNC.search(one.line))
        numbers = {_number_that_complains(head) for head in heads}
        number = numbers.pop() if len(numbers) == 1 else None
    if line.startswith("[default") and _RANK.search(line) is None and not _below(row.match.rank, case):
        return None  # it counts those of its own machine
    return in_whole_job(number, row, case)


def of_the_reported(row: Row, case: Case) -> int | None:
    """The process that said this, if that is the one of whose end its launcher tells. None: another, or not known."""
    number = _raised(row, case)
    if number is not None:
        return number
    number, told = speaker(row, case), report_of(row.match.rank, case)
    if number is None or told is None:
        return None
    by_pid = _by_pid(told, case)
    return number if number == (_gone(told, case) if by_pid is None else by_pid) else None


def missing_below(first: Row, case: Case) -> Why | None:
    """Of all workers of which it is known that they ran, the one that did not report that it had waited in vain."""
    known = _known(case)
    if not known:
        return None
    told = _told_below(case)
    silent = known - told
    launchers = {rank for rank, _ in known}
    if first.cls.role != "symptom" or not told <= known or len(launchers) < case.size or len(silent) != 1:
        return None
    [(rank, number)] = silent
    numbers = [one for _, one in told]
    clause = f"rank {number} of those that a launcher had started did not join a collective operation"
    note = f"{names(numbers).capitalize()} waited for it in vain."
    return Why(cls=first.cls, rank=rank, worker=number, clause=clause, note=note) if told else None


def rank_below(number: int, case: Case) -> tuple[int | None, int | None]:
    """Of a rank by the number that it has in its own world: (rank, worker) as a verdict names them; (None, None) where
    it is not known to be one of this job's processes."""
    if known := _known(case):
        launchers = [rank for rank, one in known if one == number]  # several may give the same numbers
        return (launchers[0], number) if len(launchers) == 1 else (None, None)
    return (number, None) if number < case.size else (None, None)


def who_waited_below(case: Case) -> str:
    """Which of the ranks below launchers reported that they had waited in vain, and which did not."""
    known = {rank for rank, _ in _known(case)}
    told = sorted(
        number for rank, number in _told_below(case) if rank in known or report_of(rank, case) is not None
    )
    if not told or len(set(told)) < len(told):  # several launchers may give the same numbers
        return ""
    silent = {number for _, number in _known(case)} - set(told)
    others = f", {names(list(silent))} did not" if silent else ""
    return f"{names(told).capitalize()} of those that a launcher had started reported it{others}."


def _known(case: Case) -> set[tuple[int, int]]:
    """Of each process below a launcher that was seen to run: the launcher, and its number."""
    return {(rank, number) for rank, number in case.processes.values() if number is not None}


def _told_below(case: Case) -> set[tuple[int, int]]:
    """Of each process below a launcher that reported that it had waited in vain, or lost another: launcher, number."""
    told = (row.match for row in case.complaints)
    numbers = {(match.rank, _number_that_complains(match.line)) for match in told}
    return {(rank, number) for rank, number in numbers if number is not None}


def _gone(row: Row, case: Case) -> int | None:
    """The number of the process of whose end a launcher tells."""
    if _one_of_several(row, case):
        return _silent(row.match.rank, _below(row.match.rank, case), case)
    last = _LAST.search(row.match.line)
    if last is None:
        return inner_rank(row.match.line)
    if case.size > 1:  # it counts those of its machine, and ranks that complain may be of any
        return None
    return _silent(row.match.rank, set(range(int(last[1]) + 1)), case)


def _below(rank: int, case: Case) -> set[int]:
    """The numbers of the processes that this rank, a launcher, has started, as far as they were seen."""
    return {number for of, number in case.processes.values() if of == rank and number is not None}


def _one_of_several(row: Row, case: Case) -> bool:
    if row.cls.role != "report" or not _FIRST.search(row.match.line):
        return False
    listed = {other.match.line for other in case.of("report") if other.match.rank == row.match.rank}
    return sum(bool(_LISTED.search(line)) for line in listed) > 1


def _by_pid(row: Row, case: Case) -> int | None:
    """The number in the whole job of the process whose pid stands in a report, which counts those of its machine."""
    named = (case.worker_of_pid(int(pid)) for pid in _PID.findall(row.match.line))
    return next((number for number in named if number is not None), None)


def _silent(rank: int, processes: set[int], case: Case) -> int | None:
    """The one of all processes of a launcher that did not complain, as those do that lost another one."""
    silent = processes - _complaining(rank, case)
    return silent.pop() if len(silent) == 1 else None


def report_of(rank: int, case: Case) -> Row | None:
    """A launcher's word in this rank's log, with the number of the process if there is one."""
    told = [row for row in case.of("report") if row.match.rank == rank]
    return next((row for row in told if _gone(row, case) is not None), told[0] if told else None)


def about_another(row: Row, case: Case) -> bool:
    """A launcher's word, in the log of a rank that has not failed, where another ended as such a process does: that was
    it (logs of one launcher for each of its ranks)."""
    if case.size == 1 or case.exit_of(row.match.rank) is not None or not _REPORT.search(row.match.line):
        return False
    return any(gone.signal is not None or gone.code not in (None, 0, 1) for gone in case.lost)


def _raised(row: Row, case: Case) -> int | None:
    """Whose exception it is, of mp.spawn's: its head stands before the traceback, and nothing else comes after that."""
    number = None
    for one in case.rows:
        if one.match.rank == row.match.rank and one.cls.role == "report":
            head = _RAISED.match(one.match.line)
            number = int(head[1]) if head else number
        if one is row:
            return number
    return None


def _asserted_by(row: Row, case: Case) -> str:
    """What a kernel says of an assertion tells not whose it is: a line of the single process whose GPU it was on. "":
    there is none, or several."""
    if row.cls.id != "device-assert" or process_of(row.match.line) is not None:
        return ""
    own = (one.match.line for one in case.rows if one.match.rank == row.match.rank)
    told = {
        number: line for line in own if _ASSERTED.search(line) and (number := inner_rank(line)) is not None
    }
    return next(iter(told.values())) if len(told) == 1 else ""


def ended_by_launcher(row: Row, case: Case) -> bool:
    """It killed this process, which had not ended when it was told to, after another had failed."""
    pids = set(_PID.findall(row.match.line)) if row.cls.id == "killed" else set()
    if not pids:
        return False
    forced = (_FORCED.search(other.match.line) for other in case.rows if other.match.rank == row.match.rank)
    return any(found is not None and found[1] in pids for found in forced)


def named_inner(why: Why, row: Row, case: Case) -> Why:
    """With which of a launcher's processes it was."""
    number = None if _one_of_several(row, case) else _by_pid(row, case)
    if number is None:
        number = _gone(row, case)
    if number is None:
        number = _raised(row, case)
    line = row.match.line
    if number is None and (marked := _asserted_by(row, case)):
        number, line = inner_rank(marked), marked
    # A rank that nobody else has started says `[rank3]: ` too.
    launches = report_of(row.match.rank, case) is not None or len(_below(row.match.rank, case)) > 1
    if number is None or (line.startswith(("[rank", "[default")) and not launches):
        return why
    return of_worker(why, number)


def of_worker(why: Why, number: int | None) -> Why:
    """It was this one of those that a launcher had started. None: it was the rank itself."""
    if number is None:
        return why
    note = f"It was rank {number} of those that a launcher had started."
    return structs.replace(why, worker=number, note=f"{why.note} {note}".strip())


def by_report(rank: int, case: Case) -> Why | None:
    """A process of the launcher that is this rank ended without a word that is known."""
    told = report_of(rank, case)
    if told is None:
        return None
    why = named_inner(Why(cls=told.cls, rank=rank), told, case)
    of_another = _one_of_several(told, case) or _LAST.search(told.match.line)
    if why.worker is not None and of_another:  # it may tell how another one ended
        return structs.replace(why, cls=case.failures[REPORT])
    return why


def by_silent_end(case: Case) -> Why | None:
    """The one process of a launcher that ended without a word, while others below it complain that it is gone."""
    for exit_ in case.lost:
        told = report_of(exit_.rank, case)
        if told is not None and _ended_silently(told, case):
            return by_report(exit_.rank, case)
    return None


def _ended_silently(told: Row, case: Case) -> bool:
    gone = _gone(told, case)
    rank = told.match.rank
    complaining = _complaining(rank, case)
    if gone is None or not complaining or gone in complaining:
        return False
    if case.size > 1:
        if None in {inner_rank(row.match.line) for row in case.complaints if row.match.rank == rank}:
            return False  # it may have been this one that lost a rank of another launcher
        known = gone if _one_of_several(told, case) else _by_pid(told, case)
        if known is not None:
            return known not in complaining
    # The launcher counts on its own machine, its ranks on all of them: these are the same on the first machine only.
    return 0 in complaining if gone else 1 in complaining and len(complaining) > 1


def failed_orphan(case: Case) -> tuple[int, RankExit] | None:
    """The number and the end of the one process of a launcher that failed before it, and for which it had not waited:
    it ended by an error of its own, and reports nothing. Who died of a signal explains those that only exited."""
    gone = case.lost[0]
    if report_of(gone.rank, case) is not None:
        return None
    failed = {}
    for one in gone.orphans:
        number = case.worker_of_pid(one.pid)
        told_to_end = one.signal in TOLD_TO_END
        if number is not None and case.rank_of_pid(one.pid) == gone.rank and not told_to_end:
            failed[number] = structs.replace(
                gone, code=one.code, signal=one.signal, oom_killed=one.oom_killed, orphans=()
            )
    died = [number for number, exit_ in failed.items() if class_of_death(exit_, case.failures) is not None]
    for rank, waited in _told_below(case):  # who waited in vain, and was ended for that, explains nothing
        if rank == gone.rank and waited not in died:
            failed.pop(waited, None)
    number = died[0] if len(died) == 1 else _silent(gone.rank, set(died or failed), case)
    return None if number is None else (number, failed[number])


def killed_for_memory(why: Why, case: Case) -> Why | None:
    """A line names the pid of a process that was killed, of a data loader or a launcher, and so does the kernel, which
    did it for memory. Where mp.spawn tells of one that was killed, the kernel names a child of its."""
    if why.cls.id not in ("dataloader", "killed"):
        return None
    told = " ".join(row.match.line for row in case.rows if row.match.rank == why.rank and row.cls is why.cls)
    pids = set(re.findall(r"\d+", told) if why.cls.id == "dataloader" else _PID.findall(told))
    if why.cls.id == "killed" and _SPAWNED_KILLED.search(told):
        pids |= {str(pid) for pid, rank in case.children.items() if rank == why.rank}
    cls = case.failures["host-oom"]
    for finding in case.findings:
        if finding.pid is not None and str(finding.pid) in pids and finding.code in cls.codes:
            clause = finding_clause(finding, "")
            return structs.replace(why, cls=cls, finding=finding, code=finding.code, clause=clause)
    return None
