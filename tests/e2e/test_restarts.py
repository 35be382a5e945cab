"""Restarting: within its budget, not for ever, smaller and larger again, and with a sentence that says it all."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import Box, train
from tests.gate.rights import needs_root
from tests.waits import until

CARDS = ("0000:18:00.0", "0000:3b:00.0")


def test_every_restart_says_what_happened_what_it_cost_and_what_is_left(box: Box) -> None:
    job = box.run(
        *train("--save-every", "5"), policy=box.policy(restart={"maxRestarts": 3}), options=("--nproc", "2")
    )
    box.stepping(lines=12)
    os.kill(box.ranks(2)[1], signal.SIGKILL)
    box.phase("Recovered")
    told = until(lambda: re.search(r"job-0001 recovered: .*", job.err)).group()  # type: ignore[union-attr]
    found = re.search(
        r"recovered: Rank 1 was lost .*SIGKILL.* Cause: [a-z ]+\. Rank 1\. Last step (\d+)\. Resumed from step (\d+)\. "
        r"Lost (\d+) steps and (\d+\.\d) s\. Restarts: 1 used, 2 left\.",
        told,
    )
    assert found, told
    last, resumed, lost = (int(found[n]) for n in (1, 2, 3))
    assert lost == last - resumed
    assert resumed % 5 == 0
    assert box.starts[-1]["resumed"] == resumed
    job.send(signal.SIGINT)
    assert job.code() == 130


@pytest.fixture
@needs_root
def small_group() -> Iterator[Path]:
    """A memory cgroup of 64 MiB."""
    group = Path(f"/sys/fs/cgroup/memory/sentinel-e2e-{os.getpid()}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory_is_told_so_and_started_again(
    box: Box, small_group: Path
) -> None:
    box.settings(kernelLog="/dev/kmsg")
    confined = f'echo $$ > {small_group}/cgroup.procs; exec "$@"'
    job = box.run("sh", "-c", confined, "train", *train("--save-every", "1"))
    box.stepping()
    box.order(0, "eat")
    incident = box.phase("Recovered")
    assert incident.verdict.cause == "host memory", box.story()
    assert "memory ran out" in incident.verdict.sentence
    assert len(box.starts) == 2
    job.send(signal.SIGINT)
    assert job.code() == 130


def test_the_budget_ends_a_job_with_the_code_of_its_last_failure(box: Box) -> None:
    policy = box.policy(restart={"maxRestarts": 1})
    job = box.run(*train("--save-every", "1"), policy=policy)
    box.stepping()
    os.kill(box.ranks(1)[0], signal.SIGKILL)
    box.stepping(incarnation=2)
    box.phase("Recovered")
    os.kill(box.ranks(1)[0], signal.SIGKILL)
    assert job.code() == 128 + signal.SIGKILL
    assert box.phase("Exhausted").id == "job-0002"
    record = box.job()
    assert record is not None
    assert (record.state, record.incarnation, record.left) == ("error", 2, 0)
    box.empty()


def test_a_job_that_fails_at_the_same_step_with_no_newer_checkpoint_is_given_up_early(box: Box) -> None:
    policy = box.policy(restart={"maxRestarts": 10})
    job = box.run(*train("--at", "5:exit 9"), policy=policy)
    assert job.code() == 9
    record = box.job()
    assert record is not None
    assert record.incarnation < 6
    assert record.reason == "NoProgress"
    assert "at step 4 with no newer checkpoint" in record.sentence


def test_in_observe_mode_a_fault_is_told_and_nothing_is_touched(box: Box) -> None:
    job = box.run(*train(), policy=box.policy(mode="observe"), options=("--nproc", "2"))
    box.stepping()
    os.kill(box.ranks(2)[1], signal.SIGKILL)
    assert box.phase("KeptRunning").verdict.rank == 1
    lines = len(box.log().splitlines())
    box.stepping(lines=lines + 10)
    assert list(box.ranks()) == [0]
    job.send(signal.SIGINT)
    assert job.code() == 130
    assert len(box.starts) == 2
    box.empty()


@pytest.fixture
def two_cards(box: Box) -> Path:
    """A machine with two GPUs, as sysfs shows them. Returns its kernel log."""
    for address in CARDS:
        device = box.folder / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        for name, value in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
            (device / name).write_text(value + "\n")
    box.settings(sysfs=str(box.folder / "sys"))
    return box.kernel_log


def xid(log: Path, number: int) -> None:
    with log.open("a") as file:
        file.write(
            f"6,{number},{1000 + number},-;NVRM: Xid (PCI:{CARDS[0][:-2]}): 79, GPU has fallen off the bus.\n"
        )


def test_a_job_comes_back_smaller_without_a_broken_gpu_and_grows_when_it_is_well_again(
    box: Box, two_cards: Path
) -> None:
    checkpoint = {"timeout": "10s", "proof": {"logPattern": "wrote the model"}}
    policy = box.policy(
        resume={"maxResumes": 5, "gracefulStop": "2s", "checkpoint": checkpoint},
        elastic={"minNodes": 1, "growAfter": "1s"},
        precheck={"checks": ["gpu"]},
    )
    job = box.run(*train(), policy=policy, options=("--nproc", "2"))
    box.stepping()
    box.ranks(2)
    xid(two_cards, 1)
    smaller = box.phase("Recovered")
    assert smaller.verdict.entity == f"GPU {CARDS[0]}"
    assert "79" in str(smaller.verdict.evidence) + smaller.verdict.sentence
    record = box.job()
    assert record is not None
    assert (record.size, record.original_size, record.excluded) == (1, 2, (f"GPU {CARDS[0]}",))
    second = box.starts[2]["env"]
    assert (second["WORLD_SIZE"], second["CUDA_VISIBLE_DEVICES"]) == ("1", "1")
    assert len(box.starts) == 3
    done = box.sentinel("release", "job", f"GPU {CARDS[0]}")
    assert done.returncode == 0, done.stderr
    box.phase("Recovered", at_least=2)
    grown = box.job()
    assert grown is not None
    assert (grown.size, grown.excluded) == (2, ())
    until(lambda: len(box.starts) == 5)
    assert {s["env"]["WORLD_SIZE"] for s in box.starts[3:]} == {"2"}
    assert "CUDA_VISIBLE_DEVICES" not in box.starts[4]["env"]
    job.send(signal.SIGINT)
    assert job.code() == 130


def test_what_the_driver_tells_of_a_ranks_own_kernel_is_the_programs_and_tried_once_more(
    box: Box, two_cards: Path
) -> None:
    """NVIDIA's Xid 31, and the 45 of the clean-up after it, which alone blames nobody."""
    job = box.run(*train("--save-every", "1"), policy=box.policy(restart={"maxRestarts": 5}))
    for number in (1, 2):
        box.stepping(incarnation=number)
        (pid,) = box.ranks(1).values()
        with two_cards.open("a") as log:
            for offset, code in enumerate((45, 31)):
                at_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
                text = f"NVRM: Xid (PCI:{CARDS[0][:-2]}): {code}, pid={pid}, name=python3, Ch 00000008"
                log.write(f"4,{10 * number + offset},{at_us},-;{text}\n")
        box.order(0, "exit 1")
        if number == 1:
            first = box.phase("Recovered").verdict
            assert (first.cause, first.failure, first.scope) == ("user code", "illegal-access", "job")
            assert "XID 31" in first.sentence
            assert any("NVRM: Xid" in line for line in first.evidence)
    box.stepping(incarnation=3)  # it had come further than the first time
    assert box.phase("Recovered", at_least=2).verdict.cause == "user code"
    job.send(signal.SIGINT)
    assert job.code() == 130


