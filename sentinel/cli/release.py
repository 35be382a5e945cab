"""`sentinel release [NAME] ENTITY`: a person says that a GPU, a disk or a node is well again."""

import argparse

from sentinel.cli.control import ask
from sentinel.cli.options import add_settings, read_settings
from sentinel.cli.protect import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", help="the job whose Sentinel keeps the finding; without it the node's agent does"
    )
    parser.add_argument("entity", help="as status and check show it: 'GPU 0000:18:00.0'")
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    settings = read_settings(args)
    if settings is None:
        return 78
    folder = settings.state_path / ("agent" if args.name is None else f"jobs/{args.name}")
    answer = ask(folder, {"do": "release", "entity": args.entity})
    nobody = "no agent runs here" if args.name is None else f"no Sentinel protects {args.name}"
    say(str(answer.get("text")) if answer else nobody)
    return 0 if answer and answer.get("ok") else 1
