"""The nodes that jobs run on: which they are, and what becomes known of them."""

from collections.abc import Iterable

from sentinel.cli.job_nodes import JobNodes
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.jobs_controller import JobsController


class JobsOnNodes:
    def __init__(
        self, controller: JobsController, cluster: JobCluster, nodes: JobNodes, rooms: Rooms
    ) -> None:
        self._controller, self._cluster, self._nodes, self._rooms = controller, cluster, nodes, rooms
        self._used: dict[str, frozenset[str]] = {}  # job -> nodes that its ranks run on

    def of(self, job: str) -> Iterable[str]:
        return self._used.get(job, ())

    def on(self, node: str) -> tuple[str, ...]:
        """Jobs with ranks there."""
        return tuple(sorted(name for name, used in self._used.items() if node in used))

    def forget(self, job: str) -> None:
        self._used.pop(job, None)

    def placed(self, name: str) -> None:
        """The ranks of a new incarnation are known."""
        nodes = self._cluster.nodes(name)
        self._used[name] = frozenset(nodes.values())
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

    def note(self, name: str) -> None:
        """What agents tell changes: what is wrong there, and up to when it is known what the logs say."""
        picture = self._controller.pictures.get(name)
        if picture is None or not self._controller.runs(name):
            return
        used = self._used.get(name, frozenset())
        if picture.findings or picture.job.excluded or picture.entities_back or self._nodes.some_ail(used):
            self._found(name)
        picture.known_until_s = self._nodes.known_until_mono_s(used)

    def _found(self, name: str) -> None:
        picture = self._controller.pictures.get(name)
        if picture is None:
            return
        out = picture.job.excluded
        back = bool(out) and all(self._nodes.well(node) and self._rooms.schedulable(node) for node in out)
        self._controller.found(name, self._nodes.findings(self._used.get(name, ())), back)
