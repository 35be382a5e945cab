"""`sentinel attach NAME`: protect a job again, and go on with the recovery that it was in."""

import argparse
from collections.abc import Callable

from sentinel.cli.control import Lock
from sentinel.cli.options import add_settings, read_settings
from sentinel.cli.protect import detached, open_store, protect, say, take_over
from sentinel.core.events import EndRequested
from sentinel.core.model import ProtectedJob
from sentinel.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the job")
    parser.add_argument(
        "--all", action="store_true", help="every job that nobody protects, in the background"
    )
    parser.add_argument("--detach", action="store_true", help="protect it in the background")
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    settings = read_settings(args)
    if settings is None:
        return 78
    if args.all:
        return attach_all(settings)
    if not args.name:
        say("which job? `sentinel status` lists them")
        return 64
    return attach(settings, args.name, detach=args.detach)


def attach_all(settings: Settings) -> int:
    store = open_store(settings)
    if store is None:
        return 73
    names = [job.name for job in store.jobs() if not job.state.final]
    store.close()
    worst = 0
    for name in names:
        lock = Lock(settings.state_path / "jobs" / name)
        if not lock.take():
            continue  # somebody protects it
        lock.release()
        worst = max(worst, attach(settings, name, detach=True))
    return worst


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
    from sentinel.cli.exit_codes import ended_code

    say(f"{job.name} has ended: {job.state.value} ({job.reason}): {job.sentence}")
    return ended_code(job)
