"""The mpi-operator: MPIJob v2beta1. Its custom resource has the name of the training-operator's MPIJob v1."""

from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator
from tests.rig.processes import Daemon

SPACE = "mpi-operator"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/mpi-operator"


class MpiOperator(Operator):
    """Not on one control plane with `TrainingOperator`. Listens on port 8080, which cannot be changed."""

    name = "mpi-operator"
    programs: ClassVar = {"mpi-operator": "github.com/kubeflow/mpi-operator/cmd/mpi-operator"}
    manifests = Manifests("github.com/kubeflow/mpi-operator", ("manifests/base/kubeflow.org_mpijobs.yaml",))

    def prepare(self) -> None:
        self.namespace(SPACE)

    def start(self) -> Daemon:
        return self.run(
            "mpi-operator", f"--lock-namespace={SPACE}", "--kube-api-qps=200", "--kube-api-burst=400"
        )

    def is_ready(self) -> bool:
        """It leads; it starts to work then."""
        lease = self.admin.find(LEASE)
        return bool(lease and lease["spec"].get("holderIdentity"))
