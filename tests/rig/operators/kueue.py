"""Kueue: admits jobs of many kinds when their queue has room for them, by their field `suspend`."""

from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator
from tests.rig.operators.lws import LABEL
from tests.rig.processes import Daemon

SPACE = "kueue-system"
# Of pods it is asked about those of LeaderWorkerSets alone. It may act on all pods, deployments and stateful sets.
KINDS = [
    "batch/job",
    "jobset.x-k8s.io/jobset",
    "kubeflow.org/mpijob",
    "kubeflow.org/paddlejob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
    "leaderworkerset.x-k8s.io/leaderworkerset",
    "pod",
    "ray.io/raycluster",
    "ray.io/rayjob",
    "trainer.kubeflow.org/trainjob",
]
LABELS = {"pod": LABEL, "deployment": "kueue.x-k8s.io/managed", "statefulset": "kueue.x-k8s.io/managed"}


class Kueue(Operator):
    """After the operators of the kinds that it shall manage."""

    name = "kueue"
    programs: ClassVar = {"kueue": "sigs.k8s.io/kueue/cmd/kueue"}
    manifests = Manifests(
        "sigs.k8s.io/kueue",
        ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"),
    )
    only_with_label: ClassVar = {
        f"{way}{kind}.kb.io": label for way in "mv" for kind, label in LABELS.items()
    }

    def prepare(self) -> None:
        self.empty_secret(SPACE, "kueue-webhook-server-cert")

    def start(self) -> Daemon:
        options = self.configured(
            "config.kueue.x-k8s.io/v1beta1",
            namespace=SPACE,
            # Without its own, metrics need certificates in a folder below /etc.
            internalCertManagement={"enable": True},
            integrations={"frameworks": KINDS},
            featureGates={"VisibilityOnDemand": False},  # an API server of its own on port 8082
        )
        return self.run("kueue", options)
