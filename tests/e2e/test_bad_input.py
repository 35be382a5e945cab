"""What a user, a job or a machine can throw at Sentinel: a clear sentence, never a traceback or a lost job."""

import os

from tests.e2e.box import Box


def test_a_variable_that_is_no_text_reaches_the_ranks_as_it_is(box: Box) -> None:
    """Old tools leave Latin-1 in the environment; a job must not fail to start because of it."""
    raw = {**os.environb, b"ODD": b"a\xff\xfeb", b"N\xff": b"1"}
    box.env = {os.fsdecode(name): os.fsdecode(value) for name, value in raw.items()} | {
        "SENTINEL_STATE_DIR": str(box.state),
        "E2E_BOX": str(box.folder),
    }
    running = box.run("env")
    assert running.code() == 0, running.err
    lines = box.sentinel_log_path("job", 1, 0).read_bytes().splitlines()
    assert b"ODD=a\xff\xfeb" in lines
    assert b"N\xff=1" in lines


def test_a_command_that_is_no_text_is_refused_in_words(box: Box) -> None:
    running = box.run("echo", os.fsdecode(b"\xff"))
    assert running.code() == 64
    assert "is not UTF-8" in running.err
    assert "Traceback" not in running.err
