"""Small file systems of a test's own, and how they are filled."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_tmpfs(place: Path, size: str) -> Iterator[Path]:
    """Mounted at `place`, which is made; `size` as mount(8) reads it."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill_up(place: Path) -> Path:
    """The file that took all of the room."""
    hog = place / "hog"
    with open(hog, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    assert os.statvfs(place).f_bavail == 0
    return hog
