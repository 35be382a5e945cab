"""`sentinel release NAME ENTITY`: a person says that a GPU is well again."""

import argparse

from sentinel.cli.control import ask
from sentinel.cli.options import add_settings, read_settings
from sentinel.cli.protect import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the job whose Sentinel keeps the finding")
    parser.add_argument("entity", help="as status shows it: 'GPU 0000:18:00.0'")
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    settings = read_settings(args)
    if settings is None:
        return 78
    answer = ask(settings.state_path / "jobs" / args.name, {"do": "release", "entity": args.entity})
    say(str(answer.get("text")) if answer else f"no Sentinel protects {args.name}")
    return 0 if answer and answer.get("ok") else 1
