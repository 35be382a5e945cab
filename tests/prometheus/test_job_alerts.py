"""Each alert about the recovery of a job: it happens to a real one, and the person on call gets a mail."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_node import XID_79
from tests.kubernetes.conftest import NAMESPACE, PAUSE
from tests.kubernetes.jobs_site import Ranks
from tests.notify.mail_world import MailServer
from tests.prometheus.test_watched import World, gang, watched_world
from tests.prometheus.watched import OnCall, Watched
from tests.waits import until

pytestmark = pytest.mark.timeout(1800)
SHOWN = {
    "SentinelJobNotStepping",
    "SentinelJobRecoveryStuck",
    "SentinelJobRestartsAgainAndAgain",
    "SentinelJobWaitsForRoom",
    "SentinelJobsHeldBack",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with watched_world(tmp_path_factory.mktemp("watched")) as made:
        yield made


def test_each_alert_of_a_recovery_comes_for_its_fault_as_a_mail(world: World, tmp_path: Path) -> None:
    site = world.site
    with (
        MailServer() as server,
        Watched(tmp_path / "watch", world.targets(), server.port, hour_s=20.0) as watch,
    ):
        story = Story(world, watch, OnCall(server, world.page))
        site.protect(restart={"maxRestarts": 20}, precheck={"wait": "10m"})
        site.create(gang())
        site.until(site.state("running"))
        story.all_of_it()
    assert story.on_call.knows == SHOWN


class Story:
    def __init__(self, world: World, watch: Watched, on_call: OnCall) -> None:
        self.world, self.site, self.watch, self.on_call = world, world.site, watch, on_call

    def until(self, what: Callable[[], Any]) -> None:
        until(what, lambda: f"{self.watch.firing()}\n{self.watch.story()}\n{self.site.story()}", every_s=0.2)

    def told(self, alert: str, since: int = 0, says: str = "") -> None:
        self.until(lambda: self.on_call.told(alert, since, says))

    def over(self, alert: str, since: int) -> None:
        self.until(lambda: self.on_call.told_over(alert, since))

    def all_of_it(self) -> None:
        ranks = self.world.ranks
        ranks.start()
        try:
            self.until(lambda: self.watch.value("max(sentinel_job_step_time_seconds)") == 0.25)
            self.until(lambda: not self.watch.firing())
        finally:
            ranks.end()
        before = self.on_call.mails
        self.told("SentinelJobNotStepping", before)
        ranks = Ranks(self.site, self.world.logs)
        ranks.start()
        try:
            self.over("SentinelJobNotStepping", before)
            self._held_back_by_a_pause()
            self._no_room()
            self._pods_that_do_not_end()
            self._again_and_again()
        finally:
            ranks.end()

    def _steps(self, iteration: int) -> None:
        """It comes so far. A job is given up that fails at one iteration again and again."""
        self.until(lambda: (self.watch.value("max(sentinel_job_iteration)") or 0.0) > iteration)

    def _breaks(self) -> int:
        """A rank ends; how many incidents there were."""
        before = len(self.site.incidents())
        self.site.kwok.end_pod(self.site.space, self.site.pods()[0]["metadata"]["name"], 1)
        return before

    def _up_again(self, before: int) -> bool:
        return len(self.site.incidents()) > before and self.site.phases()[-1:] == ["Recovered"]

    def _held_back_by_a_pause(self) -> None:
        pause = {"name": "sentinel-pause", "namespace": NAMESPACE}
        self.site.admin.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": pause, "data": {"by": "anna"}}
        )
        mails, before = self.on_call.mails, self._breaks()
        self.told("SentinelJobsHeldBack")
        self.site.admin.delete(PAUSE)
        self.until(lambda: self._up_again(before))
        self.over("SentinelJobsHeldBack", mails)

    def _no_room(self) -> None:
        taken, mails = self.site.block(), self.on_call.mails
        self.world.agents[self.site.pods()[0]["spec"]["nodeName"]][0].machine.log(XID_79)
        before = self._breaks()
        self.told("SentinelJobWaitsForRoom", mails)
        self.site.admin.delete(taken, gracePeriodSeconds=0)
        self.until(lambda: self._up_again(before))
        self.over("SentinelJobWaitsForRoom", mails)

    def _pods_that_do_not_end(self) -> None:
        """One rank ends, and the kubelets of the others do nothing any more."""
        self._steps(60)
        before, mails = len(self.site.incidents()), self.on_call.mails
        kubelets, pod = self.site.kwok.daemon, self.site.pods()[0]
        (container,) = pod["status"]["containerStatuses"]
        since = container["state"]["running"]["startedAt"]
        container |= {
            "ready": False,
            "started": False,
            "state": {"terminated": {"exitCode": 1, "startedAt": since, "finishedAt": since}},
        }
        path = f"/api/v1/namespaces/{self.site.space}/pods/{pod['metadata']['name']}/status"
        kubelets.freeze()
        try:
            self.site.admin.patch(path, {"status": {"phase": "Failed", "containerStatuses": [container]}})
            self.told("SentinelJobRecoveryStuck", says="has been Stopping")
        finally:
            kubelets.thaw()
        self.until(lambda: self._up_again(before))
        self.over("SentinelJobRecoveryStuck", mails)

    def _again_and_again(self) -> None:
        """Four times count; what was before the first scrape does not."""
        alert = "SentinelJobRestartsAgainAndAgain"
        for at in (80, 100):
            if not self.on_call.told(alert):
                self._steps(at)
                before = self._breaks()
                self.until(lambda before=before: self.on_call.told(alert) or self._up_again(before))
        self.told(alert)
