"""Several ranks on one terminal: whose line is it, and what of a progress bar is shown."""

from hypothesis import given
from hypothesis import strategies as st

from sentinel.console.prefix import BAR_S, LINE_BYTES, PARTIAL_S, Prefixer


def test_every_complete_line_says_whose_it_is() -> None:
    prefixer = Prefixer()
    assert prefixer.feed(3, b"one\ntwo\n", 0.0) == b"[rank 3] one\n[rank 3] two\n"
    assert not prefixer.waits


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    assert Prefixer().feed(0, b"\xff\xfe\x00\x1b[31m\n", 0.0) == b"[rank 0] \xff\xfe\x00\x1b[31m\n"


def test_a_line_cut_anywhere_comes_out_whole() -> None:
    prefixer = Prefixer()
    assert prefixer.feed(1, b"iter", 0.0) == b""
    assert prefixer.feed(0, b"other\n", 0.1) == b"[rank 0] other\n"
    assert prefixer.feed(1, b"ation 5\n", 0.2) == b"[rank 1] iteration 5\n"


def test_an_unfinished_line_is_shown_after_a_while_and_goes_on_in_place() -> None:
    prefixer = Prefixer()
    prefixer.feed(0, b"loading ... ", 0.0)
    assert prefixer.flush(PARTIAL_S / 2) == b""
    assert prefixer.flush(PARTIAL_S) == b"[rank 0] loading ... "
    assert prefixer.feed(0, b"done\n", 1.0) == b"done\n"


def test_another_rank_does_not_write_into_an_unfinished_line() -> None:
    prefixer = Prefixer()
    prefixer.feed(0, b"loading ... ", 0.0)
    prefixer.flush(PARTIAL_S)
    assert prefixer.feed(1, b"hello\n", 1.0) == b"\n[rank 1] hello\n"
    assert prefixer.feed(0, b"done\n", 1.0) == b"[rank 0] done\n"


def test_the_end_finishes_what_is_open() -> None:
    prefixer = Prefixer()
    prefixer.feed(0, b"no newline", 0.0)
    prefixer.feed(1, b"neither\r", 0.0)
    assert prefixer.flush(0.0, end=True) == b"[rank 0] no newline\n[rank 1] neither\n"
    assert not prefixer.waits


def test_a_progress_bar_is_shown_now_and_then_and_at_its_end() -> None:
    prefixer = Prefixer()
    shown = b""
    for tenth in range(100):  # ten updates a second for ten seconds
        now_s = tenth / 10
        shown += prefixer.feed(0, b"\r%3d%%" % tenth, now_s)
        shown += prefixer.flush(now_s)
    shown += prefixer.feed(0, b"\r100%\n", BAR_S * 2 + 1)
    lines = shown.splitlines()
    assert lines[-1] == b"[rank 0] 100%"
    assert 2 <= len(lines) <= 4
    assert b"\r" not in shown


def test_a_line_end_of_carriage_return_and_newline_is_one_line_end() -> None:
    prefixer = Prefixer()
    assert prefixer.feed(0, b"dos line\r", 0.0) == b""
    assert prefixer.feed(0, b"\nnext\r\n", 0.0) == b"[rank 0] dos line\n[rank 0] next\n"


def test_an_endless_line_is_not_held_in_memory() -> None:
    prefixer = Prefixer()
    shown = b"".join(prefixer.feed(0, b"x" * 10_000, 0.0) for _ in range(20))
    assert len(shown) > 200_000 - LINE_BYTES - 10_000
    assert shown.startswith(b"[rank 0] x")
    assert b"\n" not in shown


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=20)), max_size=30), st.booleans())
def test_nothing_of_any_rank_is_lost(pieces: list[tuple[int, bytes]], flush: bool) -> None:
    """Without carriage returns every byte comes out, in order, in lines of its own rank."""
    prefixer = Prefixer()
    told: dict[int, bytes] = {}
    out = b""
    for number, (rank, data) in enumerate(pieces):
        data = data.replace(b"\r", b"").replace(b"[rank", b"")
        told[rank] = told.get(rank, b"") + data
        out += prefixer.feed(rank, data, float(number))
        if flush:
            out += prefixer.flush(float(number + 1))
    out += prefixer.flush(1e9, end=True)
    assert not out or out.endswith(b"\n")
    for rank, data in told.items():
        prefix = b"[rank %d] " % rank
        lines = [line.removeprefix(prefix) for line in out.split(b"\n") if line.startswith(prefix)]
        assert b"".join(lines) == data.replace(b"\n", b"")
