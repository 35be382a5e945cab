"""Durations ("1h30m") and sizes ("4Mi") as people write them."""

import math
import re

DURATION = "a duration like 90s, 5m, 1h30m or 2d"
SIZE = "a size like 500M, 4Mi or 1G"

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", re.ASCII)
_BYTES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kKMGT]|[KMGT]i)B?", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds. Raises ValueError whose text is what was expected."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        raise ValueError(f"{DURATION} (a bare number has no unit: write {value:g}s for seconds)")
    if not isinstance(value, str):
        raise ValueError(DURATION)
    text = value.strip()
    if re.fullmatch(r"[0-9.]{1,15}", text, re.ASCII):
        raise ValueError(f"{DURATION} (a bare number has no unit: write {text}s for seconds)")
    parts = _PART.findall(text)
    units = [unit for _, unit in parts]
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(DURATION)
    if units != sorted(set(units), key=lambda unit: -_SECONDS[unit]):
        raise ValueError(f"{DURATION}, each unit once, the largest first")
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def parse_size(value: object) -> int:
    """Bytes. Raises ValueError whose text is what was expected."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"{SIZE} (a bare number has no unit)")
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(SIZE)
    return int(float(match[1]) * _BYTES[match[2]])


def duration_text(seconds: float) -> str:
    """As people say it and `parse_duration` reads it back: 5400 -> "1h30m", 108000 -> "30h", 172800 -> "2d"."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    if seconds != int(seconds):
        return f"{seconds:g}s"
    parts = []
    left = int(seconds)
    if left and left % 86400 == 0:
        return f"{left // 86400}d"
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def size_text(count_bytes: int) -> str:
    """4194304 -> "4Mi", 500000000 -> "500M"; a count that is no multiple stays a count of kB at best."""
    for unit in ("Ti", "T", "Gi", "G", "Mi", "M", "Ki", "k"):
        if count_bytes and count_bytes % _BYTES[unit] == 0:
            return f"{count_bytes // _BYTES[unit]}{unit}"
    return f"{count_bytes} bytes"
