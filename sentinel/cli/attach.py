"""`sentinel attach NAME`: protect a job again, and go on with the recovery that it was in."""

import argparse

from sentinel.cli.options import add_settings, read_settings
from sentinel.local_run.attach import attach
from sentinel.local_run.protect import open_store, say
from sentinel.service.control import Lock
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
