"""`sentinel forget NAME…`: remove the records and logs of jobs that have ended."""

import argparse

from sentinel.cli.options import add_settings, read_settings
from sentinel.local_run.protect import open_store, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="+", help="a job of this machine that has ended")
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    """0: all are forgotten; 1: some are not, and why was said."""
    from sentinel.console.tables import unknown_job
    from sentinel.local_run.ended import forget, sweep

    settings = read_settings(args)
    if settings is None:
        return 78
    store = open_store(settings)
    if store is None:
        return 73
    jobs_dir = settings.state_path / "jobs"
    where = str(settings.state_path)
    known = {job.name: job.state for job in store.jobs()} | dict.fromkeys(dict(store.ended()))
    worst = 0
    for name in dict.fromkeys(args.names):
        why = forget(store, jobs_dir, name) if name in known else unknown_job(name, known, where)
        say(why or f"{name}: its records and logs are removed")
        worst |= bool(why)
    store.close()
    sweep(jobs_dir)
    return worst
