"""The jobs of a cluster that Sentinel protects: their objects and pods, as they are now and as they were seen last.

A rank of the controller is one pod of the job. What a job is now is read when something is decided about it; between
that the watch of pods only says that it is time to look again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from msgspec import Struct, field, structs

from sentinel.cluster.base import RankProcess
from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound
from sentinel.cluster.kubernetes.job_changes import Changes
from sentinel.cluster.kubernetes.job_io import JobRef, Queues
from sentinel.cluster.kubernetes.job_io import read as read_job
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.cluster.kubernetes.objects import Pod
from sentinel.cluster.kubernetes.pod_events import PodEvents
from sentinel.cluster.kubernetes.reflector import Change
from sentinel.cluster.kubernetes.shared_read import SharedRead
from sentinel.core.agents.orders import PodRank
from sentinel.core.job import hold
from sentinel.core.job.look import Look, Place, look, main_status
from sentinel.core.job.paths import Json, number, read, text
from sentinel.core.job.pod_told import preempted
from sentinel.core.job.pod_wait import explain, not_made, waits
from sentinel.core.job.ranks import RankPod, ranks
from sentinel.core.job.room import GPUS, requests
from sentinel.core.job.state import Seen, ended_before, ended_pod, main_container, preemptor_uid
from sentinel.core.job.stop import spared
from sentinel.core.model import RankPlace
from sentinel.core.policy_model import Policy
from sentinel.core.stacks.flight_record import Stuck
from sentinel.util.bell import Bell

LOOK_S = 5.0  # without a word of the watch
LATELY_S = 5.0  # what was read serves the next step of a recovery so long
TOGETHER_S = 0.1  # changes of a job's pods within it are read at once
NO_MORE_S = 10.0  # since the last pod came of an owner of which nothing tells how many it makes


class Unread(Struct):
    """Of a job whose object is not read: what its pods told."""

    most: int = 0  # ranks that it had at once
    gpus: bool = False  # did those ask for GPUs?
    stand_in: Json = {}  # for its object, as they told last
    counted: tuple[int, float] = (0, 0.0)  # pods of ranks that there are, and since when: monotonic


class Reading(Struct, frozen=True):
    """What a job was, when it began to be read (monotonic), and after which changes."""

    seen: Seen
    began_s: float
    changes: Changes

    def lately(self) -> bool:
        return monotonic() - self.began_s < LATELY_S

    def expects_edit(self) -> "Reading":
        """Sentinel has written it since: what the watch tells of that is no news."""
        return structs.replace(self, changes=self.changes.edit())


class Known(Struct):
    ref: JobRef
    read: SharedRead[Reading] | None = None
    changes: Changes = Changes()
    changed: Bell = field(default_factory=Bell)
    last: Reading | None = None  # of a step of its recovery, for the next one
    pods: dict[int, tuple[str, PodRank]] = {}  # rank -> node, pod; of the running incarnation
    seen: Seen | None = None  # at the last look, where not all of it runs
    ending: dict[str, Json] = {}  # by uid: pods that are to end, as they were when they were seen last
    others: frozenset[str] = frozenset()  # nodes of its pods that are no ranks: launchers, parameter servers
    kept: frozenset[str] = frozenset()  # uids of pods that have failed, and stay while nobody stops it
    events: dict[str, list[Json]] = {}  # by uid: of ranks' pods that were preempted, or are gone
    uids: set[str] = set()  # of its pods: those that are gone may still be counted where nodes' room is
    # Uids of pods that had ended before it was started last: no ranks of what runs since. Those that failed run again
    # as others, those that ended well are done for good.
    over: set[str] = set()
    done: set[str] = set()
    preemptor: tuple[str, str] = ("", "")  # uid and name of the job for which Kueue took its place back
    unread: Unread = field(default_factory=Unread)
    # The stop under way, and the uids of the pods that it is about.
    old: tuple[str, frozenset[str]] = ("", frozenset())
    obeyed: str = ""  # the mark of the last stop since which it was seen stopped
    bad: set[str] = set()  # nodes that were found bad since its ranks were started last
    refused: str = ""  # why it could not be told to stop, at the last try
    refuses: bool = False  # and is that so for as long as it is what it is?


class KnownJobs:
    """What is read of jobs; nothing of them is changed here."""

    def __init__(self, client: Client, agents: Agents, rooms: Rooms) -> None:
        self._client, self._agents, self._rooms = client, agents, rooms
        self._pod_events, self._queues = PodEvents(client), Queues(client)
        self._jobs: dict[str, Known] = {}

    async def stuck(self, job: str, incarnation: int) -> Stuck | None:
        """None: what its ranks wrote is in containers that are gone."""
        return None

    # ------------------------------------------------------------ which jobs there are

    def know(self, job: str, ref: JobRef, size: int = 0) -> None:
        """`size`: its ranks, as its record has them."""
        known = self._jobs.get(job)
        if known is None or known.ref != ref:
            self._jobs[job] = Known(ref=ref, unread=Unread(size))

    def forget(self, job: str) -> None:
        self._jobs.pop(job, None)
        self._agents.forget(job)

    def changed(self, job: str, of_pod: Change[Pod] | None) -> None:
        """Called by whoever watches jobs and pods. None: the job's own object is another one."""
        if (known := self._jobs.get(job)) is not None:
            known.changes = known.changes.edit() if of_pod is None else known.changes.of_pod(of_pod)
            known.changed.ring()

    def ref(self, job: str) -> JobRef | None:
        known = self._jobs.get(job)
        return None if known is None else known.ref

    def vacate(self, job: str) -> None:
        """Its pods are no ranks any more: somebody else has stopped it."""
        if (known := self._jobs.get(job)) is not None:
            known.pods = {}
        self._agents.forget(job)

    def ended(self, job: str) -> None:
        """For good: nothing is read of it for another step."""
        if (known := self._jobs.get(job)) is not None:
            known.last = None
        self._agents.forget(job)

    # ------------------------------------------------------------ what they are now

    async def read(self, job: str) -> Seen:
        """Its object and its pods. Raises NotFound where it is gone, or another object has its name; TemporaryError."""
        known = self._known(job)
        seen = (await self._reading(known)).seen
        uid = preemptor_uid(seen)
        if known.preemptor[0] != uid:
            known.preemptor = (uid, await self._queues.job(uid) if uid else "")
        return structs.replace(seen, preemptor=known.preemptor[1])

    async def ask_for_whom(self, job: str, seen: Seen) -> None:
        """For whom ranks of the running incarnation were preempted: their events say so, also when they are gone."""
        known = self._known(job)
        there = {text(pod, "metadata.uid"): pod for pod in seen.pods}
        asked, uids = list[Json](), {pod.uid for _, pod in known.pods.values()}
        known.events = {uid: events for uid, events in known.events.items() if uid in uids}
        for _, rank in known.pods.values():
            pod = there.get(rank.uid) or known.ending.get(rank.uid)
            if rank.uid not in known.events and (pod is None or preempted(pod)):
                meta = {"namespace": rank.namespace, "name": rank.pod, "uid": rank.uid}
                asked.append(pod or {"metadata": meta})
        if asked:
            found = await self._pod_events.preempted(asked)
            known.events |= {uid: found.get(uid, []) for uid in (text(one, "metadata.uid") for one in asked)}

    def look(self, job: str, seen: Seen, size: int, asked: Policy) -> Look:
        """At what was read of it just now. Raises NotFound where it was forgotten since."""
        known = self._known(job)
        seen = started(known, seen)
        places = {rank: Place(pod.uid, node, pod.restarts) for rank, (node, pod) in known.pods.items()}
        found = look(seen, places, size, known.ending, asked, known.events)
        if known.ref.row.fallback:
            found = _settled(known, found, size)
        known.seen = seen if not found.up else None
        known.kept = hold.kept(seen)
        known.others = _others(seen)
        known.ending = {
            text(pod, "metadata.uid"): pod
            for pod in seen.pods
            if read(pod, "metadata.deletionTimestamp") is not None
        }
        return found

    def refuses(self, job: str) -> bool:
        """Is there no way to stop it as it is? For what is so only now, it is tried again."""
        return self._known(job).refuses

    async def waits_for(self, job: str) -> str:
        """Why not all of it ran at the last look; "": nothing tells."""
        seen = self._known(job).seen
        return "" if seen is None else (await self._why_not_up(seen))[0]

    async def _why_not_up(self, seen: Seen) -> tuple[str, bool]:
        """The sentence, and whether it is in vain to wait."""
        events = await self._pod_events.why(seen.pods)
        nodes = self._rooms.names()
        found = [waits(pod, events.get(text(pod, "metadata.uid"), ()), nodes) for pod in seen.pods]
        said = explain(seen.pods, events, nodes)
        if not said:  # then some are missing
            makers = await self._pod_events.of((seen.job, *seen.children))
            said = not_made(one for some in makers.values() for one in some)
        return said, any(one is not None and one.hopeless for one in found)

    async def adopt(
        self, job: str, seen: Seen | None = None, before: Sequence[RankPlace] = ()
    ) -> list[RankProcess]:
        """The ranks that run now, after another leader's end or where Sentinel sees the job for the first time. `seen`:
        what was read of it just now. `before`: where that leader saw them run. One that runs elsewhere by now, or was
        started again, is no rank that runs: the next look tells how it was lost."""
        known = self._known(job)
        running = self._took(known, (await self._reading(known)).seen if seen is None else seen)
        lost = set[int]()
        for place in before:
            _, now = known.pods.get(place.rank, ("", None))
            if now is not None and (now.uid, now.restarts) != (place.uid, place.restarts):
                pod = now.pod if now.uid == place.uid else ""
                was = structs.replace(now, uid=place.uid, restarts=place.restarts, pod=pod)
                known.pods[place.rank] = (place.node, was)
                lost.add(place.rank)
        return [one for one in running if one.rank not in lost]

    def _took(self, known: Known, seen: Seen) -> list[RankProcess]:
        """The ranks that run; of those that have ended by now the end is seen at the next look."""
        seen = started(known, seen)
        by_uid = {text(pod, "metadata.uid"): pod for pod in seen.pods}
        known.refused, known.refuses = "", False
        known.pods, known.bad, running = {}, set(), list[int]()
        unread = known.unread
        known.others = _others(seen)
        for one in ranks(seen):
            if one.rank is not None and one.node and one.uid not in known.done:
                known.pods[one.rank] = (one.node, _pod_rank(one, by_uid[one.uid]))
                unread.gpus = unread.gpus or any(requests(by_uid[one.uid]).get(gpu) for gpu in GPUS)
                if not one.ended:
                    running.append(one.rank)
        unread.most = max(unread.most, len(known.pods))
        return [RankProcess(rank=rank, pid=0, start_ticks=0, log_path="") for rank in sorted(running)]

    def _known(self, job: str) -> Known:
        known = self._jobs.get(job)
        if known is None:
            raise NotFound(f"{job} is gone", "JobGone")
        return known

    async def _reading(self, known: Known) -> Reading:
        """As it is after this call. Events of its pods wake all who look at it at once: they share a read."""
        if known.read is None:
            known.read = SharedRead(lambda: self._read_now(known))
        return await known.read()

    async def _read_now(self, known: Known) -> Reading:
        began_s, changes = monotonic(), known.changes
        seen = await read_job(self._client, self._queues, known.ref, known.unread.most, known.unread.gpus)
        known.uids |= {text(pod, "metadata.uid") for pod in seen.pods}
        if known.ref.unread and seen.pods:
            known.unread.stand_in = {key: value for key, value in seen.job.items() if key != "status"}
        elif known.ref.unread:
            seen = structs.replace(seen, job=known.unread.stand_in or seen.job)
        there = {text(pod, "metadata.uid"): ended_pod(pod) for pod in seen.pods}
        before = known.over | known.done | {text(pod, "metadata.uid") for pod in ended_before(seen)}
        known.over = {uid for uid in before if there.get(uid) == "failed"}
        known.done = {uid for uid in before if there.get(uid) == "succeeded"}
        reading = Reading(seen, began_s, changes)
        if known.last is not None:  # no next step has come in that time: its pods are not kept
            known.last = reading if known.last.lately() else None
        return reading

    async def _reading_lately(self, known: Known) -> Reading:
        """What the step before has read of it, or as it is after this call. It is kept for the next step, but not of
        a job that runs: there are thousands."""
        reading = self._lately(known) or await self._reading(known)
        known.last = None if known.pods else reading
        return reading

    def _lately(self, known: Known) -> Reading | None:
        """What the step before has read of it, where the watch has told nothing new of it and its pods since. What
        becomes of a job in a queue, or of the jobs below it, is not seen by these alone."""
        if (last := known.last) is None or last.seen.workload is not None or last.seen.children:
            return None
        return last if last.changes == known.changes and last.lately() else None

    async def _turn(
        self,
        known: Known,
        was: Changes,
        enough: Callable[[Changes], bool] = Changes.something,
        within_s: float | None = None,
    ) -> None:
        """Until the changes since then are enough to read it again, at most so long or LOOK_S."""
        end_s = monotonic() + (LOOK_S if within_s is None else within_s)
        while not enough(known.changes.since(was)) and (left_s := end_s - monotonic()) > 0:
            await known.changed.next(left_s)
        await asyncio.sleep(TOGETHER_S)

    # ------------------------------------------------------------ their ranks

    def holds(self, job: str, ranks: Iterable[int]) -> bool:
        """Does one of these run the wrapper that keeps its container? Or its pod has failed, and stays so."""
        known = self._jobs.get(job)
        pods = [] if known is None else [known.pods[rank][1] for rank in ranks if rank in known.pods]
        return known is not None and any(pod.hold or pod.uid in known.kept for pod in pods)

    def nodes(self, job: str) -> dict[int, str]:
        """Rank -> node, of the running incarnation."""
        known = self._jobs.get(job)
        return {} if known is None else {rank: node for rank, (node, _) in known.pods.items()}

    def other_nodes(self, job: str) -> frozenset[str]:
        """Nodes on which pods of it run that are no ranks, as at the last look."""
        known = self._jobs.get(job)
        return frozenset() if known is None else known.others

    def places(self, job: str) -> tuple[RankPlace, ...]:
        """Of the ranks of the running incarnation."""
        known = self._jobs.get(job)
        pods = {} if known is None else known.pods
        return tuple(
            RankPlace(rank, pod.uid, node, pod.restarts) for rank, (node, pod) in sorted(pods.items())
        )

    def pod(self, job: str, rank: int | None = None) -> tuple[str, PodRank] | None:
        """Node and pod of a rank of the running incarnation; without a rank of the first one that has one."""
        known = self._jobs.get(job)
        if known is None or not known.pods:
            return None
        return known.pods.get(min(known.pods) if rank is None else rank)

    def _by_node(self, job: str, only: Sequence[int] | None = None) -> dict[str, list[PodRank]]:
        by_node: dict[str, list[PodRank]] = {}
        for rank, (node, pod) in sorted(self._known(job).pods.items()):
            if only is None or rank in only:
                by_node.setdefault(node, []).append(pod)
        return by_node


