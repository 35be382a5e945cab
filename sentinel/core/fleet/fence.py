"""What is decided about silent nodes: told, and pods removed by force only where that is proved safe. Pure."""

from collections.abc import Iterable, Mapping
from itertools import product

from sentinel.core.agents.self_fence import ENDED, removal_after_s
from sentinel.core.fleet import brakes, hook, words
from sentinel.core.fleet.brakes import Act
from sentinel.core.fleet.desk import Desk
from sentinel.core.fleet.events import End, Noted, Open, Reason, Removed
from sentinel.core.fleet.marks import claims
from sentinel.core.fleet.model import (
    Brake,
    EndedBy,
    Kind,
    Mode,
    Needs,
    NodePicture,
    NodeQuarantine,
    PodPicture,
    Proof,
    Removal,
    SelfFence,
    State,
)
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.fleet.silence import (
    Heard,
    Hearing,
    Silence,
    agent_expected,
    proof_of_death,
    protected,
    raw,
    renews,
)

NEEDS = Needs(sentence="it is heard again, or proved dead and gone")
_PROOFS = {
    Proof.NODE_GONE: "its node object is gone",
    Proof.NEW_BOOT: "it was started again since",
    Proof.OUT_OF_SERVICE: "it has the out-of-service taint",
    Proof.PERSON: "a person said that it is dead",
    Proof.SELF_FENCED: "its agent had confirmed that it ends them when it reaches nobody, and was given longer than "
    "that; two writers are possible if that agent was dead, or only its kubelet was, or a controller or an API server "
    "was cut off with it",
    Proof.FENCED: "the fencing program powered it off",
    Proof.POLICY: "the policy of their job says so after this time; that they still run somewhere is possible",
}


def removed(records: Iterable[NodeQuarantine], uid: str) -> str:
    """Why this pod was removed by force from a node that was lost; "": it was not."""
    for record in records:
        for removal in record.removals:
            if removal.mode is Mode.ENFORCE and any(pod.endswith(f"/{uid}") for pod in removal.pods):
                return f"Its node {record.node} was lost: {_PROOFS[removal.proof]}."
    return ""


def unreached(records: Iterable[NodeQuarantine]) -> set[str]:
    """Nodes of which neither agent nor kubelet is heard, or that were proved dead and did not come back."""
    return {
        one.node
        for one in records
        if one.kind is Kind.SILENCE and one.state.open and one.reason != Reason.AGENT_SILENT.value
    }


def judge_all(desk: Desk, hearing: Hearing) -> None:
    """Every node of a whole round."""
    hook.take_outcomes(desk)
    busy = desk.picture.busy
    silent = [
        one
        for one in desk.records.values()
        if one.kind is Kind.SILENCE and one.state.open and one.node not in busy
    ]
    there = {one.node for one in silent if one.node in desk.picture.nodes}
    for name in sorted((hearing.nodes.keys() | there) - busy):
        node = desk.picture.nodes[name]
        heard = hearing.nodes.get(name) or raw(node, desk.picture, desk.settings, desk.now)
        record = desk.open(name, Kind.SILENCE)
        if record is None:
            if claims(node) and not protected(node.pods):
                continue  # it is being taken away: that it falls silent is no news
            if heard.silence is Silence.UNREACHABLE:
                record = open_record(desk, node, Reason.UNREACHABLE)
            elif heard.silence is Silence.AGENT and agent_expected(node) and not _awaited(desk, node):
                open_record(desk, node, Reason.AGENT_SILENT)
        if record is not None:
            _go_on(desk, record, node, heard)
    for record in sorted(silent, key=lambda one: one.node):
        if record.node not in desk.picture.nodes and desk.picture.complete:
            _gone(desk, record)


def judge_one(desk: Desk, name: str) -> None:
    """In a round over few nodes: a silence ends as soon as the node is heard; none begins."""
    record, node = desk.open(name, Kind.SILENCE), desk.picture.nodes.get(name)
    if record is not None and node is not None:
        heard = raw(node, desk.picture, desk.settings, desk.now)
        if heard.silence in (Silence.SPEAKS, Silence.KUBELET) or node.uid != record.node_uid:
            _go_on(desk, record, node, heard)


