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

SHOWN = {
    "SentinelJobNotStepping",
    "SentinelJobRecoveryStuck",
    "SentinelJobRestartsAgainAndAgain",
    "SentinelJobWaitsForRoom",
    "SentinelJobsHeldBack",
}
HOLD = "example.com/stays"  # a finalizer that nobody takes away


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

    def told(self, alert: str) -> None:
        self.until(lambda: self.on_call.told(alert))

    def all_of_it(self) -> None:
        ranks = self.world.ranks
        ranks.start()
        # Without the minutes that alerts wait: one check sees nothing of the machine of the tests.
        self.until(lambda: self.watch.value("max(sentinel_job_step_time_seconds)") == 0.25)
        self.until(lambda: self.watch.firing() <= {"SentinelCheckBlind"})
        ranks.end()
        self.told("SentinelJobNotStepping")
        ranks = Ranks(self.site, self.world.logs)
        ranks.start()
        try:
            self._held_back_by_a_pause()
            self._no_room()
            self._a_pod_that_does_not_end()
            # It would be given up that fails at one iteration again and again.
            self.until(lambda: (self.watch.value("max(sentinel_job_iteration)") or 0.0) > 80)
            self._breaks()
            self.told("SentinelJobRestartsAgainAndAgain")
        finally:
            ranks.end()

    def _breaks(self) -> int:
        """A rank ends; how many incidents there were."""
        before = len(self.site.incidents())
        self.site.kwok.end_pod(self.site.space, self.site.pods()[0]["metadata"]["name"], 1)
        return before

    def _recovered(self, before: int) -> None:
        self.until(lambda: len(self.site.incidents()) > before and self.site.phases()[-1:] == ["Recovered"])

    def _held_back_by_a_pause(self) -> None:
        pause = {"name": "sentinel-pause", "namespace": NAMESPACE}
        self.site.admin.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": pause, "data": {"by": "anna"}}
        )
        before = self._breaks()
        self.told("SentinelJobsHeldBack")
        self.site.admin.delete(PAUSE)
        self._recovered(before)

    def _no_room(self) -> None:
        taken = self.site.block()
        self.world.agents[self.site.pods()[0]["spec"]["nodeName"]][0].machine.log(XID_79)
        before = self._breaks()
        self.told("SentinelJobWaitsForRoom")
        self.site.admin.delete(taken, gracePeriodSeconds=0)
        self._recovered(before)

    def _a_pod_that_does_not_end(self) -> None:
        pod = self.site.pods()[1]["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.site.space}/pods/{pod}"
        self.site.admin.patch(path, {"metadata": {"finalizers": [HOLD]}})
        before = self._breaks()
        self.told("SentinelJobRecoveryStuck")
        self.site.admin.patch(path, {"metadata": {"finalizers": None}})
        self._recovered(before)
