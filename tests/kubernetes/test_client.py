"""Requests to the real API server, and what networks and overloaded servers make of them."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sentinel.cluster.kubernetes import errors
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.objects import NODES, QUARANTINES, Custom, Node
from sentinel.metrics.registry import Metrics
from sentinel.util.errors import PermanentError
from tests.gate.rights import TO_MOUNT
from tests.kubernetes.conftest import EPOCH, kubeconfig, quarantine, run
from tests.kubernetes.proxy import Fault, Proxy

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane


def name() -> str:
    return f"q-{secrets.token_hex(5)}"


def test_a_node_is_read_to_the_fields_that_are_needed(installed: "ControlPlane", controller: str) -> None:
    node = name()
    installed.node(node, pool="a100")

    async def test() -> None:
        async with await Client.connect(controller) as client:
            found = await client.get(NODES.path(name=node), Node)
            assert found.metadata.labels["pool"] == "a100"
            assert found.metadata.uid
            assert not found.spec.unschedulable

    run(test())


@pytest.mark.usefixtures("epoch")
def test_refusals_say_what_to_do_about_them(controller: str) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            one = name()
            path = QUARANTINES.path()
            made = await client.create(path, quarantine(one, EPOCH), Custom)
            with pytest.raises(errors.AlreadyExists):
                await client.create(path, quarantine(one, EPOCH), Custom)
            with pytest.raises(errors.NotFound):
                await client.get(QUARANTINES.path(name="none"), Custom)
            with pytest.raises(errors.Conflict):
                await client.patch(QUARANTINES.path(name=one), {"metadata": {"resourceVersion": "1"}}, Custom)
            with pytest.raises(errors.Conflict):
                await client.delete(QUARANTINES.path(name=one), uid="another")
            with pytest.raises(errors.Refused, match="state"):
                await client.patch(QUARANTINES.path(name=one), {"spec": {"state": "odd"}}, Custom)
            with pytest.raises(errors.Superseded):
                await client.create(path, quarantine(name(), EPOCH - 1), Custom)
            with pytest.raises(errors.Forbidden):
                await client.get("/api/v1/secrets", Custom)
            await client.delete(QUARANTINES.path(name=one), uid=made.metadata.uid)
            await client.delete(QUARANTINES.path(name=one), uid=made.metadata.uid)

    run(test())


def test_requests_are_counted_by_their_outcome(controller: str) -> None:
    async def test() -> None:
        metrics = Metrics()
        async with await Client.connect(controller, metrics=metrics) as client:
            await client.call("GET", NODES.path())
            with pytest.raises(errors.NotFound):
                await client.get(NODES.path(name="none"), Node)
        text = metrics.render()
        assert b'sentinel_api_request_seconds_count{method="GET",outcome="ok"} 1' in text
        assert b'sentinel_api_request_seconds_count{method="GET",outcome="NotFound"} 1' in text

    run(test())


def test_a_server_that_is_not_there_was_sent_nothing(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:9", "token")

    async def test() -> None:
        async with await Client.connect(str(config)) as client:
            with pytest.raises(errors.Unavailable):
                await client.create(QUARANTINES.path(), quarantine("a", EPOCH), Custom)

    run(test())


@pytest.mark.parametrize(
    ("fault", "reading", "writing", "delay_s"),
    [
        (Fault(answer=429, headers={"Retry-After": "7"}), errors.Unavailable, errors.Unavailable, 7.0),
        (Fault(answer=503), errors.Unavailable, errors.Unavailable, 1.0),
        (Fault(answer=500), errors.Unavailable, errors.Unanswered, 1.0),
        (
            Fault(answer=504, body=json.dumps({"details": {"retryAfterSeconds": 3}})),
            errors.Unavailable,
            errors.Unanswered,
            3.0,
        ),
        (Fault(answer=410), errors.Expired, errors.Expired, 0.0),
        (Fault(answer=502, body="<html>a proxy's page</html>"), errors.Unavailable, errors.Unanswered, 1.0),
        (Fault(hang=True), errors.Unavailable, errors.Unanswered, 1.0),
    ],
    ids=lambda one: str(getattr(one, "answer", None) or getattr(one, "hang", None) or one),
)
def test_a_write_is_only_repeated_blindly_where_it_was_surely_not_done(
    proxy: Proxy,
    behind_proxy: str,
    fault: Fault,
    reading: type[errors.TemporaryError],
    writing: type[errors.TemporaryError],
    delay_s: float,
) -> None:
    async def test() -> None:
        async with await Client.connect(behind_proxy) as client:
            fault.times = 2
            proxy.faults = [fault]
            with pytest.raises(reading) as read:
                await client.call("GET", QUARANTINES.path(), deadline_s=1.0)
            with pytest.raises(writing) as written:
                await client.call("POST", QUARANTINES.path(), quarantine(name(), EPOCH), deadline_s=1.0)
            assert read.value.delay_s == written.value.delay_s == delay_s
            await client.call("GET", QUARANTINES.path())

    run(test())


@pytest.mark.usefixtures("epoch")
def test_a_write_whose_answer_was_lost_is_told_as_open(proxy: Proxy, behind_proxy: str, admin: "Api") -> None:
    async def test() -> None:
        async with await Client.connect(behind_proxy) as client:
            one = name()
            proxy.faults = [Fault(method="POST", lose_reply=True)]
            with pytest.raises(errors.Unanswered):
                await client.create(QUARANTINES.path(), quarantine(one, EPOCH), Custom)
            assert admin.find(QUARANTINES.path(name=one)), "it was written all the same"

    run(test())


def test_a_bad_answer_is_no_crash(proxy: Proxy, behind_proxy: str) -> None:
    async def test() -> None:
        async with await Client.connect(behind_proxy) as client:
            proxy.faults = [Fault(answer=200, body="{half")]
            with pytest.raises(errors.Unavailable, match="cannot be read"):
                await client.get(QUARANTINES.path(name="a"), Custom)

    run(test())


def test_a_token_that_expired_is_read_again(
    installed: "ControlPlane", controller_token: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    kubeconfig(config, installed.url, "old", installed.identities.ca)

    async def test() -> None:
        async with await Client.connect(str(config)) as client:
            with pytest.raises(errors.Forbidden):
                await client.call("GET", NODES.path())
        kubeconfig(config, installed.url, "old", installed.identities.ca)
        async with await Client.connect(str(config)) as client:
            kubeconfig(config, installed.url, controller_token, installed.identities.ca)
            await asyncio.gather(*[client.call("GET", NODES.path()) for _ in range(5)])

    run(test())


def test_certificates_and_plug_ins_of_a_kubeconfig_are_used(
    installed: "ControlPlane", controller_token: str, tmp_path: Path
) -> None:
    certificate = installed.user_kubeconfig("somebody")
    plug_in = tmp_path / "login"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": controller_token},
    }
    plug_in.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plug_in.chmod(0o755)
    config = kubeconfig(tmp_path / "config", installed.url, "", installed.identities.ca)
    document = json.loads(config.read_text())
    login = {"command": str(plug_in), "apiVersion": "client.authentication.k8s.io/v1"}
    document["users"][0]["user"] = {"exec": login}
    config.write_text(json.dumps(document))

    async def test() -> None:
        async with await Client.connect(str(certificate)) as client:
            with pytest.raises(errors.Forbidden, match="somebody"):
                await client.call("GET", NODES.path())
        async with await Client.connect(str(config)) as client:
            await client.call("GET", NODES.path())

    run(test())


@pytest.mark.parametrize("text", ["", "{", "kind: Config", '{"current-context": "x", "contexts": []}'])
def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)

    async def test() -> None:
        with pytest.raises(PermanentError, match="kubeconfig"):
            await Client.connect(str(path))

    run(test())


def test_a_kubeconfig_that_is_not_there_is_told_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = kubeconfig(tmp_path / "config", "http://127.0.0.1:9", "token")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def url(named: str = "") -> str:
        async with await Client.connect(named) as client:
            return client.url

    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{there}")
    assert asyncio.run(url()) == "http://127.0.0.1:9"
    with pytest.raises(PermanentError, match=f"there is no kubeconfig at {tmp_path}/one"):
        asyncio.run(url(f"{tmp_path}/one"))
    monkeypatch.setenv("KUBECONFIG", "")  # as if it were not set
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(PermanentError, match=f"there is no kubeconfig at {tmp_path}/.kube/config"):
        asyncio.run(url())


IN_POD = """
import asyncio
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.objects import NODES
async def main():
    async with await Client.connect() as client:
        await client.call("GET", NODES.path())
        print("read as the service account")
asyncio.run(main())
"""


def test_in_a_pod_the_service_account_is_used(
    installed: "ControlPlane", controller_token: str, tmp_path: Path
) -> None:
    """The files stand where a kubelet mounts them, in a mount namespace of the test's own."""
    (tmp_path / "token").write_text(controller_token)
    (tmp_path / "ca.crt").write_text(installed.identities.ca.read_text())
    host, port = installed.url.removeprefix("https://").rsplit(":", 1)
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f"mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount && "
        f"cp {tmp_path}/token {tmp_path}/ca.crt {place}/ && exec {sys.executable} -c '{IN_POD}'"
    )
    environment = {**os.environ, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    environment.pop("KUBECONFIG", None)
    done = subprocess.run(
        ["unshare", *TO_MOUNT, "sh", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "read as the service account" in done.stdout, done.stderr
