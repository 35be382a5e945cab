"""Hangs of four kinds: a rank that sleeps, spins, is stopped, or is stuck in the kernel."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import Box, train
from tests.gate.rights import needs_root
from tests.waits import until

TWO = ("--nproc", "2")
TOGETHER = ("--together", "--save-every", "1")
POLICY = {
    "hang": {"after": "1s"},
    "lostRankGrace": "500ms",
    "resume": {"maxResumes": 3, "gracefulStop": "2s"},
}


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_the_rank_that_stopped_first_is_named_with_its_stack_and_the_job_goes_on(box: Box, how: str) -> None:
    job = box.run(*train(*TOGETHER), policy=box.policy(**POLICY), options=TWO)
    box.stepping(lines=10)
    box.order(1, how)
    incident = box.phase("Recovered")
    assert incident.verdict.symptom == "hang"
    assert incident.verdict.rank == 1
    assert "ank 0" not in incident.verdict.sentence  # it only waits
    stack = next(text for text in incident.stacks if text.startswith("rank 1"))
    assert re.search(r"obey \(.*train\.py", stack), stack
    assert incident.lost is not None
    assert incident.lost.steps is not None
    assert incident.lost.steps <= 3
    box.stepping(incarnation=2)
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_a_hang_while_the_kernel_says_that_a_file_server_does_not_answer_is_the_storages(box: Box) -> None:
    box.settings(listen="127.0.0.1:0")
    job = box.run(*train(*TOGETHER), policy=box.policy(**POLICY), options=TWO)
    box.stepping(lines=10)
    at_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with box.kernel_log.open("a") as file:
        file.write(f"5,1,{at_us},-;nfs: server filer not responding, still trying\n")
    url = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", job.err)).group()  # type: ignore[union-attr]

    def metrics() -> str:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            return str(answer.read(), "utf-8")

    until(lambda: "nfs-not-responding" in metrics())
    box.order(1, "sleep")
    verdict = box.phase("Recovered").verdict
    assert (verdict.symptom, verdict.cause, verdict.rank) == ("hang", "storage", 1)
    assert "filer: A file server does not answer" in verdict.sentence
    assert any("nfs: server filer not responding" in line for line in verdict.evidence)
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_a_stopped_rank_is_named_and_ended_in_the_policys_time(box: Box) -> None:
    job = box.run(*train(*TOGETHER), policy=box.policy(**POLICY), options=TWO)
    box.stepping(lines=10)
    stopped = box.ranks(2)[0]
    os.kill(stopped, signal.SIGSTOP)
    incident = box.phase("Recovered")
    assert incident.verdict.symptom == "hang"
    assert incident.verdict.rank == 0
    assert any(
        "stopped by a signal" in line for line in (incident.verdict.sentence, *incident.verdict.evidence)
    )
    assert stopped not in box.processes()
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


# As torchrun does it, for one machine of `$1`: the numbers of the ranks of the machines before come first.
LAUNCHER = """
machines=$1; shift
first=$((2 * ${RANK:-0}))
for local in 0 1; do
    RANK=$((first + local)) LOCAL_RANK=$local WORLD_SIZE=$((2 * machines)) "$@" &
