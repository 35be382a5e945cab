"""Fake nodes come up by the thousand, and their pods live and end as pods on real nodes do."""

from collections.abc import Iterator

import pytest

from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.processes import Rig, until

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {{rig: {prefix}}}
      tolerations: [{{key: rig, operator: Exists}}]
      containers:
      - {{name: main, image: train, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}
"""


@pytest.fixture(scope="module")
def kwok(control_plane: ControlPlane) -> Iterator[Kwok]:
    made = Kwok(control_plane)
    yield made
    made.rig.forget(made.daemon)


def test_a_thousand_nodes_come_up_and_hold_leases() -> None:
    """On a control plane of their own: it goes faster than they can be removed."""
    with Rig() as rig:
        names = Kwok(ControlPlane(rig, scheduler=False)).nodes("many", 1000)
    assert names == [f"many-{n}" for n in range(1000)]


def test_pods_of_a_job_run_and_end_as_they_are_told_and_are_counted(
    control_plane: ControlPlane, kwok: Kwok
) -> None:
    space, admin = control_plane.namespace(), control_plane.admin
    names = kwok.nodes(space, 4)
    admin.apply(JOB.format(prefix=space), namespace=space)

    def pods(phase: str) -> list[Object]:
        return [
            p for p in admin.items(f"/api/v1/namespaces/{space}/pods") if p["status"].get("phase") == phase
        ]

    def why() -> str:
        return f"{admin.items(f'/api/v1/namespaces/{space}/pods')}\n{kwok.rig.story()}"

    def status() -> Object:
        found: Object = admin.get(f"/apis/batch/v1/namespaces/{space}/jobs/train")["status"]
        return found

    until(lambda: len(pods("Running")) == 4, why)
    first, second, third, _ = pods("Running")
    assert {pod["spec"]["nodeName"] for pod in pods("Running")} == set(names)  # 8 GPUs each
    kwok.end_pod(space, first["metadata"]["name"], 0)
    until(lambda: status().get("succeeded") == 1, why)
    kwok.end_pod(space, second["metadata"]["name"], 137)
    until(lambda: status().get("failed"), why)  # and the job's controller stops the others
    until(lambda: not pods("Running"), why)
    ended = admin.get(f"/api/v1/namespaces/{space}/pods/{second['metadata']['name']}")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    until(lambda: status().get("failed") == 3, lambda: f"{status()} {why()}")
    assert third["metadata"]["name"] not in [pod["metadata"]["name"] for pod in pods("Running")]
    kwok.remove(space)
