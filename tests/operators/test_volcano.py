"""Volcano's Job: stopped and started by commands, each start at the cost of a retry."""

import time
from collections.abc import Callable

import pytest

from sentinel.core.job.limits import limits
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Reason, Refusal
from sentinel.util.documents import time_of
from tests.kubernetes.driven import RECOVERED, Driven, come_back
from tests.kubernetes.jobs_site import policy
from tests.operators.conftest import Drive
from tests.rig.api import ApiError, Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import Flow, template
from tests.rig.operators.living import MARK, Living
from tests.rig.operators.volcano import Volcano
from tests.rig.processes import until

pytestmark = pytest.mark.operators("volcano")
VERSION = "batch.volcano.sh/v1alpha1"


@pytest.fixture(scope="module")
def volcano(plane: ControlPlane) -> Volcano:
    return Volcano(plane)


def job(nodes: str = "operators", **spec: object) -> Object:
    pods = template(nodes)
    pods["spec"]["restartPolicy"] = "Never"
    pods["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return {
        "apiVersion": VERSION,
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": 3,
            "tasks": [{"name": "worker", "replicas": 3, "template": pods}],
            **spec,
        },
    }


def command(action: str) -> Callable[[Flow | Driven], None]:
    def act(flow: Flow | Driven) -> None:
        target = {
            "apiVersion": VERSION,
            "kind": "Job",
            "name": "train",
            "uid": flow.admin.get(flow.path)["metadata"]["uid"],
            "controller": True,
        }
        made = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"name": action.lower(), "namespace": flow.space, "ownerReferences": [target]},
            "action": action,
            "target": target,
        }
        flow.admin.create(made)

    return act


def phase(wanted: str) -> Callable[[Object], bool]:
    return lambda job: job.get("status", {}).get("state", {}).get("phase") == wanted


def test_job(volcano: Volcano, kwok: Kwok) -> None:
    flow = Flow(volcano, kwok.end_pod, job(), 3, "volcano.sh/job-name=train")
    flow.go(command("AbortJob"), command("ResumeJob"), phase("Completed"))
    assert flow.now()["status"]["retryCount"] == 1


def test_volcanos_webhooks_are_asked(volcano: Volcano) -> None:
    made = job(minAvailable=4)  # of three
    made["metadata"]["namespace"] = volcano.plane.namespace()
    with pytest.raises(ApiError, match="admission webhook"):
        volcano.admin.create(made)


def test_what_the_table_says_of_volcanos_jobs_holds(volcano: Volcano, kwok: Kwok) -> None:
    """Each start costs a retry and the third would fail the job, so it is not stopped a third time."""
    made = Living(volcano.admin, volcano.plane.namespace(), job(maxRetry=3))
    made.create(3)
    made.stop()
    made.start(size=2)
    made.running(2)
    made.stop()
    made.start()
    assert [(own.used, own.left) for own in limits(made.seen())] == [(2, 0)]
    found = made.running(2)
    refused = stop(made.seen(), MARK)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.RETRIES_USED
    for one in found:
        kwok.end_pod(made.space, one.name, 0)
    made.ended("succeeded")


def test_a_job_that_loses_a_rank_comes_back_by_commands_until_its_retries_are_used(
    volcano: Volcano, drive: Drive
) -> None:
    """Each recovery costs one of its retries, which is counted; where the next one would fail it, it waits as it is."""
    made = drive(job(maxRetry=2), 3)
    come_back([made], 137)
    reasons = {step["reason"] for step in made.incidents()[0]["steps"]}
    assert "Queued" not in reasons, "each start waits for the scheduler's next turn"
    assert [(own.used, own.left) for own in limits(made.seen())] == [(1, 0)]
    assert made.admin.get(made.path)["status"]["retryCount"] == 1
    made.lose(137)
    until(lambda: len(made.incidents()) == 2 and made.incidents()[-1]["reason"] == "RetriesUsed", made.story)
    assert "a start costs one: it would fail" in made.incidents()[-1]["sentence"]
    made.remove_failed()
    until(lambda: made.way() == ["Stopping", "Cancelled"], made.story)
    assert made.incidents()[-1]["reason"] == "RestartedByItsKind"
    made.running(3)
    made.until_state("running")
    assert made.admin.get(made.path)["status"]["retryCount"] == 1
    made.finish()


def test_a_job_that_is_aborted_by_somebody_else_is_left_to_him(volcano: Volcano, drive: Drive) -> None:
    made = drive(job(), 3)
    made.begin()
    made.until_state("running")
    command("AbortJob")(made)
    until(lambda: (made.record()["state"], made.record()["reason"]) == ("queued", "Stopped"), made.story)
    command("ResumeJob")(made)
    made.running(3)
    made.until_state("running")
    assert {one["phase"] for one in made.incidents()} <= {"Cancelled"}, (
        "a pod may have gone before it was said why"
    )
    assert not made.record().get("usedInfrastructure", 0)
    made.finish()


def test_with_a_full_queue_a_recovery_waits_for_its_turn_at_no_further_retry(
    volcano: Volcano, kwok: Kwok, drive: Drive
) -> None:
    """What it gives back is given to the job that waited. However long that runs, no start of the first one has failed:
    each would cost one of its own retries."""
    kwok.nodes("line", 6, capacity={"cpu": "1"})  # only the queue is full
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "small"}}
    volcano.admin.create(queue | {"spec": {"weight": 1, "reclaimable": False, "capability": {"cpu": "3"}}})
    made = drive(job("line", queue="small"), 3)
    made.begin(startTimeout="20s", precheck={"wait": "20s"})
    made.until_state("running")
    other = Flow(volcano, kwok.end_pod, job("line", queue="small"), 3, "volcano.sh/job-name=train")
    other.admin.create(other.job)
    until(lambda: phase("Pending")(other.now()), other.why)

    def waits_since() -> float:
        (told,) = made.incidents() or [{}]
        found = [step for step in told.get("steps", []) if step["reason"] == "Queued"]
        return time_of(found[0]["time"]) if found else 0.0

    made.lose(137)
    until(lambda: len(other.pods("Running")) == 3, other.why)
    since_s = until(waits_since, made.story)
    assert "It waits for its turn in Volcano's queue small" in made.incidents()[0]["sentence"], made.story()
    until(lambda: time.time() > since_s + 25, made.story)  # longer than any of its times
    assert made.way() == RECOVERED[:3], made.story()
    other.end()
    until(lambda: made.phases()[-1:] == ["Recovered"], made.story)
    assert len(made.incidents()) == 1
    assert made.admin.get(made.path)["status"]["retryCount"] == 1
    made.finish()


def test_a_job_for_which_there_is_less_room_after_a_fault_comes_back_smaller(
    volcano: Volcano, kwok: Kwok, drive: Drive
) -> None:
    kwok.nodes("room", 3, capacity={"cpu": "1"})
    made = drive(job("room"), 3)
    shrinks = {"minNodes": 1, "allowGrow": False}
    made.admin.apply([policy(made.space, resume={"maxResumes": 3}, elastic=shrinks)])
    made.create(3)
    made.until_state("running")
    made.admin.patch("/api/v1/nodes/room-2", {"spec": {"unschedulable": True}})
    made.lose(137)
    until(lambda: made.phases()[-1:] == ["Recovered"], made.story)
    made.running(2)
    assert made.record()["size"] == 2
    assert len(made.incidents()) == 1
    made.finish()
