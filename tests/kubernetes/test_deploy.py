"""What `deploy/` ships: an API server takes it, and nobody may do more than it says."""

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from sentinel.config.load import load_settings
from sentinel.rules.job_kinds import job_table
from tests.kubernetes.conftest import LEADER, NAMESPACE, manifests, quarantine
from tests.waits import until

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

REPO = Path(__file__).parents[2]


def test_the_controller_may_read_every_kind_of_jobs_in_the_table() -> None:
    roles = [one for one in manifests("rbac.yaml") if one["kind"] == "ClusterRole"]
    read = {
        (group, resource)
        for role in roles
        for rule in role["rules"]
        if {"list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert {(row.group, row.plural) for row in job_table().followed} <= read


@pytest.mark.parametrize("pattern", ["crds/*.yaml", "*.yaml"])
def test_an_api_server_takes_every_manifest_without_a_warning(admin: "Api", pattern: str) -> None:
    for manifest in manifests(pattern):
        path = admin.path_of(manifest)
        query = "dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"
        admin.call("PATCH", f"{path}?{query}", manifest, kind="application/apply-patch+yaml")


@pytest.fixture
def monitored(admin: "Api") -> "Iterator[Api]":
    """Where the Prometheus operator's kinds are served."""
    from tests.rig.binaries import PROMETHEUS_OPERATOR, prometheus_operator
    from tests.rig.operators.base import is_true

    definitions = json.loads(prometheus_operator().path(PROMETHEUS_OPERATOR).read_text())
    admin.apply(definitions)
    paths = [admin.path_of(one) for one in definitions]
    until(lambda: all(is_true(admin.get(path), "Established") for path in paths))
    yield admin
    for path in paths:
        admin.delete(path)


def test_the_kinds_of_the_prometheus_operator_take_what_is_shipped_for_it(monitored: "Api") -> None:
    from tests.rig.api import ApiError

    query = "dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"

    def applied(manifest: Any) -> Any:
        path = f"{monitored.path_of(manifest)}?{query}"
        return monitored.call("PATCH", path, manifest, kind="application/apply-patch+yaml")

    rules = yaml.safe_load((REPO / "rules/prometheus/prometheusrule.yaml").read_text())
    (pods,) = manifests("optional/podmonitor.yaml")
    assert applied(rules)["spec"] == rules["spec"]
    assert applied(pods)["spec"] == pods["spec"]
    alert = next(one for group in rules["spec"]["groups"] for one in group["rules"] if "alert" in one)
    alert["for"] = "a while"
    with pytest.raises(ApiError, match=r"rules\[\d+\]\.for"):
        applied(rules)


def test_the_settings_that_are_shipped_are_valid() -> None:
    shipped = [one["data"]["settings.yaml"] for one in manifests("*.yaml") if one["kind"] == "ConfigMap"]
    assert len(shipped) == 2
    for text in shipped:
        assert str(load_settings(text).state_path) == "/var/lib/sentinel"


def rules_of(installed: "ControlPlane", account: str, namespace: str) -> Any:
    """What the API server itself says that this account may do in this namespace."""
    us = installed.admin.with_token(installed.token(NAMESPACE, account))
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    return us.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)["status"]


@pytest.mark.parametrize("namespace", ["default", "kube-system", "kube-node-lease", NAMESPACE])
def test_the_agent_may_do_nothing_that_not_everybody_may(installed: "ControlPlane", namespace: str) -> None:
    installed.service_account(NAMESPACE, "nobody")
    agent = rules_of(installed, "sentinel-agent", namespace)
    nobody = rules_of(installed, "nobody", namespace)
    for rules in ("resourceRules", "nonResourceRules"):
        assert sorted(map(str, agent[rules])) == sorted(map(str, nobody[rules]))


FORBIDDEN = [
    ("DELETE", "/api/v1/nodes/x"),
    ("POST", "/api/v1/nodes"),
    ("POST", "/api/v1/namespaces/default/pods"),
    ("PATCH", "/api/v1/namespaces/default/pods/x"),
    ("DELETE", "/api/v1/namespaces/default/pods"),
    ("GET", "/api/v1/secrets"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/other"),
    ("GET", "/apis/coordination.k8s.io/v1/leases"),
    ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/x"),
    ("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/other"),
    ("PATCH", "/apis/sentinel.dev/v1alpha1/namespaces/default/jobpolicies/x"),
    ("DELETE", "/apis/sentinel.dev/v1alpha1/namespaces/default/jobpolicies/x"),
    ("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/quarantines.sentinel.dev"),
    ("PATCH", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/sentinel-epoch-nodes"),
    ("PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/sentinel-controller"),
]


@pytest.mark.parametrize(("method", "path"), FORBIDDEN)
def test_the_controller_may_not(
    installed: "ControlPlane", controller_token: str, method: str, path: str
) -> None:
    from tests.rig.api import ApiError

    body: Any = {} if method in ("POST", "PATCH") else None
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError, match="cannot") as refused:
        installed.admin.with_token(controller_token).call(method, path, body, kind=kind)
    assert refused.value.status == 403


@pytest.mark.parametrize("led", [True, False], ids=["while one leads", "without a Lease"])
def test_only_the_controllers_are_bound_by_the_epoch(admin: "Api", epoch: int, led: bool) -> None:
    """Kubelets, people and other tools write nodes and records as before."""
    if not led:
        admin.delete(LEADER)
    name = f"n-{secrets.token_hex(4)}"
    admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    admin.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": {"cpu": "1"}}})
    admin.create(quarantine(name, 1))
    admin.patch(f"/apis/sentinel.dev/v1alpha1/quarantines/{name}", {"spec": {"by": "jane"}})
    admin.delete(f"/apis/sentinel.dev/v1alpha1/quarantines/{name}")
    admin.delete(f"/api/v1/nodes/{name}")


def test_the_agents_token_and_the_authorities_are_where_the_manifest_says() -> None:
    """The names that both sides must have alike."""
    agent = (REPO / "deploy/agent.yaml").read_text()
    assert re.search(r"audience: sentinel-controller\b", agent)
    assert "name: sentinel-ca " in agent
    assert "NoExecute" not in agent
