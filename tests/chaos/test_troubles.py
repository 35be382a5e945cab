"""What else may strike while a job is protected: its supervisor, its mail child, a stopped Sentinel, a full disk."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.core.model import Phase
from tests.chaos.trainer import STEP_S
from tests.chaos.world import HANG_S, ChaosJob, MailServer, check_mails, kill, processes_of, seeded
from tests.disks import fill_up, small_tmpfs
from tests.gate.rights import needs_root
from tests.waits import until


@pytest.fixture
def server() -> Iterator[MailServer]:
    one = MailServer()
    yield one
    one.close()


@pytest.fixture
def job(tmp_path: Path, server: MailServer) -> Iterator[ChaosJob]:
    """One that steps and is protected."""
    one = ChaosJob("job", tmp_path, tmp_path / "state", server.port)
    try:
        one.run()
        until(lambda: one.stepping(1), "the job steps")
        yield one
    finally:
        one.end()


def recovers(job: ChaosJob, server: MailServer) -> None:
    """To the end: the books are right, the mails are told, `stop` leaves nothing."""
    until(job.settled, job.told)
    until(job.mail_is_told, job.told)
    job.check_at_rest()
    check_mails(server, [job])
    job.stop()
    job.check_nothing_left()


def children(pid: int, word: bytes) -> list[int]:
    """Children of a process whose command line holds `word`."""
    found = []
    for task in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((task / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == pid and word in (task / "cmdline").read_bytes():
                found.append(int(task.name))
        except (OSError, IndexError, ValueError):
            continue
    return found


@pytest.mark.parametrize("victims", ["supervisor", "both"])
@pytest.mark.parametrize("when", ["running", "stopping"])
def test_the_ranks_outlive_their_supervisor_and_are_still_one(
    job: ChaosJob, server: MailServer, victims: str, when: str
) -> None:
    assert job.sentinel is not None
    supervisor = job.supervisor_pid()
    assert supervisor is not None
    before = job.births()
    if when == "stopping":
        job.hurt(1, "killed")
        until(lambda: job.open_phase() is Phase.STOPPING, job.told, every_s=0.002)
    kill(supervisor)
    if victims == "both":
        job.kill_sentinel()
        assert len(job.alive()) <= 1
        job.take_over()
    if when == "running":
        steps = job.steps()
        until(lambda: all(now > then for now, then in zip(job.steps(), steps, strict=True)), "steps go on")
        assert job.births() == before  # nobody was started again
        job.hurt(1, "killed")
    recovers(job, server)


@pytest.mark.parametrize("victims", ["at once", "one after the other"])
def test_a_start_that_was_cut_in_half_is_tried_again_and_paid_for_once(
    job: ChaosJob, server: MailServer, victims: str
) -> None:
    supervisor = job.supervisor_pid()
    assert supervisor is not None
    log = job.folder / "logs/2/rank-1.log"
    log.parent.mkdir()
    os.mkfifo(log)  # opening it to write waits for a reader: rank 0 runs, rank 1 does not come
    job.hurt(1, "killed")
    until(lambda: job.pid_of(2, 0), job.told)
    kill(supervisor)
    if victims == "one after the other":
        until(lambda: job.open_phase() is Phase.PRECHECKING, job.told, every_s=0.002)
    job.kill_sentinel()
    log.unlink()
    job.take_over()
    until(job.settled, job.told)
    record = job.record()
    assert (record.incarnation, record.used + record.used_free) == (3, 1), job.told()
    assert [(number, rank) for number, rank, _ in job.births() if number == 2] == [(2, 0)]
    assert job.alive() == [3]
    assert not (job.work / "violations").exists()
    until(job.mail_is_told, job.told)
    check_mails(server, [job])
    job.stop()
    job.check_nothing_left()


def test_a_mail_whose_child_is_killed_in_the_middle_keeps_its_id(job: ChaosJob, server: MailServer) -> None:
    assert job.sentinel is not None
    server.delay_s = 30.0  # the child has handed the mail over and waits for the answer
    job.hurt(1, "killed")
    assert server.receiving.wait(120)
    for child in until(lambda: children(job.sentinel.pid, b"notify.sender"), "the child"):  # type: ignore[union-attr]
        kill(child)
    server.delay_s = 0.0
    until(job.settled, job.told)
    job.kill_sentinel()  # its successor does not wait for the next try
    job.take_over()
    recovers(job, server)


def test_a_sentinel_that_is_stopped_holds_its_job_until_it_is_killed(
    job: ChaosJob, server: MailServer
) -> None:
    assert job.sentinel is not None
    os.kill(job.sentinel.pid, signal.SIGSTOP)
    job.hurt(1, "killed", rank=1)
    refused = job.another()
    assert refused.wait(timeout=180) == 73  # two Sentinels would be worse than none
    assert job.record().incarnation == 1
    job.kill_sentinel()
    job.take_over()
    recovers(job, server)


def test_a_sentinel_that_was_stopped_for_a_while_goes_on(job: ChaosJob, server: MailServer) -> None:
    assert job.sentinel is not None
    os.kill(job.sentinel.pid, signal.SIGSTOP)
    job.hurt(1, "killed")
    # It is stopped for longer than a hang may last: no step of the rank that is left takes less than STEP_S.
    last = job.step_of(1) + int((HANG_S + 1.0) / STEP_S)
    until(lambda: job.step_of(1) >= last, job.told)
    os.kill(job.sentinel.pid, signal.SIGCONT)
    recovers(job, server)


@pytest.mark.parametrize("state", ["running", "stopping"])
def test_of_two_that_attach_at_once_exactly_one_protects(
    job: ChaosJob, server: MailServer, state: str
) -> None:
    if state == "stopping":
        job.hurt(1, "stopped")
        until(lambda: job.open_phase() is Phase.STOPPING, job.told, every_s=0.002)
    job.kill_sentinel()
    both = [job.another(), job.another()]
    try:
        [lost] = until(lambda: [one for one in both if one.poll() is not None][:1], "one gives way")
        assert lost.returncode in (0, 73)  # it handed the job over, or was refused
        job.sentinel = next(one for one in both if one is not lost)
        if state == "running":
            job.hurt(1, "killed")
        recovers(job, server)
    finally:
        for one in both:
            one.kill()
            one.wait()


# ---------------------------------------------------------------- what a successor must know


def test_a_rank_that_fell_silent_before_its_sentinel_was_killed_is_a_hang(
    tmp_path: Path, server: MailServer
) -> None:
    job = ChaosJob("job", tmp_path, tmp_path / "state", server.port)
    (job.root / "policy.yaml").write_text(job.policy.replace(f"after: {HANG_S}s", f"after: {HANG_S + 6}s"))
    log = job.folder / "logs/1/rank-1.log"
    try:
        job.run()
        until(lambda: job.stepping(1), "the job steps")
        job.hurt(1, "stopped", rank=1)
        until(lambda: job.log_read_to(1, 1) == log.stat().st_size, "all that it said was read", every_s=0.1)
        assert job.open_phase() is None
        job.kill_sentinel()
        job.take_over()
        recovers(job, server)
        assert job.incidents()[0].verdict.failure == "hang"
        assert job.incidents()[0].verdict.rank == 1
    finally:
        job.end()


def test_the_last_words_of_a_rank_that_died_while_nobody_looked_decide(
    tmp_path: Path, server: MailServer
) -> None:
    job = ChaosJob("job", tmp_path, tmp_path / "state", server.port)
    go = tmp_path / "go"
    text = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\nimport no_such_module"
    job.command = [sys.executable, "-I", "-S", "-c", text]
    try:
        job.run()
        until(lambda: len(processes_of(job.name, job.state)) == 2, "both ranks run")
        job.kill_sentinel()
        go.touch()
        until(lambda: not processes_of(job.name, job.state), "both ranks end")
        job.take_over()
        assert job.sentinel is not None
        assert job.sentinel.wait(timeout=180) == 1
        record = job.record()
        assert (record.incarnation, record.used, record.state) == (1, 0, "error")
        assert job.incidents()[0].verdict.failure == "import-error"
        assert job.incidents()[0].phase is Phase.FAILED
        assert check_mails(server, [job]) == 0
    finally:
        job.end()


# ---------------------------------------------------------------- a full disk


@pytest.fixture
@needs_root
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "state", "12m") as place:
        yield place


@pytest.mark.parametrize("killed", [False, True])
def test_records_survive_a_state_disk_that_fills_up_during_a_recovery(
    tmp_path: Path, small_disk: Path, server: MailServer, killed: bool
) -> None:
    logs = tmp_path / "jobs"  # the ranks' own output shall not fail: this is about the records
    logs.mkdir()
    (small_disk / "jobs").symlink_to(logs)
    job = ChaosJob("job", tmp_path / "root", small_disk, server.port)
    (job.root / "policy.yaml").write_text(job.policy.replace("  hang:", "  precheck: {checks: []}\n  hang:"))
    try:
        job.run()
        until(lambda: job.stepping(1), "the job steps")
        job.hurt(1, "killed")
        until(lambda: job.open_phase() is Phase.STOPPING, job.told, every_s=0.002)
        hog = fill_up(small_disk)
        if killed:
            job.kill_sentinel()
            job.check_books()
            job.take_over()
        until(lambda: job.stepping(2), job.told)
        hog.unlink()
        until(job.settled, job.told)
        job.hurt(2, "killed")  # and with room again all is as before
        recovers(job, server)
    finally:
        job.end()


def test_a_run_makes_the_same_choices_each_time_unless_another_seed_or_a_new_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CHAOS_SEED", raising=False)
    first, second = seeded(), seeded()
    assert (first[0], first[1].random()) == (second[0], second[1].random())
    monkeypatch.setenv("CHAOS_SEED", "7")
    assert seeded()[0] == 7
    monkeypatch.setenv("CHAOS_SEED", "new")
    assert len({seeded()[0] for _ in range(8)}) > 1
