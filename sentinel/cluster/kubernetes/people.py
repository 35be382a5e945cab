"""Who somebody is, and what he may do: asked of the API server, which knows both (TokenReview, SubjectAccessReview)."""

from typing import Any

import msgspec
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.cluster.kubernetes.identity import REVIEWS

ACCESS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
MAX_NAME = 200  # of a person, as records show it


class Somebody(Struct, frozen=True):
    """As the API server knows whoever showed a token. `extra` and `groups` may decide what he may do."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class Right(Struct, frozen=True):
    """What an order needs, in RBAC's words."""

    verb: str
    resource: Resource
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource.plural}/{self.name}{where}"


class _Identity(Struct):
    authenticated: bool = False
    user: Somebody = msgspec.field(default_factory=Somebody)
    error: str = ""


class _Identified(Struct):
    status: _Identity


class _Access(Struct):
    allowed: bool = False
    reason: str = ""


class _Judged(Struct):
    status: _Access


class People:
    """Raises TemporaryError and PermanentError where the API server does not say."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def who(self, token: str) -> Somebody | None:
        """None: nobody whom the cluster knows. The token must be one for the API server itself."""
        body = _review("authentication.k8s.io", "TokenReview", {"token": token})
        status = (await self._client.create(REVIEWS.path(), body, _Identified)).status
        return status.user if status.authenticated and status.user.username else None

    async def may(self, who: Somebody, right: Right) -> bool:
        spec: dict[str, Any] = {
            "user": who.username,
            "uid": who.uid,
            "groups": list(who.groups),
            "extra": {key: list(values) for key, values in who.extra.items()},
            "resourceAttributes": {
                "verb": right.verb,
                "group": right.resource.group,
                "version": right.resource.version,
                "resource": right.resource.plural,
                "name": right.name,
                "namespace": right.namespace,
            },
        }
        body = _review("authorization.k8s.io", "SubjectAccessReview", spec)
        return (await self._client.create(ACCESS.path(), body, _Judged)).status.allowed


def _review(group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
