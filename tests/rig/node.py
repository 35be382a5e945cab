"""A real node: kubelet and containerd in namespaces of their own, so that several live on one machine.

It needs root. Inside, all is where a node has it (/var/lib/kubelet, /var/log/pods, /run/containerd); outside, its
files are below `folder`. It has its own network (one bridge joins the nodes, their pods and this machine), processes,
hostname and boot id, so it can be lost, cut off or rebooted.
"""

import json
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.image import IMAGE, make_image
from tests.rig.kwok import is_ready
from tests.rig.network import PODS_OF_A_NODE, hardware_address, ip
from tests.rig.processes import Daemon, RigError, until
from tests.rig.warden import cgroup_roots, remove_cgroups

CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "%(image)s"
restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE every sandbox would fail
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"  # works on every file system
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "%(folder)s/cni"
"""


class Node:
    """Starts in its constructor and returns when the API server says that it is ready."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        heartbeat_s: int = 10,
    ) -> None:
        """`heartbeat_s`: how often the kubelet looks at itself and renews its lease, which lasts four times as long."""
        self.plane, self.rig, self.name, self._heartbeat_s = plane, plane.rig, name, heartbeat_s
        self.network = plane.network
        self._number = self.network.take_number()
        self.address = f"{self.network.prefix}.{self._number + 1}"
        self.link = f"{self.network.name}-{self._number}"
        self.folder = self.rig.folder / "nodes" / name
        for part in ("lib", "log", "cni"):
            (self.folder / part).mkdir(parents=True)
        (self.folder / "machine-id").write_text(f"{secrets.token_hex(16)}\n")
        self._write_configuration(labels or {})
        self.start()

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Boot, also after `kill`: disk and name are kept, processes and boot id are new."""
        (self.folder / "up").unlink(missing_ok=True)
        self._make_cgroups()
        script = str(Path(__file__).with_name("node-init.sh"))
        spaces = ("--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        self.init = self.rig.daemon(
            f"{self.name}-init", "unshare", *spaces, "--", script, str(self.folder), self.name
        )
        self._daemons = [self.init]
        self.init.wait((self.folder / "up").exists)
        self._connect()
        self.containerd = self.daemon(
            "containerd", "containerd", "--config", f"{self.folder}/containerd.toml"
        )
        image = self.rig.folder / "busybox.tar"
        if not image.exists():
            make_image(image)
        ctr = ("ctr", "--namespace", "k8s.io")
        self.containerd.wait(lambda: self.run(*ctr, "version", check=False).returncode == 0)
        self.run(*ctr, "images", "import", "--snapshotter", "native", str(image))
        self.kubelet = self.daemon(
            "kubelet",
            self.plane.binaries.path("kubelet"),
            f"--config={self.folder}/kubelet.json",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={self._labels}",
        )
        self.wait_ready()

    def wait_ready(self) -> None:
        def ready() -> bool:
            found: Object | None = self.plane.admin.find(f"/api/v1/nodes/{self.name}")
            return (
                found is not None
                and found["status"]["nodeInfo"]["bootID"] == self.boot_id
                and is_ready(found)
            )

        self.kubelet.wait(ready)

    def kill(self) -> None:
        """Lose the node: nothing of it lives on, and nobody says goodbye."""
        for daemon in self._daemons:
            self.rig.forget(daemon)
        self._daemons.clear()
        until(lambda: not self._members(), lambda: f"{self.name} lives on: {self._members()}")
        remove_cgroups(f"{self.rig.folder.name}/{self.name}")  # else the kubelet waits for what they held
        # Its network lives as long as connections that nobody answers, so the cable is pulled out by hand.
        subprocess.run(["ip", "link", "delete", self.link], capture_output=True, check=False, timeout=30)

    def remove(self) -> None:
        """Give the machine back: as `kill`, and its Node object and disk are gone. This object is of no use then."""
        self.kill()
        self.plane.admin.delete(f"/api/v1/nodes/{self.name}")
        shutil.rmtree(self.folder)
        self.network.give_back(self._number)

    def cut(self) -> None:
        """Partition: everything on it lives, and no packet comes in or out."""
        ip("link", "set", self.link, "down")

    def heal(self) -> None:
        ip("link", "set", self.link, "up")

    @property
    def boot_id(self) -> str:
        return (self.folder / "boot_id").read_text().strip()

    # ------------------------------------------------------------ looking and working inside

    def enter(self, *command: str | Path) -> list[str]:
        """The command line that runs a command on the node."""
        pid = self.init.pid
        spaces = ("--mount", "--net", "--uts", f"--pid=/proc/{pid}/ns/pid_for_children")
        return ["nsenter", f"--target={pid}", *spaces, "--", *(str(word) for word in command)]

    def run(self, *command: str | Path, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command on the node to its end."""
        words = self.enter(*command)
        done = subprocess.run(words, env=self.rig.env, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RigError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def daemon(self, name: str, *command: str | Path, env: Mapping[str, str] | None = None) -> Daemon:
        """A program of the node; `kill` ends it with the node."""
        daemon = self.rig.daemon(f"{self.name}-{name}", *self.enter(*command), env=env)
        self._daemons.append(daemon)
        return daemon

    def log_lines(self, pod: Object, container: str, restart: int = 0) -> list[str]:
        """Lines of a container's log file, in CRI format, as an agent finds them."""
        meta = pod["metadata"]
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        try:
            return (self.folder / "log/pods" / name / container / f"{restart}.log").read_text().splitlines()
        except FileNotFoundError:
            return []

    def pids(self, pod: Object) -> list[int]:
        """Processes of a pod, as this machine counts them."""
        uid = str(pod["metadata"]["uid"])
        return [pid for pid, path in self._members().items() if uid in path]

    def inner_pid(self, daemon: Daemon) -> int:
        """The program itself, as this machine counts: the daemon's own process only waits for it."""
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        return int(children[0])

    def _members(self) -> dict[int, str]:
        """Processes in the node's cgroups: pid -> path of a cgroup."""
        found = {}
        for root in cgroup_roots(self.rig.folder.name):
            for procs in (root / self.name).glob("**/cgroup.procs"):
                try:
                    found.update({int(pid): str(procs.parent) for pid in procs.read_text().split()})
                except OSError:
                    continue
        return found

    # ------------------------------------------------------------ making

    def _connect(self) -> None:
        """The node's end of the cable is in the bridge `cni0`, as its pods' are: all are neighbours."""
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", str(self.init.pid))
        ip("link", "set", self.link, "master", self.network.name, "up")
        for words in (
            "link add cni0 type bridge",
            "link set eth0 master cni0 up",
            f"link set cni0 address {hardware_address(self.address)} up",
            f"address add {self.address}/24 dev cni0",
            f"route add default via {self.network.address}",
        ):
            self.run("ip", *words.split())

    def _write_configuration(self, labels: Mapping[str, str]) -> None:
        first = 10 + PODS_OF_A_NODE * (self._number - 1)
        span = {
            "subnet": f"{self.network.prefix}.0/24",
            "rangeStart": f"{self.network.prefix}.{first}",
            "rangeEnd": f"{self.network.prefix}.{first + PODS_OF_A_NODE - 1}",
            "gateway": self.network.address,
        }
        ipam = {"type": "host-local", "ranges": [[span]], "routes": [{"dst": "0.0.0.0/0"}]}
        plugin = {"type": "bridge", "bridge": "cni0", "ipam": ipam}
        self._json("cni/10-rig.conflist", {"cniVersion": "0.4.0", "name": "rig", "plugins": [plugin]})
        values = {"image": IMAGE, "folder": self.folder}
        (self.folder / "containerd.toml").write_text(CONTAINERD % values)
        url = self.plane.url.replace("127.0.0.1", self.network.address)
        user = f"system:node:{self.name}"
        self._kubeconfig = self.plane.user_kubeconfig(user, "system:nodes", url=url)
        self._labels = ",".join(f"{key}={value}" for key, value in labels.items())
        self._json("kubelet.json", self._kubelet_configuration())

    def _kubelet_configuration(self) -> Object:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(self.plane.identities.ca)},
            },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.rig.folder.name}/{self.name}",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "makeIPTablesUtilChains": False,
            "nodeLeaseDurationSeconds": 4 * self._heartbeat_s,
            "nodeStatusUpdateFrequency": f"{self._heartbeat_s}s",
            "oomScoreAdj": 0,
            "resolvConf": "",
        }

    def _make_cgroups(self) -> None:
        top = Path("/sys/fs/cgroup")
        v2 = (top / "cgroup.controllers").exists()
        v1 = [path for path in top.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]
        try:
            for hierarchy in [top] if v2 else v1:
                rigs = hierarchy / self.rig.folder.name
                (rigs / self.name).mkdir(parents=True)
                for parent in (hierarchy, rigs) if v2 else ():
                    wanted = (parent / "cgroup.controllers").read_text().split()
                    missing = set(wanted) - set((parent / "cgroup.subtree_control").read_text().split())
                    (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in missing))
        except OSError as e:
            raise RigError(f"cannot make a cgroup for {self.name}: {e} (real nodes need root)") from None

    def _json(self, name: str, document: Object) -> None:
        (self.folder / name).write_text(json.dumps(document, indent=1))
