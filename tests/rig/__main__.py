"""`make cluster`: a running cluster with Sentinel for a person, until Ctrl-C; nothing of it stays."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.real_training import IMAGE, job
from tests.notify.mail_world import MailServer
from tests.rig.api import ApiError
from tests.rig.binaries import NotBuilt, helm, shipped
from tests.rig.control_plane import ControlPlane
from tests.rig.installed import NAMESPACE, PODS, REPO, Sentinel, sentinel_image
from tests.rig.node import Node
from tests.rig.processes import Rig, RigError, free_port, until
from tests.rig.toolchain import CannotBuild

REAL_NODES = 3  # two for the ranks, and one to go to; controllers do not share a node
RANKS = 2
STEPS = 1_000_000  # more than anybody waits for
POLICY = """
apiVersion: sentinel.dev/v1alpha1
kind: JobPolicy
metadata: {name: train}
spec:
  jobs: {kinds: [Job]}
  owner: {emails: [owner@example.com]}
  resume:
    maxResumes: 5
    gracefulStop: 5s
    checkpoint: {signal: SIGUSR1, timeout: 20s, proof: {logPattern: saved checkpoint}}
  lostNode: {forceAfter: 30s}
"""
KILL_RANK = """\
#!/bin/sh
# kill-rank N: kills rank N of the job `train`, as a kernel that is short of memory does
for each in $(grep -lsz '^CLUSTER={folder}$' /proc/[0-9]*/environ); do
  if grep -qsz "^JOB_COMPLETION_INDEX=$1\\$" "$each"; then kill -9 "$(basename "$(dirname "$each")")"; fi
done
"""
HELP = """
The cluster runs: {reals} real nodes (real-1, ...: kubelet, containerd, pods that really run), two Sentinel controllers,
and an agent on each node, by `helm install`. Job `train` trains on two of the nodes.

    export KUBECONFIG={kubeconfig}
    kubectl={kubectl}

Look:
    {sentinel} status    # who leads, nodes, jobs; `status train` is the job
    $kubectl get nodes,protectedjobs,incidents,quarantines; $kubectl get pods -A -o wide
    $kubectl logs -f -l job-name=train
    {page}    # the page of the controller that leads
    {prometheus}    # Prometheus, with the alerts that are shipped
    {mails}    # mails, as they are sent: each is told here too

Break it, one at a time, and look:
    {says} {busy} '{line}'
        # a GPU: {busy} is out of service within a blink; the job saves, and goes on elsewhere
    {kill_rank} 1
        # a rank: all ranks start again from the last checkpoint
    kill -9 {init}
        # a node: {lost} is lost with all that runs on it; a minute later the job goes on without it

More:
    {sentinel} release {busy} --why 'I have seen to it'    # it is back; so it is after `uncordon`, and by
    $kubectl annotate node {busy} sentinel.dev/release='I have seen to it'
    {sentinel} hold {lost} --why 'a look inside'    # out of service until `release {lost}`
    {sentinel} pause    # nothing new is done to any node until `pause --off`
    ip link set {link} down    # {busy} is cut off and lives on: unreachable, not dead; `up` heals it
    kill -9 {kubelet}    # the kubelet of {busy} is gone, its pods live on
    kill -STOP {api}; kill -CONT {api}    # the API server hangs, and comes back
    $kubectl -n sentinel-system delete pod -l app.kubernetes.io/component=controller    # both controllers
    {helm} uninstall sentinel -n sentinel-system --wait; {sentinel} uninstall    # Sentinel goes, with all its marks
    ls {logs}    # what the cluster's programs say
    {enter} sh    # a shell on {busy}

