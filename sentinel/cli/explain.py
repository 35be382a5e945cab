"""`sentinel explain FILE…|DIR`: what happened first, why, and what to change, from any saved logs.

Logs of jobs and kernel logs are told apart by what stands in them. Nothing is touched: no policy, no state, no cluster.
Exit codes: 0 something was explained; 1 nothing is known in what was read, or nothing could be read; 64 the command
line is wrong; 78 a rule file is.
"""

import argparse
import sys

from sentinel.cli.options import add_settings

NOTHING, USAGE, CONFIG = 1, 64, 78


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="FILE|DIR",
        help="logs of a job (several are its ranks where their names say so), kernel logs (dmesg, syslog, "
        "journalctl), or folders of both; - is standard input; .gz is read too",
    )
    add_settings(parser)
    parser.add_argument(
        "--exit-code",
        type=_code,
        metavar="N",
        help="what the job ended with; without it only its log can tell",
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="text for people, json for programs"
    )


def _code(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 255:
        raise argparse.ArgumentTypeError("expected 0 to 255")
    return int(text)


def main(args: argparse.Namespace) -> int:
    from sentinel.config.client import ConfigProblem, load_in_child
    from sentinel.console.tables import complain, put, put_document
    from sentinel.explain.job import explained
    from sentinel.explain.read import given
    from sentinel.explain.show import as_text
    from sentinel.rules.tables import RuleError

    if args.paths.count("-") > 1:
        complain("standard input (-) can be read only once")
        return USAGE
    try:
        asked, settings = load_in_child(None, args.settings)
        answer = explained(given(args.paths), asked, settings, args.exit_code)
    except ConfigProblem as problem:
        print(problem.text, file=sys.stderr)
        return CONFIG
    except RuleError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return CONFIG
    if args.output == "json":
        put_document(answer)
    else:
        put(as_text(answer))
    return 0 if answer.known else NOTHING
