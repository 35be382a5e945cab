"""Whether Sentinel's own custom resources are installed, which it keeps its records and policies in."""

import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound
from sentinel.cluster.kubernetes.objects import (
    GROUP,
    INCIDENTS,
    JOB_POLICIES,
    PROTECTED_JOBS,
    QUARANTINES,
    VERSION,
)
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

# What cannot be done without each.
NEEDED = {
    QUARANTINES: "no node is isolated or given back",
    JOB_POLICIES: "no job is protected",
    PROTECTED_JOBS: "no job is recovered",
    INCIDENTS: "no job is recovered",
}


class _Listed(Struct):
    name: str = ""


class _Resources(Struct):
    resources: list[_Listed] = []


class OwnKinds:
    """`missing`: their names; (): all are there, as far as is known. `problem`: the same in a sentence, or ""."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.missing: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        if not self.missing:
            return ""
        without = dict.fromkeys(what for one, what in NEEDED.items() if one.plural in self.missing)
        names = ", ".join(f"{plural}.{GROUP}" for plural in self.missing)
        be = "is" if len(self.missing) == 1 else "are"
        return (
            f"{names} {be} not installed: {', '.join(without)}; `kubectl apply -f deploy/crds` installs them"
        )

    async def look(self) -> bool:
        """False: it cannot be known now."""
        try:
            served = await self._client.get(f"/apis/{GROUP}/{VERSION}", _Resources)
        except NotFound:
            served = _Resources()
        except (TemporaryError, PermanentError):
            return False
        there = {one.name for one in served.resources}
        missing = tuple(one.plural for one in NEEDED if one.plural not in there)
        before, self.missing = self.missing, missing
        if missing and missing != before:
            log.warning("custom_resources_missing", problem=self.problem)
        return True
