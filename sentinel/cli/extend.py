"""`sentinel extend JOB 2h`: more time before maxDuration ends the job, with no restart."""

import argparse

from msgspec import structs

from sentinel.cli import reach
from sentinel.cli.options import add_settings, duration_s, read_settings
from sentinel.cli.ordering import add_job_order, order_of_job
from sentinel.local_run.protect import open_store, say
from sentinel.service.control import Lock, ask
from sentinel.status.job_target import FORMS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help=f"of this machine; or of a cluster: {FORMS}")
    parser.add_argument("time", type=duration_s, metavar="TIME", help="how much longer: 30m, 2h, 1d")
    add_settings(parser)
    add_job_order(parser)


def main(args: argparse.Namespace) -> int:
    """0: done; 1: not done, and why is said; of a cluster also 69, 75, 77: docs/exit-codes.md."""
    settings = read_settings(args)
    if settings is None:
        return 78
    if reach.of_cluster(args, settings.state_path, args.name):
        from sentinel.core.job.orders import JobOrderKind

        return order_of_job(args, JobOrderKind.EXTEND, args.name, f"{args.time:g}s")
    store = open_store(settings)
    if store is None:
        return 73
    job = store.job(args.name)
    if job is None or job.state.final:
        say(f"no running job {args.name!r} in {settings.state_path}")
        return 1
    if job.policy.max_duration_s is None:
        say(f"{args.name} has no maxDuration: it may run as long as it likes")
        return 1
    folder = settings.state_path / "jobs" / args.name
    lock = Lock(folder)
    if not lock.take():
        answer = ask(folder, {"do": "extend", "seconds": args.time})
        say(str(answer.get("text")) if answer else f"the Sentinel that protects {args.name} does not answer")
        return 0 if answer and answer.get("ok") else 1
    try:
        job = store.job(args.name) or job
        store.save(jobs=[structs.replace(job, extra_s=job.extra_s + args.time)])
    finally:
        lock.release()
    say(f"{args.name} may run {job.extra_s + args.time:.0f} s longer than its maxDuration")
    return 0
