"""Tables and lines on a terminal. Everything passes `printable`: no text of a job steers the terminal."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

import msgspec

from sentinel.web.words import printable, width

GAP = "   "


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> list[str]:
    """Lines of a table whose columns are as wide as they must be; heads named in `right` align right."""
    cells = [[printable(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(width(row[column]) for row in cells) for column in range(len(heads))]
    to_right = {heads.index(name) for name in right}
    lines = []
    for row in cells:
        padded = []
        for column, cell in enumerate(row):
            blank = " " * (widths[column] - width(cell))
            padded.append(blank + cell if column in to_right else cell + blank)
        lines.append(GAP.join(padded).rstrip())
    return lines


def pairs(items: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of "name  value", values aligned; items without a value are left out."""
    shown = [(printable(name), printable(value)) for name, value in items if value]
    longest = max((width(name) for name, _ in shown), default=0)
    return [f"{name}{' ' * (longest - width(name))}  {value}" for name, value in shown]


def put(text: str) -> None:
    """Write to stdout whatever its encoding is. Raises BrokenPipeError when nobody reads."""
    stream: TextIO | None = sys.stdout
    if stream is None:  # closed by who wants only the exit code
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def put_json(text: str) -> None:
    """`put` of JSON in which what could steer a terminal is escaped as JSON does it: its reader gets what was said."""
    put("".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text))


def _escaped(character: str) -> str:
    code = character.encode("utf-16-be").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))


def put_document(value: object) -> None:
    """`put_json` of what msgspec encodes."""
    put_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def silence_stdout() -> None:
    """After a broken pipe: what Python still wants to flush at its end goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(null)


def complain(text: str) -> None:
    """One line on stderr."""
    print(f"sentinel: {printable(text)}", file=sys.stderr)


def unknown_job(name: str, known: Iterable[str], state_dir: str) -> str:
    names = sorted(known)
    if not names:
        return f"no job {name!r}: there are no jobs in {state_dir}"
    return f"no job {name!r}; known jobs: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}"
