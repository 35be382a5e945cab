"""`sentinel cancel JOB`: give up the recovery of a job of a cluster that waits, and leave the job as it is."""

import argparse

from sentinel.cli.ordering import add_job_arguments as add_arguments
from sentinel.cli.ordering import order_of_job

__all__ = ["add_arguments", "main"]


def main(args: argparse.Namespace) -> int:
    from sentinel.core.job.orders import JobOrderKind

    return order_of_job(args, JobOrderKind.CANCEL, args.name)