def test_a_job_that_is_not_elastic_is_kept_running_where_no_gpu_is_free(box: Box, two_cards: Path) -> None:
    checkpoint = {"timeout": "10s", "proof": {"logPattern": "wrote the model"}}
    policy = box.policy(resume={"checkpoint": checkpoint}, precheck={"checks": ["gpu"]})
    job = box.run(*train(), policy=policy, options=("--nproc", "2"))
    box.stepping()
    xid(two_cards, 1)
    incident = box.phase("KeptRunning")
    assert incident.reason == "NoRoom"
    assert len(box.starts) == 2
    assert box.noted("signals") == []
    job.send(signal.SIGINT)
    assert job.code() == 130


# It ends as torchrun does when it is told to.
LAUNCHER = """
import os, signal, sys, time

class SignalException(Exception):
    pass

def told(number, frame):
    raise SignalException(f"Process {os.getpid()} got signal: {number}")

signal.signal(signal.SIGTERM, told)
for step in range(5):
    print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
if os.environ["RANK"] == "0":
    sys.exit(1)
time.sleep(600)
"""


def test_a_launcher_that_sentinel_stopped_beside_one_that_failed_makes_no_restart_without_end(
    box: Box,
) -> None:
    job = box.run(
        sys.executable,
        "-c",
        LAUNCHER,
        policy=box.policy(restart={"maxRestarts": 10}),
        options=("--nproc", "2"),
    )
    assert job.code() == 1
    told = until(lambda: re.search(r"job ended: error \(NoProgress\): .*", job.err)).group()  # type: ignore[union-attr]
    assert "it failed 3 times after 5 iterations with no newer checkpoint" in told
    assert "free of cost" not in job.err
    assert "SIGTERM" not in job.err.partition("job ended")[0]