def confirm_dead(desk: Desk, name: str, order: str, by: str, why: str = "") -> bool:
    """A person says that this node is dead. False: it is heard, so it is not. `why` goes into the sentence as it is."""
    node = desk.picture.nodes.get(name)
    record = desk.open(name, Kind.SILENCE)
    if node is not None:
        heard = raw(node, desk.picture, desk.settings, desk.now)
        if heard.silence is not Silence.UNREACHABLE:
            return False
        record = record or open_record(desk, node, Reason.UNREACHABLE)
    if record is None:
        return False
    sentence = f"Node {name} is dead, says {by or 'a person'}{why}. Its pods may be removed by force."
    desk.put(name, record.id, Noted(reason=Reason.UNREACHABLE, sentence=sentence, order=order, by=by))
    return True


def open_record(desk: Desk, node: NodePicture, reason: Reason) -> NodeQuarantine:
    pods = protected(node.pods)
    event = Open(
        reason=reason,
        sentence=_silent(node.name, reason, len(pods)),
        id=desk.next_id(node.name),
        kind=Kind.SILENCE,
        node=node.name,
        node_uid=node.uid,
        pool=node.pool,
        mode=desk.mode(node.pool),
        needs=NEEDS,
        running_there=words.running_there(node),
        boot_id=_boot(node),
        pods=tuple(pod.id for pod in pods),
        self_fences=()
        if _agent_died_first(node, desk.settings)
        else tuple(
            SelfFence(pod=pod.id, after_s=node.fences[pod.uid]) for pod in pods if pod.uid in node.fences
        ),
    )
    return desk.put(node.name, event.id, event)


def _boot(node: NodePicture) -> str:
    """The one that agent and kubelet both name; "": the kubelet may be late, and what it names next no newer boot."""
    return node.api_boot_id if node.boot_id in ("", node.api_boot_id) else ""


def _silent(name: str, reason: Reason, pods: int) -> str:
    runs = f" Protected jobs have {words.pods(pods)} there." if pods else ""
    if reason is Reason.AGENT_SILENT:
        return f"The agent of node {name} is silent; its kubelet is heard, so the node lives.{runs}"
    return f"Node {name} cannot be reached: its agent and its kubelet are silent. It may still run.{runs}"


def _go_on(desk: Desk, record: NodeQuarantine, node: NodePicture, heard: Heard) -> None:
    name = record.node
    if node.uid != record.node_uid:
        sentence = f"The silent node {name} was replaced by another one of the same name."
        _end(desk, record, Reason.NODE_REPLACED, sentence, EndedBy.NODE_REPLACED)
    elif heard.silence in (Silence.SPEAKS, Silence.KUBELET):
        also = "; its kubelet is still silent" if heard.silence is Silence.KUBELET else ""
        sentence = f"Node {name} is heard again{also}.{_ended_there(record, node)}"
        _end(desk, record, Reason.SPEAKS_AGAIN, sentence, EndedBy.RETURNED)
    elif (record.confirmed_dead or record.fence is not None) and renews(
        node, desk.picture, desk.settings, desk.now
    ):
        # It was not dead, or is not any more: what was said of this silence does not count for the next one.
        sentence = f"The kubelet of node {name} is heard again; its agent is still silent."
        _end(desk, record, Reason.SPEAKS_AGAIN, sentence, EndedBy.RETURNED)
        if heard.silence is Silence.AGENT and agent_expected(node) and not _awaited(desk, node):
            open_record(desk, node, Reason.AGENT_SILENT)
    elif heard.silence is Silence.AGENT:
        if record.reason != Reason.AGENT_SILENT.value and not _awaited(desk, node):
            _note(
                desk,
                record,
                Reason.AGENT_SILENT,
                _silent(name, Reason.AGENT_SILENT, len(protected(node.pods))),
            )
    else:
        judged = heard.silence is Silence.UNREACHABLE
        if judged and record.reason == Reason.AGENT_SILENT.value:
            sentence = _silent(name, Reason.UNREACHABLE, len(protected(node.pods)))
            record = _note(desk, record, Reason.UNREACHABLE, sentence)
        _fence(desk, record, heard.since_mono_s if judged else None)


