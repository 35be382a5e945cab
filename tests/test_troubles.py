"""What keeps a controller from its work is said once when it has stood for a while, and once when it is over."""

import asyncio

import pytest

from sentinel.core.now import Now
from sentinel.errors import TemporaryError
from sentinel.fleet_troubles import SENTENCES, of_works
from sentinel.troubles import MOST, STANDS_S, Troubles
from sentinel.works import Failing, Works
from tests.waits import eventually


class Told:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.lines: list[str] = []
        self.troubles = Troubles(self.lines.append, lambda: Now(self.now_s, 0.0))

    def after(self, seconds: float, **standing: str) -> list[str]:
        self.now_s += seconds
        self.troubles.look(standing)
        said, self.lines[:] = [*self.lines], []
        return said


def test_it_is_said_once_and_its_end_once() -> None:
    told = Told()
    assert told.after(0.0, nodes="nodes: 403") == []
    assert told.after(STANDS_S, nodes="nodes: 403") == ["in trouble for 20 s: nodes: 403"]
    assert told.after(1000.0, nodes="nodes: 500") == []
    assert told.after(1.0) == ["over after 1021 s: nodes: 403"]
    assert told.after(1000.0) == []


def test_what_is_over_soon_is_not_said() -> None:
    told = Told()
    assert told.after(0.0, nodes="broken") == []
    assert told.after(STANDS_S - 1.0) == []
    assert told.after(1.0, nodes="broken") == []
    assert told.after(STANDS_S - 1.0, nodes="broken") == []


def test_no_more_are_said_at_once_than_a_person_reads() -> None:
    told = Told()
    many = {f"kind-{number}": "broken" for number in range(MOST + 5)}
    told.after(0.0, **many)
    assert len(told.after(STANDS_S, **many)) == MOST
    assert told.after(1.0, **many) == []


def failing(*keys: str, effect: str = "isolate", number: int = 3) -> list[Failing]:
    return [Failing(key, effect, number, "403 Forbidden", 0.0) for key in keys]


def test_what_fails_again_and_again_is_told_with_some_nodes_and_the_last_error() -> None:
    (sentence,) = of_works(failing("n3", "n1", "n2", "n4", "n5")).values()
    assert sentence == (
        "n1, n2, n3 and 2 more nodes cannot be taken out of service, for that cannot be saved: 403 Forbidden"
    )
    assert of_works(failing("n1", number=2)) == {}


@pytest.mark.parametrize("effect", SENTENCES)
def test_each_effect_has_a_sentence_that_names_the_node(effect: str) -> None:
    assert "n1" in of_works(failing("n1", effect=effect))[effect]


def test_what_fails_is_failing_until_it_goes_well() -> None:
    async def story() -> None:
        wrong = True
        ended: list[str] = []

        async def save() -> None:
            if wrong:
                raise TemporaryError("the API server is away", 0.0)

        works = Works(lambda key, effect, error: ended.append(key), lambda key: None)
        for count in (1, 2, 3):
            await eventually(lambda: works.go("n1", "save", save))
            await eventually(lambda count=count: len(ended) == count)
            (one,) = works.failing
            assert (one.key, one.effect, one.number) == ("n1", "save", count)
            assert one.error == "the API server is away"
        wrong = False
        await eventually(lambda: works.go("n1", "save", save))
        await eventually(lambda: not [*works.failing])
        await works.stop()

    asyncio.run(story())
