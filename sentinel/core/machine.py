"""The engine of the state machines: of recoveries (`recovery.transitions`) and of isolated nodes (`fleet.record`).

A machine is its table: (state, event) -> the handler, and the states that it may lead to. An event that has no row for
the state is refused, and so is a handler that ends in a state that its row does not name. Whoever steps a record saves
the new one before anything is done about it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

R = TypeVar("R")  # a record
S = TypeVar("S")  # its state
F = TypeVar("F")  # the state before: that, or None where there is no record yet
E = TypeVar("E")  # what is to be done: one effect, several, or none
L = TypeVar("L")

Handler: TypeAlias = Callable[..., tuple[R, E]]
Table: TypeAlias = Mapping[tuple[F, type], tuple[Handler[R, E], tuple[S, ...]]]


class UnexpectedEvent(Exception):
    """There is no row for this event in this state: a bug, an outcome that came too late, or another's write."""


class Machine(Generic[F, S, R, E]):
    def __init__(self, table: Table[F, R, E, S], state: Callable[[R], S]) -> None:
        self._table, self._state = table, state

    def accepts(self, state: F, event: object) -> bool:
        return (state, type(event)) in self._table

    def step(self, state: F, record: Any, event: object, *given: Any) -> tuple[R, E]:
        """The record moved by one event, and what to do. `record` is in `state`; `given`: what handlers take besides.
        Raises UnexpectedEvent."""
        row = self._table.get((state, type(event)))
        if row is None:
            raise UnexpectedEvent(f"{type(event).__name__} in {state}")
        handler, targets = row
        moved, effects = handler(record, event, *given)
        if (reached := self._state(moved)) not in targets:
            raise UnexpectedEvent(f"{handler.__name__} led to {reached}, which its row does not name")
        return moved, effects


def lengthened(story: tuple[L, ...], line: L, most: int) -> tuple[L, ...]:
    """With one more line, in all at most `most`: the oldest half, which tells how it began, and the newest."""
    if len(story) >= most:
        story = story[: most // 2] + story[-(most // 2) + 1 :]
    return (*story, line)
