"""Protects a job again, and goes on with the recovery that it was in."""

from collections.abc import Callable

from sentinel.core.model import ProtectedJob
from sentinel.core.recovery.events import EndRequested
from sentinel.local_run.protect import detached, open_store, protect, say, take_over
from sentinel.service.control import Lock
from sentinel.settings import Settings


def attach(
    settings: Settings,
    name: str,
    *,
    detach: bool = False,
    quiet: bool = False,
    end: EndRequested | None = None,
    lock: Lock | None = None,
) -> int:
    """`lock`: the job's, where the caller holds it already."""
    store = open_store(settings)
    if store is None:
        return 73
    job = store.job(name)
    if job is None:
        known = ", ".join(sorted(j.name for j in store.jobs())) or "none"
        say(f"no job {name!r} in {settings.state_path} (known: {known})")
        return 1
    if job.state.final:
        return _has_ended(job)
    store.close()

    def work(on_ready: Callable[[], None]) -> int:
        held = lock or take_over(settings, name)
        own = open_store(settings)
        if held is None or own is None:
            return 73
        record = own.job(name) or job
        if record.state.final:  # the other Sentinel ended with it
            own.close()
            held.release()
            return _has_ended(record)
        return protect(record, settings, own, held, fresh=False, quiet=quiet, end=end, on_ready=on_ready)

    return detached(settings, name, work) if detach else work(lambda: None)


def _has_ended(job: ProtectedJob) -> int:
    from sentinel.local_run.exit_codes import ended_code

    say(f"{job.name} has ended: {job.state.value} ({job.reason}): {job.sentence}")
    return ended_code(job)
