"""Fields of an object that is plain JSON: reading, writing, and the merge patch between two states of it. Pure.

A path is a list of names with dots between. Nothing of an object is taken for granted but that it is JSON: a field of
another type than the expected one reads as if it were not there.
"""

import calendar
import copy
import re
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

# metav1.Time and MicroTime: the API server always writes UTC.
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?Z", re.ASCII)


def read(obj: Any, path: str) -> Any:
    """None: not there."""
    for name in path.split(".") if path else ():
        if not isinstance(obj, dict):
            return None
        obj = obj.get(name)
    return obj


def number(obj: Any, path: str) -> int | None:
    value = read(obj, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(obj: Any, path: str) -> str:
    value = read(obj, path)
    return value if isinstance(value, str) else ""


def wall_s(obj: Any, path: str) -> float | None:
    """Seconds since 1970 of a time; None: not there, or the zero that containers have which never started."""
    match = _TIME.fullmatch(text(obj, path))
    if match is None:
        return None
    *whole, fraction = match.groups()
    return calendar.timegm(tuple(int(part) for part in whole)) + float(fraction or 0) or None


def table(obj: Any, path: str) -> Json:
    value = read(obj, path)
    return value if isinstance(value, dict) else {}


def rows(obj: Any, path: str) -> list[Json]:
    """The objects of a list."""
    value = read(obj, path)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def write(obj: Json, path: str, value: Any) -> None:
    """Change `obj`, a copy; None takes the field away."""
    *above, last = path.split(".")
    for name in above:
        if not isinstance(obj.get(name), dict):
            if value is None:
                return
            obj[name] = {}
        obj = obj[name]
    if value is None:
        obj.pop(last, None)
    else:
        obj[last] = value


def copied(obj: Json) -> Json:
    return copy.deepcopy(obj)


def annotation(obj: Json, name: str) -> str:
    value = table(obj, "metadata.annotations").get(name)
    return value if isinstance(value, str) else ""


def label(obj: Json, name: str) -> str:
    value = table(obj, "metadata.labels").get(name)
    return value if isinstance(value, str) else ""


def annotate(obj: Json, name: str, value: str) -> None:
    """Change `obj`, a copy; "" takes it away."""
    notes = {key: kept for key, kept in table(obj, "metadata.annotations").items() if key != name}
    if value:
        notes[name] = value
    write(obj, "metadata.annotations", notes or None)


def merge_patch(before: Json, after: Json) -> Json:
    """RFC 7386: what changes `before` into `after`. Lists go whole."""
    patch: Json = {}
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if name not in after:
            patch[name] = None
        elif isinstance(old, dict) and isinstance(new, dict):
            if below := merge_patch(old, new):
                patch[name] = below
        elif name not in before or old != new:
            patch[name] = new
    return patch


def numbers(listed: str) -> set[int]:
    """Indexes as a Job's status lists them: 0,3-5."""
    found: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.update(range(int(first), int(last or first) + 1))
    return found


def controller(obj: Json) -> Json:
    """The owner that made it; {}: none."""
    owners: Iterable[Json] = rows(obj, "metadata.ownerReferences")
    return next((one for one in owners if one.get("controller") is True), {})
