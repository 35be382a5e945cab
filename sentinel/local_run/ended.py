"""Records and logs of jobs that have ended: how they go, one by one or by age and number.

A job's folder is moved out of the way under the job's lock, then its records go, then what was moved is removed: killed
in between, nothing of it can be taken for a job, and the next time finishes it.
"""

import os
from itertools import islice
from pathlib import Path

import structlog

from sentinel.cluster.local.store import LocalStore
from sentinel.service.control import Lock
from sentinel.settings import EndedJobs

log = structlog.get_logger()

ASIDE = ".forgotten."  # no job's name begins so
ENDS_S = (
    30.0  # its Sentinel still sends mails; its supervisor ends within moments, or has processes of it left
)
AT_ONCE = 10  # each takes a few milliseconds of the loop that protects a job


def forget(store: LocalStore, jobs_dir: Path, name: str, *, wait_s: float = ENDS_S) -> str:
    """Remove the record of an ended job and set its folder aside for `sweep`. Returns why not, "" where it was done."""
    folder = jobs_dir / name
    lock, supervisor = Lock(folder), Lock(folder, "supervisor.lock")
    not_ended = f"{name} has not ended: `sentinel stop {name}` ends it"
    if name not in dict(store.ended()):
        return not_ended
    if not lock.take(wait_s):
        return f"{name} has ended, but the Sentinel that protected it has not, or it was started again"
    try:
        if name not in dict(store.ended()):  # read again: a new run of the name cannot begin any more
            return not_ended
        if not supervisor.take(wait_s):
            return f"{name} has ended, but processes of it are left: its supervisor still runs"
        folder.rename(jobs_dir / f"{ASIDE}{name}.{os.urandom(4).hex()}")
        return "" if store.forget(name) else "; ".join(store.degraded) or f"{store.path} cannot be written"
    except OSError as error:
        return f"{name}: {error.filename}: {error.strerror}"
    finally:
        supervisor.release()
        lock.release()


def sweep(jobs_dir: Path) -> None:
    """Remove what was set aside."""
    try:
        aside = [entry for entry in os.listdir(jobs_dir) if entry.startswith(ASIDE)]
    except OSError:
        return
    if aside:
        import shutil  # heavy, and seldom needed

    for entry in aside:
        shutil.rmtree(jobs_dir / entry, ignore_errors=True)


def excess(ended: list[tuple[str, float]], keep: EndedJobs, now_wall_s: float) -> list[str]:
    """Of the ended jobs (name and when it ended), newest first: those that need not be kept, oldest first."""
    over = [
        name
        for place, (name, ended_wall_s) in enumerate(ended)
        if place >= keep.at_most or now_wall_s - ended_wall_s > keep.keep_for_s
    ]
    return over[::-1]


def tidy(store: LocalStore, jobs_dir: Path, keep: EndedJobs, now_wall_s: float) -> bool:
    """Forget what need not be kept and has no mail that waits, AT_ONCE at most. True: there may be more."""
    over = (name for name in excess(store.ended(), keep, now_wall_s) if not _mail_waits(store, name))
    forgotten = 0
    for name in islice(over, AT_ONCE):
        if why := forget(store, jobs_dir, name, wait_s=0.0):
            log.warning("ended_job_kept", job=name, why=why)
        else:
            log.info("ended_job_forgotten", job=name)
            forgotten += 1
    return forgotten == AT_ONCE


def _mail_waits(store: LocalStore, name: str) -> bool:
    return any(mail.state == "waiting" for incident in store.incidents(name) for mail in incident.mails)
