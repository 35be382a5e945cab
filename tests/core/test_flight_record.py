"""What flight recorders of ranks tell → who is missing in the operation in which the others wait.

Records that torch wrote are read in tests/cluster/test_flight_dumps.py; here are jobs of sixteen ranks and more.
"""

from collections.abc import Sequence

import pytest

from sentinel.core.stacks.flight_record import Dump, Entry, Group, Kind, Stuck, stuck

WORLD = Group("0", "default_pg", tuple(range(16)))
TRAIN, EVAL, LOAD = "step (train.py:88)", "evaluate (train.py:101)", "next (train.py:61)"


def entry(
    seq: int, group: Group = WORLD, *, done: bool = True, op: str = "all_reduce", **more: object
) -> Entry:
    told = {"shapes": "Float [4]", "place": TRAIN, "created_s": 1000.0 + seq, "started": False} | more
    told = {"amount": told["shapes"]} | told
    return Entry(group=group, op=op, seq=seq, done=done, **told)  # type: ignore[arg-type]


def ranks(numbers: Sequence[int], *entries: Entry, **more: object) -> list[Dump]:
    return [Dump(rank, entries, **more) for rank in numbers]  # type: ignore[arg-type]


def others(*absent: int) -> list[int]:
    return [rank for rank in WORLD.ranks if rank not in absent]


def found(dumps: Sequence[Dump]) -> Stuck:
    told = stuck(dumps)
    assert told is not None
    return told


def test_the_rank_that_did_not_come_is_named_with_the_operation_and_where_the_others_called_it() -> None:
    told = found([*ranks(others(3), entry(1), entry(2, done=False)), *ranks([3], entry(1, place=LOAD))])
    assert (told.kind, told.rank, told.op, told.seq, told.since_s) == (
        Kind.ABSENT,
        3,
        "all_reduce",
        2,
        1002.0,
    )
    assert told.waiting == tuple(others(3))
    assert told.sentence == (
        "Rank 3 did not take part in all_reduce 2 of group default_pg, in which 15 ranks wait, called at "
        "step (train.py:88). The last that it entered was all_reduce 1 at next (train.py:61)."
    )


def test_of_several_that_did_not_come_none_alone_is_named() -> None:
    told = found([*ranks(others(4, 5), entry(1), entry(2, done=False)), *ranks([4, 5], entry(1))])
    assert (told.kind, told.rank, told.ranks) == (Kind.ABSENT, None, (4, 5))
    assert told.sentence.startswith("Ranks 4, 5 did not take part in all_reduce 2 of group default_pg")


def test_of_two_that_are_missing_in_two_groups_none_alone_is_named() -> None:
    pair = Group("3", "TP", (2, 3))
    told = found(
        [
            *ranks([2], entry(1), entry(1, pair), entry(2, pair, done=False)),
            *ranks([3], entry(1), entry(1, pair)),
            *ranks([5], entry(1)),
            *ranks(others(2, 3, 5), entry(1), entry(2, done=False)),
        ]
    )
    assert (told.kind, told.rank, told.ranks) == (Kind.ABSENT, None, (3, 5))
    assert "rank 3 did not take part in" in told.sentence.lower()
    assert "nor did rank 5" in told.sentence


def test_who_has_no_entry_of_a_group_is_told_and_not_named() -> None:
    """It may be in the group's set-up, which is not recorded; or its entries of it were dropped for want of room."""
    told = found([*ranks(others(4), entry(1, done=False)), *ranks([4])])
    assert (told.kind, told.ranks) == (Kind.INSIDE, ())
    assert told.sentence.endswith("whether rank 4 came there is not recorded.")


def test_a_record_from_before_the_others_waited_does_not_tell_that_its_rank_is_missing() -> None:
    told = found([*ranks(others(4), entry(1), entry(2, done=False)), *ranks([4], entry(1), written_s=1001.5)])
    assert told.ranks == ()
    told = found([*ranks(others(4), entry(1), entry(2, done=False)), *ranks([4], entry(1), written_s=1600.0)])
    assert told.ranks == (4,)


