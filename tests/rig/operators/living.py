"""A job under its real operator, read and written as sentinel/core/job/ says."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sentinel.core.job.kinds import KeepOff, row_of
from sentinel.core.job.limits import limits
from sentinel.core.job.ranks import RankPod, ranks, selector
from sentinel.core.job.start import settle, start
from sentinel.core.job.state import SENTINEL, Seen, living, standing
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Plan, Refusal, Verb, Write
from sentinel.rules.job_kinds import job_table
from tests.rig.api import Api, ApiError, Object
from tests.rig.processes import RigError, until

MARK = "lab.train-0001"
NUDGE_AFTER_S, LOOK_EVERY_S = 30.0, 0.2


def path_of(write: Write) -> str:
    root = f"/apis/{write.group}/{write.version}" if write.group else f"/api/{write.version}"
    kind = f"{root}/namespaces/{write.namespace}/{write.plural}"
    if write.verb is Verb.CREATE:
        return kind
    return f"{kind}/{write.name}" + (f"/{write.part}" if write.part else "")


def perform(admin: Api, plan: Plan) -> None:
    """Each write waits for the answer of the one before. Raises ApiError."""
    answered = ""
    for write in plan.writes:
        body = write.request(answered)
        if write.verb is Verb.PATCH:
            answered = admin.patch(path_of(write), body)["metadata"]["resourceVersion"]
        elif write.verb is Verb.DELETE:
            admin.call("DELETE", path_of(write), body)
        else:
            admin.call("POST", path_of(write), body)


@dataclass
class Living:
    """One job in a namespace of its own."""

    admin: Api
    space: str
    job: Object

    def __post_init__(self) -> None:
        self.job["metadata"]["namespace"] = self.space
        self.path = self.admin.path_of(self.job)

    def seen(self) -> Seen:
        job = self.admin.get(self.path)
        row = row_of(job_table().rows, job)
        assert row is not None
        assert not row.fallback
        chosen = selector(row, job)
        pods = self._items("/api/v1", "pods", chosen) if chosen else []
        owns_jobs = row.keep_off in (KeepOff.CHILDREN, KeepOff.SELECTOR)
        children = self._items("/apis/batch/v1", "jobs", chosen) if owns_jobs and chosen else []
        return Seen(row=row, job=job, pods=tuple(pods), children=tuple(children), workload=self.workload(job))

    def workload(self, job: Object) -> Object | None:
        """Kueue's, where there is one."""
        try:
            found = self.admin.items(f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{self.space}/workloads")
        except ApiError:
            return None
        uid = job["metadata"]["uid"]
        owned = (
            one for one in found if any(o["uid"] == uid for o in one["metadata"].get("ownerReferences", []))
        )
        return next((self._whole(one, "kueue.x-k8s.io/v1beta1", "Workload") for one in owned), None)

    def _items(self, root: str, plural: str, chosen: str) -> list[Object]:
        found = self.admin.items(f"{root}/namespaces/{self.space}/{plural}", labelSelector=chosen)
        version, kind = root.partition("/apis/")[2] or "v1", {"pods": "Pod", "jobs": "Job"}[plural]
        return [self._whole(one, version, kind) for one in found]

    @staticmethod
    def _whole(one: Object, version: str, kind: str) -> Object:
        return {**one, "apiVersion": version, "kind": kind}  # which a list leaves out

    def do(self, decide: Callable[[Seen], Plan | Refusal]) -> Plan:
        """Decides anew when the object has changed since it was read, which operators do all the time."""
        done: list[Plan] = []

        def once() -> bool:
            plan = decide(self.seen())
            assert isinstance(plan, Plan), plan
            try:
                perform(self.admin, plan)
            except ApiError as error:
                if error.status != 409:
                    raise
                return False
            done.append(plan)
            return True

        until(once, self.why, every_s=LOOK_EVERY_S)
        return done[0]

    # ------------------------------------------------------------ waiting

    def why(self) -> str:
        now = self.seen()
        pods = [
            (p["metadata"]["name"], p["spec"].get("nodeName"), p["status"].get("phase")) for p in now.pods
        ]
        events = self.admin.items(f"/api/v1/namespaces/{self.space}/events")
        said = [f"{e['involvedObject']['name']}: {e['reason']}: {e['message']}" for e in events]
        return "\n".join([f"{pods}", f"{now.job.get('spec')}", f"{now.job.get('status')}", *said])

    def running(self, size: int) -> tuple[RankPod, ...]:
        """Waits until so many ranks run, with everything that belongs to them."""

        def all_run() -> bool:
            pods = self.seen().pods
            return self.numbers() == list(range(size)) and all(
                pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
                for pod in pods
            )

        try:
            until(all_run, self.why, NUDGE_AFTER_S, LOOK_EVERY_S)
        except RigError:
            self._nudge()
            until(all_run, self.why, every_s=LOOK_EVERY_S)
        return ranks(self.seen())

    def _nudge(self) -> None:
        """On a machine with no time to spare kwok misses a pod once in a while: a change makes it look again."""
        for pod in self.seen().pods:
            if pod["status"].get("phase") == "Pending" and pod["spec"].get("nodeName"):
                path = f"/api/v1/namespaces/{self.space}/pods/{pod['metadata']['name']}"
                self.admin.patch(path, {"metadata": {"annotations": {"test-rig/nudged": "true"}}})

    def numbers(self) -> list[int]:
        return sorted(one.rank for one in ranks(self.seen()) if one.rank is not None)

    def gone(self, before: set[str]) -> None:
        """None of these pods is left, nor any other of the job."""

        def left() -> bool:
            there = self.admin.items(f"/api/v1/namespaces/{self.space}/pods")
            known = [pod for pod in there if pod["metadata"]["uid"] in before]
            return bool(living((*known, *self.seen().pods)))

        until(lambda: not left(), self.why, every_s=LOOK_EVERY_S)

    def ended(self, how: str) -> None:
        until(lambda: standing(self.seen()).ended == how, self.why)

    # ------------------------------------------------------------ the whole way

    def create(self, size: int) -> tuple[RankPod, ...]:
        until(self._created, "an operator has not heard of what the job refers to", every_s=LOOK_EVERY_S)
        return self.running(size)

    def _created(self) -> bool:
        try:
            self.admin.create(self.job)
        except ApiError as error:
            if error.status == 403 and "must be created before" in str(error):  # it was: it is not yet seen
                return False
            raise
        return True

    def stop(self) -> None:
        """By the kind's own means; what was decided about an older state is refused."""
        before = {pod["metadata"]["uid"] for pod in self.seen().pods}
        plan = self.do(lambda seen: stop(seen, MARK))
        for write in plan.writes:
            if write.verb is Verb.PATCH:
                with pytest.raises(ApiError, match="409"):
                    self.admin.patch(path_of(write), write.request("1"))
        self.gone(before)
        now = standing(self.seen())
        assert (now.stopped, now.stopped_by, now.mark, now.ended) == (True, SENTINEL, MARK, "")

    def evict(self) -> None:
        """Of a kind that is made anew at once: until none of the pods is left that were evicted."""
        plan = self.do(lambda seen: stop(seen, MARK))
        evicted = {write.uid for write in plan.writes if write.verb is Verb.EVICT}
        assert evicted

        def gone() -> bool:
            return not evicted & {pod["metadata"]["uid"] for pod in self.seen().pods}

        until(gone, self.why, every_s=LOOK_EVERY_S)

    def start(
        self,
        size: int | None = None,
        hosts: tuple[str, ...] = (),
        last: tuple[str, ...] = (),
        waits: bool = False,
    ) -> None:
        """It costs of the kind's own restarts what the plan says, and leaves no mark. `waits`: its queue is full."""
        used = [one.used for one in limits(self.seen())]
        plan = self.do(lambda seen: start(seen, size=size, hosts=hosts, last=last))
        until(lambda: waits or not standing(self.seen()).stopped, self.why, every_s=LOOK_EVERY_S)
        self.do(settle)
        until(
            lambda: [one.used for one in limits(self.seen())] == _costed(used, plan),
            self.why,
            every_s=LOOK_EVERY_S,
        )
        assert standing(self.seen()).mark == ""


def _costed(used: list[int | None], plan: Plan) -> list[int | None]:
    """What the kind counts after the start: the first of its limits pays."""
    first, *rest = used or [None]
    return [] if not used else [first if first is None else first + plan.costs, *rest]
