"""The jobs of a cluster: the controller of jobs, where others than Sentinel start, stop, scale and delete them too."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from msgspec import structs

from sentinel.cluster.base import RankProcess
from sentinel.controller.jobs.fold import Controller
from sentinel.core.decision import incidents, policy
from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import Finding
from sentinel.core.job import hold
from sentinel.core.job import orders as job_orders
from sentinel.core.job.save_pace import SavePace
from sentinel.core.model import Incident, IncidentKind, JobState, Phase, Placed, ProtectedJob, RankPlace
from sentinel.core.policy_model import Policy
from sentinel.core.recovery import budget, transitions
from sentinel.core.recovery.events import Event, Fault, GivenUp, JobGone, Plan, Rescaled, StartWaits
from sentinel.core.reports import RankExit, Report
from sentinel.core.triage.case import Struck

log = structlog.get_logger()

# Why an incident may not be opened now; "": it may.
May = Callable[[ProtectedJob, policy.Open], str]
SAVES_PER_S = 20.0  # of what is learnt of jobs, all together: each is a request to the API server
HELD_BACK = "HeldBack"  # of the record, while a brake or a pause keeps it from being recovered
_RUNS = frozenset({Phase.SAVING, Phase.VERIFYING})
_DOWN = frozenset({Phase.STOPPING, Phase.PRECHECKING, Phase.STARTING})


class JobsController(Controller):
    """What jobs' pods and objects show is told by its owner, a look at each of them after the other."""

    def __init__(
        self,
        *args: Any,
        may: May,
        holds: Callable[[str, Iterable[int]], bool],
        others: Callable[[], Iterable[Struck]],
        **more: Any,
    ) -> None:
        """`holds(job, ranks)`: does one of these keep its container after its command has failed, or its failed pod?
        `others`: what all jobs have met lately, and where."""
        super().__init__(*args, **more)
        self._may, self._holds, self._others = may, holds, others
        self._held: dict[str, str] = {}  # job -> what its open decision waits for
        self._pace = SavePace(SAVES_PER_S)  # of what is learnt of jobs

    def add(self, job: ProtectedJob, incidents: list[Incident]) -> JobPicture:
        picture = super().add(job, incidents)
        picture.others = self._others
        return picture

    def runs(self, name: str) -> bool:
        """Is the incarnation meant to run now, so that what its pods do is its own doing?"""
        picture = self.pictures[name]
        incident = picture.incident
        if picture.job.state.final or (incident is None and picture.job.state is JobState.QUEUED):
            return False
        chosen = incident is not None and incident.kind is IncidentKind.CHOSEN
        return incident is None or incident.phase in _RUNS or (chosen and incident.phase is Phase.PRECHECKING)

    # ------------------------------------------------------------ what its pods and its object show

    def appeared(
        self, name: str, ranks: Sequence[RankProcess], size: int, reason: str, sentence: str
    ) -> None:
        """It runs, by no doing of Sentinel: a first start, a person's resume, a restart by its own operator."""
        picture = self.pictures[name]
        now, job = self._clock(), picture.job
        first = job.incarnation < job.first_incarnation
        job = structs.replace(
            job,
            incarnation=job.incarnation + 1,
            size=size,
            # Of another size than Sentinel gave it: that is what its people want now, and it does not grow beyond.
            original_size=size if first or size != job.size else job.original_size,
            state=JobState.RUNNING,
            reason=reason,
            sentence=sentence,
            inner_restarts=0,
            run_s=job.run_time_s(now),
            started_mono_s=now.mono_s,
            started_wall_s=now.wall_s,
        )
        if picture.incident is not None:  # goes on with these ranks, and with no other size than this one
            size_is = {"size": size, "from_size": size} if size != picture.job.size else {}
            picture.incident = structs.replace(picture.incident, incarnation=job.incarnation, **size_is)
            self._records.save(incidents=[picture.incident])
            self.mail.keep(picture.incident, job)
        self._save_job(picture, job)
        picture.begin_incarnation(now)
        self._runs_with(picture, ranks)
        self._event(job, reason, sentence)
        self.cycle((name,))

    def _runs_with(self, picture: JobPicture, ranks: Sequence[RankProcess]) -> None:
        picture.alive = {rank.rank for rank in ranks}
        self._node.follow(picture.job, list(ranks))

    def ended(self, name: str, exits: Sequence[RankExit], report: Report) -> None:
        """Ranks that have ended, behind what their logs say. Those that a stop of ours ended are no loss."""
        incident = self.pictures[name].incident
        stopping = incident is not None and incident.phase is Phase.STOPPING
        told = [
            structs.replace(gone, stopped_by_us=True) if stopping and not gone.ok else gone for gone in exits
        ]
        self.fold(structs.replace(report, exits=tuple((name, gone) for gone in told)))

    def succeeded(self, name: str, report: Report, sentence: str) -> None:
        """Its kind says that it is done: ranks whose end nobody saw have ended well. One that had ended otherwise was
        no loss, unless it was told to save: then the end of the job may be no success."""
        picture = self.pictures[name]
        now, job, incident = self._clock(), picture.job, picture.incident
        if incident is not None and incident.kind is IncidentKind.FORCED and incident.phase in _DOWN:
            told_to_save = incident.save is not None and incident.save.ranks
            # What led to it is known by its first step: a start that was tried since began an incarnation anew.
            after_save = incident.steps[0].reason == policy.ENDED_BY_SAVE
            if not told_to_save and not after_save and picture.ended_by_save() is None:
                self._cancel(picture, "JobFinished", sentence)
                self._finish(picture, policy.Finish("Succeeded", sentence, JobState.SUCCEEDED, 0))
            return
        picture.succeeded_as = sentence
        left = [rank for rank in range(job.size) if rank not in picture.exits]
        if job.state is JobState.QUEUED:
            job = structs.replace(job, state=JobState.RUNNING)
            self._save_job(picture, job)
        exits = [RankExit(rank=rank, incarnation=job.incarnation, at_s=now.mono_s, code=0) for rank in left]
        self.ended(name, exits, report)

    def withdrawn(self, name: str, reason: str, sentence: str) -> None:
        """Others stopped it, or have let it run though a recovery had stopped it: it is theirs, nothing that its pods
        did is a fault, and no recovery of it is left."""
        picture = self.pictures[name]
        self._cancel(picture, reason, sentence)
        self._held.pop(name, None)
        now, job = self._clock(), picture.job
        picture.exits.clear()
        picture.alive.clear()
        job = structs.replace(
            job,
            state=JobState.QUEUED,
            reason=reason,
            sentence=sentence,
            run_s=job.run_time_s(now),
            started_mono_s=None,
        )
        self._save_job(picture, job)
        self._event(job, reason, sentence)

    def _performed(self, picture: JobPicture, event: Event) -> None:
        if isinstance(event, JobGone):
            self.withdrawn(picture.job.name, event.reason, event.sentence)
        else:
            super()._performed(picture, event)

    def waits(self, name: str, reason: str, sentence: str) -> None:
        """Why it does not run yet; said once."""
        picture = self.pictures[name]
        if (picture.job.reason, picture.job.sentence) != (reason, sentence):
            self._save_job(picture, structs.replace(picture.job, reason=reason, sentence=sentence))
            self._event(picture.job, reason, sentence)

    # ------------------------------------------------------------ its start and its size

    def check_and_start(self, name: str, size: int) -> bool:
        """It was created suspended with `size` pods of ranks, and its owner asks for its start. False: not now."""
        picture = self.pictures[name]
        decision = job_orders.first_start(
            f"The job was created suspended: it is checked, and started when there is room for {size} pods."
        )
        if picture.job.policy.mode == "observe":
            self.waits(name, "Observed", "It waits to be checked and started, and is only observed.")
            return False
        allowed = self._allowed(picture, decision)
        if isinstance(allowed, policy.Nothing):
            return False
        self._save_job(picture, structs.replace(picture.job, size=size, original_size=size))
        self._act(picture, decision)
        return True

    def prechecked(self, name: str, found: str, sentence: str) -> None:
        """What a pre-check before a start that others make has found: told, and nothing rests on it."""
        self._event(self.pictures[name].job, found, sentence, warning=found != "PrecheckPassed")

    def rescaled(self, name: str, size: int) -> None:
        """Others changed what it asks for before its start."""
        self._fed(name, Rescaled(size, f"The job asks for {size} pods of ranks now."))

    def start_waits(self, name: str, waits: str) -> None:
        """What its start waits for in its queue; "": the queue has let it in."""
        self._fed(name, StartWaits(waits))

    def _fed(self, name: str, event: Event) -> None:
        picture = self.pictures[name]
        if picture.incident is not None and transitions.accepts(picture.incident, event):
            self._step(picture, picture.incident, event)

    def candidates(self) -> list[tuple[ProtectedJob, tuple[str, ...]]]:
        """Jobs that would grow if there were room, and what they avoid."""
        now = self._clock()
        return [
            (picture.job, policy.kept_out(picture))
            for picture in self.pictures.values()
            if policy.may_grow(picture, now) and len(picture.alive) >= picture.job.size
        ]

    def room_for(self, name: str, size: int) -> None:
        """There is room for so many ranks. 0: not for more than run."""
        picture = self.pictures.get(name)
        if picture is None:
            return
        picture.grows_to = size
        if size > picture.job.size:
            self.cycle((name,))
            picture.grows_to = 0  # acted on, or held back: the next look tells anew

    # ------------------------------------------------------------ how it ends

    def note(self, name: str, reason: str, sentence: str) -> None:
        self._event(self.pictures[name].job, reason, sentence, warning=True)

    def gone(self, name: str, sentence: str) -> None:
        """It was deleted. Its record stays, as long as records do."""
        picture = self.pictures[name]
        self._cancel(picture, "JobDeleted", sentence)
        if not picture.job.state.final:
            self._finish(picture, policy.Finish("JobDeleted", sentence, JobState.STOPPED, None))

    def vanished(self, job: ProtectedJob, sentence: str) -> None:
        """It went while nobody led: a recovery of it that is open is over, and not that of another one of its name."""
        for incident in self._records.incidents(job.name):
            if not incident.phase.final:
                gone, terms = JobGone("JobDeleted", sentence), policy.terms(job.policy)
                closed, _ = transitions.step(incident, gone, self._clock(), terms)
                self._records.save(incidents=[closed])
                self.mail.keep(closed, job)
        if not job.state.final:
            told = {"state": JobState.STOPPED, "reason": "JobDeleted", "sentence": sentence}
            self._records.save(jobs=[structs.replace(job, **told, started_mono_s=None)])
            self._event(job, "JobDeleted", sentence)

    def end(self, name: str, state: JobState, reason: str, sentence: str) -> None:
        """It has ended, and nothing is to be recovered."""
        self._finish(self.pictures[name], policy.Finish(reason, sentence, state, None))

    def drop(self, name: str) -> None:
        """It is not protected any more: nothing more is decided about it."""
        self._performer.cancel(name)
        for looks in self._looks:
            looks.forget(name)
        self.pictures.pop(name, None)
        self._held.pop(name, None)
        self._recorded_mono_s.pop(name, None)

    def _cancel(self, picture: JobPicture, reason: str, sentence: str) -> None:
        if picture.incident is not None:
            self._step(picture, picture.incident, JobGone(reason, sentence))

    def _progress_due(self, last_mono_s: float, now_mono_s: float) -> bool:
        due = super()._progress_due(last_mono_s, now_mono_s)
        return due and self._pace.due(len(self.pictures), last_mono_s, now_mono_s)

    # ------------------------------------------------------------ what is known besides

    def found(self, name: str, findings: list[Finding], back: bool) -> None:
        """All that is known now of the nodes that it uses. `back`: the nodes that it was kept off are well again."""
        picture = self.pictures[name]
        picture.findings, picture.entities_back = findings, back

    def placed(self, name: str, ranks: tuple[RankPlace, ...], probation: str = "") -> None:
        """Where the ranks of the running incarnation are; saved for who takes over. `probation`: which of those nodes
        came back lately, in a sentence: told once of each incarnation."""
        picture = self.pictures[name]
        placed, before = Placed(picture.job.incarnation, ranks), picture.job.placed
        if ranks and before != placed:
            self._save_job(picture, structs.replace(picture.job, placed=placed))
            if probation and (before is None or before.incarnation != placed.incarnation):
                self._event(picture.job, "NodesOnProbation", probation)

    def asks_for(self, name: str, gpus: int) -> None:
        """How many GPUs its pods ask for, on whatever nodes."""
        self.pictures[name].known_gpus = gpus

    def policy_is(self, name: str, now: Policy) -> None:
        """As it is now in force; a recovery that is under way goes on by it."""
        picture = self.pictures[name]
        before = picture.job.policy
        if before != now:
            self._save_job(picture, structs.replace(picture.job, policy=now))
            picture.timing.policy = now
            if picture.alive:  # agents go by it too
                self._node.follow(picture.job, [])
            if structs.replace(before, emails=now.emails) != now:
                self._event(
                    picture.job, "PolicyChanged", f"The policy {now.name} is in force, as it was changed."
                )

    # ------------------------------------------------------------ kept for a look inside

    def _act(self, picture: JobPicture, decision: policy.Decision) -> None:
        plan = self._plan_of_held(picture, decision)
        if plan is None:
            super()._act(picture, decision)
            return
        now, opened = self._clock(), isinstance(decision, policy.Open)
        if isinstance(decision, policy.Open):
            incident = incidents.open_incident(picture, decision, now, self._boot_id)
        else:
            assert picture.incident is not None
            incident = picture.incident
        until_s = hold.hold_until_wall_s(picture.job, now)
        picture.job = structs.replace(picture.job, hold_until_wall_s=until_s)
        self._step(picture, incident, GivenUp(plan), opened=opened)

    def _plan_of_held(self, picture: JobPicture, decision: policy.Decision) -> Plan | None:
        """Of a job that a stop would not start again, where a stop would end what its owner wants to look into."""
        job = picture.job
        lost = isinstance(decision, policy.Open) and decision.kind is IncidentKind.FORCED
        again = isinstance(decision, policy.Feed) and isinstance(decision.event, Fault)
        if job.policy.debug_hold_s is None or not (lost or again) or not picture.failed_exits:
            return None
        if again and picture.incident is not None and picture.incident.phase is not Phase.VERIFYING:
            return None
        if not self._holds(job.name, [gone.rank for gone in picture.failed_exits]):
            return None
        now, step = self._clock(), picture.reached
        plan = budget.plan_after_stop(job, picture.verdict(now), step, now)
        return None if plan.restart else plan

    @property
    def held_back(self) -> int:
        """Jobs with something to recover from that may not be acted on now."""
        return len(self._held)

    def held(self, name: str) -> bool:
        picture = self.pictures.get(name)
        return picture is not None and picture.job.hold_until_wall_s is not None

    def hold_ends(self, name: str, sentence: str) -> None:
        """Its containers are kept no longer than until now: whoever leads ends them."""
        picture = self.pictures[name]
        now_s = self._clock().wall_s
        until_s = min(now_s, picture.job.hold_until_wall_s or now_s)
        self._save_job(picture, structs.replace(picture.job, hold_until_wall_s=until_s))
        self._event(picture.job, "HoldEnded", sentence)

    def let_go(self, name: str) -> None:
        """None of its containers is left."""
        picture = self.pictures[name]
        self._save_job(picture, structs.replace(picture.job, hold_until_wall_s=None))

    # ------------------------------------------------------------ what others say to a decision

    def _allowed(self, picture: JobPicture, decision: policy.Decision) -> policy.Decision:
        name = picture.job.name
        if not isinstance(decision, policy.Open):
            if picture.job.state is not JobState.QUEUED:  # its first start is asked for beside the cycle
                self._goes_on(picture, "NotNeeded", "What it was held back for is over.")
            return decision
        if decision.kind not in (IncidentKind.CHOSEN, IncidentKind.FORCED):
            return decision
        refusal = self._may(picture.job, decision)
        if not refusal:
            self._goes_on(picture, decision.reason, decision.sentence)
            return decision
        if self._held.get(name) != refusal:
            self._held[name] = refusal
            sentence = f"{decision.sentence} Not acted on yet: {refusal}"
            log.info("held_back", job=name, reason=decision.reason, why=refusal)
            self._event(picture.job, HELD_BACK, sentence, warning=True)
            self._save_job(picture, structs.replace(picture.job, reason=HELD_BACK, sentence=sentence))
        return policy.Nothing(HELD_BACK, refusal)

    def _goes_on(self, picture: JobPicture, reason: str, sentence: str) -> None:
        """Nothing holds it back any more. Who led before may have written that something does."""
        self._held.pop(picture.job.name, None)
        if picture.job.reason == HELD_BACK:
            self._save_job(picture, structs.replace(picture.job, reason=reason, sentence=sentence))
