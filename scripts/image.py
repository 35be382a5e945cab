"""The container image that deploy/ names, without a builder or a registry: `make image`, or see --help.

An image is layers and a description of them; both are made here. The lowest layers are those of a base with a
Python, as `docker save`, `podman save` or `skopeo copy` write it, or else this machine's own Python with the libraries
that it needs. On them lie the packages of requirements.lock (hashes checked), and Sentinel. The same inputs give the
same image. What comes out is an OCI layout in a tar that also has Docker's manifest: `docker load`, `podman load`,
`ctr -n k8s.io images import`, `skopeo copy oci-archive:...` and `crane push` take it.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

REPO = Path(__file__).resolve().parent.parent
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
HOME = "opt/sentinel"  # a virtual environment, so that the base's own packages are neither seen nor changed
NOT_NEEDED = {"numpy"}  # of `sentinel demo`
# Of the standard library: what needs a screen, installs, or tests.
LEFT_OUT = {
    "__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter",
    "turtledemo", "venv",
}  # fmt: skip
# Typed objects, 5000 files: Sentinel takes only credentials and addresses from there, and they are loaded when used.
UNUSED = re.compile(r"kubernetes/(aio/)?client/(api|models)/(?!__init__\.py)")
LAYER = "application/vnd.oci.image.layer.v1.tar"
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
Object = dict[str, Any]


class ImageError(Exception):
    """Said to the person who makes the image."""


class Layer(NamedTuple):
    """`data`: as it is stored. `diff_id`: the digest of it when it is unpacked."""

    data: bytes
    media_type: str
    diff_id: str

    @classmethod
    def of(cls, tar: bytes) -> "Layer":
        return cls(tar, LAYER, digest(tar))


class Base(NamedTuple):
    config: Object
    layers: list[Layer]
    python: str  # absolute path of the interpreter in it
    version: str  # "3.12"
    own: bool = False  # of this machine


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# ---------------------------------------------------------------- layers


class Tree:
    """A layer in the making: everything is root's, of one time, and in order."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tarfile.TarInfo, Path | bytes | None]] = {}

    def folder(self, path: str, mode: int = 0o755) -> None:
        self._parents(path)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._entries[path] = (entry, None)

    def file(self, path: str, content: Path | bytes, mode: int | None = None) -> None:
        self._parents(path)
        entry = tarfile.TarInfo(path)
        if isinstance(content, Path):
            stat = content.stat()
            entry.size = stat.st_size
            mode = mode or (0o755 if stat.st_mode & 0o100 else 0o644)
        else:
            entry.size = len(content)
        entry.mode = mode or 0o644
        self._entries[path] = (entry, content)

    def link(self, path: str, target: str) -> None:
        self._parents(path)
        entry = tarfile.TarInfo(path)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._entries[path] = (entry, None)

    def copy(self, source: Path, path: str, left_out: Iterable[str] = ()) -> None:
        """A folder with all that is in it; links are followed."""
        for folder, folders, files in os.walk(source, followlinks=True):
            folders[:] = sorted(name for name in folders if name not in left_out)
            inside = os.path.normpath(os.path.join(path, os.path.relpath(folder, source)))
            self.folder(inside)
            for name in sorted(files):
                self.file(f"{inside}/{name}", Path(folder, name))

    def _parents(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent and parent not in self._entries:
            self.folder(parent)

    def layer(self) -> Layer:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for _, (entry, content) in sorted(self._entries.items()):
                if isinstance(content, Path):
                    with open(content, "rb") as file:
                        tar.addfile(entry, file)
                else:
                    tar.addfile(entry, None if content is None else io.BytesIO(content))
        return Layer.of(out.getvalue())


def compiled(folder: Path, place: str, version: str) -> None:
    """Byte code beside the sources, since nothing can be written at run time. Only by the same Python.

    `place`: where the folder is in the image, for tracebacks.
    """
    if version == own_version():
        words = ["-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash"]
        words += ["-s", str(folder), "-p", f"/{place}", str(folder)]
        subprocess.run([sys.executable, *words], check=False, stdout=subprocess.DEVNULL)


def kept(path: Path, make: Callable[[], Layer]) -> Layer:
    """A layer that was made before from the same inputs, which the folder's name stands for."""
    if not path.exists():
        half = path.with_name(f"{path.name}.{os.getpid()}")
        half.write_bytes(make().data)
        os.replace(half, path)
    return Layer.of(path.read_bytes())


def own_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


# ---------------------------------------------------------------- the base


def own_base(work: Path) -> Base:
    """This machine's Python and the libraries that it needs, and nothing else."""
    interpreter = Path(sys.executable).resolve()
    libc = Path(dict(needed(interpreter))["libc.so.6"]).parent
    env = ["PATH=/usr/local/bin:/usr/bin:/bin", f"SSL_CERT_FILE=/{AUTHORITIES}", "LANG=C.UTF-8"]
    env.append(
        f"LD_LIBRARY_PATH={libc}"
    )  # its loader may look elsewhere first for what this Python brought along
    config = {"architecture": architecture(), "os": "linux", "config": {"Env": env}}
    layer = kept(work / "base.tar", lambda: own_python(work, interpreter))
    return Base(config, [layer], f"/usr/local/bin/python{own_version()}", own_version(), own=True)


def own_python(work: Path, interpreter: Path) -> Layer:
    version, tree, stdlib = own_version(), Tree(), work / "stdlib"
    shutil.rmtree(stdlib, ignore_errors=True)
    unwanted = shutil.ignore_patterns(*LEFT_OUT, "config-*", "*.a", "_tkinter*.so")
    shutil.copytree(sysconfig.get_path("stdlib"), stdlib, ignore=unwanted)
    compiled(stdlib, f"usr/local/lib/python{version}", version)
    tree.file(f"usr/local/bin/python{version}", interpreter, 0o755)
    tree.copy(stdlib, f"usr/local/lib/python{version}")
    put_libraries(tree, [interpreter, *stdlib.rglob("*.so")])
    tree.folder("tmp", 0o1777)
    tree.file(
        "etc/passwd", b"root:x:0:0:root:/root:/bin/false\nsentinel:x:65532:65532:sentinel:/:/bin/false\n"
    )
    tree.file("etc/group", b"root:x:0:\nsentinel:x:65532:\n")
    tree.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    if (authorities := Path("/", AUTHORITIES)).exists():
        tree.file(AUTHORITIES, authorities)
    return tree.layer()


def architecture() -> str:
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


def put_libraries(tree: Tree, binaries: Iterable[Path], within: Path | None = None) -> None:
    """What these need of the machine, beside its C library, where its loader looks. What lies `within` is there."""
    found: dict[str, str] = {}
    for binary in binaries:
        found.update(needed(binary))
    beside = Path(found["libc.so.6"]).parent
    for name, path in found.items():
        if within is None or not Path(path).is_relative_to(within):
            place = (
                name if name.startswith("/") else f"{beside}/{name}"
            )  # the loader's path stands in the binaries
            tree.file(place.lstrip("/"), Path(path).resolve())


def needed(binary: Path) -> Iterator[tuple[str, str]]:
    """(name, path) of the libraries of a binary, itself or through others, by the loader's own word."""
    said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    for line in said.splitlines():
        if match := re.match(r"\s*(\S+) => (/\S+) \(", line):
            yield match[1], match[2]
        elif match := re.match(r"\s*(/\S+) \(", line):
            yield match[1], match[1]


def read_base(path: Path) -> Base:
    """An image as `docker save` or `skopeo copy ... oci-archive:` writes it, for this machine's architecture."""
    try:
        with tarfile.open(path) as tar:
            config, layers = _docker(tar) if "manifest.json" in tar.getnames() else _oci(tar)
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise ImageError(f"{path}: no image archive of this architecture: {error!r}") from None
    python = _python_of(layers)
    if not python:
        raise ImageError(f"{path}: no /usr/local/bin/python3.N or /usr/bin/python3.N in it")
    return Base(config, layers, f"/{python}", python.rpartition("python")[2])


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def _docker(tar: tarfile.TarFile) -> tuple[Object, list[Layer]]:
    manifest = json.loads(_read(tar, "manifest.json"))[0]
    config = json.loads(_read(tar, manifest["Config"]))
    return config, _layers(config, [_read(tar, name) for name in manifest["Layers"]])


def _oci(tar: tarfile.TarFile) -> tuple[Object, list[Layer]]:
    names = {name.removeprefix("./"): name for name in tar.getnames()}

    def blob(descriptor: Object) -> bytes:
        kind, _, value = descriptor["digest"].partition(":")
        return _read(tar, names[f"blobs/{kind}/{value}"])

    entries = json.loads(_read(tar, names["index.json"]))["manifests"]
    document = json.loads(blob(_ours(entries)))
    if "manifests" in document:
        document = json.loads(blob(_ours(document["manifests"])))
    config = json.loads(blob(document["config"]))
    return config, _layers(config, [blob(layer) for layer in document["layers"]])


def _ours(entries: list[Object]) -> Object:
    fit = [
        one
        for one in entries
        if one.get("platform", {}).get("architecture", architecture()) == architecture()
    ]
    if not fit:
        raise ValueError(f"nothing for {architecture()}")
    return fit[0]


def _layers(config: Object, blobs: list[bytes]) -> list[Layer]:
    kinds = [LAYER + ("+gzip" if blob.startswith(b"\x1f\x8b") else "") for blob in blobs]
    return [Layer(*whole) for whole in zip(blobs, kinds, config["rootfs"]["diff_ids"], strict=True)]


def _python_of(layers: list[Layer]) -> str:
    """usr/local/bin before usr/bin, the newest first."""
    found: set[str] = set()
    for layer in layers:
        data = gzip.decompress(layer.data) if layer.media_type.endswith("gzip") else layer.data
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = (entry.name.removeprefix("./") for entry in tar)
            found.update(name for name in names if re.fullmatch(r"usr/(local/)?bin/python3\.\d+", name))
    return max(found, key=lambda name: ("local" in name, int(name.rpartition(".")[2])), default="")


# ---------------------------------------------------------------- Sentinel


def packages(base: Base, work: Path, wheels: str) -> Layer:
    """The virtual environment with the packages of the lock."""
    target, tree = work / "packages", Tree()
    lock = work / "requirements.lock"
    lock.write_text(wanted((REPO / "requirements.lock").read_text()))
    shutil.rmtree(target, ignore_errors=True)
    # Tags of manylinux: whatever glibc the base has, since 2.28 is that of the oldest systems that are alive.
    machine = platform.machine()
    tags = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (28, 17)]
    tags += [f"--platform=manylinux2014_{machine}"]
    where = ["--no-index", f"--find-links={wheels}"] if wheels else []
    pip(
        "--no-deps", "--require-hashes", "--only-binary=:all:", f"--python-version={base.version}", *tags, *where,
        f"--target={target}", f"--requirement={lock}",
    )  # fmt: skip
    for path in target.rglob("*.py"):
        if UNUSED.match(str(path.relative_to(target))):
            path.unlink()
    compiled(target, site_packages(base), base.version)
    home = os.path.dirname(base.python)
    tree.file(f"{HOME}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\n".encode())
    for name in ("python", "python3"):
        tree.link(f"{HOME}/bin/{name}", base.python)
    command = f"#!/{HOME}/bin/python\nfrom sentinel.cli import main\n\nraise SystemExit(main())\n"
    tree.file(f"{HOME}/bin/sentinel", command.encode(), 0o755)
    if (spy := target / "bin/py-spy").exists():
        tree.file(f"{HOME}/bin/py-spy", spy, 0o755)
    tree.copy(target, site_packages(base), {"bin"})
    if base.own:
        put_libraries(tree, target.rglob("*.so*"), target)
    tree.folder("var/lib/sentinel")
    return tree.layer()


