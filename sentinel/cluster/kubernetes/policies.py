"""The JobPolicies of a cluster: followed, judged, and told in their status what Sentinel thinks of them.

Every controller follows them; only the leader has them judged (by the code of `sentinel validate`, in a child) and
writes: `Accepted`, with all that is wrong in its message, and `Conflicted`, which names the jobs for which an older
policy stays in force. A verdict belongs to one generation of one object, so an edit is judged anew.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from msgspec import structs

from sentinel.cluster.kubernetes import conditions
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.conditions import Says
from sentinel.cluster.kubernetes.errors import Conflict, NotFound, NotLeading
from sentinel.cluster.kubernetes.objects import GROUP, JOB_POLICIES, VERSION, Custom, FullMeta
from sentinel.cluster.kubernetes.reflector import Change, Pace, Reflector
from sentinel.core.job.stop import no_owner
from sentinel.core.job.writes import Reason
from sentinel.core.people.protection import PODS, Asked, Job, Judged, Selector, conflicts, in_force
from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError

Judge = Callable[[Sequence[dict[str, Any]]], Awaitable[list[Judged]]]

log = structlog.get_logger(__name__)

AT_ONCE = 50  # policies for one child
SETTLE_S = 0.5  # many changes are one round
AGAIN_S = 5.0
MAX_REMARKS = 20  # about jobs, in one message
MAX_MESSAGE = 32_000  # characters; the schema of conditions allows 32768


class Policies:
    """`run` follows until it is cancelled; `lead` judges and writes, while this process leads.

    `judge` gives one verdict for each document, in order, and raises TemporaryError where it cannot judge now.
    `changed` gets the namespace in which something else is in force now.
    """

    def __init__(
        self,
        client: Client,
        judge: Judge,
        epoch: Callable[[], int],
        changed: Callable[[str], None],
        clock: Clock,
        pace: Pace = Pace(),  # noqa: B008  frozen
    ) -> None:
        self.known = False  # were they all listed once? Until then any pod may be a protected job's
        self.failures = 0
        self._conflicted = 0
        self._client, self._judge, self._epoch, self._clock = client, judge, epoch, clock
        self._tell_changed = changed
        self._asked: dict[str, dict[str, Asked]] = {}  # namespace -> name -> policy
        self._verdicts: dict[str, tuple[int, Judged]] = {}  # uid -> generation, and what was said of it
        self._remarks: dict[
            tuple[str, str], dict[str, dict[str, str]]
        ] = {}  # policy -> job -> reason -> sentence
        self._unjudged: dict[str, str] = {}  # uid -> why it cannot be judged
        self._followed = Reflector(client, JOB_POLICIES, Custom, self._on_change, pace=pace, clock=clock)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._followed.run())
            await self._followed.wait_synced()
            self.known = True
            for namespace in ("", *self._asked):
                self._tell_changed(namespace)

    @property
    def followed(self) -> Reflector[Custom]:
        return self._followed

    def of(self, namespace: str) -> list[Asked]:
        return list(self._asked.get(namespace, {}).values())

    def pick_pods(self, namespace: str) -> bool:
        """Does one of them ask for pods of owners of no known kind?"""
        there = self._asked.get(namespace, {}).values()
        return any(one.selector is not None and PODS in one.selector.kinds for one in there)

    def remark(self, namespace: str, policy: str, job: str, remarks: Mapping[str, str]) -> None:
        """What of this policy does not hold for this job: reason -> sentence. {}: it holds as it stands."""
        there = self._remarks.setdefault((namespace, policy), {})
        if there.get(job, {}) != remarks:
            there[job] = dict(remarks)
            self.wake()
        if not remarks:
            there.pop(job, None)
            if not there:
                del self._remarks[namespace, policy]

    def wake(self) -> None:
        """Jobs have changed: other policies may conflict."""
        self._wake.set()

    def measure(self, metrics: Metrics) -> None:
        """For a scrape. A standby has judged none."""
        states = Counter(
            "unjudged" if one.judged is None else "accepted" if one.policy is not None else "refused"
            for there in self._asked.values()
            for one in there.values()
        )
        states["conflicted"] = self._conflicted
        every = ("accepted", "refused", "unjudged", "conflicted")
        metrics.replace(declared.POLICIES, {(state,): states[state] for state in every})
        metrics.replace(declared.POLICY_FAILURES, {(): self.failures})

    # ------------------------------------------------------------ what is heard

    def _on_change(self, change: Change[Custom]) -> None:
        one = change.after or change.before
        if one is None:
            return
        meta = one.metadata
        if change.after is None:
            self._verdicts.pop(meta.uid, None)
            self._unjudged.pop(meta.uid, None)
            if there := self._asked.get(meta.namespace):
                there.pop(meta.name, None)
                if not there:
                    del self._asked[meta.namespace]
        elif change.before is not None and change.before.metadata.generation == meta.generation:
            return  # its status: our own words
        else:
            self._note(one)
        self._tell_changed(meta.namespace)
        self._wake.set()

    def _note(self, one: Custom) -> None:
        meta = one.metadata
        generation, judged = self._verdicts.get(meta.uid, (0, None))
        asked = Asked(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            created=meta.creation_timestamp or "",
            selector=_selector(one.spec),
            judged=judged if generation == meta.generation else None,
        )
        self._asked.setdefault(meta.namespace, {})[meta.name] = asked

    # ------------------------------------------------------------ what is said

    async def lead(
        self, jobs: Callable[[str], Iterable[Job]], alone: Callable[[str], Iterable[Job]] = lambda _: ()
    ) -> None:
        """Until cancelled; may be begun again. `jobs`: all of a namespace; `alone`: its pods that nobody made."""
        await self._followed.wait_synced()
        while True:
            self._wake.clear()
            well = await self._judge_new()
            well = await self._write(jobs, alone) and well
            with contextlib.suppress(TimeoutError):  # not wait_for, which may forget that it is cancelled
                async with asyncio.timeout(None if well else AGAIN_S):
                    await self._wake.wait()
            await asyncio.sleep(SETTLE_S)

    async def _judge_new(self) -> bool:
        """False: some could not be judged."""
        fresh = [one for one in self._followed.objects.values() if not self._current(one)]
        well = True
        for start in range(0, len(fresh), AT_ONCE):
            some = fresh[start : start + AT_ONCE]
            if await self._judge_these(some):
                continue
            # One of them may be made to hurt: the others must not wait for it.
            for one in some if len(some) > 1 else ():
                well = await self._judge_these([one]) and well
            well = well and len(some) > 1
        return well

    async def _judge_these(self, some: Sequence[Custom]) -> bool:
        try:
            verdicts = await self._judge([_document(one) for one in some])
        except TemporaryError as error:
            self.failures += 1
            log.warning("policies_not_judged", policies=len(some), error=str(error))
            if len(some) == 1:
                self._unjudged[some[0].metadata.uid] = str(error)
            return False
        for one, judged in zip(some, verdicts, strict=True):
            meta = one.metadata
            self._verdicts[meta.uid] = (meta.generation, judged)
            self._unjudged.pop(meta.uid, None)
            asked = self._asked.get(meta.namespace, {}).get(meta.name)
            newest = self._followed.objects.get(f"{meta.namespace}/{meta.name}")
            if asked is not None and newest is not None and self._current(newest):
                self._asked[meta.namespace][meta.name] = structs.replace(asked, judged=judged)
                log.info(
                    "policy_judged",
                    policy=meta.name,
                    namespace=meta.namespace,
                    accepted=judged.policy is not None,
                )
                self._tell_changed(meta.namespace)
        return True

    def _current(self, one: Custom) -> bool:
        return self._verdicts.get(one.metadata.uid, (0,))[0] == one.metadata.generation

    async def _write(
        self, jobs: Callable[[str], Iterable[Job]], alone: Callable[[str], Iterable[Job]]
    ) -> bool:
        """False: some could not be written."""
        well, conflicted = True, 0
        for namespace in list(self._asked):
            lost = conflicts(self.of(namespace), jobs(namespace)) if len(self.of(namespace)) > 1 else {}
            conflicted += len(lost)
            refused: dict[str, list[Job]] = {}
            for pod in alone(namespace) if self.pick_pods(namespace) else ():
                if (picked := in_force(self.of(namespace), pod)) is not None:
                    refused.setdefault(picked.uid, []).append(pod)
            for asked in self.of(namespace):
                one = self._followed.objects.get(f"{namespace}/{asked.name}")
                if one is not None and one.metadata.uid == asked.uid:
                    well = (
                        await self._say(
                            one, self._says(one, lost.get(asked.uid, ""), refused.get(asked.uid, []))
                        )
                        and well
                    )
        self._conflicted = conflicted
        return well

    def _says(self, one: Custom, conflict: str, alone: Sequence[Job]) -> list[Says]:
        uid = one.metadata.uid
        if not self._current(one):
            why = self._unjudged.get(uid, "")
            return [Says("Accepted", None, "NotJudged", _cut(why))] if why else []
        judged = self._verdicts[uid][1]
        if judged.policy is None:
            text = "\n".join(judged.problems)
            return [Says("Accepted", False, "Invalid", _cut(text)), Says("Conflicted", False, "NotAccepted")]
        picks_none = "" if "jobs" in one.spec else " It picks no job, since it has no spec.jobs."
        accepted = Says(
            "Accepted", True, "Valid" if not picks_none else "PicksNoJob", _cut(judged.summary + picks_none)
        )
        accepted_and = [accepted, self._limited(one.metadata, alone)]
        if conflict:
            return [*accepted_and, Says("Conflicted", True, "OlderPolicyInForce", _cut(conflict))]
        return [*accepted_and, Says("Conflicted", False, "NoConflict")]

    def _limited(self, meta: FullMeta, alone: Sequence[Job]) -> Says:
        """Of its jobs, what they cannot have of it."""
        there = self._remarks.get((meta.namespace, meta.name), {})
        told = [(reason, text) for found in there.values() for reason, text in found.items()]
        told += [(Reason.NO_OWNER, no_owner(pod.title)) for pod in alone]
        if not told:
            return Says("Limited", False, "HoldsAsItStands")
        reasons = Counter(reason for reason, _ in told)
        sentences = sorted({text for _, text in told})[:MAX_REMARKS]
        return Says("Limited", True, reasons.most_common(1)[0][0], _cut("\n".join(sentences)))

    async def _say(self, one: Custom, says: Sequence[Says]) -> bool:
        if not says:
            return True
        try:
            await conditions.write(self._client, JOB_POLICIES, one, says, self._epoch(), self._clock().wall_s)
        except (Conflict, NotFound):
            return False  # it has changed: the watch tells how
        except NotLeading:
            return True
        except (TemporaryError, PermanentError) as error:
            self.failures += 1
            log.warning("policy_status_not_written", policy=one.metadata.name, error=str(error))
            return False
        return True


def _selector(spec: dict[str, Any]) -> Selector | None:
    """What cannot be read picks everything: it is refused anyway, and keeps harm away until it is put right."""
    asked = spec.get("jobs")
    if asked is None:
        return None
    try:
        return msgspec.convert(asked, Selector)
    except msgspec.ValidationError:
        return Selector()


def _document(one: Custom) -> dict[str, Any]:
    meta = {"name": one.metadata.name, "namespace": one.metadata.namespace}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "JobPolicy", "metadata": meta, "spec": one.spec}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