done
wait
"""
WATCHED = POLICY | {"hang": {"after": "3s"}}


def test_a_hang_below_a_launcher_shows_the_stacks_of_all_its_ranks(box: Box) -> None:
    job = box.run("sh", "-c", LAUNCHER, "-", "1", *train(*TOGETHER), policy=box.policy(**POLICY))
    box.stepping(lines=10)
    box.order(1, "sleep")
    incident = box.phase("Recovered")
    assert [stack.partition(":")[0] for stack in incident.stacks] == ["rank 0", "rank 1"]
    assert "obey (train.py" in incident.stacks[1]
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_below_a_launcher_the_rank_that_is_stopped_is_named(box: Box) -> None:
    job = box.run("sh", "-c", LAUNCHER, "-", "1", *train(*TOGETHER), policy=box.policy(**WATCHED))
    box.stepping(lines=10)
    pid = box.ranks(2)[1]
    os.kill(pid, signal.SIGSTOP)
    verdict = box.phase("Recovered").verdict
    assert (verdict.symptom, verdict.rank, verdict.worker) == ("hang", 0, 1)
    assert verdict.sentence.startswith("Rank 1 has made no iteration for ")
    assert verdict.evidence[0] == f"rank 1 (pid {pid}) is stopped by a signal"
    assert re.search(r"^  Rank +1$", box.sentinel("status", "job").stdout, re.M)
    box.stepping(incarnation=2)
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_below_a_launcher_that_waits_a_rank_that_has_ended_is_told_and_not_blamed(box: Box) -> None:
    job = box.run("sh", "-c", LAUNCHER, "-", "1", *train(*TOGETHER), policy=box.policy(**WATCHED))
    box.stepping(lines=10)
    # Its log is read, and its processes have been looked at.
    until(lambda: re.search(r"^Iteration +\d", box.sentinel("status", "job").stdout, re.M))
    pid = box.ranks(2)[1]
    os.kill(pid, signal.SIGKILL)
    verdict = box.phase("Recovered").verdict
    assert (verdict.symptom, verdict.worker) == ("hang", None)
    assert verdict.sentence.startswith("The job has made no iteration for ")
    assert f"rank 1 (pid {pid}) has ended, its launcher has not" in verdict.evidence
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_two_launchers_are_four_ranks(box: Box) -> None:
    torchrun = box.work / "torchrun"  # a launcher is known by its name
    torchrun.write_text(f"#!/bin/sh{LAUNCHER}")
    torchrun.chmod(0o755)
    job = box.run("./torchrun", "2", *train(*TOGETHER), policy=box.policy(**WATCHED), options=TWO)
    box.stepping(lines=10)
    pid = box.ranks(4)[3]
    os.kill(pid, signal.SIGSTOP)
    incident = box.phase("Recovered")
    assert (incident.verdict.rank, incident.verdict.worker) == (1, 3)
    assert (
        f"rank 3 (pid {pid}, below the launcher of rank 1) is stopped by a signal"
        in incident.verdict.evidence
    )
    assert [stack.partition(":")[0] for stack in incident.stacks] == [f"rank {k}" for k in range(4)]
    box.stepping(incarnation=2)
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


# Stands for a collective of torch: py-spy sees its file and function.
COLLECTIVE = """
import os, signal, time

def all_reduce(step, peers):
    open(f"met.{os.getppid()}.{step}.{os.environ['RANK']}", "w").close()
    while not all(os.path.exists(f"met.{os.getppid()}.{step}.{peer}") for peer in range(peers)):
        time.sleep(0.005)

def barrier():
    signal.pause()
"""
LOOPS = """
import os, torch.distributed.c10d as dist

def loops():
    while True:
        pass

for step in range(1, 1000):
    dist.all_reduce(step, 2)
    if os.path.exists("loop") and os.environ["RANK"] == "1":
        os.remove("loop")
        loops()
    print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
"""


def stands_for_torch(box: Box, **files: str) -> None:
    """`distributed/c10d.py`, and other files of a package of that name."""
    for name, text in {"distributed/c10d.py": COLLECTIVE, **files}.items():
        file = box.work / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in file.relative_to(box.work).parents[:-1]:
            (box.work / package / "__init__.py").touch()
        file.write_text(text)


def test_below_a_launcher_the_rank_that_loops_is_named_by_the_stacks(box: Box) -> None:
    stands_for_torch(box)
    (box.work / "loops.py").write_text(LOOPS)
    job = box.run("sh", "-c", LAUNCHER, "-", "1", sys.executable, "loops.py", policy=box.policy(**WATCHED))
    box.stepping(lines=10)
    (box.work / "loop").touch()
    incident = box.phase("Recovered")
    verdict = incident.verdict
    assert (verdict.rank, verdict.worker) == (0, 1), "\n".join(incident.stacks)
    assert re.search(
        r"Rank 1 stands in loops \(loops\.py:\d+\); the other waits for it in all_reduce \(torch/distributed/c10d\.py:"
        r"\d+\), called at loops\.py:9\.$",
        verdict.sentence,
    ), verdict.sentence
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


STRAYS = """
import os, torch.distributed.c10d as dist

