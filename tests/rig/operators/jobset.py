"""JobSet: several batch Jobs as one."""

from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator
from tests.rig.processes import Daemon

LABEL = "jobset.sigs.k8s.io/jobset-name"


class JobSet(Operator):
    name = "jobset"
    programs: ClassVar = {"jobset": "sigs.k8s.io/jobset"}
    manifests = Manifests(
        "sigs.k8s.io/jobset",
        ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"),
    )
    only_with_label: ClassVar = {"mpod.kb.io": LABEL, "vpod.kb.io": LABEL}

    def start(self) -> Daemon:
        return self.run("jobset", self.configured("config.jobset.x-k8s.io/v1alpha1"))
