"""Node or job: what recurs on another node follows the job, what other jobs meet on one node follows the node."""

from collections.abc import Sequence

from msgspec import structs

from sentinel.core.health import Severity
from sentinel.core.model import (
    Budget,
    Cause,
    Failure,
    Incident,
    IncidentKind,
    ProtectedJob,
    Restartable,
    Symptom,
    Verdict,
)
from sentinel.core.policy_model import Policy, Restart
from sentinel.core.recovery import budget
from sentinel.core.signals import TimingSignal
from sentinel.core.triage.case import Struck
from sentinel.core.triage.past import struck
from sentinel.core.triage.verdict import triage
from tests.core.test_triage import CLASSES, NOW, WALL_S, ended, xid
from tests.core.test_triage import verdict as on_gpus

NODES = {rank: f"node-{rank}" for rank in range(8)}


def of(
    rank: int,
    history: Sequence[Failure] = (),
    others: Sequence[Struck] = (),
    signal: TimingSignal | None = None,
    **how: object,
) -> Verdict:
    exits = [] if signal else [ended(rank, **(how or {"signal": 9}))]
    return triage(
        job="ns/job.batch/mine",
        size=8,
        exits=exits,
        matches=(),
        findings=(),
        signal=signal,
        last_steps={},
        rank_entities=NODES,
        rank_pids={},
        failures=CLASSES,
        history=history,
        now=NOW,
        others=lambda: others,
    )


def before(failure: str, node: str, age_s: float = 600.0) -> Failure:
    return Failure(wall_s=WALL_S - age_s, failure=failure, budget=Budget.INFRASTRUCTURE, place=node)


def met(job: str, failure: str, node: str, age_s: float = 600.0) -> Struck:
    return Struck(f"ns/job.batch/{job}", failure, node, WALL_S - age_s)


def avoided(verdict: Verdict) -> str:
    job = ProtectedJob(name="j", policy=Policy(restart=Restart(max_restarts=5)))
    return budget.plan_after_stop(job, verdict, None, NOW).avoid


def test_the_first_time_says_nothing_of_whose_it_is() -> None:
    v = of(2)
    assert (v.failure, v.place, v.follows) == ("killed", "node-2", "")
    assert (v.cause, v.budget) == (Cause.NODE, Budget.INFRASTRUCTURE)


def test_what_recurs_on_another_node_follows_the_job_and_blames_no_node() -> None:
    v = of(2, [before("killed", "node-5")])
    assert (v.follows, v.scope, v.cause, v.entity) == ("job", "job", Cause.UNKNOWN, "")
    assert (v.budget, v.restart) == (Budget.JOB, Restartable.YES)
    assert v.sentence.endswith("The same happened on node-5: it follows the job.")
    assert avoided(v) == ""


def test_what_is_tried_only_once_more_is_given_up_where_it_follows_the_job() -> None:
    first = of(5, signal=None, code=139)
    past = before("segfault", first.place)
    v = of(2, [structs.replace(past, entity=first.entity)], code=139)
    assert (v.follows, v.restart, v.cause) == ("job", Restartable.NO, Cause.USER_CODE)


def test_another_class_the_same_node_and_what_is_old_do_not_count() -> None:
    assert of(2, [before("host-oom", "node-5")]).follows == ""
    assert of(2, [before("killed", "node-2")]).follows == ""
    assert of(2, [before("killed", "node-5", age_s=200_000)]).follows == ""


def test_another_card_of_the_same_machine_is_no_other_node() -> None:
    past = Failure(wall_s=WALL_S, failure="killed", budget=Budget.INFRASTRUCTURE, place="GPU 0000:15:00.0")
    v = on_gpus([ended(2, signal=9)], history=[past])
    assert (v.follows, v.cause) == ("", Cause.NODE)


def test_hardware_that_is_known_to_be_at_fault_follows_no_job() -> None:
    past = Failure(wall_s=WALL_S, failure="gpu-hardware", budget=Budget.INFRASTRUCTURE, place="node-5")
    v = on_gpus([ended(2)], findings=[xid(79, 2, Severity.FATAL)], history=[past])
    assert (v.failure, v.follows, v.scope) == ("gpu-hardware", "", "node")


