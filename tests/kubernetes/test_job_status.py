"""`sentinel status` of a cluster's jobs, as people who may do what `deploy/` lets them."""

import asyncio
import json
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from sentinel.core.model import JobState, Phase, ProtectedJob
from sentinel.core.policy_model import Policy
from tests.kubernetes.people import Person
from tests.kubernetes.test_job_orders import KIND, created, leading, person, play, short
from tests.kubernetes.test_job_records import an_incident

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

__all__ = ["person"]

OWNED = Policy(name="nlp", emails=("anna@example.com",))


@pytest.fixture
def space(admin: "Api") -> str:
    """A namespace of the test's own."""
    name = f"team-{secrets.token_hex(4)}"
    admin.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])
    return name


def protected(space: str, name: str, kind: str = KIND, **more: Any) -> ProtectedJob:
    given = {"policy": OWNED, "state": JobState.RUNNING, "size": 8, "original_size": 8, **more}
    return ProtectedJob(name=f"{space}/{kind}/{name}", **given)


def shown(person: Person, *words: str) -> dict[str, Any]:
    done = person.says("status", *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_reader_sees_all_jobs_and_the_story_of_one(
    controller: str, epoch: int, space: str, person: Callable[..., Person]
) -> None:
    rita = person("rita", "sentinel-reader")
    hit = protected(
        space, "llama", state=JobState.QUEUED, incidents=2, incarnation=3, last_step=41, steps_told=True
    )
    first = an_incident(hit, 1, phase=Phase.RECOVERED, sentence="Stepping again from step 40.")
    open_ = an_incident(hit, 2, phase=Phase.PRECHECKING, sentence="No room for 8 ranks.")
    twin = protected(space, "llama", "job.batch")

    async def scene() -> None:
        async with leading(controller, epoch, follows=False) as leader:
            leader.records.save(jobs=[hit], incidents=[first])
            await leader.records.written(hit.name)
            leader.records.save(incidents=[open_])
            await leader.records.written(hit.name)
            await created(leader, twin)

    play(scene())
    rows = {(row["kind"], row["state"], row.get("phase", "")) for row in shown(rita)["jobs"]["rows"]}
    assert {(KIND, "recovering", "Prechecking"), ("job.batch", "running", "")} <= rows
    listed = rita.says("status", "-n", space)
    assert listed.returncode == 0, listed.stderr
    assert "2 protected jobs: 1 being recovered, 1 running." in listed.stdout
    assert "No room for 8 ranks." in listed.stdout
    assert "nothing is known against" not in listed.stdout
    every = shown(rita, "-A")
    assert {"leader", "counts", "rows"} <= every.keys()
    assert {row["namespace"] for row in every["rows"]} >= {space}

    one = rita.says("status", f"{space}/{KIND}/llama")
    assert one.returncode == 0, one.stderr
    assert one.stdout.index(open_.sentence) < one.stdout.index(first.sentence), "the newest first"
    assert "anna@example.com" in one.stdout
    story = shown(rita, "-n", space, "pytorchjob/llama")
    assert [incident["phase"] for incident in story["incidents"]] == ["Prechecking", "Recovered"]
    assert story["record"]["policy"]["emails"] == ["anna@example.com"]
    two = rita.says("status", f"{space}/llama")
    assert (two.returncode, "is the name of more than one job: " in two.stderr) == (1, True)
    none = rita.says("status", f"{space}/nope")
    assert (none.returncode, f"there is no protected job {space}/nope; protected there: " in none.stderr) == (
        1,
        True,
    )
    unknown = rita.says("status", "nope")
    assert unknown.returncode == 1
    assert "there is no node nope in the cluster at " in unknown.stderr
    assert "and no protected job nope" in unknown.stderr


def test_who_may_read_one_namespace_sees_its_jobs(
    installed: "ControlPlane", controller: str, epoch: int, admin: "Api", space: str
) -> None:
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "User", "name": space, "apiGroup": rbac}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "own", "namespace": space},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "sentinel-reader"},
        "subjects": [subject],
    }
    admin.apply([binding])
    path = installed.user_kubeconfig(space, "people")
    owner = Person(installed, space, str(path))
    job = protected(space, "llama")

    async def scene() -> None:
        async with leading(controller, epoch, follows=False) as leader:
            await created(leader, job)

    play(scene())
    refused = owner.says("status")
    assert (refused.returncode, "you may not" in refused.stderr) == (77, True)
    listed = owner.says("status", "-n", space)
    assert (listed.returncode, "1 protected job: 1 running." in listed.stdout) == (0, True)
    assert "who leads may not be read" in listed.stderr
    assert owner.says("status", "-A").returncode == 77
    assert owner.says("status", f"{space}/llama").returncode == 0

    # The namespace of the kubeconfig's context is what a name alone, and no name at all, are about.
    config = json.loads(path.read_text()) if path.read_text().startswith("{") else None
    if config is None:
        import yaml

        config = yaml.safe_load(path.read_text())
    config["contexts"][0]["context"]["namespace"] = space
    path.write_text(json.dumps(config))
    own = owner.says("status")
    assert (own.returncode, "1 protected job" in own.stdout) == (0, True), own.stderr
    assert f"the jobs of namespace {space} alone" in own.stderr
    assert "llama" in owner.says("status", "llama").stdout


def test_what_waits_for_a_controller_and_what_cannot_be_read_is_told(
    controller: str, epoch: int, admin: "Api", space: str, person: Callable[..., Person]
) -> None:
    anna = person("anna")
    job = protected(space, "llama")

    async def scene() -> None:
        async with leading(controller, epoch, follows=False) as leader:
            await created(leader, job)

    play(scene())
    copied = admin.get(f"/apis/sentinel.dev/v1alpha1/namespaces/{space}/protectedjobs/llama.{KIND}")
    copied["metadata"] = {"name": "torn", "namespace": space}
    copied["spec"]["name"] = "torn"
    admin.create(copied)
    anna.did("-n", space, "annotate", "pj", f"llama.{KIND}", "sentinel.dev/retry=please")
    listed = anna.says("status", "-n", space)
    assert "retry (running)" in listed.stdout
    assert f"protectedjob {space}/torn cannot be read" in listed.stderr
    assert "retry, which waits for a controller" in anna.says("status", f"{space}/{short(job)}").stdout


def test_two_thousand_jobs_are_listed(
    controller: str, epoch: int, admin: "Api", space: str, person: Callable[..., Person]
) -> None:
    """In four pages; each of its own object."""
    rita = person("rita", "sentinel-reader")
    many = [protected(space, f"j{number:04d}", incarnation=1) for number in range(2000)]
    many[7] = structs.replace(many[7], state=JobState.ERROR)

    async def scene() -> None:
        async with leading(controller, epoch, follows=False) as leader:
            leader.records.save(jobs=many)
            await asyncio.gather(*(leader.records.written(job.name) for job in many))

    play(scene())
    listed = rita.says("status", "-n", space)
    assert "2000 protected jobs: 1 given up, 1999 running." in listed.stdout
    assert [line for line in listed.stdout.splitlines() if "j0007" in line]
    assert "and 1970 more" in listed.stdout
    admin.delete(f"/apis/sentinel.dev/v1alpha1/namespaces/{space}/protectedjobs")
