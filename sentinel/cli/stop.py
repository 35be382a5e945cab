"""`sentinel stop JOB`: save, stop, and wait for the end; of a cluster for the controller's answer alone."""

import argparse
import time
from pathlib import Path

from sentinel.cli import reach
from sentinel.cli.options import add_settings, duration_s, read_settings
from sentinel.cli.ordering import add_job_order, order_of_job
from sentinel.cluster.local.processes import is_same
from sentinel.cluster.local.status import boot_id, read_status
from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import JobState, ProtectedJob
from sentinel.core.recovery.events import EndRequested
from sentinel.local_run.attach import attach
from sentinel.local_run.exit_codes import EXIT_STOPPED
from sentinel.local_run.protect import HANDOVER_S, open_store, say
from sentinel.service.control import Lock, ask, ask_holder
from sentinel.settings import Settings
from sentinel.status.job_target import FORMS

POLL_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help=f"of this machine; or of a cluster: {FORMS}")
    parser.add_argument("--now", action="store_true", help="neither save nor wait: kill it")
    parser.add_argument(
        "--grace", type=duration_s, metavar="TIME", help="SIGKILL after this long (default: the policy's)"
    )
    parser.add_argument(
        "--timeout",
        type=duration_s,
        default=3600.0,
        metavar="TIME",
        help="for its end, on this machine",
    )
    add_settings(parser)
    add_job_order(parser)


def main(args: argparse.Namespace) -> int:
    settings = read_settings(args)
    if settings is None:
        return 78
    if reach.of_cluster(args, settings.state_path, args.name):
        from sentinel.core.job.orders import NOW, JobOrderKind

        how = NOW if args.now else "" if args.grace is None else f"{args.grace:g}s"
        return order_of_job(args, JobOrderKind.STOP, args.name, how)
    store = open_store(settings)
    if store is None:
        return 73
    job = store.job(args.name)
    if job is None:
        known = ", ".join(sorted(j.name for j in store.jobs())) or "none"
        say(f"no job {args.name!r} in {settings.state_path} (known: {known})")
        return 1
    if job.state.final:
        say(f"{args.name} has already ended: {job.state.value}")
        return 0
    store.close()
    grace_s = 0.0 if args.now else args.grace if args.grace is not None else job.policy.graceful_stop_s
    return _stop(settings, args.name, grace_s, save=not args.now, timeout_s=args.timeout)


def _stop(settings: Settings, name: str, grace_s: float, *, save: bool, timeout_s: float) -> int:
    """Ask the Sentinel that protects the job and wait for the end; where nobody does, or does no more, do it here."""
    folder = settings.state_path / "jobs" / name
    lock = Lock(folder)
    deadline = time.monotonic() + timeout_s
    asked = False
    while (ended := _ended(settings, name)) is None:
        if time.monotonic() > deadline:
            say(f"{name} has not ended within {timeout_s:.0f} s; it is still being stopped")
            return 1
        if lock.take():  # nobody protects it, or its Sentinel has ended with it just now
            if _ended(settings, name) is not None:
                lock.release()
                continue
            if asked:
                say(
                    f"the Sentinel that was stopping {name} is gone, as after kill -9; {_stands(folder)}; "
                    f"the stop goes on here, `sentinel stop --now {name}` kills the job at once"
                )
            end = EndRequested(
                JobState.STOPPED, "Stopped", "Stopped by a person.", grace_s, save=save, code=EXIT_STOPPED
            )
            code = attach(settings, name, quiet=True, end=end, lock=lock)
            lock.release()
            if _ended(settings, name) is None:
                if code:
                    return 1  # why was said
                _wait_for_the_other(settings, name, min(deadline, time.monotonic() + HANDOVER_S))
            asked = False
            continue
        if not asked:
            answer = ask_holder(folder, {"do": "stop", "grace_s": grace_s, "save": save}, lock)
            asked = True
            if answer is not None:
                say(str(answer.get("text")))
            elif not lock.held:
                say(
                    f"the Sentinel that protects {name} does not answer; kill -9 it (the job goes on), try again"
                )
                return 1
            lock.release()
        time.sleep(POLL_S)
    say(f"{name}: {ended.state.value}: {ended.sentence}")
    return 0


def _wait_for_the_other(settings: Settings, name: str, until_s: float) -> None:
    """The Sentinel that has asked for the job: until it protects it, or does not come."""
    folder = settings.state_path / "jobs" / name
    while _ended(settings, name) is None and time.monotonic() < until_s:
        if ask(folder, {"do": "ping"}, timeout_s=1.0) is not None:
            return
        time.sleep(POLL_S)


def _ended(settings: Settings, name: str) -> ProtectedJob | None:
    """The record of the job, once it has ended."""
    store = LocalStore(settings.state_path / "state.db", read_only=True)
    try:
        job = store.job(name)
    finally:
        store.close()
    return job if job is not None and job.state.final else None


def _stands(folder: Path) -> str:
    """What of the job is alive, in words."""
    status = read_status(folder)
    if status is None or status.header.boot_id != boot_id():
        return "none of its ranks runs"
    alive = [slot.pid for slot in status.slots.values() if is_same(slot.pid, slot.start_ticks)]
    if not alive:
        return "none of its ranks runs"
    pids = ", ".join(map(str, alive[:8])) + (", ..." if len(alive) > 8 else "")
    return f"{len(alive)} of its {status.header.size} ranks run on (pid {pids})"
