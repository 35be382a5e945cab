"""A look at one job of a cluster: what its object and its pods show becomes what the controller of jobs knows."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct, structs

from sentinel.cluster.base import RankProcess
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.cluster.kubernetes.job_records import JobRecords
from sentinel.controller.jobs.of_cluster import JobsController
from sentinel.core.decision.picture import JobPicture
from sentinel.core.job.look import Look
from sentinel.core.job.pod_end import rank_exit
from sentinel.core.job.state import KUEUE, Seen
from sentinel.core.job.stop import RECOVERS, over, resumed, theirs
from sentinel.core.model import Incident, IncidentKind, JobState, Phase, ProtectedJob, Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.recovery.events import RESUMED_BY_OTHERS
from sentinel.core.reports import RankExit, Report
from sentinel.util.clock import system_now

log = structlog.get_logger(__name__)

NOT_UP_S = 10.0  # what keeps pods from running is asked for no more often
HELD_BACK_S = 5.0  # a start that a pause holds back is asked for no more often
DRAIN_S = 6.0
AGAIN_S = 2.0  # what only time tells
STOPS_S = 5.0  # a job that is being stopped is looked at again after so long
# A kind that a rank's success makes succeed ends the others first and says so afterwards: the Job controller of
# Kubernetes 1.34 deletes them (syncJob, deleteActivePods) before it writes SuccessCriteriaMet.
MAY_SUCCEED_S = 30.0
LOOKS = 16  # at jobs, under way together
APART_S = 0.25  # between two looks at one job
RECOVERS_APART_S = 2.0  # while Sentinel stops or starts it, and looks at it itself
FAILED_AGAIN_S, MOST_AGAIN_S = 2.0, 10.0  # after a look that failed; doubled with each that fails


class Place:
    """One of LOOKS, which may be given back before the look is over."""

    def __init__(self, room: asyncio.Semaphore) -> None:
        self._room, self._taken = room, False

    async def __aenter__(self) -> None:
        await self._room.acquire()
        self._taken = True

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        if self._taken:
            self._taken = False
            self._room.release()


class Tracked(Struct):
    """One job that a policy protects."""

    ref: JobRef
    policy: Policy
    changed: bool = True  # something happened to it since the last look
    look: asyncio.Task[None] | None = None
    place: Place | None = None  # of that look
    again_mono_s: float = 0.0  # not looked at before
    due_mono_s: float = math.inf  # looked at then though nothing changed
    asks_for: int | None = None  # pods of ranks, as the object said at the last look
    failures: int = 0  # of looks at it, since one that did not fail
    problem: str = ""  # why the last one failed
    taken_mono_s: float | None = None  # when ranks were first seen taken away after another's success

    def begun(self, now_mono_s: float, apart_s: float) -> None:
        """Its pods start and end one by one, many in a second: it is not looked at for each."""
        self.changed, self.again_mono_s = False, now_mono_s + apart_s

    def failed(self, why: str, now_mono_s: float) -> None:
        again_s = min(FAILED_AGAIN_S * 2 ** min(self.failures, 10), MOST_AGAIN_S)
        self.failures, self.problem = self.failures + 1, why
        self.changed, self.again_mono_s = True, now_mono_s + again_s


class JobLooks:
    """`effective(name, tracked, look)`: the policy that holds for the job, as it is. `lost(uid)`: why a pod was removed
    by force from a node that was lost."""

    def __init__(
        self,
        controller: JobsController,
        cluster: JobCluster,
        records: JobRecords,
        boot_id: str,
        effective: Callable[[str, Tracked, Look], Policy],
        lost: Callable[[str], str],
    ) -> None:
        self._controller, self._cluster, self._records = controller, cluster, records
        self._boot_id, self._effective, self._lost = boot_id, effective, lost
        self._room = asyncio.Semaphore(LOOKS)

    async def look(self, name: str, tracked: Tracked) -> None:
        """Raises NotFound where it is gone, or another object has its name; TemporaryError, PermanentError."""
        tracked.place = Place(self._room)
        async with tracked.place:
            await self._looked(name, tracked)

    async def _looked(self, name: str, tracked: Tracked) -> None:
        controller = self._controller
        old = controller.pictures.get(name)
        if old is not None and (old.job.uid != tracked.ref.uid or _came_back(tracked.ref, old.job)):
            controller.drop(name)  # of the one before
        new = name not in controller.pictures
        read = await self._cluster.read(name)
        if new:
            seen = self._cluster.look(name, read, 0, tracked.policy)
            asked = self._effective(name, tracked, seen)
            if not await self._taken_up(name, tracked.ref, asked, seen, read):
                return
            if self._is_new(name) and not (seen.up or seen.begun or seen.asks_for_start):
                await self._prechecked(name, seen)
        for _ in range(2):
            if name in controller.pictures and controller.runs(name):
                await self._cluster.ask_for_whom(name, read)
            if name not in controller.pictures:
                return
            seen = self._cluster.look(name, read, controller.pictures[name].job.size, tracked.policy)
            controller.policy_is(name, self._effective(name, tracked, seen))
            controller.pictures[name].pinned = seen.pinned
            appeared = await self._judge(name, tracked, seen, read)
            tracked.asks_for = seen.standing.size
            if not appeared:
                return  # else once more, with the pods that are its ranks now: some may have ended by then

    def _is_new(self, name: str) -> bool:
        """Sentinel sees it for the first time."""
        job = self._controller.pictures[name].job
        return job.incarnation < job.first_incarnation and not job.reason and not job.state.final

    async def _prechecked(self, name: str, seen: Look) -> None:
        """Others start it, whatever is found: it is told as an event."""
        job = self._controller.pictures[name].job
        found = await self._cluster.precheck(job, seen.standing.size or job.size)
        self._controller.prechecked(name, "PrecheckPassed" if found.size else found.reason, found.sentence)

    async def _taken_up(self, name: str, ref: JobRef, asked: Policy, seen: Look, read: Seen) -> bool:
        """Into the picture, with what an earlier leader recorded. False: it had ended before anybody looked."""
        controller = self._controller
        await self._records.claim(name)
        known = self._records.job(name)
        now = system_now()
        if known is None or known.uid != ref.uid or _came_back(ref, known):
            if known is not None:
                controller.vanished(known, "The job was deleted, and another one has its name.")
            if seen.standing.over or seen.vanishes:
                return False
            controller.add(_fresh(name, ref.uid, asked, known, now, self._boot_id), [])
            return True
        job = structs.replace(_rebased(known, now, self._boot_id), policy=asked)
        picture = controller.add(job, self._records.incidents(name))
        if job.state.final:
            return True
        there = (
            job.placed.ranks if job.placed is not None and job.placed.incarnation == job.incarnation else ()
        )
        ranks = await self._cluster.adopt(name, read, there) if controller.runs(name) else []
        controller.adopt(name, ranks, [], self._cluster.nodes(name))
        controller.asks_for(name, seen.gpus)
        log.info("job_adopted", job=name, ranks=len(ranks), incident=picture.incident and picture.incident.id)
        return True

    async def _judge(self, name: str, tracked: Tracked, seen: Look, read: Seen) -> bool:
        """Has it been found to run just now? Then these pods are its ranks."""
        controller = self._controller
        picture = controller.pictures[name]
        job, now = picture.job, seen.standing
        runs = controller.runs(name) and bool(self._cluster.nodes(name))
        if job.state.final or now.ended == "succeeded" or runs:
            tracked.due_mono_s = math.inf  # what happens to it is told by watches
        if job.state.final:
            return False
        if now.ended == "succeeded":
            await self._drained(name, tracked)
            controller.succeeded(name, self._report(), over(read, now).sentence)
        elif runs:
            return await self._judge_running(name, tracked, seen, read)
        elif picture.incident is None:
            return await self._judge_waiting(name, tracked, seen, read)
        else:
            return await self._judge_recovering(name, tracked, seen, read, picture.incident)
        return False

    async def _judge_recovering(
        self, name: str, tracked: Tracked, seen: Look, read: Seen, incident: Incident
    ) -> bool:
        controller = self._controller
        now = seen.standing
        stopping = incident.phase is Phase.STOPPING and not self._cluster.refuses(name)
        # Who ends its pods may say so only afterwards: it is looked at once more when they are gone.
        taken = incident.phase is Phase.STARTING and seen.withdrawn and now.stopped_by != KUEUE
        tracked.due_mono_s = system_now().mono_s + STOPS_S if stopping or taken else math.inf
        if incident.kind is not IncidentKind.FORCED:
            if incident.phase is Phase.STOPPING and incident.kind is IncidentKind.CHOSEN:
                self._may_be_rescaled(name, tracked, now.size, incident)
            return False
        if incident.phase is Phase.STOPPING and not stopping:
            # One that was told to stop by now goes down, whatever still runs of it.
            if seen.replaced and not now.stopped:
                sentence = "Its own operator has started its ranks again, while Sentinel could not stop it."
                controller.withdrawn(name, "RestartedByItsKind", sentence)
                ranks = await self._cluster.adopt(name, read)
                self._up(name, ranks, seen, "RestartedByItsKind", sentence)
                return True
        elif incident.phase is Phase.PRECHECKING:
            ordered = incident.verdict.symptom in (Symptom.RETRY, Symptom.FIRST_START)
            # Before another try it need not have been stopped.
            stopped = bool(now.mark) or incident.verdict.symptom is not Symptom.RETRY
            if resumed(read, stopped=stopped) and await self._left(name, tracked, read, incident):
                return True
            if seen.withdrawn and not ordered and not seen.asks_for_start:
                controller.withdrawn(name, "Stopped", seen.withdrawn)
                return False
            self._may_be_rescaled(name, tracked, now.size, incident)
        elif incident.phase is Phase.STOPPING:
            self._may_be_rescaled(name, tracked, now.size, incident)
        return False

    def _may_be_rescaled(self, name: str, tracked: Tracked, size: int | None, incident: Incident) -> None:
        """Where it asks for another size than Sentinel gave it, and than at the last look, somebody else wants that."""
        before = incident.from_size if tracked.asks_for is None else tracked.asks_for
        if size is not None and size not in (self._controller.pictures[name].job.size, before):
            self._controller.rescaled(name, size)

    async def _left(self, name: str, tracked: Tracked, read: Seen, incident: Incident) -> bool:
        """Somebody else lets it run, while nothing that Sentinel does is under way: it is left to them, and no
        recovery of it is left to stop it again."""
        theirs_now = await self._cluster.leave(name)
        picture = self._controller.pictures.get(name)
        open_ = None if picture is None else picture.incident
        if not theirs_now or open_ is None:
            return False
        if (open_.id, open_.phase, open_.incarnation) != (incident.id, incident.phase, incident.incarnation):
            return False  # Sentinel itself has started it meanwhile
        self._controller.withdrawn(name, RESUMED_BY_OTHERS, theirs(read, RECOVERS))
        tracked.due_mono_s = 0.0  # looked at as one that waits for its pods
        return True

    async def _judge_waiting(self, name: str, tracked: Tracked, seen: Look, read: Seen) -> bool:
        controller = self._controller
        job = controller.pictures[name].job
        if seen.asks_for_start and seen.standing.size is None:
            sentence = "It asks to be checked and started, and how many pods it has stands elsewhere: start it by hand."
            controller.waits(name, "SizeUnknown", sentence)
        elif seen.asks_for_start and seen.standing.size:
            opened = controller.check_and_start(name, seen.standing.size)
            tracked.due_mono_s = math.inf if opened else system_now().mono_s + HELD_BACK_S
        elif seen.withdrawn:
            tracked.due_mono_s = math.inf
            controller.waits(name, "Stopped", seen.withdrawn)
        elif seen.up or (seen.begun and seen.standing.ended):
            tracked.due_mono_s = math.inf
            ranks = await self._cluster.adopt(name, read)
            self._up(name, ranks, seen, "Appeared", "All ranks of the job run.")
            return True
        elif seen.standing.ended:
            sentence = f"The job failed before it ran: {seen.standing.why_ended}."
            controller.end(name, JobState.ERROR, "FailedBeforeStart", sentence)
        elif seen.grows:
            controller.waits(
                name, "NotUp", f"It has {seen.pods} pods, and may get more: nothing tells how many."
            )
            tracked.due_mono_s = system_now().mono_s + AGAIN_S
        else:
            if system_now().mono_s < tracked.due_mono_s < math.inf:
                return False
            why = await self._cluster.waits_for(name)
            wanted = seen.standing.size or job.size
            controller.waits(name, "NotUp", f"Not all of its {wanted} pods run yet. {why}".strip())
            tracked.due_mono_s = system_now().mono_s + NOT_UP_S
        return False

    async def _judge_running(self, name: str, tracked: Tracked, seen: Look, read: Seen) -> bool:
        controller = self._controller
        picture = controller.pictures[name]
        done = [rank for rank in seen.done if rank not in picture.exits]
        if done:  # a start brings them up no more
            controller.ended(name, _well(picture.job, done), self._report())
            if picture.job.state.final:
                return False
        if seen.withdrawn:
            self._cluster.vacate(name)
            controller.withdrawn(name, "Stopped", seen.withdrawn)
            return False
        if seen.grows:
            tracked.due_mono_s = system_now().mono_s + AGAIN_S
        exits = self._ends(picture.job, picture.exits, seen)
        if seen.vanishes:  # its owner has most likely been deleted; else it makes others soon
            exits = [gone for gone in exits if not _deleted(gone)]
        # It is decided how the job ends, and its kind ends what is left of it; or that may be what happens.
        if seen.standing.ending or _may_succeed(tracked, [*picture.exits.values(), *exits]):
            exits = [gone for gone in exits if not _deleted(gone)]
        if seen.standing.size is not None and seen.standing.size != picture.job.size:
            exits = [gone for gone in exits if gone.rank < seen.standing.size and not _deleted(gone)]
            if seen.up:
                ranks = await self._cluster.adopt(name, read)
                sentence = f"The job has {seen.standing.size} ranks now; it had {picture.job.size}."
                self._up(name, ranks, seen, "Resized", sentence)
                return True
        if seen.renewed and all(_deleted(gone) or gone.failure == "pod-preempted" for gone in exits):
            ranks = await self._cluster.adopt(name, read)
            sentence = "Its own operator has started its ranks again, without Sentinel."
            self._up(name, ranks, seen, "RestartedByItsKind", sentence)
            return True
        if exits:
            incarnation = picture.job.incarnation
            await self._drained(name, tracked)
            if picture.job.incarnation == incarnation:
                controller.ended(name, exits, self._report())
        return False

    def _up(
        self,
        name: str,
        ranks: list[RankProcess],
        seen: Look,
        reason: str,
        text: str,
    ) -> None:
        self._controller.appeared(name, ranks, seen.standing.size or len(ranks) or 1, reason, text)
        self._controller.asks_for(name, seen.gpus)

    def _ends(self, job: ProtectedJob, known: Mapping[int, RankExit], seen: Look) -> list[RankExit]:
        """Of ranks whose end is not known yet."""
        now, exits = system_now(), list[RankExit]()
        for rank, ended in seen.ended:
            if rank not in known:
                placed = self._cluster.pod(job.name, rank)
                if placed is not None and (why := self._lost(placed[1].uid)):
                    ended = structs.replace(ended, failure="node-lost", sentence=why)
                exits.append(
                    rank_exit(
                        ended, rank=rank, incarnation=job.incarnation, at_s=now.mono_s, now_wall_s=now.wall_s
                    )
                )
        return exits

    async def _drained(self, name: str, tracked: Tracked) -> None:
        """The end of a rank is told behind what its log says. Last of a look: agents that do not answer take seconds,
        and hundreds of jobs may lose ranks at once."""
        if tracked.place is not None:
            tracked.place.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._cluster.drain(name)

    def _report(self) -> Report:
        return Report(node="", boot_id=self._boot_id, sequence=0, now=system_now())


def apart_s(picture: JobPicture | None) -> float:
    """Between two looks at one job."""
    phase = None if picture is None or picture.incident is None else picture.incident.phase
    return RECOVERS_APART_S if phase in (Phase.STOPPING, Phase.STARTING) else APART_S


def _came_back(ref: JobRef, known: ProtectedJob) -> bool:
    """Of an owner that is not read nobody knows that it is gone: pods may come again, much later."""
    return ref.row.fallback and known.reason == "JobDeleted"


def _fresh(
    name: str, uid: str, asked: Policy, before: ProtectedJob | None, now: Now, boot: str
) -> ProtectedJob:
    """A job that Sentinel sees for the first time. One of the same name before it goes on being counted from."""
    return ProtectedJob(
        name=name,
        policy=asked,
        uid=uid,
        incarnation=before.incarnation if before is not None else 0,
        first_incarnation=before.incarnation + 1 if before is not None else 1,
        incidents=before.incidents if before is not None else 0,
        created_wall_s=now.wall_s,
        boot_id=boot,
    )


def _rebased(job: ProtectedJob, now: Now, boot: str) -> ProtectedJob:
    """Another machine's monotonic clock says nothing here; the wall clocks of controllers agree well enough."""
    if job.boot_id == boot or job.started_mono_s is None:
        return structs.replace(job, boot_id=boot)
    started_s = now.mono_s - max(0.0, now.wall_s - job.started_wall_s)
    return structs.replace(job, boot_id=boot, started_mono_s=started_s)


def _may_succeed(tracked: Tracked, exits: Sequence[RankExit]) -> bool:
    """Ranks were taken away, others have ended well, and none otherwise: for a while it is the kind's turn to say what
    that means. The job is looked at again when that is over."""
    ways = {"taken" if _deleted(gone) else "well" if gone.ok else "otherwise" for gone in exits}
    if ways != {"taken", "well"}:
        tracked.taken_mono_s = None
        return False
    now_s = system_now().mono_s
    tracked.taken_mono_s = now_s if tracked.taken_mono_s is None else tracked.taken_mono_s
    until_s = tracked.taken_mono_s + MAY_SUCCEED_S
    if now_s >= until_s:
        return False
    tracked.due_mono_s = until_s
    return True


def _well(job: ProtectedJob, ranks: Sequence[int]) -> list[RankExit]:
    at_s = system_now().mono_s
    return [RankExit(rank=rank, incarnation=job.incarnation, at_s=at_s, code=0) for rank in ranks]


def _deleted(gone: RankExit) -> bool:
    """Its pod was taken away, and nothing tells of a fault."""
    return gone.failure == "pod-deleted"