for step in range(1, 1000):
    if os.path.exists("stray") and os.environ["RANK"] == "1" and "SENTINEL_RESTARTS" not in os.environ:
        dist.barrier()
    dist.all_reduce(step, 3)
    print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
"""


def test_of_a_rank_that_waits_where_no_other_does_it_is_said_that_it_went_another_way(box: Box) -> None:
    stands_for_torch(box)
    (box.work / "strays.py").write_text(STRAYS)
    three = LAUNCHER.replace("in 0 1;", "in 0 1 2;")
    job = box.run("sh", "-c", three, "-", "1", sys.executable, "strays.py", policy=box.policy(**WATCHED))
    box.stepping(lines=10)
    (box.work / "stray").touch()
    incident = box.phase("Recovered")
    verdict = incident.verdict
    assert (verdict.rank, verdict.worker) == (0, 1), "\n".join(incident.stacks)
    assert re.search(
        r"Rank 1 waits in barrier \(torch/distributed/c10d\.py:\d+\), called at strays\.py:6, where no other rank does"
        r"; all 2 others wait in all_reduce \(torch/distributed/c10d\.py:\d+\), called at strays\.py:7: it went "
        r"another way, or did not get through the one before\.$",
        verdict.sentence,
    ), verdict.sentence
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


# Stands for a loader of torch: workers are given tasks, and put what they have read into a queue.
LOADER = """
import multiprocessing as mp

def _worker_loop(read, tasks, done):
    for at in iter(tasks.get, None):
        done.put(read(at))

class Loader:
    def __init__(self, read):
        fork = mp.get_context("fork")
        self.done, self.tasks = fork.Queue(), [fork.Queue() for _ in range(3)]
        for tasks in self.tasks:
            fork.Process(target=_worker_loop, args=(read, tasks, self.done), daemon=True).start()

    def batch(self, at):
        self.tasks[at % 3].put(at)
        return self.done.get()
"""
LOADS = """
import os, torch.distributed.c10d as dist, torch.utils.data.dataloader as data

def read_image(at):
    if os.path.exists("stuck") and os.environ["RANK"] == "1" and "SENTINEL_RESTARTS" not in os.environ:
        return open("stuck").read()
    return at

loader = data.Loader(read_image)
for step in range(1, 1000):
    loader.batch(step)
    dist.all_reduce(step, 2)
    print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
