"""`sentinel replay --flight-recorder DIR`: for whom ranks waited, by what flight recorders of torch wrote.

Exit codes: 0 read, whether ranks waited or not; 1 nothing could be read.
"""

import os
from collections.abc import Iterable, Sequence

from msgspec import Struct

from sentinel.cli.tables import complain, pairs, put, put_document
from sentinel.cluster.local.flight_dumps import is_dump, read_dumps
from sentinel.core.flight_record import Stuck, stuck
from sentinel.core.signals import names
from sentinel.notify.text import count
from sentinel.web.words import printable, when

HEAD_BYTES = 1 << 16


class Records(Struct, frozen=True, kw_only=True):
    """Of flight recorders. `stuck` None: no rank waited for another."""

    files: list[str]
    ranks: list[int]
    stuck: Stuck | None
    notes: list[str]


def records_of(paths: Iterable[str]) -> Records:
    """`paths`: files, or folders, of which those count that are dumps. Never raises."""
    found = read_dumps([file for path in paths for file in (_in(path) if os.path.isdir(path) else [path])])
    return Records(
        files=found.paths,
        ranks=[dump.rank for dump in found.dumps],
        stuck=stuck(found.dumps),
        notes=found.notes,
    )


def _in(folder: str) -> list[str]:
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return [file for file in files if os.path.isfile(file) and is_dump(_head(file))]


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


def show(paths: Sequence[str], output: str) -> int:
    """The exit code."""
    records = records_of(paths)
    if not records.files:
        for note in records.notes or [f"{path}: no record of a flight recorder" for path in paths]:
            complain(note)
        return 1
    if output == "json":
        put_document(records)
    else:
        put("\n".join([*lines(records), *map(printable, records.notes)]) + "\n")
    return 0


def lines(records: Records) -> list[str]:
    """For people."""
    folders = list(dict.fromkeys(os.path.dirname(file) or "." for file in records.files))
    where = records.files[0] if len(records.files) == 1 else folders[0]
    where += f" and {count(len(folders) - 1, 'more folder')}" if len(folders) > 1 else ""
    head = f"{printable(where)}: flight recorders of {names(records.ranks)}"
    found = records.stuck
    if found is None:
        return [head, "", "All operations that they tell of were done: no rank waited for another."]
    rows = [("where", line) for line in found.evidence]
    rows += [("since", when(found.since_s)), ("to do", found.advice)]
    told = pairs([(name, printable(text)) for name, text in rows])
    return [head, "", printable(found.sentence), *(f"  {line}" for line in told)]
