"""Logs of real launchers whose process was lost, from the line to the verdict.

`launchers/` was printed by torch 2.15.0 (CPU, gloo), accelerate 1.15.0 and this program, with two processes each (that
of accelerate is `os.kill(os.getpid(), 9)` alone); folders were renamed. Process 1 ends at its fifth step by SIGKILL,
SIGSEGV, `os._exit`, an exception or a name that is not defined.

`nccl-…` was printed by torch 2.11.0 with NCCL 2.28.9 and the program of tests/trainers, whose two ranks shared an H200;
frames of C++ were cut, and of its iterations the last are left.
That of deepspeed is 0.19.8, with the program of tests/trainers, of whose iterations the last are left.
Those of torchrun 1.13 are Debian's, with the same program: it looks each 5 s, when both processes have ended.
What srun says was printed by Slurm 22.05.8, of two tasks of which the second ended, with and without
--kill-on-bad-exit, and below it the program of tests/trainers.
That of mpirun is Open MPI 4.1.4, with two processes that wait for each other's files and print Megatron's line.

    dist.init_process_group("gloo")
    for step in range(1, 100):
        dist.all_reduce(torch.ones(4))
        print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
"""

import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from sentinel.core.health import Finding
from sentinel.core.model import Budget, Restartable, Verdict
from sentinel.core.now import Now
from sentinel.core.reports import LogMatch, Orphan, RankExit
from sentinel.core.triage.verdict import triage
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet
from sentinel.rules.failures import failure_classes
from tests.samples import killed_for_memory

HERE = Path(__file__).parent
NOW = Now(mono_s=100.0, wall_s=1_764_000_000.0)


def verdict(log: Path, rules: RuleSet, tmp_path: Path, findings: tuple[Finding, ...] = ()) -> Verdict:
    """Of a job that is this launcher, which ended with exit code 1, as all of them do."""
    copied = Path(shutil.copy(log, tmp_path / "rank-0.log"))
    batch = RankLog(copied, rules, rank=0, incarnation=1).poll(NOW)
    assert len(batch.iterations) >= 5
    return of(batch.matches, findings)


def killed(pid: int) -> Finding:
    return killed_for_memory(pid, first_seen_wall_s=NOW.wall_s - 1.0, seen_mono_s=NOW.mono_s - 1.0)


def of(
    matches: list[LogMatch],
    findings: tuple[Finding, ...] = (),
    workers: Mapping[int, tuple[int, int]] | None = None,
    children: Mapping[int, int] | None = None,
    size: int = 1,
    ended: tuple[int, ...] = (0,),
    codes: Mapping[int, int] | None = None,
    exits: list[RankExit] | None = None,
) -> Verdict:
    return triage(
        job="j",
        size=size,
        exits=exits
        or [
            RankExit(rank=rank, incarnation=1, at_s=NOW.mono_s, code=(codes or {}).get(rank, 1))
            for rank in ended
        ],
        matches=matches,
        findings=findings,
        signal=None,
        last_steps={0: 5},
        rank_entities={},
        rank_pids={0: 4000},
        failures=failure_classes(),
        history=(),
        now=NOW,
        worker_pids=workers,
        child_pids=children,
    )


@pytest.mark.parametrize(
    ("log", "failure", "restart", "budget"),
    [
        ("torchrun-killed", "killed", Restartable.YES, Budget.INFRASTRUCTURE),
        ("torchrun-crashed", "segfault", Restartable.ONCE, Budget.JOB),
        ("torchrun-exit-3", "rank-exit", Restartable.YES, Budget.JOB),
        ("torchrun-exception", "exception", Restartable.YES, Budget.JOB),
        ("torchrun-name-error", "user-exception", Restartable.NO, Budget.JOB),
        ("spawn-killed", "killed", Restartable.YES, Budget.INFRASTRUCTURE),
        ("spawn-crashed", "segfault", Restartable.ONCE, Budget.JOB),
        ("spawn-exit-1", "rank-exit", Restartable.YES, Budget.JOB),
        ("spawn-exception", "exception", Restartable.YES, Budget.JOB),
        ("deepspeed-killed", "killed", Restartable.YES, Budget.INFRASTRUCTURE),
        ("deepspeed-exit-1", "rank-exit", Restartable.YES, Budget.JOB),
        ("mpirun-killed", "killed", Restartable.YES, Budget.INFRASTRUCTURE),
        ("mpirun-exit-1", "rank-exit", Restartable.YES, Budget.JOB),
        ("nccl-torchrun-exit-1", "rank-exit", Restartable.YES, Budget.JOB),
        ("nccl-torchrun-exception", "exception", Restartable.YES, Budget.JOB),
        ("nccl-torchrun-assert", "device-assert", Restartable.NO, Budget.JOB),
        ("nccl-spawn-exit-1", "rank-exit", Restartable.YES, Budget.JOB),
        ("nccl-spawn-exception", "exception", Restartable.YES, Budget.JOB),
    ],
)
def test_what_ended_a_process_of_a_launcher_is_the_verdict_and_the_process_is_named(
    log: str, failure: str, restart: Restartable, budget: Budget, shipped: RuleSet, tmp_path: Path
) -> None:
    v = verdict(HERE / f"launchers/{log}.log", shipped, tmp_path)
    assert (v.failure, v.restart, v.budget) == (failure, restart, budget), v
    assert "rank 1 of those that a launcher had started" in v.sentence, v