# What libstdc++ does at the end of a program while a thread of a library runs that nobody has joined.
ABORTS = """
import ctypes
for step in range(1, 41):
    print(f"step {step}/40 loss 0.5", flush=True)
ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()
"""


def test_a_program_that_aborts_as_it_ends_is_tried_again_once_and_told_so(box: Box) -> None:
    job = box.run(sys.executable, "-c", ABORTS, policy=box.policy(restart={"maxRestarts": 10}))
    assert job.code() == 128 + signal.SIGABRT
    [incident] = box.incidents()
    assert incident.verdict.failure == "end-abort", box.story()
    record = box.job()
    assert record is not None
    assert (record.state, record.incarnation) == ("error", 2)
    box.empty()


# Each fails at the first start, and is through at the second one.
FAILS_ONCE = """
import os, signal, socket, sys, urllib.request
for step in range(1, 11):
    print(f"step {step}/10 loss 0.5", flush=True)
if os.path.exists("failed"):
    sys.exit()
open("failed", "w").close()
"""
TAKEN = 'one = socket.create_server(("127.0.0.1", 0)); socket.create_server(one.getsockname())'
PREEMPTED = """
print("slurmstepd: error: *** JOB 32391783 ON cn119 CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("fails", "failure", "budget"),
    [
        ('urllib.request.urlopen("http://127.0.0.1:9/model")', "unreachable", "infrastructure"),
        (TAKEN, "port-in-use", "job"),
        ("bytearray(1 << 60)", "memory-refused", "job"),
        ("import torch; torch.empty(10**14)", "memory-refused", "job"),
        (PREEMPTED, "preempted", "free"),
    ],
)
def test_what_may_be_well_the_next_time_is_started_again_with_its_own_words(
    box: Box, fails: str, failure: str, budget: str
) -> None:
    policy = box.policy(restart={"maxRestarts": 3})
    job = box.run("/usr/bin/python3", "-c", FAILS_ONCE + fails, policy=policy)  # which has torch
    assert job.code() == 0, job.err
    [incident] = box.incidents()
    assert (incident.verdict.failure, incident.verdict.budget) == (failure, budget), box.story()
    assert incident.phase == "Recovered"
    box.empty()
