"""Logs, files and state that go wrong under a running job: it lives, and what is degraded is said."""

import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.agent.ranks import AHEAD_BYTES
from sentinel.logs.follow import FULL
from tests.disks import fill_up, small_tmpfs
from tests.e2e.box import Box, Running, train
from tests.gate.rights import needs_root
from tests.waits import until


def page(box: Box) -> None:
    box.settings(listen="127.0.0.1:0")  # degraded modes of logs are told live


def end(job: Running) -> None:
    job.send(signal.SIGINT)
    assert job.code() == 130
    assert "Traceback" not in job.err


def log_path(box: Box) -> Path:
    return box.state / "jobs/job/logs/1/rank-0.log"


def test_a_truncated_log_is_read_on_and_said(box: Box) -> None:
    page(box)
    job = box.run(*train())
    box.stepping()
    until(lambda: box.status()["step"], lambda: str(box.status()))  # of what was never read nothing is missed
    for pid in box.ranks(1).values():  # else it may fill the log again between two looks
        os.kill(pid, signal.SIGSTOP)
    os.truncate(log_path(box), 0)
    until(lambda: "The log of rank 0: truncated." in [e.sentence for e in box.events()])
    step = box.status()["step"]
    for pid in box.ranks(1).values():
        os.kill(pid, signal.SIGCONT)
    until(lambda: (box.status()["step"] or 0) > step + 20)
    assert box.incidents() == []
    end(job)


def test_a_log_that_was_removed_is_said_and_its_silence_is_no_hang(box: Box) -> None:
    page(box)
    job = box.run(*train(), policy=box.policy(hang={"after": "1s"}))
    box.stepping()
    log_path(box).unlink()
    until(lambda: any("rank 0" in m for m in box.status()["degraded"]), lambda: str(box.status()))
    assert len(box.starts) == 1
    assert box.incidents() == []
    end(job)


def test_a_job_that_prints_binary_and_endless_lines_is_protected_like_any_other(box: Box) -> None:
    noise = "head -c 300000 /dev/urandom; head -c 2000000 /dev/zero | tr '\\0' x; printf '\\n'"
    job = box.run("sh", "-c", f'{noise}; exec "$@"', "-", *train("--save-every", "1"))
    box.stepping()
    os.kill(box.ranks(1)[0], signal.SIGKILL)
    box.stepping(incarnation=2)
    incident = box.phase("Recovered")
    assert incident.failed_step is not None
    end(job)


def test_a_checkpoint_directory_that_is_missing_is_an_unproved_save_and_no_lost_job(box: Box) -> None:
    checkpoint = {"timeout": "1s", "proof": {"fileAppears": "no/such/directory/*.pt"}}
    job = box.run(*train(), policy=box.policy(resume={"gracefulStop": "2s", "checkpoint": checkpoint}))
    box.stepping()
    job.send(signal.SIGTERM)
    assert job.code() == 75
    incident = box.phase("Ended")
    assert any("not proved within 1 s" in step.sentence for step in incident.steps)
    assert "Traceback" not in job.err


def test_a_state_file_that_is_damaged_under_a_running_sentinel_loses_nothing(box: Box) -> None:
    job = box.run(*train("--save-every", "1"))
    box.stepping()
    with closing(sqlite3.connect(box.state / "state.db")) as db:  # else the log of writes may heal the file
        until(lambda: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, lambda: "busy")
    with open(box.state / "state.db", "r+b") as file:
        file.write(os.urandom(65536))
    os.kill(box.ranks(1)[0], signal.SIGKILL)
    box.stepping(incarnation=2)
    job.said("recovered:")
    end(job)
    view = box.status()
    assert (view["state"], view["incarnation"]) == ("stopped", 2)
    assert [i["phase"] for i in view["incidents"]] == ["Ended", "Recovered"]
    assert list(box.state.glob("state.db.damaged-*"))


def test_a_state_file_that_was_damaged_while_nobody_looked_is_said_and_the_ranks_live(box: Box) -> None:
    job = box.run(*train())
    box.stepping()
    pid = box.ranks(1)[0]
    job.kill()
    for path in box.state.glob("state.db*"):
        path.write_bytes(os.urandom(4096))
    again = box.attach()
    assert again.code() == 1
    assert "Traceback" not in again.err
    assert "damaged" in again.err or "unreadable" in again.err or "set aside" in again.err, again.err
    assert box.ranks() == {0: pid}


def test_a_state_directory_that_is_removed_costs_no_job(box: Box) -> None:
    job = box.run(*train("--steps", "60"))
    box.stepping()
    for path in box.state.glob("state.db*"):
        path.unlink()
    assert job.code() == 0
    assert "Traceback" not in job.err


