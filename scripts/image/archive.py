"""The image as one archive, as a folder, and by size."""

import fcntl
import io
import json
import os
import re
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from scripts.image.base import USER, Base, Object, machine, own_base, read_base
from scripts.image.contents import HOME, REPO, STATE, packages, sentinel, site_packages
from scripts.image.layers import Layer, Tree, digest, kept

CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LARGEST = 8  # packages whose size is said
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
NAME = f"localhost/sentinel:{PROJECT['version']}"  # that of deploy/
# https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
LABELS = {
    "org.opencontainers.image.title": "Sentinel",
    "org.opencontainers.image.description": PROJECT["description"],
    "org.opencontainers.image.version": PROJECT["version"],
    "org.opencontainers.image.licenses": PROJECT["license"],
}


class Image:
    """`bill`: what is in it (CycloneDX)."""

    def __init__(self, base: Base, layers: Iterable[Layer], bill: bytes = b"") -> None:
        self.base, self.layers, self.bill = base, [*base.layers, *layers], bill

    def config(self) -> Object:
        run = {**self.base.config.get("config", {})}
        env = dict(one.split("=", 1) for one in run.get("Env", []))
        # `kubectl exec POD -- sentinel`
        env["PATH"] = f"{env.get('PATH', '/usr/local/bin:/usr/bin:/bin')}:/{HOME}/bin"
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "SENTINEL_STATE_DIR": f"/{STATE}"}
        run |= {
            "Env": [f"{name}={value}" for name, value in env.items()],
            "Entrypoint": [f"/{HOME}/bin/sentinel"],
            "Cmd": ["--help"],
            "WorkingDir": "/",
            "User": f"{USER}:{USER}",
            "Labels": {**(run.get("Labels") or {}), **LABELS},
        }
        return {
            "architecture": self.base.arch,
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
        }

    def write(self, name: str, path: Path) -> None:
        """Complete or not at all."""
        blobs: dict[str, bytes] = {}

        def described(data: bytes, kind: str) -> Object:
            blobs[digest(data)] = data
            return {"mediaType": kind, "digest": digest(data), "size": len(data)}

        config_data = json.dumps(self.config()).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described(config_data, CONFIG),
            "layers": [described(layer.data, layer.media_type) for layer in self.layers],
            "annotations": LABELS,
        }
        full = _with_registry(name)
        entry = {
            **described(json.dumps(manifest).encode(), MANIFEST),
            "annotations": {
                "io.containerd.image.name": full,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
            "platform": {"architecture": self.base.arch, "os": "linux"},
        }
        files = {f"blobs/{kind.replace(':', '/')}": data for kind, data in blobs.items()}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
        files["index.json"] = json.dumps(index).encode()
        files["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
        docker = {
            "Config": f"blobs/{digest(config_data).replace(':', '/')}",
            "RepoTags": [name],
            "Layers": [f"blobs/{digest(layer.data).replace(':', '/')}" for layer in self.layers],
        }
        files["manifest.json"] = json.dumps([docker]).encode()
        tree = Tree()
        for inside, data in files.items():
            tree.file(inside, data)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f"{path.name}.{os.getpid()}")
        half.write_bytes(tree.layer().data)
        os.replace(half, path)

    def unpack(self, folder: Path) -> None:
        """The root of its files, for a Containerfile. Owners are as they should be where root does it."""
        folder.mkdir(parents=True, exist_ok=True)
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer.data)) as tar:
                tar.extraction_filter = getattr(
                    tarfile, "fully_trusted_filter", None
                )  # not in each Python 3.11
                tar.extractall(folder, numeric_owner=True)

    def sizes(self) -> str:
        """What each part takes when it is unpacked, in MB (10^6 bytes). A base of one's own is not counted."""
        *lower, packages, sentinel = self.layers
        parts = Counter({"Sentinel": sum(_sizes(sentinel).values())})
        for path, size in _sizes(packages).items():
            parts[_package_of(path, site_packages(self.base))] += size
        own = self.base.libraries is not None
        if own:
            total = sum(sum(_sizes(layer).values()) for layer in lower)
            parts[f"Python {self.base.version} and its libraries"] = total
        shown = parts.most_common(LARGEST)
        every = sum(parts.values())
        shown += [("the rest", every - sum(size for _, size in shown))]
        shown += [("unpacked" if own else "unpacked, beside the base", every)]
        return "\n".join(f"{size / 1e6:6.1f} MB  {name}" for name, size in shown)


def _sizes(layer: Layer) -> dict[str, int]:
    with tarfile.open(fileobj=io.BytesIO(layer.data)) as tar:
        return {entry.name: entry.size for entry in tar}


def _package_of(path: str, below: str) -> str:
    """By what it is imported as: what belongs to a package but lies beside it has its name as a beginning."""
    if path.startswith(f"{below}/"):
        return re.split(r"[-./]", path.removeprefix(f"{below}/"))[0]
    return os.path.basename(path) if "/bin/" in path else "libraries of packages"


def _with_registry(name: str) -> str:
    """As containerd has it: what begins with no host is of Docker's registry."""
    host, slash, _ = name.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host):
        return name
    return f"docker.io/{name if slash else f'library/{name}'}"


def make(*, base: Path | None = None, arch: str = "", wheels: str = "", say: Callable[[str], None]) -> Image:
    """Packages that were installed once for the same lock and Python are kept in build/image."""
    say("reading the base ..." if base else "taking this machine's Python ...")
    given = read_base(base, arch) if base else None
    work = workshop(given)
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another one may be made in the same folder
        found = given or own_base(work)
        say("installing the packages of requirements.lock ...")
        lower = kept(work / "packages.tar", lambda: packages(found, work, wheels))
        upper, bill = sentinel(found, work, PROJECT["version"])
    return Image(found, [lower, upper], bill)


def workshop(given: Base | None) -> Path:
    """The folder that stands for what goes into both lower layers: they are made anew where any of it is another."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    inputs = [(REPO / "requirements.lock").read_bytes(), *(path.read_bytes() for path in sources)]
    inputs.append(f"{given.version} {given.python} {given.arch}".encode() if given else machine())
    return REPO / "build/image" / digest(b"\0".join([*inputs, sys.version.encode()]))[7:23]