def test_what_other_jobs_met_on_the_node_and_nowhere_else_follows_the_node_which_is_left() -> None:
    v = of(2, others=[met("other", "segfault", "node-2")], code=139)
    assert (v.follows, v.scope, v.cause, v.entity) == ("node", "node", Cause.NODE, "node-2")
    assert (v.budget, v.restart) == (Budget.INFRASTRUCTURE, Restartable.YES)
    assert "ns/job.batch/other met the same on node-2, and on no other: it follows the node." in v.sentence
    assert avoided(v) == "node-2"


def test_a_job_that_met_it_elsewhere_too_speaks_against_no_node() -> None:
    both = [met("other", "segfault", "node-2"), met("other", "segfault", "node-6")]
    assert of(2, others=both, code=139).follows == ""
    assert (
        of(2, [before("segfault", "node-6")], [met("other", "segfault", "node-2")], code=139).follows
        != "node"
    )


def test_where_as_many_jobs_meet_it_on_another_node_it_is_not_this_ones() -> None:
    here = [met("other", "segfault", "node-2")]
    there = [met("a", "segfault", "node-6"), met("b", "segfault", "node-6")]
    assert of(2, others=[*here, *there[:1]], code=139).follows == "node"
    assert of(2, others=[*here, *there], code=139).follows == ""


def test_a_programs_own_word_speaks_against_no_node() -> None:
    assert of(2, others=[met("other", "user-exit", "node-2")], code=3).follows == ""


def test_of_other_jobs_old_faults_and_moves_do_not_count() -> None:
    killed = of(2)

    def incident(verdict: Verdict, kind: IncidentKind = IncidentKind.FORCED, age_s: float = 60.0) -> Incident:
        return Incident(id="o-0001", job="o", kind=kind, verdict=verdict, opened_wall_s=WALL_S - age_s)

    told = [
        incident(killed),
        incident(killed, IncidentKind.CHOSEN),
        incident(killed, age_s=200_000),
        incident(structs.replace(killed, place="")),
    ]
    assert struck(told, NOW) == (Struck("o", "killed", "node-2", WALL_S - 60.0, killed.sentence),)


def test_a_job_that_its_fault_follows_speaks_against_none_of_its_nodes() -> None:
    first, second = of(2), of(5, [before("killed", "node-2")])
    assert second.follows == "job"
    told = [
        Incident(id=f"o-{k}", job="o", kind=IncidentKind.FORCED, verdict=one, opened_wall_s=WALL_S - 60.0)
        for k, one in enumerate((first, second))
    ]
    assert of(2, others=struck(told, NOW)).follows == ""
    assert of(5, others=struck(told, NOW)).follows == ""


# ---------------------------------------------------------------- slow hosts

SLOW = TimingSignal(
    symptom=Symptom.STRAGGLER,
    key="straggler:2",
    rank=2,
    value=1.8,
    sentence="Rank 2 is a straggler: its hardware time is 1.8 times its peers' median.",
)


def test_one_jobs_slowest_rank_says_nothing_of_its_node_yet() -> None:
    v = of(2, signal=SLOW)
    assert (v.symptom, v.place, v.follows) == (Symptom.STRAGGLER, "node-2", "")


def test_the_slowest_ranks_of_two_jobs_on_one_node_make_it_a_slow_host_with_the_evidence_of_both() -> None:
    other = structs.replace(met("other", "straggler", "node-2"), sentence="Rank 7 is a straggler: 1.6 times.")
    v = of(2, others=[other], signal=SLOW)
    assert (v.follows, v.entity, v.cause) == ("node", "node-2", Cause.NODE)
    assert "ns/job.batch/other met the same on node-2, and on no other: it follows the node." in v.sentence
    assert "ns/job.batch/other: Rank 7 is a straggler: 1.6 times." in v.evidence


def test_a_job_with_slowest_ranks_on_several_nodes_makes_none_a_slow_host() -> None:
    both = [met("other", "straggler", "node-2"), met("other", "straggler", "node-6")]
    assert of(2, others=both, signal=SLOW).follows == ""


def test_slowest_ranks_are_known_from_what_was_only_told() -> None:
    told = of(2, signal=SLOW)
    notice = Incident(
        id="o-0001", job="o", kind=IncidentKind.NOTICE, verdict=told, opened_wall_s=WALL_S - 60.0
    )
    (one,) = struck([notice], NOW)
    assert (one.job, one.failure, one.place) == ("o", "straggler", "node-2")
