"""What Sentinel stands on in the image: this machine's Python with the libraries that it needs, or one's own base."""

import contextlib
import gzip
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scripts.image.layers import MEDIA_TYPE, Layer, Tree, kept

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # by the names that images have for them
USER = 65532  # nobody's on any node; also of the controllers in deploy/chart
# Of the standard library: what needs a screen, installs, is looked up, or tests.
LEFT_OUT = {
    "__pycache__", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "tkinter", "turtledemo", "venv",
}  # fmt: skip
UNWANTED = ("config-*", "*.a", "_tkinter*.so", "_test*.so", "_ctypes_test*.so", "_xxtestfuzz*.so")
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
PASSWD = f"root:x:0:0:root:/root:/bin/false\nsentinel:x:{USER}:{USER}:sentinel:/:/bin/false\n"
Object = dict[str, Any]


class ImageError(Exception):
    """Said to the person who makes the image."""


class Base(NamedTuple):
    """`libraries`: what was taken from this machine, by where it lies here. None: a base of one's own."""

    config: Object
    layers: list[Layer]
    python: str  # absolute path of the interpreter in it
    version: str  # "3.12"
    arch: str
    libraries: list[Path] | None = None


def own_arch() -> str:
    machine = platform.machine()
    return next((arch for arch, name in MACHINES.items() if name == machine), machine)


def own_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def compiled(folder: Path, place: str, version: str) -> None:
    """Byte code beside the sources, since nothing can be written at run time. Only by the same Python.

    `place`: where the folder is in the image, for tracebacks.
    """
    if version == own_version():
        words = ["-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash"]
        words += ["-s", str(folder), "-p", f"/{place}", str(folder)]
        subprocess.run([sys.executable, *words], check=False, stdout=subprocess.DEVNULL)


# ---------------------------------------------------------------- this machine's


def own_base(work: Path) -> Base:
    """This machine's Python and the libraries that it needs, and nothing else."""
    interpreter = Path(sys.executable).resolve()
    libc = Path(dict(needed(interpreter))["libc.so.6"]).parent
    env = ["PATH=/usr/local/bin:/usr/bin:/bin", f"SSL_CERT_FILE=/{AUTHORITIES}", "LANG=C.UTF-8"]
    env.append(
        f"LD_LIBRARY_PATH={libc}"
    )  # the loader may look elsewhere first for what this Python brought along
    config = {"architecture": own_arch(), "os": "linux", "config": {"Env": env}}
    layer = kept(work / "base.tar", lambda: _own_python(work, interpreter))
    taken = [interpreter, *(path for _, path in libraries(_binaries(interpreter, work)))]
    taken += [path for path in [Path("/", AUTHORITIES)] if path.exists()]
    python = f"/usr/local/bin/python{own_version()}"
    return Base(config, [layer], python, own_version(), own_arch(), taken)


def machine() -> bytes:
    """Changes when a file is renewed that may be taken from this machine: its libraries have fewer holes each month."""
    interpreter = Path(sys.executable).resolve()
    folders = sorted({Path(path).parent for _, path in needed(interpreter)})
    libraries = sorted(path for folder in folders for path in folder.glob("*.so*"))
    lines = [f"strip: {shutil.which('strip')}"]
    for path in (interpreter, Path("/", AUTHORITIES), *libraries):
        with contextlib.suppress(OSError):  # there are no authorities, or a link leads nowhere
            stat = path.stat()
            lines.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(lines).encode()


def _own_python(work: Path, interpreter: Path) -> Layer:
    version, tree, stdlib = own_version(), Tree(), work / "stdlib"
    shutil.rmtree(stdlib, ignore_errors=True)
    shutil.copytree(sysconfig.get_path("stdlib"), stdlib, ignore=shutil.ignore_patterns(*LEFT_OUT, *UNWANTED))
    compiled(stdlib, f"usr/local/lib/python{version}", version)
    tree.file(f"usr/local/bin/python{version}", interpreter, 0o755)
    tree.copy(stdlib, f"usr/local/lib/python{version}")
    put_libraries(tree, _binaries(interpreter, work), work / "libraries")
    tree.folder("tmp", 0o1777)
    tree.file("etc/passwd", PASSWD.encode())
    tree.file("etc/group", f"root:x:0:\nsentinel:x:{USER}:\n".encode())
    tree.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    if (authorities := Path("/", AUTHORITIES)).exists():
        tree.file(AUTHORITIES, authorities)
    return tree.layer()


