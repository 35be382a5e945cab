"""`sentinel hold NODE --why TEXT`: keep a node out of service until a person releases it."""

import argparse

from sentinel.cli.ordering import add_arguments, order

__all__ = ["add_arguments", "main"]


def main(args: argparse.Namespace) -> int:
    from sentinel.core.fleet.model import OrderKind

    return order(args, OrderKind.HOLD, args.node)
