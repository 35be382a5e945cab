"""A controller with real records over a cluster that does, and withholds, what a test tells it to."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from sentinel.cluster.base import RankProcess, Room, SignalOutcome, StopOutcome
from sentinel.cluster.local.store import LocalStore
from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.model import Incident, JobState, Launch, Phase, ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import Checkpoint, Policy, Proof, Resume
from sentinel.core.recovery.events import EndRequested
from sentinel.core.reports import Files, Iteration, LogMatch, RankExit, RankReport, Report
from sentinel.core.stacks.flight_record import Stuck
from sentinel.local_run.controller import MachineController
from sentinel.metrics.registry import Metrics
from sentinel.rules.failures import failure_classes
from tests.waits import eventually, turns

DEADLINE_S = 120.0
CHECKPOINT = Checkpoint(timeout_s=60.0, proof=Proof(log_pattern="saved"))
RESUMABLE = Policy(resume=Resume(max_resumes=3, graceful_stop_s=30.0, checkpoint=CHECKPOINT), restart=None)
Hook = Callable[[], Any]


class FakeClock:
    def __init__(self) -> None:
        self.mono_s = 1000.0

    def __call__(self) -> Now:
        return Now(self.mono_s, 1_700_000_000.0 + self.mono_s)


class FakeCluster:
    """Ranks are numbers. `hooks` run inside a call and may wait, raise, or answer in its place; `calls` tells
    each call with the phase that the records had on disk at that moment."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.hooks: dict[str, Hook] = {}
        self.calls: list[tuple[str, Any, str]] = []
        self.running: dict[int, int] = {}  # incarnation -> ranks
        self.catches = True  # whether ranks have a handler for the save signal
        self.gpus = ["GPU a", "GPU b"]

    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]

    def of(self, name: str) -> list[Any]:
        return [what for called, what, _ in self.calls if called == name]

    async def _called(self, name: str, what: Any) -> Any:
        incidents = LocalStore(self.store.path, read_only=True).incidents()
        phase = incidents[-1].phase.value if incidents else ""
        self.calls.append((name, what, phase))
        hook = self.hooks.get(name)
        answer = hook() if hook is not None else None
        return await answer if asyncio.iscoroutine(answer) else answer

    async def start(
        self,
        job: str,
        launch: Launch | None,
        incarnation: int,
        size: int,
        env: dict[str, str],
        excluded: Sequence[str] = (),
    ) -> list[RankProcess]:
        await self._called("start", (incarnation, size, env))
        self.running[incarnation] = size
        return [RankProcess(rank=rank, pid=100 + rank, start_ticks=1, log_path="") for rank in range(size)]

    async def stop(self, job: str, incarnation: int, grace_s: float, ends: Callable[[], bool]) -> StopOutcome:
        outcome = await self._called("stop", (incarnation, grace_s))
        self.running.pop(incarnation, None)
        return outcome if isinstance(outcome, StopOutcome) else StopOutcome(gone=True)

    async def signal_ranks(
        self, job: str, incarnation: int, ranks: Iterable[int], name: str
    ) -> SignalOutcome:
        self.calls.append(("signal", (incarnation, tuple(ranks), name), ""))
        return SignalOutcome(sent=tuple(ranks))

    async def save_capable(self, job: str, incarnation: int, name: str) -> dict[int, bool]:
        if hook := self.hooks.get("save_capable"):
            hook()
        return dict.fromkeys(range(self.running.get(incarnation, 0)), self.catches)

    async def files(self, job: str, incarnation: int, cwd: str, pattern: str) -> Files:
        return {}

    async def room(
        self, job: ProtectedJob, size: int, excluded: tuple[str, ...], *, starts: bool = False
    ) -> Room:
        answer = await self._called("room", (size, excluded))
        fit = [gpu for gpu in self.gpus if gpu not in excluded]
        entities = dict(zip(range(size), fit, strict=False))
        return answer or Room(
            size=size, excluded=excluded, entities=entities, sentence="The pre-check passed."
        )

    def unpromise(self, job: str) -> None:
        self.calls.append(("unpromise", job, ""))

    async def stacks(self, job: str, incarnation: int, ranks: Iterable[int]) -> tuple[str, ...]:
        return await self._called("stacks", tuple(ranks)) or ("rank 0: all_reduce",)

    async def stuck(self, job: str, incarnation: int) -> Stuck | None:
        return await self._called("stuck", incarnation)

    async def release(self, job: str) -> None:
        self.calls.append(("release", job, ""))


class FakeLink:
    def __init__(self) -> None:
        self.drained: list[str] = []
        self.followed: list[tuple[int, int]] = []  # (incarnation, ranks)
        self.told_in_the_end: Callable[[], None] = lambda: None

    async def drain(self, job: str) -> None:
        self.drained.append(job)
        self.told_in_the_end()

    def follow(self, job: ProtectedJob, ranks: list[RankProcess]) -> None:
        self.followed.append((job.incarnation, len(ranks)))


