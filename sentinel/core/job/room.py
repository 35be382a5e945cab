"""Is there room for all ranks of a job at once? An estimate by the scheduler's own filters. Pure.

What is asked of a node: that it is schedulable, that its taints are tolerated, that it has the labels that the pod
selects, and that it has enough of everything that the pod requests. Spread, pod affinity, volumes and quota are not
looked at, so the scheduler may still refuse what is found here; a start that does not come up is given back.
Rules and names: https://kubernetes.io/docs/concepts/scheduling-eviction/
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from sentinel.core.job.paths import Json, read, rows, table, text

REQUIRED = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PODS = "pods"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
KEEPS_OUT = ("NoSchedule", "NoExecute")

_UNITS = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


class RoomTaint(Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class RoomNode(Struct, frozen=True, kw_only=True):
    """A node and what is free on it: what it offers less what its living pods requested."""

    name: str
    labels: Mapping[str, str]
    free: Mapping[str, float]
    taints: tuple[RoomTaint, ...] = ()
    schedulable: bool = True


class Placement(Struct, frozen=True):
    """Where each pod would go, by its number; None of it where not all fit, and then `sentence` says why."""

    nodes: dict[int, str] = {}
    sentence: str = ""

    @property
    def fits(self) -> bool:
        return not self.sentence


def quantity(text: object) -> float:
    """`8`, `500m`, `1Ti`, `1e3`: a Kubernetes quantity in base units. 0 for what is none."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    if not isinstance(text, str):
        return 0.0
    number = text.rstrip("numkMGTPEi") if not text[-1:].isdigit() else text
    try:
        return float(number) * _UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        return 0.0


def requests(pod: Json) -> dict[str, float]:
    """What the scheduler counts for a pod: the sum of its containers, or its largest init container if that is more.
    A limit stands for a request that is not written. `pods`: itself."""
    total: dict[str, float] = {}
    for container in rows(pod, "spec.containers"):
        for name, amount in _asks(container).items():
            total[name] = total.get(name, 0.0) + amount
    for container in rows(pod, "spec.initContainers"):
        for name, amount in _asks(container).items():
            total[name] = max(total.get(name, 0.0), amount)
    for name, value in table(pod, "spec.overhead").items():
        total[name] = total.get(name, 0.0) + quantity(value)
    return total | {PODS: 1.0}


