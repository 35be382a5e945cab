"""`sentinel install-unit`: after a reboot, a systemd user unit attaches every job that was running."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from sentinel.cli.options import add_settings
from sentinel.local_run.protect import say

UNIT = """\
[Unit]
Description=Sentinel: resume protected training jobs after a reboot

[Service]
Type=oneshot
RemainAfterExit=yes
KillMode=none
ExecStart={command} attach --all{settings}
{environment}
[Install]
WantedBy=default.target
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="print the unit, install nothing"
    )
    add_settings(parser)


def unit_text(settings: str | None) -> str:
    command = f'"{sys.executable}" -m sentinel'
    chosen = f' --settings "{os.path.abspath(settings)}"' if settings else ""
    state = os.environ.get("SENTINEL_STATE_DIR")
    environment = f'Environment="SENTINEL_STATE_DIR={os.path.abspath(state)}"\n' if state else ""
    return UNIT.format(command=command, settings=chosen, environment=environment)


def main(args: argparse.Namespace) -> int:
    text = unit_text(args.settings)
    if args.only_print:
        print(text, end="")
        return 0
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(base).expanduser() / "systemd" / "user" / "sentinel.service"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        say(f"{path}: {error.strerror}")
        return 73
    say(f"wrote {path}")
    systemctl = shutil.which("systemctl")
    command = ["systemctl", "--user", "enable", "sentinel.service"]
    if systemctl is not None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode == 0:
            say("enabled; `loginctl enable-linger` lets it start before you log in")
            return 0
        say(f"not enabled: {done.stderr.strip()}")
    say(f"enable it with: {' '.join(command)}")
    return 1