def sentinel(base: Base, work: Path) -> Layer:
    target, tree = work / "sentinel", Tree()
    shutil.rmtree(target, ignore_errors=True)
    pip("--no-deps", "--no-build-isolation", "--no-index", f"--target={target}", str(REPO))
    for noted in target.glob("*.dist-info/direct_url.json"):  # says where this checkout lies
        noted.unlink()
    for record in target.glob("*.dist-info/RECORD"):
        kept = [
            line
            for line in record.read_text().splitlines()
            if "direct_url" not in line and "bin/" not in line
        ]
        record.write_text("\n".join(kept) + "\n")
    compiled(target, site_packages(base), base.version)
    tree.copy(target, site_packages(base), {"bin"})
    return tree.layer()


def site_packages(base: Base) -> str:
    return f"{HOME}/lib/python{base.version}/site-packages"


def wanted(lock: str) -> str:
    """The lock without what only the demo needs."""
    blocks = re.split(r"\n(?=\S)", lock)
    return "\n".join(block for block in blocks if block.partition("==")[0] not in NOT_NEEDED) + "\n"


def pip(*words: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-input",
        "--no-compile",
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"pip could not install: {done.stderr.strip()[-2000:]}")


# ---------------------------------------------------------------- the archive


def write(base: Base, layers: list[Layer], name: str, path: Path) -> None:
    """The image, complete or not at all."""
    every = [*base.layers, *layers]
    run = {**base.config.get("config", {})}
    env = dict(one.split("=", 1) for one in run.get("Env", []))
    env["PATH"] = (
        f"{env.get('PATH', '/usr/local/bin:/usr/bin:/bin')}:/{HOME}/bin"  # `kubectl exec POD -- sentinel`
    )
    run["Env"] = [
        *(f"{name}={value}" for name, value in env.items()),
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONUNBUFFERED=1",
        "SENTINEL_STATE_DIR=/var/lib/sentinel",
    ]
    run |= {"Entrypoint": [f"/{HOME}/bin/sentinel"], "Cmd": ["--help"], "WorkingDir": "/"}
    config = {
        "architecture": base.config["architecture"],
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in every]},
    }
    blobs: dict[str, bytes] = {}

    def described(data: bytes, kind: str) -> Object:
        blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    config_data = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described(config_data, CONFIG),
        "layers": [described(layer.data, layer.media_type) for layer in every],
    }
    full = _with_registry(name)
    notes = {"io.containerd.image.name": full, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry = {
        **described(json.dumps(manifest).encode(), MANIFEST),
        "annotations": notes,
        "platform": {"architecture": config["architecture"], "os": "linux"},
    }
    files = {f"blobs/{kind.replace(':', '/')}": data for kind, data in blobs.items()}
    files["index.json"] = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()
    files["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    stored = [f"blobs/{digest(layer.data).replace(':', '/')}" for layer in every]
    docker = {
        "Config": f"blobs/{digest(config_data).replace(':', '/')}",
        "RepoTags": [name],
        "Layers": stored,
    }
    files["manifest.json"] = json.dumps([docker]).encode()
    tree = Tree()
    for inside, data in files.items():
        tree.file(inside, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_bytes(tree.layer().data)
    os.replace(half, path)


def _with_registry(name: str) -> str:
    """As containerd has it: what begins with no host is of Docker's registry."""
    host, slash, _ = name.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host):
        return name
    return f"docker.io/{name if slash else f'library/{name}'}"


def make(
    path: Path, *, base: Path | None = None, wheels: str = "", name: str = "", say: Callable[[str], None]
) -> None:
    """Packages that were installed once for the same lock and Python are kept in build/image."""
    version = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"]
    say("reading the base ..." if base else "taking this machine's Python ...")
    inputs = [(REPO / "requirements.lock").read_bytes(), Path(__file__).read_bytes(), sys.version.encode()]
    given = read_base(base) if base else None
    inputs.append(f"{given.version} {given.python}".encode() if given else b"")
    work = REPO / "build/image" / digest(b"\0".join(inputs))[7:23]
    work.mkdir(parents=True, exist_ok=True)
    found = given or own_base(work)
    say("installing the packages of requirements.lock ...")
    layers = [kept(work / "packages.tar", lambda: packages(found, work, wheels)), sentinel(found, work)]
    write(found, layers, name or f"localhost/sentinel:{version}", path)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Make the container image of Sentinel.")
    parser.add_argument("archive", type=Path, nargs="?", default=REPO / "build/sentinel-image.tar")
    parser.add_argument("--base", type=Path, help="image archive with Python (default: this machine's own)")
    parser.add_argument(
        "--wheels", default="", metavar="DIR", help="folder of wheels, instead of pip's index"
    )
    parser.add_argument("--name", default="", help="default: that of deploy/, localhost/sentinel:VERSION")
    args = parser.parse_args(argv)
    try:
        make(args.archive, base=args.base, wheels=args.wheels, name=args.name, say=print)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(f"{args.archive}: {args.archive.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
