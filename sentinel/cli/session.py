"""One protected job on this machine: the agent and the controller in one process, over the local cluster."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from msgspec import structs, to_builtins

from sentinel.agent import Agent
from sentinel.checks import gpus
from sentinel.checks.mounts import on_network
from sentinel.checks.runner import CheckRunner
from sentinel.cli.control import Lock, Presence, listen, write_presence
from sentinel.clock import boot_id, system_now
from sentinel.cluster.local.machine import LocalMachine
from sentinel.cluster.local.processes import read_proc
from sentinel.cluster.local.stop import STUCK_AFTER_S
from sentinel.cluster.local.store import LocalStore
from sentinel.controller import PROOF_RULE, Controller
from sentinel.core import recovery
from sentinel.core.budget import restarts_left
from sentinel.core.model import JobState, LogRule, Phase, ProtectedJob, RankExit, StageMail
from sentinel.core.triage_disk import may_be_a_failed_write
from sentinel.effects.proof import checkpoint_folder
from sentinel.errors import PermanentError, TemporaryError
from sentinel.failures import failure_classes
from sentinel.metrics import Metrics
from sentinel.settings import Settings

log = structlog.get_logger()

CYCLE_S = 0.25
CALM_CYCLE_S = 0.5  # while nothing is wrong: exits, matches and findings do not wait for it
LIVE_S = 1.0
FLUSH_MAIL_S = 15.0
# A mail's child takes a core for a third of a second, just when the new ranks want to start: it comes after them.
MAIL_AFTER_S = 1.0
KERNEL_LOG_S = 0.5
SERVICE_PAUSE_S = 1.0  # before a service that broke begins again
SAVE_CHECKS_S = 10.0
MIN_STUCK_AFTER_S = 2.0
KEEP_RECORDS_S = 30 * 86_400.0

# Exit codes that are not the job's own; docs/exit-codes.md explains them.
EXIT_EXPIRED = 124
EXIT_GAVE_UP = 125
EXIT_WARNED = 75
EXIT_STOPPED = 130
EXIT_CANNOT_START = 69


def ended_code(job: ProtectedJob) -> int:
    """The exit code of `sentinel` for a job that has ended."""
    if job.state == JobState.SUCCEEDED:
        return 0
    if job.state == JobState.EXPIRED:
        return EXIT_EXPIRED
    if job.exit_code is not None:
        return job.exit_code
    return EXIT_STOPPED if job.state == JobState.STOPPED else EXIT_GAVE_UP


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
        end_at_once: recovery.EndRequested | None = None,
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
        self._interrupts = 0
        self._checks_saved = b""
        self._mails_counted = (0, 0)
        self._rules: Any = None
        self._server: Any = None
        self._notifier: Any = None
        self._leftovers: Any = None
        self._metrics = Metrics()
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: dict[str, str] = {}  # part of Sentinel -> how it broke last
        # What outlives SIGKILL for as long as the job may take to stop is stuck.
        stuck_after_s = min(STUCK_AFTER_S, max(MIN_STUCK_AFTER_S, job.policy.graceful_stop_s))
        cluster = LocalMachine(
            settings.state_path, self._on_exit, self._on_supervisor_lost, stuck_after_s=stuck_after_s
        )
        cluster.precheck = self._precheck
        cluster.places = lambda: gpus.inventory(settings.sysfs)
        cluster.environment = lambda out: gpus.cuda_environment(gpus.inventory(settings.sysfs), out)
        self._cluster = cluster
        self._checks = CheckRunner(self._check_settings(), self._watched_paths())
        self._metrics.measured = self._checks.measures
        self._agent = Agent(
            socket.gethostname(),
            self._boot_id,
            system_now,
            lambda report: self._controller.fold(report),
            self._ruleset,
            metrics=self._metrics,
            output=terminal.output,
            look=cluster.look,
            read_kernel_log=self._read_kernel_log,
            load_positions=store.positions,
            save_positions=lambda positions: store.save(positions=positions),
        )
        self._controller = Controller(
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

    # ------------------------------------------------------------ life

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        picture = self._controller.add(self._job, self._store.incidents(self.name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        for name in self._job.policy.warning_signals:
            loop.add_signal_handler(signal.Signals[name], self._signalled, signal.Signals[name])
        control = await listen(self._folder, self._asked)
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
        from sentinel.cli.leftovers import Leftovers
        from sentinel.effects.notify import Notifier

        self._leftovers = Leftovers(self._store, self._settings.state_path, self.name)
        self._notifier = Notifier(
            self._settings,
            lambda: self._controller.pending_mail() + self._leftovers.pending(),
            self._record_mail,
            log_paths=lambda job: self._log_paths(),
        )
        self._store.prune(system_now().wall_s - KEEP_RECORDS_S)
        self._checks.on_result = self._agent.checked
        kept = self._store.positions(self._checks_key).get((0, 0))
        if kept is not None:
            self._checks.restore(kept)
        services = {
            "logs": self._agent.run,
            "checks": self._checks.run,
            "mail": self._notifier.run,
            "page": self._serve,
            "display": self._show,
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
        deadline = picture.timing.next_deadline(now)
        turn_s = CALM_CYCLE_S if picture.incident is None else CYCLE_S
        return turn_s if deadline is None else min(turn_s, max(0.01, deadline - now.mono_s))

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
        self._save_checks()
        self._checks.close()
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
        if not gone.ok and may_be_a_failed_write(gone):  # a disk may have filled since it was last looked at
            from sentinel.checks.disk import full_now

            if full := full_now(self._settings, self._watched_paths()):
                self._checks.seen("disk", full)
        self._agent.rank_ended(job, gone)

    def _on_supervisor_lost(self, job: str) -> None:
        self._terminal.say(
            "the job's supervisor was killed: the ranks run on, how they end will not be known"
        )
        note = "the job's supervisor was killed: exit statuses are unknown until the next start"
        self._controller.degrade(job, note)

    def _signalled(self, number: signal.Signals) -> None:
        policy = self._controller.pictures[self.name].job.policy
        if number == signal.SIGHUP:
            self._terminal.say("detached: the job goes on, and so does its protection")
            self._terminal.detach()
            return
        if number == signal.SIGINT:
            self._interrupts += 1
            grace_s = policy.graceful_stop_s if self._interrupts == 1 else 0.0
            text = "Stopped by Ctrl-C" + (
                f": {grace_s:.0f} s to end; Ctrl-C again kills it."
                if self._interrupts == 1
                else ", twice: killed."
            )
            self._request(JobState.STOPPED, "Stopped", text, grace_s, save=False, code=EXIT_STOPPED)
            return
        text = f"{number.name} was sent to Sentinel: saves, stops, and leaves nothing behind."
        self._request(JobState.STOPPED, "Warned", text, policy.graceful_stop_s, save=True, code=EXIT_WARNED)

    def _request(
        self, state: JobState, reason: str, text: str, grace_s: float, *, save: bool, code: int | None
    ) -> None:
        self._controller.request_end(
            self.name, recovery.EndRequested(state, reason, text, grace_s, save=save, code=code)
        )

    async def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        """What `stop`, `extend`, `attach` and, where there is no page, `status` ask over the control socket."""
        what = request.get("do")
        policy = self._controller.pictures[self.name].job.policy
        if what == "stop":
            grace_s = float(request.get("grace_s", policy.graceful_stop_s))
            save = bool(request.get("save", True))
            self._request(
                JobState.STOPPED, "Stopped", "Stopped by a person.", grace_s, save=save, code=EXIT_STOPPED
            )
            return {"ok": True, "text": f"{self.name} is being stopped"}
        if what == "extend":
            job = self._controller.extend(self.name, float(request["seconds"]))
            return {
                "ok": True,
                "text": f"{self.name} may run {job.extra_s:.0f} s longer than its maxDuration",
            }
        if what == "release":
            entity = str(request.get("entity", ""))
            ended, text = self._checks.book.release(entity)
            if ended:
                self._controller.release(entity)
            return {"ok": ended, "text": text}
        if what == "view":
            return {"ok": True, "view": to_builtins(self.view())}
        if what == "handover":
            self._handed_over = True
            self._ended.set()
            return {"ok": True, "text": "handed over"}
        return {"ok": False, "text": f"unknown request {what!r}"}

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

    async def _show(self) -> None:
        from sentinel.cli.terminal import Live

        checks_saved_s = system_now().mono_s
        while True:
            picture, now = self._controller.pictures[self.name], system_now()
            job = picture.job
            state = picture.incident.phase.value if picture.incident else job.state.value
            self._terminal.live(
                Live(
                    state=state,
                    step=picture.timing.last_step,
                    step_ms=picture.timing.step_ms,
                    ratio=picture.timing.ratio,
                    restarts_left=restarts_left(job, now),
                    time_left_s=picture.time_left_s(now),
                )
            )
            self._update_metrics(picture)
            if now.mono_s - checks_saved_s >= SAVE_CHECKS_S:
                checks_saved_s = now.mono_s
                self._save_checks()
                self._store.verify()
            await asyncio.sleep(LIVE_S)

    def _update_metrics(self, picture: Any) -> None:
        job, timing, now = picture.job, picture.timing, system_now()
        self._metrics.jobs({job.state: 1})
        hardware = [r.hardware_ms for r in timing.ranks.values() if r.hardware_ms is not None]
        self._metrics.job(
            self.name,
            iteration=timing.last_step,
            step_ms=timing.step_ms,
            hardware_ms=max(hardware, default=None),
            ratio=timing.ratio,
            restarts_left=restarts_left(job, now),
            time_left_s=picture.time_left_s(now),
        )
        wall_s = max(0.0, now.wall_s - job.created_wall_s)
        self._metrics.job_time(
            self.name, productive_s=max(0.0, picture.job.run_time_s(now) - picture.lost_s), wall_s=wall_s
        )
        self._metrics.degraded(len(self._degraded()))
        if self._notifier is not None:
            self._metrics.mails_waiting(self._notifier.waiting)
            for _ in range(self._notifier.mails_sent - self._mails_counted[0]):
                self._metrics.mail_sent()
            for _ in range(self._notifier.mails_failed - self._mails_counted[1]):
                self._metrics.mail_failed()
            self._mails_counted = (self._notifier.mails_sent, self._notifier.mails_failed)

    def _degraded(self) -> tuple[str, ...]:
        picture = self._controller.pictures[self.name]
        problems = [
            f"log of rank {r.rank}: {r.log_problem}" for r in picture.timing.ranks.values() if r.log_problem
        ]
        return (*self._store.degraded, *self._broken.values(), *picture.job.degraded, *problems)

    def view(self) -> Any:
        from sentinel.web.view import Protector, build_view, rank_rows

        picture, now = self._controller.pictures[self.name], system_now()
        url = self._server.url if self._server else ""
        return build_view(
            picture.job,
            now=now,
            boot_id=self._boot_id,
            incidents=self._store.incidents(self.name),
            events=self._store.events(self.name),
            ranks=rank_rows(picture, now),
            findings=picture.findings,
            degraded=self._degraded(),
            protector=Protector(
                pid=os.getpid(), url=url, loop_age_s=now.mono_s - self._controller.turned_mono_s
            ),
        )

    # ------------------------------------------------------------ helpers

    def _record_mail(self, incident_id: str, mail: StageMail) -> None:
        if not self._leftovers.record(incident_id, mail):
            self._controller.record_mail(incident_id, mail)

    @property
    def _checks_key(self) -> str:
        return f"{self.name}/checks"

    def _save_checks(self) -> None:
        """What the checks found and how far the kernel log was read: nothing is lost or told twice."""
        snapshot = self._checks.snapshot()
        if snapshot != self._checks_saved:
            self._checks_saved = snapshot
            self._store.save(positions={(self._checks_key, 0, 0): snapshot})

    async def _precheck(self, names: tuple[str, ...], max_age_s: float) -> Any:
        try:
            return await self._checks.check_now(names, max_age_s)
        except KeyError as error:
            raise TemporaryError(f"unknown check {error}") from None

    async def _read_kernel_log(self) -> None:
        """Whom the memory killer killed stands there before the process is gone. A hung check delays no restart."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._checks.check_anew("kernel"), KERNEL_LOG_S)

    def _wake_mail(self) -> None:
        if self._notifier is not None:
            asyncio.get_running_loop().call_later(MAIL_AFTER_S, self._notifier.wake)

    def _ruleset(self, job: ProtectedJob) -> Any:
        """Compiled when the first log is followed: the ranks are already running by then."""
        if self._rules is None:
            from sentinel.logs.ruleset import load_ruleset
            from sentinel.rules import RuleError

            extra = job.policy.log_rules
            checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
            if checkpoint is not None and checkpoint.proof is not None and checkpoint.proof.log_pattern:
                proof = LogRule(id=PROOF_RULE, pattern=checkpoint.proof.log_pattern, failure="proof")
                extra = (*extra, proof)
            cache = self._settings.state_path / "cache"
            try:
                self._rules = load_ruleset(extra, self._settings.rules_dir, cache)
            except RuleError as error:
                self._terminal.say(f"the added rules are left out: {error}")
                self._rules = load_ruleset(extra, "", cache)
        return self._rules

    def _watched_paths(self) -> list[str]:
        cwd = self._job.launch.cwd if self._job.launch else "/"
        return [cwd, str(self._settings.state_path), self._checkpoints() or cwd]

    def _checkpoints(self) -> str:
        checkpoint = self._job.policy.resume.checkpoint if self._job.policy.resume else None
        if checkpoint is None or self._job.launch is None:
            return ""
        return checkpoint_folder(self._job.launch.cwd, checkpoint.proof)

    def _check_settings(self) -> Settings:
        """Whether a checkpoint could be written is known before one is: on a network mount it is tried."""
        settings, folder = self._settings, self._checkpoints()
        if not folder or not on_network(folder, settings.procfs):
            return settings
        probes = (*settings.disk.probe_writes, folder)
        return structs.replace(settings, disk=structs.replace(settings.disk, probe_writes=probes))

    def _log_paths(self) -> list[str]:
        job = self._controller.pictures[self.name].job
        return [self._cluster.log_path(self.name, job.incarnation, rank) for rank in range(min(job.size, 8))]

    def _presence(self, url: str) -> None:
        me = read_proc(os.getpid())
        write_presence(
            self._folder, Presence(pid=os.getpid(), start_ticks=me.start_ticks if me else 0, url=url)
        )
