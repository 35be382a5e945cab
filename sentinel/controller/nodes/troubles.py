"""What the leader of the fleet cannot do, in sentences: of its works those that fail again and again."""

from collections.abc import Iterable, Mapping, Sequence

from sentinel.controller.troubles import TRIES, UNTOLD_S, Trouble, alone, shared, untold
from sentinel.core.agents.epochs import AGENT, Where
from sentinel.core.fleet.model import NodeQuarantine
from sentinel.core.now import Now
from sentinel.util.works import Failing

# effect -> what it means for these nodes that it fails
SENTENCES = {
    "claim": "nothing is decided about {names}, for what an earlier leader may still write there cannot be fenced off",
    "isolate": "{names} cannot be taken out of service, for that cannot be saved",
    "save": "what was decided about {names} cannot be saved, and is not done",
    "settle": "nothing is decided about {names}, for what became of the last save cannot be read",
    "show": "the mark of {names} cannot be written",
    "condition": "the conditions of {names} cannot be written",
    "record-status": "the status of the records of {names} cannot be written",
    "mail-record": "what became of the mails about {names} cannot be saved: another leader would send them again",
    "remove": "pods on {names} cannot be removed",
    "fence": "{names} cannot be fenced",
    "order": "what was ordered about {names} cannot be taken up",
    "answer": "what was ordered about {names} cannot be answered",
    "prune": "old records of {names} cannot be deleted",
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
    problems = {
        record.node: mail.error
        for record in records
        for mail in record.mails
        if mail.state == "failed" and now.wall_s - mail.wall_s < UNTOLD_S
    }
    return untold(problems, "node")


def of_works(failing: Iterable[Failing]) -> dict[str, Trouble]:
    """By effect."""
    found: dict[str, dict[str, str]] = {}
    for one in failing:
        if one.number >= TRIES:
            found.setdefault(one.effect, {})[one.key] = one.error
    return {effect: shared(SENTENCES[effect], problems, "node") for effect, problems in found.items()}