def test_who_waits_in_a_later_operation_is_not_idle() -> None:
    """6 sent its part and waits for 7 in the next one, 7 still waits for what 6 sent; the others wait for both."""
    pair = Group("3", "TP", (6, 7))
    told = found(
        [
            *ranks(others(6, 7), entry(1), entry(2, done=False)),
            *ranks([6], entry(1), entry(5, pair, done=False, op="broadcast")),
            *ranks([7], entry(1), entry(5, pair, op="broadcast"), entry(6, pair, done=False)),
        ]
    )
    assert told.ranks == ()


def test_a_link_that_fails_within_a_group_is_not_taken_for_groups_that_wait_for_each_other() -> None:
    pair = Group("3", "TP", (6, 7))
    held = [
        *ranks(others(6, 7), entry(1), entry(2, done=False)),
        *ranks([6], entry(1), entry(5, pair, done=False)),
    ]
    told = found([*held, *ranks([7], entry(1), entry(5, pair, done=False))])
    assert (told.kind, told.group, told.ranks) == (Kind.INSIDE, "3 (TP)", ())
    assert (found(held).kind, found(held).rank) == (Kind.SILENT, 7)


def test_a_rank_that_waits_in_another_group_is_not_the_one_that_is_missing() -> None:
    """Tensor-parallel pairs below a data-parallel group: 7 waits for 6, which loads; all others wait for both."""
    pair = Group("3", "TP", (6, 7))
    told = found(
        [
            *ranks(others(6, 7), entry(1), entry(2, done=False)),
            *ranks([7], entry(1), entry(8, pair), entry(9, pair, done=False)),
            *ranks([6], entry(1), entry(8, pair)),
        ]
    )
    assert (told.kind, told.rank) == (Kind.ABSENT, 6)
    assert told.sentence.startswith(
        "Rank 6 did not take part in all_reduce 9 of group 3 (TP), in which rank 7 waits"
    )


