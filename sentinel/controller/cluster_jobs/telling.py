"""What is told of jobs as events of the cluster: to those who look at a job, and at its pods and their nodes."""

from collections import deque
from collections.abc import Sequence

from sentinel.cluster.kubernetes.events import About, Events
from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.core.model import Incident, JobEvent

KEPT_EVENTS = 30  # of each job, for its page: the cluster keeps them longer


class JobTelling:
    def __init__(self, events: Events, cluster: JobCluster, fleet: KubernetesFleet) -> None:
        self._events, self._cluster, self._fleet = events, cluster, fleet
        self._told_of: dict[str, deque[JobEvent]] = {}

    def lately(self, job: str) -> Sequence[JobEvent]:
        return self._told_of.get(job, ())

    def forget(self, job: str) -> None:
        self._told_of.pop(job, None)

    def tell(self, event: JobEvent, newest: Incident | None) -> None:
        """`newest`: the job's last incident, as it is recorded."""
        self._told_of.setdefault(event.job, deque(maxlen=KEPT_EVENTS)).append(event)
        ref = self._cluster.ref(event.job)
        if ref is not None:
            group = f"{ref.row.group}/{ref.row.version}" if ref.row.group else ref.row.version
            about = About(group, ref.row.kind, ref.name, ref.uid, ref.namespace)
            self._events.tell(about, event.reason, event.sentence, warning=event.warning)
        if newest is not None and newest.steps:
            self._tell_pod(event, newest)

    def _tell_pod(self, event: JobEvent, incident: Incident) -> None:
        """One pod and its node besides the job: where an incident begins those that it is about, where it ends the
        first of those that run then. The other ranks have nothing of their own to tell."""
        began = len(incident.steps) == 1
        if event.wall_s != incident.steps[-1].wall_s or not (began or incident.phase.final):
            return
        found = self._cluster.pod(event.job, incident.verdict.rank if began else None)
        if found is None:
            return
        node, pod = found
        warning = began or event.warning
        said = incident.verdict.sentence
        what = f"{said} {event.sentence}" if began and said not in event.sentence else event.sentence
        if pod.pod:  # of a rank that was lost while nobody led the name may not be known
            about_pod = About("v1", "Pod", pod.pod, pod.uid, pod.namespace)
            self._events.tell(about_pod, event.reason, what, warning=warning)
        if began and incident.verdict.rank is not None and (uid := self._fleet.uid_of(node)):
            about = f"Job {event.job}, pod {pod.pod}: {what}"
            self._events.tell(About("v1", "Node", node, uid), event.reason, about, warning=warning)
