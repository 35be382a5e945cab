"""One protected job on this machine: the agent and the controller in one process, over the local cluster."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from msgspec import structs

from sentinel.agent.ranks import Agent
from sentinel.checks import gpus
from sentinel.cluster.local.machine import LocalMachine
from sentinel.cluster.local.processes import read_proc
from sentinel.cluster.local.stacks import unreadable
from sentinel.cluster.local.stop import STUCK_AFTER_S
from sentinel.cluster.local.store import LocalStore
from sentinel.controller.jobs import numbers as job_numbers
from sentinel.core.decision.blindness import NO_STACKS, needs_stacks
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Incident, JobState, Phase, ProtectedJob, StageMail
from sentinel.core.recovery.budget import restarts_left
from sentinel.core.recovery.events import EndRequested
from sentinel.core.reports import RankExit
from sentinel.core.triage.findings import OF_A_PROCESS
from sentinel.local_run.checks import SessionChecks
from sentinel.local_run.controller import MachineController
from sentinel.local_run.exit_codes import EXIT_CANNOT_START, ended_code
from sentinel.local_run.orders import SessionOrders
from sentinel.metrics.registry import Metrics
from sentinel.rules.failures import failure_classes
from sentinel.service.control import Lock, Presence, listen, write_presence
from sentinel.settings import Settings
from sentinel.util.clock import boot_id, system_now
from sentinel.util.errors import PermanentError

log = structlog.get_logger()

CYCLE_S = 0.25
CALM_CYCLE_S = 0.5  # while nothing is wrong: exits, matches and findings do not wait for it
LIVE_S = 1.0
FLUSH_MAIL_S = 15.0
# A mail's child takes a core for a third of a second, just when the new ranks want to start: it comes after them.
MAIL_AFTER_S = 1.0
SERVICE_PAUSE_S = 1.0  # before a service that broke begins again
SAVE_CHECKS_S = 10.0
MIN_STUCK_AFTER_S = 2.0
KEEP_RECORDS_S = 30 * 86_400.0  # of closed incidents and ended isolations, whatever became of their job
TIDY_S = 3600.0
TIDY_AGAIN_S = 1.0


class Quiet:
    """The terminal of a session that shows nothing."""

    def output(self, rank: int, data: bytes) -> None: ...
    def say(self, text: str) -> None: ...
    def live(self, live: Any) -> None: ...
    def detach(self) -> None: ...
    def close(self, timeout_s: float = 2.0) -> None: ...


class Session:
    """Made once per process. `run` returns the exit code."""

    def __init__(
        self,
        job: ProtectedJob,
        settings: Settings,
        store: LocalStore,
        lock: Lock,
        terminal: Any,
        *,
        fresh: bool,
        on_ready: Callable[[], None] = lambda: None,
        end_at_once: EndRequested | None = None,
    ) -> None:
        self.name = job.name
        self._job = job
        self._settings = settings
        self._store = store
        self._lock = lock
        self._terminal = terminal
        self._fresh = fresh
        self._on_ready = on_ready
        self._end_at_once = end_at_once
        self._folder = settings.state_path / "jobs" / job.name
        self._boot_id = boot_id()
        self._ended = asyncio.Event()
        self._handed_over = False
        self._rules: Any = None
        self._server: Any = None
        self._notifier: Any = None
        self._leftovers: Any = None
        self._metrics = Metrics()
        self._counted = (-1, -1)
        self._incidents: list[Incident] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._told_of_stacks = False
        self._broken: dict[str, str] = {}  # part of Sentinel -> how it broke last
        # What outlives SIGKILL for as long as the job may take to stop is stuck.
        stuck_after_s = min(STUCK_AFTER_S, max(MIN_STUCK_AFTER_S, job.policy.graceful_stop_s))
        cluster = LocalMachine(
            settings.state_path, self._on_exit, self._on_supervisor_lost, stuck_after_s=stuck_after_s
        )
        cluster.places = lambda: gpus.inventory(settings.sysfs)
        cluster.environment = lambda out: gpus.cuda_environment(gpus.inventory(settings.sysfs), out)
        self._cluster = cluster
        self._checks = SessionChecks(job, settings, store)
        cluster.precheck = self._checks.precheck
        self._metrics.measured = self._checks.runner.measures
        self._agent = Agent(
            socket.gethostname(),
            self._boot_id,
            system_now,
            lambda report: self._controller.fold(report),
            self._ruleset,
            metrics=self._metrics,
            output=terminal.output,
            look=cluster.look,
            read_kernel_log=self._checks.read_kernel_log,
            load_positions=store.positions,
            save_positions=lambda positions: store.save(positions=positions),
        )
        self._controller = MachineController(
            cluster,
            store,
            self._agent,
            failure_classes(),
            system_now,
            self._boot_id,
            metrics=self._metrics,
            say=lambda _, sentence: terminal.say(sentence),
            wake_mail=self._wake_mail,
            on_end=lambda _: self._ended.set(),
        )
        self._orders = SessionOrders(
            job.name, self._controller, self._checks.runner, terminal, self.view, self._hand_over
        )

    # ------------------------------------------------------------ life

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        picture = self._controller.add(self._job, self._store.incidents(self.name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._orders.signalled, number)
        for name in self._job.policy.warning_signals:
            loop.add_signal_handler(signal.Signals[name], self._orders.signalled, signal.Signals[name])
        control = await listen(self._folder, self._orders.asked)
        self._presence("")
        try:
            if self._fresh:
                await self._launch()
            else:
                await self._adopt()
            self._on_ready()
            self._start_services()
            if self._end_at_once is not None:
                self._controller.request_end(self.name, self._end_at_once)
            await self._loop()
        except PermanentError as error:
            return self._cannot_start(error)
        finally:
            control.close()
            await self._close()
        return self._exit_code(picture.job)

    async def _launch(self) -> None:
        await self._controller.launch(self.name)

    async def _adopt(self) -> None:
        found = await self._cluster.adopt(self.name)
        picture = self._controller.pictures[self.name]
        job, incident = picture.job, picture.incident
        if job.state == JobState.QUEUED and incident is None:  # the predecessor never came to its first start
            picture.end = self._end_at_once
            await self._controller.launch(self.name)
            return
        if found.rebooted and not job.state.final and found.incarnation == job.incarnation:
            self._controller.rebooted(self.name)
            return
        current = found.incarnation == job.incarnation
        ranks, ended, exits = (found.ranks, found.ended, found.exits) if current else ([], [], [])
        places = gpus.usable(gpus.inventory(self._settings.sysfs), job.excluded)
        entities = {r.rank: places[r.rank][1].entity for r in (*ranks, *ended) if r.rank < len(places)}
        if job.launch is not None and job.launch.nproc is None and len(places) > 1:
            entities = {}
        self._terminal.say(
            f"protects {self.name} again: incarnation {job.incarnation}, {len(ranks)} ranks run, {len(exits)} ended"
        )
        if ranks and not found.supervisor_alive:
            self._on_supervisor_lost(self.name)
        if found.ended_unknown and current:
            self._terminal.say("the supervisor of the job was killed: how these ranks ended is not known")
        if not current and incident is None and job.state == JobState.RUNNING:
            await self._controller.start_again(self.name)
            return
        self._controller.adopt(self.name, ranks, ended, entities)
        if found.half_started and incident is not None and incident.phase == Phase.STARTING:
            return  # no fault of the ranks: the start fails, and costs nothing
        for gone in exits:
            self._agent.rank_ended(self.name, gone)

    def _start_services(self) -> None:
        """What is not needed to start a rank comes after: mail, page, checks."""
        from sentinel.controller.effects.notify import Notifier
        from sentinel.local_run.leftovers import Leftovers

        self._leftovers = Leftovers(self._store, self._settings.state_path, self.name)
        self._notifier = Notifier(
            self._settings,
            lambda: self._controller.mail.pending() + self._leftovers.pending(),
            self._record_mail,
            log_paths=lambda job: self._log_paths(),
        )
        self._checks.runner.on_result = self._agent.checked
        self._checks.restore()
        services = {
            "logs": self._agent.run,
            "checks": self._checks.runner.run,
            "mail": self._notifier.run,
            "page": self._serve,
            "display": self._show,
            "ended jobs": self._tidy,
        }
        for part, work in services.items():
            self._tasks.append(asyncio.create_task(self._kept(part, work), name=part))

    async def _loop(self) -> None:
        ended = asyncio.create_task(self._ended.wait())
        try:
            while not ended.done():
                pause_s = CYCLE_S
                try:
                    self._controller.cycle()
                    pause_s = self._pause_s()
                except Exception as error:  # the named boundary: a job must not lose its protection for it
                    log.exception("control_loop_broke")
                    self._broke("control loop", error)
                await asyncio.wait((ended,), timeout=pause_s)
        finally:
            ended.cancel()

    async def _kept(self, part: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A service that breaks begins again."""
        while True:
            try:
                return await work()
            except Exception as error:  # the named boundary of a service
                log.exception("service_broke", service=part)
                self._broke(part, error)
                await asyncio.sleep(SERVICE_PAUSE_S)

    def _broke(self, part: str, error: BaseException) -> None:
        """Counted each time, said once, and named in `status`; the protection of the job goes on."""
        self._metrics.exception(part)
        note = f"a part of Sentinel broke and began again ({part}): {error!r}"
        if part not in self._broken:
            self._terminal.say(note)
        self._broken[part] = note

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What broke in a callback of the loop; asyncio would print a traceback."""
        error = context.get("exception") or RuntimeError(context["message"])
        log.error("event_broke", exc_info=error)
        self._broke("events", error)

    def _pause_s(self) -> float:
        """Until the next turn of the loop: a hang is judged when its time is up, not a quarter second later."""
        now, picture = system_now(), self._controller.pictures[self.name]
        deadline = picture.timing.hang.next_deadline(now)
        turn_s = CALM_CYCLE_S if picture.incident is None else CYCLE_S
        return turn_s if deadline is None else min(turn_s, max(0.01, deadline - now.mono_s))

    def _hand_over(self) -> None:
        self._handed_over = True
        self._ended.set()

    async def _close(self) -> None:
        job = self._controller.pictures[self.name].job
        await self._controller.close()
        if self._notifier is not None and not self._handed_over:
            waiting = await self._notifier.flush(FLUSH_MAIL_S)
            if waiting:
                self._terminal.say(
                    f"{waiting} mails wait; the next Sentinel of this state directory sends them"
                )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._checks.save()
        self._checks.runner.close()
        self._agent.close()
        if self._server is not None:
            await self._server.close()
        if job.state.final:
            await self._cluster.release(self.name)
        self._cluster.close()
        with contextlib.suppress(OSError):
            os.unlink(self._folder / "sentinel.json")
        self._store.verify()
        self._store.close()
        self._lock.release()

    # ------------------------------------------------------------ ends

    def _exit_code(self, job: ProtectedJob) -> int:
        if self._handed_over or not job.state.final:
            return 0
        self._terminal.live(None)
        if job.state == JobState.SUCCEEDED:
            return 0
        self._terminal.say(f"{self.name} ended: {job.state.value} ({job.reason}): {job.sentence}")
        return ended_code(job)

    def _cannot_start(self, error: PermanentError) -> int:
        picture = self._controller.pictures[self.name]
        job = structs.replace(
            picture.job, state=JobState.ERROR, reason=error.reason, sentence=str(error), started_mono_s=None
        )
        picture.job = job
        self._store.save(jobs=[job])
        self._terminal.say(f"{self.name} cannot start ({error.reason}): {error}")
        return {"CommandNotFound": 127, "CommandNotExecutable": 126}.get(error.reason, EXIT_CANNOT_START)

    # ------------------------------------------------------------ what comes in

    def _on_exit(self, job: str, gone: RankExit) -> None:
        self._checks.rank_ended(gone)
        self._agent.rank_ended(job, gone)

    def _on_supervisor_lost(self, job: str) -> None:
        note = "the job's supervisor was killed: the ranks run on, how they end will not be known until the next start"
        self._controller.degrade(job, note)

    # ------------------------------------------------------------ services

    async def _serve(self) -> None:
        if not self._settings.listen:
            return
        from sentinel.web.server import serve

        try:
            self._server = await serve(self._settings.listen, self.view, self._metrics)
        except PermanentError as error:
            self._terminal.say(f"no status page: {error}")
            return
        self._presence(self._server.url)
        self._terminal.say(f"{self.name}: status and metrics on {self._server.url}")

    async def _tidy(self) -> None:
        """What is old goes: at the start, and then each hour."""
        from sentinel.local_run.ended import sweep, tidy

        jobs_dir = self._settings.state_path / "jobs"
        while True:
            now_wall_s = system_now().wall_s
            self._store.prune(now_wall_s - KEEP_RECORDS_S)
            more = tidy(self._store, jobs_dir, self._settings.ended_jobs, now_wall_s)
            # A daemon: a disk that hangs must not keep the process from ending.
            threading.Thread(target=sweep, args=(jobs_dir,), name="sweep", daemon=True).start()
            await asyncio.sleep(TIDY_AGAIN_S if more else TIDY_S)

    async def _show(self) -> None:
        from sentinel.console.terminal import Live

        checks_saved_s = system_now().mono_s
        while True:
            picture, now = self._controller.pictures[self.name], system_now()
            job = picture.job
            state = picture.incident.phase.value if picture.incident else job.state.value
            self._terminal.live(
                Live(
                    state=state,
                    step=picture.timing.last_step,
                    iterations=picture.timing.made,
                    step_ms=picture.timing.step_ms,
                    ratio=picture.timing.ratio,
                    restarts_left=restarts_left(job, now),
                    time_left_s=picture.time_left_s(now),
                )
            )
            if not self._told_of_stacks and (note := self._no_stacks(picture)):
                self._told_of_stacks = True
                self._terminal.say(note)
            self._update_metrics(picture)
            if now.mono_s - checks_saved_s >= SAVE_CHECKS_S:
                checks_saved_s = now.mono_s
                self._checks.save()
                self._store.verify()
            await asyncio.sleep(LIVE_S)

    def _update_metrics(self, picture: Any) -> None:
        self._metrics.jobs({picture.job.state: 1})
        count = (picture.job.incidents, picture.job.incarnation)
        if count != self._counted:  # records are read when there is something new in them
            self._counted, self._incidents = count, self._store.incidents(self.name)
        self._metrics.job(self.name, job_numbers.numbers(picture, self._incidents, system_now()))
        self._metrics.degraded(len(self._degraded()))
        if self._notifier is not None:
            self._notifier.measure(self._metrics)

    def _degraded(self) -> tuple[str, ...]:
        picture = self._controller.pictures[self.name]
        problems = [
            f"log of rank {r.rank}: {r.log_problem}" for r in picture.timing.ranks.values() if r.log_problem
        ]
        if note := self._no_stacks(picture):
            problems.append(note)
        return (*self._store.degraded, *self._broken.values(), *picture.job.degraded, *problems)

    def _no_stacks(self, picture: JobPicture) -> str:
        """Looked at anew each time: the note goes when a person has done what it says."""
        why = unreadable(self._settings.procfs) if needs_stacks(picture) else ""
        return NO_STACKS + why if why else ""

    def view(self) -> Any:
        from sentinel.cluster.local.pods import groups_of
        from sentinel.web.view import Protector, build_view, rank_rows

        picture, now = self._controller.pictures[self.name], system_now()
        ranks = rank_rows(picture, now)
        killed = any(finding.code == OF_A_PROCESS for finding in picture.findings)
        url = self._server.url if self._server else ""
        return build_view(
            picture.job,
            now=now,
            boot_id=self._boot_id,
            incidents=self._store.incidents(self.name),
            events=self._store.events(self.name),
            ranks=ranks,
            findings=picture.findings,
            course=picture.timing.course.points(now),
            processes=picture.timing.hang.workers.pids(),
            groups=groups_of(row.pid for row in ranks if row.pid is not None) if killed else (),
            degraded=self._degraded(),
            phase=picture.timing.hang.phase(now),
            protector=Protector(
                pid=os.getpid(), url=url, loop_age_s=now.mono_s - self._controller.turned_mono_s
            ),
        )

    # ------------------------------------------------------------ helpers

    def _record_mail(self, incident_id: str, mail: StageMail) -> None:
        if not self._leftovers.record(incident_id, mail):
            self._controller.mail.record(incident_id, mail)

    def _wake_mail(self) -> None:
        if self._notifier is not None:
            asyncio.get_running_loop().call_later(MAIL_AFTER_S, self._notifier.wake)

    def _ruleset(self, job: ProtectedJob) -> Any:
        """Compiled when the first log is followed: the ranks are already running by then."""
        if self._rules is None:
            from sentinel.logs.ruleset import load_ruleset
            from sentinel.rules.tables import RuleError

            extra, formats = job.policy.rules, job.policy.timing_formats
            cache = self._settings.state_path / "cache"
            try:
                self._rules = load_ruleset(extra, self._settings.rules_dir, cache, formats)
            except RuleError as error:
                self._terminal.say(f"the added rules are left out: {error}")
                self._rules = load_ruleset(extra, "", cache, formats)
        return self._rules

    def _log_paths(self) -> list[str]:
        job = self._controller.pictures[self.name].job
        return [self._cluster.log_path(self.name, job.incarnation, rank) for rank in range(min(job.size, 8))]

    def _presence(self, url: str) -> None:
        me = read_proc(os.getpid())
        write_presence(
            self._folder, Presence(pid=os.getpid(), start_ticks=me.start_ticks if me else 0, url=url)
        )
