"""How long a start waits for pods that nothing but a person helps, and for the cordons of nodes."""

import asyncio
from collections.abc import Sequence

import pytest

from sentinel.cluster.kubernetes import job_waits
from sentinel.cluster.kubernetes.job_waits import HOPELESS_S, WHY_AFTER_S, Waited, cordons


class HandClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_start_is_given_up_once_it_was_hopeless_for_long_without_a_break() -> None:
    clock = HandClock()
    waited = Waited(clock)
    assert not waited.hopeless.lasts(True)
    clock.now_s += HOPELESS_S - 1
    assert not waited.hopeless.lasts(True)
    assert not waited.hopeless.lasts(False), "the registry answers again"
    clock.now_s += HOPELESS_S
    assert not waited.hopeless.lasts(True), "another pod, and a trouble of its own"
    clock.now_s += HOPELESS_S
    assert waited.hopeless.lasts(True)


def test_why_pods_are_not_up_is_asked_for_now_and_then() -> None:
    clock = HandClock()
    waited = Waited(clock)
    asked = []
    for _ in range(int(3 * WHY_AFTER_S)):
        clock.now_s += 1.0
        asked.append(waited.long_enough())
    assert sum(asked) == 3


@pytest.mark.parametrize(
    ("seen", "leaving", "looks"),
    [
        ((["n1", "n2"], ["n2"], []), {"n1", "n2"}, 3),  # both cordons are seen one after the other
        ((["n1", "n2"], ["n2"], []), {"n1"}, 1),  # n2 stays as it is: for n1 nobody waits
        ((["n1"], []), set(), 1),
        ((["n1"],) * 20, {"n1"}, 5),  # it does not come
        (([],), set(), 1),
    ],
)
def test_nodes_that_are_to_leave_service_get_a_moment_to_be_cordoned(
    seen: Sequence[list[str]], leaving: set[str], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_waits, "LEAVES_LOOKS", 5)
    monkeypatch.setattr(job_waits, "LEAVES_LOOK_S", 0.0)
    told = list(seen)
    asyncio.run(cordons(lambda: told.pop(0), leaving.__contains__))
    assert len(seen) - len(told) == looks
