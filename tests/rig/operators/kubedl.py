"""KubeDL: PyTorchJob, TFJob, XGBoostJob, MPIJob, ... of its own groups, and ElasticBatchJob."""

from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator, is_true
from tests.rig.processes import Daemon, free_port, until

# It looks for OpenKruise's custom resource and ends where it is not there.
STUB = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "containerrecreaterequests.apps.kruise.io"},
    "spec": {
        "group": "apps.kruise.io",
        "scope": "Namespaced",
        "names": {"kind": "ContainerRecreateRequest", "plural": "containerrecreaterequests"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


class KubeDL(Operator):
    name = "kubedl"
    programs: ClassVar = {"kubedl": "github.com/alibaba/kubedl"}
    manifests = Manifests("github.com/alibaba/kubedl", ("config/crd/bases/*.yaml",))

    def prepare(self) -> None:
        self.admin.apply([STUB])
        path = self.admin.path_of(STUB)
        until(lambda: is_true(self.admin.get(path), "Established"), f"{path} is not served")

    def start(self) -> Daemon:
        return self.run(
            "kubedl",
            "--enable-leader-election=false",
            f"--controller-metrics-addr=127.0.0.1:{self.probe_port}",
            f"--metrics-addr={free_port()}",
            "--feature-gates=JobCoordinator=false",
            "--workloads=*",
        )

    def is_ready(self) -> bool:
        return self.answers("metrics")
