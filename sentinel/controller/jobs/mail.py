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
        # By id, those with mail that waits and the open ones, with their jobs: that may be gone, or asked for no more.
        self._kept: dict[str, tuple[Incident, ProtectedJob]] = {}

    def keep(self, incident: Incident, job: ProtectedJob) -> None:
        """As it is recorded now, by whom ever."""
        before, waiting = self._kept.pop(incident.id, None), _waiting(incident)
        if waiting or not incident.phase.final:
            self._kept[incident.id] = incident, job
        if waiting - (_waiting(before[0]) if before is not None else set()):
            self._wake()

    def pending(self) -> list[tuple[Incident, ProtectedJob]]:
        """With its job as it stands now, where no other has its name by now."""
        found = []
        for incident, job in self._kept.values():
            picture = self._pictures.get(incident.job)
            if _waiting(incident):
                found.append(
                    (incident, picture.job if picture is not None and picture.job.uid == job.uid else job)
                )
        return found

    def record(self, incident_id: str, mail: StageMail) -> None:
        if (kept := self._kept.get(incident_id)) is None:
            return
        incident, job = kept
        mails = tuple(mail if m.stage == mail.stage else m for m in incident.mails)
        incident = structs.replace(incident, mails=mails)
        self._records.save(incidents=[incident])
        self.keep(incident, job)
        picture = self._pictures.get(incident.job)
        if picture is not None and picture.incident is not None and picture.incident.id == incident_id:
            picture.incident = incident


def _waiting(incident: Incident) -> set[Stage]:
    return {m.stage for m in incident.mails if m.state == "waiting"}
