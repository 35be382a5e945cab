"""Which policy protects which job, and what that means for the job's pods. Pure.

A policy picks jobs of its own namespace. Of several that pick one job the oldest that is accepted is in force; the
newer ones are told that they conflict. A policy that is not accepted, or not judged yet, gives nothing but care: the
pods of what it picks count as protected, and are never removed on its word.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from sentinel.core.fleet.model import Mode
from sentinel.core.policy_model import LostNode, Policy

NAMED = 10  # jobs that one message names
PODS = "Pod"  # in `kinds`: pods of owners of no known kind. Never without that word: they may be anything


class Selector(Struct, frozen=True, rename="camel"):
    """`spec.jobs`: what is not written fits every job of the namespace."""

    kinds: tuple[str, ...] = ()  # Job, or Job.batch where two groups have one name; PODS: see Job.by_pods
    match_labels: dict[str, str] = {}
    name: str = ""


class Job(Struct, frozen=True):
    """A job of any kind, as much of it as is needed to pick it."""

    kind: str
    group: str
    namespace: str
    name: str
    labels: dict[str, str] = {}
    by_pods: bool = False  # only its pods are known, and an owner whose kind is not

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Judged(Struct, frozen=True):
    """What Sentinel says of a policy. `policy` None: it is refused, for all the `problems`."""

    policy: Policy | None = None
    summary: str = ""  # of a good one, in words
    problems: tuple[str, ...] = ()


class Asked(Struct, frozen=True):
    """A JobPolicy as it stands in the cluster. `selector` None: it picks no job."""

    namespace: str
    name: str
    uid: str
    created: str  # RFC 3339, which orders by text
    selector: Selector | None
    judged: Judged | None = None  # None: not yet

    @property
    def policy(self) -> Policy | None:
        return None if self.judged is None else self.judged.policy

    @property
    def age(self) -> tuple[str, str, str]:
        """The oldest first; of the same second by name."""
        return self.created, self.name, self.uid


class Protection(Struct, frozen=True):
    """What holds for the pods of a job that no repair may harm: of a protected one, or of one that may be."""

    force_after_s: float | None = None  # LostNode.force_after_s
    self_fence_s: float | None = None  # LostNode.self_fence_s
    stop_s: float | None = None  # the time it gets to save and stop; None: it is not stopped for a finding
    removal: Mode | None = None  # by force from a lost node; None: nobody's word allows it


def picks(asked: Asked, job: Job) -> bool:
    selector = asked.selector
    return (
        selector is not None
        and asked.namespace == job.namespace
        and _of_kind(selector.kinds, job)
        and (not selector.name or selector.name == job.name)
        and all(job.labels.get(key) == value for key, value in selector.match_labels.items())
    )


def _of_kind(kinds: Sequence[str], job: Job) -> bool:
    if job.by_pods:
        return PODS in kinds
    return not kinds or job.kind in kinds or f"{job.kind}.{job.group}" in kinds


def in_force(asked: Iterable[Asked], job: Job) -> Asked | None:
    """The oldest accepted policy that picks this job."""
    return min(
        (one for one in asked if one.policy and picks(one, job)), key=lambda one: one.age, default=None
    )


def protection(asked: Sequence[Asked], job: Job) -> Protection | None:
    """None: the job is not protected."""
    chosen = in_force(asked, job)
    if chosen is None or chosen.policy is None:
        return Protection() if any(picks(one, job) for one in asked) else None
    policy = chosen.policy
    if policy.mode == "observe":  # nothing is touched on its word
        return Protection(removal=Mode.OBSERVE)
    stop_s = None
    if policy.resume is not None:
        checkpoint = policy.resume.checkpoint
        stop_s = (checkpoint.timeout_s if checkpoint is not None else 0.0) + policy.resume.graceful_stop_s
    lost = policy.lost_node or LostNode()
    return Protection(lost.force_after_s, lost.self_fence_s, stop_s, Mode.ENFORCE)


def conflicts(asked: Iterable[Asked], jobs: Iterable[Job]) -> Mapping[str, str]:
    """UID of a policy that is not in force for a job that it picks -> a sentence that names the jobs."""
    accepted = sorted((one for one in asked if one.policy), key=lambda one: one.age)
    if len(accepted) < 2:
        return {}
    lost: dict[str, dict[str, list[str]]] = {}  # uid -> name of the older one -> jobs
    for job in jobs:
        picking = [one for one in accepted if picks(one, job)]
        for one in picking[1:]:
            lost.setdefault(one.uid, {}).setdefault(picking[0].name, []).append(job.title)
    return {
        uid: " ".join(_sentence(name, found) for name, found in sorted(of.items()))
        for uid, of in lost.items()
    }


def _sentence(older: str, jobs: list[str]) -> str:
    named = ", ".join(sorted(jobs)[:NAMED])
    more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
    return f"The older policy {older} stays in force for {named}{more}."
