"""Which mails about jobs wait, and what became of those that went."""

from collections.abc import Mapping

from msgspec import structs

from sentinel.cluster.base import Records
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Incident, ProtectedJob, StageMail


class JobMail:
    def __init__(self, pictures: Mapping[str, JobPicture], records: Records) -> None:
        self._pictures, self._records = pictures, records
        self._incidents: dict[str, Incident] = {}  # those with mail that waits, and the open ones

    def keep(self, incident: Incident) -> None:
        """As it is recorded now."""
        if incident.phase.final and not any(m.state == "waiting" for m in incident.mails):
            self._incidents.pop(incident.id, None)
        else:
            self._incidents[incident.id] = incident

    def pending(self) -> list[tuple[Incident, ProtectedJob]]:
        found = []
        for incident in self._incidents.values():
            picture = self._pictures.get(incident.job)
            if picture is not None and any(m.state == "waiting" for m in incident.mails):
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
