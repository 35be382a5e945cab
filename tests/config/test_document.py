"""Hostile and broken YAML ends in a problem with a place, soon, and never in a traceback."""

import contextlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.document import MAX_BYTES, parse, read_text
from sentinel.config.load import load_policies
from sentinel.config.problems import SHOWN, ConfigErrors, Problem
from tests.config.test_policy import HEAD


def refused(text: str) -> list[Problem]:
    with pytest.raises(ConfigErrors) as caught:
        parse(text, "f.yaml")
    return caught.value.problems


def bomb() -> str:
    """Nine levels of nine aliases each: 9^9 values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [bomb(), "a: &a [*a]", "a: &a {b: *a}", "[" * 100_000, "a: " + "{a: " * 5000, "- " * 30_000],
    ids=["aliases", "itself", "itself-mapping", "flow", "mapping", "block"],
)
def test_bombs_are_refused_soon(text: str) -> None:
    started = time.process_time()
    (problem,) = refused(text)
    assert problem.line > 0
    assert len(str(problem)) < 500
    assert time.process_time() - started < 5


def test_duplicate_keys_name_the_first() -> None:
    (problem,) = refused("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert str(problem) == "f.yaml:5:3: b.c: found the key again (first in line 3), expected each key once"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1\nb: 2", 2),
        ("a:\n\t- b", 2),
        ("a: 1\nb: \x07", 2),
        ("a: *nothing", 1),
        ('a: "\\ud800"', 1),
        ("%TAG", 1),
    ],
)
def test_syntax_errors_have_their_line(text: str, line: int) -> None:
    (problem,) = refused(text)
    assert problem.line == line
    assert "bad syntax" in problem.found


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n---\n", "null"])
def test_an_empty_file_is_called_empty(text: str) -> None:
    (problem,) = refused(text)
    assert problem.found == "an empty file"


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system [id]",
        "a: !!binary aGk=",
        "? [a]\n: b",
        "a: !mine x",
        "? {a: b}\n: c",
    ],
)
def test_tags_and_keys_that_are_no_plain_data_are_refused(text: str) -> None:
    assert refused(text)


def test_words_that_yaml_takes_for_other_things_stay_what_was_written() -> None:
    (document,) = parse("on: 1:30\n1: 2020-01-01\nnull: yes\nd: 0x10\ne: '5'\nf: ~", "f.yaml")
    assert document.data == {"on": "1:30", "1": "2020-01-01", "null": True, "d": 16, "e": "5", "f": None}


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    (problem,) = refused("a: " + "9" * 6000)
    assert problem.expected == "a number"
    assert len(str(problem)) < 200


def test_only_so_many_problems_are_printed() -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_policies(HEAD + "".join(f"  k{number}: 1\n" for number in range(500)))
    assert len(caught.value.problems) == 500
    lines = str(caught.value).splitlines()
    assert len(lines) == SHOWN + 1
    assert lines[-1] == f"and {500 - SHOWN} more problems"


def test_untrusted_text_is_shown_escaped_on_one_line() -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_policies(HEAD + '  mode: "a\\nb\\e[31m\\u202e"\n  "k\\u202e\\n": 1\n')
    assert all(line.isprintable() for line in str(caught.value).splitlines())
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\x7fELF\x02\x01\x01\x00\x00", "a binary file"),
        (b"a: 1\nb: \xff\xfe\n", "byte 0xff that is not UTF-8"),
        (b"x" * (MAX_BYTES + 1), "more than 1 MiB"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, content: bytes, found: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigErrors, match=found):
        read_text(file)


def test_files_that_cannot_be_read_are_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path, found in [
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "a directory"),
        (tmp_path / "loop", "Too many levels of symbolic links"),
        (Path("/dev/zero"), "more than 1 MiB"),
        (tmp_path / ("x" * 300), "File name too long"),
        ("a\0b", "null"),
    ]:
        with pytest.raises(ConfigErrors, match=found):
            read_text(path)


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + (HEAD + "  mode: observe\n").replace("\n", "\r\n").encode())
    assert load_policies(file)[0].mode == "observe"


def test_a_policy_may_come_through_a_pipe() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as pipe:
        pipe.write(HEAD + "  mode: observe\n")
    assert load_policies(Path(f"/dev/fd/{reading}"))[0].mode == "observe"
    os.close(reading)


yaml_like = st.text(alphabet="ab:-[]{}&*!|>'\"%@`#,? \n\t0.1~<=", max_size=60)


@given(yaml_like)
def test_no_text_brings_a_traceback(text: str) -> None:
    for load in (lambda: load_policies(HEAD + "  " + text), lambda: parse(text, "f.yaml")):
        with contextlib.suppress(ConfigErrors):
            assert load()


def test_numbers_as_go_and_helm_write_small_ones_are_numbers() -> None:
    text = "a: 5e-05\nb: 1E+3\nc: 1e\nd: '5e-05'\n"
    (found,) = parse(text, "f")
    assert found.data == {"a": 0.00005, "b": 1000.0, "c": "1e", "d": "5e-05"}
