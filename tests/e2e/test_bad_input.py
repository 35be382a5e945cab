"""What a user, a job or a machine can throw at Sentinel: a clear sentence, never a traceback or a lost job."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import JobState, Launch, ProtectedJob
from sentinel.core.policy_model import Policy
from tests.e2e.box import SENTINEL, Box
from tests.waits import until


def never_started(box: Box, *command: str, incarnation: int = 0) -> None:
    """What a Sentinel leaves that was killed while it looked for room for the first start."""
    box.state.mkdir()
    store = LocalStore(box.state / "state.db")
    launch = Launch(command=command, cwd=str(box.work), env=dict(box.env))
    store.save(jobs=[ProtectedJob(name="job", policy=Policy(), launch=launch, incarnation=incarnation)])
    store.close()


def test_a_variable_that_is_no_text_reaches_the_ranks_as_it_is(box: Box) -> None:
    """Old tools leave Latin-1 in the environment; a job must not fail to start because of it."""
    raw = {**os.environb, b"ODD": b"a\xff\xfeb", b"N\xff": b"1"}
    box.env = {os.fsdecode(name): os.fsdecode(value) for name, value in raw.items()} | {
        "SENTINEL_STATE_DIR": str(box.state),
        "E2E_BOX": str(box.folder),
    }
    running = box.run("env")
    assert running.code() == 0, running.err
    lines = (box.state / "jobs/job/logs/1/rank-0.log").read_bytes().splitlines()
    assert b"ODD=a\xff\xfeb" in lines
    assert b"N\xff=1" in lines


def test_a_command_that_is_no_text_is_refused_in_words(box: Box) -> None:
    running = box.run("echo", os.fsdecode(b"\xff"))
    assert running.code() == 64
    assert "is not UTF-8" in running.err
    assert "Traceback" not in running.err


def test_a_job_that_never_came_to_its_first_start_is_started_by_attach(box: Box) -> None:
    never_started(box, "touch", "ran", incarnation=3)
    attached = box.start("attach", "job", "--settings", box.settings())
    assert attached.code() == 0, attached.err
    assert (box.work / "ran").exists()
    assert box.job().incarnation == 4


def test_a_job_that_never_came_to_its_first_start_is_not_started_to_be_stopped(box: Box) -> None:
    never_started(box, "touch", "ran")
    assert box.sentinel("stop", "job", "--settings", box.settings()).returncode == 0
    assert box.job().state == JobState.STOPPED
    assert not (box.work / "ran").exists()


def test_a_name_whose_job_never_started_is_free(box: Box) -> None:
    never_started(box, "touch", "ran")
    again = box.run("true")
    assert again.code() == 0, again.err
    assert not (box.work / "ran").exists()


def test_too_few_descriptors_are_said_in_one_line(box: Box) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (12, 12))
    command = [SENTINEL, "run", "--name", "job", "--", "true"]
    done = subprocess.run(
        command, cwd=box.work, env=box.env, capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == 74
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr


STEPS = """
import os, time
for step in range(100000):
    line = f" iteration {step}/ 100000 | elapsed time per iteration (ms): 50.0 |"
    os.write(1, line.encode() + bytes([10]))
    if os.path.exists("end"):
        os._exit(0)
    time.sleep(0.05)
"""


def kill_the_rank(box: Box) -> None:
    os.kill(next(pid for pid, line in box.processes().items() if "-SEc" in line and "run" not in line), 9)


def remove(log: Path) -> None:
    log.unlink()


def replace_by_fifo(log: Path) -> None:
    log.unlink()
    os.mkfifo(log)


def replace_by_directory(log: Path) -> None:
    log.unlink()
    log.mkdir()


def truncate(log: Path) -> None:
    log.write_bytes(b"")


def fill_with_noise(log: Path) -> None:
    with open(log, "ab") as file:
        file.write(os.urandom(1 << 20).replace(b"\n", b" ") * 3)


@pytest.mark.parametrize("spoil", [remove, replace_by_fifo, replace_by_directory, truncate, fill_with_noise])
def test_a_job_runs_to_its_end_whatever_becomes_of_its_log(box: Box, spoil: Callable[[Path], None]) -> None:
    running = box.run(sys.executable, "-SEc", STEPS)
    until(lambda: "iteration 3/" in box.log(), box.story)
    spoil(box.state / "jobs/job/logs/1/rank-0.log")
    (box.work / "end").touch()
    assert running.code() == 0, running.err
    assert box.job().state == JobState.SUCCEEDED
    assert "Traceback" not in running.err


BREAKER = """
import os
from sentinel.core.decision import policy
decide = policy.decide
def broken(picture, now):
    if os.path.exists("break"):
        raise RuntimeError("boom")
    return decide(picture, now)
