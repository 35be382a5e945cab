"""Which ended records may be deleted, so that they stay as few as what reads them needs. Pure."""

from collections.abc import Mapping

from sentinel.core.fleet.model import FleetPicture, NodeQuarantine
from sentinel.core.fleet.release import same_machine
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.now import Now


def prunable(record: NodeQuarantine, picture: FleetPicture, settings: FleetSettings, now: Now) -> bool:
    """May this ended record be deleted? Not while a window reads it, its mark is left, or a person lives with it."""
    return _free(record, picture) and _ended_s(record, now) > settings.keep_s


def pruned(
    picture: FleetPicture, records: Mapping[str, NodeQuarantine], settings: FleetSettings, now: Now
) -> tuple[NodeQuarantine, ...]:
    """The records to delete, the oldest first.

    Of more than `keep_records` ended ones the oldest go before their time; only the rule of repeat offenders, whose
    window is days, may miss those. What a brake still counts stays, however many there are.
    """
    ended = sorted(
        (record for record in records.values() if record.ended_wall_s is not None and _free(record, picture)),
        key=lambda one: (one.ended_wall_s, one.id),
    )
    too_many = len(ended) - settings.keep_records
    return tuple(
        record
        for index, record in enumerate(ended)
        if _ended_s(record, now) > (settings.brakes_s if index < too_many else settings.keep_s)
    )


def _free(record: NodeQuarantine, picture: FleetPicture) -> bool:
    node = picture.nodes.get(record.node)
    lived_with = record.ignored and node is not None and same_machine(record, node)
    return not lived_with and (node is None or node.mark is None or node.mark.number != record.number)


def _ended_s(record: NodeQuarantine, now: Now) -> float:
    """How long ago; before everything where it has not ended."""
    return float("-inf") if record.ended_wall_s is None else now.wall_s - record.ended_wall_s
