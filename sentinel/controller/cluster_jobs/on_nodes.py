"""The nodes that jobs run on: which they are, and what becomes known of them."""

from collections.abc import Iterable

import structlog
from msgspec import structs

from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.controller.cluster_jobs.heard import JobNodes
from sentinel.controller.jobs.of_cluster import JobsController
from sentinel.core.health import Component
from sentinel.core.reports import Report

log = structlog.get_logger(__name__)


class JobsOnNodes:
    def __init__(
        self, controller: JobsController, cluster: JobCluster, nodes: JobNodes, rooms: Rooms
    ) -> None:
        self._controller, self._cluster, self._nodes, self._rooms = controller, cluster, nodes, rooms
        self._ranks: dict[str, frozenset[str]] = {}  # job -> nodes that its ranks run on
        self._used: dict[str, frozenset[str]] = {}  # job -> nodes that any pod of it runs on
        self._told_others: set[str] = set()  # nodes whose agents told of jobs elsewhere: said once

    def of(self, job: str) -> Iterable[str]:
        """Nodes with ranks of the job."""
        return self._ranks.get(job, ())

    def on(self, node: str) -> tuple[str, ...]:
        """Jobs with pods there."""
        return tuple(sorted(name for name, used in self._used.items() if node in used))

    def forget(self, job: str) -> None:
        self._ranks.pop(job, None)
        self._used.pop(job, None)

    def placed(self, name: str) -> None:
        """The ranks of a new incarnation are known."""
        nodes = self._cluster.nodes(name)
        self._ranks[name] = frozenset(nodes.values())
        self._use(name)
        if (picture := self._controller.pictures.get(name)) is not None:
            picture.entities = nodes
            picture.known_until_s = self._nodes.known_until_mono_s(nodes.values())
            probation = self._nodes.on_probation(nodes.values())
            self._controller.placed(name, self._cluster.places(name), probation)
            self._found(name)

    def heard(self, node: str) -> None:
        """Its agent told what its checks find."""
        touched = [name for name, used in self._used.items() if node in used]
        for name in touched:
            self._found(name)
        if touched:
            self._controller.cycle(touched)

    def own(self, report: Report, node: str) -> Report:
        """Without what it tells of jobs that have no pod on that node: an agent speaks of its own node alone."""
        named = {
            *((rank.job, rank.incarnation) for rank in report.ranks),
            *((match.job, match.incarnation) for match in report.matches),
            *((name, gone.incarnation) for name, gone in report.exits),
        }
        foreign = {name for name, _ in named if not self._is_on(name, node)}
        if not foreign:
            return report
        for name, incarnation in sorted(named):
            picture = self._controller.pictures.get(name)
            now = picture is not None and picture.job.incarnation == incarnation  # else it is only late
            if name in foreign and now and node not in self._told_others:
                self._told_others.add(node)
                log.warning("agent_tells_of_a_job_elsewhere", node=node, job=name)
        return structs.replace(
            report,
            ranks=tuple(one for one in report.ranks if one.job not in foreign),
            matches=tuple(one for one in report.matches if one.job not in foreign),
            exits=tuple((name, gone) for name, gone in report.exits if name not in foreign),
        )

    def _is_on(self, name: str, node: str) -> bool:
        picture = self._controller.pictures.get(name)
        if picture is None:
            return False
        if node in self._used.get(name, ()) or node in self._use(name):
            return True
        placed = picture.job.placed  # of which an earlier leader tells, before its pods have been looked at
        if placed is None or placed.incarnation != picture.job.incarnation:
            return False
        return any(place.node == node for place in placed.ranks)

    def note(self, name: str) -> None:
        """What agents tell changes: what is wrong there, and up to when it is known what the logs say."""
        picture = self._controller.pictures.get(name)
        if picture is None or not self._controller.runs(name):
            return
        used = self._use(name)
        if picture.findings or picture.job.excluded or picture.entities_back or self._nodes.some_ail(used):
            self._found(name)
        picture.known_until_s = self._nodes.known_until_mono_s(self.of(name))

    def _use(self, name: str) -> frozenset[str]:
        """A launcher may have come elsewhere while the ranks run on."""
        ranks = self._ranks.get(name, frozenset())
        self._used[name] = ranks | self._cluster.other_nodes(name)
        if (picture := self._controller.pictures.get(name)) is not None:
            picture.also_on = self._used[name] - ranks
        return self._used[name]

    def _found(self, name: str) -> None:
        picture = self._controller.pictures.get(name)
        if picture is None:
            return
        out = picture.job.excluded
        back = bool(out) and all(self._nodes.well(node) and self._rooms.schedulable(node) for node in out)
        # Launchers and parameter servers hold no GPU.
        beside = [one for one in self._nodes.findings(picture.also_on) if one.component is not Component.GPU]
        self._controller.found(name, [*self._nodes.findings(self.of(name)), *beside], back)