# ---------------------------------------------------------------- the disk of the state


@pytest.fixture
@needs_root
def small_state(box: Box) -> Iterator[Path]:
    """The state directory on a file system of its own."""
    with small_tmpfs(box.state, "32m") as place:
        yield place
        box.close()


def test_a_job_goes_on_printing_on_a_full_disk_where_its_oldest_output_gives_way(
    box: Box, small_state: Path
) -> None:
    job = box.run(*train())
    log = small_state / "jobs" / "job" / "logs" / "1" / "rank-0.log"

    def on_disk() -> int:
        return log.stat().st_blocks * 512

    box.stepping()
    until(lambda: on_disk() > AHEAD_BYTES, box.story)  # it has room to go on with
    fill_up(small_state)
    until(
        lambda: not (small_state / "state.db.ballast").exists(), box.story
    )  # what the records had in reserve
    rest = open(small_state / "rest", "wb", buffering=0)  # noqa: SIM115 what is freed is taken at once
    for number in range(20):
        with contextlib.suppress(OSError):
            while True:
                rest.write(b"\0" * 4096)
        text = f"{number:02}" * 200_000
        box.order(0, f"say {text}")
        until(lambda: f"{text}\n" in job.out, box.story)  # noqa: B023
    rest.close()
    assert len(box.starts) == 1
    assert box.incidents() == []
    assert log.stat().st_size - on_disk() > 2_000_000
    assert any(FULL in mode for mode in box.status()["degraded"])
    (small_state / "hog").unlink()
    (small_state / "rest").unlink()
    for _ in range(8):  # it looks when there is something to read
        box.order(0, f"say {text}")
        until(lambda: not (box.work / "orders.0").exists(), box.story)
    until(lambda: not any(FULL in mode for mode in box.status()["degraded"]), lambda: str(box.status()))
    job.send(signal.SIGINT)
    assert job.code() == 130
    assert on_disk() < log.stat().st_size, "what was held for it is free"


def test_a_job_that_the_full_disk_of_the_state_ends_starts_again_only_when_there_is_room(
    box: Box, small_state: Path
) -> None:
    """A flood, of which the room that was held for it takes only the beginning."""
    box.settings(disk={"minFreeBytes": "8M"})
    job = box.run(*train())
    box.stepping()
    fill_up(small_state)
    until(lambda: not (small_state / "state.db.ballast").exists(), box.story)
    (small_state / "hog").rename(small_state / "first")
    fill_up(small_state)
    box.order(0, "say " + "y" * 12_000_000)
    until(
        lambda: any(step.reason == "PrecheckFailed" for i in box.incidents() for step in i.steps), box.story
    )
    assert len(box.starts) == 1
    verdict = box.incidents()[0].verdict
    assert (verdict.failure, verdict.budget) == ("storage-full", "infrastructure")
    for name in ("first", "hog"):
        (small_state / name).unlink()
    box.stepping(incarnation=2)
    job.send(signal.SIGINT)
    assert job.code() == 130


FLOOD = """
import os
open("go").read()
lines = b"".join(b"shard %d of the training set is read from the cache\\n" % n for n in range(200))
for _ in range((128 << 20) // len(lines)):
    os.write(1, lines)
print("written", flush=True)
open("end").read()
"""


def test_a_flood_keeps_of_what_was_read_no_more_on_the_disk_than_it_may(box: Box) -> None:
    """As fast as a program can print. Sentinel prints what it has read: the rest of the log is still to be read."""
    keep_bytes = 4 << 20
    os.mkfifo(box.work / "go")
    os.mkfifo(box.work / "end")
    job = box.run(sys.executable, "-SEc", FLOOD, policy=box.policy(logs={"keepBytes": "4Mi"}))
    shown = box.folder / "out-2"  # of `job`
    until(lambda: log_path(box).exists(), lambda: job.err)
    (box.work / "go").write_text("")
    looks = []

    def read_to_the_end() -> bool:
        read_bytes = shown.stat().st_size  # before the log: it may be more by then
        log = log_path(box).stat()
        looks.append(log.st_blocks * 512 - (log.st_size - read_bytes))
        with open(shown, "rb") as file:
            file.seek(max(0, read_bytes - 8))
            return file.read() == b"written\n"

    until(read_to_the_end, lambda: job.err)
    assert max(looks) <= 2 * keep_bytes
    assert log_path(box).stat().st_blocks * 512 <= 2 * keep_bytes
    (box.work / "end").write_text("")
    assert job.code() == 0
