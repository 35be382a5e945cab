"""The engine of the state machines, under a table of its own."""

import pytest
from msgspec import Struct, structs

from sentinel.core.machine import Machine, UnexpectedEvent, lengthened


class Door(Struct):
    state: str
    turns: int = 0


class Push(Struct):
    pass


class Lock(Struct):
    state: str


def push(door: Door | None, event: Push, strength: int) -> tuple[Door, tuple[str, ...]]:
    return Door("open", strength), ("creak",)


def lock(door: Door, event: Lock, strength: int) -> tuple[Door, tuple[str, ...]]:
    return structs.replace(door, state=event.state), ()


TABLE = {
    (None, Push): (push, ("open",)),
    ("shut", Push): (push, ("open",)),
    ("open", Lock): (lock, ("locked", "shut")),
}
MACHINE = Machine(TABLE, lambda door: door.state)


def test_a_record_is_moved_by_the_handler_of_its_row_which_gets_what_is_given() -> None:
    assert MACHINE.step("shut", Door("shut"), Push(), 3) == (Door("open", 3), ("creak",))
    assert MACHINE.step("open", Door("open", 3), Lock("locked"), 0) == (Door("locked", 3), ())


def test_where_there_is_no_record_yet_an_event_makes_it() -> None:
    assert MACHINE.step(None, None, Push(), 1) == (Door("open", 1), ("creak",))


def test_an_event_without_a_row_is_refused_and_says_so_before() -> None:
    assert MACHINE.accepts("open", Lock("shut"))
    assert not MACHINE.accepts("locked", Push())
    with pytest.raises(UnexpectedEvent, match="Push in locked"):
        MACHINE.step("locked", Door("locked"), Push(), 1)


def test_a_handler_that_ends_in_a_state_that_its_row_does_not_name_is_refused() -> None:
    with pytest.raises(UnexpectedEvent, match="lock led to ajar"):
        MACHINE.step("open", Door("open"), Lock("ajar"), 0)


def test_a_story_keeps_how_it_began_and_what_came_last() -> None:
    story: tuple[int, ...] = ()
    for line in range(10):
        story = lengthened(story, line, 6)
    assert story == (0, 1, 2, 7, 8, 9)
