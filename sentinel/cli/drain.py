"""`sentinel drain NODE --why TEXT`: planned work. The node takes no new pods, its protected jobs move as their policies
allow, and it stays out of service until `sentinel drain NODE --off`."""

import argparse

from sentinel.cli import ordering

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    ordering.add_arguments(parser)
    parser.add_argument("--off", action="store_true", help="take it back: the node returns to service")


def main(args: argparse.Namespace) -> int:
    from sentinel.core.fleet.model import OrderKind

    return ordering.order(args, OrderKind.DRAIN_OFF if args.off else OrderKind.DRAIN, args.node)
