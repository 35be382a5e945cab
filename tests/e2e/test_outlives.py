"""The job outlives the Sentinel that started it, its terminal, its supervisor, and the machine's uptime."""

import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import JobState
from sentinel.service.control import Lock
from tests.e2e.box import Box, train
from tests.waits import until


def test_after_kill_9_attach_reads_on_and_has_the_true_exit_status(box: Box) -> None:
    box.settings(listen="127.0.0.1:0")
    first = box.run(*train("--save-every", "1"), options=("--nproc", "2"))
    box.stepping()
    ranks = box.ranks(2)
    first.kill()
    before = len(box.log().splitlines())
    until(lambda: len(box.log().splitlines()) > before + 5)  # it steps while nobody looks
    second = box.attach()
    second.said("protects job again")
    assert box.ranks() == ranks
    box.stepping(lines=before + 15)
    until(lambda: (box.status()["step"] or 0) >= before + 15)
    box.order(0, "exit 0")
    box.order(1, "exit 0")
    assert second.code() == 0
    # Nothing is lost of what was shown by the first, written while nobody looked, read by the second.
    shown = {
        int(n) for n in re.findall(r"^\[rank 0\] +iteration +(\d+)/", first.out + second.out, re.MULTILINE)
    }
    assert sorted(shown) == list(range(1, max(shown) + 1))
    last = {int(re.findall(r"iteration +(\d+)/", box.log(rank))[-1]) for rank in (0, 1)}
    assert max(shown) in last
    assert box.job().last_step == max(last)  # type: ignore[union-attr]
    assert len(box.starts) == 2
    box.empty()


@pytest.mark.parametrize(("order", "code", "state"), [("exit 0", 0, "succeeded"), ("exit 7", 7, "error")])
def test_a_job_that_ended_meanwhile_has_its_true_status(box: Box, order: str, code: int, state: str) -> None:
    job = box.run(*train(), policy=box.policy(restart={"maxRestarts": 0}))
    box.stepping()
    job.kill()
    box.order(0, order)
    until(lambda: not box.ranks())
    again = box.attach()
    assert again.code() == code
    assert box.job().state == state  # type: ignore[union-attr]
    box.empty()


def test_a_second_run_of_a_name_is_refused_and_adopts_when_told(box: Box) -> None:
    job = box.run(*train())
    box.stepping()
    refused = box.run(*train())
    assert refused.code() == 73
    assert "job is already running" in refused.err
    assert "sentinel attach job" in refused.err
    assert job.process.poll() is None
    job.kill()
    still = box.run(*train())
    assert still.code() == 73  # nobody protects it now, and yet it runs
    adopter = box.run(*train(), options=("--adopt",))
    adopter.said("protects job again")
    assert len(box.starts) == 1
    box.order(0, "exit 0")
    assert adopter.code() == 0


@pytest.mark.parametrize(("unknown", "restarted"), [("restart", True), ("fail", False)])
def test_without_its_supervisor_the_end_is_unknown_said_and_treated_as_asked(
    box: Box, unknown: str, restarted: bool
) -> None:
    policy = box.policy(unknownExit=unknown, restart={"maxRestarts": 2})
    job = box.run(*train("--save-every", "1"), policy=policy, options=("--nproc", "2"))
    box.stepping()
    pids = box.ranks(2)
    job.kill()
    os.kill(box.supervisor(), signal.SIGKILL)
    again = box.attach()
    again.said("supervisor was killed")
    assert box.ranks() == pids  # the ranks run on
    until(lambda: any("supervisor" in mode for mode in box.status()["degraded"]), box.story)
    box.order(1, "exit 0")
    if restarted:
        box.stepping(incarnation=2)
        incident = box.phase("Recovered")
        assert "not known" in incident.verdict.sentence
        until(
            lambda: not box.status()["degraded"], lambda: str(box.status()["degraded"])
        )  # the new start has a supervisor again
        again.send(signal.SIGINT)
        assert again.code() == 130
    else:
        assert again.code() == 125
        assert len(box.starts) == 2
        assert "not known" in box.phase("Failed").verdict.sentence
    box.empty()


