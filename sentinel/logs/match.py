"""Many patterns over whole chunks of lines, in linear time whatever the pattern and whatever the text.

Hyperscan says in one pass which patterns occur in a chunk at all (each reported once); only for those
the chunk is searched line by line with RE2. Without hyperscan RE2's own set does the first step.
No pattern of an owner or of a rule file ever meets a backtracking engine.
"""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import structlog

log = structlog.get_logger(__name__)

PATTERN_LIMIT_CHARS = 1000
REGEX_MEMORY_BYTES = 4 << 20  # RE2's budget for one pattern
SET_MEMORY_BYTES = 32 << 20  # and for all together, where there is no hyperscan
LINE_LIMIT_BYTES = 65_536  # of a longer line only the beginning is looked at


@cache
def hyperscan_module() -> ModuleType | None:
    """The module, or None where there is no wheel for this platform. Costs 3.5 MiB and 20 ms, so it is lazy."""
    try:
        import hyperscan
    except ImportError as error:
        log.warning("hyperscan_missing", error=str(error), instead="re2")
        return None
    module: ModuleType = hyperscan
    return module


@cache
def _re2() -> Any:
    import re2

    return re2


@cache
def _re2_options(max_bytes: int = REGEX_MEMORY_BYTES) -> Any:
    re2 = _re2()
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # logs are bytes, not always UTF-8
    options.never_nl = True  # no match crosses a line end, not even with [^x] or \s
    options.log_errors = False
    options.max_mem = max_bytes
    return options


def as_bytes(pattern: str) -> bytes:
    r"""A pattern over bytes: each non-ASCII character becomes a group of its UTF-8 bytes, so that é+ works."""
    return b"".join(
        char.encode() if char.isascii() else b"(?:%s)" % b"".join(b"\\x%02x" % byte for byte in char.encode())
        for char in pattern
    )


def compile_re2(pattern: str) -> Any:
    """An RE2 regex over bytes in which `^` and `$` mean the ends of a line. Raises ValueError."""
    re2 = _re2()
    try:
        return re2.compile(b"(?m)" + as_bytes(pattern), _re2_options())
    except re2.error as error:
        detail = error.args[0] if error.args else error
        raise ValueError(
            detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        ) from None


def check_pattern(pattern: str) -> str | None:
    """Why a pattern cannot be used, or None. Syntax: RE2's (no lookaround, no back-references)."""
    if not pattern:
        return "the pattern is empty"
    if len(pattern) > PATTERN_LIMIT_CHARS:
        return f"the pattern has {len(pattern)} characters, at most {PATTERN_LIMIT_CHARS} are allowed"
    if "\n" in pattern or "\r" in pattern:
        return "patterns match within one line; this one contains a line end"
    if re.search(r"\\[AzZC]", pattern.replace("\\\\", "")):
        return r"use ^ and $ for the ends of a line instead of \A, \z or \C"
    if _class_has_non_ascii(pattern):
        return "characters outside ASCII cannot stand inside [...]: write (a|b) instead"
    try:
        compiled = compile_re2(pattern)
    except ValueError as error:
        return f"not a valid RE2 pattern: {error}"
    if compiled.search(b"") is not None:
        return "the pattern matches an empty line, so it would match every line"
    hyperscan = hyperscan_module()
    if hyperscan is not None:
        try:
            _hyperscan_compile(hyperscan, [as_bytes(pattern)])
        except hyperscan.error as error:
            return f"the pattern engine cannot use it: {error}"
    return None


def _class_has_non_ascii(pattern: str) -> bool:
    inside = escaped = False
    for char in pattern:
        if inside and not char.isascii():
            return True
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "[":
            inside = True
        elif char == "]":
            inside = False
    return False


def _hyperscan_compile(hyperscan: ModuleType, patterns: Sequence[bytes]) -> Any:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flags = hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_SINGLEMATCH
    count = len(patterns)
    database.compile(
        expressions=list(patterns), ids=list(range(count)), elements=count, flags=[flags] * count
    )
    return database


