"""A new version of the custom resources comes, and the old one can go: in an API server of the test's own."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.migrate import migrate
from tests.kubernetes.conftest import manifests, quarantine, run
from tests.rig.api import ApiError
from tests.rig.control_plane import ControlPlane
from tests.rig.processes import Rig, until

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/quarantines.sentinel.dev"
OLD, NEW = "v1alpha1", "v1alpha2"


def listed(plane: ControlPlane, version: str) -> list[dict[str, Any]] | None:
    """None: it is not served, or is being set up or taken down."""
    try:
        return plane.admin.items(f"/apis/sentinel.dev/{version}/quarantines")
    except ApiError as e:
        if e.status not in (404, 429):
            raise
        return None


def test_records_are_stored_anew_and_the_old_version_can_go(tmp_path: Path) -> None:
    with Rig() as rig:
        plane = ControlPlane(rig, controllers=False, scheduler=False)
        admin = plane.admin
        admin.apply(manifests("crds/*.yaml"))
        until(lambda: listed(plane, OLD) is not None, "not served")
        specs = {}
        for name in ("a-0001", "b-0001", "c-0001"):
            body = quarantine(name, 1)
            body["spec"]["future"] = {"kept": [1]}
            specs[name] = admin.create(body)["spec"]

        definition = next(
            one for one in manifests("crds/*.yaml") if one["spec"]["names"]["kind"] == "Quarantine"
        )
        (old,) = definition["spec"]["versions"]
        new = {**copy.deepcopy(old), "name": NEW}
        definition["spec"]["versions"] = [{**old, "storage": False}, new]
        admin.apply([definition])
        until(lambda: listed(plane, NEW), "the new version is not served")
        assert admin.get(CRD)["status"]["storedVersions"] == [OLD, NEW]

        async def test() -> None:
            async with await Client.connect(str(plane.kubeconfig)) as client:
                assert await migrate(client, "quarantines", namespaced=False) == 3
                assert await migrate(client, "quarantines", namespaced=False) == 0

        run(test())
        assert admin.get(CRD)["status"]["storedVersions"] == [NEW]
        definition["spec"]["versions"] = [new]
        admin.apply([definition])
        until(lambda: listed(plane, OLD) is None, "the old version is still served")
        found = until(lambda: listed(plane, NEW), "the new version is not served")
        assert {one["metadata"]["name"]: one["spec"] for one in found or ()} == specs

        command = [sys.executable, "-m", "sentinel.cluster.kubernetes.migrate", str(plane.kubeconfig)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        assert "quarantines: 0 rewritten" in done.stdout
        command[-1] = str(tmp_path / "none")
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 1
        assert "kubeconfig" in done.stderr
