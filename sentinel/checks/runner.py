"""Runs the checks on their intervals: each sample bounded by its deadline, isolated from the others, and counted."""

import asyncio
import random
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from importlib import import_module
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from sentinel.checks.base import Absent, Check, CheckFunction, Kept, Look, Measure, Unknown
from sentinel.checks.findings import BookState, FindingBook
from sentinel.checks.shape import with_shape
from sentinel.checks.storable import in_text, storable
from sentinel.checks.table import all_checks, select
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings
from sentinel.util.clock import Clock, boot_id, system_now

log = structlog.get_logger(__name__)

JITTER = 0.1  # share of the interval, so that checks do not run in step
WOKEN_INTERVAL_S = 5.0  # of a check that its descriptor wakes: it need not look every second besides
MAX_ROUNDS = 100  # samples in one answer of a check that always has more to say
NEVER_ANSWERS = "check-hangs"
LATE_S = 10.0  # a result that comes so much later than interval and deadline allow: the check's loop is stuck


class CheckStats(Struct):
    """Counters of one check since the start."""

    runs: int = 0
    exceptions: int = 0
    timeouts: int = 0
    last_took_s: float = 0.0


class Snapshot(Struct, frozen=True):
    """What of the checks survives a restart of the agent."""

    book: BookState
    saved: dict[str, Any] = {}  # check -> what it asked to keep


class _Sample(Struct):
    """One call of a check's function in a thread of its own, which may outlive its deadline."""

    done: asyncio.Future[None]
    state: CheckState = CheckState.UNKNOWN
    findings: tuple[Finding, ...] = ()
    detail: str = ""
    raised: bool = False


class _Running:
    """One row with its state."""

    def __init__(self, row: Check, *, skipped: bool = False) -> None:
        self.row = row
        self.kept = Kept()
        self.stats = CheckStats()
        self.result: CheckResult | None = None
        self.current: asyncio.Task[CheckResult] | None = None
        self.stuck: _Sample | None = None  # a sample that outlived its deadline and still holds its thread
        self.function: CheckFunction | None = _skipped if skipped else None
        self.saved: Any = None  # of the samples that are in the book
        self._lock = threading.Lock()
        self._busy = self._closed = False

    def begin(self) -> None:
        self._busy = True

    def end(self) -> None:
        """The sample's thread uses what is kept no more: what was closed meanwhile is let go of now."""
        with self._lock:
            self._busy = False
            if self._closed:
                self.kept.close()

    def close(self) -> None:
        """Let go of what is kept, but not under a thread that uses it: its descriptors would become another's.
        Of that one only the child is ended, which would stay behind where a driver hangs."""
        with self._lock:
            self._closed = True
            if self._busy:
                self.kept.abandon()
            else:
                self.kept.close()


