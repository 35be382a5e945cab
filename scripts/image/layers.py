"""Layers of an image: tars in which everything is root's (or Sentinel's), of one time, and in order."""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar"


class Layer(NamedTuple):
    """`data`: as it is stored. `diff_id`: the digest of it when it is unpacked."""

    data: bytes
    media_type: str
    diff_id: str

    @classmethod
    def of(cls, tar: bytes) -> "Layer":
        return cls(tar, MEDIA_TYPE, digest(tar))


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Tree:
    """A layer in the making."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tarfile.TarInfo, Path | bytes | None]] = {}

    def folder(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        self._parents(path)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
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


def kept(path: Path, make: Callable[[], Layer]) -> Layer:
    """A layer that was made before from the same inputs, which the folder's name stands for."""
    if not path.exists():
        half = path.with_name(f"{path.name}.{os.getpid()}")
        half.write_bytes(make().data)
        os.replace(half, path)
    return Layer.of(path.read_bytes())