def free(offers: Mapping[str, object], pods: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """`offers`: a node's status.allocatable; `pods`: what those on it request."""
    left = {name: quantity(value) for name, value in offers.items()}
    for one in pods:
        for name, amount in one.items():
            left[name] = left.get(name, 0.0) - amount
    return left


def place(
    pods: Sequence[Json], nodes: Sequence[RoomNode], excluded: Iterable[str] = (), most: int = 3
) -> Placement:
    """All of them or none. The largest first, each to the fullest node that takes it, so that whole nodes stay free.

    `pods`: pod templates, or pods; those that ask for the same are looked at once. `most`: reasons that the sentence
    names.
    """
    left = {node.name: dict(node.free) for node in nodes}
    placed: dict[int, str] = {}
    for some in _alike(pods):
        found, why = _fill(pods[some[0]], len(some), nodes, left, frozenset(excluded))
        placed |= dict(zip(some, found, strict=False))
        if len(found) < len(some):
            named = [f"{count} {reason}" for reason, count in why.most_common(most)]
            sentence = (
                f"No room for {len(pods) - len(placed)} of {len(pods)} pods on {len(nodes)} nodes"
                f"{': ' + ', '.join(named) if named else ''}."
            )
            return Placement(sentence=sentence)
    return Placement(nodes=placed)


def takes(pod: Json, node: RoomNode) -> bool:
    """Would the scheduler give it this pod, were it empty?"""
    return not _refused(pod, node, {}, {})


def left_by(pods: Sequence[Json], nodes: Sequence[RoomNode]) -> list[RoomNode]:
    """`nodes` as they would be once as many of `pods` as fit were there."""
    left = {node.name: dict(node.free) for node in nodes}
    for some in _alike(pods):
        _fill(pods[some[0]], len(some), nodes, left, frozenset())
    return [structs.replace(node, free=left[node.name]) for node in nodes]


def _alike(pods: Sequence[Json]) -> list[list[int]]:
    """The numbers of those that need the same of a node, the largest first."""
    alike: dict[bytes, list[int]] = {}
    for index, pod in enumerate(pods):
        alike.setdefault(_what_is_asked(pod), []).append(index)
    sizes = {key: requests(pods[some[0]]) for key, some in alike.items()}
    ordered = sorted(alike, key=lambda key: [-sizes[key].get(name, 0.0) for name in (*GPUS, "cpu")])
    return [alike[key] for key in ordered]


def _fill(
    pod: Json,
    count: int,
    nodes: Sequence[RoomNode],
    left: dict[str, dict[str, float]],
    out: frozenset[str],
) -> tuple[list[str], Counter[str]]:
    """Take from `left` what `count` pods like this need, to the fullest node first: a node for each that fits, and why
    nodes take no more."""
    wanted = requests(pod)
    why: Counter[str] = Counter()
    fitting = []
    for node in nodes:
        if refusal := "left out" if node.name in out else _refused(pod, node, wanted, left[node.name]):
            why[refusal] += 1
        else:
            fitting.append((sum(left[node.name].get(gpu, 0.0) for gpu in GPUS), node.name))
    placed: list[str] = []
    for _, name in sorted(fitting):
        while len(placed) < count and not _short(wanted, left[name]):
            placed.append(name)
            for resource, amount in wanted.items():
                left[name][resource] = left[name].get(resource, 0.0) - amount
        if len(placed) < count and (short := _short(wanted, left[name])):
            why[short] += 1
    return placed, why


def _what_is_asked(pod: Json) -> bytes:
    """Equal for pods that need the same of a node."""
    asked = [
        read(pod, f"spec.{name}")
        for name in ("nodeName", "nodeSelector", "affinity.nodeAffinity", "tolerations")
    ]
    return msgspec.json.encode([asked, sorted(requests(pod).items())])


def _refused(pod: Json, node: RoomNode, wanted: Mapping[str, float], left: Mapping[str, float]) -> str:
    if (wants := text(pod, "spec.nodeName")) and wants != node.name:
        return "not the one that they name"
    if not node.schedulable:
        return "unschedulable"
    tolerations = rows(pod, "spec.tolerations")
    for taint in node.taints:
        if taint.effect in KEEPS_OUT and not any(_tolerates(one, taint) for one in tolerations):
            return f"with the taint {taint.key}"
    if not _selected(pod, node):
        return "without the labels that are asked for"
    return _short(wanted, left)


def _short(wanted: Mapping[str, float], left: Mapping[str, float]) -> str:
    for name, amount in wanted.items():
        if amount > 0 and left.get(name, 0.0) < amount - 1e-9:
            return f"without enough {name}"
    return ""


def _tolerates(one: Json, taint: RoomTaint) -> bool:
    if text(one, "effect") not in ("", taint.effect):
        return False
    if text(one, "operator") == "Exists":
        return text(one, "key") in ("", taint.key)
    return text(one, "key") == taint.key and text(one, "value") == taint.value


def _selected(pod: Json, node: RoomNode) -> bool:
    if any(node.labels.get(key) != value for key, value in table(pod, "spec.nodeSelector").items()):
        return False
    terms = rows(pod, REQUIRED)
    return not terms or any(_term(term, node) for term in terms)


def _term(term: Json, node: RoomNode) -> bool:
    """An empty term fits no node."""
    expressions, fields = rows(term, "matchExpressions"), rows(term, "matchFields")
    if not expressions and not fields:
        return False
    return all(_fits(one, node.labels) for one in expressions) and all(
        _fits(one, {"metadata.name": node.name}) for one in fields
    )


def _fits(expression: Json, labels: Mapping[str, str]) -> bool:
    value = labels.get(text(expression, "key"))
    values = read(expression, "values") or []
    match text(expression, "operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not value.lstrip("-").isdecimal() or len(values) != 1:
                return False
            return (int(value) > int(values[0])) is (operator == "Gt") and int(value) != int(values[0])
    return False


def _asks(container: Json) -> dict[str, float]:
    limits = {name: quantity(value) for name, value in table(container, "resources.limits").items()}
    return limits | {name: quantity(value) for name, value in table(container, "resources.requests").items()}