def _settled(known: Known, found: Look, size: int) -> Look:
    """Pods that come one after another are a job of its size when no more come."""
    unread = known.unread
    if unread.counted[0] != found.pods:
        unread.counted = (found.pods, monotonic())
    if (known.pods and found.pods <= size) or monotonic() - unread.counted[1] >= NO_MORE_S:
        return found
    return structs.replace(found, up=False, replaced=False, renewed=False, grows=True)


def started(known: Known, seen: Seen) -> Seen:
    """Without pods that were over before the last start: a kind may keep them for as long as the job is there."""
    pods = tuple(pod for pod in seen.pods if text(pod, "metadata.uid") not in known.over)
    return seen if len(pods) == len(seen.pods) else structs.replace(seen, pods=pods)


def _others(seen: Seen) -> frozenset[str]:
    """A recovery brings these elsewhere too, but for those that run on through a stop."""
    ends = {
        text(pod, "metadata.uid") for pod in seen.pods if read(pod, "metadata.deletionTimestamp") is not None
    }
    stays = {*spared(seen), *ends}
    return frozenset(
        one.node
        for one in ranks(seen)
        if one.rank is None and one.node and not one.ended and one.uid not in stays
    )


def _pod_rank(one: RankPod, pod: Json) -> PodRank:
    """Its container that trains, as it runs now."""
    main, status = main_container(pod), main_status(pod)
    return PodRank(
        rank=one.rank or 0,
        namespace=text(pod, "metadata.namespace"),
        pod=one.name,
        uid=one.uid,
        container=text(main, "name"),
        container_id=text(status, "containerID").rpartition("//")[2],
        hold=hold.wraps(main),
        restarts=number(status, "restartCount") or 0,
    )
