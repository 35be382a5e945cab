"""The control plane answers as a production one does, and can be broken as one breaks."""

import os
import signal

import pytest

from tests.rig.api import Api, ApiError
from tests.rig.binaries import KUBERNETES
from tests.rig.control_plane import ISSUER, ControlPlane
from tests.rig.fixtures import BROKEN, pytest_runtest_setup, shared
from tests.rig.processes import Rig, RigError, until


def review(api: Api, token: str, *audiences: str) -> dict[str, object]:
    spec = {"token": token, "audiences": list(audiences)}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    status: dict[str, object] = api.create({**body, "metadata": {}})["status"]
    return status


def test_the_api_server_answers_in_its_pinned_version(control_plane: ControlPlane) -> None:
    assert control_plane.admin.get("/version")["gitVersion"] == KUBERNETES


def test_nobody_is_served_without_a_name(control_plane: ControlPlane) -> None:
    with pytest.raises(ApiError, match="Unauthorized"):
        control_plane.admin.with_token("").get("/version")


def test_a_bound_token_is_reviewed_as_its_service_account_on_its_node(control_plane: ControlPlane) -> None:
    space = control_plane.namespace()
    control_plane.node(f"{space}-n1")
    token = control_plane.node_token(space, "agent", f"{space}-n1", audience="sentinel")
    status = review(control_plane.admin, token, "sentinel")
    assert status["authenticated"] is True
    user = status["user"]
    assert isinstance(user, dict)
    assert user["username"] == f"system:serviceaccount:{space}:agent"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == [f"{space}-n1"]
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == [f"agent-{space}-n1"]
    assert not review(control_plane.admin, token, "somebody else").get("authenticated")
    assert control_plane.admin.get("/.well-known/openid-configuration")["issuer"] == ISSUER


def test_a_user_may_do_what_its_rules_say_and_no_more(control_plane: ControlPlane) -> None:
    space = control_plane.namespace()
    control_plane.service_account(space, "reader")
    control_plane.admin.apply(
        f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: reader}}
rules:
- {{apiGroups: [""], resources: [pods], verbs: [get, list]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: reader}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}}
subjects: [{{kind: ServiceAccount, name: reader, namespace: {space}}}]
""",
        namespace=space,
    )
    reader = control_plane.admin.with_token(control_plane.token(space, "reader"))
    until(lambda: allowed(reader, f"/api/v1/namespaces/{space}/pods"), "the rule did not come into force")
    assert not allowed(reader, "/api/v1/nodes")
    assert not allowed(control_plane.user("somebody"), "/api/v1/nodes")


def allowed(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except ApiError as e:
        if e.status != 403:
            raise
        return False
    return True


def test_a_kubelet_may_write_its_own_node_only(control_plane: ControlPlane) -> None:
    control_plane.node("own-node")
    control_plane.node("other-node")
    kubelet = control_plane.user("system:node:own-node", "system:nodes")
    change = {"metadata": {"annotations": {"example.com/x": "y"}}}
    kubelet.patch("/api/v1/nodes/own-node", change)
    with pytest.raises(ApiError, match="not allowed to modify node"):
        kubelet.patch("/api/v1/nodes/other-node", change)


def test_the_scheduler_binds_pods_and_the_controllers_make_them(control_plane: ControlPlane) -> None:
    space = control_plane.namespace()
    admin = control_plane.admin
    control_plane.node(f"{space}-n1", pool=space)
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "made by hand"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
    admin.patch(f"/api/v1/nodes/{space}-n1/status", {"status": status})
    admin.apply(
        f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {{pool: {space}}}
      tolerations: [{{operator: Exists}}]
      containers: [{{name: main, image: rig/busybox}}]
""",
        namespace=space,
    )

    def bound() -> bool:
        pods = admin.items(f"/api/v1/namespaces/{space}/pods")
        return [pod["spec"].get("nodeName") for pod in pods] == [f"{space}-n1"]

    until(bound, control_plane.rig.story)


