"""`make cluster`: a running cluster for a person, until Ctrl-C; nothing of it stays."""

import os
import signal
import sys

from tests.rig.binaries import CannotBuild, NotBuilt, shipped
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.node import Node
from tests.rig.processes import Rig, RigError

FAKE_NODES = 5
POD = """
apiVersion: v1
kind: Pod
metadata: {name: steps}
spec:
  terminationGracePeriodSeconds: 10
  nodeSelector: {kubernetes.io/hostname: real-1}
  containers:
  - name: main
    image: rig/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, "trap 'echo saved; exit 0' TERM; n=0; while :; do n=$((n+1)); echo step $n; sleep 1; done"]
"""
HELP = """
The cluster runs: one real node (real-1: kubelet, containerd, pods that really run) and {fakes} fake ones (kwok).

    export KUBECONFIG={kubeconfig}
    kubectl={kubectl}

Look:
    $kubectl get nodes,pods -o wide
    $kubectl logs -f steps
    ls {logs}    # what the cluster's programs say
    ls {node}/log/pods    # the node's log files
    {enter} sh    # a shell on the node

Break it:
    ip link set {link} down    # real-1 is cut off and lives on; `up` heals it
    kill -9 {kubelet}    # its kubelet is gone, its pods live on
    kill -9 {init}    # the node is lost with all that runs on it
    kill -STOP {api}; kill -CONT {api}    # the API server hangs, and comes back
    $kubectl delete node fake-0    # a machine is given back

Ctrl-C ends everything and leaves nothing behind.
"""


def say(text: str) -> None:
    print(text, flush=True)


def bring_up(rig: Rig) -> str:
    """Starts everything; what to tell the person."""
    say("starting the control plane ...")
    plane = ControlPlane(rig)
    say("starting a real node ...")
    node = Node(plane, "real-1")
    say(f"starting {FAKE_NODES} fake nodes ...")
    Kwok(plane).nodes("fake", FAKE_NODES)
    plane.admin.apply(POD, namespace="default")
    return HELP.format(
        fakes=FAKE_NODES,
        kubeconfig=plane.kubeconfig,
        kubectl=plane.binaries.path("kubectl"),
        node=node.folder,
        enter=" ".join(node.enter()),
        logs=rig.logs,
        link=node.link,
        kubelet=node.inner_pid(node.kubelet),
        init=node.inner_pid(node.init),
        api=plane.api_server.pid,
    )


def main() -> int:
    if os.geteuid() != 0:
        say("A real node needs root: run this as root.")
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        shipped().build()
        with Rig() as rig:
            try:
                say(bring_up(rig))
                while True:
                    signal.pause()
            except SystemExit:
                say("\nending the cluster ...")
    except (CannotBuild, NotBuilt, RigError) as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
