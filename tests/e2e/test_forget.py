"""Ended jobs are forgotten, by hand or by age and number; what runs or can be attached never is."""

import fcntl
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import JobState
from sentinel.local_run.ended import ASIDE, excess, forget, sweep
from sentinel.service.control import Lock
from sentinel.settings import EndedJobs
from tests.e2e.box import Box, train
from tests.waits import until
from tests.web import samples


def ended(box: Box, *names: str) -> None:
    for name in names:
        assert box.run("echo", name, name=name).code() == 0


def test_forget_removes_the_record_and_the_logs_and_the_name_begins_anew(box: Box) -> None:
    ended(box, "one", "two")
    done = box.sentinel("forget", "one")
    assert (done.returncode, done.stderr) == (0, "sentinel: one: its records and logs are removed\n")
    assert box.job("one") is None
    assert box.events("one") == []
    assert os.listdir(box.state / "jobs") == ["two"]
    assert box.job("two") is not None
    assert box.run("echo", "again", name="one").code() == 0
    assert box.log(0, 1, "one") == "again\n"


def test_forget_refuses_what_runs_or_is_not_known_and_does_the_rest(box: Box) -> None:
    ended(box, "one")
    job = box.run(*train(), name="live")
    box.stepping(name="live")
    done = box.sentinel("forget", "live", "nobody", "one")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "sentinel: live has not ended: `sentinel stop live` ends it",
        "sentinel: no job 'nobody'; known jobs: live, one",
        "sentinel: one: its records and logs are removed",
    ]
    job.kill()  # nobody protects it, and it can be attached
    assert box.sentinel("forget", "live").returncode == 1
    assert box.ranks(1)
    assert box.sentinel("stop", "live").returncode == 0
    assert box.sentinel("forget", "live").returncode == 0
    assert os.listdir(box.state / "jobs") == []
    box.empty()


@pytest.mark.parametrize("keep", [{"atMost": 2}, {"keepFor": "2s"}])
def test_ended_jobs_go_by_themselves_by_number_or_age_but_none_that_can_run_on(
    box: Box, keep: dict[str, object]
) -> None:
    left = box.run(*train(), name="left")
    box.stepping(name="left")
    left.kill()
    ended(box, "a", "b", "c")
    if "keepFor" in keep:
        record = LocalStore(box.state / "state.db", read_only=True)
        until(lambda: all(time.time() - end_wall_s > 2 for _, end_wall_s in record.ended()))
        record.close()
    box.settings(endedJobs=keep)
    job = box.run(*train(), name="live")
    stay = {"left", "live"} | ({"b", "c"} if "atMost" in keep else set())
    until(lambda: set(os.listdir(box.state / "jobs")) == stay, box.story)
    assert {name for name in ("left", "live", "a", "b", "c") if box.job(name)} == stay
    for name in ("left", "live"):
        box.stepping(name=name)
    job.send(signal.SIGINT)
    assert job.code() == 130
    assert box.sentinel("stop", "left").returncode == 0


# ---------------------------------------------------------------- one by one


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """One job that has ended, with a folder."""
    found = LocalStore(tmp_path / "state.db")
    found.save(jobs=[samples.job(name="bert", state=JobState.SUCCEEDED)], events=samples.events())
    (tmp_path / "jobs" / "bert" / "logs").mkdir(parents=True)
    return found


@pytest.mark.parametrize(
    ("lock", "said"), [("lock", "the Sentinel that protected it has not"), ("supervisor.lock", "are left")]
)
def test_what_a_sentinel_or_a_supervisor_still_holds_stays(
    store: LocalStore, tmp_path: Path, lock: str, said: str
) -> None:
    with open(tmp_path / "jobs" / "bert" / lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert said in forget(store, tmp_path / "jobs", "bert", wait_s=0.0)
        assert store.job("bert") is not None
        assert (tmp_path / "jobs" / "bert" / "logs").is_dir()
    assert forget(store, tmp_path / "jobs", "bert") == ""


def test_a_removal_that_broke_off_is_finished_by_the_next_one(store: LocalStore, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    (jobs / "bert").rename(jobs / f"{ASIDE}bert.12345678")  # killed here: the record is still there
    assert forget(store, jobs, "bert") == ""
    assert store.job("bert") is None
    sweep(jobs)
    assert os.listdir(jobs) == []


def test_a_lock_that_was_set_aside_with_its_folder_guards_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    first, waits, third = Lock(folder), Lock(folder), Lock(folder)
    assert first.take()
    got: list[bool] = []
    waiter = threading.Thread(target=lambda: got.append(waits.take(wait_s=120.0)))
    waiter.start()
    folder.rename(tmp_path / "aside")
    waiter.join(120.0)  # a folder of this name has a new lock, which nobody holds
    assert got == [True]
    assert not third.take()
    first.release()
    assert not third.take()
    waits.release()
    assert third.take()
    third.release()


def test_age_and_number_both_hold_and_the_oldest_go_first() -> None:
    jobs = [("new", 100.0), ("mid", 50.0), ("old", 10.0)]
    assert excess(jobs, EndedJobs(), 100.0) == []
    assert excess(jobs, EndedJobs(at_most=1), 100.0) == ["old", "mid"]
    assert excess(jobs, EndedJobs(keep_for_s=60.0), 100.0) == ["old"]
    assert excess(jobs, EndedJobs(), -1e9) == []  # the clock was set back
