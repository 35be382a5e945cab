"""Owners of jobs from the annotations of their namespaces, read with the rights that the controller has."""

import asyncio
import secrets
from typing import TYPE_CHECKING

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.job_owners import JobOwners
from sentinel.core.people.owners import OWNER
from sentinel.core.policy_model import Policy
from sentinel.settings import OwnerRule
from sentinel.util.clock import system_now
from tests.kubernetes.conftest import run
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api

RULES = (OwnerRule(match_labels={"team": "nlp"}, emails=("nlp@example.com",)),)


def test_a_namespaces_owner_is_known_and_changes_are_told(controller: str, admin: "Api") -> None:
    name = f"owned-{secrets.token_hex(4)}"
    admin.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])
    job, labels = f"{name}/job.batch/llama", {"team": "nlp"}

    async def test() -> None:
        async with await Client.connect(controller) as client:
            told: list[str] = []
            owners = JobOwners(client, RULES, system_now, told.append)
            task = asyncio.create_task(owners.run())

            def emails(**notes: str) -> tuple[str, ...]:
                return owners.policy(Policy(), job, labels, notes).emails

            await owners.reflector.wait_synced()
            assert emails() == ("nlp@example.com",)
            admin.patch(
                f"/api/v1/namespaces/{name}", {"metadata": {"annotations": {OWNER: "anna@example.com"}}}
            )
            await eventually(lambda: name in told, "the annotation is not seen")
            assert emails() == ("anna@example.com",)
            assert emails(**{OWNER: "bert@example.com"}) == ("bert@example.com",)
            admin.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"other": "change"}}})
            admin.patch(f"/api/v1/namespaces/{name}", {"metadata": {"annotations": {OWNER: None}}})
            await eventually(lambda: emails() == ("nlp@example.com",), "it stays")
            assert told.count(name) == 2
            assert owners.policy(Policy(), job, {}, {}).emails == ()
            own = Policy(emails=("own@example.com",))
            assert owners.policy(own, job, labels, {}) is own
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(test())
