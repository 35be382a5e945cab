"""What an agent knows across its restarts, in one file: written whole or not at all, bounded, set aside if damaged."""

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

FOLDER = "agent"  # in the state directory: lock, presence, log and state of the agent
FILE = "state.json"
MAX_BYTES = 16 << 20  # 4096 findings with all their evidence are 12 MiB
VERSION = 1


class Saved(Struct, frozen=True, kw_only=True):
    """`checks` is what `CheckRunner.snapshot` gave."""

    version: int = VERSION
    saved_wall_s: float
    checks: msgspec.Raw


class Damaged(Exception):
    """The file does not hold what an agent writes; the message says what is wrong with it."""


def write(folder: Path, checks: bytes) -> None:
    """Replace the file. Raises OSError (a full disk); what stood there then still does."""
    path = folder / FILE
    data = msgspec.json.encode(Saved(saved_wall_s=time.time(), checks=msgspec.Raw(checks)))
    if len(data) > MAX_BYTES:
        raise OSError(f"{len(data)} bytes to save, at most {MAX_BYTES} are")
    # No fsync: only a crash of the machine could take the new file, and a new boot voids most of what stands in it.
    draft = folder / f".{FILE}.new"  # one name: an agent that was killed here leaves at most one
    try:
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def read(folder: Path) -> bytes | None:
    """What `write` was given; None where nothing was saved. Raises Damaged, and OSError where it cannot be read."""
    try:
        with open(folder / FILE, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_BYTES:
        raise Damaged(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        saved = msgspec.json.decode(data, type=Saved)
    except ValueError as error:  # msgspec's errors and those of UTF-8 are ValueErrors
        raise Damaged(str(error) or "it is cut off") from None
    if saved.version > VERSION:
        raise Damaged(f"it was written by a newer agent (version {saved.version})")
    return bytes(saved.checks)


def set_aside(folder: Path) -> Path:
    """Keep a damaged file under another name, one at most. Raises OSError."""
    aside = folder / f"{FILE}.damaged"
    os.replace(folder / FILE, aside)
    return aside