class Scanner:
    """Says which patterns occur in a chunk. `engine` is "hyperscan" or "re2"."""

    def __init__(self, patterns: Sequence[bytes], cache_dir: Path | None = None) -> None:
        """Raises ValueError if the patterns cannot be compiled together."""
        self._hits: list[tuple[int, int]] = []
        self._database: Any = None
        self._set: Any = None
        hyperscan = hyperscan_module()
        self.engine = "re2" if hyperscan is None else "hyperscan"
        if not patterns:
            return
        if hyperscan is not None:
            try:
                self._database = _load_or_compile(hyperscan, patterns, cache_dir)
            except hyperscan.error as error:
                raise ValueError(f"the pattern engine refuses the patterns: {error}") from None
            return
        self._set = _re2().Set.SearchSet(_re2_options(SET_MEMORY_BYTES))
        for pattern in patterns:
            self._set.Add(b"(?m)" + pattern)
        self._set.Compile()

    def present(self, chunk: bytes) -> list[tuple[int, int]]:
        """(index of the pattern, an offset before which none of its matches ends), each pattern once."""
        if self._database is not None:
            self._hits = []
            self._database.scan(chunk, self._on_match)
            return self._hits
        if self._set is not None:
            return [(index, 0) for index in self._set.Match(chunk) or ()]
        return []

    def _on_match(self, index: int, start: int, end: int, flags: int, context: object) -> None:
        self._hits.append((index, end))


def _load_or_compile(hyperscan: ModuleType, patterns: Sequence[bytes], cache_dir: Path | None) -> Any:
    """Compiling 70 patterns takes 50 ms or more, reading them back 1 ms: that counts when a job starts."""
    if cache_dir is None:
        return _hyperscan_compile(hyperscan, patterns)
    version = str(getattr(hyperscan, "__version__", ""))
    key = hashlib.sha256(version.encode() + b"\0" + b"\0".join(patterns)).hexdigest()[:32]
    path = cache_dir / f"patterns-{key}.hsdb"
    try:
        database = hyperscan.loadb(path.read_bytes(), hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        return database
    except FileNotFoundError:
        pass
    except (OSError, hyperscan.error) as error:  # cut off, or made by another CPU
        log.warning("pattern_cache_unusable", path=str(path), error=str(error))
    database = _hyperscan_compile(hyperscan, patterns)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cache_dir, prefix=".patterns-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hyperscan.dumpb(database))
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        log.warning("pattern_cache_not_written", path=str(path), error=str(error))
    return database


class LinePattern:
    """One pattern, searched for line by line. Compiled at its first use: most never match."""

    def __init__(self, pattern: str, literal: str = "") -> None:
        self._pattern = pattern
        self._literal = literal.encode()
        self._regex: Any = None

    @property
    def regex(self) -> Any:
        if self._regex is None:
            self._regex = compile_re2(self._pattern)
        return self._regex

    def matches(self, line: bytes) -> bool:
        return self.regex.search(line) is not None

    def cut_from(self, line: bytes) -> bytes:
        """The line without what matches."""
        rest: bytes = self.regex.sub(b"", line)
        return rest

    def lines(self, chunk: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
        """Bounds of every line of `chunk` that matches and does not end before `start`."""
        if self._literal:
            yield from self._lines_by_literal(chunk, start)
            return
        pos = chunk.rfind(b"\n", 0, start) + 1
        # RE2 sees `pos` as the beginning of the text: it must be the beginning of a line
        while (found := self.regex.search(chunk, pos)) is not None:
            line_start = chunk.rfind(b"\n", 0, found.start()) + 1
            line_end = chunk.find(b"\n", found.start())
            if line_end < 0:
                line_end = len(chunk)
            if found.end() - line_start <= LINE_LIMIT_BYTES:
                yield line_start, line_end
            pos = line_end + 1
            if pos >= len(chunk):
                return

    def _lines_by_literal(self, chunk: bytes, start: int) -> Iterator[tuple[int, int]]:
        literal = self._literal
        pos = chunk.find(literal, chunk.rfind(b"\n", 0, start) + 1)
        while pos >= 0:
            line_start = chunk.rfind(b"\n", 0, pos) + 1
            line_end = chunk.find(b"\n", pos)
            if line_end < 0:
                line_end = len(chunk)
            if (
                self.regex.search(chunk[line_start : min(line_end, line_start + LINE_LIMIT_BYTES)])
                is not None
            ):
                yield line_start, line_end
            pos = chunk.find(literal, line_end)
