"""Where NVIDIA's libraries are: in the dynamic loader's places, or on the node around a pod that brings none."""

import os
import re
from collections.abc import Iterator

NVML = "libnvidia-ml.so.1"
# Where drivers put them, below a root; the last ones are those of a driver container, of NixOS and of WSL.
FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "run/opengl-driver/lib",
    "usr/lib/wsl/lib",
)
CACHE_BYTES = 4 << 20
MOST_LINKS = 40  # as many as the kernel follows


def places(root: str, library: str) -> list[str]:
    """Paths below `root` where it may be: the usual ones, and those of the loader's cache."""
    usual = [f"{folder}/{library}" for folder in FOLDERS]
    try:
        with open(os.path.join(root, "etc/ld.so.cache"), "rb") as file:
            cache = file.read(CACHE_BYTES).decode(errors="replace")
    except OSError:
        cache = ""
    return list(dict.fromkeys([*usual, *re.findall(rf"/([^\0]*/{re.escape(library)})\0", cache)]))


def of_loader(library: str = NVML) -> str:
    """Where the dynamic loader would find it, "" where it would not. Loads nothing, starts nothing."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.exists(os.path.join(folder, library)):
            return os.path.join(folder, library)
    return next((path for path in _there("", library)), "")


def of_node(procfs: str, library: str = NVML) -> str:
    """That of the node, where its processes can be seen (hostPID and root): it belongs to the driver that is loaded
    there, needs nothing but the C library, and a pod's own would have to be of the same version. "": none."""
    return next((path for path in _there(os.path.join(procfs, "1/root"), library)), "")


def _there(root: str, library: str) -> Iterator[str]:
    for path in places(root or "/", library):
        found = inside(root, path)
        if os.path.exists(found):
            yield found


def inside(root: str, path: str) -> str:
    """`path` below `root` with all its links followed as a process with this root would: absolute ones begin there."""
    parts, done, links = path.split("/")[::-1], "", 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done).rstrip("/")
            continue
        here = f"{done}/{part}"
        try:
            target = os.readlink(root + here)
        except OSError:
            done = here
            continue
        links += 1
        if links > MOST_LINKS:
            break
        if target.startswith("/"):
            done = ""
        parts += target.split("/")[::-1]
    return root + done
