"""What is decided about silent nodes: told, and pods removed by force only where that is proved safe. Pure."""

from collections.abc import Iterable

from sentinel.core import fleet_words as words
from sentinel.core.fleet_brakes import Act
from sentinel.core.fleet_desk import Desk
from sentinel.core.fleet_events import End, Noted, Open, Reason, Removed
from sentinel.core.fleet_marks import claims
from sentinel.core.fleet_model import (
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
    State,
)
from sentinel.core.fleet_silence import (
    Heard,
    Hearing,
    Silence,
    agent_expected,
    proof_of_death,
    protected,
    raw,
)

NEEDS = Needs(sentence="it must be heard again, or be proved dead")
_PROOFS = {
    Proof.NODE_GONE: "its node object is gone",
    Proof.INSTANCE_GONE: "the provider says that its machine is gone",
    Proof.NEW_BOOT: "it was started again since",
    Proof.OUT_OF_SERVICE: "it has the out-of-service taint",
    Proof.PERSON: "a person said that it is dead",
    Proof.POLICY: "the policy of their job says so after this time; that they still run somewhere is possible",
}


def judge_all(desk: Desk, hearing: Hearing) -> None:
    """Every node of a whole round."""
    for name in sorted(hearing.nodes):
        node, heard = desk.picture.nodes[name], hearing.nodes[name]
        if heard.silence is Silence.SPEAKS and not desk.known(name):
            continue  # most nodes, most of the time
        record = desk.open(name, Kind.SILENCE)
        if record is None:
            if claims(node) and not protected(node.pods):
                continue  # it is being taken away: that it falls silent is no news
            if heard.silence is Silence.UNREACHABLE:
                record = open_record(desk, node, Reason.UNREACHABLE)
            elif heard.silence is Silence.AGENT and agent_expected(node):
                open_record(desk, node, Reason.AGENT_SILENT)
        if record is not None:
            _go_on(desk, record, node, heard)
    silent = [one for one in desk.records.values() if one.kind is Kind.SILENCE and one.state.open]
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


def confirm_dead(desk: Desk, name: str, order: str, by: str) -> bool:
    """A person says that this node is dead. False: it is heard, so it is not."""
    node = desk.picture.nodes.get(name)
    record = desk.open(name, Kind.SILENCE)
    if node is not None:
        heard = raw(node, desk.picture, desk.settings, desk.now)
        if heard.silence is not Silence.UNREACHABLE:
            return False
        record = record or open_record(desk, node, Reason.UNREACHABLE)
    if record is None:
        return False
    sentence = f"Node {name} is dead, says {by or 'a person'}: its pods may be removed by force."
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
        boot_id=node.boot_id or node.api_boot_id,
        pods=tuple(pod.id for pod in pods),
    )
    return desk.put(node.name, event.id, event)


def _silent(name: str, reason: Reason, pods: int) -> str:
    runs = f" {words.pods(pods)} of protected jobs run there." if pods else ""
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
        _end(desk, record, Reason.SPEAKS_AGAIN, f"Node {name} is heard again{also}.", EndedBy.RETURNED)
    elif heard.silence is Silence.AGENT:
        if record.reason != Reason.AGENT_SILENT.value:
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
    pods = [pod for pod in _left(desk, record) if pod.id not in done]
    proof = proof_of_death(record, desk.picture)
    if proof is Proof.NEW_BOOT:  # what was started since then may well run
        pods = [pod for pod in pods if pod.id in record.pods]
    if proof is not None:
        may = pods
    else:
        silent_s = 0.0 if since_mono_s is None else desk.now.mono_s - since_mono_s
        may = [pod for pod in pods if pod.force_after_s is not None and 0.0 < pod.force_after_s <= silent_s]
    observed = desk.settings.observe_namespaces
    for mode in Mode:
        own = [pod for pod in may if _mode(record, pod, observed) is mode]
        if own:
            record = _remove(desk, record, own, proof or Proof.POLICY, mode)
    stays = [pod for pod in pods if pod not in may]
    told = any(line.reason == Reason.UNFENCED.value for line in record.story)
    if stays and since_mono_s is not None and not told:
        sentence = (
            f"{words.pods(len(stays))} of protected jobs on node {record.node} are not removed: nothing proves that "
            f"the node is dead, and two writers would spoil their checkpoints. `sentinel confirm-dead "
            f"{record.node}` says that it is."
        )
        record = _note(desk, record, Reason.UNFENCED, sentence, record.held_by)
    return record


def _mode(record: NodeQuarantine, pod: PodPicture, observed: Iterable[str]) -> Mode:
    return Mode.OBSERVE if record.mode is Mode.OBSERVE or pod.namespace in observed else Mode.ENFORCE


def _remove(
    desk: Desk, record: NodeQuarantine, pods: list[PodPicture], proof: Proof, mode: Mode
) -> NodeQuarantine:
    brake = Brake.PAUSED if desk.picture.paused else desk.removals().brake(record.pool, mode)
    if brake:
        if record.held_by:
            return record
        why = (
            "Sentinel is paused"
            if brake is Brake.PAUSED
            else "as many removals by force as are allowed were made"
        )
        sentence = f"{words.pods(len(pods))} on node {record.node} stay for now: {why}."
        return _note(desk, record, Reason.REMOVAL_BRAKED, sentence, brake)
    desk.removals().add(Act(record.pool, desk.now.wall_s, mode))
    were = "are removed by force" if mode is Mode.ENFORCE else "would be removed by force (observe mode)"
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