Ctrl-C ends everything and leaves nothing behind.
"""


def say(text: str) -> None:
    print(text, flush=True)


class Shown:
    """What a person gets. `mails`: a server that takes them. `controller`: more of these values of the chart."""

    def __init__(self, rig: Rig, mails: MailServer, **controller: Any) -> None:
        self.rig, self._mails, self._controller = rig, mails, controller
        self.nodes: dict[str, Node] = {}
        self.values = rig.folder / "values.yaml"  # by which it is installed
        self._told = 0
        self._targets = rig.folder / "controllers.json"
        self.mail_folder = rig.folder / "mails"
        self.mail_folder.mkdir()
        self.checkpoints = rig.folder / "checkpoints"
        self.checkpoints.mkdir()
        self.checkpoints.chmod(0o777)

    def bring_up(self, plane: ControlPlane, image: Path) -> str:
        """Starts everything; what to tell the person."""
        say(f"starting {REAL_NODES} real nodes ...")
        with ThreadPoolExecutor(REAL_NODES) as pool:
            names = [f"real-{n + 1}" for n in range(REAL_NODES)]
            made = pool.map(lambda name: Node(plane, name, images=[image]), names)
            self.nodes = {node.name: node for node in made}
        say("helm install sentinel deploy/chart ...")
        self._install(plane)
        installed = Sentinel(plane, install=False)
        installed.wait(*self.nodes.values())
        plane.admin.apply(POLICY, namespace="default")
        plane.admin.create(job("default", self.checkpoints, RANKS, STEPS, CLUSTER=str(self.rig.folder)))
        until(lambda: len(_running(plane)) == RANKS, "the job does not run")
        self._prometheus_url = self._prometheus(plane)
        return self.help(plane)

    def help(self, plane: ControlPlane) -> str:
        """With the nodes on which the job is now."""
        kill_rank = self.rig.folder / "kill-rank"
        kill_rank.write_text(KILL_RANK.replace("{folder}", str(self.rig.folder)))
        kill_rank.chmod(0o755)
        busy, lost = (self.nodes[pod["spec"]["nodeName"]] for pod in _running(plane))
        return HELP.format(
            reals=REAL_NODES,
            kubeconfig=plane.kubeconfig,
            kubectl=plane.binaries.path("kubectl"),
            helm=helm().path("helm"),
            sentinel=Path(sys.executable).with_name("sentinel"),
            page=f"http://{_leader(plane)}:9810/",
            prometheus=self._prometheus_url,
            mails=self.mail_folder,
            says=self.rig.folder / "kernel-says",
            line="NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            kill_rank=kill_rank,
            busy=busy.name,
            lost=lost.name,
            init=lost.inner_pid(lost.init),
            enter=" ".join(busy.enter()),
            link=busy.link,
            kubelet=busy.inner_pid(busy.kubelet),
            logs=self.rig.logs,
            api=plane.api_server.pid,
        )

    def _install(self, plane: ControlPlane) -> None:
        host, port = plane.network.address, self._mails.port
        mail = {"host": host, "port": port, "tls": "none", "admins": ["ops@example.com"]}
        values = {
            "image": {"repository": IMAGE.rpartition(":")[0]},
            "controller": {"settings": {"mail": mail}, **self._controller},
        }
        self.values.write_text(yaml.safe_dump(values))
        command = [helm().path("helm"), "install", "sentinel", REPO / "deploy/chart", "-f", self.values]
        command += ["--namespace", NAMESPACE, "--create-namespace"]
        env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
        done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True)
        if done.returncode:
            raise RigError(f"helm install: {done.stderr}")

    def _prometheus(self, plane: ControlPlane) -> str:
        """Its address. Debian's knows no Kubernetes: `turn` writes where controllers are."""
        self._plane = plane
        self.turn()
        found = [{"files": [str(self._targets)], "refresh_interval": "5s"}]
        config = {
            "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
            "rule_files": [str(REPO / f"rules/prometheus/{name}.yaml") for name in ("recording", "alerts")],
            "scrape_configs": [{"job_name": "sentinel-controller", "file_sd_configs": found}],
        }
        path = self.rig.folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        where = f"127.0.0.1:{free_port()}"
        data = self.rig.folder / "prometheus"
        words = (f"--config.file={path}", f"--storage.tsdb.path={data}", f"--web.listen-address={where}")
        self.rig.daemon("prometheus", "prometheus", *words)
        return f"http://{where}/"

    def turn(self) -> None:
        """What has changed: where controllers are, and mails."""
        with contextlib.suppress(ApiError, OSError):  # a person may have stopped the API server
            pods = self._plane.admin.items(PODS, labelSelector="app.kubernetes.io/component=controller")
            there = sorted(f"{pod['status']['podIP']}:9810" for pod in pods if pod["status"].get("podIP"))
            half = self._targets.with_suffix(".half")
            half.write_text(json.dumps([{"targets": there}]))
            half.replace(self._targets)
        self.take_mails()

    def take_mails(self) -> None:
        """Those that came since the last call: as files, and told."""
        for number, (to, mail) in enumerate(self._mails.mails[self._told :], self._told + 1):
            (self.mail_folder / f"{number:02d}.eml").write_bytes(mail.as_bytes())
            say(f"mail {number:02d} to {', '.join(to)}: {mail['subject']}")
            self._told = number


def _running(plane: ControlPlane) -> list[Any]:
    pods = plane.admin.items("/api/v1/namespaces/default/pods", labelSelector="job-name=train")
    return [pod for pod in pods if pod["status"]["phase"] == "Running"]


def _leader(plane: ControlPlane) -> str:
    """Its pod's address."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/sentinel-controller"
    holder = str(plane.admin.get(path)["spec"]["holderIdentity"])
    pods = plane.admin.items(PODS)
    return next(str(pod["status"]["podIP"]) for pod in pods if holder.startswith(pod["metadata"]["name"]))


def main() -> int:
    if os.geteuid() != 0:
        say("A real node needs root: run this as root.")
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        shipped().build()
        helm().build()
        with Rig() as rig:
            try:
                say("making the image of Sentinel ...")
                image = sentinel_image()
                say("starting the control plane ...")
                plane = ControlPlane(rig)
                with MailServer(host=plane.network.address) as mails:
                    shown = Shown(rig, mails)
                    say(shown.bring_up(plane, image))
                    while True:
                        shown.turn()
                        threading.Event().wait(1.0)
            except SystemExit:
                say("\nending the cluster ...")
    except (CannotBuild, NotBuilt, RigError) as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