def _binaries(interpreter: Path, work: Path) -> list[Path]:
    return [interpreter, *(work / "stdlib").rglob("*.so")]


def put_libraries(tree: Tree, binaries: Iterable[Path], work: Path, within: Path | None = None) -> None:
    """What these need of the machine. `work`: for slim copies."""
    work.mkdir(exist_ok=True)
    for place, path in libraries(binaries, within):
        tree.file(place, _slim(path, work))


def libraries(binaries: Iterable[Path], within: Path | None = None) -> Iterator[tuple[str, Path]]:
    """(place in the image, path here): beside the C library, where its loader looks. Not what lies `within`."""
    found: dict[str, str] = {}
    for binary in binaries:
        found.update(needed(binary))
    beside = Path(found["libc.so.6"]).parent
    for name, path in sorted(found.items()):  # the loader's own path stands in the binaries
        if within is None or not Path(path).is_relative_to(within):
            yield (name if name.startswith("/") else f"{beside}/{name}").lstrip("/"), Path(path).resolve()


def needed(binary: Path) -> Iterator[tuple[str, str]]:
    """(name, path) of the libraries of a binary, itself or through others, by the loader's own word."""
    said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    for line in said.splitlines():
        if match := re.match(r"\s*(\S+) => (/\S+) \(", line):
            yield match[1], match[2]
        elif match := re.match(r"\s*(/\S+) \(", line):
            yield match[1], match[1]


def _slim(library: Path, work: Path) -> Path:
    """Without what only a debugger reads, where binutils are installed: four fifths of some builds of libpython."""
    strip, copy = shutil.which("strip"), work / library.name
    if strip is None or not library.name.startswith("libpython"):
        return library
    done = subprocess.run([strip, "--strip-unneeded", "-o", copy, library], check=False, capture_output=True)
    return library if done.returncode else copy


# ---------------------------------------------------------------- one's own


def read_base(path: Path, arch: str = "") -> Base:
    """An image as `docker save` or `skopeo copy ... oci-archive:` writes it, for `arch` (default: this machine's)."""
    wanted = arch or own_arch()
    try:
        with tarfile.open(path) as tar:
            config, layers = _docker(tar) if "manifest.json" in tar.getnames() else _oci(tar, wanted)
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise ImageError(f"{path}: no image archive of {wanted}: {error!r}") from None
    if config["architecture"] != wanted:
        raise ImageError(f"{path}: it is of {config['architecture']}, and not of {wanted} (--arch)")
    python = _python_of(layers)
    if not python:
        raise ImageError(f"{path}: no /usr/local/bin/python3.N or /usr/bin/python3.N in it")
    return Base(config, layers, f"/{python}", python.rpartition("python")[2], wanted)


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def _docker(tar: tarfile.TarFile) -> tuple[Object, list[Layer]]:
    manifest = json.loads(_read(tar, "manifest.json"))[0]
    config = json.loads(_read(tar, manifest["Config"]))
    return config, _layers(config, [_read(tar, name) for name in manifest["Layers"]])


def _oci(tar: tarfile.TarFile, arch: str) -> tuple[Object, list[Layer]]:
    names = {name.removeprefix("./"): name for name in tar.getnames()}

    def blob(descriptor: Object) -> bytes:
        kind, _, value = descriptor["digest"].partition(":")
        return _read(tar, names[f"blobs/{kind}/{value}"])

    def chosen(entries: list[Object]) -> Object:
        fit = [one for one in entries if one.get("platform", {}).get("architecture", arch) == arch]
        if not fit:
            raise ValueError(f"nothing for {arch}")
        return fit[0]

    document = json.loads(blob(chosen(json.loads(_read(tar, names["index.json"]))["manifests"])))
    if "manifests" in document:
        document = json.loads(blob(chosen(document["manifests"])))
    config = json.loads(blob(document["config"]))
    return config, _layers(config, [blob(layer) for layer in document["layers"]])


def _layers(config: Object, blobs: list[bytes]) -> list[Layer]:
    kinds = [MEDIA_TYPE + ("+gzip" if blob.startswith(b"\x1f\x8b") else "") for blob in blobs]
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
