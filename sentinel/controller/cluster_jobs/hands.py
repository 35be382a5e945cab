"""What people order of jobs is done, and what is kept for them to look into is let go in time."""

import asyncio
import contextlib
from collections.abc import Callable

import structlog
from msgspec import structs

from sentinel.cluster.kubernetes import job_io
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound, NotLeading
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_orders import JobOrders
from sentinel.cluster.kubernetes.job_records import JobRecords
from sentinel.cluster.kubernetes.jobs import Jobs
from sentinel.controller.jobs.of_cluster import JobsController
from sentinel.controller.jobs.people import People
from sentinel.core.job.orders import Action, ReleaseHold
from sentinel.core.model import FollowedOrder, Incident, ProtectedJob
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import system_now
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

LOOK_S = 2.0  # where nothing tells of an order; and how exactly a hold ends
AGAIN_S = 5.0  # what was held is asked again to end


class JobHands:
    """Implements `sentinel.controller.jobs.people.Hands`. `run` goes on until it is cancelled."""

    def __init__(
        self, controller: JobsController, cluster: JobCluster, records: JobRecords, jobs: Jobs
    ) -> None:
        self._controller, self._cluster, self._records, self._jobs = controller, cluster, records, jobs
        self._endings: dict[str, asyncio.Task[None]] = {}  # job -> the end of its hold

    async def run(self, client: Client, epoch: Callable[[], int], metrics: Metrics) -> None:
        wake = asyncio.Event()
        desk = JobOrders(client, epoch, system_now, self._records.observe, wake.set)
        people = People(desk, self, system_now, metrics)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(desk.run())
                group.create_task(self._take_over(client))
                while True:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await wake.wait()
                    wake.clear()
                    await people.turn()
                    self._end_what_is_over()
        finally:
            for task in self._endings.values():
                task.cancel()

    async def _take_over(self, client: Client) -> None:
        """What an earlier leader had to tell of jobs that are gone, or that no policy asks for any more; and which of
        its jobs went while nobody led."""
        left = {one.job for one in self._records.incidents() if any(m.state == "waiting" for m in one.mails)}
        there = self._jobs.uid_known
        left |= {job.name for job in self._records.jobs() if not (job.state.final or there(job.uid))}
        while left := left - self._controller.pictures.keys():
            for name in sorted(left):
                try:
                    await self._take_over_one(client, name)
                except NotLeading:
                    raise
                except TemporaryError as error:
                    log.warning("job_not_taken_over_yet", job=name, error=str(error))
                    continue
                except PermanentError as error:
                    log.warning("job_not_taken_over", job=name, error=str(error))
                left.discard(name)
            await asyncio.sleep(AGAIN_S)

    async def _take_over_one(self, client: Client, name: str) -> None:
        """Raises TemporaryError, PermanentError."""
        await self._records.claim(name)
        job = self._records.job(name)
        if job is None:
            return
        ref = None if self._jobs.uid_known(job.uid) else self._jobs.ref(name, job.uid)
        gone = ref is not None and await job_io.gone(client, ref)
        if name in self._controller.pictures:
            return
        for incident in self._records.incidents(name):
            self._controller.mail.keep(incident, job)
        if gone:
            self._controller.vanished(job, "The job was deleted.")

    def _end_what_is_over(self) -> None:
        now = system_now()
        for name, picture in list(self._controller.pictures.items()):
            until_s = picture.job.hold_until_wall_s
            if until_s is not None and now.wall_s >= until_s:
                self._let_go(name, "The time to look into its containers is over.")

    def _let_go(self, name: str, sentence: str) -> None:
        if name in self._endings:
            return
        self._controller.hold_ends(name, sentence)
        task = asyncio.create_task(self._end_hold(name), name=f"let go {name}")
        self._endings[name] = task
        task.add_done_callback(lambda _: self._endings.pop(name, None))

    async def _end_hold(self, name: str) -> None:
        """Until nothing of it is left, by this leader or by the next one: it would keep its GPUs for nothing."""
        incarnation = self._controller.pictures[name].job.incarnation
        while name in self._controller.pictures:
            try:
                await self._cluster.let_go(name, incarnation)
                stopped = await self._cluster.stop(name, incarnation, 1.0)
                if stopped.gone or stopped.ended or stopped.theirs:
                    break
                log.warning("held_runs_on", job=name, why=stopped.waits, stuck=stopped.stuck)
            except NotFound:
                break
            except (TemporaryError, PermanentError) as error:
                log.warning("hold_not_ended", job=name, error=str(error))
            await asyncio.sleep(AGAIN_S)
        if self._controller.held(name):
            self._controller.let_go(name)

    # ------------------------------------------------------------ Hands

    def job(self, name: str) -> ProtectedJob | None:
        picture = self._controller.pictures.get(name)
        return None if picture is None else picture.job

    def open_incident(self, name: str) -> Incident | None:
        picture = self._controller.pictures.get(name)
        return None if picture is None else picture.incident

    def held(self, name: str) -> bool:
        return self._controller.held(name)

    def obey(self, name: str, action: Action, order: FollowedOrder) -> None:
        if isinstance(action, ReleaseHold):
            picture = self._controller.pictures[name]
            picture.job = structs.replace(picture.job, order=order)
            self._let_go(name, action.sentence)
        else:
            self._controller.obey(name, action, order)

    async def written(self, name: str) -> None:
        await self._records.written(name)

    def declined(self, name: str, sentence: str) -> None:
        if name in self._controller.pictures:
            self._controller.note(name, "OrderDeclined", sentence)