"""


def test_of_a_rank_that_waits_for_its_data_the_worker_that_reads_them_is_named(box: Box) -> None:
    stands_for_torch(box, **{"utils/data/dataloader.py": LOADER})
    (box.work / "loads.py").write_text(LOADS)
    job = box.run("sh", "-c", LAUNCHER, "-", "1", sys.executable, "loads.py", policy=box.policy(**WATCHED))
    box.stepping(lines=10)
    os.mkfifo(box.work / "stuck")  # its reader waits until somebody writes
    incident = box.phase("Recovered")
    verdict = incident.verdict
    assert (verdict.rank, verdict.worker) == (0, 1), "\n".join(incident.stacks)
    assert re.search(
        r"Rank 1 waits in Loader\.batch \(torch/utils/data/dataloader\.py:17\), called at loads\.py:11, its worker "
        r"\(pid \d+, S in \w+\) stands in read_image \(loads\.py:6\); the other waits for it in all_reduce "
        r"\(torch/distributed/c10d\.py:\d+\), called at loads\.py:12\.$",
        verdict.sentence,
    ), verdict.sentence
    (text,) = (text for text in incident.stacks if text.startswith("rank 1:"))
    assert len(re.findall(r"^helper pid \d+ \(", text, re.M)) == 3
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


def test_a_stopped_plain_program_is_a_hang_too(box: Box) -> None:
    job = box.run(*train("--save-every", "1"), policy=box.policy(**POLICY))
    box.stepping(lines=5)
    os.kill(box.ranks(1)[0], signal.SIGSTOP)
    assert box.phase("Recovered").verdict.symptom == "hang"
    job.send(signal.SIGINT)
    assert job.code() == 130


def test_an_alert_only_policy_tells_of_a_hang_and_kills_nothing(box: Box) -> None:
    policy = box.policy(hang={"after": "1s", "action": "Alert"})
    job = box.run(*train(), policy=policy)
    box.stepping(lines=5)
    pid = box.ranks(1)[0]
    os.kill(pid, signal.SIGSTOP)
    assert box.phase("KeptRunning").verdict.symptom == "hang"
    os.kill(pid, signal.SIGCONT)
    box.stepping(lines=len(box.log().splitlines()) + 5)
    assert len(box.starts) == 1
    job.send(signal.SIGINT)
    assert job.code() == 130


@pytest.mark.parametrize(
    "line",
    [
        "",
        "TorchInductor compiling the model",
        "saving checkpoint at iteration 5 to /ckpt",
    ],
)
def test_silence_that_the_log_announced_is_no_hang(box: Box, line: str) -> None:
    said = ("--at", f"6:say {line}", "--at", "6:sleep") if line else ("--at", "6:sleep")
    job = box.run(*train(*said), policy=box.policy(**WATCHED))
    box.stepping(lines=5)
    if not line:
        box.phase("Stopping")
    else:
        # The silence itself is what is tested: Sentinel has seen more than twice what else is a hang.
        until(lambda: silent_s(box) > 7.5, box.story)
        assert box.incidents() == []
    job.send(signal.SIGINT)
    assert job.code() == 130


def silent_s(box: Box) -> float:
    """0: a Sentinel that is too busy to answer in time tells nothing of ranks."""
    return max((rank["last_age_s"] or 0.0 for rank in box.status()["ranks"]), default=0.0)


# ---------------------------------------------------------------- stuck in the kernel


@pytest.fixture
@needs_root
def freezable(box: Box) -> Iterator[Path]:
    """An ext4 file system of its own; thawed and unmounted in the end."""
    image, where = box.folder / "image", box.folder / "ext4"
    where.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(where)], check=True, capture_output=True)
    yield where
    subprocess.run(["fsfreeze", "-u", str(where)], capture_output=True, check=False)
    box.close()
    until(
        lambda: subprocess.run(["umount", str(where)], capture_output=True, check=False).returncode == 0,
        lambda: str(box.processes()),
    )


def test_a_rank_stuck_in_the_kernel_is_named_and_a_person_told_in_bounded_time(
    box: Box, freezable: Path
) -> None:
    job = box.run(
        *train(*TOGETHER), policy=box.policy(**POLICY, owner={"emails": ["me@example.com"]}), options=TWO
    )
    box.stepping(lines=10)
    stuck = box.ranks(2)[1]
    subprocess.run(["fsfreeze", "-f", str(freezable)], check=True)
    box.order(1, f"write {freezable}/data")
    assert job.code() == 125
    incident = box.phase("Failed")
    assert incident.reason == "StopStuck"
    assert incident.verdict.rank == 1
    assert f"{stuck}" in incident.sentence
    assert "reboot" in incident.sentence
    assert stuck in box.processes()  # nobody can end it
    stack = next(text for text in incident.stacks if text.startswith("rank 1"))
    assert "obey (" in stack or "no Python stack" in stack
    assert "stuck in the kernel" in str(incident.verdict) or " D" in stack, stack
    mails = [path.read_text() for path in (box.state / "outbox").glob("*.eml")]
    assert any("me@example.com" in mail for mail in mails)
    subprocess.run(["fsfreeze", "-u", str(freezable)], check=True)
    box.empty()  # the SIGKILL that was sent takes effect


# Its evaluation takes more than twice as long as its steps may be apart, with a bar that moves.
EVALUATES = """
import sys, time
for step in range(10):
    print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
    time.sleep(0.05)
began = time.monotonic()
n = 0
while time.monotonic() - began < 32.0:
    n += 1
    sys.stderr.write(f"\\r {n / 2:.0f}%|#####     | {n}/200 scored")
    sys.stderr.flush()
    time.sleep(0.25)
print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
"""


def test_an_evaluation_whose_bar_moves_is_no_hang_however_long_it_takes(box: Box) -> None:
    policy = box.policy(hang={"after": "15s"}, resume={"maxResumes": 3})
    job = box.run(sys.executable, "-c", EVALUATES, policy=policy)
    assert job.code() == 0
    assert "no iteration" not in job.err
    assert not box.incidents()


# An evaluation without a word, until somebody writes.
SILENT = """
def steps():
    for _ in range(10):
        print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)

