"""Where a whole job would fit now, from what is known of nodes and pods, less what other recoveries were promised."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct, to_builtins

from sentinel.cluster.kubernetes.objects import Node, Pod, PodSpec
from sentinel.core.job.change import HOSTNAME, avoid_in
from sentinel.core.job.paths import Json, copied, read, rows, table
from sentinel.core.job.ranks import done_for_good, ranks
from sentinel.core.job.room import Placement, RoomNode, RoomTaint, free, left_by, place, requests, takes
from sentinel.core.job.state import ENDED_PHASES, Seen, groups_of, living, was_size
from sentinel.util.clock import Clock

FRESH_S = (
    0.1  # many jobs that ask at once are answered from one count; a start into room that is gone is in vain
)
PROMISE_S = 120.0  # for as long a place that was found is kept for its job; its pods hold it from then on


class _Promise(Struct, frozen=True):
    until_mono_s: float
    nodes: Mapping[str, Sequence[Mapping[str, float]]]  # node -> what each pod there will request


class Rooms:
    """`nodes`, `pods`: by key, as they are followed."""

    def __init__(
        self, nodes: Callable[[], Mapping[str, Node]], pods: Callable[[], Mapping[str, Pod]], clock: Clock
    ) -> None:
        self._nodes, self._pods, self.clock = nodes, pods, clock
        self._asked: dict[str, dict[str, float]] = {}  # uid -> what it requests
        self._used: dict[str, list[tuple[str, dict[str, float]]]] = {}  # node -> uid and requests of each pod
        self._counted_mono_s = float("-inf")
        self._promises: dict[str, _Promise] = {}

    def names(self) -> Collection[str]:
        return self._nodes().keys()

    def counted(self) -> Collection[str]:
        """The uids of all pods that use room."""
        self._fresh()
        return self._asked.keys()

    def hostname(self, node: str) -> str:
        """The value of its label, by which pods are kept off it."""
        one = self._nodes().get(node)
        return node if one is None else one.metadata.labels.get(HOSTNAME, node)

    def schedulable(self, node: str) -> bool:
        one = self._nodes().get(node)
        return one is not None and not one.spec.unschedulable

    def taking(self, nodes: Iterable[str], pods: Sequence[Json]) -> list[str]:
        """Those of `nodes` to which the scheduler would give one of `pods`, were they empty; of unknown pods: any."""
        there = [(name, self._room(name, "", ())) for name in nodes if self.schedulable(name)]
        return [name for name, node in there if not pods or any(takes(pod, node) for pod in pods)]

    def find(
        self,
        job: str,
        pods: Sequence[Json],
        own: Collection[str],
        excluded: Collection[str],
        first: Sequence[Json] = (),
    ) -> Placement:
        """For all of `pods`, as if those with the uids `own` were gone and `first`, which wait, had their places."""
        self._fresh()
        nodes = [self._room(name, job, own) for name in self._nodes()]
        return place(pods, left_by(first, nodes) if first else nodes, excluded)

    def promise(self, job: str, pods: Sequence[Json], found: Placement) -> None:
        """No other job is given the places that `find` found, for PROMISE_S; in place of an earlier promise."""
        there: dict[str, list[Mapping[str, float]]] = {}
        for index, node in found.nodes.items():
            there.setdefault(node, []).append(requests(pods[index]))
        self._promises[job] = _Promise(self.clock().mono_s + PROMISE_S, there)

    def still(self, job: str) -> None:
        """What it was promised is held for PROMISE_S more: it is on its way there."""
        if (held := self._promises.get(job)) is not None:
            self._promises[job] = _Promise(self.clock().mono_s + PROMISE_S, held.nodes)

    def kept(self, job: str) -> None:
        """Its pods are bound, or will not come: nothing is held for it any more."""
        self._promises.pop(job, None)

    def _fresh(self) -> None:
        now_s = self.clock().mono_s
        if now_s - self._counted_mono_s > FRESH_S:
            self._count(now_s)

    def _count(self, now_s: float) -> None:
        self._counted_mono_s = now_s
        self._used = {}
        before, self._asked = self._asked, {}
        for pod in self._pods().values():
            node = pod.spec.node_name or pod.status.nominated_node_name
            if node and pod.status.phase not in ENDED_PHASES:
                uid = pod.metadata.uid
                wanted = self._asked[uid] = before.get(uid) or requests(_json(pod.spec))
                self._used.setdefault(node, []).append((uid, wanted))
        for job, promise in list(self._promises.items()):
            if promise.until_mono_s < now_s:
                del self._promises[job]

    def _room(self, name: str, job: str, own: Collection[str]) -> RoomNode:
        one = self._nodes()[name]
        used: list[Mapping[str, float]] = [
            wanted for uid, wanted in self._used.get(name, ()) if uid not in own
        ]
        for other, promise in self._promises.items():
            if other != job:
                used += promise.nodes.get(name, ())
        return RoomNode(
            name=name,
            labels=one.metadata.labels,
            free=free(one.status.allocatable, used),
            taints=tuple(RoomTaint(t.key, t.value, t.effect) for t in one.spec.taints),
            schedulable=not one.spec.unschedulable,
        )


def _json(spec: PodSpec) -> Json:
    return {
        "spec": {
            "containers": [to_builtins(one) for one in spec.containers],
            "initContainers": [to_builtins(one) for one in spec.init_containers],
            "overhead": spec.overhead,
        }
    }


def _unbound(pod: Json) -> Json:
    """As one that was made anew: the scheduler has named its node."""
    spec = {name: value for name, value in table(pod, "spec").items() if name != "nodeName"}
    return {**pod, "spec": spec}


def _add_init(template: Json, requested: Mapping[str, str]) -> None:
    """The init container that an operator puts before those of a template."""
    spec = table(template, "spec")
    spec["initContainers"] = [*rows(spec, "initContainers"), {"resources": {"requests": dict(requested)}}]


def pods_of(seen: Seen) -> list[Json]:
    """What a start has to find room for: its templates, without what Sentinel itself wrote into them; where they stand
    elsewhere, the pods that it has. Empty: not known. Ranks that ended for good need none."""
    draft = copied(seen.job)
    made: list[Json] = []
    if seen.row.fallback:
        there = [pod for pod in living(seen.pods) if read(pod, "metadata.deletionTimestamp") is None]
        return [_unbound(pod) for pod in there]
    for group in groups_of(seen.row, draft):
        size = was_size(draft, group) or group.size
        if not group.templates or size is None:
            return [_unbound(pod) for pod in living(seen.pods)]
        avoid_in(draft, group.templates, ())
        if added := seen.row.gives.get(group.name.lower()):
            for template in group.templates:
                _add_init(template, added)
        made += [group.templates[0]] * size + [group.templates[-1]] * (size * group.each - size)
    done = done_for_good(seen, [one for one in ranks(seen) if one.rank is not None])
    return made[len(done) :]
