"""What the API server knows of agents' tokens, and where the controllers keep their certificates.

The callables and the store that sentinel/transport asks for; they raise OSError where the API server does not answer,
as it expects.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from sentinel.cluster.kubernetes import errors
from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, PODS, ConfigMap, Meta, Pod
from sentinel.transport import certs
from sentinel.transport.auth import Review
from sentinel.util.errors import PermanentError, TemporaryError

T = TypeVar("T")

KEYS = "/openid/v1/jwks"
REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
SECRETS = Resource("", "v1", "secrets")
BUNDLE = "ca.crt"
_EXTRA = "authentication.kubernetes.io/"
_SUBJECT = "system:serviceaccount:"


class _User(Struct):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _ReviewStatus(Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []
    error: str = ""


class _TokenReview(Struct):
    status: _ReviewStatus


class _Secret(Struct):
    metadata: Meta
    data: dict[str, str] = {}


async def published_keys(client: Client) -> bytes:
    """The JWKS. Every service account may read it."""
    return await _answer(client.call("GET", KEYS, accept="application/jwk-set+json"))


def reviewer(client: Client, audience: str) -> Callable[[str], Awaitable[Review]]:
    """Asks the API server about one token. One before 1.30 names the pod and not the node, which is looked up then."""

    async def review(token: str) -> Review:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        status = (await _answer(client.create(REVIEWS.path(), body, _TokenReview))).status
        node, uid = _first(status.user, "node-name"), _first(status.user, "node-uid")
        if status.authenticated and not node:
            node = await _node_of_pod(client, status.user)
        return Review(
            authenticated=status.authenticated,
            username=status.user.username,
            audiences=tuple(status.audiences),
            node=node,
            node_uid=uid,
            error=status.error,
        )

    return review


class SecretStore:
    """The controllers' certificates and keys in one Secret (the protocol `Store` of transport/certs.py)."""

    def __init__(self, client: Client, namespace: str, name: str = "sentinel-controller-tls") -> None:
        self._client, self._namespace, self._name = client, namespace, name

    async def get(self) -> tuple[Mapping[str, bytes], str] | None:
        try:
            found = await _answer(self._client.get(SECRETS.path(self._namespace, self._name), _Secret))
        except FileNotFoundError:
            return None
        data = {name: base64.b64decode(text) for name, text in found.data.items()}
        return data, f"{found.metadata.uid}/{found.metadata.resource_version}"

    async def put(self, data: Mapping[str, bytes], version: str | None) -> None:
        encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
        try:
            if version is None:
                body = {"metadata": {"name": self._name}, "type": "Opaque", "data": encoded}
                try:
                    await _answer(self._client.create(SECRETS.path(self._namespace), body, _Secret))
                except FileNotFoundError:
                    missing = (
                        f"there is no namespace {self._namespace}: make it, or name another by --namespace"
                    )
                    raise TemporaryError(missing) from None
                return
            uid, _, resource_version = version.partition("/")
            operations = [
                {"op": "replace", "path": "/metadata/uid", "value": uid},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
                {"op": "add", "path": "/data", "value": encoded},
            ]
            path = SECRETS.path(self._namespace, self._name)
            await _answer(self._client.patch(path, operations, _Secret, how="application/json-patch+json"))
        except (FileExistsError, FileNotFoundError) as error:
            raise certs.Conflict(str(error)) from error


class BundleStore:
    """The authorities that agents trust, in a ConfigMap that they mount: a `Store` too."""

    def __init__(self, client: Client, namespace: str, name: str = "sentinel-ca") -> None:
        self._client, self._namespace, self._name = client, namespace, name

    async def get(self) -> tuple[Mapping[str, bytes], str] | None:
        try:
            found = await _answer(self._client.get(CONFIG_MAPS.path(self._namespace, self._name), ConfigMap))
        except FileNotFoundError:
            return None
        data = {name: text.encode() for name, text in found.data.items()}
        return data, f"{found.metadata.uid}/{found.metadata.resource_version}"

    async def put(self, data: Mapping[str, bytes], version: str | None) -> None:
        texts = {name: value.decode() for name, value in data.items()}
        try:
            if version is None:
                body = {"metadata": {"name": self._name}, "data": texts}
                await _answer(self._client.create(CONFIG_MAPS.path(self._namespace), body, Any))
                return
            uid, _, resource_version = version.partition("/")
            meta = {"uid": uid, "resourceVersion": resource_version}
            path = CONFIG_MAPS.path(self._namespace, self._name)
            await _answer(self._client.patch(path, {"metadata": meta, "data": texts}, Any))
        except (FileExistsError, FileNotFoundError) as error:
            raise certs.Conflict(str(error)) from error


def publisher(client: Client, namespace: str) -> Callable[[bytes], Awaitable[None]]:
    """Sees to it that the bundle of authorities is where agents mount it, and no other one."""
    store = BundleStore(client, namespace)

    async def publish(bundle: bytes) -> None:
        await certs.update(store, lambda found: {**found, BUNDLE: bundle})

    return publish


async def _node_of_pod(client: Client, user: _User) -> str:
    namespace, _, _ = user.username.removeprefix(_SUBJECT).partition(":")
    name, uid = _first(user, "pod-name"), _first(user, "pod-uid")
    if not user.username.startswith(_SUBJECT) or not name:
        return ""
    try:
        pod = await _answer(client.get(PODS.path(namespace, name), Pod))
    except FileNotFoundError:
        return ""
    return pod.spec.node_name if pod.metadata.uid == uid else ""


def _first(user: _User, name: str) -> str:
    return next(iter(user.extra.get(_EXTRA + name, [])), "")


async def _answer(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except errors.NotFound as error:
        raise FileNotFoundError(str(error)) from error
    except (errors.AlreadyExists, errors.Conflict) as error:
        raise FileExistsError(str(error)) from error
    except (TemporaryError, PermanentError) as error:
        raise OSError(str(error)) from error
