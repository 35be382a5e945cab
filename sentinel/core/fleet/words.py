"""Sentences about nodes, for e-mails, node events and conditions."""

from collections.abc import Sequence

from sentinel.core.fleet.model import Brake, Mode, NodePicture, Repair
from sentinel.core.health import Finding

MAX_NAMED = 3
MAX_RUNNING = 100  # pods that a record names

BRAKES = {
    Brake.NONE: "it is held back",  # a person wrote so
    Brake.AT_A_TIME: "as many nodes as are allowed at a time are out of service, and nobody acknowledged them yet",
    Brake.PER_WINDOW: "as many nodes as are allowed within the window were taken out of service already",
    Brake.POOL_AT_A_TIME: "as many of its pool as are allowed at a time are out, and nobody acknowledged them yet",
    Brake.POOL_PER_WINDOW: "as many nodes of its pool as are allowed within the window were taken out already",
    Brake.NETWORK_SETTLING: "a moment's wait shows whether other nodes have the same network finding",
    Brake.SETTLING: "some minutes' wait shows whether many nodes show the same, since it is less than fatal",
    Brake.NETWORK_INCIDENT: "many nodes have the same network finding, so it is the network and not the nodes",
    Brake.COMMON_CAUSE: "many nodes have the same, so a rule or a driver may be wrong; a person must say which",
    Brake.PAUSED: "Sentinel is paused",
}
_REPAIRS = {
    Repair.NONE: "",
    Repair.RESET: "the GPU must be reset, or the node restarted; then ",
    Repair.REBOOT: "the node must be restarted; then ",
}


def findings(found: Sequence[Finding]) -> str:
    """The worst few in words, and how many more."""
    if not found:
        return "findings that are not known any more"
    named = [f"{one.code} of {one.entity} ({summary(one)})" for one in found[:MAX_NAMED]]
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return ", ".join(named) + more


def summary(one: Finding) -> str:
    """Without its code, which many begin with and which stands beside it."""
    return one.summary.removeprefix(f"{one.code}: ")


def minutes(seconds: float) -> str:
    if seconds >= 86_400:
        return f"{seconds / 86_400:g} days"
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def needs(repair: Repair, well_for_s: float) -> str:
    if repair is Repair.PERSON:
        return "a person must release it"
    return f"{_REPAIRS[repair]}no such finding may stand for {minutes(well_for_s)}"


def isolated(node: str, found: Sequence[Finding], mode: Mode, after: str = "") -> str:
    """`after`: a further sentence, with a space before it."""
    was = "was taken" if mode is Mode.ENFORCE else "would have been taken (observe mode)"
    return f"Node {node} {was} out of service: {findings(found)}.{after} No running pod was touched."


def ago(seconds: float) -> str:
    """In the largest unit of which it is at least two."""
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def held(node: str, found: Sequence[Finding], brake: Brake, after: str = "") -> str:
    """`after`: a further sentence, with a space before it."""
    return f"Node {node} stays in service for now, though it has {findings(found)}: {BRAKES[brake]}.{after}"


def running_there(node: NodePicture) -> tuple[str, ...]:
    """What a person will ask first: whose work is on this node."""
    pods = sorted(node.pods, key=lambda pod: (pod.job == "", pod.job, pod.namespace, pod.name))
    named = [
        f"pod {pod.namespace}/{pod.name}" + (f" of {pod.job}" if pod.job else "")
        for pod in pods[:MAX_RUNNING]
    ]
    more = len(pods) - MAX_RUNNING
    return (*named, f"{more} more {'pod' if more == 1 else 'pods'}") if more > 0 else (*named,)


def pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"