class CheckRunner:
    """All checks of this machine. Its methods belong to one event loop.

    `on_result` is called with each new result. The findings of a result are all that the check knows to
    be wrong now (folded, with counts), not only what its last sample saw. `root`: of the node, see node_root.py.
    """

    def __init__(
        self,
        settings: Settings,
        paths: Iterable[str] = (),
        clock: Clock = system_now,
        *,
        checks: Sequence[Check] | None = None,  # default: all, with those of the settings
        on_result: Callable[[CheckResult], None] | None = None,
        root: str = "",
    ) -> None:
        self._root = root
        self.boot_id = boot_id()
        self.book = FindingBook(self.boot_id)
        self.on_result = on_result
        self._settings = with_shape(settings)
        self._paths = tuple(paths)
        self._clock = clock
        rows = all_checks(settings) if checks is None else checks
        self._running = {row.name: _Running(row, skipped=row.name in settings.skip_checks) for row in rows}
        self._began_s = clock().mono_s
        self.over: tuple[
            CheckResult, ...
        ] = ()  # the last word of checks that `restore` found and are no more

    # ---------------------------------------------------------------- what others set and read

    def set_paths(self, paths: Iterable[str]) -> None:
        """The paths whose file systems the disk check watches, besides /tmp and /dev/shm."""
        self._paths = tuple(dict.fromkeys(paths))

    @property
    def stats(self) -> dict[str, CheckStats]:
        return {name: running.stats for name, running in self._running.items()}

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Counters that checks keep themselves: {"kernel": {"lost": 0, ...}}."""
        return {name: dict(running.kept.counters) for name, running in self._running.items()}

    def measures(self) -> list[Measure]:
        """The newest numbers of all checks."""
        return [measure for running in self._running.values() for measure in running.kept.measures]

    def results(self) -> list[CheckResult]:
        """The newest result of each check that has run."""
        return [running.result for running in self._running.values() if running.result is not None]

    def snapshot(self) -> bytes:
        """JSON to give to `restore` after a restart."""
        saved = {name: running.saved for name, running in self._running.items() if running.saved}
        return msgspec.json.encode(Snapshot(self.book.state(), saved))

    def late(self, now: Now) -> list[str]:
        """Checks whose newest result is older than their interval and deadline allow: nobody looks any more."""
        late = []
        for name, running in self._running.items():
            seen_s = running.result.at_mono_s if running.result is not None else self._began_s
            pause_s = max(running.row.interval_s, WOKEN_INTERVAL_S) * (1 + JITTER)
            if now.mono_s - seen_s > pause_s + running.row.deadline_s + LATE_S:
                late.append(name)
        return late

    def restore(self, data: bytes) -> bool:
        """Take up a snapshot; after a new boot the book keeps what a boot does not end, and the checks begin anew.

        False: it is damaged, and nothing was taken up.
        """
        try:
            snapshot = msgspec.json.decode(data, type=Snapshot)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("check_snapshot_damaged", error=str(error))
            return False
        # A sampled finding whose check is no more would stay for ever; so it would with who was told of it.
        checks = {one.check for one in snapshot.book.findings if one.component is not Component.AGENT}
        self.over = tuple(_over(name, self._clock()) for name in sorted(checks - self._running.keys()))
        known = tuple(one for one in snapshot.book.findings if one.event or one.check in self._running)
        self.book.restore(msgspec.structs.replace(snapshot.book, findings=known), self._clock())
        if snapshot.book.boot_id != self.boot_id:
            return True
        for name, saved in snapshot.saved.items():
            if name in self._running:
                running = self._running[name]
                running.saved = saved
                if running.kept.saved is None:
                    running.kept.saved = saved
        return True

    def seen(self, name: str, findings: Iterable[Finding]) -> None:
        """Take in what was seen of a check's subject between two samples, and tell it. It is no sample itself."""
        running, now = self._running[name], self._clock()
        self.book.add([_stamped(finding, now, self.boot_id) for finding in findings], now)
        last = running.result
        sampled_s = last.at_mono_s if last is not None else 0.0
        state, detail = (last.state, last.detail) if last is not None else (CheckState.OK, "")
        self._publish(running, state, detail, Now(sampled_s, now.wall_s))

    # ---------------------------------------------------------------- running

    async def run(self) -> None:
        """Sample every check on its interval until cancelled, then let go of what the checks hold."""
        for running in self._running.values():
            running.kept.resident = True
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._loop(running)) for running in self._running.values()
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            tasks += [running.current for running in self._running.values() if running.current is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.close()

    def close(self) -> None:
        """Close readers and children. A thread that hangs in a check is a daemon and ends with the process."""
        for running in self._running.values():
            running.close()

    async def _loop(self, running: _Running) -> None:
        while True:
            await self._sample(running)
            kept = running.kept
            if kept.unfinished:
                continue
            interval_s = max(running.row.interval_s, 0.0 if kept.wake_fd is None else WOKEN_INTERVAL_S)
            again_s, kept.again_s = kept.again_s, None
            if again_s is not None:
                interval_s = min(interval_s, again_s)
            await self._pause(kept.wake_fd, interval_s * random.uniform(1 - JITTER, 1 + JITTER))

    @staticmethod
    async def _pause(wake_fd: int | None, seconds: float) -> None:
        """Wait for the interval, or until the check's descriptor has something to read."""
        if wake_fd is None:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        awake = asyncio.Event()
        loop.add_reader(wake_fd, awake.set)
        try:
            async with asyncio.timeout(seconds):
                await awake.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(wake_fd)

    async def check_now(
        self, names: Iterable[str] = (), max_age_s: float = 10.0, within_s: float | None = None
    ) -> list[CheckResult]:
        """Results younger than `max_age_s` of the checks with these names or components (all quick ones if empty).

        Fresh results are returned as they are; the others are sampled side by side. `within_s`: no quick check is
        waited for any longer; who asks so decides now, and a card that does not answer is not one to begin a job on.
        Raises KeyError for an unknown name.
        """
        rows = (
            select(tuple(names), tuple(running.row for running in self._running.values()))
            if names
            else self._quick_rows()
        )
        now_s = self._clock().mono_s
        results: list[CheckResult | Coroutine[Any, Any, CheckResult]] = []
        for row in rows:
            running = self._running[row.name]
            fresh = running.result is not None and now_s - running.result.at_mono_s < max_age_s
            own_s = None if row.slow else within_s
            results.append(running.result if fresh and running.result else self._whole(running, own_s))
        waiting = [one for one in results if not isinstance(one, CheckResult)]
        sampled = iter(await asyncio.gather(*waiting))
        return [one if isinstance(one, CheckResult) else next(sampled) for one in results]

    async def check_anew(self, name: str) -> CheckResult:
        """The result of a sample that begins after this call: what happened before it is in it."""
        running = self._running[name]
        if running.current is not None:
            await asyncio.wait({running.current})
        running.kept.anew = True
        return await self._sample(running)

    def _quick_rows(self) -> list[Check]:
        return [running.row for running in self._running.values() if not running.row.slow]

    async def _whole(self, running: _Running, within_s: float | None) -> CheckResult:
        """A sample, and more of them while a check has not read all that is there."""
        began_s, left_s = self._clock().mono_s, within_s
        result = await asyncio.shield(self._start(running, left_s))
        for _ in range(MAX_ROUNDS):
            if within_s is not None:
                left_s = began_s + within_s - self._clock().mono_s
            if running.kept.unfinished and (left_s is None or left_s > 0):
                result = await asyncio.shield(self._start(running, left_s))
        return result

    def _start(self, running: _Running, within_s: float | None = None) -> asyncio.Task[CheckResult]:
        """The sample that is under way, or a new one."""
        if running.current is None or running.current.done():
            running.current = asyncio.create_task(self._sample_once(running, within_s))
        return running.current

    async def _sample(self, running: _Running) -> CheckResult:
        return await asyncio.shield(self._start(running))

    async def _sample_once(self, running: _Running, within_s: float | None) -> CheckResult:
        row, stats = running.row, running.stats
        deadline_s = row.deadline_s if within_s is None else min(row.deadline_s, within_s)
        if within_s is not None and row.component is Component.GPU:
            # Not before the time is over: a busy machine is slow too.
            deadline_s = running.kept.within_s = within_s
        started = self._clock()
        if running.stuck is not None and running.stuck.done.done():
            # It came back: the state it saw is old, but what happened will not be told a second time.
            events = [finding for finding in running.stuck.findings if finding.event]
            self.book.add([_stamped(finding, started, self.boot_id) for finding in events], started)
            running.stuck = None
        sample = running.stuck
        if sample is None:
            stats.runs += 1
            sample = self._launch(running, started)
            await asyncio.wait((sample.done,), timeout=deadline_s)
        now = self._clock()
        stats.last_took_s = now.mono_s - started.mono_s
        hang = _hangs(row, now, self.boot_id, deadline_s, decides_now=within_s is not None)
        if not sample.done.done():
            if running.stuck is None:
                stats.timeouts += 1
                log.warning("check_hangs", check=row.name, deadline_s=deadline_s)
            running.stuck = sample
            running.kept.unfinished = False  # there is nothing to go on with before it comes back
            self.book.add([hang], now)
            return self._publish(running, CheckState.UNKNOWN, f"no answer within {deadline_s:g} s", now)
        stats.exceptions += sample.raised
        if sample.raised:
            running.kept.unfinished = False
        self.book.clear(hang.key)
        found = [_stamped(finding, now, self.boot_id) for finding in sample.findings]
        if sample.state is CheckState.UNKNOWN:
            # What a check that could not look does not show is not over, and what it shows is no better than it was.
            self.book.add([self._no_milder(finding) for finding in found], now)
        else:
            self.book.fold(row.name, found, now)
        running.saved = running.kept.saved  # with the fold: a snapshot has both or neither
        return self._publish(running, sample.state, sample.detail, now)

    def _no_milder(self, finding: Finding) -> Finding:
        standing = self.book.get(finding.key)
        if standing is None or standing.severity.order <= finding.severity.order:
            return finding
        kept = {"severity": standing.severity, "action": standing.action, "summary": standing.summary}
        return msgspec.structs.replace(finding, **kept)

    def _publish(self, running: _Running, state: CheckState, detail: str, now: Now) -> CheckResult:
        name = running.row.name
        findings = self.book.active(name)
        if state in (CheckState.OK, CheckState.FOUND):
            state = CheckState.FOUND if findings else CheckState.OK
        result = CheckResult(
            check=name,
            state=state,
            findings=findings,
            detail=storable(detail),
            took_s=running.stats.last_took_s,
            at_mono_s=now.mono_s,
        )
        running.result = result
        if self.on_result is not None:
            self.on_result(result)
        return result

    def _launch(self, running: _Running, now: Now) -> _Sample:
        """Call the check in a daemon thread: one that hangs in the kernel must not keep the process from ending."""
        loop = asyncio.get_running_loop()
        sample = _Sample(loop.create_future())
        look = Look(
            self._settings, self._paths, now, self.boot_id, running.kept, running.row.name, self._root
        )

        def finish() -> None:
            if not sample.done.done():
                sample.done.set_result(None)

        def work() -> None:
            _call(running, look, sample)
            running.end()
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass

        running.begin()
        try:
            threading.Thread(target=work, name=f"check-{running.row.name}", daemon=True).start()
        except RuntimeError as error:  # a limit of processes, or no memory: nothing was looked at
            running.end()
            sample.detail = str(error)
            finish()
        return sample


def _call(running: _Running, look: Look, sample: _Sample) -> None:
    """The boundary that isolates a check: whatever it raises becomes an unknown result, logged with its stack."""
    try:
        if running.function is None:
            running.function = import_module(running.row.module).check
        sample.findings = tuple(running.function(look))
        sample.state = CheckState.FOUND if sample.findings else CheckState.OK
        sample.detail = running.kept.detail
    except Absent as absent:
        sample.state, sample.detail = CheckState.ABSENT, str(absent)
    except Unknown as unknown:
        sample.state, sample.detail = CheckState.UNKNOWN, str(unknown)
        sample.findings = unknown.findings
    except Exception as error:  # noqa: BLE001
        sample.state, sample.detail, sample.raised = (
            CheckState.UNKNOWN,
            f"{type(error).__name__}: {error}",
            True,
        )
        log.error("check_raised", check=running.row.name, stack=traceback.format_exc())


def _over(check: str, now: Now) -> CheckResult:
    detail = "not looked at: the settings no longer have this check"
    return CheckResult(check=check, state=CheckState.ABSENT, detail=detail, at_mono_s=now.mono_s)


def _skipped(_: Look) -> list[Finding]:
    raise Absent("not looked at: skipChecks of the settings names it")


def _stamped(finding: Finding, now: Now, boot: str) -> Finding:
    """Sampled findings are seen now; events bring their own times."""
    finding = in_text(finding)
    if finding.event and finding.seen_mono_s:
        return finding
    return msgspec.structs.replace(
        finding,
        first_seen_wall_s=now.wall_s,
        last_seen_wall_s=now.wall_s,
        seen_mono_s=now.mono_s,
        boot_id=boot,
    )


def _hangs(row: Check, now: Now, boot: str, deadline_s: float, *, decides_now: bool) -> Finding:
    severe = decides_now and row.component is Component.GPU
    return Finding(
        check=row.name,
        component=Component.AGENT,
        entity=f"check {row.name}",
        code=NEVER_ANSWERS,
        severity=Severity.DEGRADED if severe else Severity.WARNING,
        action="CHECK_NODE",
        summary="The check does not answer: what it watches is not known to be healthy",
        evidence=(f"no answer within {deadline_s:g} s",),
        first_seen_wall_s=now.wall_s,
        last_seen_wall_s=now.wall_s,
        seen_mono_s=now.mono_s,
        boot_id=boot,
    )
