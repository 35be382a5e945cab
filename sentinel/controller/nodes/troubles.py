"""What the leader of the fleet cannot do, in sentences: of its works those that fail again and again."""

from collections.abc import Iterable, Mapping, Sequence

from sentinel.controller.troubles import TRIES, UNTOLD_S, Trouble, alone, several
from sentinel.core.agents.epochs import AGENT, Where
from sentinel.core.fleet.model import NodeQuarantine
from sentinel.core.now import Now
from sentinel.util.works import Failing

# effect -> what it means for these nodes that it fails
SENTENCES = {
    "claim": "nothing is decided about {nodes}, for what an earlier leader may still write there cannot be fenced off",
    "isolate": "{nodes} cannot be taken out of service, for that cannot be saved",
    "save": "what was decided about {nodes} cannot be saved, and is not done",
    "settle": "nothing is decided about {nodes}, for what became of the last save cannot be read",
    "show": "the mark of {nodes} cannot be written",
    "condition": "the conditions of {nodes} cannot be written",
    "record-status": "the status of the records of {nodes} cannot be written",
    "mail-record": "what became of the mails about {nodes} cannot be saved: another leader would send them again",
    "remove": "pods on {nodes} cannot be removed",
    "fence": "{nodes} cannot be fenced",
    "order": "what was ordered about {nodes} cannot be taken up",
    "answer": "what was ordered about {nodes} cannot be answered",
    "prune": "old records of {nodes} cannot be deleted",
}
# Without these it does not do its work, or not as it should.
NOT_READY = ("take-over", "clock", "claim", "isolate", "save", "settle")


def of_epochs(unbelieved: Mapping[Where, int]) -> Mapping[str, Trouble]:
    """Where an epoch stands that no controller can have had; one that an agent told needs a person."""
    told = [(str(where), epoch) for where, epoch in unbelieved.items() if where.kind == AGENT]
    written = [(str(where), epoch) for where, epoch in unbelieved.items() if where.kind != AGENT]
    found = {}
    if written:
        found["epochs"] = _with_epochs(
            written,
            "which no controller can have had: it is not followed, and the next write there takes it away",
        )
    if told:
        found["epochs of agents"] = _with_epochs(
            told,
            "which no controller can have had, and obeys none below it: remove the file controller/epoch from its "
            "state folder and restart it",
        )
    return found


def _with_epochs(found: Sequence[tuple[str, int]], meaning: str) -> Trouble:
    more = f" (and {len(found) - 1} more such)" if len(found) > 1 else ""
    where, epoch = min(found)
    return Trouble(f"{where}{more} bears epoch {epoch}, {meaning}", tuple(where for where, _ in found))


def of_fleet(
    texts: Mapping[str, str], failing: Iterable[Failing], records: Iterable[NodeQuarantine], now: Now
) -> dict[str, Trouble]:
    """By name. `texts`: those that nothing can join, "" for what is none; `failing`: its works."""
    return alone(texts) | of_works(failing) | of_mails(records, now)


def of_mails(records: Iterable[NodeQuarantine], now: Now) -> dict[str, Trouble]:
    """Nodes about which nobody got a mail."""
    untold = {
        record.node: mail.error
        for record in records
        for mail in record.mails
        if mail.state == "failed" and now.wall_s - mail.wall_s < UNTOLD_S
    }
    if not untold:
        return {}
    nodes = tuple(sorted(untold))
    return {
        "node mails": Trouble(
            f"nobody got the mail about {several(nodes, 'node')}: {untold[nodes[0]]}", nodes
        )
    }


def of_works(failing: Iterable[Failing]) -> dict[str, Trouble]:
    """By effect."""
    found: dict[str, list[Failing]] = {}
    for one in failing:
        if one.number >= TRIES:
            found.setdefault(one.effect, []).append(one)
    return {effect: _trouble(effect, sorted(own, key=lambda one: one.key)) for effect, own in found.items()}


def _trouble(effect: str, failing: list[Failing]) -> Trouble:
    nodes = tuple(one.key for one in failing)
    text = SENTENCES[effect].format(nodes=several(nodes, "node"))
    return Trouble(f"{text}: {failing[0].error}", nodes)
