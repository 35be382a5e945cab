"""Nodes that are not heard: silent, unreachable, dead. Pure.

Agent silent and kubelet's lease stale, both: that is what a partition looks like while the ranks train on. So such a
node is unreachable, not dead: its pods are removed by force only after proof of death, or on the policy's word.
Times are of the leading controller's monotonic clock: a new leader watches anew before it judges.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from sentinel.core.fleet_model import (
    OUT_OF_SERVICE,
    FleetPicture,
    NodePicture,
    NodeQuarantine,
    PodPicture,
    Proof,
)
from sentinel.core.fleet_settings import FleetSettings
from sentinel.core.model import Now


class Silence(StrEnum):
    SPEAKS = "speaks"
    AGENT = "agent silent"  # the kubelet renews its lease: only told
    KUBELET = "kubelet silent"  # the agent speaks: the node lives
    UNREACHABLE = "unreachable"  # neither is heard
    UNJUDGED = "not judged"  # not watched long enough, or too many at once


class Heard(Struct, frozen=True):
    """What the silence of one node means. `since_mono_s`: when it was last heard."""

    silence: Silence
    since_mono_s: float


class Hearing(Struct, frozen=True):
    """The whole fleet's silence. `mass`: why nobody is judged now, in a sentence; "": judged."""

    nodes: Mapping[str, Heard]
    mass: str = ""


def raw(node: NodePicture, picture: FleetPicture, settings: FleetSettings, now: Now) -> Heard:
    """One node by itself, without asking how many others are silent."""
    begun = picture.watching_since_mono_s
    lease = max(begun, node.lease_mono_s if node.lease_mono_s is not None else begun)
    agent = max(begun, node.agent_mono_s if node.agent_mono_s is not None else begun)
    lease_stale = now.mono_s - lease > settings.lease_s
    agent_silent = now.mono_s - agent > settings.agent_silent_s
    if lease_stale and agent_silent:
        return Heard(Silence.UNREACHABLE, max(lease, agent))
    if agent_silent:
        return Heard(Silence.AGENT, agent)
    if lease_stale:
        return Heard(Silence.KUBELET, lease)
    watched = now.mono_s - begun > max(settings.lease_s, settings.agent_silent_s)
    heard = watched or (node.agent_mono_s is not None and node.lease_mono_s is not None)
    return Heard(Silence.SPEAKS if heard else Silence.UNJUDGED, max(lease, agent))


def hearing(picture: FleetPicture, settings: FleetSettings, now: Now) -> Hearing:
    """Everybody's silence. More than a quarter that went silent together are not judged: it is not the nodes."""
    nodes = {name: raw(node, picture, settings, now) for name, node in picture.nodes.items()}
    silent = {
        name: heard
        for name, heard in nodes.items()
        if heard.silence is Silence.UNREACHABLE
        or (heard.silence is Silence.AGENT and agent_expected(picture.nodes[name]))
    }
    times = sorted(heard.since_mono_s for heard in silent.values())
    most = max(1, int(settings.together_share * len(nodes)))
    worst = 0
    for name, heard in silent.items():
        together = bisect_right(times, heard.since_mono_s + settings.together_s) - bisect_left(
            times, heard.since_mono_s - settings.together_s
        )
        if together > most:
            nodes[name] = Heard(Silence.UNJUDGED, heard.since_mono_s)
            worst = max(worst, together)
    mass = f"{worst} of {len(nodes)} nodes went silent together: none of them is judged." if worst else ""
    return Hearing(nodes, mass)


def agent_expected(node: NodePicture) -> bool:
    """A node on which no agent was ever heard, and that runs nothing protected, may be meant to have none."""
    return node.agent_mono_s is not None or bool(protected(node.pods))


def protected(pods: tuple[PodPicture, ...]) -> tuple[PodPicture, ...]:
    return tuple(pod for pod in pods if pod.protected)


def proof_of_death(record: NodeQuarantine, picture: FleetPicture) -> Proof | None:
    """What proves that nothing of then runs any more on the machine that went silent."""
    node = picture.nodes.get(record.node)
    if node is None:
        return Proof.NODE_GONE if picture.complete else None
    if node.instance_gone:
        return Proof.INSTANCE_GONE
    boots = {node.boot_id, node.api_boot_id} - {""}
    if record.boot_id and boots and record.boot_id not in boots:
        return Proof.NEW_BOOT
    if any(taint.key == OUT_OF_SERVICE for taint in node.taints):
        return Proof.OUT_OF_SERVICE
    return Proof.PERSON if record.confirmed_dead else None
