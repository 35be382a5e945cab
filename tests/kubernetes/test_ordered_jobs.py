"""What people order of real jobs, with the command line and with kubectl, and what their controller makes of it."""

from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, names, plane, site
from tests.kubernetes.test_orders import Person, bind

if TYPE_CHECKING:
    from tests.kubernetes.jobs_site import JobSite

__all__ = ["kwok", "plane", "site"]


@pytest.fixture
def anna(site: "JobSite") -> Person:
    return Person(site.plane, "anna", bind(site.plane, "anna", "sentinel-operator"))


def ordered(site: "JobSite", anna: Person, *words: str) -> str:
    """The controller's answer."""
    command, *more = words
    done = anna.says(command, f"{site.space}/train", *more)
    assert (done.returncode, done.stderr) == (0, ""), site.story()
    return done.stdout


def test_a_job_is_extended_stopped_and_tried_again(site: "JobSite", anna: Person) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2, "gracefulStop": "1s"}, maxDuration="1h")
    path = site.create(gang(2))
    site.until(site.state("running"))
    assert "1h30m in all, says anna: slow data." in ordered(site, anna, "extend", "30m", "--why", "slow data")
    assert site.record()["extraSeconds"] == 1800.0
    refused = anna.says("retry", f"{site.space}/train")
    assert (refused.returncode, refused.stderr.endswith("runs.\n")) == (1, True)

    assert "is being saved, if it can, and stopped, says anna." in ordered(site, anna, "stop")
    site.until(site.state("stopped"))
    site.until(lambda: not site.pods())
    assert site.admin.get(path)["spec"]["suspend"] is True
    shown = anna.says("status", f"{site.space}/train")
    assert "stopped (Stopped: " in shown.stdout

    assert "is tried again, says anna." in ordered(site, anna, "retry")
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert len(site.pods()) == 2
    assert site.admin.get(path)["spec"]["suspend"] is False
    record = site.record()
    assert (record["state"], record["incarnation"], record.get("usedJob", 0)) == ("running", 2, 0)
    end(controller)


def test_a_job_that_was_given_up_gets_one_more_try_across_a_killed_controller(
    site: "JobSite",
    anna: Person,
) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 0})
    site.create(gang(2))
    site.until(site.state("running"))
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(site.state("error"))
    controller.kill()
    record = site.admin.items(f"/apis/sentinel.dev/v1alpha1/namespaces/{site.space}/protectedjobs")[0]
    name = record["metadata"]["name"]
    anna.did("-n", site.space, "annotate", "protectedjob", name, "sentinel.dev/retry=the data set is mended")
    waits = anna.says("status", "-n", site.space)
    assert "retry (error)" in waits.stdout
    second = led(site, "two")
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert site.record()["order"]["sentence"].endswith(
        "is tried again, says a person with kubectl-annotate: the data set is mended. The try costs no restart."
    )
    site.finish()
    site.until(site.state("succeeded"))
    end(second)


def test_a_recovery_that_waits_for_room_is_given_up_and_the_job_left_as_it_is(
    site: "JobSite",
    anna: Person,
) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    site.create(gang(3))
    site.until(site.state("running"))
    site.until(lambda: len(site.pods()) == 3)
    node = site.pods()[0]["spec"]["nodeName"]
    anna.did("cordon", node)
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    assert "was cancelled, says anna. The job stays stopped" in ordered(site, anna, "cancel")
    site.until(site.state("stopped"))
    assert site.incidents()[-1]["reason"] == "CancelledByPerson"
    anna.did("uncordon", node)
    ordered(site, anna, "retry")
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    end(controller)
