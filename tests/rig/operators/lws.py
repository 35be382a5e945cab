"""LeaderWorkerSet: groups of pods, each a leader and its workers, as stateful sets."""

from typing import ClassVar

from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator
from tests.rig.processes import Daemon

LABEL = "leaderworkerset.sigs.k8s.io/name"


class LeaderWorkerSet(Operator):
    name = "lws"
    programs: ClassVar = {"lws": "sigs.k8s.io/lws/cmd"}
    manifests = Manifests("sigs.k8s.io/lws", ("config/crd/bases/*.yaml", "config/webhook/manifests.yaml"))
    only_with_label: ClassVar = {"mpod.kb.io": LABEL, "vpod.kb.io": LABEL}

    def start(self) -> Daemon:
        return self.run("lws", self.configured("config.lws.x-k8s.io/v1alpha1"))
