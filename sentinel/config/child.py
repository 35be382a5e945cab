"""The child that reads policies and settings. Imported before anything heavy, so that it works beside our imports."""

import os
import subprocess
import sys
from pathlib import Path

# Neither the working directory nor its modules (a job's folder may hold a yaml.py) come into the child's path;
# where Sentinel runs from a source tree, that is appended.
_CHILD = "import sys; sys.path.append(sys.argv.pop(1)); from sentinel.config.__main__ import main; sys.exit(main())"


def begin(
    policy_path: str | os.PathLike[str] | None, settings_path: str | os.PathLike[str] | None
) -> "subprocess.Popen[bytes]":
    """Start to read; `sentinel.config.client.finish` has the outcome. Raises OSError."""
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-P", "-c", _CHILD, root]
    for option, path in (("--policy", policy_path), ("--settings", settings_path)):
        if path is not None:
            command.append(f"{option}={os.fspath(path)}")
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
