"""The values that policies and settings are made of: durations, sizes, signals, patterns, paths, addresses."""

import difflib
import re
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import re2
from pydantic import BeforeValidator, StrictBool, StrictStr
from pydantic_core import PydanticCustomError

from sentinel.core.people.owners import EMAIL_SHAPE, is_address
from sentinel.core.policy_model import groups_problem
from sentinel.core.timing.hang import ACTIVITY_LIMIT_S
from sentinel.core.triage.rows import FailureClass as FailureRow
from sentinel.core.units import DURATION, SIZE, parse_duration, parse_size
from sentinel.rules.job_kinds import job_table
from sentinel.rules.tables import counter_limits, data_dir, load_rows

YEAR_S = 366 * 86400.0
# Of sentinel/checks/table.py, which stands above this package.
CHECKS = (
    *("shape", "disk", "block", "nvme", "memory", "processes", "inventory", "edac", "fragmentation"),
    *("governor", "clocks", "conntrack", "reboot", "oom", "modules", "environment", "services", "bmc"),
    *("gpu-pci", "infiniband", "ethernet", "nic-aer", "acs", "kernel", "nvml"),
    *("cards-cambricon", "cards-ascend", "cards-amd"),
)
PRECHECKS = ("gpu", "nic", "disk", "system", "kernel", "runtime")  # components that have checks
ACTIVITIES = (*ACTIVITY_LIMIT_S, "saved")
UNCATCHABLE = ("SIGKILL", "SIGSTOP")
MAX_PATTERN = 1000
_DURATION_SHAPE = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"
_NAME_SHAPE = r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"
_LABEL_SHAPE = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}  # a number or a word: OpenAPI knows no such type
_PATTERN_BYTES = 1 << 20  # of compiled program; more is a pattern made to hurt


class Meaning:
    """How a kind of value is named in the reference, and how no value is written there."""

    def __init__(self, name: str, unit: str = "", none: str = "") -> None:
        self.name = name
        self.unit = unit  # "duration" or "size": how a default is written
        self.none = f"`{none}`" if none else ""


class Checked(BeforeValidator):
    """A validator that also says, in OpenAPI's words, what its values look like: what an API server can check."""

    shape: dict[str, Any]

    def __init__(self, check: Callable[[Any], Any], **shape: Any) -> None:
        super().__init__(check)
        object.__setattr__(self, "shape", shape)  # the base is frozen


def refuse(expected: str) -> PydanticCustomError:
    """The error of a value, told by what was expected."""
    return PydanticCustomError("sentinel", "{expected}", {"expected": expected})


def duration(least_s: float = 0.0, most_s: float = YEAR_S) -> Checked:
    def check(value: object) -> float:
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise refuse(str(error)) from None
        if not least_s <= seconds <= most_s:
            raise refuse(f"{DURATION}, between {least_s:g}s and {most_s:g}s")
        return seconds

    return Checked(check, type="string", maxLength=64, pattern=f"^{_DURATION_SHAPE}$")


def size(least_bytes: int = 0) -> Checked:
    def check(value: object) -> int:
        try:
            count = parse_size(value)
        except ValueError as error:
            raise refuse(str(error)) from None
        if count < least_bytes:
            raise refuse(f"{SIZE}, at least {least_bytes} bytes")
        return count

    pattern = r"^[0-9]+(\.[0-9]+)?([kKMGT]|[KMGT]i)B?$"
    return Checked(check, type="string", maxLength=64, pattern=pattern)


def number(above: float, most: float) -> Checked:
    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
            raise refuse(f"a number above {above:g}, at most {most:g}")
        return float(value)

    return Checked(check, type="number", minimum=above, exclusiveMinimum=True, maximum=most)


def whole(least: int, most: int) -> Checked:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise refuse(f"a whole number from {least} to {most}")
        return value

    return Checked(check, type="integer", minimum=least, maximum=most)


def one_of(*allowed: str) -> Checked:
    def check(value: object) -> str:
        # YAML reads a bare `off` as false.
        if value is False and "off" in allowed:
            return "off"
        if not isinstance(value, str) or value not in allowed:
            raise refuse("one of " + ", ".join(allowed))
        return value

    return Checked(check, type="string", enum=list(allowed))


