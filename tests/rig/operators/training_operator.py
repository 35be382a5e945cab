"""The training-operator, version 1: PyTorchJob, TFJob, MPIJob v1, XGBoostJob, PaddleJob and MXJob."""

from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.image import DONE, IMAGE
from tests.rig.operators.base import Operator
from tests.rig.processes import Daemon

# A worker would wait for its master's name, and there is no DNS.
INIT_CONTAINER = [
    {"name": "init-pytorch", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["true"]}
]


class TrainingOperator(Operator):
    name = "training-operator"
    programs: ClassVar = {
        "training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1"
    }
    manifests = Manifests(
        "github.com/kubeflow/training-operator",
        ("manifests/base/crds/kubeflow.org_*.yaml", "manifests/base/webhook/manifests.yaml"),
    )
    own_tmp = True

    def prepare(self) -> None:
        self.empty_secret("kubeflow", "training-operator-webhook-cert")

    def start(self) -> Daemon:
        self.write("init-container.yaml", INIT_CONTAINER)
        return self.run(
            "training-operator",
            "--metrics-bind-address=0",
            f"--health-probe-bind-address=127.0.0.1:{self.probe_port}",
            f"--webhook-server-port={self.webhook_port}",
            "--pytorch-init-container-template-file=/tmp/init-container.yaml",
            f"--mpi-kubectl-delivery-image={DONE}",
        )
