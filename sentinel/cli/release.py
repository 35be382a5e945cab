"""`sentinel release NODE`: bring a node of the cluster back; `release NAMESPACE/JOB`: let a job go that is held for a
look inside. On one machine, for a finding: `release JOB ENTITY`, whose Sentinel keeps it, and `release --here ENTITY`,
for the node's agent."""

import argparse
import os

from sentinel.cli.options import add_settings, read_settings
from sentinel.cli.ordering import add_job_order, order, order_of_job
from sentinel.local_run.protect import say
from sentinel.service.control import ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sentinel release [-h] NODE | NAMESPACE/JOB | JOB ENTITY | --here ENTITY"
    parser.add_argument(
        "name",
        metavar="NODE",
        help="a node of the cluster, or a job of it; with ENTITY a job of this machine",
    )
    parser.add_argument(
        "entity", metavar="ENTITY", nargs="?", help="as status and check show it: 'GPU 0000:18:00.0'"
    )
    parser.add_argument("--here", action="store_true", help="the finding is one of this machine's agent")
    add_job_order(parser)
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    """0: done; 1: not done, and why is said; 69, 75, 77, 78: see docs/exit-codes.md."""
    if args.entity is None and not args.here:
        from sentinel.core.fleet.model import OrderKind
        from sentinel.core.job.orders import JobOrderKind

        if args.namespace or "/" in args.name:
            return order_of_job(args, JobOrderKind.RELEASE, args.name)
        return order(args, OrderKind.RELEASE, args.name)
    if args.here and args.entity is not None:
        say("release --here takes an ENTITY alone")
        return os.EX_USAGE
    settings = read_settings(args)
    if settings is None:
        return 78
    folder = settings.state_path / ("agent" if args.here else f"jobs/{args.name}")
    answer = ask(folder, {"do": "release", "entity": args.name if args.here else args.entity})
    nobody = "no agent runs here" if args.here else f"no Sentinel protects {args.name}"
    say(str(answer.get("text")) if answer else nobody)
    return 0 if answer and answer.get("ok") else 1