class World:
    """One job of two ranks. `again` is a Sentinel that comes back after this one was killed."""

    def __init__(self, state: Path, policy: Policy = RESUMABLE, boot_id: str = "boot-1") -> None:
        self.state, self.policy, self.boot_id = state, policy, boot_id
        self.clock = FakeClock()
        self.store = LocalStore(state / "state.db")
        self.cluster = FakeCluster(self.store)
        self._begin()

    def _begin(self) -> None:
        self.link = FakeLink()
        self.said: list[str] = []
        self.ended: list[str] = []
        self.mails_woken = 0
        self.controller = MachineController(
            self.cluster,
            self.store,
            self.link,
            failure_classes(),
            self.clock,
            self.boot_id,
            metrics=Metrics(),
            say=lambda _, text: self.said.append(text),
            wake_mail=self._wake_mail,
            on_end=self.ended.append,
        )

    def _wake_mail(self) -> None:
        self.mails_woken += 1

    @property
    def picture(self) -> JobPicture:
        return self.controller.pictures["j"]

    @property
    def job(self) -> ProtectedJob:
        """As a new Sentinel would read it."""
        found = LocalStore(self.store.path, read_only=True).job("j")
        assert found is not None
        return found

    @property
    def incident(self) -> Incident:
        return LocalStore(self.store.path, read_only=True).incidents("j")[-1]

    async def launch(self, **more: object) -> None:
        given: dict[str, object] = {
            "policy": self.policy,
            "size": 2,
            "original_size": 2,
            "boot_id": self.boot_id,
            "launch": Launch(command=("train",), cwd=str(self.state), env={}, nproc=2),
        }
        self.controller.add(ProtectedJob(name="j", **(given | more)), [])  # type: ignore[arg-type]
        await self.controller.launch("j")

    async def again(self, *, boot_id: str = "") -> "World":
        """Sentinel was killed: its tasks are gone, its records and the job are not."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await turns()
        rebooted = bool(boot_id) and boot_id != self.boot_id
        self.boot_id = boot_id or self.boot_id
        self._begin()
        job = self.store.job("j")
        assert job is not None
        self.controller.add(job, self.store.incidents("j"))
        if rebooted:
            self.cluster.running.clear()
            self.controller.rebooted("j")
            return self
        size = self.cluster.running.get(job.incarnation, 0)
        ranks = [RankProcess(rank=rank, pid=100 + rank, start_ticks=1, log_path="") for rank in range(size)]
        self.controller.adopt("j", ranks, [], {})
        return self

    # ------------------------------------------------------------ what agents report

    def report(self, **more: object) -> None:
        self.controller.fold(
            Report(node="n", boot_id=self.boot_id, sequence=1, now=self.clock(), **more)  # type: ignore[arg-type]
        )

    def ends(self, *ranks: int, **how: object) -> None:
        given = how or {"signal": 9}
        incarnation, at_s = self.picture.job.incarnation, self.clock.mono_s
        gone = [RankExit(rank=rank, incarnation=incarnation, at_s=at_s, **given) for rank in ranks]  # type: ignore[arg-type]
        self.report(exits=tuple(("j", one) for one in gone))

    def steps(self, *numbers: int) -> None:
        incarnation, at_s = self.picture.job.incarnation, self.clock.mono_s
        told = [Iteration(at_s, number, 50.0, 100.0) for number in numbers]
        ranks = sorted(self.picture.alive)
        self.report(
            ranks=tuple(
                RankReport(job="j", incarnation=incarnation, rank=rank, iterations=told) for rank in ranks
            )
        )

    def prints_proof(self, line: str = "saved checkpoint at step 41") -> None:
        match = LogMatch(
            rule="save-proof",
            failure="proof",
            rank=0,
            incarnation=self.picture.job.incarnation,
            at_s=self.clock.mono_s,
            line=line,
            job="j",
        )
        self.report(matches=(match,))

    def checks(self, *findings: Finding) -> None:
        state = CheckState.FOUND if findings else CheckState.OK
        self.report(checks=(CheckResult(check="kernel", state=state, findings=findings),))

    # ------------------------------------------------------------ waiting

    async def until(self, what: Callable[[], Any], why: str = "") -> Any:
        """The first truthy answer; the controller's cycle turns meanwhile."""

        def turned() -> Any:
            if not (found := what()):
                self.controller.cycle()
            return found

        return await eventually(turned, lambda: f"{why}: {self.cluster.calls} {self.said}", DEADLINE_S, 0.005)

    async def phase(self, phase: Phase) -> Incident:
        await self.until(lambda: self.store.incidents("j") and self.incident.phase == phase, phase.value)
        return self.incident

    def at_rest(self) -> bool:
        """Has every effect that was begun come to its end?"""
        return asyncio.all_tasks() == {asyncio.current_task()}

    async def later(self, seconds: float) -> None:
        self.clock.mono_s += seconds
        self.controller.cycle()
        await turns()

    def end(self, grace_s: float = 30.0, *, save: bool = False) -> None:
        end = EndRequested(JobState.STOPPED, "Stopped", "Stopped by a person.", grace_s, save=save, code=130)
        self.controller.request_end("j", end)


def gpu_fault(entity: str = "GPU a", **more: object) -> Finding:
    given: dict[str, object] = {
        "check": "kernel",
        "component": Component.GPU,
        "code": "XID 79",
        "severity": Severity.FATAL,
        "action": "RESET_GPU",
        "summary": f"{entity} fell off the bus",
        "event": True,
    }
    return Finding(entity=entity, **(given | more))  # type: ignore[arg-type]


def without_proof(policy: Policy) -> Policy:
    assert policy.resume is not None
    return structs.replace(
        policy, resume=structs.replace(policy.resume, checkpoint=Checkpoint(timeout_s=60.0))
    )
