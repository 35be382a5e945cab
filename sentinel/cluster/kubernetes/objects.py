"""The fields of Kubernetes' objects that Sentinel reads. What is not named here is not decoded.

`gc=False`: none of these can be part of a cycle, and ten thousand pods would else be walked by every collection.
"""

from typing import Any, Protocol

from msgspec import Struct, field

from sentinel.cluster.kubernetes.client import Resource
from sentinel.core.job.state import ASKS_FOR_START

NODES = Resource("", "v1", "nodes", namespaced=False)
PODS = Resource("", "v1", "pods")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps")
EVENTS = Resource("events.k8s.io", "v1", "events")
NODE_LEASES = "kube-node-lease"  # the namespace of the kubelets' leases

GROUP, VERSION = "sentinel.dev", "v1alpha1"
JOB_POLICIES = Resource(GROUP, VERSION, "jobpolicies")
PROTECTED_JOBS = Resource(GROUP, VERSION, "protectedjobs")
INCIDENTS = Resource(GROUP, VERSION, "incidents")
QUARANTINES = Resource(GROUP, VERSION, "quarantines", namespaced=False)

Labels = dict[str, str]


class Owner(Struct, frozen=True, gc=False, rename="camel"):
    kind: str
    name: str
    uid: str
    controller: bool = False
    api_version: str = ""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]


class LeaseMeta(Struct, frozen=True, gc=False, rename="camel"):
    """A kubelet's lease changes every ten seconds: nothing more is read of it."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Meta(LeaseMeta, frozen=True, gc=False, rename="camel"):
    """Without annotations, which are large and of which few kinds' are needed."""

    generation: int = 0
    labels: Labels = {}
    owner_references: tuple[Owner, ...] = ()
    deletion_timestamp: str | None = None


class FullMeta(Meta, frozen=True, gc=False, rename="camel"):
    annotations: Labels = {}
    creation_timestamp: str | None = None


class HasMeta(Protocol):
    """Whatever a reflector holds."""

    @property
    def metadata(self) -> LeaseMeta: ...


class Taint(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    key: str
    value: str = ""
    effect: str = ""


class Condition(Struct, frozen=True, gc=False, rename="camel"):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None  # null where nobody set it


class NodeSpec(Struct, frozen=True, gc=False, rename="camel"):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = field(name="providerID", default="")


class NodeInfo(Struct, frozen=True, gc=False):
    boot_id: str = field(name="bootID", default="")


class NodeStatus(Struct, frozen=True, gc=False, rename="camel"):
    conditions: tuple[Condition, ...] = ()
    node_info: NodeInfo = NodeInfo()
    allocatable: Labels = {}


class Node(Struct, frozen=True, gc=False):
    metadata: FullMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Resources(Struct, frozen=True, gc=False):
    requests: Labels = {}
    limits: Labels = {}


class Container(Struct, frozen=True, gc=False):
    name: str
    resources: Resources = Resources()


class PodSpec(Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Labels = {}
    termination_grace_period_seconds: int = 30


class ContainerStatus(Struct, frozen=True, gc=False, rename="camel"):
    name: str
    container_id: str = field(name="containerID", default="")
    restart_count: int = 0
    state: dict[str, Any] = {}


class PodStatus(Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    reason: str = ""
    nominated_node_name: str = ""  # others were preempted there for it
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Struct, frozen=True, gc=False):
    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class JobNotes(Struct, frozen=True, gc=False):
    """Of a job's annotations those whose change is news."""

    asks_for_start: str = field(name=ASKS_FOR_START, default="")


class JobMeta(Meta, frozen=True, gc=False, rename="camel"):
    annotations: JobNotes = JobNotes()


class Job(Struct, frozen=True, gc=False):
    """A job of any kind: what picks it, and who owns it."""

    metadata: JobMeta


class JobCondition(Struct, frozen=True, gc=False):
    type: Any = None
    status: Any = None


class JobConditions(Struct, frozen=True, gc=False):
    conditions: tuple[JobCondition, ...] | None = None


class ConditionedJob(Job, frozen=True, gc=False):
    """Of a kind that tells by conditions that it has ended, which may come after the last word of its pods."""

    status: JobConditions | None = None


class PhasedJob(Job, frozen=True, gc=False):
    """Of a kind that tells by a phase how it stands; it may end with no word of its pods."""

    status: dict[str, Any] = {}


class LeaseSpec(Struct, frozen=True, gc=False, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class NodeLeaseSpec(Struct, frozen=True, gc=False, rename="camel"):
    renew_time: str = ""
    lease_duration_seconds: int = 40


class NodeLease(Struct, frozen=True, gc=False):
    metadata: LeaseMeta
    spec: NodeLeaseSpec = NodeLeaseSpec()


class Lease(Struct, frozen=True, gc=False):
    metadata: FullMeta
    spec: LeaseSpec = LeaseSpec()


class ConfigMap(Struct, frozen=True, gc=False):
    metadata: FullMeta
    data: Labels = {}


class Custom(Struct, frozen=True, gc=False):
    """A custom resource whose spec and status are kept as plain data."""

    metadata: FullMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
