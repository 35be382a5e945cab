"""Kubeflow's trainer, version 2: TrainJob, which becomes a JobSet."""

from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator
from tests.rig.processes import Daemon


class Trainer(Operator):
    """Needs `JobSet(plane)` before it."""

    name = "trainer"
    programs: ClassVar = {"trainer": "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"}
    manifests = Manifests(
        "github.com/kubeflow/trainer/v2",
        ("manifests/base/crds/trainer.kubeflow.org_*.yaml", "manifests/base/webhook/manifests.yaml"),
    )
    own_tmp = True

    def prepare(self) -> None:
        self.empty_secret("kubeflow-system", "kubeflow-trainer-webhook-cert")

    def start(self) -> Daemon:
        return self.run(
            "trainer",
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{self.probe_port}",
            f"--webhook-server-port={self.webhook_port}",
        )
