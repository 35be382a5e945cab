"""Room on one machine: its GPUs are the places, and the checks say which of them are fit."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from sentinel.cluster.base import Room
from sentinel.cluster.local.cluster import LocalCluster
from sentinel.cluster.local.look import RankLook, looked_at
from sentinel.cluster.local.processes import scan
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.model import ProtectedJob

# What keeps a job from starting at all when it is at least `degraded`: file systems (only those that jobs need are),
# and what no program starts without. Of the rest, a reboot too many or a service that is down, people are told.
_BLOCKING = frozenset({"memory-low", "pids", "fds", "d-state-nvidia"})
# Who reads that the pre-check passed wants to know of these that they could not look.
_TOLD = frozenset({"disk", "memory", "gpu-pci", "nvml"})
FRESH_S = 10.0  # a start believes results of this age
LOOKS = 2  # a sampled finding ends when so many samples in a row do not show it


class Place(Protocol):
    @property
    def entity(self) -> str: ...


Precheck = Callable[[tuple[str, ...], float], Awaitable[list[CheckResult]]]  # (names, how old results may be)
Environment = Callable[[Iterable[str]], dict[str, str]]  # excluded entities -> variables that hide them


class LocalMachine(LocalCluster):
    """The whole Cluster protocol. `places` lists the GPUs in the order in which CUDA counts them."""

    precheck: Precheck
    places: Callable[[], tuple[Place, ...]]
    environment: Environment

    async def room(
        self, job: ProtectedJob, size: int, excluded: tuple[str, ...], *, starts: bool = False
    ) -> Room:
        """Checks of the machine at most 10 s old, then a healthy GPU for every rank where it has GPUs at all."""
        checks = job.policy.precheck.checks
        results = (
            await self.precheck(checks, FRESH_S) if checks else []
        )  # asked for no names, the runner takes all
        results = await self._looked_again(results)
        findings = [finding for result in results for finding in result.findings]
        if blocking := [finding for finding in findings if _blocks(finding)]:
            text = "; ".join(f"{f.entity}: {f.summary}" for f in blocking)
            return Room(size=0, reason="PrecheckFailed", sentence=f"The pre-check failed: {text}")
        unknown = [r for r in results if r.state == CheckState.UNKNOWN and r.check in _TOLD]
        note = f" (could not look: {', '.join(r.check for r in unknown)})" if unknown else ""
        return self._gpus(job, size, excluded, findings, note)

    def unpromise(self, job: str) -> None:
        pass  # no other job waits for its GPUs

    async def _looked_again(self, results: list[CheckResult]) -> list[CheckResult]:
        """Nothing refuses a start that is over by now: a disk that was full some seconds ago may have room."""
        names = tuple(result.check for result in results if any(map(_blocks, result.findings)))
        again: dict[str, CheckResult] = {}
        for _ in range(LOOKS if names else 0):
            again = {result.check: result for result in await self.precheck(names, 0.0)}
        return [again.get(result.check, result) for result in results]

    def _gpus(
        self, job: ProtectedJob, size: int, excluded: tuple[str, ...], findings: list[Finding], note: str
    ) -> Room:
        places = [place.entity for place in self.places()]
        bad = {
            f.entity: f.summary
            for f in findings
            if f.entity in places and f.severity.order >= Severity.DEGRADED.order
        }
        out = tuple(dict.fromkeys((*excluded, *bad)))
        asked = job.launch.nproc if job.launch is not None else None
        if asked is None or job.original_size > len(places):
            # One process takes what it sees; more ranks than GPUs share them or need none.
            fit = [place for place in places if place not in out]
            if places and not fit:
                return Room(size=0, reason="NoRoom", sentence=_no_room(size, places, out, bad))
            env = self.environment(out) if out and places else {}
            return Room(
                size=size,
                entities={0: fit[0]} if len(fit) == 1 else {},
                excluded=out,
                env=env,
                sentence=f"The pre-check passed{note}.",
            )
        fit = [place for place in places if place not in out]
        least = job.policy.elastic.min_nodes if job.policy.elastic and not job.elastic_frozen else size
        if len(fit) < min(least, size):
            return Room(size=0, reason="NoRoom", sentence=_no_room(size, places, out, bad))
        size = min(size, len(fit))
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        sentence = f"The pre-check passed: {ranks} on {len(fit)} healthy GPU{'s' if len(fit) != 1 else ''}"
        if out:
            sentence += f", without {', '.join(out)}"
        return Room(
            size=size,
            entities=dict(enumerate(fit[:size])),
            excluded=out,
            env=self.environment(out) if out else {},
            sentence=f"{sentence}{note}.",
        )

    def look(self, job: str, incarnation: int) -> Mapping[int, RankLook]:
        """Of silent ranks only: then their supervisor may be what was stopped, and tells of no end."""
        if tracked := self._tracked.get(job):
            tracked.wake_supervisor()
        return looked_at(self.find_workers(job, incarnation), scan(), {})


def _blocks(finding: Finding) -> bool:
    bad = finding.severity.order >= Severity.DEGRADED.order
    return bad and (finding.component == Component.DISK or finding.code in _BLOCKING)


def _no_room(size: int, places: list[str], out: tuple[str, ...], bad: Mapping[str, str]) -> str:
    fit = len([place for place in places if place not in out])
    why = "; ".join(f"{entity}: {bad.get(entity, 'left out after a fault')}" for entity in out)
    return f"No room: {size} ranks need {size} GPUs, {fit} of {len(places)} are healthy ({why})."
