"""`sentinel acknowledge NODE --why TEXT`: the isolation is right, and takes no room from the next one."""

import argparse

from sentinel.cli.ordering import add_arguments, order

__all__ = ["add_arguments", "main"]


def main(args: argparse.Namespace) -> int:
    from sentinel.core.fleet.model import OrderKind

    return order(args, OrderKind.ACKNOWLEDGE, args.node)
