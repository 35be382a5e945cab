"""The agent of one node: follows the logs of its ranks, tells of their ends, passes on what checks find."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

import msgspec
import structlog

from sentinel.cluster.base import RankProcess
from sentinel.core.health import CheckResult
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.reports import PRINTS_S, LogMatch, RankExit, RankReport, Report, Worker
from sentinel.logs.life import Sign
from sentinel.logs.reader import POLL_BYTES, LogBatch, Position, RankLog
from sentinel.logs.ruleset import RuleSet
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock

log = structlog.get_logger()

AHEAD_BYTES = 4 << 20  # more than a rank prints between two looks, but for a flood
POLL_S = 0.2  # how often a log is looked at: what a turn costs is in the waking, not in the lines
SAVE_POSITIONS_S = 2.0
# A rank that is silent for so long is looked at in /proc, so often; a stepping one never is.
SILENT_S = 2.0
TEXTS_S = 1800.0  # after an iteration: for so long new texts are a sign of progress; a bar always is
LOOK_S = 2.0
# Reading a log to its end is bounded: a job that writes faster than we read must not hold up its recovery.
DRAIN_BYTES = 64 << 20
# So is waiting for its end: a rotated log is left after two empty polls, one that is gone never ends.
EMPTY_POLLS = 5
# A successor reads so much again of what its predecessor had read: it must know how far each rank had come (one
# that never prints again would otherwise never count as hung) and what it had said before it died.
REREAD_BYTES = 256 << 10

PROOF = "proof"  # what a line of the policy's proof pattern means, in the place of a failure class

_LABEL_OPTION = re.compile(r"--label|-[A-Za-z]{0,3}l[A-Za-z]{0,3}")
_PROGRAM = re.compile(
    r"^(?:python[\d.]*|(?:ba|da|z|k)?sh)$|^[^-].*/|\.(?:py|sh)$"
)  # srun's own words end here

Output = Callable[[int, bytes], None]  # (rank, raw bytes of its log)


class Use(Protocol):
    @property
    def io_bytes(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def restarts(self) -> int: ...
    @property
    def workers(self) -> tuple[Worker, ...]: ...
    @property
    def children(self) -> tuple[int, ...]: ...


Look = Callable[[str, int], Mapping[int, Use]]  # (job, incarnation) -> what /proc says of each rank


class _Followed:
    """One rank's log, and what is remembered of it."""

    def __init__(self, job: str, incarnation: int, process: RankProcess, reader: RankLog, now: Now) -> None:
        self.job = job
        self.incarnation = incarnation
        self.rank = process.rank
        self.reader = reader
        self.last_told: tuple[bool, str] | None = None
        self.heard_s = self.alive_s = now.mono_s
        self.silent_s = SILENT_S
        self.signs_s = float("-inf")  # when a sign that the program gets on was looked for
        self.begun = self.look_due = False  # it iterates; nobody has looked yet whether others do so for it
        self.workers: dict[int, Worker] = {}  # where it is a launcher: what was seen of each
        self.children: tuple[int, ...] = ()  # where its ranks carry no numbers
        self.saved: bytes = b""
        self.ended = False
        self.spoke_s: float | None = None  # when we have read something of it for the first time
        self.prints = False  # it printed on a minute later
        self.resumed = True  # what it reads first may have been told by a predecessor
        self.earlier: LogBatch | None = None  # read by a predecessor, not reported by us yet


