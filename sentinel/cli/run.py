"""`sentinel run -- CMD`: start a job on this machine and keep it alive."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from sentinel.cli.options import add_settings

if TYPE_CHECKING:
    import subprocess

    from sentinel.core.policy_model import Policy
    from sentinel.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy", metavar="FILE", help="a JobPolicy (YAML); without one, sane defaults protect"
    )
    parser.add_argument("--name", help="name of the job (default: from CMD)")
    parser.add_argument(
        "--nproc",
        type=int,
        metavar="N",
        help="start N ranks of CMD with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_*",
    )
    parser.add_argument("--detach", action="store_true", help="protect the job in the background")
    parser.add_argument("--adopt", action="store_true", help="if a job of this name runs, protect that one")
    add_settings(parser)
    parser.add_argument(
        "cmd",
        nargs=argparse.REMAINDER,
        metavar="-- CMD …",
        help="the training command; its ranks read nothing from the terminal (stdin is /dev/null: no breakpoint()); "
        "they are told where to write torch's flight records (TORCH_NCCL_DEBUG_INFO_TEMP_FILE, unless it is set)",
    )


def main(args: argparse.Namespace) -> int:
    command = args.cmd[1:] if args.cmd[:1] == ["--"] else args.cmd
    if not command:
        return _refuse(64, "no command: sentinel run [options] -- CMD …")
    if args.nproc is not None and not 1 <= args.nproc <= 4096:
        return _refuse(64, f"--nproc {args.nproc}: expected 1 to 4096")
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        return _refuse(69, "the working directory is gone: change into one that exists")
    child = None
    if args.policy or args.settings:
        from sentinel.config.child import begin

        try:
            child = begin(args.policy, args.settings)
        except OSError as error:
            return _refuse(78, f"the configuration could not be read: {error}")
    # All that a job needs is imported while the child reads: each takes a quarter second.
    from sentinel.console import terminal  # noqa: F401
    from sentinel.local_run import session  # noqa: F401
    from sentinel.local_run.start import start

    loaded = _outcome(child)
    return 78 if loaded is None else start(args, command, cwd, *loaded)


def _refuse(code: int, text: str) -> int:
    print(f"sentinel: {text}", file=sys.stderr, flush=True)
    return code


def _outcome(child: "subprocess.Popen[bytes] | None") -> "tuple[Policy, Settings] | None":
    from sentinel.core.policy_model import Policy
    from sentinel.settings import Settings

    if child is None:
        return Policy(), Settings()
    from sentinel.config.client import ConfigProblem, finish

    try:
        return finish(child)
    except ConfigProblem as problem:
        print(problem.text, file=sys.stderr)
        return None
