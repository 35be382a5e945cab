"""`lostNode.selfFence`: the agent of a node that is cut off ends a job's ranks, and the controller waits longer. Pure.

The agent counts from its last answer of any controller or of the API server, the controller from the last that it heard
of the agent and of the kubelet's lease. So the agent may begin later, by what is on its way when the node is cut off:
an answer that a controller holds (30 s at most), or an API server that answered after the kubelet's last renewal (10 s
where Kubernetes' default holds); then come its own steps, at most a question (5 s) and a look (2 s). MARGIN_S is more.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from sentinel.core.agents.orders import Follow

LEAST_S = 120.0  # of `selfFence`
MARGIN_S, MARGIN_SHARE = 60.0, 0.5
ENDED = "self-fenced"  # code of the finding that tells of it; its entity is the job
MAX_PODS = 1000  # of one node, in one report


class Pace(Struct, frozen=True):
    """How an agent keeps watch, in s."""

    look_s: float = 2.0
    ask_after_s: float = 30.0  # without a controller: from then on the API server is asked
    ask_every_s: float = 10.0
    check_every_s: float = 300.0  # while a controller answers: whether the API server would


def pace(self_fence_s: float) -> Pace:
    """For the shortest time that a job asks for: as often as LEAST_S needs."""
    share, most = min(1.0, self_fence_s / LEAST_S), Pace()
    return Pace(
        share * most.look_s,
        share * most.ask_after_s,
        share * most.ask_every_s,
        share * most.check_every_s,
    )


def removal_after_s(self_fence_s: float) -> float:
    """How long a node must be silent before its pods are taken for ended, in s."""
    return self_fence_s + max(MARGIN_S, MARGIN_SHARE * self_fence_s)


def fences(follows: Iterable[Follow]) -> Mapping[str, float]:
    """What these orders ask: uid of a pod -> s."""
    return {
        pod.uid: follow.self_fence_s
        for follow in follows
        if follow.self_fence_s is not None
        for pod in follow.pods
    }


def due(follows: Iterable[Follow], alone_s: float) -> tuple[Follow, ...]:
    """The jobs whose ranks end now. `alone_s`: since neither a controller nor the API server has answered, in s."""
    return tuple(one for one in follows if one.self_fence_s is not None and one.self_fence_s <= alone_s)
