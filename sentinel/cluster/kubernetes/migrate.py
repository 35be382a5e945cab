"""After an upgrade: rewrite every stored object in the version that is stored now, then forget the older versions.

    python -m sentinel.cluster.kubernetes.migrate [KUBECONFIG]

A CustomResourceDefinition may drop a version only when no object is stored in it any more, which its
`status.storedVersions` tells. Run it as an administrator after `kubectl apply -f deploy/crds`: the controllers may not
touch definitions. Repeating it does no harm; objects that are written meanwhile are in the new version already.
"""

import asyncio
import sys
from typing import Any

from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.cluster.kubernetes.errors import Conflict, NotFound
from sentinel.cluster.kubernetes.objects import (
    INCIDENTS,
    JOB_POLICIES,
    PROTECTED_JOBS,
    QUARANTINES,
    Custom,
)
from sentinel.util.errors import PermanentError, TemporaryError

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
PAGE = "500"


class _Version(Struct):
    name: str
    storage: bool


class _Spec(Struct):
    group: str
    versions: list[_Version]


class _Status(Struct):
    storedVersions: list[str] = []


class _Definition(Struct):
    metadata: dict[str, Any]
    spec: _Spec
    status: _Status


class _Page(Struct):
    metadata: dict[str, Any]
    items: list[Custom] = []


async def migrate(client: Client, plural: str, namespaced: bool = True) -> int:
    """Returns how many objects were rewritten. Raises Conflict where the definition was changed meanwhile."""
    path = DEFINITIONS.path(name=f"{plural}.sentinel.dev")
    definition = await client.get(path, _Definition)
    stored = next(version.name for version in definition.spec.versions if version.storage)
    if definition.status.storedVersions == [stored]:
        return 0
    resource = Resource(definition.spec.group, stored, plural, namespaced)
    query, count = {"limit": PAGE}, 0
    while True:
        page = await client.get(resource.path(), _Page, query)
        for one in page.items:
            count += await _rewrite(client, resource, one)
        if not page.metadata.get("continue"):
            break
        query["continue"] = page.metadata["continue"]
    body = {
        "metadata": {"resourceVersion": definition.metadata["resourceVersion"]},
        "status": {"storedVersions": [stored]},
    }
    await client.patch(f"{path}/status", body, _Definition)
    return count


async def _rewrite(client: Client, resource: Resource, one: Custom) -> bool:
    """A patch that changes nothing: the API server writes it all the same where the stored version is another."""
    try:
        meta = {"uid": one.metadata.uid, "resourceVersion": one.metadata.resource_version}
        await client.patch(
            resource.path(one.metadata.namespace, one.metadata.name), {"metadata": meta}, Custom
        )
        return True
    except (Conflict, NotFound):
        return False  # written or deleted meanwhile


async def main(argv: list[str]) -> int:
    try:
        async with await Client.connect(argv[0] if argv else "") as client:
            for resource in (JOB_POLICIES, PROTECTED_JOBS, INCIDENTS, QUARANTINES):
                count = await migrate(client, resource.plural, resource.namespaced)
                print(f"{resource.plural}: {count} rewritten")
        return 0
    except (TemporaryError, PermanentError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