def test_a_rank_that_torchrun_killed_after_a_timeout_of_nccl_was_waited_for_and_not_killed_by_anybody_else(
    shipped: RuleSet, tmp_path: Path
) -> None:
    log = Path(shutil.copy(HERE / "launchers/nccl-torchrun-timeout.log", tmp_path / "rank-0.log"))
    matches = RankLog(log, shipped, rank=0, incarnation=1).poll(NOW).matches
    v = of(matches, workers={6609: (0, 0), 6610: (0, 1)})
    assert (v.failure, v.worker) == ("nccl-timeout", 1), v
    assert "Rank 0 waited for it in vain" in v.sentence
    v = of(matches)  # of whom nobody has seen that they ran
    assert (v.failure, v.worker) == ("nccl-timeout", None), v


def test_an_exception_after_another_rank_was_lost_is_the_cause_only_where_the_launcher_reports_that_rank(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = (HERE / "launchers/nccl-torchrun-exception.log").read_text()
    begin, end = text.index("[rank1]: Traceback"), text.index("W1127 06:55:40")
    at = text.index("iter 12:")
    raised = text[begin:at].replace(
        "RuntimeError: the training set is not sorted", "AttributeError: 'NoneType' has no close"
    )
    complaints = text[text.index("[rank0]:[E") : end]
    v = of(told(complaints + raised + text[end:], shipped, tmp_path))
    assert (v.failure, v.worker) == ("user-exception", 1), v
    for others in (raised.replace("rank1", "rank2") + text[end:], raised.replace("rank1", "rank2")):
        v = of(told(complaints + others, shipped, tmp_path))
        assert v.failure in ("nccl-abort", "rank-exit"), v


def test_a_rank_that_nobody_else_has_started_is_named_as_the_rank_that_it_is(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = (HERE / "launchers/nccl-torchrun-assert.log").read_text().partition("[rank0]:[E")[0]
    v = of(told(text, shipped, tmp_path, rank=1), size=2, ended=(1,))
    assert (v.failure, v.rank, v.worker) == ("device-assert", 1, None), v


def test_that_spawn_cannot_read_what_a_dead_process_had_raised_says_nothing_of_a_checkpoint(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = (HERE / "launchers/nccl-spawn-address.log").read_text()
    v = of(told(text, shipped, tmp_path), workers={10278: (0, 0), 10279: (0, 1)})
    assert (v.failure, v.worker) == ("illegal-access", 1), v
    alone = text[text.index("Traceback (most recent call last)") :]
    assert of(told(alone, shipped, tmp_path)).failure == "exception"
    own = alone.replace("original_trace", "dataset")
    assert of(told(own, shipped, tmp_path)).failure == "checkpoint-corrupt"


def test_the_first_rank_below_deepspeed_is_named_though_its_report_shows_the_last_ones_command(
    shipped: RuleSet, tmp_path: Path
) -> None:
    v = verdict(HERE / "launchers/deepspeed-killed-first.log", shipped, tmp_path)
    assert (v.failure, v.worker) == ("killed", 0), v


# deepspeed 0.19 with torch 2.15, whose rank 1 had crashed.
DEEPSPEED_FOUND_THE_OTHER = """\
[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error \
[127.0.0.1]:63672: Connection reset by peer.
terminate called without an active exception
[2026-11-26 23:59:41,900] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 9296
[2026-11-26 23:59:41,902] [ERROR] [launch.py:259:sigkill_handler] ['/usr/bin/python', '-u', '/home/user/ranks.py', \
'--local_rank=1', '--save-every', '5', '--at', '22', '--fault', 'segv', '--rank', '1'] exits with return code = -6
"""


def test_where_deepspeed_finds_the_rank_first_that_lost_another_and_aborted_the_other_is_named(
    shipped: RuleSet, tmp_path: Path
) -> None:
    v = of(told(DEEPSPEED_FOUND_THE_OTHER, shipped, tmp_path), codes={0: 250})
    assert (v.failure, v.worker) == ("rank-exit", 1), v


def test_a_single_process_of_accelerate_that_was_killed_is_no_error_of_its_program(
    shipped: RuleSet, tmp_path: Path
) -> None:
    log = shutil.copy(HERE / "launchers/accelerate-killed.log", tmp_path / "rank-0.log")
    v = of(RankLog(Path(log), shipped, rank=0, incarnation=1).poll(NOW).matches)
    assert (v.failure, v.restart) == ("killed", Restartable.YES)


def test_a_process_that_the_kernel_killed_for_memory_is_known_by_the_pid_that_torchrun_names(
    shipped: RuleSet, tmp_path: Path
) -> None:
    log = HERE / "launchers/torchrun-killed.log"
    pid = int(log.read_text().partition("local_rank: 1 (pid: ")[2].partition(")")[0])
    oom = killed(pid)
    assert verdict(log, shipped, tmp_path, (oom,)).failure == "host-oom"


def test_a_process_of_a_launcher_that_was_killed_for_memory_is_known_by_its_pid_where_no_log_names_it(
    shipped: RuleSet, tmp_path: Path
) -> None:
    log = shutil.copy(HERE / "launchers/spawn-killed.log", tmp_path / "rank-0.log")
    matches = RankLog(Path(log), shipped, rank=0, incarnation=1).poll(NOW).matches
    workers = {4001: (0, 6), 4002: (0, 7)}
    v = of(matches, (killed(4002),), workers)
    assert (v.failure, v.rank, v.worker) == ("host-oom", 0, 7), v
    assert "rank 7 of those that a launcher had started" in v.sentence
    assert of(matches, (killed(4003),), workers).failure == "killed"


def test_a_process_of_spawn_that_was_killed_for_memory_is_known_by_its_parent(
    shipped: RuleSet, tmp_path: Path
) -> None:
    def told(log: str, pid: int) -> Verdict:
        copied = Path(shutil.copy(HERE / f"launchers/{log}.log", tmp_path / "rank-0.log"))
        matches = RankLog(copied, shipped, rank=0, incarnation=1).poll(NOW).matches
        return of(matches, (killed(pid),), children={4001: 0, 4002: 0, 4003: 1})

    v = told("spawn-killed", 4002)
    assert (v.failure, v.rank, v.worker) == ("host-oom", 0, 1), v
    assert "rank 1 of those that a launcher had started" in v.sentence
    for another in (4003, 4004):  # of another rank, and of nobody here
        assert told("spawn-killed", another).failure == "killed"
    assert told("spawn-exit-1", 4002).failure == "rank-exit"


def test_an_exception_before_spawns_report_is_not_laid_to_its_process(
    shipped: RuleSet, tmp_path: Path
) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text(f"ValueError: caught\n{(HERE / 'launchers/spawn-exit-1.log').read_text()}")
    raised = tmp_path / "rank-1.log"
    raised.write_text(f"{(HERE / 'launchers/spawn-exception.log').read_text()}")
    matches = RankLog(log, shipped, rank=0, incarnation=1).poll(NOW).matches
    later = RankLog(raised, shipped, rank=0, incarnation=1).poll(NOW).matches
    assert of([*matches[:1], *later]).worker is None
    assert of(later).worker == 1


def test_the_pid_in_a_report_tells_the_number_in_the_whole_job(shipped: RuleSet, tmp_path: Path) -> None:
    log = Path(shutil.copy(HERE / "launchers/torchrun-killed.log", tmp_path / "rank-0.log"))
    pid = int(log.read_text().partition("local_rank: 1 (pid: ")[2].partition(")")[0])
    v = of(RankLog(log, shipped, rank=0, incarnation=1).poll(NOW).matches, (), {pid: (0, 9)})
    assert (v.failure, v.worker) == ("killed", 9), v


@pytest.mark.parametrize(("log", "failure"), [("killed", "killed"), ("exit-1", "rank-exit")])
def test_of_several_that_had_ended_when_torchrun_looked_the_first_is_not_the_one_that_it_names(
    log: str, failure: str, shipped: RuleSet, tmp_path: Path
) -> None:
    path = HERE / f"launchers/torchrun-1.13-{log}.log"
    listed = re.findall(r"\(local_rank: (\d)\)\n +exitcode +: \S+ \(pid: (\d+)\)", path.read_text())
    workers = {int(pid): (0, int(number)) for number, pid in listed}
    assert sorted(workers.values()) == [(0, 0), (0, 1)]
    matches = RankLog(path, shipped, rank=0, incarnation=1).poll(NOW).matches
    v = of(matches, (), workers)
    assert (v.failure, v.worker) == (failure, 1), v
    assert of(matches).worker is None  # no pid is known: none is named
    lost_it = re.sub(
        r"exitcode( *): 1( \(pid: 23223\)|\) local_rank: 0)", r"exitcode\1: -6\2", path.read_text()
    )
    assert lost_it != path.read_text()
    v = of(told(lost_it, shipped, tmp_path), (), workers)
    assert (v.failure, v.worker) == (failure, 1), v


def test_a_process_that_torchrun_itself_killed_does_not_explain_the_end(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = (HERE / "launchers/torchrun-1.13-killed.log").read_text()
    pid = re.search(r"exitcode +: -9 \(pid: (\d+)\)", text)
    assert pid is not None
    forced = (
        f"Unable to shutdown process {pid[1]} via Signals.SIGTERM, forcefully exitting via Signals.SIGKILL"
    )
    log = tmp_path / "rank-0.log"
    log.write_text(
        text.replace("ERROR:torch", f"WARNING:torch.distributed.elastic: {forced}\nERROR:torch", 1)
    )
    v = of(RankLog(log, shipped, rank=0, incarnation=1).poll(NOW).matches)
    assert v.failure != "killed", v


def told(text: str, rules: RuleSet, tmp_path: Path, rank: int = 0) -> list[LogMatch]:
    """What this launcher's log tells."""
    log = tmp_path / f"rank-{rank}.log"
    log.write_text(text)
    reader = RankLog(log, rules, rank=rank, incarnation=1)
    try:
        return reader.poll(NOW).matches
    finally:
        reader.close()


EXIT_3 = (
    HERE / "launchers/torchrun-exit-3.log"
).read_text()  # the report is of process 1, 0 lost its connection
# The same of a launcher on a second machine: the numbers in the whole job are 2 and 3, and the one reported complained.
FURTHER = EXIT_3.replace("[rank0]:", "[rank2]:").replace(
    "local_rank: 1 (pid: 1300)", "local_rank: 0 (pid: 1302)"
)
PIDS = {1299: (0, 0), 1300: (0, 1), 1302: (1, 2), 1303: (1, 3)}


def test_of_two_launchers_the_one_whose_process_ended_is_the_cause_though_another_process_of_it_complains(
    shipped: RuleSet, tmp_path: Path
) -> None:
    for workers in (None, PIDS):
        v = of(told(EXIT_3, shipped, tmp_path), workers=workers, size=2)
        assert (v.failure, str(v.cause), v.rank, v.worker) == ("rank-exit", "unknown", 0, 1), v
        assert v.sentence.startswith(
            "Rank 0 was lost after iteration 5: a process that it had started ended"
        ), v
        assert v.budget == Budget.JOB


def test_of_two_launchers_that_both_tell_of_an_end_the_one_whose_process_did_not_complain_is_the_cause(
    shipped: RuleSet, tmp_path: Path
) -> None:
    matches = told(FURTHER, shipped, tmp_path, rank=1) + told(EXIT_3, shipped, tmp_path)
    for workers in (None, PIDS):
        v = of(matches, workers=workers, size=2, ended=(1, 0))
        assert (v.failure, v.rank, v.worker) == ("rank-exit", 0, 1), v


def test_a_launcher_whose_report_is_of_a_process_that_lost_another_is_not_the_cause(
    shipped: RuleSet, tmp_path: Path
) -> None:
    unmarked = "RuntimeError: Connection closed by peer\n"
    for text in (FURTHER, FURTHER + unmarked, EXIT_3 + unmarked):
        v = of(told(text, shipped, tmp_path), workers={1302: (0, 2), 1303: (0, 3)}, size=2)
        assert (v.failure, v.rank, v.worker) == ("connection", 1, None), v
    assert of(told(FURTHER, shipped, tmp_path), size=2).rank == 1


ENDS = tomllib.loads((HERE / "ends.toml").read_text())["end"]
WATCHDOG = next(end["log"] for end in ENDS if end["name"] == "a collective behind a kernel that never ends")
ABORTED = (
    "E1126 01:56:58.811000 1290 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) "
)


def watchdogs(*numbers: int) -> str:
    """What the ranks below one torchrun print that waited in vain, and torchrun's report of the first of them."""
    said = [WATCHDOG.replace("rank0", f"rank{one}").replace("Rank 0", f"Rank {one}") for one in numbers]
    report = f"{ABORTED}local_rank: {numbers[0]} (pid: {1300 + numbers[0]}) of binary: /usr/bin/python3\n"
    return "".join(said) + report


FOUR = {1300 + number: (0, number) for number in range(4)}


@pytest.mark.parametrize("mark", ["[rank", "[default", ""])
def test_of_the_processes_of_a_launcher_the_one_whose_watchdog_is_silent_is_the_one_that_the_others_waited_for(
    mark: str, shipped: RuleSet, tmp_path: Path
) -> None:
    """With torch's own mark before each line, with torchrun's, and with what the watchdog says alone."""
    text = watchdogs(0, 1, 3)
    text = text.replace("[rank", mark) if mark else re.sub(r"(?m)^\[rank\d\]:", "", text)
    v = of(told(text, shipped, tmp_path), workers=FOUR)
    assert (v.failure, v.rank, v.worker) == ("nccl-timeout", 0, 2), v
    assert "rank 2 of those that a launcher had started did not join a collective operation." in v.sentence
    assert "Ranks 0, 1, 3 waited for it in vain." in v.sentence


def test_of_the_processes_of_a_whole_machine_none_that_waited_is_overlooked(
    shipped: RuleSet, tmp_path: Path
) -> None:
    eight = {1300 + number: (0, number) for number in range(8)}
    for silent in range(8):
        text = watchdogs(*(number for number in range(8) if number != silent))
        v = of(told(text, shipped, tmp_path), workers=eight)
        assert (v.failure, v.rank, v.worker) == ("nccl-timeout", 0, silent), v


def test_where_no_single_process_of_a_launcher_is_silent_the_verdict_says_which_waited_in_vain(
    shipped: RuleSet, tmp_path: Path
) -> None:
    for text, workers, words in (
        (
            watchdogs(0, 2),
            FOUR,
            "Ranks 0, 2 of those that a launcher had started reported it, ranks 1, 3 did not.",
        ),
        (watchdogs(0, 1, 2, 3), FOUR, "Ranks 0-3 of those that a launcher had started reported it."),
        (watchdogs(0, 1, 2), None, "Ranks 0-2 of those that a launcher had started reported it."),
        # More than are known to run: so those are not all.
        (watchdogs(0, 1, 4), {1300: (0, 0), 1301: (0, 1), 1302: (0, 2)}, "Ranks 0, 1, 4 of those"),
    ):
        v = of(told(text, shipped, tmp_path), workers=workers)
        assert (v.failure, v.rank, v.worker) == ("nccl-timeout", 0, None), v
        assert words in v.sentence


def test_the_watchdog_of_a_smaller_group_does_not_tell_whose_it_is(shipped: RuleSet, tmp_path: Path) -> None:
    """It counts in that group; the mark before its lines counts in the whole job."""
    text = (
        watchdogs(0, 1, 3)
        .replace("PG GUID 0(default_pg) Rank", "PG GUID 3(tp) Rank")
        .replace("Rank 3", "Rank 2")
    )
    assert of(told(text, shipped, tmp_path), workers=FOUR).worker == 2


def test_of_two_launchers_the_one_below_which_a_watchdog_is_silent_is_named_with_that_process(
    shipped: RuleSet, tmp_path: Path
) -> None:
    workers = {1300 + number: (number // 2, number) for number in range(4)}
    matches = told(watchdogs(0, 1), shipped, tmp_path) + told(watchdogs(2), shipped, tmp_path, rank=1)
    v = of(matches, workers=workers, size=2, ended=(0, 1))
    assert (v.failure, v.rank, v.worker) == ("nccl-timeout", 1, 3), v
    v = of(matches[: len(matches) - 1], workers={1300: (0, 0), 1301: (0, 1)}, size=2, ended=(0, 1))
    assert v.worker is None, v  # of launcher 1 no process is known


# How the second one ended -> the class, where the words do not give it.
SRUN = {
    "Killed": "killed",
    "Segmentation fault": "segfault",
    "Bus error": "segfault",
    "Aborted": "aborted",
    "Exited with exit code 3": "rank-exit",
}
SRUN_ENDS = """\
srun: launch/slurm: _step_signal: Terminating StepId=4.0
0: slurmstepd-vm: error: *** STEP 4.0 ON vm CANCELLED AT 2026-11-26T17:33:01 ***
srun: error: vm: task 0: {how}
srun: Force Terminated StepId=4.0
"""


@pytest.mark.parametrize(("words", "failure"), SRUN.items())
def test_srun_says_which_task_ended_first_and_what_it_ends_itself_is_not_the_cause(
    words: str, failure: str, shipped: RuleSet, tmp_path: Path
) -> None:
    told_of = f"srun: error: vm: task 1: {words}\n"
    for after in ("", SRUN_ENDS.format(how="Terminated"), SRUN_ENDS.format(how="Killed")):
        v = of(told(told_of + after, shipped, tmp_path))
        assert (v.failure, v.worker) == (failure, 1), v


@pytest.mark.parametrize("ends", ["StepId=4.0", "job step 4.0"])  # from Slurm 20.11 on, before
def test_an_exception_below_srun_stays_the_verdict_when_srun_kills_the_others(
    ends: str, shipped: RuleSet, tmp_path: Path
) -> None:
    after = SRUN_ENDS.format(how="Killed").replace("StepId=4.0", ends, 1)
    for raised, failure in (
        ("NameError: name 'x' is not defined", "user-exception"),
        ("ValueError: 3", "exception"),
    ):
        text = f"Traceback (most recent call last):\n{raised}\nsrun: error: vm: task 1: Exited with exit code 1\n"
        assert of(told(text + after, shipped, tmp_path)).failure == failure


def test_a_task_that_was_killed_for_memory_is_told_so_whatever_srun_says_first(
    shipped: RuleSet, tmp_path: Path
) -> None:
    killed = "srun: error: vm: task 1: Killed\n"
    daemon = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4.0.\n"
    for text in (killed + daemon, daemon + killed, "srun: error: vm: task 1: Out Of Memory\n"):
        v = of(told(text, shipped, tmp_path))
        assert v.failure == "host-oom", v


def test_below_srun_an_exception_is_of_the_task_whose_label_and_rank_stand_before_it(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = """\
1: [rank1]: Traceback (most recent call last):
1: [rank1]:   File "/home/user/ranks.py", line 85, in train
1: [rank1]: RuntimeError: the training set is not sorted
0: [rank0]: Traceback (most recent call last):
0: [rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer
srun: error: vm: task 1: Exited with exit code 1
srun: error: vm: task 0: Exited with exit code 1
"""
    v = of(told(text, shipped, tmp_path))
    assert (v.failure, v.worker) == ("exception", 1), v


LOST_IT = "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer"
LOST_IT += "\n"
# torch 2.15, where threads of gloo are there when the program ends.
ABORTS = "terminate called without an active exception\n"


def test_a_task_that_aborts_at_its_end_after_another_was_lost_is_not_the_cause(
    shipped: RuleSet, tmp_path: Path
) -> None:
    ends = ["srun: error: vm: task 0: Aborted\n", "srun: error: vm: task 1: Exited with exit code 1\n"]
    for told_of in (ends, reversed(ends)):
        text = f"0: {LOST_IT}0: {ABORTS}{''.join(told_of)}"
        v = of(told(text, shipped, tmp_path), codes={0: 134})
        assert (v.failure, v.worker) == ("rank-exit", 1), v
    for text, task in (
        (f"0: {ABORTS}{ends[0]}", 0),
        (f"1: {ABORTS}0: {LOST_IT}{''.join(ends)}", 1),
        (f"0: {LOST_IT}1: {ABORTS}{''.join(ends)}", 1),
    ):
        v = of(told(text, shipped, tmp_path), codes={0: 134})
        assert (v.failure, v.worker) == ("end-abort", task), text


@pytest.mark.parametrize("end", ["Out Of Memory", "Killed", "Segmentation fault"])
def test_what_srun_says_of_a_task_that_did_not_exit_by_itself_counts_also_where_it_had_lost_another(
    end: str, shipped: RuleSet, tmp_path: Path
) -> None:
    exited = "srun: error: vm: task 1: Exited with exit code 1\n"
    wanted = {"Out Of Memory": "host-oom", "Killed": "killed", "Segmentation fault": "segfault"}[end]
    for lost, tasks in ((f"0: {LOST_IT}", "task 0"), (LOST_IT.replace("[rank0]: ", ""), "tasks 4-7")):
        text = f"{lost}srun: error: vm: {tasks}: {end}\n{exited}"
        assert of(told(text, shipped, tmp_path)).failure == wanted, text


def test_below_a_launcher_whose_ranks_write_unmarked_who_aborts_before_any_complains_is_the_cause(
    shipped: RuleSet, tmp_path: Path
) -> None:
    workers = {1299: (0, 0), 1300: (0, 1)}
    v = of(told(EXIT_3.replace("W1125", f"{ABORTS}W1125"), shipped, tmp_path), workers=workers)
    assert (v.failure, v.worker) == ("rank-exit", 1), v
    aborted = EXIT_3.replace("exitcode: 3)", "exitcode: -6)")
    v = of(told(f"{ABORTS}{aborted}", shipped, tmp_path), workers=workers)
    assert (v.failure, v.worker) == ("end-abort", 1), v
    v = of(told(f"[default0]:{LOST_IT}[default1]:{ABORTS}{aborted}", shipped, tmp_path), workers=workers)
    assert (v.failure, v.worker) == ("end-abort", 1), v


def test_a_rank_that_aborts_at_its_end_after_another_was_lost_is_not_the_cause(
    shipped: RuleSet, tmp_path: Path
) -> None:
    matches = told(LOST_IT + ABORTS, shipped, tmp_path, rank=0)
    v = of(matches, size=2, ended=(0, 1), codes={0: 134})
    assert v.rank == 1, v
    assert v.failure != "segfault", v
    v = of(told(ABORTS, shipped, tmp_path, rank=0), size=2, ended=(0, 1), codes={0: 134})
    assert (v.failure, v.rank) == ("end-abort", 0), v
    lost = told(LOST_IT, shipped, tmp_path, rank=1)
    v = of([*told(ABORTS, shipped, tmp_path, rank=0), *lost], size=2, ended=(0, 1), codes={0: 134})
    assert (v.failure, v.rank) == ("end-abort", 0), v
    assert "the messages of 1 other rank are consequences" in v.confidence


TORCHRUN_ABORTS = "failed (exitcode: -6) local_rank: 1 (pid: 8237) of binary: /usr/bin/python3\n"


def test_an_abort_at_the_end_of_which_nothing_else_is_known_is_tried_again_once(
    shipped: RuleSet, tmp_path: Path
) -> None:
    for text, worker, workers in (
        (ABORTS, None, {}),
        (f"[default1]:{ABORTS}{TORCHRUN_ABORTS}", 1, {}),
        (f"{ABORTS}{TORCHRUN_ABORTS}", 1, {}),
        (f"[default1]:{ABORTS}{TORCHRUN_ABORTS}", 5, {8236: (0, 4), 8237: (0, 5)}),  # the second machine
    ):
        v = of(told(text, shipped, tmp_path), codes={0: 1 if worker else 134}, workers=workers)
        assert (v.failure, v.worker, v.restart) == ("end-abort", worker, Restartable.ONCE), v


def test_an_abort_of_another_process_explains_no_other_end(shipped: RuleSet, tmp_path: Path) -> None:
    for text, code, failure in (
        (ABORTS, 3, "user-exit"),  # of what it had started
        (f"{ABORTS}{TORCHRUN_ABORTS.replace('-6', '3')}", 1, "rank-exit"),
        (f"[default0]:{ABORTS}{TORCHRUN_ABORTS}", 1, "aborted"),
    ):
        assert of(told(text, shipped, tmp_path), codes={0: code}).failure == failure, text
    v = of(told(ABORTS, shipped, tmp_path, rank=1), size=2, ended=(0,), codes={0: 134})
    assert v.failure == "unknown", v


def test_of_a_process_that_its_launcher_leaves_unreported_the_abort_is_known_by_its_signal(
    shipped: RuleSet, tmp_path: Path
) -> None:
    gone = RankExit(
        rank=0,
        incarnation=1,
        at_s=NOW.mono_s,
        code=1,
        orphans=(Orphan(pid=8237, code=None, signal=6, oom_killed=False),),
    )
    v = of(told(ABORTS, shipped, tmp_path), exits=[gone], workers={8236: (0, 0), 8237: (0, 1)})
    assert (v.failure, v.worker, v.restart) == ("end-abort", 1, Restartable.ONCE), v
    assert "it aborted (SIGABRT)" in v.sentence


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ("failed (exitcode: -6) local_rank: 1 (pid: 8237) of binary: /usr/bin/python3", 1),
        ("failed (exitcode: 134) local_rank: 1 (pid: 8237) of binary: /home/user/run.sh", 1),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGABRT", 1),
        ("subprocess.CalledProcessError: Command '['python', 'w.py']' died with <Signals.SIGABRT: 6>.", 1),
        ("['python', 'w.py', '--local_rank=1'] exits with return code = -6", 250),
        ("mpirun noticed that process rank 1 with PID 41 on node a exited on signal 6 (Aborted).", 1),
        ("srun: error: a: task 1: Aborted", 1),
    ],
)
def test_each_launcher_tells_of_an_abort_in_its_own_words(
    report: str, code: int, shipped: RuleSet, tmp_path: Path
) -> None:
    v = of(told(f"{ABORTS}{report}\n", shipped, tmp_path), codes={0: code})
    assert v.failure == "end-abort", v
    v = of(told(f"{report}\n", shipped, tmp_path), codes={0: code})
    assert v.failure == "aborted", v


def test_of_two_ranks_below_a_launcher_the_one_that_aborted_before_the_other_complained_is_the_cause(
    shipped: RuleSet, tmp_path: Path
) -> None:
    complains = LOST_IT.replace("rank0", "rank1")
    torchrun = TORCHRUN_ABORTS.replace("local_rank: 1", "local_rank: 0")
    for text in (
        f"[rank0]: {ABORTS}{complains}{torchrun}",
        f"{ABORTS}{complains.replace('[rank1]: ', '')}{torchrun}",
        f"0: {ABORTS}1: {complains}srun: error: h: task 0: Aborted\n",
        EXIT_3.replace("[rank0]:", "[rank1]:")
        .replace("exitcode: 3) local_rank: 1", "exitcode: -6) local_rank: 0")
        .replace("[rank1]: Traceback", f"{ABORTS}[rank1]: Traceback", 1),
    ):
        v = of(told(text, shipped, tmp_path))
        assert (v.failure, v.worker, v.restart) == ("end-abort", 0, Restartable.ONCE), f"{v}\n{text}"
    also = (
        f"[default0]:{ABORTS}[default1]:{complains}[default1]:{ABORTS}{TORCHRUN_ABORTS}"  # it reports rank 1
    )
    v = of(told(also, shipped, tmp_path))
    assert (v.failure, v.worker) == ("end-abort", 0), v
    v = of(told(also, shipped, tmp_path), workers={8236: (0, 4), 8237: (0, 5)})  # on the second machine
    assert (v.failure, v.worker) == ("end-abort", 4), v
    for first, other in ((0, 1), (1, 0)):  # torchrun of torch 1.13 lists both
        text = f"[default{first}]:{ABORTS}[default{other}]:{LOST_IT.replace('rank0', f'rank{other}')}"
        listed = "".join(f"  exitcode  : -6 (pid: {pid})\n" for pid in (8236, 8237))
        v = of(told(f"{text}{torchrun}{listed}", shipped, tmp_path))
        assert (v.failure, v.worker) == ("end-abort", first), v
    waited = f"[rank0]: {ABORTS}{complains}"  # how it ended is not known
    assert of(told(waited, shipped, tmp_path)).failure == "connection"


@pytest.mark.parametrize(
    ("raised", "failure"),
    [
        ("RuntimeError: the training set is not sorted", "exception"),
        ("NameError: name 'x' is not defined", "user-exception"),
    ],
)
def test_a_rank_that_aborts_at_its_end_after_it_raised_failed_by_what_it_raised(
    raised: str, failure: str, shipped: RuleSet, tmp_path: Path
) -> None:
    lost = told(LOST_IT, shipped, tmp_path, rank=0)
    text = f"[rank1]: Traceback (most recent call last):\n[rank1]: {raised}\n{ABORTS}"
    v = of([*told(text, shipped, tmp_path, rank=1), *lost], size=2, ended=(1, 0), codes={1: 134})
    assert (v.failure, v.rank) == (failure, 1), v
    text = f"1: [rank1]: Traceback (most recent call last):\n1: [rank1]: {raised}\n"
    text += f"0: {LOST_IT}1: {ABORTS}srun: error: vm: task 1: Aborted\n"
    v = of(told(text, shipped, tmp_path), codes={0: 134})
    assert (v.failure, v.worker) == (failure, 1), v


def test_what_a_process_had_caught_long_before_or_another_told_is_not_why_it_aborts(
    shipped: RuleSet, tmp_path: Path
) -> None:
    caught = "Traceback (most recent call last):\nAttributeError: 'Run' object has no attribute 'log'\n"
    aborts = told(ABORTS, shipped, tmp_path)
    later = [msgspec.structs.replace(match, at_s=match.at_s + 60.0) for match in aborts]
    v = of([*told(caught, shipped, tmp_path), *later], codes={0: 134})
    assert v.failure == "end-abort", v
    text = "[rank0]: Traceback (most recent call last):\n[rank0]: AttributeError: 'Run' object has no attribute 'log'\n"
    lost = LOST_IT.replace("rank0", "rank1")
    v = of(told(f"{text}{lost}[rank1]: {ABORTS}", shipped, tmp_path), codes={0: 134})
    assert v.failure == "connection", v


def test_below_srun_and_torchrun_the_label_tells_whose_line_it_is(shipped: RuleSet, tmp_path: Path) -> None:
    lost = LOST_IT.replace("rank0", "rank5")
    v = of(told(f"0: {lost}0: {ABORTS}", shipped, tmp_path), codes={0: 134})
    assert v.failure == "connection", v