def _signal(value: object) -> str:
    known = {one.name for one in signal.Signals}
    if not isinstance(value, str) or value not in known:
        guess = f"SIG{value}".upper() if isinstance(value, str) else ""
        raise refuse("the name of a signal" + (f" ({guess}?)" if guess in known else " like SIGUSR1"))
    if value in UNCATCHABLE:
        raise refuse(f"a signal that a program can catch; nothing can be saved on {value}")
    return value


def pattern_problem(pattern: str) -> str:
    """What makes `pattern` unfit to be run over every line of a log, or ""."""
    if not pattern or len(pattern) > MAX_PATTERN:
        return f"a regular expression of 1 to {MAX_PATTERN} characters"
    # What the log reader cannot do, since it matches bytes within one line.
    if "\n" in pattern or "\r" in pattern or re.search(r"\\[AzZC]", pattern.replace("\\\\", "")):
        return "a regular expression within one line (^ and $ for its ends, no line ends, \\A, \\z or \\C)"
    if re.search(r"\[[^\]]*[^\x00-\x7f]", pattern):
        return "a regular expression with only ASCII inside [...] (write (a|b) instead)"
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        return f"a regular expression in RE2 syntax, which has no backreferences or lookaround ({said})"
    if compiled.search("") is not None:
        return "a regular expression that does not match every line (this one matches the empty text)"
    return ""


def _pattern(value: object) -> str:
    if not isinstance(value, str):
        raise refuse("a regular expression in quotes")
    problem = pattern_problem(value)
    if problem:
        raise refuse(problem)
    return value


def _timing_pattern(value: object) -> str:
    pattern = _pattern(value)
    compiled = re2.compile(pattern)
    if problem := groups_problem(compiled.groupindex.keys(), compiled.groups):
        raise refuse(problem)
    return pattern


def _plain_pattern(value: object) -> str:
    """Searched in a name once, so that Python's own engine, which a resident process has anyway, is enough."""
    try:
        if isinstance(value, str) and 0 < len(value) <= MAX_PATTERN and re.compile(value):
            return value
    except re.error:
        pass
    raise refuse(f"a regular expression of 1 to {MAX_PATTERN} characters")


def _error_limits(value: object) -> dict[str, float]:
    known = [row.name for row in counter_limits()]
    if not isinstance(value, dict) or not all(
        name in known and isinstance(most, int | float) and not isinstance(most, bool) and 0 <= most < 1e12
        for name, most in value.items()
    ):
        raise refuse("a mapping to numbers from 0 of any of " + ", ".join(known))
    return {str(name): float(most) for name, most in value.items()}


def _limit(value: object) -> dict[str, Any]:
    if isinstance(value, dict) and "atLeast" in value and value.keys() <= {"atLeast", "share"}:
        least, share = value["atLeast"], value.get("share", 0.0)
        counted = isinstance(least, int) and not isinstance(least, bool) and 0 <= least <= 100_000
        shared = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1
        if counted and shared:
            return {"at_least": least, "share": float(share)}
    raise refuse("{atLeast: a whole number from 0, share: 0 to 1}; share may be left out, and is 0 then")


def _label(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_LABEL_SHAPE, value, re.ASCII):
        raise refuse("the key of a label, like example.com/pool")
    return value


def _command(value: object) -> tuple[str, ...]:
    parts = tuple(value) if isinstance(value, list | tuple) else ()
    texts = [part for part in parts if isinstance(part, str) and "\0" not in part]
    if not texts or len(texts) < len(parts) or not texts[0].startswith("/"):
        raise refuse("a list: the path of an executable, which begins with /, and its arguments in quotes")
    return tuple(texts)


def _email(value: object) -> str:
    if not isinstance(value, str) or not is_address(value):
        raise refuse("a mail address like owner@example.com")
    return str(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_NAME_SHAPE, value, re.ASCII):
        raise refuse("a name of 1 to 63 of a-z, 0-9, '-' and '.', a letter or digit first and last")
    return value


