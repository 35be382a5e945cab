"""The text format of Prometheus, made of what has changed since it was last asked for.

https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4)
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from enum import Enum

Key = tuple[str, ...]  # label values, in the order of the label names

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def series(name: str, labels: tuple[str, ...], key: Key) -> str:
    """`name{label="value"}`; a value from outside cannot end its line."""
    if not labels:
        return name
    told = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in zip(labels, key, strict=True))
    return f"{name}{{{told}}}"


def header(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n"


def key_of(labels: tuple[str, ...]) -> Key:
    # str() of a StrEnum member is its value, but a dictionary key must not keep the member itself.
    return tuple(str(label.value) if isinstance(label, Enum) else str(label) for label in labels)


class Family:
    """A counter or gauge. Whoever sets what is already there costs nothing."""

    __slots__ = ("_head", "_labels", "_lines", "_name", "_of", "_text", "values")

    def __init__(self, name: str, kind: str, text: str, labels: tuple[str, ...]) -> None:
        self.values: dict[Key, float] = {}
        self._name, self._labels = name, labels
        self._head = header(name, kind, text)
        self._lines: dict[Key, str] = {}
        self._of: dict[str, tuple[Key, ...]] = {}  # first label -> keys of `set_of`
        self._text: str | None = ""

    def set(self, key: Key, value: float | None) -> None:
        """None: there is no such series any more."""
        if value is None:
            if self.values.pop(key, None) is not None:
                self._lines.pop(key, None)
                self._text = None
        elif self.values.get(key) != value:
            self.values[key] = float(value)
            self._lines.pop(key, None)
            self._text = None

    def set_of(self, first: str, values: Mapping[Key, float]) -> None:
        """All series whose first label is this, by the other labels."""
        wanted = {(first, *rest): value for rest, value in values.items()}
        known = self._of.get(first, ())
        for key in known:
            if key not in wanted:
                self.set(key, None)
        for key, value in wanted.items():
            if self.values.get(key) != value:
                self.set(key, value)
                self._lines[key] = self._line(key, value)  # now, and not while a scrape waits for thousands
        if not wanted:
            self._of.pop(first, None)
        elif known != (keys := tuple(wanted)):
            self._of[first] = keys

    def replace(self, values: Mapping[Key, float]) -> None:
        for key in self.values.keys() - values.keys():
            self.set(key, None)
        for key, value in values.items():
            self.set(key, value)

    def _line(self, key: Key, value: float) -> str:
        return f"{series(self._name, self._labels, key)} {number(value)}\n"

    def text(self) -> str:
        """ "" without series."""
        if self._text is None:
            lines = self._lines
            for key, value in self.values.items():
                if key not in lines:
                    lines[key] = self._line(key, value)
            self._text = self._head + "".join([lines[key] for key in self.values]) if self.values else ""
        return self._text


class Observed:
    """Counts per bucket (not cumulated; the last is +Inf) and the sum of what was observed."""

    __slots__ = ("counts", "sum", "text")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum = 0.0
        self.text = ""  # "": not made yet


class Histogram:
    """`buckets`: upper bounds, the last one without +Inf."""

    __slots__ = ("_bounds", "_buckets", "_head", "_labels", "_name", "values")

    def __init__(self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> None:
        self.values: dict[Key, Observed] = {}
        self._name, self._labels, self._buckets = name, labels, buckets
        self._bounds = (*(str(bound) for bound in buckets), "+Inf")
        self._head = header(name, "histogram", text)

    def start(self, key: Key) -> Observed:
        """With nothing observed, so that the first one is an increase to Prometheus."""
        return self.values.setdefault(key, Observed(len(self._buckets)))

    def observe(self, key: Key, value: float) -> None:
        observed = self.start(key)
        value = max(0.0, value)
        observed.counts[bisect_left(self._buckets, value)] += 1
        observed.sum += value
        observed.text = ""

    def text(self) -> str:
        if not self.values:
            return ""
        for key, observed in self.values.items():
            if not observed.text:
                observed.text = self._lines(key, observed)
        return self._head + "".join([observed.text for observed in self.values.values()])

    def _lines(self, key: Key, observed: Observed) -> str:
        lines, total = [], 0
        for bound, count in zip(self._bounds, observed.counts, strict=True):
            total += count
            bucket = series(f"{self._name}_bucket", (*self._labels, "le"), (*key, bound))
            lines.append(f"{bucket} {total}\n")
        lines.append(f"{series(f'{self._name}_sum', self._labels, key)} {number(observed.sum)}\n")
        lines.append(f"{series(f'{self._name}_count', self._labels, key)} {total}\n")
        return "".join(lines)
