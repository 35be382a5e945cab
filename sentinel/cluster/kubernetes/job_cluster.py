"""Real jobs of any kind: stopped and started by the kind's own means, their ranks reached through agents."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import structlog
from msgspec import structs

from sentinel.cluster.base import RankProcess, Room, StopOutcome
from sentinel.cluster.kubernetes import job_waits
from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Conflict, NotFound, NotLeading
from sentinel.cluster.kubernetes.job_changes import Changes, all_may_end, all_may_run
from sentinel.cluster.kubernetes.job_io import carry_out, delete_pod
from sentinel.cluster.kubernetes.job_ranks import ANSWER_S, JobRanks
from sentinel.cluster.kubernetes.job_room import Rooms, pods_of
from sentinel.cluster.kubernetes.job_sizing import Sizing
from sentinel.cluster.kubernetes.job_waits import GROUP_S, STOP_SLACK_S, Lasting, Left, Waited
from sentinel.cluster.kubernetes.known_jobs import Known, Reading, started
from sentinel.core.agents.orders import What
from sentinel.core.health import Component
from sentinel.core.job import start as job_start
from sentinel.core.job import stop as job_stop
from sentinel.core.job.kinds import KeepOff
from sentinel.core.job.look import failed_ranks, missing
from sentinel.core.job.paths import Json, number, text
from sentinel.core.job.resume import told
from sentinel.core.job.state import (
    Seen,
    behind_gates,
    in_line,
    keeps_off,
    names,
    standing,
    switched_on,
    ungrouped,
)
from sentinel.core.job.writes import Plan, Reason, Refusal
from sentinel.core.model import Launch, ProtectedJob
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)
T = TypeVar("T")

WAITS = "StopWaits"  # a stop that is not possible now, whatever kind it is of
REFUSED_S = 30.0  # a stop that was refused is tried again after so long
TRIES = 5  # of a decision that a write of somebody else overtook
ASK_AGAIN_S = 1.0  # of an API server that is away
ENDS_WELL_S = 30.0  # for the look at a job that has succeeded
AWAY_S = 20.0  # without its answers a stop waits, and says so
AWAY = "The API server does not answer what the stop asks of it: it goes on when it does."
MOST_LAST = 50  # nodes that it is to get last, for the same reason
MOST_UNFIT = 50  # nodes that a job is kept off besides the one that it flees: its object must stay small


class _NotNow(TemporaryError):
    """The kind cannot do this now."""


class JobCluster(JobRanks):
    """Implements the parts of `cluster.base.Cluster` and `effects.perform.NodeLink` that are about one job."""

    def __init__(self, client: Client, agents: Agents, epoch: Callable[[], int], rooms: Rooms) -> None:
        super().__init__(client, agents, rooms)
        self._epoch = epoch
        self._sizing = Sizing(client, rooms, rooms.clock)
        self.tell: Callable[[str, str, str], None] = lambda job, reason, sentence: None
        self.queued: Callable[[str, str], None] = lambda job, waits: None
        self.look_again: Callable[[str], None] = lambda job: None
        self.unfit: Callable[[Collection[str]], Collection[str]] = lambda components: ()
        self.unreached: Callable[[], Collection[str]] = tuple
        self.leaving: Callable[[str], bool] = lambda node: False
        self.back_lately: Callable[[], Sequence[str]] = lambda: ()

    # ------------------------------------------------------------ room

    async def room(
        self, job: ProtectedJob, size: int, excluded: tuple[str, ...], *, starts: bool = False
    ) -> Room:
        """For all pods at once, off `excluded` nodes; of an elastic job maybe fewer. Never raises."""
        try:
            known = self._known(job.name)
            seen = (await self._patiently(lambda: self._reading_lately(known))).seen
        except (TemporaryError, PermanentError) as error:
            return Room(size=0, reason="JobUnknown", sentence=str(error))
        if switched_on(seen):
            self.look_again(job.name)
            return Room(size=0, reason="NotOurs", sentence=job_stop.theirs(seen, job_stop.RECOVERS))
        if waits := in_line(seen):  # where it will run is the queue's to find
            return Room(size=size, excluded=excluded, sentence=waits)
        now = standing(seen)
        # Whoever led before has let it run: somebody else would have left the mark.
        if starts and seen.row.holds and not now.stopped and not now.mark:
            return Room(size=size, excluded=excluded, sentence="It was started already.")
        if (refused := job_stop.never_stops(seen, job.name) or job_start.not_ours(seen)) is not None:
            return Room(size=0, reason=refused.reason, sentence=refused.sentence)
        if keeps_off(seen) in (KeepOff.NONE, KeepOff.SELECTOR):
            nodes, pods = {*excluded, *self.unfit(_asked_about(job))}, pods_of(seen)
            await job_waits.cordons(lambda: self._rooms.taking(nodes, pods), self.leaving)
        return await self._room(job, seen, size, excluded)

    async def _room(self, job: ProtectedJob, seen: Seen, size: int, excluded: tuple[str, ...]) -> Room:
        bad = [node for node in self.unfit(_asked_about(job)) if self._rooms.schedulable(node)]
        unreached = sorted({*self.unreached()}.difference(bad))
        if why := self._cannot_keep_off(job.name, seen, excluded, bad):
            return Room(size=0, reason="CannotKeepOff", sentence=why)
        bad = [*sorted(bad), *unreached]
        excluded = tuple(dict.fromkeys((*excluded, *bad[:MOST_UNFIT])))
        try:
            own = self._own(self._known(job.name), seen)
            return await self._sizing.room(job, seen, own, size, excluded, bad)
        except (TemporaryError, PermanentError) as error:
            return Room(size=0, reason="PodsUnknown", sentence=str(error))

    def unpromise(self, job: str) -> None:
        self._rooms.kept(job)

    async def precheck(self, job: ProtectedJob, size: int) -> Room:
        """What is found before a start that others make, of all that it asks for. Nothing is promised.

        Raises NotFound where it is gone, TemporaryError.
        """
        seen = (await self._reading(self._known(job.name))).seen
        whole = structs.replace(job, policy=structs.replace(job.policy, elastic=None))
        found = await self._room(whole, seen, size, ())
        self._rooms.kept(job.name)
        return found

    async def room_to_grow(self, job: ProtectedJob, excluded: tuple[str, ...]) -> int:
        """With how many pods it could run if it were stopped now; 0: with none. Nothing is promised to it.

        Raises NotFound where it is gone, TemporaryError.
        """
        known = self._known(job.name)
        seen = (await self._reading(known)).seen
        bad = {*self.unfit(_asked_about(job)), *self.unreached()}
        return await self._sizing.most(job, seen, self._own(known, seen), {*excluded, *bad})

    def _own(self, known: Known, seen: Seen) -> set[str]:
        """The uids of its pods: those that there are, and those that are gone and still counted."""
        known.uids &= {*self._rooms.counted(), *(text(pod, "metadata.uid") for pod in seen.pods)}
        return known.uids

    def _cannot_keep_off(self, job: str, seen: Seen, excluded: Sequence[str], bad: Sequence[str]) -> str:
        """A kind whose pods nothing keeps off a node may start where the node takes none anyway. A node that it flees
        and that was found bad holds it back until that is over."""
        if keeps_off(seen) not in (KeepOff.NONE, KeepOff.SELECTOR):
            return ""
        known = self._known(job)
        if seen.row.holds:  # else its owner has made its pods again by now, on a node that it flees perhaps
            known.bad |= {*bad}
        fled = [node for node in excluded if node not in known.bad]
        open_ = self._rooms.taking(dict.fromkeys((*fled, *bad)), pods_of(seen))
        if not open_ or (not known.pods and job_waits.started_off(seen, open_)):
            return ""
        return job_waits.nothing_keeps_off(seen, open_)

    def _hosts(self, seen: Seen, excluded: Sequence[str]) -> tuple[str, ...]:
        if keeps_off(seen) in (KeepOff.NONE, KeepOff.SELECTOR):
            return ()
        return tuple(sorted(self._rooms.hostname(node) for node in excluded))

    def _last(self, seen: Seen, excluded: Collection[str]) -> tuple[str, ...]:
        """Hosts that its pods are to get only where there is no other room: nodes that came back lately."""
        back = [node for node in self.back_lately() if node not in excluded]
        return self._hosts(seen, back[:MOST_LAST])

    # ------------------------------------------------------------ starting

    async def start(
        self,
        job: str,
        launch: Launch | None,
        incarnation: int,
        size: int,
        env: Mapping[str, str],
        excluded: Sequence[str] = (),
    ) -> list[RankProcess]:
        """Let it run with `size` pods of ranks, off `excluded` nodes; on return all of them run. Cancel it to give up.

        Raises TemporaryError (not now) and PermanentError (its kind cannot, or the job is gone).
        """
        known = self._known(job)

        def begin(seen: Seen) -> Plan | Refusal:
            last = self._last(seen, excluded)
            return job_start.begin(seen, size, self._hosts(seen, excluded), told(env), last)

        try:
            reading = await self._begun(known, begin)
        except PermanentError as error:
            if error.reason == Reason.ENDED:
                await self._ends_well(job, known)
            raise
        waited, queued, grouped = Waited(), False, Lasting(GROUP_S)
        while down := missing(started(known, reading.seen), size):
            if why := job_stop.failed(reading.seen):
                if failed_ranks(started(known, reading.seen)):
                    break  # their ends tell more of it
                raise PermanentError(why, Reason.ENDED)
            await self._turn(known, reading.changes, all_may_run(down))
            reading = await self._patiently(lambda: self._reading(known))
            group = ungrouped(reading.seen)
            group = group if grouped.lasts(bool(group)) else ""
            waits = in_line(reading.seen) or behind_gates(reading.seen) or group
            if bool(waits) is not queued:
                queued, waited = bool(waits), Waited()
                self._rooms.kept(job)
                self.queued(job, waits)
            if not queued and waited.long_enough():
                await self._tell_why(job, reading.seen, waited)
        if why := job_waits.on_bad_nodes(started(known, reading.seen), excluded):
            raise TemporaryError(why)
        await self._written(known, job_start.settle, reading)
        self._rooms.kept(job)
        return self._took(known, reading.seen)

    async def _begun(self, known: Known, begin: Callable[[Seen], Plan | Refusal]) -> Reading:
        """It is told to run, as it was when there was room for it; and is read. Where `begin` writes nothing, nothing
        would be refused if the job were otherwise by now: then it is decided on a new reading."""
        first, known.last = self._lately(known), None
        if first is not None:
            plan = begin(first.seen)
            first = first if isinstance(plan, Plan) and plan.writes else None
        runs = await self._written(known, begin, first)
        return (await self._patiently(lambda: self._reading(known))).expects_edit() if runs is None else runs

    async def _ends_well(self, job: str, known: Known) -> None:
        """Returns at once where the job has failed. One that succeeds is no start that was refused: the look at it
        ends its recovery, and this with it, but where its ranks may have ended well because they were told to save."""
        while True:
            reading = await self._patiently(lambda: self._reading(known))
            now = standing(reading.seen)
            if now.ended or not now.ending:
                break
            await self._turn(known, reading.changes)
        if now.ended == "succeeded":
            self.look_again(job)
            await asyncio.sleep(ENDS_WELL_S)

    async def _tell_why(self, job: str, seen: Seen, waited: Waited) -> None:
        sentence, hopeless = await self._why_not_up(seen)
        if sentence and sentence != waited.told:
            waited.told = sentence
            self.tell(job, "StartWaits", sentence)
        if waited.hopeless.lasts(hopeless):
            raise TemporaryError(sentence)

    # ------------------------------------------------------------ stopping

    async def stop(
        self, job: str, incarnation: int, grace_s: float, ends: Callable[[], bool] = lambda: False
    ) -> StopOutcome:
        """By the kind's own means; gone when no pod of it lives, whatever the kind's condition says.

        What an operator starts again at once, since its kind cannot be held stopped, is the next incarnation.
        """
        known = self._known(job)
        mark, asked, was = f"{job}:{incarnation}", max(1, int(grace_s)), known.changes

        def theirs(seen: Seen) -> bool:
            """Has somebody else let it run since it was stopped, and may they?"""
            stopped = known.obeyed == mark or job_stop.marked(seen, mark)
            return job_stop.resumed(seen, stopped=stopped) and not ends()

        try:
            async with asyncio.timeout(AWAY_S):
                before = await self._patiently(lambda: self._reading(known))
                held = known.ref.row.holds
                if known.old[0] != mark:  # what its owner has made again since is no part of the stop
                    known.old = mark, frozenset(text(pod, "metadata.uid") for pod in before.seen.pods)
                old = set(known.old[1])
                only = None if held else old

                def decide(seen: Seen) -> Plan | Refusal:
                    return Plan() if theirs(seen) else job_stop.stop(seen, mark, asked, only)

                left = Left(held, old, theirs)
                as_it_is = await self._written(known, decide, before)
                if as_it_is is not None:
                    reading = as_it_is
                elif left.of(before.seen):  # told to end, and read when the watch tells of it
                    reading = before.expects_edit()
                else:
                    reading = await self._patiently(lambda: self._reading(known))
            if not known.pods:  # a predecessor knew them
                self._took(known, before.seen)
        except NotFound:
            return StopOutcome(gone=True)
        except TimeoutError:
            return await self._stop_refused(job, known, was, WAITS, AWAY)
        except TemporaryError as error:
            return await self._stop_refused(job, known, was, WAITS, str(error))
        except PermanentError as error:
            if error.reason != Reason.ENDED:
                return await self._stop_refused(job, known, was, error.reason, str(error))
            reading, left = await self._patiently(lambda: self._reading(known)), Left(True, set(), theirs)
        known.refused, known.refuses = "", False
        try:
            async with asyncio.timeout(asked + STOP_SLACK_S):
                while (
                    (alive := left.of(seen := reading.seen))
                    and not job_stop.failed(seen)
                    and not theirs(seen)
                ):
                    if not job_stop.resumed(seen, stopped=True):
                        known.obeyed = mark
                    await self._hurry(alive, grace_s)
                    await self._turn(known, reading.changes, all_may_end(alive))
                    reading = await self._patiently(lambda: self._reading(known))
        except NotFound:
            known.pods = {}
            return StopOutcome(gone=True)
        except TimeoutError:
            return await self._not_gone(job, incarnation, known, left, asked)
        if why := job_stop.failed(seen):
            return StopOutcome(gone=False, ended=why)
        if theirs(seen):
            return await self._left_to_others(job, seen)
        known.pods, known.last = {}, reading
        return StopOutcome(gone=True)

    async def _left_to_others(self, job: str, seen: Seen) -> StopOutcome:
        """What its recovery does goes no further."""
        try:
            if not await self._patiently(lambda: self.leave(job)):
                return StopOutcome(gone=False, waits=job_stop.SUSPENDED_AGAIN)
        except PermanentError as error:
            log.warning("mark_left", job=job, error=str(error))
        with contextlib.suppress(NotFound):  # of the read that showed it parts may be older than others
            seen = (await self._patiently(lambda: self._reading(self._known(job)))).seen
        self.vacate(job)
        self.look_again(job)
        return StopOutcome(gone=False, waits=job_stop.theirs(seen, job_stop.STOPS), theirs=True)

    async def leave(self, job: str) -> bool:
        """To somebody else who lets it run, though Sentinel had stopped it: without a mark. False: nobody does."""
        resumed = False

        def decide(seen: Seen) -> Plan:
            nonlocal resumed
            resumed = job_stop.resumed(seen, stopped=True)
            return job_start.settle(seen) if resumed else Plan()

        await self._decided(self._known(job), decide)
        if resumed:
            self._rooms.kept(job)
        return resumed

    async def _stop_refused(
        self, job: str, known: Known, was: Changes, reason: str, sentence: str
    ) -> StopOutcome:
        """Said at once, and tried again when there is something new. Where its kind offers no way its operator may have
        started it again by now, of which no watch will tell any more: it is looked at."""
        if known.refused == sentence:
            await self._turn(known, was, within_s=REFUSED_S)
        known.refused, known.refuses = sentence, reason != WAITS
        if known.refuses:
            self.look_again(job)
        return StopOutcome(gone=False, waits=sentence, reason=reason)

    async def _hurry(self, pods: Sequence[Json], grace_s: float) -> None:
        """What is being ended already gets no more time than was asked for, where its own pods would have more."""
        wanted_s = max(1, int(grace_s))
        for pod in pods:
            own_s = number(pod, "metadata.deletionGracePeriodSeconds")
            if own_s is not None and own_s > wanted_s:
                await self._delete(pod, wanted_s)

    async def _delete(self, pod: Json, grace_s: int) -> None:
        await self._patiently(lambda: delete_pod(self._client, pod, grace_s, self._epoch))

    async def _patiently(self, what: Callable[[], Awaitable[T]]) -> T:
        """Until it is answered. An API server that is away says nothing of the job, nor does a Lease that is renewed
        late: how long that is waited for is up to the deadline of the recovery's phase, and who leads no more is
        cancelled. Raises TemporaryError for what the kind cannot do now."""
        while True:
            try:
                return await what()
            except (TemporaryError, NotLeading) as error:
                if isinstance(error, _NotNow):
                    raise
                log.warning("asks_again", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(ASK_AGAIN_S)

    async def _not_gone(
        self, job: str, incarnation: int, known: Known, left: Left, grace_s: float
    ) -> StopOutcome:
        """Judged by what is so now: an API server that is away, or an operator that is slow, is no stuck process."""
        was = known.changes
        try:
            async with asyncio.timeout(ANSWER_S):
                seen = (await self._patiently(lambda: self._reading(known))).seen
        except TimeoutError:
            return await self._stop_refused(job, known, was, WAITS, AWAY)
        except NotFound:
            return StopOutcome(gone=True)
        if why := job_stop.failed(seen):
            return StopOutcome(gone=False, ended=why)
        if left.theirs(seen):
            return await self._left_to_others(job, seen)
        if not (pods := left.of(seen)):
            known.pods = {}
            return StopOutcome(gone=True)
        if excuse := left.excuse(pods, grace_s):
            return StopOutcome(gone=False, waits=excuse)
        return await self._outlived(job, incarnation, known, pods)

    async def _outlived(self, job: str, incarnation: int, known: Known, pods: Sequence[Json]) -> StopOutcome:
        """Pods that outlive their grace. What runs no user code any more goes by force, and its node needs a reboot;
        where nobody can look it is waited for: the node's fencing settles what becomes of them."""
        asked = await self._ask(job, incarnation, What.PROCESSES, ANSWER_S)
        able = sorted(node for node, answer in asked.items() if answer.may_run)
        if able:
            said = [line for node in able for line in asked[node].texts]
            return StopOutcome(gone=False, stuck=(*(f"pod {name}" for name in names(list(pods))), *said))
        looked_at = {pod.uid for node, pod in known.pods.values() if node in asked}
        dark = sorted(
            {text(pod, "spec.nodeName") for pod in pods if text(pod, "metadata.uid") not in looked_at} - {""}
        )
        dead = [pod for pod in pods if text(pod, "metadata.uid") in looked_at]
        for pod in (*dead, *(pod for pod in pods if not text(pod, "spec.nodeName"))):
            log.warning("removed_by_force", job=job, pod=text(pod, "metadata.name"))
            await self._delete(pod, 0)
        return StopOutcome(gone=False, waits=job_waits.outlived(dead, dark))

    # ------------------------------------------------------------ inside

    async def _written(
        self, known: Known, decide: Callable[[Seen], Plan | Refusal], first: Reading | None
    ) -> Reading | None:
        """As `_decided`, but until it is answered. What was not may be done: then it is read again."""
        readings = iter((first,))
        return await self._patiently(lambda: self._decided(known, decide, next(readings, None)))

    async def _decided(
        self, known: Known, decide: Callable[[Seen], Plan | Refusal], first: Reading | None = None
    ) -> Reading | None:
        """Read, decide, write; again from the reading where somebody else's write came between. What was read last;
        None: it was changed. `first`: what was read already, for the first try; what is written is refused where the
        job has changed since."""
        for left in reversed(range(TRIES)):
            reading, first = first or await self._reading(known), None
            plan = decide(reading.seen)
            if isinstance(plan, Refusal):
                if plan.reason in job_stop.LATER:
                    raise _NotNow(plan.sentence)
                raise PermanentError(plan.sentence, plan.reason)
            try:
                await carry_out(self._client, plan, self._epoch)
            except Conflict:
                if not left:
                    raise
                continue
            return None if plan.writes else reading
        raise AssertionError("unreachable")


def _asked_about(job: ProtectedJob) -> Collection[str]:
    """The components that must be well on a node of the job. One that is moved for what is found on its nodes would
    leave a bad one again, whatever is bad there."""
    return job.policy.precheck.checks if job.policy.resume is None else tuple(Component)