def test_a_supervisor_killed_beside_a_living_sentinel_is_said_and_the_job_runs_on(box: Box) -> None:
    job = box.run(*train("--save-every", "1"), policy=box.policy(unknownExit="restart"))
    box.stepping()
    pids = box.ranks()
    os.kill(box.supervisor(), signal.SIGKILL)
    job.said("supervisor was killed")
    assert box.ranks() == pids
    os.kill(pids[0], signal.SIGKILL)
    box.stepping(incarnation=2)
    box.phase("Recovered")
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_a_closed_terminal_detaches_and_the_protection_goes_on(box: Box) -> None:
    job = box.run(*train("--save-every", "1"))
    box.stepping()
    job.send(signal.SIGHUP)
    job.said("detached")
    shown = len(job.out)
    os.kill(box.ranks(1)[0], signal.SIGKILL)
    box.stepping(incarnation=2)
    box.phase("Recovered")
    assert len(job.out) == shown
    job.send(signal.SIGTERM)
    assert job.code() == 75


def test_a_detached_job_is_shown_extended_and_stopped_from_elsewhere(box: Box) -> None:
    policy = box.policy(maxDuration="1h", restart={"maxRestarts": 1})
    started = box.run(*train("--save-every", "1"), policy=policy, options=("--detach",))
    assert started.code() == 0
    assert "protected by pid" in started.out
    box.stepping()
    left = until(lambda: box.status()["time_left_s"])
    assert left < 3600
    assert box.sentinel("extend", "job", "2h").returncode == 0
    assert 7200 < box.status()["time_left_s"] < 3 * 3600
    assert len(box.starts) == 1
    table = box.sentinel("status")
    assert re.search(r"^job +running ", table.stdout, re.MULTILINE)
    logs = box.sentinel("logs", "job")
    assert "iteration        1/" in logs.stdout
    stopped = box.sentinel("stop", "job")
    assert stopped.returncode == 0, stopped.stderr
    assert box.job().state == "stopped"  # type: ignore[union-attr]
    box.empty()
    assert "running" not in box.sentinel("status").stdout
    assert box.sentinel("stop", "job").returncode == 0
    assert "already ended" in box.sentinel("stop", "job").stderr


def test_a_job_that_nobody_protects_can_be_extended_and_stopped(box: Box) -> None:
    policy = box.policy(maxDuration="1h", restart={"gracefulStop": "1s"})
    job = box.run(*train("--at", "1:deaf"), policy=policy, options=("--nproc", "2"))
    box.stepping()
    job.kill()
    assert "nobody" in box.sentinel("status", "job").stdout
    assert box.sentinel("extend", "job", "1h").returncode == 0
    assert box.job().extra_s == 3600  # type: ignore[union-attr]
    assert box.sentinel("stop", "job").returncode == 0
    assert box.job().state == "stopped"  # type: ignore[union-attr]
    box.empty()


def test_a_stop_waits_for_the_end_also_where_another_sentinel_takes_the_job_over(box: Box) -> None:
    job = box.run(*train("--at", "1:deaf"), policy=box.policy(restart={"gracefulStop": "10m"}))
    box.stepping()
    job.kill()
    stop = box.start("stop", "job", "--settings", box.settings())
    until(lambda: box.status()["incidents"], lambda: box.story())
    other = box.attach()
    other.said("protects job again")
    box.order(0, "exit 0")
    assert stop.code() == 0, stop.err
    assert "job: stopped" in stop.err
    assert other.code() == 130
    box.empty()


def test_attach_takes_over_from_a_living_sentinel(box: Box) -> None:
    first = box.run(*train())
    box.stepping()
    second = box.attach()
    second.said("protects job again")
    assert first.code() == 0
    assert len(box.starts) == 1
    box.order(0, "exit 0")
    assert second.code() == 0


def test_after_a_reboot_attach_resumes_as_after_an_infrastructure_fault(box: Box) -> None:
    policy = box.policy(resume={"maxResumes": 3})
    job = box.run(*train("--save-every", "1"), policy=policy, options=("--nproc", "2"))
    box.stepping(lines=8)
    before = box.processes()
    for pid in before:  # a power cut: all at once, nobody notes anything
        os.kill(pid, signal.SIGSTOP)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    box.empty()
    job.process.wait(180)
    fake = box.folder / "boot_id"
    fake.write_text("00000000-0000-4000-8000-000000000001\n")
    mount = f"mount --bind {fake} /proc/sys/kernel/random/boot_id"
    again = box.start_in(mount, "attach", "job", "--settings", box.settings())
    box.stepping(incarnation=2)
    incident = box.phase("Recovered")
    record = box.job()
    assert record is not None
    assert (incident.verdict.cause, incident.verdict.failure) == ("node", "reboot")
    assert (record.used_infrastructure, record.used_job, record.incarnation) == (1, 0, 2)
    assert all(s["resumed"] >= 8 for s in box.starts[2:])
    again.send(signal.SIGINT)
    assert again.code() == 130
    box.empty()


