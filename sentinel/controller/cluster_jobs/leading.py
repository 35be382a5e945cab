"""The jobs that policies protect, for as long as this controller leads: which there are, what becomes of them, and what
Sentinel does about it. Joins the controller of jobs with their objects, their pods and the agents on their nodes."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable

import structlog
from msgspec import structs

from sentinel.cluster.base import RankProcess
from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound, NotLeading
from sentinel.cluster.kubernetes.events import Events
from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.cluster.kubernetes.job_owners import JobOwners
from sentinel.cluster.kubernetes.job_records import JobRecords, job_name
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.cluster.kubernetes.objects import Pod
from sentinel.cluster.kubernetes.reflector import Change
from sentinel.controller.cluster_jobs.growth import JobGrowth
from sentinel.controller.cluster_jobs.hands import JobHands
from sentinel.controller.cluster_jobs.heard import JobNodes
from sentinel.controller.cluster_jobs.looks import JobLooks, Tracked, apart_s
from sentinel.controller.cluster_jobs.on_nodes import JobsOnNodes
from sentinel.controller.cluster_jobs.past import JobPast
from sentinel.controller.cluster_jobs.telling import JobTelling
from sentinel.controller.cluster_jobs.troubles import of_jobs
from sentinel.controller.effects.notify import TOGETHER, Notifier
from sentinel.controller.jobs.mail import JobMail
from sentinel.controller.jobs.numbers import JobMeter
from sentinel.controller.jobs.of_cluster import JobsController
from sentinel.controller.troubles import Trouble
from sentinel.core.agents.epochs import Epochs
from sentinel.core.decision import policy
from sentinel.core.fleet.model import Mode
from sentinel.core.fleet.settings import FleetSettings, pool_of
from sentinel.core.job import brakes as job_brakes
from sentinel.core.job.look import Look
from sentinel.core.model import Incident, IncidentKind, ProtectedJob
from sentinel.core.now import Now
from sentinel.core.people.protection import Job, in_force, picks
from sentinel.core.policy_model import Policy
from sentinel.metrics.registry import Metrics
from sentinel.rules.failures import failure_classes
from sentinel.settings import Settings
from sentinel.status import jobs_read
from sentinel.transport.wire import Alive, Arrived, Orders
from sentinel.util.clock import boot_id, system_now
from sentinel.util.errors import PermanentError, TemporaryError
from sentinel.util.slices import in_slices
from sentinel.web.fleet_view import JobRow
from sentinel.web.view import Protector, View, build_view, rank_rows

log = structlog.get_logger(__name__)

TURN_S = 0.5
ROUND_S = 2.0  # between two rounds about all jobs, at least; what happens to one is decided on at once
JOBS_PER_S = 400  # of thousands so many
NO_PODS = "It has no pod any more, and for minutes its owner has made none."
AGAIN_S = 2.0


class LeadingJobs:
    """`lead` runs while this process leads; reports and orders go through it all the time."""

    def __init__(
        self,
        client: Client,
        fleet: KubernetesFleet,
        nodes: JobNodes,
        epoch: Callable[[], int],
        epochs: Epochs,
        instance: str,
        settings: Settings,
        allowed: FleetSettings,
        metrics: Metrics,
        say: Callable[[str], None],
        orders_changed: Callable[[str], None],
    ) -> None:
        self._client, self._fleet, self._nodes = client, fleet, nodes
        self._epoch, self._epochs, self._settings, self._allowed = epoch, epochs, settings, allowed
        self._metrics, self._say, self._orders_changed = metrics, say, orders_changed
        self._events = Events(client, instance, system_now)
        self._cluster: JobCluster
        self._records: JobRecords
        self._telling: JobTelling
        self._mail: JobMail
        self._turned_mono_s = 0.0
        self._unread = ""  # why the records of jobs cannot be read
        self._boot_id = boot_id()
        self._failures = failure_classes()
        self._agents = Agents(orders_changed)
        self._rooms = Rooms(fleet.nodes, lambda: fleet.pods.followed.objects, system_now)
        self._tracked: dict[str, Tracked] = {}
        self._dirty: set[str] = set()  # namespaces
        self._wake = asyncio.Event()
        self._at: JobLooks | None = None
        self._places: JobsOnNodes | None = None
        self.controller: JobsController | None = None
        self.notifier: Notifier | None = None
        self._owners = JobOwners(client, settings.owners, system_now, self._owners_changed)
        fleet.pods.namespace_changed = self._namespace_changed
        fleet.pods.job_changed = self._job_changed

    # ------------------------------------------------------------ what is heard

    def orders(self, node: str) -> Orders:
        return self._agents.orders(node)

    def arrived(self, arrived: Arrived) -> None:
        report = self._nodes.arrived(arrived)
        self._agents.arrived(arrived)
        if self.controller is None or self._places is None:
            return
        if report is not None:
            self.controller.fold(self._places.own(report, arrived.node))
        if arrived.report.checks:
            self._places.heard(arrived.node)

    def alive(self, alive: Alive) -> None:
        self._nodes.alive(alive)

    def _namespace_changed(self, namespace: str) -> None:
        self._dirty.add(namespace)
        self._wake.set()

    def _owners_changed(self, namespace: str) -> None:
        for tracked in self._tracked.values():
            tracked.changed |= tracked.ref.namespace == namespace
        self._wake.set()

    def _job_changed(self, job: Job, of_pod: Change[Pod] | None) -> None:
        if self.controller is not None and _name(job) in self._tracked:
            self._cluster.changed(_name(job), of_pod)
            self._look_again(_name(job))

    def _look_again(self, name: str) -> None:
        if (tracked := self._tracked.get(name)) is not None:
            tracked.changed = True
            self._wake.set()

    # ------------------------------------------------------------ what is shown

    def rows(self, now: Now) -> list[JobRow]:
        """All jobs that have a record; none while another one leads."""
        if self.controller is None:
            return []
        found = []
        for job, newest in self._records.newest():
            picture = self.controller.pictures.get(job.name)
            step = None if picture is None else picture.timing.last_step
            shown = job if step is None else structs.replace(job, last_step=step)
            found.append(jobs_read.row(shown, newest, {}, now))
        return found

    def since(self, wall_s: float) -> list[tuple[Incident, ProtectedJob]]:
        return [] if self.controller is None else self._records.since(wall_s)

    def view(self, name: str, now: Now) -> View | None:
        """One job with its ranks and its story; None: not known here."""
        job = None if self.controller is None else self._records.job(name)
        if job is None or self.controller is None:
            return None
        picture, nodes = self.controller.pictures.get(name), self._cluster.nodes(name)
        return build_view(
            job,
            now=now,
            boot_id=self._boot_id,
            incidents=self._records.incidents(name),
            events=self._telling.lately(name),
            ranks=() if picture is None else rank_rows(picture, now, nodes),
            findings=() if picture is None else picture.findings,
            course=() if picture is None else picture.timing.course.points(now),
            degraded=self._records.degraded(name),
            phase="" if picture is None else picture.timing.hang.phase(now),
            protector=Protector(pid=os.getpid(), loop_age_s=now.mono_s - self._turned_mono_s),
        )

    def on(self, node: str) -> tuple[str, ...]:
        """Protected jobs with ranks there."""
        return () if self._places is None else self._places.on(node)

    # ------------------------------------------------------------ leading

    async def lead(self) -> None:
        """Until cancelled. What an earlier leader left is taken up where it stood."""
        led_before = self.notifier is not None
        self._nodes.forget()
        self._agents = Agents(self._orders_changed)
        self._cluster = JobCluster(self._client, self._agents, self._epoch, self._rooms)
        self._cluster.unfit, self._cluster.unreached = self._nodes.unfit, self._nodes.unreached
        self._cluster.back_lately, self._cluster.leaving = self._nodes.back_lately, self._nodes.leaving
        self._cluster.observed = self._observed
        self._cluster.tell, self._cluster.queued = self._told, self._queued
        self._cluster.look_again = self._look_again
        self._telling = telling = JobTelling(self._events, self._cluster, self._fleet)
        self._tracked = {}
        pods = self._fleet.pods
        await pods.followed.wait_synced()
        await pods.policies.followed.wait_synced()
        await pods.jobs.wait_known()
        self._records = records = JobRecords(
            self._client,
            self._epoch,
            self._epochs,
            lambda event: telling.tell(event, records.last(event.job)),
            self._metrics.record_failed,
        )
        await self._loaded()
        self.controller = controller = JobsController(
            self._cluster,
            self._records,
            self,
            self._failures,
            system_now,
            self._boot_id,
            may=self._may,
            holds=self._cluster.holds,
            others=JobPast(records.incidents, system_now).struck,
            metrics=self._metrics,
            say=lambda name, sentence: self._say(f"{name}: {sentence}"),
            wake_mail=lambda: self.notifier.wake() if self.notifier is not None else None,
            on_end=self._cluster.ended,
        )
        self._places = JobsOnNodes(controller, self._cluster, self._nodes, self._rooms)
        self._at = JobLooks(
            controller, self._cluster, self._records, self._boot_id, self._effective, self._nodes.lost
        )
        self._mail = controller.mail
        if self.notifier is None:
            self.notifier = Notifier(
                self._settings,
                lambda: self._mail.pending(),
                lambda record, mail: self._mail.record(record, mail),
                together=TOGETHER,
            )
        self.notifier.count(mail for one in records.incidents() for mail in one.mails)
        self._dirty = {""}
        if led_before:
            gc.collect()  # pictures of thousands of jobs, in cycles; else they stay for hours
        log.info("leads_jobs", recorded=len(self._records.jobs()))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._records.run())
                group.create_task(self._owners.run())
                group.create_task(self._events.run())
                group.create_task(self.notifier.run())
                group.create_task(self._turns(controller))
                group.create_task(self._rounds(controller, self._places))
                group.create_task(self._meter(controller).run())
                group.create_task(JobGrowth(controller, self._cluster, system_now, self._metrics).run())
                hands = JobHands(controller, self._cluster, self._records, pods.jobs)
                group.create_task(hands.run(self._client, self._epoch, self._metrics))
        except* NotLeading:
            log.info("leads_jobs_no_more")  # the election tells of it
        finally:
            self.controller = self._places = self._at = None
            for tracked in self._tracked.values():
                if tracked.look is not None:
                    tracked.look.cancel()
            await controller.close()

    async def end_mail(self, timeout_s: float) -> None:
        """A mail that is on its way is written down, at most so long, before another one leads."""
        if self.controller is None or self.notifier is None:
            return
        await self.notifier.rest(timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for name in list(self.controller.pictures):
                    await self._records.written(name)

    def _meter(self, controller: JobsController) -> JobMeter:
        return JobMeter(
            self._metrics,
            self._tracked.keys,
            controller.pictures,
            self._records.incidents,
            lambda: controller.held_back,
            system_now,
            self._records.jobs,
        )

    def measure(self, metrics: Metrics) -> None:
        """For a scrape."""
        if self.notifier is not None:
            self.notifier.measure(metrics)

    def troubles(self) -> dict[str, Trouble]:
        """What it cannot do as leader, by a name that stays the same."""
        records = None if self.controller is None else self._records
        return of_jobs(self._unread, self._tracked, records, system_now())

    async def _loaded(self) -> None:
        while True:
            try:
                await self._records.load()
            except NotLeading:
                raise
            except (TemporaryError, PermanentError) as error:
                log.warning("records_not_read", error=str(error))
                self._unread = str(error)
                await asyncio.sleep(min(getattr(error, "delay_s", AGAIN_S), AGAIN_S))
            else:
                self._unread = ""
                return

    async def _turns(self, controller: JobsController) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await self._wake.wait()
            self._wake.clear()
            self._sync()
            self._turned_mono_s = now_s = system_now().mono_s
            for name, tracked in list(self._tracked.items()):
                wanted = tracked.changed or now_s >= tracked.due_mono_s
                if wanted and tracked.look is None and now_s >= tracked.again_mono_s:
                    tracked.begun(now_s, apart_s(controller.pictures.get(name)))
                    tracked.look = asyncio.create_task(self._look(name, tracked), name=f"look at {name}")
            controller.cycle(name for name, one in controller.pictures.items() if one.incident is not None)

    async def _rounds(self, controller: JobsController, places: JobsOnNodes) -> None:
        """About every job, also where nothing happened to it."""
        while True:
            await asyncio.sleep(max(ROUND_S, len(controller.pictures) / JOBS_PER_S))
            self._keep_promises(controller)
            async for name in in_slices(list(controller.pictures)):
                places.note(name)
                controller.cycle((name,))

    # ------------------------------------------------------------ which jobs

    def _sync(self) -> None:
        dirty, self._dirty = self._dirty, set()
        if not dirty or not self._fleet.pods.policies.known:
            self._dirty |= dirty
            return
        jobs = self._fleet.pods.jobs
        if "" in dirty:
            dirty = jobs.namespaces() | {tracked.ref.namespace for tracked in self._tracked.values()}
        for namespace in dirty:
            policies = self._fleet.pods.policies.of(namespace)
            wanted: dict[str, tuple[JobRef, Policy]] = {}
            unsure: set[str] = set()  # until a policy that was written just now is judged
            if policies:
                for job, ref in jobs.refs(namespace):
                    asked = in_force(policies, job)
                    if asked is not None and asked.policy is not None:
                        wanted[_name(job)] = (ref, self._as_allowed(namespace, asked.policy))
                    elif any(one.judged is None and picks(one, job) for one in policies):
                        unsure.add(_name(job))
            # Recoveries that an earlier leader began are looked at first.
            for name in sorted(wanted, key=lambda name: not self._recovers(name)):
                self._take(name, *wanted[name])
            for name, tracked in list(self._tracked.items()):
                if tracked.ref.namespace == namespace and name not in wanted and name not in unsure:
                    self._leave(name, tracked)

    def _recovers(self, name: str) -> bool:
        incident = self._records.last(name)
        return incident is not None and not incident.phase.final

    def _as_allowed(self, namespace: str, asked: Policy) -> Policy:
        observed = self._allowed.mode is Mode.OBSERVE or namespace in self._allowed.observe_namespaces
        return structs.replace(asked, mode="observe") if observed else asked

    def _take(self, name: str, ref: JobRef, wish: Policy) -> None:
        known = self._tracked.get(name)
        if known is not None and known.ref == ref:
            if known.policy != wish:
                self._fleet.pods.policies.remark(ref.namespace, known.policy.name, name, {})
                known.policy = wish
                known.changed = True
            return
        if known is not None:  # another object has its name
            self._gone(name, "The job was deleted, and another one has its name.")
        self._cluster.know(name, ref, self._records.size(name, ref.uid))
        self._tracked[name] = Tracked(ref=ref, policy=wish)

    def _leave(self, name: str, tracked: Tracked) -> None:
        """No policy asks for it any more, or it is gone. What Sentinel has stopped it starts again first."""
        controller = self.controller
        picture = controller.pictures.get(name) if controller is not None else None
        if not self._fleet.pods.jobs.uid_known(tracked.ref.uid):
            self._gone(name, NO_PODS if tracked.ref.row.fallback else "The job was deleted.")
            return
        if picture is not None and picture.incident is not None:
            self._dirty.add(tracked.ref.namespace)  # once its recovery is over
            return
        if controller is not None and picture is not None:
            controller.drop(name)  # its record stays: a policy may ask for it again
        self._forget(name)

    def _gone(self, name: str, sentence: str) -> None:
        if self.controller is not None and name in self.controller.pictures:
            self.controller.gone(name, sentence)
        self._forget(name)

    def _forget(self, name: str) -> None:
        tracked = self._tracked.pop(name, None)
        if tracked is not None and tracked.look is not None and tracked.look is not asyncio.current_task():
            tracked.look.cancel()
        if tracked is not None:
            self._fleet.pods.policies.remark(tracked.ref.namespace, tracked.policy.name, name, {})
        self._cluster.forget(name)
        self._owners.forget(name)
        self._rooms.kept(name)
        self._telling.forget(name)
        if self._places is not None:
            self._places.forget(name)

    # ------------------------------------------------------------ looking at one

    async def _look(self, name: str, tracked: Tracked) -> None:
        try:
            if self._at is not None:
                await self._at.look(name, tracked)
            tracked.failures, tracked.problem = 0, ""
        except NotFound:
            if self._tracked.get(name) is tracked:
                self._gone(name, "The job was deleted.")
        except (TemporaryError, PermanentError) as error:
            log.warning("job_not_read", job=name, error=str(error))
            tracked.failed(str(error), system_now().mono_s)
        except Exception as error:  # the named boundary of one job: the others go on
            log.exception("look_broke", job=name)
            self._metrics.exception("job")
            self._say(f"{name}: a look at it broke: {error!r}")
            tracked.failed(repr(error), system_now().mono_s)
        finally:
            tracked.look = None

    def _effective(self, name: str, tracked: Tracked, seen: Look) -> Policy:
        """The policy, with whom the job's mails go to. What of it the job cannot have is said in its status."""
        self._fleet.pods.policies.remark(tracked.ref.namespace, tracked.policy.name, name, seen.remarks)
        return self._owners.policy(tracked.policy, name, seen.labels, seen.notes)

    # ------------------------------------------------------------ its nodes

    def follow(self, job: ProtectedJob, ranks: list[RankProcess]) -> None:
        self._cluster.follow(job, ranks)
        if self._places is not None:
            self._places.placed(job.name)
        tracked = self._tracked.get(job.name)
        if tracked is not None and tracked.look is not asyncio.current_task():
            tracked.changed = True  # some may have ended by now; a look at it sees to that itself
            self._wake.set()

    async def drain(self, job: str) -> None:
        await self._cluster.drain(job)

    def _keep_promises(self, controller: JobsController) -> None:
        """The room that a job is stopped for stays its own until it has been started there."""
        for name, picture in controller.pictures.items():
            if picture.incident is not None and picture.incident.kind is IncidentKind.CHOSEN:
                self._rooms.still(name)

    # ------------------------------------------------------------ what is allowed, and told

    def _may(self, job: ProtectedJob, decision: policy.Open) -> str:
        if self._fleet.paused:
            return f"Sentinel is paused: {self._fleet.paused}."
        if decision.kind is not IncidentKind.CHOSEN or self.controller is None:
            return ""
        pools = {name: self._pool(name) for name in self.controller.pictures}
        incidents = self._records.incidents()
        return job_brakes.held(job.name, pools, incidents, self._allowed, system_now())

    def _pool(self, name: str) -> str:
        nodes = self._fleet.nodes()
        for node in () if self._places is None else self._places.of(name):
            if (one := nodes.get(node)) is not None:
                return pool_of(one.metadata.labels, self._allowed)
        return ""

    def _observed(self, node: str) -> bool:
        """Is it of a pool that is only observed? One that is not known may be."""
        one = self._fleet.nodes().get(node)
        pools = self._allowed.observe_pools
        return bool(pools) and (one is None or pool_of(one.metadata.labels, self._allowed) in pools)

    def _told(self, name: str, reason: str, sentence: str) -> None:
        if self.controller is not None and name in self.controller.pictures:
            self.controller.note(name, reason, sentence)

    def _queued(self, name: str, waits: str) -> None:
        if self.controller is not None and name in self.controller.pictures:
            self.controller.start_waits(name, waits)


def _name(job: Job) -> str:
    return job_name(job.namespace, f"{job.kind}.{job.group}" if job.group else job.kind, job.name)