def test_groups_of_one_name_with_other_ranks_are_others() -> None:
    """Of each pair the recorder gives the same name, and numbers of its own."""
    pairs = [Group("1", "TP", (first, first + 1)) for first in range(0, 16, 2)]
    dumps = [
        Dump(rank, (entry(rank // 2 + 1, pairs[rank // 2]), entry(39), entry(40, done=False)))
        for rank in others(4)
    ]
    told = found([*dumps, Dump(4, (entry(3, pairs[2]), entry(39)))])
    assert (told.kind, told.rank, told.group) == (Kind.ABSENT, 4, "default_pg")


def test_a_pipeline_waits_for_the_stage_at_its_end() -> None:
    """Each stage waits for what the next gives back; the last one is in no operation."""

    def receives(stage: int) -> Entry:
        return entry(1, done=False, op="recv", peers=(stage + 1, stage))

    told = found([*(Dump(stage, (receives(stage),)) for stage in range(15)), Dump(15, (entry(1),))])
    assert (told.kind, told.rank) == (Kind.ABSENT, 15)
    assert "the recv from rank 15 to rank 14, in which rank 14 waits" in told.sentence


def test_who_has_sent_is_not_missing_where_the_other_still_receives() -> None:
    sent = entry(1, op="send", peers=(0, 1))
    told = found([Dump(0, (sent,)), Dump(1, (entry(1, done=False, op="recv", peers=(0, 1)),))])
    assert (told.kind, told.ranks) == (Kind.INSIDE, ())


def test_sends_that_were_dropped_for_want_of_room_accuse_nobody() -> None:
    waits = entry(7, done=False, op="recv", peers=(0, 1))
    told = found([Dump(0, (entry(2000),), whole=False), Dump(1, (waits,))])
    assert told.ranks == ()


def test_groups_that_wait_for_each_other_are_told_and_nobody_is_named() -> None:
    first, second = Group("1", "A", tuple(range(16))), Group("2", "B", tuple(range(16)))
    told = found(
        [
            *ranks(range(8), entry(1, first), entry(1, second), entry(2, first, done=False)),
            *ranks(range(8, 16), entry(1, first), entry(1, second), entry(2, second, done=False, place=EVAL)),
        ]
    )
    assert (told.kind, told.ranks) == (Kind.CROSSED, ())
    assert told.sentence == (
        "Groups wait for each other: ranks 0-7 in all_reduce 2 of group 1 (A) at step (train.py:88) for ranks 8-15; "
        "ranks 8-15 in all_reduce 2 of group 2 (B) at evaluate (train.py:101) for ranks 0-7."
    )


@pytest.mark.parametrize("other", [{"op": "broadcast"}, {"shapes": "Float [8]"}])
def test_one_rank_that_entered_something_else_is_named(other: dict[str, str]) -> None:
    told = found(
        [*ranks(others(9), entry(2, done=False)), *ranks([9], entry(2, done=False, place=EVAL, **other))]
    )
    assert (told.kind, told.rank) == (Kind.DIFFERENT, 9)
    assert told.sentence.startswith(
        "Ranks of group default_pg went different ways at operation 2: ranks 0-8, 10-15 in all_reduce of Float [4] at "
        "step (train.py:88); rank 9 in "
    )


def test_two_halves_that_entered_different_operations_accuse_nobody() -> None:
    told = found(
        [*ranks(range(8), entry(2, done=False)), *ranks(range(8, 16), entry(2, done=False, op="broadcast"))]
    )
    assert (told.kind, told.ranks) == (Kind.DIFFERENT, ())


def test_shares_of_a_gather_may_differ() -> None:
    dumps = [
        Dump(rank, (entry(1, done=False, op="all_gather", shapes=f"Float [{rank}]"),)) for rank in range(16)
    ]
    assert found(dumps).kind is Kind.INSIDE


def test_the_one_without_a_record_is_named_where_all_others_wait() -> None:
    told = found(ranks(others(11), entry(1), entry(2, done=False)))
    assert (told.kind, told.rank) == (Kind.SILENT, 11)
    assert told.sentence.startswith(
        "There is no record of rank 11, and 15 ranks wait in all_reduce 2 of group default_pg"
    )


def test_of_several_without_a_record_none_is_named_nor_one_whose_file_could_not_be_read() -> None:
    assert found(ranks(range(8), entry(1), entry(2, done=False))).ranks == ()
    dumps = ranks(others(11), entry(1), entry(2, done=False))
    told = stuck(dumps, unread=(11,))
    assert told is not None
    assert (told.kind, told.ranks) == (Kind.SILENT, ())


def test_the_record_of_one_rank_alone_names_nobody() -> None:
    told = found(ranks([0], entry(1), entry(2, done=False)))
    assert (told.kind, told.ranks) == (Kind.INSIDE, ())
    assert told.sentence.endswith("the record of one rank does not tell for whom.")


def test_numbers_are_not_compared_in_a_group_that_sends_in_batches() -> None:
    """Some versions of torch count each batch as a collective, of those that send alone."""
    batch = entry(1, op="send", peers=(0, 1), batched=True)
    told = found(
        [
            *ranks([0, 1], batch, entry(3, done=False)),
            *ranks(range(2, 16), entry(1), entry(2, done=False, op="broadcast")),
        ]
    )
    assert (told.kind, told.ranks) == (Kind.INSIDE, ())


def test_a_gpu_that_waits_for_something_else_before_is_not_late() -> None:
    pair = Group("3", "TP", (2, 3))
    told = found(
        [
            *ranks(others(2, 3), entry(2, done=False, started=True)),
            *ranks([3], entry(1, pair), entry(2, done=False, started=True)),
            *ranks([2], entry(1, pair, done=False, created_s=900.0), entry(2, done=False)),
        ]
    )
    assert told.ranks == ()


def test_a_gpu_that_has_not_begun_what_all_others_have_is_named() -> None:
    told = found([*ranks(others(2), entry(1, done=False, started=True)), *ranks([2], entry(1, done=False))])
    assert (told.kind, told.rank) == (Kind.LATE, 2)


def test_where_all_are_in_it_nobody_is_named() -> None:
    told = found(ranks(range(16), entry(1, done=False, started=True)))
    assert (told.kind, told.rank, told.ranks) == (Kind.INSIDE, None, ())
    assert told.sentence.startswith(
        "16 ranks wait in all_reduce 1 of group default_pg, called at step (train.py:88); none"
    )


def test_what_was_dropped_for_want_of_room_was_entered() -> None:
    """A rank far ahead has dropped what the others wait in; the recorder's counter tells how far it came."""
    small = Group("5", "DP", (0, 1))
    told = found(
        [
            Dump(0, (entry(4, small, done=False),)),
            Dump(1, (entry(9000),), {small: 4}, whole=False),
        ]
    )
    assert told.ranks == ()


def test_what_is_done_is_no_wait() -> None:
    assert stuck(ranks(range(16), entry(1), entry(2))) is None
    assert stuck([]) is None
