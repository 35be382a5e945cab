"""Nodes that fall silent together, as a rack without power does: one loss, told once. Pure.

It is seen in the records, so that a new leader sees the same. Each node keeps a record of its own: what may be done to
its pods is a matter of that node alone.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from sentinel.core.fleet import words
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.model import Brake, Kind, NodeMail, NodeQuarantine
from sentinel.core.now import Now

MANY = 3  # so many nodes are told together
GAP_S = 120.0  # who falls silent later than this after the one before is another matter
LONGEST_S = 900.0  # after the first of them: what goes on and off for hours is told anew
SETTLE_S = (
    15.0  # a mail waits until for so long no further node fell silent: agents are heard every few seconds
)
SETTLED_S = 60.0  # and no longer than this
RETURN_S = 600.0  # so long a mail waits for the others to be heard again
NAMED = 12

# What is told together, by the reasons that say it: that its pods stay says that a node is unreachable, too.
TOGETHER: Mapping[str, Reason] = {
    Reason.UNREACHABLE: Reason.UNREACHABLE,
    Reason.UNFENCED: Reason.UNREACHABLE,
    Reason.AGENT_SILENT: Reason.AGENT_SILENT,
    Reason.REMOVAL_BRAKED: Reason.REMOVAL_BRAKED,
    Reason.SPEAKS_AGAIN: Reason.SPEAKS_AGAIN,
    Reason.DEAD: Reason.DEAD,
}
_OVER = (Reason.SPEAKS_AGAIN, Reason.DEAD)


class Loss(Struct, frozen=True):
    """Silences that began together, the first one first. It may be one alone."""

    records: tuple[NodeQuarantine, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return nodes_of(self.records)

    @property
    def many(self) -> bool:
        return len(self.nodes) >= MANY

    @property
    def silent(self) -> tuple[NodeQuarantine, ...]:
        """Those that last."""
        return tuple(one for one in self.records if one.state.open)


def losses(records: Iterable[NodeQuarantine]) -> tuple[Loss, ...]:
    """All silences among these records, in groups that began together, the earliest first."""
    silences = sorted(
        (one for one in records if one.kind is Kind.SILENCE), key=lambda one: (one.since_wall_s, one.id)
    )
    groups: list[list[NodeQuarantine]] = []
    for one in silences:
        if (
            groups
            and one.since_wall_s - groups[-1][-1].since_wall_s <= GAP_S
            and one.since_wall_s - groups[-1][0].since_wall_s <= LONGEST_S
        ):
            groups[-1].append(one)
        else:
            groups.append([one])
    return tuple(Loss(tuple(group)) for group in groups)


def nodes_of(records: Iterable[NodeQuarantine]) -> tuple[str, ...]:
    """By name; one that fell silent twice is one node."""
    return tuple(sorted({one.node for one in records}))


def due_wall_s(loss: Loss, about: Reason, mails: Sequence[NodeMail], now: Now) -> float:
    """When a mail that was not tried yet is to go, so that it tells of all of them. `about`: a value of TOGETHER;
    `mails`: those of this loss that wait with it, not empty."""
    first = min(mail.wall_s for mail in mails)
    last = max(mail.wall_s for mail in mails)
    if (
        last > now.wall_s
    ):  # the clock was set back, or another controller's was ahead: this must not hold it for hours
        return now.wall_s
    if about in _OVER:
        return first + RETURN_S if loss.many and loss.silent else first
    return min(last + SETTLE_S, first + SETTLED_S)


# ---------------------------------------------------------------- in words


def sentence(about: Reason, records: Sequence[NodeQuarantine], *, more: bool = False) -> str:
    """What happened to these nodes. `more`: others with them were told before."""
    nodes = nodes_of(records)
    many = f"{len(nodes)}{' more' if more else ''} {'node' if len(nodes) == 1 else 'nodes'}"
    match about:
        case Reason.UNREACHABLE:
            return f"{many} cannot be reached: agents and kubelets are silent. They may still run.{_pods(records)}"
        case Reason.AGENT_SILENT:
            return (
                f"The agents of {many} are silent; the kubelets are heard, so the nodes live.{_pods(records)}"
            )
        case Reason.REMOVAL_BRAKED:
            paused = any(one.held_by is Brake.PAUSED for one in records)
            why = "Sentinel is paused" if paused else "as many removals by force as are allowed were made"
            return f"Pods on {many} stay for now: {why}."
        case Reason.SPEAKS_AGAIN:
            return f"{many} {'is' if len(nodes) == 1 else 'are'} heard again."
        case _:
            return f"{many} that were silent are gone, and none of the pods there is left."


def _pods(records: Sequence[NodeQuarantine]) -> str:
    pods = {pod for one in records for pod in one.pods}
    stay = ", which stay: nothing proves that the nodes are dead" if unfenced(records) else ""
    return f" Protected jobs have {words.pods(len(pods))} there{stay}." if pods else ""


def unfenced(records: Iterable[NodeQuarantine]) -> bool:
    """Was it told of any of them that its pods stay?"""
    return any(line.reason == Reason.UNFENCED.value for one in records for line in one.story)


def line(about: Reason, records: Sequence[NodeQuarantine]) -> str:
    """The sentence with the nodes' names."""
    nodes = nodes_of(records)
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return f"{sentence(about, records)} They are: {', '.join(nodes[:NAMED])}{more}."


def within_s(records: Sequence[NodeQuarantine]) -> float:
    """From the first to the last of them."""
    times = [one.since_wall_s for one in records]
    return max(times) - min(times)


def told(records: Iterable[NodeQuarantine]) -> list[str]:
    """What lasts of each loss of many nodes, in a sentence."""
    said = []
    for loss in losses(records):
        if loss.many and (silent := loss.silent):
            nodes = nodes_of(silent)
            left = f"{len(nodes)} of them are" if len(nodes) > 1 else "one of them is"
            all_ = len(nodes) == len(loss.nodes)
            said.append(
                f"LOST TOGETHER: {len(loss.nodes)} nodes fell silent within {max(1.0, within_s(loss.records)):.0f} s "
                f"of each other{'' if all_ else f', {left} still silent'}. Look for what they share: power, a switch, "
                "a rack."
            )
    return said