def test_the_unit_that_is_printed_is_one_that_systemd_takes(box: Box) -> None:
    done = box.sentinel("install-unit", "--print", "--settings", box.settings())
    assert done.returncode == 0
    unit = done.stdout
    assert re.search(r'^ExecStart="[^"]+" -m sentinel attach --all --settings "/[^"]+"$', unit, re.MULTILINE)
    assert f'Environment="SENTINEL_STATE_DIR={box.state}"' in unit
    assert "KillMode=none" in unit or "KillMode=process" in unit  # jobs outlive what started them
    assert "WantedBy=default.target" in unit
    path = Path(box.folder, "sentinel.service")
    path.write_text(unit)
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        environment = {**box.env, "XDG_RUNTIME_DIR": str(box.folder)}
        verified = subprocess.run(
            [analyze, "verify", "--user", str(path)], env=environment, capture_output=True, text=True
        )
        assert verified.returncode == 0, verified.stderr


def test_the_command_of_the_unit_attaches_every_job_that_runs(box: Box) -> None:
    for name in ("one", "two"):
        job = box.run(*train(), name=name)
        box.stepping(name=name)
        job.kill()
    done = box.sentinel("attach", "--all", "--settings", box.settings())
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        assert box.status(name)["protector"] is not None
        assert box.sentinel("stop", name, "--now").returncode == 0
    box.empty()


def test_a_stop_whose_sentinel_is_killed_meanwhile_says_so_and_goes_on_with_it(box: Box) -> None:
    proof = {"logPattern": "wrote the model"}
    policy = box.policy(resume={"gracefulStop": "1s", "checkpoint": {"timeout": "1h", "proof": proof}})
    job = box.run(*train("--save", "never"), policy=policy, options=("--nproc", "2"))
    box.stepping()
    stop = box.start("stop", "job", "--settings", box.settings())
    box.phase("Saving")
    until(lambda: len(box.noted("signals")) == 2, box.story)
    job.kill()
    stop.said("the Sentinel that was stopping job is gone, as after kill -9; 2 of its 2 ranks run on (pid ")
    assert len(box.ranks(2)) == 2
    until(lambda: box.status()["protector"], box.story)
    done = box.sentinel("stop", "job", "--now")
    assert done.returncode == 0, done.stderr
    assert stop.code() == 0, stop.err
    assert "job: stopped: Stopped by a person." in stop.err
    box.empty()


def test_a_stop_whose_sentinel_is_killed_before_it_answers_is_done_at_once(box: Box) -> None:
    job = box.run(*train())
    box.stepping()
    os.kill(job.pid, signal.SIGSTOP)  # it takes the connection and says nothing
    stop = box.start("stop", "job", "--settings", box.settings())
    until(lambda: waits_on(stop.pid), lambda: stop.err)
    job.kill()
    assert stop.code() == 0, stop.err
    assert "job: stopped" in stop.err
    box.empty()


def waits_on(pid: int) -> bool:
    """It waits for an answer on a socket."""
    try:
        return any(os.readlink(fd).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_attach_to_a_job_whose_sentinel_ends_with_it_just_now_says_that_it_has_ended(box: Box) -> None:
    job = box.run(*train())
    box.stepping()
    job.kill()
    folder = box.state / "jobs" / "job"
    lock = Lock(folder)  # this test is the Sentinel that protects it
    assert lock.take()
    (folder / "control.sock").unlink(missing_ok=True)
    opened = os.open(folder, os.O_PATH)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{opened}/control.sock")
        listener.listen()
        other = box.attach()
        asked, _ = listener.accept()
        record = box.job()
        assert record is not None
        store = LocalStore(box.state / "state.db")
        store.save(jobs=[structs.replace(record, state=JobState.STOPPED, sentence="Stopped by a person.")])
        store.close()
        asked.sendall(b'{"ok": true}\n')
        asked.close()
        lock.release()
    os.close(opened)
    assert other.code() == 130, other.err
    assert "job has ended: stopped" in other.err
