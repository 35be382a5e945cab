"""Jobs of any kind under `sentinel controller` and their own operators, on fake nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sentinel.core.job.ranks import ranks
from sentinel.core.job.stop import spared
from tests.kubernetes.jobs_site import JobRecords, policy
from tests.kubernetes.local_fleet import Fleet
from tests.rig.operators.living import Living
from tests.rig.processes import until

if TYPE_CHECKING:
    from tests.rig.kwok import Kwok
    from tests.rig.processes import Daemon

RECOVERED = ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]


@dataclass
class Driven(JobRecords, Living):
    """One job, in a namespace of its own whose policy protects it. `size`: its ranks."""

    fleet: Fleet
    kwok: "Kwok"
    size: int

    def begin(self, **spec: Any) -> None:
        restarts = {} if "resume" in spec else {"restart": {"maxRestarts": 3}}
        self.admin.apply([policy(self.space, **restarts, **spec)])
        self.create(self.size)

    def way(self) -> list[str]:
        """The phases that its newest incident went through."""
        return [phase for phase, _ in groupby(self.phases())]

    def until_state(self, state: str) -> None:
        until(lambda: self.record().get("state") == state, self.story)

    def story(self) -> str:
        return f"{self.job['kind']}\n{self.why()}\n{self.records_told()}\n{self.fleet.story()}"

    def uids(self) -> set[str]:
        """Of its pods, but those that run on through a stop."""
        seen = self.seen()
        return {pod["metadata"]["uid"] for pod in seen.pods} - spared(seen)

    def lose(self, code: int | None = None) -> None:
        """The pod of its last rank ends so; by default it is deleted, as with a node that is gone."""
        last = max((one for one in ranks(self.seen()) if one.rank is not None), key=lambda one: one.rank or 0)
        if code is not None:
            self.kwok.end_pod(self.space, last.name, code)
            return
        path = f"/api/v1/namespaces/{self.space}/pods/{last.name}"
        self.admin.delete(path, gracePeriodSeconds=0)

    def remove_failed(self) -> None:
        """As a person does whose operator leaves them there."""
        for pod in self.seen().pods:
            if pod["status"].get("phase") == "Failed":
                self.admin.delete(f"/api/v1/namespaces/{self.space}/pods/{pod['metadata']['name']}")

    def finish(self) -> None:
        for pod in self.seen().pods:
            self.kwok.end_pod(self.space, pod["metadata"]["name"], 0)
        self.until_state("succeeded")


def come_back(jobs: Sequence[Driven], code: int | None = None, operator: "Daemon | None" = None) -> None:
    """All of them at once: each loses a rank, is stopped, and started with other pods; it costs one restart.

    `code`: see `lose`. `operator` stands still until Sentinel acts: what an operator has brought up again before
    Sentinel looks, all of it, was restarted by its kind.
    """
    for job in jobs:
        job.begin()
    for job in jobs:
        job.until_state("running")
    before = {job.space: job.uids() for job in jobs}
    if operator is not None:
        operator.freeze()
    for job in jobs:
        # A TFJob fails for good when a pod of it is deleted at once, whatever its restart policy is.
        job.lose(137 if job.job["kind"] == "TFJob" else code)
    if operator is not None:
        for job in jobs:
            until(lambda job=job: job.phases(), job.story)  # type: ignore[misc]
        operator.thaw()
    for job in jobs:
        until(lambda job=job: job.phases()[-1:] == ["Recovered"], job.story)  # type: ignore[misc]
        job.running(job.size)
        assert job.way() == RECOVERED, job.story()
        assert not before[job.space] & job.uids(), job.story()
        assert len(job.incidents()) == 1
