"""What `deploy/` ships: an API server takes it, and nobody may do more than it says."""

import itertools
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
    ours = admin.with_token(admin.token)  # its warnings are those of this test alone
    for manifest in manifests(pattern):
        path = ours.path_of(manifest)
        query = "dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"
        ours.call("PATCH", f"{path}?{query}", manifest, kind="application/apply-patch+yaml")
    assert ours.warnings == []


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


# Group, resources, verbs and names, with spaces between; no names: all of them.
Rule = tuple[str, str, str, str]
EVERYWHERE: list[Rule] = [
    ("", "nodes", "get list watch patch", ""),
    ("", "nodes/status", "patch", ""),
    ("", "pods", "get list watch delete", ""),
    ("", "pods/eviction", "create", ""),
    ("", "namespaces", "list watch", ""),
    ("", "events", "list", ""),
    ("events.k8s.io", "events", "create patch", ""),
    ("batch", "jobs/status", "patch", ""),
    ("batch.volcano.sh", "jobs/status", "patch", ""),
    ("bus.volcano.sh", "commands", "create", ""),
    ("kueue.x-k8s.io", "workloads", "get list patch", ""),
    ("scheduling.volcano.sh", "podgroups", "get", ""),
    ("sentinel.dev", "jobpolicies", "list watch", ""),
    ("sentinel.dev", "protectedjobs incidents quarantines", "get list watch create patch delete", ""),
    ("sentinel.dev", "jobpolicies/status protectedjobs/status", "patch", ""),
    ("sentinel.dev", "incidents/status quarantines/status", "patch", ""),
    ("authentication.k8s.io", "tokenreviews", "create", ""),
    ("authorization.k8s.io", "subjectaccessreviews", "create", ""),
    *((row.group, row.plural, "get list watch patch", "") for row in job_table().followed),
]
BESIDES: dict[str, list[Rule]] = {
    "default": [],
    "kube-system": [],
    "kube-node-lease": [("coordination.k8s.io", "leases", "list watch", "")],
    NAMESPACE: [
        ("coordination.k8s.io", "leases", "get patch", "sentinel-controller"),
        ("coordination.k8s.io", "leases", "create", ""),
        ("", "secrets", "get patch", "sentinel-controller-tls"),
        ("", "configmaps", "get patch", "sentinel-ca"),
        ("", "configmaps", "list watch patch delete", "sentinel-pause sentinel-codes"),
        ("", "secrets configmaps", "create", ""),
    ],
}


def single(
    groups: list[str], resources: list[str], verbs: list[str], names: list[str]
) -> set[tuple[str, ...]]:
    """One verb on one resource each: how rules are put together does not matter."""
    return set(itertools.product(groups, resources, verbs, names or [""]))


def rights(rules: Any) -> set[tuple[str, ...]]:
    fields = ("apiGroups", "resources", "verbs", "resourceNames")
    return {right for rule in rules for right in single(*(rule.get(field, []) for field in fields))}


@pytest.mark.parametrize("namespace", BESIDES)
def test_the_controller_may_do_what_is_listed_here_and_no_more(
    installed: "ControlPlane", namespace: str
) -> None:
    installed.service_account(NAMESPACE, "nobody")
    nobody = rules_of(installed, "nobody", namespace)
    listed = {
        right
        for group, *rest in (*EVERYWHERE, *BESIDES[namespace])
        for right in single([group], *(words.split() for words in rest))
    }

    def more() -> set[tuple[str, ...]]:
        ours = rules_of(installed, "sentinel-controller", namespace)
        assert sorted(map(str, ours["nonResourceRules"])) == sorted(map(str, nobody["nonResourceRules"]))
        return rights(ours["resourceRules"]) - rights(nobody["resourceRules"])

    # Just after they are applied roles and bindings come into force one by one.
    until(lambda: listed <= more(), lambda: f"it may not: {listed - more()}")
    assert more() == listed


FORBIDDEN = [
    ("DELETE", "/api/v1/nodes/x"),
    ("POST", "/api/v1/nodes"),
    ("POST", "/api/v1/namespaces/default/pods"),
    ("PATCH", "/api/v1/namespaces/default/pods/x"),
    ("DELETE", "/api/v1/namespaces/default/pods"),
    *(
        (method, f"/api/v1/namespaces/default/pods/x/{way_in}")
        for way_in in ("exec", "attach", "portforward")
        for method in ("POST", "GET")
    ),
    ("PATCH", "/api/v1/namespaces/default/pods/x/ephemeralcontainers"),
    ("POST", "/api/v1/namespaces/default/serviceaccounts/x/token"),
    ("GET", "/api/v1/nodes/x/proxy/"),
    ("DELETE", "/api/v1/namespaces/x"),
    ("POST", "/apis/batch/v1/namespaces/default/jobs"),
    ("DELETE", "/apis/batch/v1/namespaces/default/jobs/x"),
    ("GET", "/api/v1/secrets"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/other"),
    ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/secrets/other"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/other"),
    ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/configmaps/other"),
    ("GET", "/apis/coordination.k8s.io/v1/leases"),
    ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/x"),
    ("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/other"),
    ("PATCH", "/apis/sentinel.dev/v1alpha1/namespaces/default/jobpolicies/x"),
    ("DELETE", "/apis/sentinel.dev/v1alpha1/namespaces/default/jobpolicies/x"),
    ("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/quarantines.sentinel.dev"),
    ("PATCH", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/sentinel-epoch-nodes"),
    ("PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/sentinel-controller"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
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


@pytest.mark.parametrize("user", ["admin", f"system:serviceaccount:{NAMESPACE}:sentinel-agent"])
def test_the_controller_may_not_speak_as_somebody_else(
    installed: "ControlPlane", controller_token: str, user: str
) -> None:
    from tests.rig.api import ApiError

    us = installed.admin.with_token(controller_token)
    with pytest.raises(ApiError, match="cannot impersonate") as refused:
        us.call("GET", "/api/v1/nodes?limit=1", headers={"Impersonate-User": user})
    assert refused.value.status == 403


def test_the_controllers_pods_keep_to_the_strictest_pod_security_and_the_agents_cannot(
    installed: "ControlPlane",
) -> None:
    from tests.rig.api import ApiError

    space = f"restricted-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    installed.admin.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": labels}}
    )

    def made(part: str) -> Any:
        (owner,) = (one for one in manifests(f"{part}.yaml") if one["kind"] in ("Deployment", "DaemonSet"))
        template = owner["spec"]["template"]
        installed.service_account(space, template["spec"]["serviceAccountName"])
        pod = {**template, "metadata": {**template["metadata"], "name": part}}
        path = f"/api/v1/namespaces/{space}/pods?dryRun=All"
        return installed.admin.call("POST", path, {"apiVersion": "v1", "kind": "Pod", **pod})

    assert made("controller")["spec"]["serviceAccountName"] == "sentinel-controller"
    with pytest.raises(ApiError, match=r'violates PodSecurity "restricted:.*\.privileged=true') as refused:
        made("agent")
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
