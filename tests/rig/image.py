"""The image of the rig: busybox and nothing else, made here because nothing is downloaded."""

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.rig.api import Object
from tests.rig.processes import RigError

IMAGE = "docker.io/rig/busybox:1"  # in a pod `rig/busybox:1` with imagePullPolicy: Never
DONE = "docker.io/rig/done:1"  # the same, and ends at once: for init containers that say no command
COMMANDS = {IMAGE: ["/bin/sleep", "infinity"], DONE: ["/bin/true"]}  # a sandbox needs one that sleeps
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def host_python(*folders: Path) -> tuple[list[Object], list[Object]]:
    """Volumes of a pod and mounts of its container with which `sys.executable` runs in it; more folders as well."""
    prefixes = (Path(sys.base_prefix), Path(sys.prefix), *folders)
    system = (Path(path) for path in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache"))
    inside = [path for path in (*system, *prefixes) if path.exists()]
    paths = [p for n, p in enumerate(inside) if not any(p.is_relative_to(other) for other in inside[:n])]
    volumes = [{"name": f"host-{n}", "hostPath": {"path": str(path)}} for n, path in enumerate(paths)]
    mounts = [{"name": f"host-{n}", "mountPath": str(path), "readOnly": True} for n, path in enumerate(paths)]
    return volumes, mounts


def make_image(path: Path) -> Path:
    """Writes the image under its two names as `docker save` does, for `ctr images import`."""
    busybox = shutil.which("busybox", path="/bin:/usr/bin:/usr/local/bin")
    if not busybox or re.search(rb"/ld-(linux|musl)", Path(busybox).read_bytes()[:4096]):  # asks for a loader
        raise RigError("a static busybox is missing: apt-get install busybox-static")
    layer = _layer(Path(busybox))
    manifest = []
    with tarfile.open(path, "w") as image:
        _add(image, "layer.tar", layer)
        for number, (name, command) in enumerate(COMMANDS.items()):
            config = {
                "architecture": ARCHITECTURES[platform.machine()],
                "os": "linux",
                "config": {"Cmd": command, "Env": ["PATH=/bin"], "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            }
            _add(image, f"config-{number}.json", json.dumps(config).encode())
            manifest.append({"Config": f"config-{number}.json", "RepoTags": [name], "Layers": ["layer.tar"]})
        _add(image, "manifest.json", json.dumps(manifest).encode())
    return path


def _layer(busybox: Path) -> bytes:
    commands = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox.read_bytes(), 0o755)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        _add(layer, "etc/group", b"root:x:0:\n")
        for command in commands:
            if command != "busybox":
                link = tarfile.TarInfo(f"bin/{command}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                layer.addfile(link)
    return out.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
