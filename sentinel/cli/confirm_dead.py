"""`sentinel confirm-dead NODE`: a person says that a silent node is off, so that its pods may be removed by force."""

import argparse

from sentinel.cli.ordering import add_arguments, order

__all__ = ["add_arguments", "main"]


def main(args: argparse.Namespace) -> int:
    from sentinel.core.fleet.model import OrderKind

    return order(args, OrderKind.CONFIRM_DEAD, args.node)
