"""How long a start waits for pods that nothing but a person helps."""

from sentinel.cluster.kubernetes.job_waits import HOPELESS_S, WHY_AFTER_S, Waited


class HandClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_start_is_given_up_once_it_was_hopeless_for_long_without_a_break() -> None:
    clock = HandClock()
    waited = Waited(clock)
    assert not waited.hopelessly(True)
    clock.now_s += HOPELESS_S - 1
    assert not waited.hopelessly(True)
    assert not waited.hopelessly(False), "the registry answers again"
    clock.now_s += HOPELESS_S
    assert not waited.hopelessly(True), "another pod, and a trouble of its own"
    clock.now_s += HOPELESS_S
    assert waited.hopelessly(True)


def test_why_pods_are_not_up_is_asked_for_now_and_then() -> None:
    clock = HandClock()
    waited = Waited(clock)
    asked = []
    for _ in range(int(3 * WHY_AFTER_S)):
        clock.now_s += 1.0
        asked.append(waited.long_enough())
    assert sum(asked) == 3
