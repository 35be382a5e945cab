"""Policies and settings for resident processes: read by a child, so that no YAML or schema library stays in
the memory of a training node."""

import os
import subprocess

import msgspec
from msgspec import Struct

from sentinel.config.child import begin
from sentinel.core.policy_model import Policy
from sentinel.settings import Settings

TIMEOUT_S = 60.0


class Loaded(Struct, frozen=True, kw_only=True):
    """What the child prints."""

    policy: Policy
    settings: Settings


class ConfigProblem(Exception):
    """The files do not say what they must. `text` has one line for each problem, with file, line and path."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def load_in_child(
    policy_path: str | os.PathLike[str] | None, settings_path: str | os.PathLike[str] | None
) -> tuple[Policy, Settings]:
    """Without a policy file: the default policy within the administrators' caps. Raises ConfigProblem."""
    if policy_path is None and settings_path is None:
        return Policy(), Settings()
    try:
        return finish(begin(policy_path, settings_path))
    except OSError as error:
        raise ConfigProblem(f"the configuration could not be read: {error}") from None


def finish(child: "subprocess.Popen[bytes]") -> tuple[Policy, Settings]:
    """What a child that was begun has read. Raises ConfigProblem."""
    with child:
        try:
            out, errors = child.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise ConfigProblem(f"reading the configuration took longer than {TIMEOUT_S:g} s") from None
    if child.returncode != 0:
        said = errors.decode(errors="replace").strip()
        if child.returncode != os.EX_CONFIG:  # our own fault, not the file's: its last line is the error
            last = said.splitlines()[-1] if said else "it said nothing"
            said = f"the configuration could not be read (exit code {child.returncode}): {last}"
        raise ConfigProblem(said)
    loaded = msgspec.json.decode(out, type=Loaded)
    return loaded.policy, loaded.settings