def test_a_frozen_api_server_answers_late_and_a_restarted_one_knows_everything(
    control_plane: ControlPlane,
) -> None:
    space, admin = control_plane.namespace(), control_plane.admin
    control_plane.api_server.freeze()
    try:
        with pytest.raises(TimeoutError):
            admin.call("GET", f"/api/v1/namespaces/{space}", timeout_s=0.5)
    finally:
        control_plane.api_server.thaw()
    control_plane.wait_ready()
    control_plane.api_server.kill()
    with pytest.raises(ConnectionRefusedError):
        admin.get(f"/api/v1/namespaces/{space}")
    control_plane.api_server.start()
    control_plane.wait_ready()
    assert admin.get(f"/api/v1/namespaces/{space}")["metadata"]["name"] == space


def test_a_watch_from_before_a_compaction_gets_410_once_the_api_server_forgot_too(
    control_plane: ControlPlane,
) -> None:
    space, admin = control_plane.namespace(), control_plane.admin
    path = f"/api/v1/namespaces/{space}/configmaps"
    old = admin.get(path)["metadata"]["resourceVersion"]
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made", "namespace": space}}
    new = admin.create(made)["metadata"]["resourceVersion"]
    assert control_plane.compact_etcd() >= int(new)
    seen = [(e["type"], e["object"]["metadata"]["name"]) for e in admin.watch(path, old)]
    assert ("ADDED", "made") in seen  # that of a certificate may come as late
    control_plane.api_server.kill()
    control_plane.api_server.start()
    control_plane.wait_ready()
    assert [(e["type"], e["object"]["code"]) for e in admin.watch(path, old)] == [("ERROR", 410)]


def test_a_rig_whose_warden_was_killed_still_leaves_nothing() -> None:
    with Rig() as rig:
        daemon = rig.daemon("sleeper", "sh", "-c", "sleep 1000 & sleep 1000")
        until(lambda: len(rig.processes()) == 3, "the children did not start")
        os.kill(rig.warden_pid, signal.SIGKILL)
    assert not daemon.running
    assert not rig.processes()
    assert not rig.folder.exists()


def test_a_program_that_ends_at_once_is_told_with_its_log() -> None:
    with Rig() as rig, pytest.raises(RigError, match=r"(?s)bad ended .*ended with 3.*no such flag"):
        rig.daemon("bad", "sh", "-c", "echo no such flag; exit 3").wait(lambda: False)


def test_what_a_test_has_broken_is_mended_for_the_next_one_and_loses_nothing(
    control_plane: ControlPlane,
) -> None:
    space, scheduler = control_plane.namespace(), control_plane.scheduler
    assert scheduler is not None
    assert control_plane.mend() == ""
    control_plane.etcd.kill()
    control_plane.api_server.kill()
    scheduler.freeze()
    told = control_plane.mend()
    assert told.startswith("kube-scheduler stood still\n--- etcd (ended with -9)")
    assert "--- kube-apiserver (ended with -9)" in told
    assert not scheduler.frozen
    assert control_plane.admin.get(f"/api/v1/namespaces/{space}")["metadata"]["name"] == space
    assert control_plane.mend() == ""


class Broken:
    """Comes up again so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def mend(self) -> str:
        self.times -= 1
        if self.times < 0:
            raise RigError("no port")
        return "etcd ended"


def test_what_cannot_be_mended_ends_the_run_instead_of_failing_all_tests(
    request: pytest.FixtureRequest,
) -> None:
    item = request.node
    with shared(Broken(1)):
        with pytest.warns(pytest.PytestWarning, match="Broken was broken and is mended:\netcd ended"):
            pytest_runtest_setup(item)
        with pytest.raises(pytest.exit.Exception, match=r"Broken is broken before .*: no port") as ended:
            pytest_runtest_setup(item)
    assert ended.value.returncode == BROKEN