def evaluate():
    with open("answers") as answers:
        answers.read()

steps()
evaluate()
steps()
"""


def test_an_evaluation_that_was_ended_as_a_hang_is_left_alone_the_next_time(box: Box) -> None:
    os.mkfifo(box.work / "answers")
    job = box.run(
        sys.executable, "-c", SILENT, policy=box.policy(hang={"after": "5s"}, resume={"maxResumes": 3})
    )
    box.stepping(incarnation=2)
    (incident,) = box.incidents()
    assert incident.verdict.symptom == "hang"
    silent_since_s = time.monotonic()
    until(lambda: time.monotonic() - silent_since_s > 15.0)
    (box.work / "answers").write_text("all of them right")
    assert job.code() == 0
    assert len(box.incidents()) == 1, box.story()


# The first life steps and ends; the second one waits in a lock; the third one is long at something else, and steps.
LIVES = """
import hashlib, os, sys, threading, time
life = int(os.environ.get("SENTINEL_RESTARTS", "0"))

def compute():
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 50_000)

def steps(count):
    for _ in range(count):
        print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
        compute()

if life == 0:
    steps(10)
    sys.exit(1)
if life == 1:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
end_s = time.monotonic() + 15.0
while time.monotonic() < end_s:
    compute()
steps(100_000)
"""


def test_by_default_only_a_job_that_stands_still_is_called_hung(box: Box) -> None:
    policy = box.policy(startTimeout="5s", restart={"maxRestarts": 5}, lostRankGrace="500ms")
    job = box.run(sys.executable, "-c", LIVES, policy=policy)
    incident = box.phase("Recovered")
    assert incident.verdict.symptom == "hang"
    assert "looks at the stacks of rank 0: none has moved" in incident.verdict.evidence[-1]
    assert [step.reason for step in incident.steps if step.phase == "Stopping"] == ["RankLost", "FaultAgain"]
    box.stepping(incarnation=3)
    assert len(box.incidents()) == 1
    job.send(signal.SIGINT)
    assert job.code() == 130
    box.empty()


# What it waits for is outside the job, for all that its stack tells.
UNREAD = """
import os
print("ready", flush=True)
if "SENTINEL_RESTARTS" not in os.environ:
    os.mkfifo("never")
    open("never").read()
"""


def test_a_job_whose_iterations_cannot_be_read_is_restarted_where_its_owner_names_a_time(box: Box) -> None:
    """It has printed: what it may take for its start, 10 minutes, is not waited for."""
    policy = box.policy(hang={"after": "2s"}, restart={"maxRestarts": 3})
    job = box.run(sys.executable, "-c", UNREAD, policy=policy)
    assert job.code() == 0
    (incident,) = box.incidents()
    assert incident.verdict.sentence.startswith("The job has told of no progress for ")


def test_of_a_job_it_is_said_that_no_iterations_are_seen_and_later_what_it_does_that_makes_none(
    box: Box,
) -> None:
    box.settings(listen="127.0.0.1:0")
    os.mkfifo(box.work / "lines")
    job = box.run("cat", "lines")
    # Opened for both it waits for no reader, which a job that did not start would not be.
    with open(os.open(box.work / "lines", os.O_RDWR), "w") as lines:
        blind = "no iterations are seen in its output"

        def told() -> bool:
            print("all is well with the training", file=lines, flush=True)
            return blind in job.err

        until(told, lambda: job.err, 300.0, every_s=0.5)
        url = re.findall(r"status and metrics on (\S+)", job.err)[0]

        def shown(text: str) -> list[int]:
            """How often on the page and in `status`."""
            with urllib.request.urlopen(f"{url}/", timeout=60) as answer:
                page = answer.read().decode()
            return [page.count(text), box.sentinel("status", "job").stdout.count(text)]

        until(lambda: shown(blind) == [2, 2], lambda: str(shown(blind)), every_s=1.0)  # an event, and a note
        print("iter 1: loss 2.3100, time 14.42ms", file=lines, flush=True)
        until(lambda: shown(blind) == [1, 1], lambda: str(shown(blind)), every_s=1.0)
        batches = itertools.count(1)

        def evaluates() -> bool:
            print(f"Evaluating: {next(batches)}/5000", file=lines, flush=True)
            return shown("it is evaluating; its log went on") == [1, 1]

        until(evaluates, lambda: box.sentinel("status", "job").stdout, every_s=2.0)
    assert job.code() == 0
    assert job.err.count(blind) == 1


BARE = """
import itertools, sys, time
def evaluation_loop():
    for done in itertools.count():
        print(f"{done}/50000", flush=True)
        if not sys.stdin.readline():
            return