def _awaited(desk: Desk, node: NodePicture) -> bool:
    """Is its agent still given time, since its kubelet starts it?"""
    back_s = node.kubelet_back_mono_s
    return back_s is not None and desk.now.mono_s - back_s <= desk.settings.agent_silent_s


def _ended_there(record: NodeQuarantine, node: NodePicture) -> str:
    """What its agent did meanwhile, as far as it has told that yet."""
    jobs = sorted(
        one.entity
        for one in node.findings
        if one.code == ENDED and one.last_seen_wall_s >= record.since_wall_s and record.self_fences
    )
    return f" Cut off, its agent had ended the ranks of {', '.join(jobs)} there." if jobs else ""


def _gone(desk: Desk, record: NodeQuarantine) -> None:
    """Its node object is gone: that proves it, and there is nobody left who could speak again."""
    record = _fence(desk, record, None)
    if not _left(desk, record):
        sentence = f"The silent node {record.node} is gone, and none of its pods is left."
        _end(desk, record, Reason.DEAD, sentence, EndedBy.DEAD)


def _left(desk: Desk, record: NodeQuarantine) -> list[PodPicture]:
    return list(protected(desk.picture.pods_of(record.node)))


def _fence(desk: Desk, record: NodeQuarantine, since_mono_s: float | None) -> NodeQuarantine:
    """Remove what may be removed by force. `since_mono_s` None: not judged, so only a proof counts."""
    done = {pod for removal in record.removals for pod in removal.pods}
    pods = [pod for pod in _left(desk, record) if pod.id not in done and pod.removal is not None]
    proof = proof_of_death(record, desk.picture, desk.settings, desk.now)
    if proof is Proof.NEW_BOOT:  # what was started since then may well run
        pods = [pod for pod in pods if pod.id in record.pods]
    silent_s = 0.0 if since_mono_s is None else desk.now.mono_s - since_mono_s
    promised = _promised(record, desk)
    may = {pod.id: why for pod in pods if (why := proof or _in_time(pod, promised, silent_s)) is not None}
    observed = desk.settings.observe_namespaces
    for mode, why in product(Mode, Proof):
        own = [pod for pod in pods if may.get(pod.id) is why and _mode(record, pod, observed) is mode]
        if own:
            record = _remove(desk, record, own, why, mode)
    stays = [pod for pod in pods if pod.id not in may]
    if stays and since_mono_s is not None:
        mode = hook.mode_of(record, _left(desk, record), desk.settings)
        if hook.is_due(record, mode, desk.now.mono_s - since_mono_s, desk.settings, desk.now):
            record = _power_off(desk, record, stays, mode)
        told = any(line.reason == Reason.UNFENCED.value for line in record.story)
        if not told and not hook.to_come(record, mode, desk.settings):
            stay = "stays" if len(stays) == 1 else "stay"
            sentence = (
                f"{words.pods(len(stays))} of protected jobs on node {record.node} {stay}: nothing proves that "
                f"the node is dead, and two writers would spoil their checkpoints. `sentinel confirm-dead "
                f"{record.node}` says that it is off."
            )
            record = _note(desk, record, Reason.UNFENCED, sentence, record.held_by)
    return record


def _agent_died_first(node: NodePicture, settings: FleetSettings) -> bool:
    """Its kubelet was heard for long after its agent: nobody is left there who keeps the agent's promise."""
    if node.agent_mono_s is None or node.lease_mono_s is None:
        return False  # not known
    return node.lease_mono_s - node.agent_mono_s > settings.agent_silent_s


