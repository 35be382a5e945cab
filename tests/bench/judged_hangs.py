"""Hangs and long pauses of sixteen ranks over gloo, as Sentinel's own looks have told them, through its judgement.

tests/core/stacks/sixteen.json.xz has them: programs/hangs.py in tests/trainers played each, and capture_hangs.py there
looked at its ranks twice. Each is judged as a job of which rank 0 alone prints iterations, and whose silence has
the shortest time that there is by default, two minutes: the looks count as those of its last 80 s, though on a busy
machine the second one came later. Where they do not prove that it stands still, it is judged once more after half an
hour, when it is told in doubt.
"""

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.core.decision import policy
from sentinel.core.decision.incidents import open_incident
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import IncidentKind, Verdict
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Iteration, RankReport
from sentinel.core.stacks.reading import read_head
from sentinel.core.stacks.stillness import Looks
from sentinel.core.stacks.verdict import named
from sentinel.core.timing.hang import FLOOR_S
from sentinel.core.timing.hang_watch import DOUBT_S
from sentinel.rules.failures import failure_classes
from tests.bench.harness import Row, at_least, at_most
from tests.core import recovery_events as ev

KEPT = Path(__file__).parents[1] / "core" / "stacks" / "sixteen.json.xz"
SIZE, ITERATIONS = 16, 50
BEGIN_S = 43.0  # of the looks, after the last iteration
APART_S = 80.0  # at most
HANGS = frozenset(
    ("groups", "evaluation", "loader", "lock", "loop", "stop", "gil", "mismatch", "early", "save")
)
_PLACE = re.compile(r"hangs\.py:(\d+)")


class Case(NamedTuple):
    kind: str
    rank: int  # that keeps the others waiting
    way: int
    looks: list[tuple[float, tuple[str, ...]]]  # seconds since the first, and a text of each rank

    @property
    def hangs(self) -> bool:
        return self.kind in HANGS


class Judged(NamedTuple):
    case: Case
    proved: bool  # told without a doubt, and so restarted
    verdict: Verdict

    @property
    def rank_right(self) -> bool:
        """Of two groups that wait for each other neither is at fault. Who saves does it for all: it need not be named,
        but told."""
        if self.case.kind == "groups":
            return self.verdict.rank is None
        may_be_none = self.case.kind == "save" and self.verdict.rank is None
        return self._tells_rank if may_be_none else self.verdict.rank == self.case.rank

    @property
    def wrong(self) -> bool:
        return not self.rank_right and self.verdict.rank is not None

    @property
    def line_right(self) -> bool:
        """The line at which the rank stands is told as its own; of two groups those of both."""
        here = _kept()["here"]
        if self.case.kind == "groups":
            told = [self.verdict.sentence, *self.verdict.evidence]
            return len({line for text in told for line in _PLACE.findall(text) if int(line) in here}) == 2
        if (
            f"Rank {self.case.rank} ends, in " in self._of_rank
        ):  # of the end of a program no line of it is left
            return True
        return self._tells_rank and any(int(line) in here for line in _PLACE.findall(self._of_rank))

    @property
    def _tells_rank(self) -> bool:
        return f"Rank {self.case.rank} " in self._of_rank

    @property
    def _of_rank(self) -> str:
        """What is said of one rank, up to those that wait for it."""
        of_others = re.split(r"; (?:all|the other)", self.verdict.sentence)[0]
        return of_others[max(of_others.rfind(f"Rank {self.case.rank} "), 0) :]


@cache
def _kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(lzma.decompress(KEPT.read_bytes()))
    return kept


def captured() -> list[Case]:
    return [
        Case(
            one["kind"],
            one["rank"],
            one["way"],
            [(min(look["at_s"], APART_S), tuple(look["texts"])) for look in one["looks"]],
        )
        for one in _kept()["cases"]
    ]


def judge(case: Case) -> Judged:
    picture = JobPicture(ev.a_job(Policy(), size=SIZE, original_size=SIZE), failure_classes())
    picture.begin_incarnation(Now(0.0, 0.0))
    picture.alive = set(range(SIZE))
    picture.timing.hang.looks = Looks()
    _report(picture, 0, iterations=[Iteration(k / 2, k, None, 500.0) for k in range(1, ITERATIONS + 1)])
    for rank in range(1, SIZE):
        _report(picture, rank)
    last_s = ITERATIONS / 2
    for after_s, texts in case.looks:
        _look(picture, texts, last_s + BEGIN_S + after_s)
    at_s = max(last_s + FLOOR_S, last_s + BEGIN_S + case.looks[-1][0]) + 1
    decision = policy.decide(picture, _now(at_s))
    proved = isinstance(decision, policy.Open) and decision.kind is not IncidentKind.NOTICE
    if not proved:
        at_s = last_s + DOUBT_S + 1
        decision = policy.decide(picture, _now(at_s))
    assert isinstance(decision, policy.Open), decision
    texts = case.looks[-1][1]
    verdict = open_incident(picture, decision, _now(at_s), "boot").verdict
    return Judged(case, proved, named(verdict, texts, SIZE))


def _look(picture: JobPicture, texts: tuple[str, ...], at_s: float) -> None:
    now = _now(at_s)
    for text in texts:
        if (head := read_head(text)) is not None:
            picture.timing.hang.liveness.states[head.number] = head.state
    picture.note(now)
    if picture.timing.hang.look_due(now):  # not where a rank was seen in an evaluation or a save
        picture.timing.hang.looked(texts, now)


def _report(picture: JobPicture, rank: int, **more: Any) -> None:
    incarnation = picture.job.incarnation
    picture.timing.fold(RankReport(job="j", incarnation=incarnation, rank=rank, caught_up=True, **more))


def _now(at_s: float) -> Now:
    return Now(at_s, at_s)


def rows() -> list[Row]:
    judged = [judge(case) for case in captured()]
    hangs = [one for one in judged if one.case.hangs]
    pauses = [one for one in judged if not one.case.hangs]
    for one in hangs:
        if not (one.rank_right and one.line_right):
            print(f"    {'accuses' if one.wrong else 'misses'}: {describe(one)}")
    for one in pauses:
        if one.proved:
            print(f"    a pause told as a hang: {describe(one)}")
    what = f"16 ranks over gloo, {len(hangs)} hangs of ten kinds"
    proved = ("restarted after 2 min", share(hangs, "proved"))
    return [
        at_least(f"{what}: rank judged right", 95, share(hangs, "rank_right"), "%", proved),
        at_least(f"{what}: line told", 90, share(hangs, "line_right"), "%"),
        at_most(f"{what}: a rank named not at fault", 0, sum(one.wrong for one in hangs), "hangs"),
        at_most(
            f"16 ranks over gloo, {len(pauses)} healthy long pauses: told as a hang",
            0,
            sum(one.proved for one in pauses),
            "pauses",
        ),
    ]


def share(judged: list[Judged], what: str) -> float:
    return 100 * sum(getattr(one, what) for one in judged) / len(judged)


def describe(one: Judged) -> str:
    kind, rank, way, _ = one.case
    return f"{kind} of rank {rank}, way {way}: names {one.verdict.rank}: {one.verdict.sentence} {one.verdict.evidence}"
