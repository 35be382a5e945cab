"""`sentinel agent`: watch the health of this node for as long as it runs."""

import argparse
from typing import TYPE_CHECKING

from sentinel.cli.options import add_settings
from sentinel.console.said import Said

if TYPE_CHECKING:
    from pathlib import Path

EXIT_CONFIG = 78
EXIT_CANNOT_CREATE = 73
say = Said("sentinel agent")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--path", action="append", default=[], help="also watch the file system of this path")
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    """0: it was told to end; 73: another agent runs, or the state directory cannot be used; 78: bad settings.
    70 where its event loop was frozen (sentinel/service/health.py)."""
    from sentinel.cli.options import read_settings

    settings = read_settings(args)
    if settings is None:
        return EXIT_CONFIG
    import asyncio

    from sentinel.agent.node import NodeAgent
    from sentinel.agent.state import FOLDER
    from sentinel.service.control import Lock
    from sentinel.util import journal

    folder = settings.state_path / FOLDER
    lock = Lock(folder)
    try:
        taken = lock.take()
    except OSError as error:
        say(f"{folder}: {error.strerror}: settings have stateDir, the environment SENTINEL_STATE_DIR")
        return EXIT_CANNOT_CREATE
    if not taken:
        say(_who_runs(folder))
        return EXIT_CANNOT_CREATE
    journal.configure(folder / "agent.log")
    try:
        agent = NodeAgent(settings, folder, settings_file=args.settings, paths=tuple(args.path), say=say)
        asyncio.run(agent.run())
    finally:
        lock.release()
    return 0


def _who_runs(folder: "Path") -> str:
    from sentinel.local_run.presence import read

    running = read(folder)
    who = (
        f"process {running.pid}" + (f", {running.url}" if running.url else "")
        if running
        else "another process"
    )
    return f"an agent already runs here ({who}, state in {folder}): one is enough for a machine"
