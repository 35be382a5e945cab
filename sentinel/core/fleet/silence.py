"""Nodes that are not heard: silent, unreachable, dead. Pure.

Agent silent and kubelet's lease stale, both: that is what a partition looks like while the ranks train on. So such a
node is unreachable, not dead: its pods are removed by force only after proof of death, or on the policy's word.
Times are of the leading controller's monotonic clock: a new leader watches anew before it judges.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Set
from enum import StrEnum

from msgspec import Struct

from sentinel.core.fleet.model import (
    OUT_OF_SERVICE,
    FenceState,
    FleetPicture,
    NodePicture,
    NodeQuarantine,
    PodPicture,
    Proof,
)
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.now import Now


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
    """Of the whole fleet those that do not simply speak. `mass`: why nobody is judged now, in a sentence."""

    nodes: Mapping[str, Heard]
    mass: str = ""


def raw(node: NodePicture, picture: FleetPicture, settings: FleetSettings, now: Now) -> Heard:
    """One node by itself, without asking how many others are silent."""
    begun = _begun(node, picture)
    lease = max(begun, node.lease_mono_s if node.lease_mono_s is not None else begun)
    agent = max(begun, node.agent_mono_s if node.agent_mono_s is not None else begun, picture.crowded_mono_s)
    told = now.mono_s if picture.leases_mono_s is None else min(now.mono_s, picture.leases_mono_s)
    lease_stale = told - lease > settings.lease_s
    agent_silent = now.mono_s - agent > settings.agent_silent_s
    # That leases are watched anew, by this leader or another, that agents had to wait, or that the API server says
    # nothing of leases delays a silence. Whoever was silent before has not spoken by that.
    speaks = node.agent_mono_s is not None and now.mono_s - node.agent_mono_s <= settings.agent_silent_s
    if lease_stale and agent_silent:
        return Heard(Silence.UNREACHABLE, max(lease, agent))
    if agent_silent and renews(node, picture, settings, now):
        return Heard(Silence.AGENT, agent)
    if speaks and lease_stale:
        return Heard(Silence.KUBELET, lease)
    return Heard(Silence.SPEAKS if speaks else Silence.UNJUDGED, max(lease, agent))


def renews(node: NodePicture, picture: FleetPicture, settings: FleetSettings, now: Now) -> bool:
    """Does its kubelet live? The first look at a lease says nothing of that: a lease of days ago looks the same."""
    lease = node.lease_mono_s
    return lease is not None and lease > _begun(node, picture) and now.mono_s - lease <= settings.lease_s


def _begun(node: NodePicture, picture: FleetPicture) -> float:
    """Since when it could be heard."""
    return max(picture.watching_since_mono_s, node.seen_mono_s)


def unreachable(node: NodePicture, picture: FleetPicture, settings: FleetSettings, now: Now) -> bool:
    """Is neither its agent nor its kubelet heard?"""
    return raw(node, picture, settings, now).silence is Silence.UNREACHABLE


def hearing(
    picture: FleetPicture, settings: FleetSettings, now: Now, quiet: Set[str] = frozenset()
) -> Hearing:
    """Everybody's silence. More than a quarter that went silent together are not judged: it is not the nodes.

    `quiet`: nodes that are known to speak.
    """
    judged = {name: raw(picture.nodes[name], picture, settings, now) for name in picture.nodes.keys() - quiet}
    nodes = {name: heard for name, heard in judged.items() if heard.silence is not Silence.SPEAKS}
    silent = {
        name: heard
        for name, heard in nodes.items()
        if heard.silence is Silence.UNREACHABLE
        or (heard.silence is Silence.AGENT and agent_expected(picture.nodes[name]))
    }
    times = sorted(heard.since_mono_s for heard in silent.values())
    most = max(1, int(settings.together_share * len(picture.nodes)))
    worst = 0
    for name, heard in silent.items():
        together = bisect_right(times, heard.since_mono_s + settings.together_s) - bisect_left(
            times, heard.since_mono_s - settings.together_s
        )
        if together > most:
            nodes[name] = Heard(Silence.UNJUDGED, heard.since_mono_s)
            worst = max(worst, together)
    mass = (
        f"{worst} of {len(picture.nodes)} nodes went silent together: none of them is judged."
        if worst
        else ""
    )
    return Hearing(nodes, mass)


def agent_expected(node: NodePicture) -> bool:
    """A node on which no agent was ever heard, and that runs nothing protected, may be meant to have none."""
    return node.agent_mono_s is not None or bool(protected(node.pods))


def protected(pods: tuple[PodPicture, ...]) -> tuple[PodPicture, ...]:
    return tuple(pod for pod in pods if pod.protected)


def proof_of_death(
    record: NodeQuarantine, picture: FleetPicture, settings: FleetSettings, now: Now
) -> Proof | None:
    """What proves that nothing of then runs any more on the machine that went silent.

    The word of a person or of the fencing program does not count while the node is heard, nor before a new leader
    has listened for long enough to know that it is not.
    """
    node = picture.nodes.get(record.node)
    if node is None:
        return Proof.NODE_GONE if picture.complete else None
    if record.boot_id and node.api_boot_id and node.api_boot_id != record.boot_id:  # see fence._boot
        return Proof.NEW_BOOT
    if any(taint.key == OUT_OF_SERVICE for taint in node.taints):
        return Proof.OUT_OF_SERVICE
    if not unreachable(node, picture, settings, now):
        return None
    if record.confirmed_dead:
        return Proof.PERSON
    return Proof.FENCED if record.fence is not None and record.fence.state is FenceState.OFF else None