policy.decide = broken
"""


def test_a_part_of_sentinel_that_breaks_is_named_and_goes_on_protecting(box: Box, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAKER)
    box.env["PYTHONPATH"] = str(tmp_path)
    running = box.run(sys.executable, "-SEc", STEPS)
    until(lambda: "iteration 3/" in box.log(), box.story)
    (box.work / "break").touch()
    until(lambda: any("boom" in mode for mode in box.status()["degraded"]), lambda: str(box.status()))
    (box.work / "break").unlink()
    kill_the_rank(box)
    until(lambda: "iteration 3/" in box.log(incarnation=2), box.story)
    (box.work / "end").touch()
    assert running.code() == 0, running.err
    assert "Traceback" not in running.err
    assert running.err.count("boom") <= 2, "said once for each part"


def test_what_is_said_of_a_damaged_state_is_not_mixed_into_the_jobs_output(box: Box) -> None:
    box.state.mkdir()
    (box.state / "state.db").write_bytes(os.urandom(20_000))
    running = box.run("echo", "hello")
    assert running.code() == 0, running.err
    assert "was damaged" in running.err
    assert running.out == "hello\n"
    assert list(box.state.glob("state.db.damaged-*")), "the damaged file is kept"


def test_what_an_earlier_job_of_the_name_left_running_is_said(box: Box) -> None:
    assert box.run("sh", "-c", "setsid sleep 600 & exit 0").code() == 0
    again = box.run("true")
    again.said("processes of an earlier incarnation still run")


def test_a_supervisor_that_somebody_stopped_hides_no_end(box: Box) -> None:
    running = box.run(sys.executable, "-SEc", STEPS)
    until(lambda: "iteration 3/" in box.log(), box.story)
    os.kill(box.supervisor(), signal.SIGSTOP)
    kill_the_rank(box)
    until(lambda: "iteration 3/" in box.log(incarnation=2), box.story)
    (box.work / "end").touch()
    assert running.code() == 0, running.err


def test_a_supervisor_that_somebody_stopped_is_not_taken_for_a_dead_one(box: Box) -> None:
    first = box.run(sys.executable, "-SEc", STEPS)
    until(lambda: "iteration 3/" in box.log(), box.story)
    first.kill()
    os.kill(box.supervisor(), signal.SIGSTOP)
    second = box.attach()
    second.said("protects job again")
    (box.work / "end").touch()
    assert second.code() == 0, second.err
    assert "was killed" not in second.err


def test_a_mail_server_that_refuses_is_named_in_status_and_loses_no_mail(box: Box) -> None:
    with socket.socket() as nobody:  # bound and not listening: the port refuses connections
        nobody.bind(("127.0.0.1", 0))
        box.settings(
            mail={"host": "127.0.0.1", "port": nobody.getsockname()[1], "tls": "none", "timeout": "1s"}
        )
        policy = box.policy(owner={"emails": ["a@example.com"]}, restart={"maxRestarts": 0})
        running = box.run("sh", "-c", "exit 3", policy=policy)
        assert running.code() == 3, running.err
    assert any("mail of job-0001 (gave-up) waits" in mode for mode in box.status()["degraded"])
    assert [mail.state for mail in box.incidents()[0].mails] == ["waiting"]


def test_a_checkpoint_folder_that_is_missing_is_said(box: Box) -> None:
    proof = {"fileAppears": "no/such/folder/step-*.pt"}
    checkpoint = {"signal": "SIGUSR1", "timeout": "1s", "proof": proof}
    policy = box.policy(resume={"gracefulStop": "5s", "checkpoint": checkpoint})
    running = box.run(
        sys.executable, "-SEc", f"import signal; signal.signal(10, lambda *_: None)\n{STEPS}", policy=policy
    )
    until(lambda: "iteration 3/" in box.log(), box.story)
    assert box.sentinel("stop", "job", "--settings", box.settings()).returncode == 0
    assert running.code() == 130
    assert "no/such/folder does not exist" in running.err
