"""Sentinel's own log: bounded, whole lines, and never in anybody's way."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from sentinel.util import journal

log = structlog.get_logger(__name__)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    journal.configure(None)
    structlog.configure(**before)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_what_when_and_how_bad(tmp_path: Path) -> None:
    journal.configure(tmp_path / "state" / "sentinel.log")
    log.debug("unheard")
    log.info("begun", job="é\udcff", share=0.5)
    try:
        raise ValueError("no such node")
    except ValueError:
        log.exception("broke", node="n-1")
    first, second = lines(tmp_path / "state" / "sentinel.log")
    assert (first["event"], first["level"], first["share"]) == ("begun", "info", 0.5)
    assert first["timestamp"].endswith("Z")
    assert (second["level"], second["node"]) == ("error", "n-1")
    assert "ValueError: no such node" in second["exception"]


def test_it_stays_bounded_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 1000)
    path = tmp_path / "sentinel.log"
    for turn in range(2):  # as after a restart
        journal.configure(path)
        for number in range(50):
            log.info("step", number=100 * turn + number)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["sentinel.log", "sentinel.log.1"]
    assert all(one.stat().st_size <= 1000 for one in tmp_path.iterdir())
    kept = [one["number"] for one in (*lines(tmp_path / "sentinel.log.1"), *lines(path))]
    assert kept == [*range(kept[0], 150)]
    assert len(kept) > 10


def test_a_line_that_is_longer_than_the_file_may_be_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 100)
    journal.configure(tmp_path / "sentinel.log")
    log.info("long", text="x" * 500)
    assert lines(tmp_path / "sentinel.log")[0]["text"] == "x" * 500


def test_what_cannot_be_written_is_lost_and_no_more(tmp_path: Path) -> None:
    full = tmp_path / "full.log"
    full.symlink_to("/dev/full")
    journal.configure(full)
    log.info("lost")
    path = tmp_path / "there" / "sentinel.log"
    journal.configure(path)
    path.parent.rmdir()
    log.info("lost")
    path.parent.mkdir()
    log.info("kept")
    assert [one["event"] for one in lines(path)] == ["kept"]


def test_a_line_that_was_torn_by_a_full_disk_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sentinel.log"
    journal.configure(path)
    log.info("first")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    log.info("torn")
    monkeypatch.setattr(os, "write", write)
    log.info("last")
    first, torn, last = path.read_text().splitlines()
    assert json.loads(first)["event"] == "first"
    assert len(torn) == 10
    assert json.loads(last)["event"] == "last"


def test_what_is_no_file_is_not_rolled_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 100)
    path = tmp_path / "sentinel.log"
    path.symlink_to("/dev/null")
    journal.configure(path)
    for _ in range(20):
        log.info("step")
    assert [one.name for one in tmp_path.iterdir()] == ["sentinel.log"]
    assert path.is_symlink()


def test_one_that_was_taken_away_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 100)
    path = tmp_path / "sentinel.log"
    journal.configure(path)
    log.info("first")
    path.unlink()
    log.info("second")
    assert [one["event"] for one in lines(path)] == ["second"]


def test_threads_do_not_mix_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 200_000)
    path = tmp_path / "sentinel.log"
    journal.configure(path)
    threads = [
        threading.Thread(target=lambda: [log.info("step", text="x" * 50) for _ in range(300)])
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    rows = lines(path) + (lines(older) if (older := tmp_path / "sentinel.log.1").exists() else [])
    assert len(rows) == 1200


def test_nowhere_is_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    journal.configure(None)
    log.warning("unheard")
    assert capfd.readouterr() == ("", "")
