"""The agent of a node without a controller: runs all checks for months, serves what they say, survives restarts."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from msgspec import structs

from sentinel import rights
from sentinel.agent import state as node_state
from sentinel.agent.jobs import NodeJobs
from sentinel.agent.link import NodeLink
from sentinel.agent.pages import routes
from sentinel.checks.node_root import node_root
from sentinel.checks.runner import CheckRunner
from sentinel.cluster.local.processes import read_proc
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.metrics.registry import Metrics
from sentinel.service.control import Presence, listen, write_presence
from sentinel.service.health import Health, LagMeter, Watchdog
from sentinel.service.settings_watch import SettingsWatch
from sentinel.settings import Settings
from sentinel.util.clock import system_now
from sentinel.util.errors import PermanentError

log = structlog.get_logger(__name__)

SAVE_S = 10.0
SAVE_SOON_S = 1.0  # after a finding appeared or ended, or a save failed
LISTEN_AGAIN_S = 2.0
UNKNOWN_AGAIN_S = 3600.0  # a check that often cannot look must not fill the log
BROKE_SHOWN_S = 60.0
SERVICE_PAUSE_S = 1.0  # before a service that broke begins again
MAX_LINES = 20  # said of one result: a flood of findings is in /findings
CHECK = "agent"  # the check that the agent's own findings bear


class NodeAgent:
    """Made once per process. `folder` is its own, its lock is held; `run` ends at SIGTERM or SIGINT."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *,
        settings_file: str | None,
        paths: tuple[str, ...],
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.health = Health()
        self.folder = folder
        self._paths = (str(settings.state_path), *paths)
        self._say = say
        self._stop = asyncio.Event()
        self._watch = SettingsWatch(settings_file, settings)
        self.link = NodeLink(self)
        self.jobs = NodeJobs(self, self.link.reported)
        self._runner = self._new_runner(settings)
        self._checks: asyncio.Task[None] | None = None
        self._server: Any = None
        self._saved = b""
        self._changed = asyncio.Event()  # something that should be saved soon
        self._said_s: dict[str, float] = {}  # check -> when it was said last that it could not look
        self._standing: dict[str, dict[tuple[str, str, str], Finding]] = {}  # check -> by key

    @property
    def runner(self) -> CheckRunner:
        return self._runner

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._watch.wake)
        watchdog = self._watchdog()
        self._restore()
        self._presence("")
        services = {
            "checks": self._run_checks,
            "state": self._keep_saving,
            "settings": self._follow_settings,
            "page": self._serve,
            "control": self._answer,
            "controller": self.link.run,
            "jobs": self.jobs.run,
            "self-fence": self.jobs.fence.run,
            "heartbeat": LagMeter(self.health, lambda: self._beat(watchdog)).run,
        }
        tasks = [asyncio.create_task(self._kept(name, work), name=name) for name, work in services.items()]
        _notify("READY=1")
        self._say(f"watches this node; state in {self.folder}")
        lacks = rights.missing(self.settings.procfs)
        if lacks and self.settings.controller.addresses:  # half of them are for what a controller orders
            told = "; ".join(f"without {right.name}: {right.without}" for right in lacks).replace("`", "")
            self._say(f"lacks rights: {told}")
        try:
            await self._stop.wait()
        finally:
            _notify("STOPPING=1")
            self._watch.close()
            watchdog.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._save()
            if self._server is not None:
                await self._server.close()
            with contextlib.suppress(OSError):
                os.unlink(self.folder / "sentinel.json")

    async def _kept(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """A service that breaks begins again, counted, and told in /healthz for a while."""
        while True:
            try:
                return await work()
            except Exception as error:  # the named boundary of a service
                log.exception("service_broke", service=name)
                self.metrics.exception(name)
                self._say(f"{name} broke and begins again: {error!r}")
                self.health.trouble(name, f"{name} broke and began again: {error!r}")
                asyncio.get_running_loop().call_later(BROKE_SHOWN_S, self.health.well, name)
                await asyncio.sleep(SERVICE_PAUSE_S)

    def _watchdog(self) -> Watchdog:
        frozen = self.folder / "frozen.txt"
        if frozen.exists():
            self._say(f"the agent before was frozen and ended; where it hung: {frozen}.old")
            log.warning("was_frozen", stacks=f"{frozen}.old")
            os.replace(frozen, f"{frozen}.old")
        return Watchdog(frozen)

    @staticmethod
    def _beat(watchdog: Watchdog) -> None:
        watchdog.beat()
        _notify("WATCHDOG=1")

    def _presence(self, url: str) -> None:
        me = read_proc(os.getpid())
        write_presence(
            self.folder, Presence(pid=os.getpid(), start_ticks=me.start_ticks if me else 0, url=url)
        )

    # ------------------------------------------------------------ checks

    def _new_runner(self, settings: Settings) -> CheckRunner:
        runner = CheckRunner(settings, self._paths, on_result=self._checked, root=node_root(settings.procfs))
        self.metrics.measured = runner.measures
        return runner

    async def _run_checks(self) -> None:
        """The runner, again and again: new settings begin with a new one that knows what the old one knew."""
        while True:
            self._checks = asyncio.create_task(self._runner.run())
            try:
                await self._checks
            except asyncio.CancelledError:
                self._checks.cancel()
                await asyncio.gather(self._checks, return_exceptions=True)
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise

    def _checked(self, result: CheckResult) -> None:
        self.metrics.check(result)
        self.metrics.check_timeouts(result.check, self._runner.stats[result.check].timeouts)
        said_s = self._said_s.get(result.check)
        if result.state is CheckState.UNKNOWN and (
            said_s is None or result.at_mono_s - said_s > UNKNOWN_AGAIN_S
        ):
            self._say(f"cannot tell of {result.check}: {result.detail}")
            self._said_s[result.check] = result.at_mono_s
        self._tell(result.check, result.findings)
        self.link.checked(result)

    def _tell(self, check: str, findings: tuple[Finding, ...]) -> None:
        """Say which findings of a check are new, worse, or over."""
        before, now = self._standing.get(check, {}), {finding.key: finding for finding in findings}
        lines = []
        logged = 0  # a flood of findings must not become a flood of log lines
        for key, finding in now.items():
            if key not in before or before[key].severity is not finding.severity:
                evidence = f": {finding.evidence[-1]}" if finding.evidence else ""
                what = f"{finding.code}: {finding.summary.removeprefix(f'{finding.code}: ')}"
                lines.append(f"{finding.severity.value}: {finding.entity} {what}{evidence}")
                if (logged := logged + 1) <= MAX_LINES:
                    log.info(
                        "finding", severity=finding.severity.value, entity=finding.entity, code=finding.code
                    )
        for key, finding in before.items():
            if key not in now:
                lines.append(f"over: {finding.entity} {finding.code}")
                if (logged := logged + 1) <= MAX_LINES:
                    log.info("finding_over", entity=finding.entity, code=finding.code)
        if logged > MAX_LINES:
            log.info("findings_changed", check=check, more=logged - MAX_LINES)
        self._standing[check] = now
        if lines:
            self._changed.set()
        for line in lines[:MAX_LINES]:
            self._say(line)
        if len(lines) > MAX_LINES:
            self._say(f"and {len(lines) - MAX_LINES} more changes: see /findings")

    def trouble(self, code: str, entity: str, summary: str, evidence: str, action: str) -> None:
        """The agent cannot do its work: a notice that /healthz tells too."""
        self.health.trouble(code, f"{summary}: {evidence}")
        self.notice(code, entity, summary, evidence, action)

    def notice(
        self, code: str, entity: str, summary: str, evidence: str, action: str, *, event: bool = False
    ) -> None:
        """A finding about the agent itself, which stands until `well` is called; an `event` as those of checks do."""
        now = system_now()
        finding = Finding(
            check=CHECK,
            component=Component.AGENT,
            entity=entity,
            code=code,
            severity=Severity.WARNING,
            action=action,
            summary=summary,
            evidence=(evidence,),
            event=event,
            first_seen_wall_s=now.wall_s,
            last_seen_wall_s=now.wall_s,
            seen_mono_s=now.mono_s,
            boot_id=self._runner.boot_id,
        )
        self._runner.book.add([finding], now)
        self._tell_own()

    def well(self, code: str, entity: str) -> None:
        self.health.well(code)
        book = self._runner.book
        if book.clear((Component.AGENT.value, entity, code)):
            self._tell_own()

    def _tell_own(self) -> None:
        found = tuple(self._runner.book.active(CHECK))
        self._tell(CHECK, found)
        state = CheckState.FOUND if found else CheckState.OK
        self.link.checked(
            CheckResult(check=CHECK, state=state, findings=found, at_mono_s=system_now().mono_s)
        )

    # ------------------------------------------------------------ what a person asks

    async def _answer(self) -> None:
        """`sentinel release` reaches the agent by a socket in its folder, which only the agent's user may enter."""
        server = await listen(self.folder, self._asked)
        async with server:
            await server.serve_forever()

    async def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("do") != "release":
            return {"ok": False, "text": f"unknown request {request.get('do')!r}"}
        ended, text = self._runner.book.release(str(request.get("entity", "")))
        if ended:
            self._say(text)
            self._changed.set()
        return {"ok": ended, "text": text}

    # ------------------------------------------------------------ state

    def _restore(self) -> None:
        try:
            data = node_state.read(self.folder)
            if data is None or self._runner.restore(data):
                return
            raise node_state.Damaged("it does not hold what checks save")
        except node_state.Damaged as damage:
            try:
                aside = f"kept as {node_state.set_aside(self.folder)}"
            except OSError as error:
                aside = f"could not be set aside: {error.strerror}"
            self._say(f"{self.folder / node_state.FILE} is damaged ({damage}); {aside}; begins anew")
            log.warning("agent_state_damaged", error=str(damage))
        except OSError as error:
            self._say(f"{self.folder / node_state.FILE}: {error.strerror}; begins anew")

    async def _keep_saving(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_S):
                    await self._changed.wait()
            await asyncio.sleep(SAVE_SOON_S)
            self._changed.clear()
            self._save()

    def _save(self) -> None:
        entity = str(self.folder)
        snapshot = self._runner.snapshot()
        if snapshot == self._saved and "state-not-saved" not in self.health.troubles:
            return
        try:
            node_state.write(self.folder, snapshot)
        except OSError as error:
            self.metrics.record_failed()
            log.warning("agent_state_not_saved", error=str(error))
            self.trouble(
                "state-not-saved", entity, "What the agent knows cannot be saved", str(error), "FREE_SPACE"
            )
            self._changed.set()
            return
        self._saved = snapshot
        self.metrics.records_saved()
        self.well("state-not-saved", entity)

    # ------------------------------------------------------------ settings

    async def _follow_settings(self) -> None:
        entity = self._watch.file or "settings"
        async for outcome in self._watch.changes():
            self.metrics.settings_read(outcome.what)
            log.info("settings_read", outcome=outcome.what, problem=outcome.problem)
            if outcome.what == "refused":
                problem = " ".join(outcome.problem.split())
                self._say(f"new settings refused, the old ones stay in force: {problem}")
                self.trouble(
                    "settings-refused", entity, "The new settings are refused, older ones are in force",
                    problem, "CHECK_SETTINGS",
                )  # fmt: skip
                continue
            if outcome.what == "applied":
                await self._apply(outcome.settings)
            self.well("settings-refused", entity)

    async def _apply(self, settings: Settings) -> None:
        """Take new settings. The state directory stays what it was at the start: its lock is held."""
        if settings.state_path != self.settings.state_path:
            self._say(f"stateDir stays {self.settings.state_path} until the agent is started again")
            settings = structs.replace(settings, state_dir=str(self.settings.state_path))
        old, listen = self._runner, self.settings.listen
        self.settings = settings
        self._runner = self._new_runner(settings)
        self._runner.restore(old.snapshot())
        for result in self._runner.over:
            self.link.checked(result)
        for finding in self._runner.book.active("shape"):  # judges the settings alone, and at once again
            self._runner.book.clear(finding.key)
        if self._checks is not None:
            self._checks.cancel()
        if settings.listen != listen and self._server is not None:
            await self._server.close()
            self._server = None
        self._say("new settings are in force")

    # ------------------------------------------------------------ page

    async def _serve(self) -> None:
        """Keep listening where the settings say; a port that is taken is tried again, and told meanwhile."""
        while True:
            listen = self.settings.listen
            if self._server is None and listen:
                from sentinel.web.server import serve_routes

                try:
                    self._server = await serve_routes(listen, routes(self), self.metrics)
                except PermanentError as error:
                    self.trouble(
                        "cannot-listen",
                        "agent",
                        "Metrics and health are not served",
                        str(error),
                        "CHECK_SETTINGS",
                    )
                else:
                    self.well("cannot-listen", "agent")
                    self._presence(self._server.url)
                    self._say(f"metrics, health and findings on {self._server.url}")
            await asyncio.sleep(LISTEN_AGAIN_S if self._server is None and listen else SERVICE_PAUSE_S)


def _notify(state: str) -> None:
    """Tell systemd (sd_notify(3)), where it asked to be told."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
