"""The command line. Each command's module is imported only when it is asked for: `--help` stays fast."""

import argparse
import os
import signal
import sys
from importlib import import_module

from sentinel import __version__

# name -> (module, what it does)
COMMANDS = {
    "run": ("sentinel.cli.run", "start a training job and keep it alive"),
    "attach": ("sentinel.cli.attach", "protect a job again whose Sentinel is gone"),
    "status": ("sentinel.cli.status", "what runs, how it goes, what happened"),
    "logs": ("sentinel.cli.logs", "print or follow the logs of a job's ranks"),
    "stop": ("sentinel.cli.stop", "let a job save, then stop it"),
    "forget": ("sentinel.cli.forget", "remove the records and logs of jobs that have ended"),
    "extend": ("sentinel.cli.extend", "let a job run longer than its maxDuration"),
    "retry": ("sentinel.cli.retry", "try a job of a cluster again that was given up, stopped or has expired"),
    "cancel": (
        "sentinel.cli.cancel",
        "give up the recovery of a job of a cluster, and leave the job as it is",
    ),
    "release": (
        "sentinel.cli.release",
        "bring a node back; let a held job go; say that a GPU or a disk is well",
    ),
    "acknowledge": (
        "sentinel.cli.acknowledge",
        "say that the isolation of a node of a cluster is right: it takes no room from others",
    ),
    "hold": ("sentinel.cli.hold", "keep a node of a cluster out of service until it is released"),
    "drain": (
        "sentinel.cli.drain",
        "move the protected jobs off a node of a cluster and keep it out of service",
    ),
    "confirm-dead": ("sentinel.cli.confirm_dead", "say that a silent node is off: its pods may go"),
    "pause": ("sentinel.cli.pause", "let nothing new be done to the nodes of a cluster, or go on"),
    "code": ("sentinel.cli.code", "say of what many nodes have at once whether it is real or a mistake"),
    "check": ("sentinel.cli.check", "look at the health of this machine"),
    "agent": ("sentinel.cli.agent", "watch the health of this node, and serve it as metrics and JSON"),
    "controller": ("sentinel.cli.controller", "take bad nodes of a Kubernetes cluster out of service"),
    "uninstall": (
        "sentinel.cli.uninstall",
        "take away what Sentinel has left on nodes and jobs of a cluster",
    ),
    "validate": ("sentinel.cli.validate", "list every error of policies, settings and rule files"),
    "explain": ("sentinel.cli.explain", "say why a job failed, from its logs and kernel logs alone"),
    "replay": ("sentinel.cli.replay", "run the same core over old logs"),
    "install-unit": ("sentinel.cli.unit", "resume jobs after a reboot with a systemd user unit"),
    "demo": ("sentinel.cli.demo", "train a small model, break it for real, watch it recover"),
}


def main(argv: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # this process is ours alone
        # structlog imports rich where it is installed, for colours that we never print: a fifth of our start and 4 MiB.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # a shell may have it ignored: then children have no exit status
    name = next((word for word in arguments if not word.startswith("-")), "")
    parser = argparse.ArgumentParser(prog="sentinel", description="Keeps GPU training jobs running.")
    parser.add_argument("--version", action="version", version=f"sentinel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module = None
    for command, (path, text) in COMMANDS.items():
        sub = commands.add_parser(command, help=text, description=text[0].upper() + text[1:] + ".")
        if command == name:
            module = import_module(path)
            module.add_arguments(sub)
    parsed = parser.parse_args(arguments)
    assert module is not None  # argparse refused every other command
    if "structlog" in sys.modules:  # no log event may land in what a command prints
        from sentinel.util import journal

        journal.configure(None)
    try:
        return int(module.main(parsed))
    except BrokenPipeError:  # `sentinel status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # it says itself what the system refused, and where
        print(f"sentinel {name}: {error}", file=sys.stderr)
        return 74
