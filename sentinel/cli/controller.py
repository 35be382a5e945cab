"""`sentinel controller`: take bad nodes of a cluster out of service, and give them back. Two run, one leads."""

import argparse
import os
import sys

from sentinel.cli.options import add_settings

EXIT_UNREACHABLE = 69
EXIT_CANNOT_CREATE = 73
EXIT_CONFIG = 78


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig", default="", help="default: the pod's service account, else ~/.kube/config"
    )
    parser.add_argument(
        "--namespace", default="", help="of Lease, Secret and ConfigMap (default: $POD_NAMESPACE)"
    )
    parser.add_argument(
        "--agents", default="0.0.0.0:8443", metavar="HOST:PORT", help="where agents are served"
    )
    parser.add_argument(
        "--address", default="", metavar="HOST:PORT", help="where agents reach it ($POD_IP:port)"
    )
    parser.add_argument(
        "--observe", action="store_true", help="decide, record and tell; isolate no node and touch no pod"
    )
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    """0: it was told to end; 69: no API server can be had; 73: it cannot listen; 78: bad settings or arguments."""
    from sentinel.cli.options import read_settings

    settings = read_settings(args)
    if settings is None:
        return EXIT_CONFIG
    host, _, port = args.agents.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        say(f"--agents: {args.agents!r}: expected HOST:PORT, such as 0.0.0.0:8443")
        return EXIT_CONFIG
    import asyncio

    from sentinel import journal
    from sentinel.cli.controlling import Controlling
    from sentinel.errors import PermanentError

    journal.configure(settings.state_path / "controller.log")
    try:
        asyncio.run(Controlling(settings, args, host.strip("[]"), int(port), say).run())
    except PermanentError as error:
        say(str(error))
        return EXIT_CANNOT_CREATE if error.reason == "CannotListen" else EXIT_UNREACHABLE
    return 0


def say(text: str) -> None:
    """One line on stderr, which is the log of a pod."""
    from sentinel.web.words import printable

    try:
        print(f"sentinel controller: {printable(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
