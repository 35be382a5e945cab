"""An agent of the chart with `agent.privileged: false` in the place of the one of a real node."""

import json
from typing import TYPE_CHECKING, NamedTuple, Self

import yaml

from scripts import chart
from sentinel.checks.table import CHECKS
from tests.kubernetes.conftest import NAMESPACE

if TYPE_CHECKING:
    from tests.kubernetes.real_cluster import Cluster
    from tests.rig.node import Node

OFF = "sentinel.dev/agent"  # a node with this label has no agent of the DaemonSet


class BareAgent:
    """`capabilities`: those of the chart where none are said."""

    def __init__(self, cluster: "Cluster", node: "Node", capabilities: list[str] | None = None) -> None:
        self._cluster, self._node, self._admin = cluster, node, cluster.admin
        self._label("off")
        cluster.until(lambda: cluster.sentinel.agent_on(node.name) is None)
        options = ["--set=agent.privileged=false"]
        if capabilities is not None:
            options += [f"--set-json=agent.capabilities={json.dumps(capabilities)}"]
        made = yaml.safe_load_all(chart.rendered("agent.yaml", *options))
        template = next(one for one in made if one["kind"] == "DaemonSet")["spec"]["template"]
        spec = {**template["spec"], "nodeName": node.name, "affinity": None}
        labels = {"app.kubernetes.io/component": "agent"}
        meta = {"name": "bare-agent", "namespace": NAMESPACE, "labels": labels}
        self.pod = self._admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/bare-agent"
        cluster.until(lambda: self._admin.get(path)["status"]["phase"] == "Running")
        cluster.sentinel.wait(node)

    @property
    def log(self) -> str:
        return self._cluster.sentinel.log(self.pod)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The node has the agent of the DaemonSet again."""
        self._admin.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/bare-agent")
        self._cluster.until(lambda: self._cluster.sentinel.agent_on(self._node.name) is None)
        self._label(None)
        self._cluster.sentinel.wait(self._node)

    def _label(self, value: str | None) -> None:
        self._admin.patch(f"/api/v1/nodes/{self._node.name}", {"metadata": {"labels": {OFF: value}}})


class Seen(NamedTuple):
    unknown: dict[str, str]  # check -> why
    findings: set[tuple[str, str]]  # (entity, code)


def looked(cluster: "Cluster", node: "Node") -> Seen:
    """What the agent that runs on the node has seen, when all its checks have looked."""

    def seen() -> Seen | None:
        said = node.run("busybox", "wget", "-qO-", "http://127.0.0.1:9810/findings", check=False).stdout
        told = json.loads(said or "{}")
        checks = {one["check"]: one for one in told.get("checks", ())}
        if not checks.keys() >= {row.name for row in CHECKS}:
            return None
        unknown = {name: one["detail"] for name, one in checks.items() if one["state"] == "unknown"}
        return Seen(unknown, {(one["entity"], one["code"]) for one in told["findings"]})

    return cluster.until(seen)  # type: ignore[no-any-return]
