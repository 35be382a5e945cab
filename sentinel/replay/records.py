"""`sentinel replay --flight-recorder DIR`: for whom ranks waited, by what flight recorders of torch wrote.

Exit codes: 0 read, whether ranks waited or not; 1 nothing could be read.
"""

import asyncio
import os
import zlib
from collections.abc import Iterable

from sentinel.cluster.local.flight import Records, read
from sentinel.cluster.local.flight_dumps import is_dump
from sentinel.console.tables import complain, pairs, put, put_document
from sentinel.core.signals import names
from sentinel.logs.kernel_file import NotALog
from sentinel.replay.saved import NoLog, head_of
from sentinel.web.words import printable, when

READ_S = 600.0  # thousands of ranks take minutes


def records_of(paths: Iterable[str]) -> Records:
    """Those of one folder. Never raises."""
    return asyncio.run(read([*paths], READ_S))


def records_in(folder: str) -> Records:
    """Of what lies in the folder. Raises OSError."""
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    found = [file for file in files if os.path.isfile(file) and _is_record(file)]
    if found:
        return records_of(found)
    return Records(files=[], ranks=[], stuck=None, notes=[f"{folder}: no record of a flight recorder"])


def _is_record(path: str) -> bool:
    try:
        return is_dump(head_of(path))
    except (NoLog, NotALog, OSError, zlib.error):
        return False


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
