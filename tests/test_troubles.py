"""What keeps a controller from its work is said when it has stood for a while, again when more join it, and when it is
over."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace

import pytest
from msgspec import structs

from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.controller.cluster_jobs.looks import Tracked
from sentinel.controller.cluster_jobs.troubles import of_jobs
from sentinel.controller.nodes.troubles import SENTENCES, of_epochs, of_mails, of_works
from sentinel.controller.troubles import (
    FORGOTTEN_S,
    MOST,
    MOST_REST_S,
    STANDS_S,
    TRIES,
    Trouble,
    Troubles,
    alone,
)
from sentinel.core.agents.epochs import Where, agent_of
from sentinel.core.fleet.model import Kind, Needs, NodeMail, NodeQuarantine, State
from sentinel.core.model import Stage, StageMail
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.util.errors import TemporaryError
from sentinel.util.works import Failing, Works
from tests.core.test_job_look import row
from tests.notify.mail_world import OPENED_WALL_S, a_job, an_incident
from tests.waits import eventually

NOW = Now(100.0, 0.0)


class Told:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.lines: list[str] = []
        self.troubles = Troubles(self.lines.append, lambda: Now(self.now_s, 0.0))

    def after(self, seconds: float, **standing: str) -> list[str]:
        return self.look(seconds, alone(standing))

    def of(self, seconds: float, *nodes: str, text: str = "") -> list[str]:
        """One trouble of these nodes stands."""
        return self.look(seconds, {"show": Trouble(text or f"not marked: {' '.join(nodes)}", nodes)})

    def look(self, seconds: float, standing: Mapping[str, Trouble]) -> list[str]:
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


def test_it_is_said_again_when_more_join_it_and_its_end_is_that_of_the_last_telling() -> None:
    told = Told()
    told.of(0.0, "n1")
    assert told.of(STANDS_S, "n1") == ["in trouble for 20 s: not marked: n1"]
    assert told.of(0.0, "n1", "n2") == []
    assert told.of(STANDS_S, "n1", "n2") == ["in trouble for 40 s: not marked: n1 n2; new: n2"]
    assert told.of(10_000.0, "n1", "n2", text="not marked: 500") == []
    assert told.of(1.0, "n3", "n2") == []
    assert told.of(STANDS_S, "n3", "n2") == ["in trouble for 10061 s: not marked: n3 n2; new: n3"]
    assert told.after(9.0) == ["over after 10070 s: not marked: n3 n2"]


def test_it_names_what_is_new_however_few_its_text_names() -> None:
    told = Told()
    told.of(0.0, "n1", text="many")
    assert told.of(STANDS_S, "n1", text="many") == ["in trouble for 20 s: many"]
    told.of(0.0, "n1", "n5", "n6", "n7", "n8", "n9", text="many")
    (line,) = told.of(STANDS_S, "n1", "n5", "n6", "n7", "n8", "n9", text="many")
    assert line == "in trouble for 40 s: many; new: n5, n6, n7 and 2 more"


def test_what_joins_for_a_moment_is_not_told_and_counts_anew_when_it_is_back() -> None:
    told = Told()
    told.of(0.0, "n1")
    told.of(STANDS_S, "n1")
    told.of(1000.0, "n1", "n2")
    assert told.of(STANDS_S - 1.0, "n1", "n2") == []
    assert told.of(1.0, "n1") == []
    assert told.of(1.0, "n1", "n2") == []
    assert told.of(STANDS_S - 1.0, "n1", "n2") == []
    assert len(told.of(1.0, "n1", "n2")) == 1


def test_one_that_was_told_is_told_again_only_when_it_was_gone_for_long() -> None:
    told = Told()
    told.of(0.0, "n1", "n2")
    told.of(STANDS_S, "n1", "n2")
    told.of(FORGOTTEN_S - 1.0, "n1")
    told.of(0.0, "n1", "n2")
    assert told.of(STANDS_S, "n1", "n2") == []
    told.of(FORGOTTEN_S, "n1")
    told.of(0.0, "n1", "n2")
    (line,) = told.of(STANDS_S, "n1", "n2")
    assert line.endswith("; new: n2")


def test_names_that_are_long_gone_fill_no_memory() -> None:
    told = Told()
    told.of(0.0, "n1")
    told.of(STANDS_S, "n1")
    for number in range(10):
        nodes = [f"n{number}-{k}" for k in range(100)]
        told.of(1.0, *nodes)
        assert told.of(MOST_REST_S, *nodes)
    kept = told.troubles._told["show"]
    assert len(kept.of) + len(kept.joined) <= 200


def test_those_that_join_one_after_the_other_are_said_together_and_less_and_less_often() -> None:
    told = Told()
    nodes: list[str] = []
    said_s: list[float] = []
    while told.now_s < 6 * MOST_REST_S:
        nodes.append(f"n{len(nodes)}")
        if told.of(10.0, *nodes):
            said_s.append(told.now_s)
    between_s = [later - before for before, later in pairwise(said_s)]
    assert between_s[:4] == [STANDS_S + 10.0, 2 * STANDS_S, 4 * STANDS_S, 8 * STANDS_S], (
        "each one stood first"
    )
    assert max(between_s) == MOST_REST_S


def failing(*keys: str, effect: str = "isolate", number: int = 3) -> list[Failing]:
    return [Failing(key, effect, number, "403 Forbidden", 0.0) for key in keys]


def test_what_fails_again_and_again_is_told_with_some_nodes_and_the_last_error() -> None:
    (trouble,) = of_works(failing("n3", "n1", "n2", "n4", "n5")).values()
    assert trouble == Trouble(
        "n1, n2, n3 and 2 more nodes cannot be taken out of service, for that cannot be saved: 403 Forbidden",
        ("n1", "n2", "n3", "n4", "n5"),
    )
    assert of_works(failing("n1", number=2)) == {}


@pytest.mark.parametrize("effect", SENTENCES)
def test_each_effect_has_a_sentence_that_names_the_node(effect: str) -> None:
    assert "n1" in of_works(failing("n1", effect=effect))[effect].text


def test_an_epoch_that_no_controller_can_have_had_is_one_trouble_of_every_place_where_it_stands() -> None:
    found = of_epochs({Where("nodes", "n2"): 9, Where("nodes", "n1"): 8, agent_of("n3"): 7})
    assert [(key, one.of) for key, one in found.items()] == [
        ("epochs", ("nodes n2", "nodes n1")),
        ("epochs of agents", ("the agent of node n3",)),
    ]
    assert found["epochs"].text.startswith(
        "nodes n1 (and 1 more such) bears epoch 8, which no controller can"
    )


def test_a_job_that_cannot_be_looked_at_or_written_is_one_that_its_trouble_is_about() -> None:
    ref = JobRef(row(), "ns", "train", "uid")
    tracked = {name: Tracked(ref, Policy()) for name in ("b", "a", "c")}
    for name in ("b", "a"):
        tracked[name].failures, tracked[name].problem = TRIES, "404"
    records = SimpleNamespace(unwritten={"c": "500"}, newest=list)
    assert of_jobs("", tracked, records, NOW) == {
        "job looks": Trouble("nothing is decided about a, b: 404", ("a", "b")),
        "job records": Trouble("what was decided about c cannot be written, and waits: 500", ("c",)),
    }


def test_a_job_about_which_nobody_got_the_mail_is_told_of_for_days() -> None:
    error = "gone@example.com: 550 no such user"
    failed = StageMail(stage=Stage.GAVE_UP, state="failed", error=error)
    there = [
        (a_job(name="none"), None),
        (a_job(name="told"), an_incident(stages=(Stage.GAVE_UP,))),
        (a_job(name="untold"), structs.replace(an_incident(), mails=(failed,))),
    ]
    records = SimpleNamespace(unwritten={}, newest=lambda: there)
    late = Now(NOW.mono_s, OPENED_WALL_S + 4 * 86_000)
    assert of_jobs("", {}, records, late) == {
        "job mails": Trouble(f"nobody got the mail about untold: {error}", ("untold",))
    }
    assert of_jobs("", {}, records, Now(NOW.mono_s, OPENED_WALL_S + 4 * 87_000)) == {}


def test_a_node_about_which_nobody_got_a_mail_is_told_of_for_days() -> None:
    error = "ops@example.com: 550 no such user"
    failed = NodeMail(stage="Isolated", wall_s=1000.0, state="failed", error=error)
    told = structs.replace(failed, state="sent", error="")
    records = [
        NodeQuarantine(
            id=f"{node}-0001",
            kind=Kind.FAULT,
            node=node,
            node_uid="u",
            state=State.ACTIVE,
            needs=Needs(sentence=""),
            mails=(mail,),
        )
        for node, mail in (("n1", told), ("n2", failed))
    ]
    late = Now(NOW.mono_s, 1000.0 + 4 * 86_000)
    assert of_mails(records, late) == {
        "node mails": Trouble(f"nobody got the mail about n2: {error}", ("n2",))
    }
    assert of_mails(records, Now(NOW.mono_s, 1000.0 + 4 * 87_000)) == {}


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
