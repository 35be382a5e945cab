"""Which mails about jobs wait, and what became of those that went."""

from collections.abc import Callable, Mapping

from msgspec import structs

from sentinel.cluster.base import Records
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Incident, ProtectedJob, Stage, StageMail


class JobMail:
    """`wake` is called when a mail waits that did not before."""

    def __init__(
        self, pictures: Mapping[str, JobPicture], records: Records, wake: Callable[[], None]
    ) -> None:
        self._pictures, self._records, self._wake = pictures, records, wake
        self._incidents: dict[str, Incident] = {}  # those with mail that waits, and the open ones

    def keep(self, incident: Incident) -> None:
        """As it is recorded now, by whom ever."""
        before, waiting = _waiting(self._incidents.pop(incident.id, None)), _waiting(incident)
        if waiting or not incident.phase.final:
            self._incidents[incident.id] = incident
        if waiting - before:
            self._wake()

    def pending(self) -> list[tuple[Incident, ProtectedJob]]:
        found = []
        for incident in self._incidents.values():
            picture = self._pictures.get(incident.job)
            if picture is not None and _waiting(incident):
                found.append((incident, picture.job))
        return found

    def record(self, incident_id: str, mail: StageMail) -> None:
        incident = self._incidents.get(incident_id)
        if incident is None:
            return
        mails = tuple(mail if m.stage == mail.stage else m for m in incident.mails)
        incident = structs.replace(incident, mails=mails)
        self._records.save(incidents=[incident])
        self.keep(incident)
        picture = self._pictures.get(incident.job)
        if picture is not None and picture.incident is not None and picture.incident.id == incident_id:
            picture.incident = incident


def _waiting(incident: Incident | None) -> set[Stage]:
    return set() if incident is None else {m.stage for m in incident.mails if m.state == "waiting"}
