"""Controllers and agents of a test: real programs on this machine, at a control plane of the file's own."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.agent_node import Node
from tests.e2e.box import SENTINEL, Box, Running
from tests.kubernetes.conftest import LEADER, NAMESPACE, NODES, QUARANTINES, kubeconfig
from tests.kubernetes.proxy import Proxy
from tests.waits import until

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

Labels = tuple[tuple[str, str], ...]
AUDIENCE = "sentinel-controller"


class Fleet:
    """Controllers and agents on one machine, whose nodes are objects that nobody looks after."""

    def __init__(self, plane: "ControlPlane", box: Box, tmp_path: Path) -> None:
        self.plane, self.box, self.folder = plane, box, tmp_path
        self.admin = plane.admin
        token = plane.token(NAMESPACE, "sentinel-controller")
        self.kubeconfig = kubeconfig(tmp_path / "kubeconfig", plane.url, token, plane.identities.ca)
        self.ports: dict[int, int] = {}
        self.settings: dict[str, Any] = {"listen": ""}  # of the next controller
        self.before: tuple[str, ...] = ()  # what starts it

    def controller(self, name: str, *options: str) -> Running:
        """One that serves agents."""
        running = self.begun(name, *options)
        self.serves(running)
        return running

    def serves(self, running: Running) -> None:
        running.said("serves agents on port")
        self.ports[running.pid] = int(running.err.partition("on port ")[2].partition(",")[0])

    def begun(self, name: str, *options: str) -> Running:
        """One that may have to wait for something."""
        self.box.env |= {"POD_NAME": name, "POD_IP": "127.0.0.1"}
        words = ["controller", "--kubeconfig", str(self.kubeconfig), "--agents", "127.0.0.1:0", *options]
        settings = self.folder / f"{name}.yaml"
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings"}
        # Tests of other things break as many nodes in one way as they like.
        fleet = {"causeNodes": 100_000, **self.settings.get("fleet", {})}
        state = {"stateDir": str(self.folder / name)}
        settings.write_text(json.dumps({**head, **state, **self.settings, "fleet": fleet}))
        return self.box.start_words(*self.before, SENTINEL, *words, "--settings", str(settings))

    def goes_through(self, proxy: Proxy) -> None:
        """The next controllers reach the API server by it."""
        token = self.plane.token(NAMESPACE, "sentinel-controller")
        self.kubeconfig = kubeconfig(self.folder / "proxied", proxy.url, token)

    def agent(self, name: str, *controllers: Running) -> Node:
        """A node, and its agent with what a DaemonSet's pod there would hold."""
        self.plane.node(name)
        node = self.agent_on(name, *controllers)
        self.started(node)
        return node

    def agent_on(self, name: str, *controllers: Running, **more: str) -> Node:
        """The agent of a node that is there: `started` starts it."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "token").write_text(
            self.plane.node_token(NAMESPACE, "sentinel-agent", name, audience=AUDIENCE)
        )
        self.bundle(folder / "ca.crt")
        own = Box(folder / "box")
        node = Node(own)
        link = {
            "addresses": [f"127.0.0.1:{self.ports[one.pid]}" for one in controllers],
            "node": name,
            "tokenFile": str(folder / "token"),
            "caFile": str(folder / "ca.crt"),
            **more,
        }
        node.settings(listen="127.0.0.1:0", controller=link)
        return node

    def bundle(self, path: Path) -> Path:
        """The certificates by which the controllers are known, written there."""
        made = until(lambda: self.found(f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"))
        path.write_text(made["data"]["ca.crt"])
        return path

    def started(self, node: Node) -> Running:
        agent = node.start()
        self.box._children += node.box._children
        return agent

    def found(self, path: str) -> Any:
        return self.admin.find(path)

    def node(self, name: str) -> dict[str, Any]:
        return self.admin.get(f"{NODES}/{name}")  # type: ignore[no-any-return]

    def taints(self, name: str) -> list[tuple[str, str]]:
        taints = self.node(name)["spec"].get("taints", [])
        return [(taint["key"], taint["effect"]) for taint in taints if "sentinel" in taint["key"]]

    def isolated(self, name: str) -> bool:
        marked = self.taints(name) == [("sentinel.dev/quarantined", "NoSchedule")]
        return marked and self.node(name)["spec"].get("unschedulable", False)

    def records(self, name: str) -> list[dict[str, Any]]:
        found = self.admin.get(QUARANTINES)["items"]
        return [one["spec"] for one in found if one["spec"]["node"] == name]

    def unheard(self) -> int:
        """Of how many nodes no agent has reported to the leader, as its Lease says: seconds late."""
        lease = self.admin.get(LEADER)
        return int(lease["metadata"]["annotations"]["sentinel.dev/unheard"])

    def story(self) -> str:
        return "\n".join(f"--- {one.process.args!r}\n{one.err[-3000:]}" for one in self.box._children)

    def until(self, what: Callable[[], Any]) -> Any:
        return until(what, self.story)


class Page:
    """The page of one controller, as a scraper and a kubelet see it."""

    def __init__(self, controller: Running) -> None:
        controller.said("metrics and health on ")
        self.url = controller.err.partition("metrics and health on ")[2].split()[0]

    def get(self, path: str) -> tuple[int, str]:
        try:
            # Under a name that is not this machine's: a kubelet asks the pod by its address.
            request = urllib.request.Request(self.url + path, headers={"Host": "10.0.0.7:9810"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def numbers(self) -> dict[tuple[str, Labels], float]:
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def number(self, name: str, **labels: str) -> float | None:
        return self.numbers().get((f"sentinel_{name}", tuple(sorted(labels.items()))))
