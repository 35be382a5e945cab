"""The jobs of one machine: the controller of jobs, where Sentinel itself starts them and leaves out what is broken."""

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog
from msgspec import structs

from sentinel.controller.jobs.fold import Controller
from sentinel.core.decision import policy, quarantine
from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import CheckResult, Finding, Severity
from sentinel.core.model import Budget, Cause, IncidentKind, JobState, Quarantine, Symptom, Verdict
from sentinel.core.recovery import transitions
from sentinel.core.recovery.events import Fault
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger()

START_TRIES = 5


class MachineController(Controller):
    """Its entities are the machine's GPUs: what their checks find holds for all jobs."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._findings: dict[str, tuple[Finding, ...]] = {}  # check -> what it finds
        self._isolated: set[str] = set()  # entities that this Sentinel isolated
        self._released: set[str] = set()  # entities that a person released

    # ------------------------------------------------------------ the first start, and the machine's own

    async def launch(self, name: str) -> None:
        """The first start of a job. Raises PermanentError with the reason where it cannot start."""
        picture = self.pictures[name]
        job = picture.job
        room = await self._cluster.room(job, job.size, job.excluded)
        if self._ended_unstarted(picture):
            return
        if room.size == 0:
            raise PermanentError(room.sentence, room.reason)
        self._event(job, "PrecheckPassed", room.sentence)
        job = structs.replace(
            job,
            incarnation=job.incarnation + 1,
            first_incarnation=job.incarnation + 1,
            size=room.size,
            excluded=room.excluded,
            state=JobState.RUNNING,
            reason="Started",
            sentence="The job runs.",
        )
        self._save_job(picture, job)
        picture.begin_incarnation(self._clock())
        await self._start_patiently(picture, room.env, room.entities)

    async def start_again(self, name: str) -> None:
        """A predecessor was killed between the record of the first start and the start itself."""
        picture = self.pictures[name]
        room = await self._cluster.room(picture.job, picture.job.size, picture.job.excluded)
        if room.size == 0:
            raise PermanentError(room.sentence, room.reason)
        await self._start_patiently(picture, room.env, room.entities)

    async def _start_patiently(
        self, picture: JobPicture, env: dict[str, str], entities: dict[int, str]
    ) -> None:
        """The first start has no recovery around it that would try again."""
        picture.starting = True
        try:
            for left in reversed(range(START_TRIES)):
                try:
                    return await self._performer.start_ranks(picture, env, entities)
                except TemporaryError as error:
                    self._metrics.effect_failed("DoStart", permanent=not left)
                    if not left:
                        raise PermanentError(f"the start failed: {error}", "StartFailed") from None
                    self._say(picture.job.name, f"the start failed, tries again: {error}")
                    await asyncio.sleep(error.delay_s)
                if self._ended_unstarted(picture):
                    return None
        finally:
            picture.starting = False

    def _ended_unstarted(self, picture: JobPicture) -> bool:
        """Ctrl-C may come before the first rank runs. Later it is the policy's to decide."""
        end = picture.end
        if end is not None:
            self._finish(picture, policy.Finish(end.reason, end.sentence, end.state, end.code))
        return end is not None

    def rebooted(self, name: str) -> None:
        """The machine was started again under the job: nothing of it is left, and that is no fault of its own."""
        picture = self.pictures[name]
        picture.exits.clear()
        picture.alive.clear()
        verdict = Verdict(
            symptom=Symptom.RANK_LOST,
            cause=Cause.NODE,
            failure="reboot",
            scope="node",
            sentence="The machine was started again while the job ran.",
            budget=Budget.INFRASTRUCTURE,
        )
        incident = picture.incident
        if incident is None:
            self._act(picture, policy.Open("Rebooted", verdict.sentence, IncidentKind.FORCED, verdict))
        elif transitions.accepts(incident, event := Fault(verdict, picture.job.last_step)):
            self._step(picture, incident, event)
        else:  # between two incarnations: the recovery goes on where it stood
            _, effect = transitions.resume(incident, self._clock(), policy.terms(picture.job.policy))
            self._performer.perform(picture, incident, effect)

    # ------------------------------------------------------------ what is known of the machine

    def release(self, entity: str) -> None:
        """A person ended the findings of this entity: its isolation, too, ends by their hand."""
        self._released.add(entity)

    def degrade(self, name: str, note: str) -> None:
        """Name a degraded mode of the running incarnation; its successor starts without."""
        picture = self.pictures[name]
        self._degrade(picture, tuple(dict.fromkeys((*picture.job.degraded, note))))

    def _fold_checks(self, results: Sequence[CheckResult]) -> bool:
        news = False
        for result in results:
            news |= result.findings != self._findings.get(result.check)
            self._findings[result.check] = result.findings
            self._metrics.check(result)
        if results:
            self._fold_findings(news)
        return news

    def _fold_findings(self, news: bool) -> None:
        standing = [finding for found in self._findings.values() for finding in found]
        if news:
            self._metrics.findings(standing)
        for picture in self.pictures.values():
            picture.findings = standing
            out = set(picture.job.excluded)
            waits = any(self._waits_for_check(entity) for entity in out)
            picture.entities_back = (
                bool(out)
                and not waits
                and not any(f.entity in out and f.severity.order >= Severity.DEGRADED.order for f in standing)
            )
            picture.grows_to = picture.job.original_size if picture.entities_back else 0
        changed = self._isolations()
        if changed:
            self._records.save(quarantines=changed)

    def _waits_for_check(self, entity: str) -> bool:
        """A check that isolated the entity has not looked again since Sentinel started."""
        record = self._quarantines.get(entity)
        return record is not None and any(f.check not in self._findings for f in record.findings)

    def _isolations(self) -> list[Quarantine]:
        left_out = {entity for picture in self.pictures.values() for entity in picture.left_out}
        changed = quarantine.changes(
            self._quarantines,
            left_out,
            self._isolated,
            [finding for found in self._findings.values() for finding in found],
            self._findings.keys(),
            self._released,
            self._clock(),
            self._boot_id,
        )
        for record in changed:
            if record.ended_wall_s is None:
                self._quarantines[record.entity] = record
                self._isolated.add(record.entity)
            else:
                del self._quarantines[record.entity]
                self._isolated.discard(record.entity)
                self._released.discard(record.entity)
            log.info("isolation", entity=record.entity, needs=record.needs, ended_by=record.ended_by or None)
        return changed
