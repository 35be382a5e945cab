"""Saved kernel logs as files: whatever they hold, reading them ends, and with messages or a reason."""

import gzip
import io
import tomllib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.logs.kernel_file import MAX_LINE, MAX_MESSAGE, NotALog, SavedLine, saved_lines, unpacked

XID = "NVRM: Xid (PCI:0000:3f:00): 46"
LINES = tomllib.loads((Path(__file__).parent / "kernel_lines.toml").read_text())["line"]
PIECES = [row["text"].encode() + b"\n" for row in LINES] + [
    b"__CURSOR=s=1\n",
    b"MESSAGE\n" + (3).to_bytes(8, "little") + b"abc\n",
    b"MESSAGE=x\n\n",
    b"{\n",
    b'"msg": "x"\n',
    b"},{\n",
    b'{"MESSAGE": [1, 300, "x"], "__REALTIME_TIMESTAMP": "\xd9\xa3"}\n',
    b"-- Boot 9a4b9a4b9a4b9a4b9a4b9a4b9a4b9a4b --\n",
    b"<3>1 - - - - - - x\n",
    b"   \n",
]


def read(data: bytes) -> list[SavedLine]:
    return list(saved_lines(unpacked(io.BufferedReader(io.BytesIO(data))), 1e9))


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=60)), max_size=6).map(b"".join),
    st.integers(0, 500),
)
def test_no_bytes_make_it_raise_anything_else_than_its_own_reason(data: bytes, cut: int) -> None:
    for part in (data, data[:cut]):
        try:
            for saved in read(part):
                assert len(saved.line.text) <= MAX_MESSAGE
        except (NotALog, EOFError, gzip.BadGzipFile):
            pass


def test_a_line_that_never_ends_is_cut_and_the_next_one_is_read() -> None:
    data = b"[    1.000000] " + b"x" * (3 * MAX_LINE) + b"\n[    2.000000] " + XID.encode() + b"\n"
    texts = [saved.line.text for saved in read(data)]
    assert len(texts) == 2
    assert len(texts[0]) == MAX_MESSAGE
    assert texts[1] == XID


def test_the_first_message_of_another_boot_is_marked() -> None:
    journal = "\n".join(
        f'{{"_BOOT_ID": "{boot}", "_TRANSPORT": "kernel", "MESSAGE": "x"}}' for boot in "aabb"
    )
    assert [saved.boots for saved in read(journal.encode())] == [False, False, True, False]
    line = "Aug 30 11:43:09 node7 kernel: x\n"
    short = f"{line}-- Boot 9a4b9a4b9a4b9a4b9a4b9a4b9a4b9a4b --\n{line}"
    assert [saved.boots for saved in read(short.encode())] == [False, True, False]
    assert [saved.boots for saved in read(b"[    0.000000] Linux version 6.8.0\n")] == [True]


def test_lines_of_another_program_go_on_as_its_own() -> None:
    """A message of several lines is not believed line by line."""
    data = f"Aug 30 11:43:09 node7 python[42]: first\n                  {XID}\n".encode()
    assert [saved.line.from_kernel for saved in read(data)] == [False, False]
