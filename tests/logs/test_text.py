"""Colour, carriage returns and time stamps."""

import time

import pytest

from sentinel.logs.text import plain, shown, stamp_wall_s

WALL_S = 1_750_000_000.0  # 15 June 2025


def local(*parts: int) -> float:
    year, month, day, hour, minute, second = parts
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x1b[31mstep:  4  \x1b[38;2;180;60;0mgrad\x1b[0m", b"step:  4  grad"),
        (b"\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", b"xy"),
        (b"1/3\x08\x08\x082/3", b"1/32/3"),
        (b"a\rb\r\nc", b"a\nb\n\nc"),
        (b"\x1b[", b"\x1b["),
    ],
)
def test_escapes_go_and_carriage_returns_end_lines(raw: bytes, text: bytes) -> None:
    assert plain(raw) == text


def test_plain_text_is_not_copied() -> None:
    text = b"nothing to do\n"
    assert plain(text) is text


def test_shown_lines_are_short_and_printable() -> None:
    assert shown(b"  a\x00b\x1b[31m\xff " + b"z" * 900).startswith("a\ufffdb\ufffd[31m\ufffd z")
    assert len(shown(b"z" * 900)) == 500
    assert shown("ü".encode() * 900) == "ü" * 500


@pytest.mark.parametrize(
    ("line", "stamp"),
    [
        (b"2025-04-13T23:41:12Z x", 1744587672.0),
        (b"2025-04-13T23:41:12.250+02:00 x", 1744580472.25),
        (b"2016-10-06T00:17:09.669794202Z stdout F x", 1475713029.669794202),
        (b"[2025-04-13 23:41:12] iteration", local(2025, 4, 13, 23, 41, 12)),
        (b"2025-04-13 23:41:12,500 - INFO", local(2025, 4, 13, 23, 41, 12) + 0.5),
        (b"[2024/08/06 18:03:31] openrec INFO", local(2024, 8, 6, 18, 3, 31)),
        (
            b"[rank0]:[E413 02:07:08.408271257 ProcessGroupNCCL.cpp:607]",
            local(2025, 4, 13, 2, 7, 8) + 0.408271257,
        ),
        (b"E1206 18:44:12.715298 1 x.cc:1]", local(2024, 12, 6, 18, 44, 12) + 0.715298),  # of last year
        (b"no stamp at all", None),
        (b"2025-13-45 99:99:99 is none", None),
        (b"x" * 100 + b"2025-04-13 23:41:12", None),
    ],
)
def test_a_leading_stamp_is_read(line: bytes, stamp: float | None) -> None:
    got = stamp_wall_s(line, WALL_S)
    assert got == (stamp if stamp is None else pytest.approx(stamp, abs=1e-3))
