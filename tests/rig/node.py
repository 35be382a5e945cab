"""A real node: kubelet and containerd in namespaces of their own, so that several live on one machine.

It needs root. Inside, all is where a node has it (/var/lib/kubelet, /var/log/pods, /run/containerd); outside, its
files are below `folder`. It has its own network (one bridge joins the nodes, their pods and this machine), processes,
hostname and boot id, so it can be lost, cut off or rebooted.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.image import IMAGE, make_image
from tests.rig.kwok import is_ready
from tests.rig.network import PODS_OF_A_NODE, hardware_address, ip
from tests.rig.processes import Daemon, RigError, until
from tests.rig.warden import cgroup_roots, remove_cgroups, unmount_below

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
snapshotter = "%(snapshotter)s"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "%(folder)s/spec.json"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "%(folder)s/cni"
"""

# Standard input is the container's state, by which the root of its files is found before they become its own.
BOOT_ID_HOOK = """\
#!/bin/sh
bundle=$(grep -o '"bundle":"[^"]*"' | cut -d'"' -f4)
mount --bind {own} "$bundle/rootfs/proc/sys/kernel/random/boot_id"
"""
# A record as /dev/kmsg has it: priority (kernel, error), sequence number, microseconds since the boot.
KERNEL_SAYS = """\
#!/bin/sh
# kernel-says NODE TEXT: a line in the log of the node's kernel
read -r up _ </proc/uptime
printf '3,%s,%s0000,-;%s\\n' "$(($(date +%s%N) / 1000))" "$(echo "$up" | tr -d .)" "$2" >>"{nodes}/$1/kmsg"
"""
SERVICES = "10.96.0.0/16"


class Node:
    """Starts in its constructor and returns when the API server says that it is ready."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        heartbeat_s: int = 10,
        images: Sequence[Path] = (),
    ) -> None:
        """`heartbeat_s`: how often the kubelet looks at itself and renews its lease, which lasts four times as long.

        `images`: archives of more images for its pods.
        """
        self.plane, self.rig, self.name, self._heartbeat_s = plane, plane.rig, name, heartbeat_s
        self._images = images
        self.network = plane.network
        self._number = self.network.take_number()
        self.address = f"{self.network.prefix}.{self._number + 1}"
        self.link = f"{self.network.name}-{self._number}"
        self.folder = self.rig.folder / "nodes" / name
        for part in ("lib", "log", "cni"):
            (self.folder / part).mkdir(parents=True)
        # Its disk is memory: images unpack into tens of thousands of files, which a disk takes a minute to remove.
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", self.folder / "lib")
        (self.folder / "machine-id").write_text(f"{secrets.token_hex(16)}\n")
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n")
        self.kernel_log = self.folder / "kmsg"  # the node's /dev/kmsg
        says = self.rig.folder / "kernel-says"
        says.write_text(KERNEL_SAYS.format(nodes=self.rig.folder / "nodes"))
        says.chmod(0o755)
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
        image = make_image(self.folder / "busybox.tar")
        ctr = ("ctr", "--namespace", "k8s.io")
        self.containerd.wait(lambda: self.run(*ctr, "version", check=False).returncode == 0)
        for archive in (image, *self._images):
            self.run(*ctr, "images", "import", "--snapshotter", self._snapshotter, str(archive))
        api = urlsplit(self.plane.url)
        files = self.plane.identities.user("system:kube-proxy", "rig")
        served = self.folder / "served"
        served.unlink(missing_ok=True)
        services = self.daemon(
            "services",
            *(sys.executable, "-m", "tests.rig.services", self.network.address, str(api.port)),
            *(self.folder / "hosts", self.plane.identities.ca, *files),
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        services.wait(served.exists)
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

    @property
    def up(self) -> bool:
        return bool(self._daemons)

    def kill(self) -> None:
        """Lose the node: nothing of it lives on, and nobody says goodbye."""
        for daemon in self._daemons:
            self.rig.forget(daemon)
        self._daemons.clear()
        until(lambda: not self._members(), lambda: f"{self.name} lives on: {self._members()}")
        remove_cgroups(f"{self.rig.folder.name}/{self.name}")  # else the kubelet waits for what they held
        # Its network lives as long as connections that nobody answers, so the cable is pulled out by hand.
        subprocess.run(["ip", "link", "delete", self.link], capture_output=True, check=False, timeout=180)

    def remove(self) -> None:
        """Give the machine back: as `kill`, and its Node object and disk are gone. This object is of no use then."""
        self.kill()
        self.plane.admin.delete(f"/api/v1/nodes/{self.name}")
        unmount_below(self.folder)
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
        done = subprocess.run(words, env=self.rig.env, capture_output=True, text=True, timeout=180)
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

    def kernel_says(self, text: str) -> None:
        """A line in the log of the node's kernel."""
        self.run(self.rig.folder / "kernel-says", self.name, text)

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
            for path, _, _ in os.walk(root / self.name):  # a glob breaks where a folder goes meanwhile
                try:
                    pids = (Path(path) / "cgroup.procs").read_text().split()
                except OSError:
                    continue
                found.update({int(pid): path for pid in pids})
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
        routes = [{"dst": "0.0.0.0/0"}, {"dst": SERVICES, "gw": self.address}]
        ipam = {"type": "host-local", "ranges": [[span]], "routes": routes}
        plugin = {"type": "bridge", "bridge": "cni0", "ipam": ipam}
        self._json("cni/10-rig.conflist", {"cniVersion": "0.4.0", "name": "rig", "plugins": [plugin]})
        self._snapshotter = "overlayfs" if overlay_works(self.folder / "lib") else "native"
        values = {"image": IMAGE, "folder": self.folder, "snapshotter": self._snapshotter}
        (self.folder / "containerd.toml").write_text(CONTAINERD % values)
        self._write_runtime_spec()
        url = self.plane.url.replace("127.0.0.1", self.network.address)
        user = f"system:node:{self.name}"
        self._kubeconfig = self.plane.user_kubeconfig(user, "system:nodes", url=url)
        self._labels = ",".join(f"{key}={value}" for key, value in labels.items())
        self._json("kubelet.json", self._kubelet_configuration())

    def _write_runtime_spec(self) -> None:
        """Containers see the node's boot id too: each gets a /proc of its own, over which no mount may be asked for."""
        said = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True, timeout=180)
        spec = json.loads(said.stdout)
        hook = self.folder / "hook.sh"
        hook.write_text(BOOT_ID_HOOK.format(own=self.folder / "boot_id"))
        hook.chmod(0o755)
        spec["hooks"] = {"createContainer": [{"path": str(hook)}]}
        self._json("spec.json", spec)

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
            "syncFrequency": "5s",  # so soon a changed ConfigMap is in a pod
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


def mount(*words: str | Path) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False, timeout=180)
    if done.returncode:
        raise RigError(f"mount {' '.join(map(str, words))}: {done.stderr} (real nodes need root)")


def overlay_works(folder: Path) -> bool:
    """Whether layers of images need not be copied: not on every file system (a container's own is such a one)."""
    parts = [folder / "overlay" / name for name in ("lower", "upper", "work", "merged")]
    for part in parts:
        part.mkdir(parents=True, exist_ok=True)
    lower, upper, work, merged = map(str, parts)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    done = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], capture_output=True)
    if done.returncode == 0:
        subprocess.run(["umount", merged], check=True)
    return done.returncode == 0