def _promised(record: NodeQuarantine, desk: Desk) -> Mapping[str, float]:
    """Id of a pod -> when its agent ends it, s; nothing of an agent that was dead before its node was cut off."""
    node = desk.picture.nodes.get(record.node)
    if node is None or _agent_died_first(node, desk.settings):
        return {}
    # A leader that never heard this agent goes by what was told before it.
    if node.agent_mono_s is None and any(line.reason == Reason.AGENT_SILENT.value for line in record.story):
        return {}
    return {one.pod: one.after_s for one in record.self_fences}


def _in_time(pod: PodPicture, promised: Mapping[str, float], silent_s: float) -> Proof | None:
    """What its policy lets the silence of its node mean by now. `promised`: id of a pod -> when its agent ends it."""
    if pod.force_after_s is not None and 0.0 < pod.force_after_s <= silent_s:
        return Proof.POLICY
    if pod.self_fence_s is None or pod.id not in promised:
        return None  # not asked any more, or an agent that does not, or cannot
    waits_s = removal_after_s(max(pod.self_fence_s, promised[pod.id]))
    return Proof.SELF_FENCED if waits_s <= silent_s else None


def _mode(record: NodeQuarantine, pod: PodPicture, observed: Iterable[str]) -> Mode:
    only = Mode.OBSERVE in (record.mode, pod.removal) or pod.namespace in observed
    return Mode.OBSERVE if only else Mode.ENFORCE


def _took_room(desk: Desk, record: NodeQuarantine, mode: Mode) -> Brake:
    """What holds back a removal by force, or a call of the fencing program; NONE: it counts from now on."""
    if desk.picture.paused:
        return Brake.PAUSED
    if brakes.has_room(record, mode, desk.settings, desk.now):
        return Brake.NONE
    brake = desk.removals().brake(record.pool, mode)
    if not brake:
        desk.removals().add(Act(record.pool, desk.now.wall_s, mode))
    return brake


def _braked(desk: Desk, record: NodeQuarantine, pods: list[PodPicture], brake: Brake) -> NodeQuarantine:
    if record.held_by:
        return record
    why = (
        "Sentinel is paused"
        if brake is Brake.PAUSED
        else "as many removals by force as are allowed were made"
    )
    stay = "stays" if len(pods) == 1 else "stay"
    sentence = f"{words.pods(len(pods))} on node {record.node} {stay} for now: {why}."
    return _note(desk, record, Reason.REMOVAL_BRAKED, sentence, brake)


def _power_off(desk: Desk, record: NodeQuarantine, pods: list[PodPicture], mode: Mode) -> NodeQuarantine:
    """The room of the removal that is to follow is asked for first: this is worse than to remove pods."""
    if brake := _took_room(desk, record, mode):
        return _braked(desk, record, pods, brake)
    return desk.put(record.node, record.id, hook.begun(record, mode, len(pods)))


def _remove(
    desk: Desk, record: NodeQuarantine, pods: list[PodPicture], proof: Proof, mode: Mode
) -> NodeQuarantine:
    if brake := _took_room(desk, record, mode):
        return _braked(desk, record, pods, brake)
    is_ = "is" if len(pods) == 1 else "are"
    were = f"{is_} removed by force" if mode is Mode.ENFORCE else "would be removed by force (observe mode)"
    sentence = f"{words.pods(len(pods))} on node {record.node} {were}: {_PROOFS[proof]}."
    removal = Removal(
        at_wall_s=desk.now.wall_s, pods=tuple(sorted(pod.id for pod in pods)), proof=proof, mode=mode
    )
    event = Removed(reason=Reason.REMOVED_BY_FORCE, sentence=sentence, removal=removal)
    return desk.put(record.node, record.id, event)


def _note(
    desk: Desk, record: NodeQuarantine, reason: Reason, sentence: str, brake: Brake = Brake.NONE
) -> NodeQuarantine:
    return desk.put(record.node, record.id, Noted(reason=reason, sentence=sentence, brake=brake))


def _end(desk: Desk, record: NodeQuarantine, reason: Reason, sentence: str, by: EndedBy) -> None:
    if record.state is State.ACTIVE:
        desk.put(record.node, record.id, End(reason=reason, sentence=sentence, ended_by=by))
