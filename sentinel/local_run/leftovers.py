"""Mails of jobs that ended while nobody took them: the next Sentinel of this state directory sends them."""

from pathlib import Path

from msgspec import structs

from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import Incident, ProtectedJob, StageMail
from sentinel.service.control import Lock


class Leftovers:
    """Read once at the start. Two Sentinels may find the same mail: the later one sees in the record that it was
    sent, and a mail that both send at the same moment has the same Message-ID."""

    def __init__(self, store: LocalStore, state_path: Path, own_job: str) -> None:
        self._store = store
        ended = {job.name: job for job in store.jobs() if job.state.final and job.name != own_job}
        waiting = [i for i in store.incidents() if i.job in ended and _waits(i)] if ended else []
        free = {name for name in {i.job for i in waiting} if _unprotected(state_path / "jobs" / name)}
        self._found: dict[str, tuple[Incident, ProtectedJob]] = {
            i.id: (i, ended[i.job]) for i in waiting if i.job in free
        }

    def pending(self) -> list[tuple[Incident, ProtectedJob]]:
        for incident_id, (_, job) in list(self._found.items()):
            current = self._store.incident(incident_id)
            if current is not None and _waits(current):
                self._found[incident_id] = (current, job)
            else:
                del self._found[incident_id]
        return list(self._found.values())

    def record(self, incident_id: str, mail: StageMail) -> bool:
        """False: the incident is none of these."""
        if incident_id not in self._found:
            return False
        incident, job = self._found[incident_id]
        mails = tuple(mail if m.stage == mail.stage else m for m in incident.mails)
        incident = structs.replace(incident, mails=mails)
        self._found[incident_id] = (incident, job)
        self._store.save(incidents=[incident])
        return True


def _waits(incident: Incident) -> bool:
    return any(mail.state == "waiting" for mail in incident.mails)


def _unprotected(folder: Path) -> bool:
    """A Sentinel whose job has just ended still sends its mails."""
    lock = Lock(folder)
    if not lock.take():
        return False
    lock.release()
    return True
