"""Numbers as people read them."""

import pytest

from sentinel.web.words import duration, fit, milliseconds, printable, when, width


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0.0s"),
        (8.44, "8.4s"),
        (59.9, "59s"),
        (128, "2m 08s"),
        (3900, "1h 05m"),
        (100 * 3600, "4d 4h"),
        (-5, "-5.0s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.5, "0.5 ms"), (8.214, "8.21 ms"), (412.4, "412 ms"), (3317.8, "3.32 s")],
)
def test_step_times_keep_the_digits_that_matter(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


def test_times_of_another_day_carry_their_date() -> None:
    assert when(1_760_000_000.0, 1_760_000_001.0).count(":") == 2
    assert when(1_760_000_000.0, 1_770_000_000.0).startswith("2025-10-")
    assert when(0.0) == "–"


def test_untrusted_text_becomes_one_line_that_steers_nothing() -> None:
    assert printable("a\tb\nc\x1b[2J\u202e\x9b é 漢") == "a b c�[2J�� é 漢"


def test_text_is_cut_by_the_columns_it_takes() -> None:
    assert width("漢字ab") == 6
    assert fit("漢字ab", 6) == "漢字ab"
    assert fit("漢字ab", 5) == "漢字…"
    assert fit("漢字ab", 4) == "漢…"
    assert fit("abc", 0) == ""
