"""A small client of the API server for tests: plain JSON objects in and out, errors with their status."""

import http.client
import json
import select
import socket
import ssl
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

from tests.rig.processes import until

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def readable(sock: socket.socket) -> bool:
    """There is something to be read, or its other end is closed."""
    waits = select.poll()
    waits.register(sock, select.POLLIN)
    return bool(waits.poll(0))


class ApiError(Exception):
    """An answer of 400 or more."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason = status, reason


class Api:
    """One user's view of the API server. Any thread may use it; each has its own connection."""

    def __init__(
        self, url: str, ca: Path, *, token: str = "", files: tuple[Path, Path] | None = None
    ) -> None:
        """`files`: certificate and key of a user, instead of a token."""
        self.url, self.ca, self.token = url, ca, token
        self._context = ssl.create_default_context(cafile=str(ca))
        if files:
            self._context.load_cert_chain(*files)
        self._local = threading.local()
        self.warnings: list[str] = []  # what the API server has warned of since, as it wrote it
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}

    def with_token(self, token: str) -> "Api":
        return Api(self.url, self.ca, token=token)

    # ------------------------------------------------------------ requests

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> Any:
        """One request; the decoded answer, or its text where it is no JSON. Raises ApiError, OSError."""
        sent = {"Accept": "application/json", **(headers or {})}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        data = None
        if body is not None:
            sent["Content-Type"] = kind
            data = json.dumps(body)
        connection = self._connection(timeout_s)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            connection.close()
            raise
        self.warnings += answer.headers.get_all("Warning", [])
        is_json = "json" in answer.headers.get("Content-Type", "") and "watch=" not in path
        decoded = json.loads(text) if is_json and text else text.decode(errors="replace")
        if answer.status >= 400:
            status = decoded if isinstance(decoded, dict) else {"message": decoded}
            raise ApiError(answer.status, status.get("reason", answer.reason), status.get("message", ""))
        return decoded

    def _connection(self, timeout_s: float) -> http.client.HTTPSConnection:
        kept: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if kept is None:
            parts = urlsplit(self.url)
            kept = http.client.HTTPSConnection(parts.hostname or "", parts.port, context=self._context)
            self._local.connection = kept
        if kept.sock is not None and readable(kept.sock):
            kept.close()  # the server has closed it since
        kept.timeout = timeout_s
        if kept.sock is not None:
            kept.sock.settimeout(timeout_s)
        return kept

    def get(self, path: str, **query: str) -> Any:
        return self.call("GET", f"{path}?{urlencode(query)}" if query else path)

    def find(self, path: str) -> Any:
        """The object, or None where there is none."""
        try:
            return self.get(path)
        except ApiError as e:
            if e.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[Object]:
        found: list[Object] = self.get(path, **query)["items"]
        return found

    def watch(self, path: str, since: str, seconds: int = 1, **query: str) -> list[Object]:
        """All events (`type`, `object`) since a resourceVersion that come in these seconds."""
        options = {"watch": "true", "resourceVersion": since, "timeoutSeconds": str(seconds), **query}
        return [json.loads(line) for line in self.get(path, **options).splitlines()]

    def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        return self.call("PATCH", path, body, kind=kind)

    def delete(self, path: str, **options: Any) -> Any:
        """`options`: fields of DeleteOptions."""
        return self.call("DELETE", path, options or None)

    def is_ready(self) -> bool:
        try:
            self.call("GET", "/readyz", timeout_s=5)
        except (OSError, ApiError, http.client.HTTPException):
            return False
        return True

    # ------------------------------------------------------------ manifests

    def path_of(self, manifest: Object, *, collection: bool = False) -> str:
        """Where the object lives: /apis/batch/v1/namespaces/NS/jobs/NAME. Without a namespace: `default`."""
        version, kind, meta = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        plural, namespaced = self._resource(version, kind)
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if namespaced:
            root += f"/namespaces/{meta.get('namespace', 'default')}"
        return f"{root}/{plural}" if collection else f"{root}/{plural}/{meta['name']}"

    def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        """Plural and whether it has namespaces, by discovery."""
        if not self._serves(version, kind):  # definitions that were applied together are served one by one
            until(lambda: self._serves(version, kind), f"{version} {kind} is not served")
        return self._resources[version, kind]

    def _serves(self, version: str, kind: str) -> bool:
        if (version, kind) not in self._resources:
            listed = self.find(f"/apis/{version}" if "/" in version else f"/api/{version}")
            for resource in (listed or {}).get("resources", ()):
                if "/" not in resource["name"]:
                    self._resources[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        return (version, kind) in self._resources

    def create(self, manifest: Object) -> Any:
        return self.call("POST", self.path_of(manifest, collection=True), manifest)

    def apply(
        self, manifests: str | Iterable[Object], *, namespace: str = "", manager: str = "test-rig"
    ) -> list[Any]:
        """Server-side apply of YAML documents or objects; `namespace` for those that name none."""
        documents = yaml.safe_load_all(manifests) if isinstance(manifests, str) else manifests
        query = urlencode({"fieldManager": manager, "force": "true"})
        applied = []
        for manifest in documents:
            if not manifest:
                continue
            meta = {**({"namespace": namespace} if namespace else {}), **manifest["metadata"]}
            whole = {**manifest, "metadata": meta}
            if not self._resource(manifest["apiVersion"], manifest["kind"])[1]:
                meta.pop("namespace", None)
            applied.append(self.call("PATCH", f"{self.path_of(whole)}?{query}", whole, kind=APPLY))
        return applied
