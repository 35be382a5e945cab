"""Options that several commands share."""

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `run` reads its options before it pays for anything heavy
    from sentinel.settings import Settings


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", metavar="FILE", help="administrators' settings (YAML, kind Settings)")


def read_settings(args: argparse.Namespace) -> "Settings | None":
    """None: the file was refused, and why was said."""
    from sentinel.settings import Settings

    if not args.settings:
        return Settings()
    import sys

    from sentinel.config.client import ConfigProblem, load_in_child

    try:
        return load_in_child(None, args.settings)[1]
    except ConfigProblem as problem:
        print(problem.text, file=sys.stderr)
        return None


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str) -> float:
    """`90s`, `5m`, `1h30m`, `2d` in seconds. Raises argparse.ArgumentTypeError."""
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a duration with its unit, such as 90s, 5m, 1h30m, 2d"
        )
    return sum(float(n) * _UNITS[unit] for n, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))
