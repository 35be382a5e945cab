"""What a line of a program says of the world outside it: a host that did not answer, a port in use. Pure.

A program may go on after such a failure (it tries again, takes its cache, another port), so what it says later
counts more.
"""

import re
from collections.abc import Sequence, Set

from sentinel.core.triage_case import Case
from sentinel.core.triage_rows import Row

UNREACHABLE, PORT, OOM = "unreachable", "port-in-use", "host-oom"
SURVIVED = (UNREACHABLE, PORT, "locked-memory")
CHAIN_S = 2.0  # an exception this soon after it may be its consequence, raised while it was handled

_HOST = re.compile(
    r"\bhost='([\w.-]+)', port=(\d+)|\bconnect to host ([\w.-]+):(\d+)|\bConnection to ([\w.-]+) timed out"
    r"|\b[Ff]ailed to resolve '([\w.-]+)'|\bhttps?://([\w.-]+)(?::(\d+))?"
)
_PORT = re.compile(
    r"\bport: (\d+)|(?:bind to|listen on) \S+:(\d+)\b|bind on address \('[^']*', (\d+)|\b[Pp]ort (\d+)\b"
)


def survived(row: Row, roots: Sequence[Row], dead: Set[int], case: Case) -> bool:
    """Did its rank get on after this failure? `roots`: in order of time; `dead`: ranks whose end says itself why."""
    if row.cls.id not in SURVIVED:
        return False
    rank = row.match.rank
    ended = case.exit_of(rank) is not None
    if rank in dead or not (ended or _all_waited(case)):
        return True
    later = (other for other in roots[roots.index(row) + 1 :] if other.match.rank == rank or not ended)
    return any(_is_about_another(other, row) for other in later)


def _all_waited(case: Case) -> bool:
    """Who was lost complains of others: it may have waited for the one that could not get on."""
    complaining = {row.match.rank for row in case.of("symptom", "cascade")}
    return all(exit_.rank in complaining for exit_ in case.lost)


def _is_about_another(other: Row, row: Row) -> bool:
    if other.cls.id in SURVIVED or other.match.line == row.match.line:
        return False
    return other.cls.role == "root" or other.match.at_s > row.match.at_s + CHAIN_S


def clause_of(row: Row, case: Case) -> str:
    """What the line, and those of the same kind beside it, tell more than the sentence of the class."""
    told = [one.match.line for one in case.rows if one.match.rank == row.match.rank and one.cls is row.cls]
    if row.cls.id == UNREACHABLE:
        host = next((name for line in told if (name := _host_in(line))), "")
        return f"the program could not reach {host}" if host else ""
    if row.cls.id == PORT:
        found = next((found for line in told if (found := _PORT.search(line))), None)
        port = next((number for number in found.groups() if number), "") if found else ""
        return row.cls.sentence.replace("a port ", f"port {port} ", 1) if port else ""
    if row.cls.id == OOM:  # the kernel's own word, by pid or control group, is believed before all lines
        return "its log says that processes were killed because memory ran out"
    return ""


def _host_in(line: str) -> str:
    found = _HOST.search(line)
    if found is None:
        return ""
    name, port, other, other_port, silent, unknown, url, url_port = found.groups()
    host = name or other or silent or unknown or url
    number = port or other_port or url_port or ""
    return host if number in ("", "80", "443") else f"{host}:{number}"