def _rule_id(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", value, re.ASCII):
        raise refuse("an id of 1 to 63 of a-z, 0-9 and '-', a letter or digit first")
    return value


def _absolute(value: object) -> str:
    if not isinstance(value, str) or not value.startswith(("/", "~")) or not value.isprintable():
        raise refuse("a path that begins with / or ~")
    try:
        return str(Path(value).expanduser())
    except RuntimeError:
        raise refuse("a path; there is no such user's home") from None


def _job_path(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 1000:
        raise refuse("a path or glob, relative to the job's working directory")
    return value


def _listen(value: object) -> str:
    if value == "":
        return ""
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):([0-9]{1,5})", str(value), re.ASCII)
    if not isinstance(value, str) or not match or int(match[2]) > 65535:
        raise refuse('HOST:PORT like "127.0.0.1:9810", or "" for none')
    return value


def _address(value: object) -> str:
    if value == "":
        raise refuse("HOST:PORT of a controller")
    return _listen(value)


def _url(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s\"'<>]{1,500}", value):
        raise refuse("an address that begins with http:// or https://")
    return value


@cache
def failure_classes() -> frozenset[str]:
    """The classes of the shipped table."""
    return frozenset(row.id for row in load_rows(data_dir("rules") / "failures.toml", "class", FailureRow))


def failure_problem(value: object) -> str:
    """What makes `value` unfit to be the meaning of a log rule, or ""."""
    if not isinstance(value, str) or not value:
        return "a failure class or activity:NAME"
    if value.startswith("activity:"):
        ok = value.removeprefix("activity:") in ACTIVITIES
        return "" if ok else f"one of {', '.join(f'activity:{name}' for name in ACTIVITIES)}"
    if value in failure_classes():
        return ""
    near = difflib.get_close_matches(value, failure_classes(), 1)
    guess = f" ({near[0]}?)" if near else ""
    return f"a failure class{guess}: {', '.join(sorted(failure_classes()))}; or activity:NAME"


def _failure(value: object) -> str:
    problem = failure_problem(value)
    if problem:
        raise refuse(problem)
    return str(value)


def _job_kind(value: object) -> str:
    known = {name for row in job_table().rows for name in (row.kind, row.full)}
    if not isinstance(value, str) or value not in known:
        folded = {name.lower(): name for name in sorted(known, reverse=True)}
        near = difflib.get_close_matches(str(value).lower(), folded, 1)
        guess = f" ({folded[near[0]]}?)" if near else ""
        names = ", ".join(sorted({row.kind for row in job_table().rows}))
        raise refuse(f"a known kind of jobs{guess}: {names}; or KIND.GROUP where two have one name")
    return value


def _off_or_ratio(value: object) -> float | None:
    if value is False or value == "off":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value <= 1000:
        raise refuse("a number above 1, at most 1000, or off")
    return float(value)


def _off_or_size(value: object) -> int:
    if value is False or value == "off":
        return 0
    try:
        count = parse_size(value)
    except ValueError as error:
        raise refuse(f"off, or {error}") from None
    if not 1 << 20 <= count <= 1 << 40:
        raise refuse("off, or a size of at least 1Mi and at most 1Ti")
    return count


def _auto_or_duration(value: object) -> float | None:
    if value == "auto":
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise refuse(f"auto, or {error}") from None
    if not 0.1 <= seconds <= YEAR_S:
        raise refuse("auto, or a duration of at least 100ms and at most a year")
    return seconds


Text = Annotated[StrictStr, Meaning("text")]
YesNo = Annotated[StrictBool, Meaning("true or false")]
Signal = Annotated[
    str, Checked(_signal, type="string", maxLength=16, pattern="^SIG[A-Z0-9]+$"), Meaning("signal name")
]
Pattern = Annotated[
    str,
    Checked(_pattern, type="string", minLength=1, maxLength=MAX_PATTERN),
    Meaning("regular expression (RE2)"),
]
TimingPattern = Annotated[
    str,
    Checked(_timing_pattern, type="string", minLength=1, maxLength=MAX_PATTERN),
    Meaning("regular expression (RE2)"),
]
PlainPattern = Annotated[str, BeforeValidator(_plain_pattern), Meaning("regular expression")]
ErrorLimits = Annotated[dict[str, float], BeforeValidator(_error_limits), Meaning("counter: number")]
Email = Annotated[str, Checked(_email, type="string", pattern=f"^{EMAIL_SHAPE}$")]
Emails = Annotated[tuple[Email, ...], Meaning("list of addresses")]
Name = Annotated[str, Checked(_name, type="string", pattern=f"^{_NAME_SHAPE}$"), Meaning("name")]
AbsolutePath = Annotated[str, BeforeValidator(_absolute), Meaning("path")]
AbsolutePaths = Annotated[tuple[AbsolutePath, ...], Meaning("list of paths")]
JobPath = Annotated[
    str, Checked(_job_path, type="string", minLength=1, maxLength=1000), Meaning("path or glob")
]
_TIME_SHAPE = "([01][0-9]|2[0-3]):[0-5][0-9]"


def _time_of_day(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(_TIME_SHAPE, value):
        raise refuse("a time of day, 00:00 to 23:59")
    return value


def _timezone(value: object) -> str:
    try:
        if isinstance(value, str) and ZoneInfo(value):
            return value
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        pass
    raise refuse("a time zone of the IANA database, such as Europe/Berlin")


TimeOfDay = Annotated[
    str,
    Checked(_time_of_day, type="string", pattern=f"^{_TIME_SHAPE}$"),
    Meaning("time of day, HH:MM"),
]
Timezone = Annotated[str, Checked(_timezone, type="string", maxLength=64), Meaning("time zone")]
Listen = Annotated[str, BeforeValidator(_listen), Meaning("HOST:PORT")]
Addresses = Annotated[
    tuple[Annotated[str, BeforeValidator(_address), Meaning("HOST:PORT")], ...], Meaning("list of HOST:PORT")
]
Url = Annotated[str, BeforeValidator(_url), Meaning("URL")]
FailureClass = Annotated[
    str,
    Checked(_failure, type="string", minLength=1, maxLength=100),
    Meaning("failure class or activity:NAME"),
]
Components = Annotated[
    tuple[Annotated[str, one_of(*PRECHECKS)], ...], Meaning(f"list of {', '.join(PRECHECKS)}")
]
CheckNames = Annotated[tuple[Annotated[str, one_of(*CHECKS)], ...], Meaning("list of names of checks")]
OffOrRatio = Annotated[float | None, Checked(_off_or_ratio, **_ANYTHING), Meaning("number or off")]
AutoOrDuration = Annotated[
    float | None,
    Checked(_auto_or_duration, type="string", maxLength=64, pattern=f"^(auto|{_DURATION_SHAPE})$"),
    Meaning("auto or duration", "duration", "auto"),
]
_LIMIT_SHAPE = {
    "atLeast": {"type": "integer", "minimum": 0, "maximum": 100_000},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
}
Limit = Annotated[
    dict[str, Any],
    Checked(_limit, type="object", properties=_LIMIT_SHAPE, required=["atLeast"]),
    Meaning("{atLeast, share}"),
]
LabelKey = Annotated[str, BeforeValidator(_label), Meaning("key of a label")]
Command = Annotated[tuple[str, ...], BeforeValidator(_command), Meaning("list of texts")]
JobKinds = Annotated[
    tuple[Annotated[str, Checked(_job_kind, type="string", minLength=1, maxLength=300)], ...],
    Meaning("list of kinds"),
]
Texts = Annotated[tuple[StrictStr, ...], Meaning("list of names")]
RuleId = Annotated[
    str, Checked(_rule_id, type="string", pattern="^[a-z0-9][a-z0-9-]{0,62}$"), Meaning("name")
]
Budget = Annotated[int, whole(0, 10_000), Meaning("whole number")]
Duration = Annotated[float, duration(), Meaning("duration", "duration")]
PositiveDuration = Annotated[float, duration(1.0), Meaning("duration, at least 1s", "duration")]
OffOrSize = Annotated[int, Checked(_off_or_size, **_ANYTHING), Meaning("off or size, at least 1Mi", "size")]
Size = Annotated[int, size(), Meaning("size", "size")]
