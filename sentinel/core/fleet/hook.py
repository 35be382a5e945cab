"""The administrators' program that powers a silent node off: when it is called, and what became of it. Pure.

Its call is saved before it is made. What was saved and does not run (after a crash, under a new leader) is called
again, with the same number: the program must be idempotent.
"""

from collections.abc import Iterable, Mapping, Set

from msgspec import Struct

from sentinel.core.fleet import words
from sentinel.core.fleet.desk import Desk
from sentinel.core.fleet.events import FenceBegun, FenceEnded, Reason
from sentinel.core.fleet.model import (
    FenceState,
    FleetPicture,
    Mode,
    NodeQuarantine,
    PodPicture,
    State,
)
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.fleet.silence import Silence, hearing, proof_of_death, protected
from sentinel.core.now import Now

TRIES = 3
AGAIN_S = 600.0  # between the beginnings of two calls


class FenceCall(Struct, frozen=True):
    """One call of the program. `number`: which for this record, 1 for the first."""

    record: str
    number: int
    node: str
    node_uid: str
    provider_id: str


def mode_of(record: NodeQuarantine, pods: Iterable[PodPicture], settings: FleetSettings) -> Mode:
    """Whoever is only observed loses nothing to a machine that is powered off for others.

    `pods`: all protected ones on the node.
    """
    observed = (
        record.mode is Mode.OBSERVE
        or settings.mode_of(record.pool) is Mode.OBSERVE
        or any(
            pod.removal is not Mode.ENFORCE or pod.namespace in settings.observe_namespaces for pod in pods
        )
    )
    return Mode.OBSERVE if observed else Mode.ENFORCE


def to_come(record: NodeQuarantine, mode: Mode, settings: FleetSettings) -> bool:
    """Does the program run for this silence, or is it still to be called?"""
    fence = record.fence
    if settings.fence is None:
        return False
    if fence is None or (fence.mode is Mode.OBSERVE and mode is Mode.ENFORCE):
        return True
    if fence.mode is not mode:  # it is only observed from now on
        return False
    return fence.runs or (fence.state is FenceState.FAILED and fence.tries < TRIES)


def is_due(record: NodeQuarantine, mode: Mode, silent_s: float, settings: FleetSettings, now: Now) -> bool:
    """Is it to be called now? `silent_s`: since neither agent nor kubelet is heard, of a node that is judged."""
    fence, hook = record.fence, settings.fence
    if hook is None or silent_s < hook.after_s or not to_come(record, mode, settings):
        return False
    if fence is None or fence.mode is not mode:
        return True
    return not fence.runs and not 0.0 <= now.wall_s - fence.begun_wall_s < AGAIN_S


def begun(record: NodeQuarantine, mode: Mode, pods: int) -> FenceBegun:
    """The next call. `pods`: of protected jobs, that stay on the node without it."""
    fence = record.fence
    number = 1 if fence is None or fence.mode is not mode else fence.tries + 1
    why = f"it is silent and has {words.pods(pods)} of protected jobs"
    sentence = f"Node {record.node} would be fenced (observe mode): {why}."
    if mode is Mode.ENFORCE:
        sentence = f"Node {record.node} is fenced, try {number} of {TRIES}: {why}. A program powers it off."
    return FenceBegun(reason=Reason.FENCING, sentence=sentence, number=number, mode=mode)


def waits(record: NodeQuarantine | None, number: int) -> bool:
    """Does this record wait for the outcome of that call?"""
    fence = record.fence if record is not None and record.state is State.ACTIVE else None
    return fence is not None and fence.runs and fence.tries == number


def take_outcomes(desk: Desk) -> None:
    """What became of calls. Of a silence that has ended meanwhile it says nothing."""
    for outcome in desk.picture.fenced:
        record = desk.records.get(outcome.record)
        if record is None or not waits(record, outcome.number) or record.node in desk.picture.busy:
            continue
        name = record.node
        if outcome.off:
            reason, sentence = Reason.FENCED, f"Node {name} is off, says the fencing program."
        else:
            again = f" again in {words.minutes(AGAIN_S)}" if outcome.number < TRIES else " no more"
            reason = Reason.FENCE_FAILED
            sentence = (
                f"The fencing program failed for node {name}, try {outcome.number} of {TRIES}: {outcome.how}. "
                f"It is called{again}."
            )
        desk.put(name, record.id, FenceEnded(reason=reason, sentence=sentence, off=outcome.off))


def calls(
    picture: FleetPicture,
    records: Mapping[str, NodeQuarantine],
    settings: FleetSettings,
    now: Now,
    quiet: Set[str] = frozenset(),
) -> tuple[FenceCall, ...]:
    """What runs, as the records say, and may: to be called where it does not run. `quiet`: see rounds.decide."""
    running = [one for one in records.values() if one.fence is not None and waits(one, one.fence.tries)]
    if not running or picture.paused or settings.fence is None:
        return ()
    heard = hearing(picture, settings, now, quiet).nodes
    found = []
    for record in running:
        node, silence = picture.nodes.get(record.node), heard.get(record.node)
        if node is None or node.uid != record.node_uid or record.fence is None:
            continue
        pods = protected(node.pods)
        judged = silence is not None and silence.silence is Silence.UNREACHABLE
        wanted = pods and mode_of(record, pods, settings) is Mode.ENFORCE
        if judged and wanted and proof_of_death(record, picture, settings, now) is None:
            found.append(FenceCall(record.id, record.fence.tries, node.name, node.uid, node.provider_id))
    return tuple(found)
