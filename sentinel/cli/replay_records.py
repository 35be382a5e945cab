"""`sentinel replay --flight-recorder DIR`: for whom ranks waited, by what flight recorders of torch wrote.

Exit codes: 0 read, whether ranks waited or not; 1 nothing could be read.
"""

import asyncio
import os
from collections.abc import Iterable

from sentinel.cli.replay_open import NoLog, open_log
from sentinel.cli.tables import complain, pairs, put, put_document
from sentinel.cluster.local.flight import Records, read
from sentinel.cluster.local.flight_dumps import is_dump
from sentinel.core.signals import names
from sentinel.logs.kernel_file import NotALog, unpacked
from sentinel.web.words import printable, when

HEAD_BYTES = 1 << 16
READ_S = 600.0  # thousands of ranks take minutes


def records_of(paths: Iterable[str]) -> Records:
    """Those of one folder. Never raises."""
    return asyncio.run(read([*paths], READ_S))


def records_in(folder: str) -> Records:
    """Of what lies in the folder. Raises OSError."""
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    found = [file for file in files if os.path.isfile(file) and is_dump(_head(file))]
    if found:
        return records_of(found)
    return Records(files=[], ranks=[], stuck=None, notes=[f"{folder}: no record of a flight recorder"])


def _head(path: str) -> bytes:
    try:
        with open_log(path) as file:
            return unpacked(file).read(HEAD_BYTES)
    except (OSError, EOFError, NoLog, NotALog):
        return b""


def show(folder: str, output: str) -> int:
    """The exit code."""
    try:
        records = records_in(folder)
    except OSError as error:
        complain(f"{folder}: {error.strerror}")
        return 1
    if not records.files:
        for note in records.notes:
            complain(note)
        return 1
    if output == "json":
        put_document(records)
    else:
        put("\n".join([*lines(records), *map(printable, records.notes)]) + "\n")
    return 0


def lines(records: Records) -> list[str]:
    """For people."""
    several = len(records.files) > 1
    where = (os.path.dirname(records.files[0]) or ".") if several else records.files[0]
    head = f"{printable(where)}: flight recorder{'s' if several else ''} of {names(records.ranks)}"
    found = records.stuck
    if found is None:
        return [head, "", "All operations that they tell of were done: no rank waited for another."]
    rows = [("where", line) for line in found.evidence]
    rows += [("since", when(found.since_s)), ("to do", found.advice)]
    told = pairs([(name, printable(text)) for name, text in rows])
    return [head, "", printable(found.sentence), *(f"  {line}" for line in told)]
