"""What is written to a job, as data: requests with their preconditions, or a refusal with its reason. Pure."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from sentinel.core.job.paths import Json, merge_patch, table, text


class Verb(StrEnum):
    PATCH = "patch"  # RFC 7386: the one kind of patch that custom resources and built-in ones both take
    CREATE = "create"
    EVICT = "evict"
    DELETE = "delete"


class Write(Struct, frozen=True, kw_only=True):
    """One request. It is refused (409) where the object is not any more what was decided about.

    Pods are evicted and deleted by their UID alone: their resourceVersion changes with each probe, and what counts is
    that it is no other pod of the name. A created object has no state before it: the write before it checks the job.
    """

    verb: Verb
    group: str
    version: str
    plural: str
    namespace: str
    name: str
    part: str = ""  # of the object: "status", "eviction"
    body: Json = {}
    uid: str = ""
    resource_version: str = ""
    optional: bool = False  # where it may not be done the others are done all the same
    follows: bool = (
        False  # its resourceVersion is the one that the write before it answered, of the same object
    )

    def request(self, answered: str = "") -> Json:
        """What is sent. `answered`: the resourceVersion that the write before this one answered."""
        if self.verb is not Verb.PATCH:
            return self.body
        version = answered if self.follows else self.resource_version
        if not self.uid or not version:
            raise ValueError(f"{self.plural} {self.name}: a patch without its preconditions")
        meta = {**table(self.body, "metadata"), "uid": self.uid, "resourceVersion": version}
        return {**self.body, "metadata": meta}


class Plan(Struct, frozen=True, kw_only=True):
    """Writes in their order; each waits for the answer of the one before. None to do: `writes` is empty."""

    writes: tuple[Write, ...] = ()
    sentence: str = ""
    costs: int = 0  # of the kind's own restarts


class Reason(StrEnum):
    ENDED = "Ended"
    NOT_OURS = "NotOurs"  # somebody else stopped it: only he starts it
    NOT_STOPPED = "NotStopped"  # this can be changed while it is stopped only
    STILL_RUNNING = "StillRunning"  # it was told to stop, and pods are left
    QUEUE_UNKNOWN = "QueueUnknown"  # it belongs to a queue whose Workload is not known
    RETRIES_USED = "RetriesUsed"  # a start would be the end of it
    NO_OWNER = "NoOwner"  # nobody would make its pods again
    EVICTION_FAILS = "EvictionFails"  # its only means of stopping would end it
    FIELD_NEEDED = "FieldNeeded"  # it can be stopped only with a field that is not set
    SIZE_EDITED = "SizeEdited"  # its size was edited and not applied, and so a stop would not be
    SIZE_FIXED = "SizeFixed"
    SIZE_BY_RECREATING = "SizeByRecreating"
    OUT_OF_BOUNDS = "OutOfBounds"
    SIZE_DOES_NOT_FIT = "SizeDoesNotFit"
    WHICH_GROUP = "WhichGroup"  # several groups of ranks, and nothing says which one is to change
    CANNOT_KEEP_OFF = "CannotKeepOff"
    LABEL_NEEDED = "LabelNeeded"  # only a label that tells good nodes from bad ones can keep it off
    CHILDREN_UNKNOWN = "ChildrenUnknown"
    GRACE_TOO_SHORT = "GraceTooShort"


class Refusal(Struct, frozen=True):
    """The kind cannot do this, or not now. `sentence` could stand in an e-mail."""

    reason: Reason
    sentence: str


def title(job: Json) -> str:
    return f"{job.get('kind')} {text(job, 'metadata.namespace')}/{text(job, 'metadata.name')}"


def patch(before: Json, after: Json, plural: str, *, follows: bool = False) -> list[Write]:
    """None where nothing changes."""
    body = merge_patch(before, after)
    return [_to(before, plural, body, follows=follows)] if body else []


def check(obj: Json, plural: str) -> Write:
    """Changes nothing, and is refused where the object has changed."""
    return _to(obj, plural, {})


def status_patch(obj: Json, plural: str, body: Json) -> Write:
    return _to(obj, plural, body, part="status")


def clear_start_time(job: Json) -> Write:
    return status_patch(job, "jobs", {"status": {"startTime": None}})


def evict(pod: Json, grace_s: int | None) -> Write:
    """`grace_s` None: the pod's own."""
    options: Json = {"preconditions": {"uid": text(pod, "metadata.uid")}}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    name, namespace = text(pod, "metadata.name"), text(pod, "metadata.namespace")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": options,
    }
    return _of_pod(pod, Verb.EVICT, body, "eviction")


def delete(pod: Json) -> Write:
    return _of_pod(pod, Verb.DELETE, {"preconditions": {"uid": text(pod, "metadata.uid")}})


def command(job: Json, action: str) -> Write:
    """A command for Volcano, which deletes it when it has obeyed. As its own vcctl makes them (v1.10.0).

    The name is that of the state which was seen: the same decision about the same state makes no second one.
    """
    target = {
        "apiVersion": job.get("apiVersion"),
        "kind": job.get("kind"),
        "name": text(job, "metadata.name"),
        "uid": text(job, "metadata.uid"),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    namespace = text(job, "metadata.namespace")
    name = f"{target['name']}-{action.lower()}-{text(job, 'metadata.resourceVersion')}"
    return Write(
        verb=Verb.CREATE,
        group="bus.volcano.sh",
        version="v1alpha1",
        plural="commands",
        namespace=namespace,
        name=name,
        body={
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"name": name, "namespace": namespace, "ownerReferences": [target]},
            "target": target,
            "action": action,
            "reason": "Sentinel",
        },
        uid=text(job, "metadata.uid"),
    )


def listed(names: Sequence[str], most: int = 5) -> str:
    """For a sentence."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _to(obj: Json, plural: str, body: Json, *, part: str = "", follows: bool = False) -> Write:
    group, _, version = text(obj, "apiVersion").rpartition("/")
    return Write(
        verb=Verb.PATCH,
        group=group,
        version=version,
        plural=plural,
        namespace=text(obj, "metadata.namespace"),
        name=text(obj, "metadata.name"),
        part=part,
        body=body,
        uid=text(obj, "metadata.uid"),
        resource_version="" if follows else text(obj, "metadata.resourceVersion"),
        follows=follows,
    )


def _of_pod(pod: Json, verb: Verb, body: Json, part: str = "") -> Write:
    return Write(
        verb=verb,
        group="",
        version="v1",
        plural="pods",
        namespace=text(pod, "metadata.namespace"),
        name=text(pod, "metadata.name"),
        part=part,
        body=body,
        uid=text(pod, "metadata.uid"),
    )
