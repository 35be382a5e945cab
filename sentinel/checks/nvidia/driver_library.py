"""Where NVIDIA's libraries are: of a pod those of its node, which belong to the driver that is loaded there."""

import os
import re

NVML = "libnvidia-ml.so.1"
# Where drivers put them, below a root; the last ones are those of NixOS, of GKE's own nodes and of WSL.
FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
    "home/kubernetes/bin/nvidia/lib64",
    "usr/lib/wsl/lib",
)
DRIVER_ROOT = "run/nvidia/driver"  # of the GPU operator's driver container, whose links lead within it
CACHE_BYTES = 4 << 20
MOST_LINKS = 40  # as many as the kernel follows


def places(root: str, library: str) -> list[str]:
    """Paths below `root` where it may be: the usual ones, and those of the loader's cache."""
    return list(dict.fromkeys([*(f"{folder}/{library}" for folder in FOLDERS), *_cached(root, library)]))


def _cached(root: str, library: str) -> list[str]:
    try:
        with open(os.path.join(root, "etc/ld.so.cache"), "rb") as file:
            cache = file.read(CACHE_BYTES).decode(errors="replace")
    except OSError:
        return []
    return re.findall(rf"/([^\0]*/{re.escape(library)})\0", cache)


def is_named(library: str = NVML) -> bool:
    """Is it where LD_LIBRARY_PATH says?"""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.exists(f"{folder}/{library}") for folder in folders if folder)


def is_here(library: str = NVML) -> bool:
    """May a program of ours find it? Loads nothing, starts nothing."""
    usual = any(os.path.exists(f"/{folder}/{library}") for folder in FOLDERS)
    return usual or is_named(library) or bool(_cached("/", library))


def of_node(root: str, library: str = NVML) -> list[str]:
    """Those of the node with this root (node_root.py), best first. They need nothing but the C library."""
    return [*_there(f"{root}/{DRIVER_ROOT}", library), *_there(root, library)]


def _there(root: str, library: str) -> list[str]:
    found = [inside(root, path) for path in places(root, library)]
    return [path for path in dict.fromkeys(found) if os.path.isfile(path)]


def inside(root: str, path: str) -> str:
    """`path` below `root` with all its links followed as a process with this root would: absolute ones begin there.
    "": they lead in a circle."""
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
            return ""
        if target.startswith("/"):
            done = ""
        parts += target.split("/")[::-1]
    return root + done
