"""`make cluster`: a running cluster with Sentinel for a person, until Ctrl-C; nothing of it stays."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rig.binaries import NotBuilt, shipped
from tests.rig.control_plane import ControlPlane
from tests.rig.installed import Sentinel, sentinel_image
from tests.rig.kwok import Kwok
from tests.rig.node import Node
from tests.rig.processes import Rig, RigError, until
from tests.rig.toolchain import CannotBuild

REAL_NODES = 2  # controllers do not share a node
FAKE_NODES = 5
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: steps, labels: {team: nlp}}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 10
      nodeName: real-1
      containers:
      - name: main
        image: rig/busybox:1
        imagePullPolicy: Never
        command: [sh, -c, "trap 'echo saved; exit 0' TERM; n=0; while :; do n=$((n+1)); echo step $n; sleep 1; done"]
---
apiVersion: sentinel.dev/v1alpha1
kind: JobPolicy
metadata: {name: nlp}
spec:
  jobs: {kinds: [Job], matchLabels: {team: nlp}}
  owner: {emails: [owner@example.com]}
  restart: {maxRestarts: 3}
"""
HELP = """
The cluster runs: {reals} real nodes (real-1, ...: kubelet, containerd, pods that really run), {fakes} fake ones (kwok),
two Sentinel controllers, and an agent on each real node, as deploy/ ships them. Job `steps` steps on real-1.

    export KUBECONFIG={kubeconfig}
    kubectl={kubectl}

Look:
    $kubectl get nodes,quarantines; $kubectl get pods -A -o wide
    $kubectl logs -f job/steps
    $kubectl -n sentinel-system logs -l app.kubernetes.io/component=controller --prefix -f
    {sentinel} status --cluster
    ls {logs}    # what the cluster's programs say
    {enter} sh    # a shell on real-1

Break it:
    {says} real-1 '{line}'
        # the kernel of real-1 says so: the node is out of service within a blink, and `steps` goes on stepping
    $kubectl get quarantines; $kubectl describe quarantine real-1-0001
    {sentinel} release real-1 --why 'I have seen to it'    # it is back; so it is after `uncordon`, and by
    $kubectl annotate node real-1 sentinel.dev/release='I have seen to it'
    {sentinel} hold fake-1 --why 'a look inside'    # out of service until `release fake-1`
    {sentinel} pause    # nothing new is done to any node until `pause --off`
    ip link set {link} down    # real-1 is cut off and lives on: unreachable after a minute, not dead; `up` heals it
    kill -9 {kubelet}    # its kubelet is gone, its pods live on
    kill -9 {init}    # the node is lost with all that runs on it
    kill -STOP {api}; kill -CONT {api}    # the API server hangs, and comes back
    $kubectl -n sentinel-system delete pod -l app.kubernetes.io/component=controller    # both controllers
    $kubectl delete node fake-0    # a machine is given back

Ctrl-C ends everything and leaves nothing behind.
"""


def say(text: str) -> None:
    print(text, flush=True)


def bring_up(rig: Rig) -> str:
    """Starts everything; what to tell the person."""
    say("making the image of Sentinel ...")
    image = sentinel_image()
    say("starting the control plane ...")
    plane = ControlPlane(rig)
    _ = plane.network  # else two nodes would each make it
    say(f"starting {REAL_NODES} real nodes ...")
    with ThreadPoolExecutor(REAL_NODES) as pool:
        names = [f"real-{n + 1}" for n in range(REAL_NODES)]
        nodes = list(pool.map(lambda name: Node(plane, name, images=[image]), names))
    say(f"starting {FAKE_NODES} fake nodes ...")
    Kwok(plane).nodes("fake", FAKE_NODES)
    say("installing Sentinel ...")
    installed = Sentinel(plane)
    installed.wait(*nodes)
    plane.admin.apply(JOB, namespace="default")
    until(lambda: runs(plane), "the job does not run")
    node = nodes[0]
    return HELP.format(
        reals=REAL_NODES,
        fakes=FAKE_NODES,
        kubeconfig=plane.kubeconfig,
        kubectl=plane.binaries.path("kubectl"),
        sentinel=Path(sys.executable).with_name("sentinel"),
        enter=" ".join(node.enter()),
        logs=rig.logs,
        says=rig.folder / "kernel-says",
        line="NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
        link=node.link,
        kubelet=node.inner_pid(node.kubelet),
        init=node.inner_pid(node.init),
        api=plane.api_server.pid,
    )


def runs(plane: ControlPlane) -> bool:
    pods = plane.admin.items("/api/v1/namespaces/default/pods", labelSelector="job-name=steps")
    return any(pod["status"]["phase"] == "Running" for pod in pods)


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
