"""Launching: what ranks are given, what is shown, and what every way to end leaves behind."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

import pytest

from tests.e2e.box import SENTINEL, Box, train

TWO = ("--nproc", "2")


def test_ranks_get_their_variables_and_each_incarnation_a_fresh_port(box: Box) -> None:
    job = box.run(*train("--save-every", "1"), options=TWO)
    box.stepping()
    os.kill(box.ranks(2)[0], signal.SIGKILL)
    box.stepping(incarnation=2)
    box.ranks(2)
    job.send(signal.SIGINT)
    assert job.code() == 130
    first = {s["rank"]: s["env"] for s in box.starts[:2]}
    assert sorted(first) == [0, 1]
    for rank, env in first.items():
        assert env["LOCAL_RANK"] == env["RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == "2"
        assert env["MASTER_ADDR"] == "127.0.0.1"
    ports = [s["env"]["MASTER_PORT"] for s in box.starts]
    assert ports[0] == ports[1]
    assert len(ports) == 4
    assert ports[2] == ports[3] != ports[0]


def test_a_plain_command_gets_no_rank_variables_and_no_prefix(box: Box) -> None:
    job = box.run(*train("--steps", "3"))
    assert job.code() == 0
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & set(box.starts[0]["env"])
    assert job.out == box.log()
    assert job.out.startswith(" iteration        1/        3")
    assert not {"\x1b", "\r"} & set(job.out + job.err)  # no live line in a pipe


def test_lines_of_several_ranks_bear_their_rank(box: Box) -> None:
    job = box.run(*train("--steps", "5"), options=TWO)
    assert job.code() == 0
    lines = job.out.splitlines()
    assert len(lines) == 10
    for rank in (0, 1):
        own = [line.removeprefix(f"[rank {rank}] ") for line in lines if line.startswith(f"[rank {rank}] ")]
        assert own == box.log(rank).splitlines()


def test_on_a_terminal_a_live_line_shows_how_the_job_goes(box: Box) -> None:
    policy = box.policy(maxDuration="1h")
    words = [
        SENTINEL,
        "run",
        "--name",
        "job",
        "--policy",
        policy,
        "--settings",
        box.settings(),
        "--",
        *train(),
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(box.work)
        os.execve(SENTINEL, words, box.env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    shown = b""
    try:
        while not re.search(rb"running .*iteration \d+.* ratio 0\.66.*3 restarts left.* left\x1b", shown):
            shown += os.read(terminal, 65536)
            assert len(shown) < 1 << 18, shown[-2000:]
        os.write(terminal, b"\x03")  # Ctrl-C
        with contextlib.suppress(OSError):  # the last one has let go of the terminal
            while os.read(terminal, 65536):
                pass
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    finally:
        os.close(terminal)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV),
        (["no-such-command-here"], 127),
        (["/etc/hostname"], 126),
    ],
)
def test_the_exit_code_is_that_of_the_job(box: Box, command: list[str], code: int) -> None:
    policy = box.policy(restart={"maxRestarts": 0})
    job = box.run(*command, policy=policy)
    assert job.code() == code, job.err
    assert "Traceback" not in job.err
    box.empty()


@pytest.mark.parametrize("given", ["</dev/null", "<empty", "<file", "<<E\nyes\nE"])
def test_that_no_rank_gets_what_is_given_on_standard_input_is_said(box: Box, given: str) -> None:
    (box.work / "empty").touch()
    (box.work / "file").write_text("yes\n")
    command = ("run", "--name", "job", "--settings", box.settings(), "--", "true")
    job = box.start_words("sh", "-c", f'exec "$0" "$@" {given}\n', SENTINEL, *command)
    assert job.code() == 0
    assert ("reaches no rank" in job.err) is (given not in ("</dev/null", "<empty"))


def test_a_name_with_capitals_underscores_and_dots_serves_all_commands(box: Box) -> None:
    name = "My_Run.v2"
    job = box.run(*train(), name=name)
    box.stepping(name=name)
    assert box.status(name)["name"] == name
    assert re.search(rf"^{name} +running ", box.sentinel("status").stdout, re.MULTILINE)
    assert "iteration        1/" in box.sentinel("logs", name).stdout
    job.kill()
    again = box.attach(name)
    again.said(f"protects {name} again")
    assert box.sentinel("stop", name).returncode == 0
    assert again.code() == 130
    assert box.sentinel("forget", name).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "--name", "my run", "--", "true"], 64, "'my-run' would do"),
        (["run"], 64, "no command"),
        (["run", "--nproc", "0", "--", "true"], 64, "--nproc 0"),
        (["run", "--name", "a/b", "--", "true"], 64, "a/b"),
        (["run", "--no-such-option"], 2, "no-such-option"),
        (["run", "--policy", "bad.yaml", "--", "true"], 78, "bad.yaml"),
        (["run", "--policy", "missing.yaml", "--", "true"], 78, "missing.yaml"),
        (["attach", "nobody"], 1, "nobody"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_code(box: Box, words: list[str], code: int, said: str) -> None:
    (box.work / "bad.yaml").write_text(
        "apiVersion: sentinel.dev/v1alpha1\nkind: JobPolicy\nspec: {hnag: {}}\n"
    )
    done = box.sentinel(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_state_directory_that_cannot_be_used_is_said_with_73(box: Box) -> None:
    (box.folder / "state").write_text("a file")
    job = box.run("true")
    assert job.code() == 73
    assert "state" in job.err


def test_a_working_directory_that_is_gone_is_said(box: Box) -> None:
    gone = box.folder / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m sentinel run --name job -- true"
    done = subprocess.run(["sh", "-c", script], env=box.env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 69, done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_lets_the_ranks_end_and_kills_what_does_not(box: Box) -> None:
    policy = box.policy(restart={"gracefulStop": "500ms"})
    job = box.run(*train("--at", "1:deaf"), policy=policy, options=TWO)
    box.stepping()
    job.send(signal.SIGINT)
    assert job.code() == 130
    record = box.job()
    assert record is not None
    assert (record.state, record.exit_code) == ("stopped", 130)
    box.empty()


def test_a_second_ctrl_c_kills_at_once(box: Box) -> None:
    policy = box.policy(restart={"gracefulStop": "20m"})
    job = box.run(*train("--at", "1:deaf"), policy=policy, options=TWO)
    box.stepping()
    job.send(signal.SIGINT)
    job.said("Ctrl-C again")
    job.interrupt_again()
    assert job.code() == 130
    box.empty()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_warning_signal_saves_stops_and_leaves_nothing_behind(box: Box, number: int) -> None:
    policy = box.policy(
        resume={
            "gracefulStop": "500ms",
            "checkpoint": {"timeout": "20s", "proof": {"logPattern": "wrote the model of step"}},
        }
    )
    # A helper that left the rank's session and ignores the polite signal, as a daemonised cache would.
    command = [
        "sh",
        "-c",
        'setsid sh -c "trap : TERM; sleep 600 & wait; sleep 600" & exec "$@"',
        "-",
        *train(),
    ]
    job = box.run(*command, policy=policy, options=TWO)
    box.stepping()
    job.send(number)
    assert job.code() == 75, job.err
    box.empty()
    record = box.job()
    assert record is not None
    assert record.checkpoint is not None
    assert record.state == "stopped"
    assert (box.work / "checkpoint.json").exists()
    # Of the rank that said so first: they do not wait for each other.
    assert f"wrote the model of step {record.checkpoint.step}\n" in box.log(0) + box.log(1)
    again = box.run(*train("--steps", str(record.checkpoint.step + 5)), policy=policy, options=TWO)
    assert again.code() == 0
    assert box.starts[-1]["resumed"] == record.checkpoint.step


def test_a_killed_rank_is_restarted_without_a_policy(box: Box) -> None:
    job = box.run(*train("--save-every", "1"), options=TWO)
    box.stepping()
    os.kill(box.ranks(2)[1], signal.SIGKILL)
    box.stepping(incarnation=2)
    job.said("recovered:")
    incident = box.phase("Recovered")
    assert incident.verdict.rank == 1
    assert "signal 9" in incident.verdict.sentence or "SIGKILL" in incident.verdict.sentence
    job.send(signal.SIGINT)
    assert job.code() == 130


def test_an_error_of_the_user_is_not_restarted(box: Box) -> None:
    job = box.run(*train("--at", "3:raise no module of that name"))
    assert job.code() == 1
    assert len(box.starts) == 1
    incident = box.phase("Failed")
    assert incident.verdict.cause == "user code"
    assert any("no module of that name" in line for line in incident.verdict.evidence)
    assert "no module of that name" in job.out


ARGPARSE = 'import argparse; argparse.ArgumentParser(prog="train.py").parse_args(["--lr", "fast", "--oops"])'


@pytest.mark.parametrize(
    ("program", "code", "failure"),
    [
        (ARGPARSE, 2, "bad-arguments"),
        ("breakpoint()", 1, "no-terminal"),
        ("raise KeyboardInterrupt", 128 + signal.SIGINT, "interrupted"),
    ],
)
def test_what_can_only_end_so_again_and_what_a_person_ended_is_not_restarted(
    box: Box, program: str, code: int, failure: str
) -> None:
    job = box.run(sys.executable, "-c", program)
    assert job.code() == code, job.err
    incident = box.phase("Failed")
    assert incident.verdict.failure == failure, box.story()
    record = box.job()
    assert record is not None
    assert record.incarnation == 1
