"""Policies and settings for resident processes: read by a child, so that no YAML or schema library stays in
the memory of a training node."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from sentinel.core.model import Policy
from sentinel.settings import Settings

TIMEOUT_S = 30.0


class Loaded(Struct, frozen=True, kw_only=True):
    """What the child prints."""

    policy: Policy
    settings: Settings


class ConfigProblem(Exception):
    """The files do not say what they must. `text` has one line for each problem, with file, line and path."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


# Neither the working directory nor its modules (a job's folder may hold a yaml.py) come into the child's path;
# where Sentinel runs from a source tree, that is appended.
_CHILD = "import sys; sys.path.append(sys.argv.pop(1)); from sentinel.config.__main__ import main; sys.exit(main())"


def load_in_child(
    policy_path: str | os.PathLike[str] | None, settings_path: str | os.PathLike[str] | None
) -> tuple[Policy, Settings]:
    """Without a policy file: the default policy within the administrators' caps. Raises ConfigProblem."""
    if policy_path is None and settings_path is None:
        return Policy(), Settings()
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-P", "-c", _CHILD, root]
    for option, path in (("--policy", policy_path), ("--settings", settings_path)):
        if path is not None:
            command.append(f"{option}={os.fspath(path)}")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigProblem(f"reading the configuration took longer than {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ConfigProblem(f"the configuration could not be read: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode != os.EX_CONFIG:  # our own fault, not the file's: its last line is the error
            last = said.splitlines()[-1] if said else "it said nothing"
            said = f"the configuration could not be read (exit code {done.returncode}): {last}"
        raise ConfigProblem(said)
    loaded = msgspec.json.decode(done.stdout, type=Loaded)
    return loaded.policy, loaded.settings
