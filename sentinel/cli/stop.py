"""`sentinel stop JOB`: save, stop, and wait for the end; of a cluster for the controller's answer alone."""

import argparse
import time

from sentinel.cli import reach
from sentinel.cli.attach import attach
from sentinel.cli.control import Lock, ask_holder
from sentinel.cli.job_target import FORMS
from sentinel.cli.options import add_settings, duration_s, read_settings
from sentinel.cli.ordering import add_job_order, order_of_job
from sentinel.cli.protect import open_store, say
from sentinel.core.events import EndRequested
from sentinel.core.model import JobState


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
        from sentinel.core.job_orders import NOW, JobOrderKind

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
    grace_s = 0.0 if args.now else args.grace if args.grace is not None else job.policy.graceful_stop_s
    folder = settings.state_path / "jobs" / args.name
    lock = Lock(folder)
    if lock.take():
        # Nobody protects it: this process adopts it to stop it.
        lock.release()
        store.close()
        end = EndRequested(
            JobState.STOPPED, "Stopped", "Stopped by a person.", grace_s, save=not args.now, code=130
        )
        attach(settings, args.name, quiet=True, end=end)
        store = open_store(settings)
        ended = store.job(args.name) if store else None
        if store is None or ended is None or ended.state.final:
            say(f"{args.name}: {ended.state.value if ended else 'unknown'}")
            return 0 if ended is not None else 1
        # Another Sentinel, which began at the same time, takes it over.
    answer = ask_holder(folder, {"do": "stop", "grace_s": grace_s, "save": not args.now})
    if answer is None:
        say(
            f"the Sentinel that protects {args.name} does not answer; kill -9 it (the job goes on), try again"
        )
        return 1
    say(str(answer.get("text")))
    deadline = time.monotonic() + args.timeout
    while time.monotonic() < deadline:
        ended = store.job(args.name)
        if ended is not None and ended.state.final:
            say(f"{args.name}: {ended.state.value}: {ended.sentence}")
            return 0
        time.sleep(0.1)
    say(f"{args.name} has not ended within {args.timeout:.0f} s; it is still being stopped")
    return 1