for step in range(1, 6):
    print(f"iter {step}: loss 2.3100, time 14.42ms", flush=True)
sys.stdin = open("lines")
evaluation_loop()
"""


def test_a_pause_whose_bar_bears_no_word_is_named_by_the_function_in_which_the_job_stands(box: Box) -> None:
    os.mkfifo(box.work / "lines")
    (box.work / "bare.py").write_text(BARE)
    job = box.run(sys.executable, "bare.py")
    with open(os.open(box.work / "lines", os.O_RDWR), "w") as lines:

        def evaluates() -> bool:
            print("on", file=lines, flush=True)
            notes = " ".join(box.status()["notes"])
            return ": it is evaluating, in evaluation_loop (bare.py:" in notes

        until(lambda: box.job() is not None, deadline_s=300.0)
        until(evaluates, lambda: box.story() + box.log(), 300.0, every_s=2.0)
    assert job.code() == 0
    assert box.incidents() == []


NAMED = r"""
[ -e again ] && exit 0
touch again; mkfifo never
for step in 1 2 3 4 5; do echo "finished $step of 90 in 0.2 s"; done
read line < never
"""


def test_a_job_whose_policy_names_the_format_of_its_lines_is_watched_by_them(box: Box) -> None:
    ours = {"id": "ours", "pattern": r"finished (?P<step>\d+) of (?P<total>\d+) in (?P<e2e_s>[0-9.]+) s"}
    job = box.run("sh", "-c", NAMED, policy=box.policy(timingFormats=[ours], **POLICY))
    assert job.code() == 0
    (incident,) = box.incidents()
    assert (incident.verdict.symptom, incident.failed_step) == ("hang", 5), box.story()


def of_yama(box: Box) -> Path:
    """A kernel that lets only ancestors read another process's memory, and a Sentinel without the right to."""
    proc = box.folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/status").write_text("CapEff:\t0000000000000000\n")
    scope = proc / "sys/kernel/yama/ptrace_scope"
    scope.parent.mkdir(parents=True)
    scope.write_text("1\n")
    box.settings(procfs=str(proc))
    return scope


def test_that_no_stacks_can_be_read_is_said_once_at_the_start_and_in_status_until_they_can(box: Box) -> None:
    scope = of_yama(box)
    job = box.run(*train())
    job.said(
        "kernel.yama.ptrace_scope is 1 and Sentinel has no CAP_SYS_PTRACE: sysctl kernel.yama.ptrace_scope=0"
    )
    box.stepping(lines=5)
    told = box.sentinel("status", "job").stdout
    assert "a hang can only be told and not ended, since the stacks of the ranks cannot be read" in told
    scope.write_text("0\n")
    until(lambda: "ptrace_scope" not in box.sentinel("status", "job").stdout)
    job.send(signal.SIGINT)
    assert job.code() == 130
    assert job.err.count("ptrace_scope is 1") == 1


@pytest.mark.parametrize("hang", [{"after": "1h"}, {"action": "Alert"}])
def test_where_no_hang_depends_on_stacks_nothing_is_said_of_them(box: Box, hang: dict[str, str]) -> None:
    of_yama(box)
    job = box.run(*train(), policy=box.policy(hang=hang))
    box.stepping(lines=5)
    until(lambda: re.search(r"^Iteration +\d", box.sentinel("status", "job").stdout, re.M))
    assert "ptrace_scope" not in box.sentinel("status", "job").stdout
    job.send(signal.SIGINT)
    assert job.code() == 130
    assert "ptrace_scope" not in job.err
