"""The custom resources, as an API server understands them."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from msgspec import Struct

from sentinel.config import crds
from sentinel.config.load import load_policies
from sentinel.core.fleet.model import NodeQuarantine
from sentinel.core.model import Incident, StoredJob
from sentinel.settings import Settings
from sentinel.util.documents import from_document, to_document
from tests.kubernetes.conftest import space_of
from tests.kubernetes.people import Person, bind
from tests.kubernetes.records import records
from tests.waits import until

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

REPO = Path(__file__).parents[2]


def policy(namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": f"policy-{secrets.token_hex(4)}", "namespace": namespace}
    return {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy", "metadata": meta, "spec": spec}


@pytest.fixture(scope="module")
def namespace(installed: "ControlPlane") -> Iterator[str]:
    with space_of(installed, "crds") as made:
        yield made
    installed.admin.delete(
        "/apis/sentinel.dev/v1alpha1/quarantines"
    )  # whoever reads them next reads none of these


def test_every_definition_is_accepted_as_structural(admin: "Api") -> None:
    for plural in crds.definitions():
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.sentinel.dev"
        conditions = {one["type"]: one["status"] for one in admin.get(path)["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


def test_a_person_reads_them_with_kubectl(installed: "ControlPlane", namespace: str) -> None:
    name = f"reads-{secrets.token_hex(4)}"
    person = Person(installed, name, bind(installed, name, "sentinel-reader"))
    for short, field in (
        ("jp", "spec.hang"),
        ("pj", "spec.state"),
        ("inc", "spec.verdict"),
        ("quar", "spec.needs"),
    ):
        words = (
            "explain",
            f"{short}.{field}",
        )  # the API server tells of new definitions a moment after it serves them
        until(
            lambda words=words: person.kubectl(*words).returncode == 0,
            lambda words=words: person.kubectl(*words).stderr,
        )
        told = person.did(*words)
        assert "DESCRIPTION" in told
        assert "<empty>" not in told
        assert person.kubectl("-n", namespace, "get", short).returncode == 0


PROOF = {"proof": {"logPattern": "saved"}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"resume": {}, "restart": {}}, "either resume or restart, not both"),
        ({"elastic": {}}, "resume beside elastic"),
        ({"nanLoss": {"action": "RestartAndAlert"}}, "resume beside nanLoss"),
        ({"elastic": {}, "restart": {}}, "resume beside elastic"),
        ({"resume": {"maxResumes": 2, "maxJob": 3}}, "maxJob is at most maxResumes"),
        ({"restart": {"maxRestarts": 2, "maxInfrastructure": 3}}, "maxInfrastructure is at most maxRestarts"),
        ({"resume": {"checkpoint": {"ifUnproved": "move"}}}, "a proof beside ifUnproved"),
        ({"resume": {"checkpoint": {"proof": {}}}}, "exactly one of logPattern, fileAppears, fileGone"),
        (
            {"resume": {"checkpoint": {"proof": {"logPattern": "a", "fileGone": "b"}}}},
            "exactly one of logPattern, fileAppears, fileGone",
        ),
        ({"lostNode": {}}, "exactly one of forceAfter, selfFence"),
        ({"lostNode": {"forceAfter": "10m", "selfFence": "5m"}}, "exactly one of forceAfter, selfFence"),
        ({"performance": {"minHardwareRatio": 0.9, "maxHardwareRatio": 0.3}}, "minHardwareRatio is less"),
        ({"performance": {"onlyIfGrown": 1.2}}, "maxHardwareRatio beside onlyIfGrown"),
        ({"resume": {}, "performance": {"action": "RescheduleAndAlert"}}, "they have no default"),
        (
            {"performance": {"action": "RescheduleAndAlert", "maxHardwareRatio": 0.9}},
            "resume beside RescheduleAndAlert",
        ),
        ({"resume": {"gracefulStop": "90"}}, "gracefulStop"),
        ({"resume": {"maxResumes": -1}}, "maxResumes"),
        ({"mode": "dry-run"}, "mode"),
        ({"owner": {"emails": ["nobody"]}}, "emails"),
        ({"owner": {"mails": ["none", "started"]}}, "none alone, or the mails that they get"),
        ({"logRules": [{"id": "a", "pattern": "x", "failure": "f"}] * 2}, "Duplicate"),
        ({"logRules": [{"id": "a", "pattern": "x"}]}, "failure"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(
    admin: "Api", namespace: str, spec: dict[str, Any], said: str
) -> None:
    from tests.rig.api import ApiError

    with pytest.raises(ApiError, match=said) as refused:
        admin.create(policy(namespace, spec))
    assert refused.value.status == 422


@pytest.mark.parametrize(
    "path", sorted((REPO / "examples/policies").glob("*.yaml")), ids=lambda path: path.name
)
def test_a_policy_means_the_same_in_the_cluster_as_in_a_file(
    admin: "Api", namespace: str, path: Path
) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] != "JobPolicy":
            continue
        stored = admin.create(policy(namespace, document["spec"]))["spec"]
        as_stored = yaml.safe_dump({**document, "spec": stored})
        assert load_policies(as_stored) == load_policies(yaml.safe_dump(document))


def test_defaults_are_filled_in_but_for_those_that_administrators_cap(admin: "Api", namespace: str) -> None:
    stored = admin.create(policy(namespace, {"resume": {"checkpoint": PROOF}, "hang": {}}))["spec"]
    assert stored["mode"] == "enforce"
    assert stored["hang"] == {"after": "auto", "action": "RestartAndAlert"}
    assert stored["resume"]["checkpoint"]["timeout"] == "5m"
    assert "maxResumes" not in stored["resume"]
    assert "ifUnproved" not in stored["resume"]["checkpoint"]
    assert load_policies(yaml.safe_dump(policy("x", stored)), Settings())[0].resume is not None


RECORDS = {"protectedjobs": StoredJob, "incidents": Incident, "quarantines": NodeQuarantine}
KINDS = {
    "protectedjobs": "ProtectedJob",
    "incidents": "Incident",
    "quarantines": "Quarantine",
    "jobpolicies": "JobPolicy",
}


def stored(api: "Api", namespace: str, plural: str, spec: dict[str, Any]) -> dict[str, Any]:
    scope = "" if plural == "quarantines" else f"/namespaces/{namespace}"
    meta = {"name": f"a-{secrets.token_hex(6)}"}
    body = {"apiVersion": "sentinel.dev/v1alpha1", "kind": KINDS[plural], "metadata": meta, "spec": spec}
    found: dict[str, Any] = api.call("POST", f"/apis/sentinel.dev/v1alpha1{scope}/{plural}", body)
    return found


@pytest.mark.parametrize("plural", RECORDS)
def test_any_record_comes_back_from_the_api_server(admin: "Api", namespace: str, plural: str) -> None:
    record: type[Struct] = RECORDS[plural]

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(records(record))
    def holds(one: Struct) -> None:
        assert from_document(record, stored(admin, namespace, plural, to_document(one))["spec"]) == one

    holds()


def test_what_a_newer_controller_writes_is_not_pruned(admin: "Api", namespace: str) -> None:
    spec = {"name": "a", "policy": {"resume": {"later": {"x": 1}}}, "new": [1]}
    found = stored(admin, namespace, "protectedjobs", spec)["spec"]
    assert found["new"] == [1]
    assert found["policy"]["resume"]["later"] == {"x": 1}


def test_what_names_a_record_cannot_be_changed(admin: "Api") -> None:
    from tests.rig.api import ApiError

    spec = {"id": "N-0001", "kind": "fault", "node": "n", "nodeUid": "u", "state": "active"}
    made = stored(admin, "", "quarantines", {**spec, "needs": {"sentence": "a person"}})
    path = f"/apis/sentinel.dev/v1alpha1/quarantines/{made['metadata']['name']}"
    with pytest.raises(ApiError, match="node names the record"):
        admin.patch(path, {"spec": {"node": "other"}})
    # The same machine may come with a new node object.
    assert admin.patch(path, {"spec": {"nodeUid": "v"}})["spec"]["nodeUid"] == "v"
    assert admin.patch(path, {"spec": {"state": "released"}})["spec"]["state"] == "released"


def test_kubectl_get_shows_what_matters(admin: "Api", namespace: str) -> None:
    spec = {
        "id": "N-0002",
        "kind": "fault",
        "node": "gpu-7",
        "nodeUid": "u",
        "state": "held",
        "heldBy": "paused",
    }
    made = stored(
        admin,
        "",
        "quarantines",
        {**spec, "severity": "fatal", "needs": {"sentence": "a person"}, "since": "2026-11-21T10:00:00.5Z"},
    )
    name = made["metadata"]["name"]
    table = table_of(admin, f"/apis/sentinel.dev/v1alpha1/quarantines/{name}")
    assert [one["name"] for one in table["columnDefinitions"] if not one["priority"]] == [
        "Name", "Node", "Kind", "State", "Held-By", "Severity", "Finding", "Since", "Ended"
    ]  # fmt: skip
    cells = table["rows"][0]["cells"]
    assert cells[:6] == [name, "gpu-7", "fault", "held", "paused", "fatal"]
    assert "invalid" not in str(cells[7])


JOB = {
    "name": "research/Job.batch/train",
    "policy": {},
    "state": "queued",
    "reason": "HeldBack",
    "size": 4,
    "incarnation": 3,
    "usedInfrastructure": 2,
    "usedJob": 1,
    "sentence": "It waits.",
}
INCIDENT = {
    "id": "research/Job.batch/train-0001",
    "job": "research/Job.batch/train",
    "kind": "forced",
    "phase": "Recovered",
    "verdict": {
        "cause": "gpu",
        "failure": "gpu-lost",
        "sentence": "A card is gone.",
        "symptom": "rank lost",
        "scope": "node",
        "budget": "infrastructure",
    },
    "opened": "2026-11-21T10:00:00Z",
    "closed": "2026-11-21T10:05:00Z",
}


@pytest.mark.parametrize(
    ("plural", "spec", "cells"),
    [
        ("protectedjobs", JOB, ("queued", "HeldBack", 4, 3, 2, 1, "It waits.")),
        (
            "incidents",
            INCIDENT,
            (INCIDENT["job"], "forced", "Recovered", "gpu", "gpu-lost", None, None, "A card is gone."),
        ),
        ("jobpolicies", {"mode": "observe"}, ("observe", "True", "Accepted", "False", "good", "none")),
    ],
)
def test_kubectl_get_shows_how_jobs_and_policies_are(
    admin: "Api", namespace: str, plural: str, spec: dict[str, Any], cells: tuple[Any, ...]
) -> None:
    """None: a time, of which a table says how long ago it was."""
    path = f"/apis/sentinel.dev/v1alpha1/namespaces/{namespace}/{plural}"
    name = stored(admin, namespace, plural, spec)["metadata"]["name"]
    if plural == "jobpolicies":
        moment = "2026-11-21T10:00:00Z"
        said = [("Accepted", "True", "Accepted", "good"), ("Conflicted", "False", "NoConflict", "none")]
        told = [
            dict(zip(("type", "status", "reason", "message"), one, strict=True), lastTransitionTime=moment)
            for one in said
        ]
        admin.patch(f"{path}/{name}/status", {"status": {"conditions": told}})
    shown = table_of(admin, f"{path}/{name}")["rows"][0]["cells"]
    assert shown[0] == name
    for cell, wanted in zip(shown[1:], cells, strict=False):
        assert cell == wanted or (wanted is None and cell and "invalid" not in cell)


def table_of(api: "Api", path: str) -> dict[str, Any]:
    """As `kubectl get` asks for it."""
    import urllib.request

    headers = {
        "Authorization": f"Bearer {api.token}",
        "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io",
    }
    request = urllib.request.Request(api.url + path, headers=headers)
    with urllib.request.urlopen(request, context=api._context, timeout=60) as answer:
        return yaml.safe_load(answer.read())
