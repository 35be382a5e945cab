"""`sentinel controller`: take bad nodes of a cluster out of service, and give them back. Two run, one leads."""

import argparse

from sentinel.cli.options import add_settings
from sentinel.console.said import Said

EXIT_UNREACHABLE = 69
EXIT_CANNOT_CREATE = 73
EXIT_CONFIG = 78
say = Said("sentinel controller")

# Python looks for cycles among all objects every few seconds with its own numbers (700, 10, 10), which takes half a
# second with ten thousand connections. What is left to it here are the transports of connections that have ended: 3 KiB
# each, at most a hundred thousand of them between two full collections. A look at 25 000 young objects takes 25 ms.
# Nothing is frozen (gc.freeze) after the first sync: of a full collection 10 000 nodes and 2 000 jobs are 50 ms and
# modules 25 ms, and connections, 55 us each, nearly all the rest. These end in cycles, as pictures of jobs do, and
# what is frozen then is never given back.
COLLECT = (5_000, 5, 80)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig", metavar="FILE", default="", help="default: $KUBECONFIG, the pod's, ~/.kube/config"
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default="",
        help="of Lease, Secret and ConfigMap (default: $POD_NAMESPACE, else sentinel-system)",
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
    """0: it was told to end; 69: no API server can be had; 73: it cannot listen, or the state directory cannot be used;
    78: bad settings or arguments, or no fencing program where the settings have it."""
    from sentinel.cli.options import read_settings

    settings = read_settings(args)
    if settings is None:
        return EXIT_CONFIG
    host, _, port = args.agents.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        say(f"--agents: {args.agents!r}: expected HOST:PORT, such as 0.0.0.0:8443")
        return EXIT_CONFIG
    import asyncio
    import gc

    from sentinel.controller.daemon.controlling import Controlling
    from sentinel.controller.effects.fence import unfit
    from sentinel.core.fleet.settings import fleet_settings
    from sentinel.util import journal
    from sentinel.util.errors import PermanentError

    hook = fleet_settings(settings.fleet).fence
    if hook is not None and (why := unfit(hook.command[0])):
        say(f"fleet.fence.command: {why}")
        return EXIT_CONFIG

    try:
        journal.configure(settings.state_path / "controller.log")
    except OSError as error:
        say(
            f"{settings.state_path}: {error.strerror}: settings have stateDir, the environment SENTINEL_STATE_DIR"
        )
        return EXIT_CANNOT_CREATE
    gc.set_threshold(*COLLECT)
    try:
        asyncio.run(Controlling(settings, args, host.strip("[]"), int(port), say).run())
    except PermanentError as error:
        say(str(error))
        return EXIT_CANNOT_CREATE if error.reason == "CannotListen" else EXIT_UNREACHABLE
    return 0