class Agent:
    """`run` is a task of its owner. Reports go out in order; `send` never waits."""

    def __init__(
        self,
        node: str,
        boot_id: str,
        clock: Clock,
        send: Callable[[Report], None],
        ruleset: Callable[[ProtectedJob], RuleSet],
        *,
        metrics: Metrics,
        output: Output,
        look: Look,
        read_kernel_log: Callable[[], Awaitable[object]],
        load_positions: Callable[[str], dict[tuple[int, int], bytes]],
        save_positions: Callable[[dict[tuple[str, int, int], bytes]], None],
        poll_s: float = POLL_S,
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        self._clock = clock
        self._send = send
        self._ruleset = ruleset
        self._metrics = metrics
        self._output = output
        self._uses = look
        self._read_kernel_log = read_kernel_log
        self._load_positions = load_positions
        self._save_positions = save_positions
        self.poll_s = poll_s
        self._sequence = 0
        self._followed: dict[tuple[str, int], _Followed] = {}
        self._positions_saved_s = 0.0
        self._looked_s = 0.0

    # ------------------------------------------------------------ what is followed

    def follow(self, job: ProtectedJob, ranks: list[RankProcess]) -> None:
        """From now on these are the ranks of the job; the logs of an older incarnation are let go."""
        self.forget(job.name)
        now = self._clock()
        rules = self._ruleset(job)
        saved = self._load_positions(job.name)
        for process in ranks:
            blob = saved.get((job.incarnation, process.rank))
            reader = RankLog(
                process.log_path,
                rules,
                position=_position(blob),
                keep_bytes=job.policy.keep_log_bytes,
                ahead_bytes=AHEAD_BYTES if job.launch is not None else 0,  # of pods the runtime writes it
                rank=process.rank,
                incarnation=job.incarnation,
                cri=process.cri,
            )
            if job.launch is not None and _labels(job.launch.command):
                reader.labelled()
            followed = _Followed(job.name, job.incarnation, process, reader, now)
            if job.policy.hang.after_s is not None:  # what a process does is known before its hang is judged
                followed.silent_s = min(SILENT_S, job.policy.hang.after_s / 2)
            if (position := _position(blob)) is not None:
                followed.earlier = _reread(process, rules, position, job.incarnation, now)
            self._followed[job.name, process.rank] = followed

    def forget(self, job: str) -> None:
        for key in [key for key in self._followed if key[0] == job]:
            followed = self._followed.pop(key)
            followed.reader.close(ended=followed.ended)
        self._metrics.ranks_gone(job)

    # ------------------------------------------------------------ reading

    async def run(self) -> None:
        """Poll until cancelled. What is behind is read without a pause, and with half of the loop at most: a log whose
        size is bounded must be read as fast as it is written."""
        while True:
            begun_s = time.monotonic()
            behind = self.poll()
            took_s = time.monotonic() - begun_s
            await asyncio.sleep(min(took_s, self.poll_s) if behind else self.poll_s)

    def poll(self) -> bool:
        """Read what is new of every log and report it; at most one bite per log, so that none starves. True: of some
        there is more."""
        now = self._clock()
        reports: list[RankReport] = []
        matches: list[LogMatch] = []
        behind = False
        for followed in self._followed.values():
            if not followed.ended:
                batch = self._read(followed, now, reports, matches)
                behind |= len(batch.data) >= POLL_BYTES
        reports += self._look(now)
        if reports or matches:
            self._report(now, reports, matches)
        if now.mono_s - self._positions_saved_s >= SAVE_POSITIONS_S:
            self.save_positions()
        return behind

    async def drain(self, job: str) -> None:
        """Read the kernel's log, and those of a job, to their end and report."""
        await self._read_kernel_log()
        self._report(self._clock(), *self._drained(job))

    def _drained(self, job: str, rank: int | None = None) -> tuple[list[RankReport], list[LogMatch]]:
        now = self._clock()
        reports: list[RankReport] = []
        matches: list[LogMatch] = []
        for followed in list(self._followed.values()):
            if followed.job != job or followed.ended:
                continue
            final = rank is not None and followed.rank == rank
            left, empty = DRAIN_BYTES, 0
            while left > 0 and empty < EMPTY_POLLS:
                batch = self._read(followed, now, reports, matches, final=final)
                left -= len(batch.data)
                empty = 0 if batch.data else empty + 1
                if batch.caught_up:
                    break
        return reports, matches

    def rank_ended(self, job: str, gone: RankExit) -> None:
        """Tell the end of a rank after everything that the ranks had written before it."""
        reports, matches = self._drained(job, gone.rank)
        followed = self._followed.get((job, gone.rank))
        if followed is not None and followed.incarnation == gone.incarnation:
            followed.ended = True
        self._report(self._clock(), reports, matches, exits=((job, gone),))

    def checked(self, result: CheckResult) -> None:
        self._report(self._clock(), [], [], checks=(result,))

    def _read(
        self,
        followed: _Followed,
        now: Now,
        reports: list[RankReport],
        matches: list[LogMatch],
        *,
        final: bool = False,
    ) -> LogBatch:
        quiet = now.mono_s - max(followed.alive_s, followed.heard_s) >= followed.silent_s
        looks = quiet and now.mono_s - followed.signs_s >= self.poll_s  # not at each bite of a flood
        if looks:
            followed.signs_s = now.mono_s
        batch = followed.reader.poll(now, final=final, signs=looks)
        if batch.data:
            self._metrics.log_read(len(batch.data))
            self._output(followed.rank, batch.data)
        iterations, before, again = batch.iterations, batch.before, followed.resumed
        followed.resumed = again and not batch.caught_up
        if (earlier := followed.earlier) is not None:
            followed.earlier = None
            iterations = earlier.iterations + iterations
            before = max(0, before - len(earlier.iterations))
            # An old checkpoint must not prove the save that is under way.
            batch.matches[:0] = [match for match in earlier.matches if match.failure != PROOF]
        for match in batch.matches:
            matches.append(msgspec.structs.replace(match, job=followed.job))
        told = (batch.caught_up, batch.problem)
        # To who has just begun to read every text is new.
        bounded = batch.sign is Sign.BAR or now.mono_s - followed.heard_s < TEXTS_S
        gets_on = ((batch.sign is not Sign.NONE and bounded) or batch.told_again > 0) and not again
        if batch.data and followed.spoke_s is None:  # its first words, whatever they are
            followed.spoke_s, gets_on = now.mono_s, True
        prints = bool(batch.data) and now.mono_s - (followed.spoke_s or now.mono_s) >= PRINTS_S
        newly, followed.prints = prints and not followed.prints, prints or followed.prints
        if newly or iterations or gets_on or batch.workers or told != followed.last_told:
            if iterations:
                followed.look_due = followed.look_due or not followed.begun
                followed.begun = True
                followed.heard_s = now.mono_s
            if gets_on:
                followed.alive_s = now.mono_s
            followed.last_told = told
            report = RankReport(
                job=followed.job,
                incarnation=followed.incarnation,
                rank=followed.rank,
                iterations=iterations,
                before=before,
                unsure=batch.unsure,
                again=again,
                caught_up=batch.caught_up,
                log_problem=batch.problem,
                alive_s=now.mono_s if gets_on else None,
                prints=followed.prints,
                alive_line=batch.sign_line if gets_on else "",
                workers=tuple(batch.workers.values()),
            )
            if iterations:
                self._metrics.rank(report)
            reports.append(report)
        return batch

    def _look(self, now: Now) -> list[RankReport]:
        """What the processes of silent ranks do: stopped, stuck in the kernel, still reading and writing. Once of those
        that begin to iterate too: whether they are launchers, and of how many."""
        living = [f for f in self._followed.values() if not f.ended]
        silent = [f for f in living if now.mono_s - f.heard_s > f.silent_s]
        if silent and now.mono_s - self._looked_s < min(LOOK_S, *(f.silent_s for f in silent)):
            silent = []
        elif silent:
            self._looked_s = now.mono_s
        wanted = silent + [f for f in living if f.look_due and f not in silent]
        for followed in wanted:
            followed.look_due = False
        reports = []
        for job, incarnation in {(f.job, f.incarnation) for f in wanted}:
            uses = self._uses(job, incarnation)
            for followed in wanted:
                use = uses.get(followed.rank)
                if followed.job == job and use is not None:
                    reports.append(_looked_at(followed, use))
        return reports

    def _report(
        self,
        now: Now,
        ranks: list[RankReport],
        matches: list[LogMatch],
        *,
        exits: tuple[tuple[str, RankExit], ...] = (),
        checks: tuple[CheckResult, ...] = (),
    ) -> None:
        self._sequence += 1
        self._send(
            Report(
                node=self._node,
                boot_id=self._boot_id,
                sequence=self._sequence,
                now=now,
                ranks=tuple(ranks),
                matches=tuple(matches),
                exits=exits,
                checks=checks,
            )
        )

    # ------------------------------------------------------------ positions

    def save_positions(self) -> None:
        """Where each log was read to: a successor reads on from there."""
        self._positions_saved_s = self._clock().mono_s
        changed: dict[tuple[str, int, int], bytes] = {}
        for followed in self._followed.values():
            position = followed.reader.position
            if position is None:
                continue
            blob = msgspec.json.encode(position)
            if blob != followed.saved:
                followed.saved = blob
                changed[followed.job, followed.incarnation, followed.rank] = blob
        if changed:
            self._save_positions(changed)

    def close(self) -> None:
        self.save_positions()
        for followed in self._followed.values():
            followed.reader.close(ended=followed.ended)
        self._followed.clear()


def _labels(command: Sequence[str]) -> bool:
    """Does srun put the rank before each line?"""
    if not command or command[0].rpartition("/")[2] != "srun":
        return False
    own = takewhile(lambda word: _PROGRAM.search(word) is None, command[1:])
    return any(_LABEL_OPTION.fullmatch(word) for word in own)


def _looked_at(followed: _Followed, use: Use) -> RankReport:
    gone = (
        Worker(number=one.number, pid=one.pid)
        for number, one in followed.workers.items()
        if number not in {other.number for other in use.workers}
    )
    seen = {one.number: one for one in (*gone, *use.workers)}
    news = tuple(one for number, one in sorted(seen.items()) if one != followed.workers.get(number))
    followed.workers = seen
    children = use.children if use.children != followed.children else ()
    followed.children = use.children
    followed.reader.expect(len(use.workers))
    caught_up, problem = followed.last_told or (False, "")
    return RankReport(
        job=followed.job,
        incarnation=followed.incarnation,
        rank=followed.rank,
        caught_up=caught_up,
        log_problem=problem,
        state=use.state,
        io_bytes=use.io_bytes,
        restarts=use.restarts,
        workers=news,
        children=children,
    )


def _reread(process: RankProcess, rules: RuleSet, position: Position, incarnation: int, now: Now) -> LogBatch:
    """What stands before `position`, at most REREAD_BYTES of it. Its iterations count as of now."""
    back = min(position.file.offset, REREAD_BYTES)
    begin = msgspec.structs.replace(
        position.file, offset=position.file.offset - back, tail_bytes=0, tail_crc=0
    )
    reader = RankLog(
        process.log_path,
        rules,
        position=Position(file=begin, dropping=begin.offset > 0, format=position.format),
        rank=process.rank,
        incarnation=incarnation,
        cri=process.cri,
    )
    try:
        return reader.poll(now, limit_bytes=back)
    finally:
        reader.close()


def _position(blob: bytes | None) -> Position | None:
    if blob is None:
        return None
    try:
        return msgspec.json.decode(blob, type=Position)
    except msgspec.DecodeError:  # of another version: the log is read from its beginning
        log.warning("log_position_unreadable")
        return None
