"""Whom the mails of a cluster's jobs go to: annotations of namespaces are followed, the rest comes with the job."""

from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct, structs

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.objects import NAMESPACES, FullMeta
from sentinel.cluster.kubernetes.reflector import Change, Pace, Reflector
from sentinel.core.people.owners import OWNER, Rule, owners
from sentinel.core.policy_model import Policy
from sentinel.util.clock import Clock

log = structlog.get_logger(__name__)


class _Namespace(Struct, frozen=True, gc=False):
    metadata: FullMeta


class JobOwners:
    """`changed` gets the namespace whose annotation is another now: its jobs' policies are to be asked for again."""

    def __init__(
        self,
        client: Client,
        rules: Sequence[Rule],
        clock: Clock,
        changed: Callable[[str], None],
        pace: Pace = Pace(),  # noqa: B008  frozen
    ) -> None:
        self._rules, self._changed = rules, changed
        self._wrong: dict[str, tuple[str, ...]] = {}  # job -> words that were told to be no addresses
        self.reflector = Reflector(client, NAMESPACES, _Namespace, self._seen, pace=pace, clock=clock)

    async def run(self) -> None:
        """Follow namespaces, until cancelled."""
        await self.reflector.run()

    def policy(
        self, policy: Policy, job: str, labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> Policy:
        """The job's policy with those whom its mails go to; none: administrators. `job`: ProtectedJob.name."""
        namespace = job.partition("/")[0]
        there = self.reflector.objects.get(namespace)
        found = owners(
            policy.emails,
            namespace=namespace,
            labels=labels,
            job_notes=annotations,
            namespace_notes=there.metadata.annotations if there is not None else {},
            rules=self._rules,
        )
        if found.wrong != self._wrong.get(job, ()):
            self._wrong[job] = found.wrong
            if found.wrong:
                log.warning("owner_unreadable", job=job, words=found.wrong)
        return policy if found.emails == policy.emails else structs.replace(policy, emails=found.emails)

    def forget(self, job: str) -> None:
        self._wrong.pop(job, None)

    def _seen(self, change: Change[_Namespace]) -> None:
        before, after = (
            one.metadata.annotations.get(OWNER, "") if one is not None else ""
            for one in (change.before, change.after)
        )
        one = change.after or change.before
        if one is not None and before != after:
            self._changed(one.metadata.name)
