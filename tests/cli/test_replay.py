"""`sentinel replay` over lines as training programs and launchers print them.

Sources of the lines: Megatron-LM's training log as in epfLLM/Megatron-LLM issue 11 and NVIDIA/Megatron-LM issue
1880 (step numbers and times changed); the NCCL watchdog of hiyouga/LlamaFactory issue 7396 (ranks changed);
torchtitan pull request 2389; tqdm as in sgl-project/sglang issue 3204; MindFormers as in the MindSpore
Transformers documentation; srun's lines of facebookresearch/deit issue 102; torchrun's of Megatron-LM issue
1880; CUDA out of memory after PyTorch's CUDACachingAllocator.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli import main, replay

HARDWARE = "this iteration hardware time is 2201.521 and e2e time is 3317.794921875 ms.\n"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.10 GiB of which 1.38 GiB is free.\n"
)
WATCHDOG = (
    "[rank{0}]:[E321 02:17:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
    "ran for 600060 milliseconds before timing out.\n"
)
Seen = dict[str, Any]
Run = Callable[..., Seen]


def megatron(step: int, at: str, e2e_ms: float = 1000.0) -> str:
    return (
        f"[2025-03-21 {at}] iteration {step:8d}/  250000 | consumed samples: {step * 1024:12d} | elapsed time per "
        f"iteration (ms): {e2e_ms:.1f} | learning rate: 1.507E-05 | global batch size:  1024 | lm loss: 2.3735 |\n"
    )


def steps(first: int, count: int, at_s: int, e2e_ms: float = 1000.0) -> str:
    """Megatron's lines of iterations that follow each other in seconds of 2025-03-21."""
    lines = []
    for k in range(count):
        s = int(at_s + k * e2e_ms / 1000)
        lines.append(megatron(first + k, f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}", e2e_ms))
    return "".join(lines)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def replay(*arguments: object, code: int = 0) -> Seen:
        assert main(["replay", *map(str, arguments), "-o", "json"]) == code
        seen: Seen = json.loads(capsys.readouterr().out)
        return seen

    return replay


def policy(folder: Path, spec: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(
        "apiVersion: sentinel.dev/v1alpha1\nkind: JobPolicy\nmetadata: {name: llama}\nspec:\n" + spec
    )
    return path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


# ---------------------------------------------------------------- for people


def test_the_text_for_people_is_a_story_in_the_order_of_time_and_four_tables(tmp_path: Path) -> None:
    text = steps(1, 60, 0) + steps(61, 30, 900)
    write(tmp_path, "rank-0.log", text + "RuntimeError: NCCL communicator was aborted on rank 0.\n")
    write(tmp_path, "rank-1.log", text + OOM)
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "replay", "rank-0.log", "rank-1.log"],
        cwd=tmp_path,
        env={**os.environ, "TZ": "UTC", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        timeout=180,
    )
    assert done.stdout.decode() == (Path(__file__).parent / "replay.golden").read_text()


# ---------------------------------------------------------------- step times


@pytest.mark.parametrize(
    ("text", "format", "iterations", "p50_ms", "clock"),
    [
        (HARDWARE * 5, "hardware-time", 5, 3317.8, "synthetic"),
        (steps(10, 6, 100, 2000.0), "megatron", 6, 2000.0, "stamps"),
        (
            "".join(
                f"[titan] 2026-02-24 19:46:{10 + 4 * n},508 - root - INFO - \x1b[31mstep: {n:2}  \x1b[32mloss:  7.6  "
                "\x1b[34mtps: 10,050  \x1b[36mtflops: 314.71\x1b[39m\n"
                for n in range(1, 6)
            ),
            "torchtitan",
            5,
            4000.0,
            "stamps",
        ),
        (
            "".join(f"\r  {4 * n}%|▍         | {n}/23 [00:{7 * n:02}<02:39,  7.23s/it]" for n in range(1, 6)),
            "tqdm-s",
            5,
            7230.0,
            "synthetic",
        ),
        (
            "".join(
                f"2025-04-07 15:{30 + 2 * n}:27,308 - [mindformers/core/callback/callback.py:529] - INFO - "
                f"{{ Epoch:[  1/  2], step:[ {n:4}/   19], loss: 10.649, per_step_time: 103328ms, lr: 0.0 }}\n"
                for n in range(1, 6)
            ),
            "mindformers",
            5,
            103328.0,
            "stamps",
        ),
    ],
)
def test_step_times_are_told_for_each_format(
    run: Run, tmp_path: Path, text: str, format: str, iterations: int, p50_ms: float, clock: str
) -> None:
    seen = run(write(tmp_path, "train.log", text))
    assert (seen["iterations"], seen["clock"]) == (iterations, clock)
    assert seen["ranks"][0]["format"] == format
    assert seen["job"]["p50_ms"] == pytest.approx(p50_ms, rel=0.03)
    assert seen["story"] == []


def test_a_synthetic_clock_goes_by_the_end_to_end_times_and_hangs_are_said_not_to_be_judged(
    run: Run, tmp_path: Path
) -> None:
    seen = run(write(tmp_path, "train.log", HARDWARE * 100))
    assert seen["end_s"] == pytest.approx(331.78, abs=0.01)
    assert seen["job"]["ratio"] == pytest.approx(2201.521 / 3317.794921875)
    assert any("hangs were not looked for" in note for note in seen["notes"])


def test_silence_on_a_synthetic_clock_is_no_hang(run: Run, tmp_path: Path) -> None:
    short, long = write(tmp_path, "rank-0.log", HARDWARE * 10), write(tmp_path, "rank-1.log", HARDWARE * 900)
    assert run(short, long)["story"] == []


def test_stamps_of_other_lines_move_the_clock_between_iterations_that_bear_none(
    run: Run, tmp_path: Path
) -> None:
    text = "2025-03-21 08:00:00 start\n" + HARDWARE * 3 + "2025-03-21 08:10:00 end\n"
    seen = run(write(tmp_path, "train.log", text))
    assert (seen["clock"], seen["end_s"] - seen["start_s"]) == ("mixed", 600)


def test_a_ratio_above_the_threshold_is_acted_on_once_and_under_it_is_left_alone(
    run: Run, tmp_path: Path
) -> None:
    log = write(tmp_path, "train.log", HARDWARE * 300)
    asked = (
        "  performance: {{maxHardwareRatio: {}, over: 20, action: RescheduleAndAlert}}\n"
        "  resume: {{maxResumes: 3, checkpoint: {{signal: SIGUSR1, timeout: 5m}}}}\n"
    )
    seen = run(log, "--policy", policy(tmp_path, asked.format(0.66)))
    (slow,) = seen["story"]
    assert (slow["kind"], slow["reason"]) == ("chosen", "Slow")
    assert slow["verdict"]["failure"] == "slow"
    phases = [entry["phase"] for entry in slow["then"]]
    assert phases == ["Prechecking", "Saving", "Stopping", "Starting", "Verifying"]
    assert (slow["restarts_left"], slow["outcome"]) == (2, "Verifying")
    assert "SIGUSR1 to all ranks, at most 300 s" in slow["save"]
    # 3 iterations of warm-up and a window of 20, looked at every fourth
    assert 20 <= slow["at_s"] / 3.3178 <= 28
    assert run(log, "--policy", policy(tmp_path, asked.format(0.67)))["story"] == []


def test_without_a_checkpoint_signal_a_slow_job_is_kept_running(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", HARDWARE * 60)
    asked = "  performance: {maxHardwareRatio: 0.66, action: RescheduleAndAlert}\n  resume: {maxResumes: 3}\n"
    (slow,) = run(log, "--policy", policy(tmp_path, asked))["story"]
    assert slow["outcome"] == "KeptRunning"
    assert slow["restarts_left"] == 3


def test_a_slow_rank_among_its_peers_is_named(run: Run, tmp_path: Path) -> None:
    logs = [write(tmp_path, f"rank-{n}.log", steps(1, 40, 100, 2000.0)) for n in range(3)]
    logs.append(write(tmp_path, "rank-3.log", steps(1, 40, 100, 3500.0)))
    (straggler,) = run(*logs)["story"]
    assert straggler["kind"] == "notice"
    assert (straggler["verdict"]["failure"], straggler["verdict"]["rank"]) == ("straggler", 3)


# ---------------------------------------------------------------- silence


def test_a_gap_in_the_time_stamps_is_a_hang_and_each_one_costs_a_restart(run: Run, tmp_path: Path) -> None:
    text = steps(1, 60, 0) + steps(61, 60, 4000) + steps(121, 5, 20_000)
    seen = run(write(tmp_path, "train.log", text))
    first, second = seen["story"]
    assert [one["reason"] for one in (first, second)] == ["Hang", "Hang"]
    assert (first["step"], second["step"]) == (60, 120)
    assert first["at_s"] - seen["start_s"] == pytest.approx(59 + 120, abs=1)
    # a pause that the job survived is taken for a habit of it
    assert 4059 + 300 < second["at_s"] - seen["start_s"] < 20_000
    assert (first["restarts_left"], second["restarts_left"]) == (2, 1)
    assert [round(stall["gap_s"]) for stall in seen["stalls"]][:2] == [20_000 - 4059, 4000 - 59]


def test_an_announced_save_explains_silence(run: Run, tmp_path: Path) -> None:
    saving = "[2025-03-21 00:01:00] saving checkpoint at iteration 60 to /ckpt in torch format\n"
    text = steps(1, 60, 0) + saving + steps(61, 20, 500)
    assert run(write(tmp_path, "train.log", text))["story"] == []
    assert run(write(tmp_path, "plain.log", text.replace(saving, "")))["story"] != []


def test_the_rank_that_stopped_first_is_named_from_several_logs(run: Run, tmp_path: Path) -> None:
    for n in range(4):
        write(tmp_path, f"worker-{n}.log", steps(1, 100 if n == 2 else 103, 0))
    late = "[2025-03-21 00:30:00] dataloader: prefetch queue is full\n"
    with (tmp_path / "worker-0.log").open("a") as file:
        file.write(late)
    seen = run(*sorted(tmp_path.glob("worker-*.log"), reverse=True))
    (hang,) = seen["story"]
    assert (hang["reason"], hang["verdict"]["rank"], hang["step"]) == ("Hang", 2, 103)
    assert [log["ranks"] for log in seen["logs"]] == [[3], [2], [1], [0]]


def test_a_fixed_hang_time_is_obeyed(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", steps(1, 30, 0) + steps(31, 5, 45))
    (hang,) = run(log, "--policy", policy(tmp_path, "  hang: {after: 10s, action: Alert}\n"))["story"]
    assert hang["kind"] == "notice"
    assert hang["at_s"] == pytest.approx(run(log)["start_s"] + 29 + 10, abs=1)


def test_a_format_of_the_policy_is_tried_on_an_old_log(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", "".join(f"finished {n} of 9\n" for n in range(1, 10)))
    assert run(log, code=1)["iterations"] == 0
    ours = "  timingFormats: [{id: ours, pattern: 'finished (?P<step>\\d+) of (?P<total>\\d+)'}]\n"
    seen = run(log, "--policy", policy(tmp_path, ours))
    assert (seen["iterations"], seen["job"]["last_step"], seen["ranks"][0]["format"]) == (9, 9, "ours")


def test_a_job_expires_in_the_middle_of_its_log(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", steps(1, 100, 0) + steps(101, 5, 4000))
    expiry, hang = run(log, "--policy", policy(tmp_path, "  maxDuration: 1m\n"))["story"]
    assert (expiry["reason"], expiry["outcome"]) == ("Expired", "Ended")
    assert hang["reason"] == "Hang"  # the log went on, and so does the story


# ---------------------------------------------------------------- ends


def test_a_collective_timeout_on_several_ranks_names_the_silent_one(run: Run, tmp_path: Path) -> None:
    text = steps(1, 30, 7200) + "".join(WATCHDOG.format(rank) for rank in (0, 1, 3))
    seen = run(write(tmp_path, "slurm-77.out", text))
    assert (seen["size"], seen["end"]) == (4, "assumed")
    verdict = seen["ended"]["verdict"]
    assert (verdict["failure"], verdict["rank"]) == ("nccl-timeout", 2)
    assert "did not join a collective operation" in verdict["sentence"]
    assert seen["rules"][0]["ranks"] == [0, 1, 3]
    # the watchdog's stamp names no year: it is of the log's, not of the day on which the log is looked at
    assert seen["end_s"] - seen["start_s"] == pytest.approx(17 * 60 + 8.4, abs=0.1)


def test_the_log_of_one_rank_may_bear_that_ranks_prefix(run: Run, tmp_path: Path) -> None:
    seen = run(write(tmp_path, "rank-3.log", steps(1, 30, 7200) + WATCHDOG.format(3)))
    assert (seen["size"], seen["ended"]["verdict"]["rank"]) == (1, 0)


def test_out_of_gpu_memory_is_not_restarted(run: Run, tmp_path: Path) -> None:
    seen = run(write(tmp_path, "train.log", steps(1, 8, 0) + OOM), "--exit-code", "1")
    end = seen["ended"]
    assert (end["verdict"]["failure"], end["verdict"]["cause"]) == ("cuda-oom", "user code")
    assert (end["outcome"], end["restarts_left"], seen["end"]) == ("Failed", 3, "given")
    assert "rank 0: exit code 1" in end["verdict"]["evidence"]


def test_lines_of_failures_that_the_job_survived_end_nothing(run: Run, tmp_path: Path) -> None:
    reset = "[2025-03-21 00:00:08] ConnectionResetError: [Errno 104] Connection reset by peer\n"
    seen = run(write(tmp_path, "train.log", steps(1, 8, 0) + reset + steps(9, 8, 9)))
    assert (seen["story"], seen["end"]) == ([], "unknown")
    assert {rule["rule"] for rule in seen["rules"]} >= {"connection-reset"}


@pytest.mark.parametrize(
    ("line", "rank", "failure", "exit"),
    [
        (
            "E0321 00:00:20.971000 3304089 site-packages/torch/distributed/elastic/multiprocessing/api.py:882] failed "
            "(exitcode: -11) local_rank: 1 (pid: 3304209) of binary: python3.12\n",
            1,
            "segfault",
            "killed by signal 11",
        ),
        (
            "srun: error: learnfair0824: task 1: Exited with exit code 1\n"
            "srun: launch/slurm: _step_signal: Terminating StepId=43575862.0\n"
            "srun: error: learnfair0824: tasks 0: Killed\n",
            1,
            "unknown",
            "exit code 1",
        ),
    ],
)
def test_what_a_launcher_says_of_an_exit_is_believed(
    run: Run, tmp_path: Path, line: str, rank: int, failure: str, exit: str
) -> None:
    zero = write(tmp_path, "rank-0.log", steps(1, 8, 0) + line)
    one = write(tmp_path, "rank-1.log", steps(1, 8, 0))
    seen = run(zero, one)
    verdict = seen["ended"]["verdict"]
    assert (seen["end"], verdict["rank"], verdict["failure"]) == ("log", rank, failure)
    assert f"rank {rank}: {exit}" in verdict["evidence"]


def test_exits_can_be_given_for_one_rank_or_for_all(run: Run, tmp_path: Path) -> None:
    zero = write(tmp_path, "0.log", steps(1, 8, 0))
    one = write(tmp_path, "1.log", steps(1, 8, 0))
    lost = run(zero, one, "--signal", "1=SEGV")["ended"]
    assert (lost["verdict"]["rank"], lost["verdict"]["failure"]) == (1, "segfault")
    done = run(zero, one, "--exit-code", "0")["ended"]
    assert (done["reason"], done["outcome"]) == ("Succeeded", "succeeded")


def test_runs_that_follow_each_other_in_one_log_are_told_apart(run: Run, tmp_path: Path) -> None:
    text = steps(1, 20, 0) + OOM + steps(11, 20, 60)
    (end,) = run(write(tmp_path, "train.log", text))["story"]
    assert (end["reason"], end["verdict"]["failure"], end["step"]) == ("RankLost", "cuda-oom", 20)


def test_no_restart_is_promised_once_the_budget_is_spent(run: Run, tmp_path: Path) -> None:
    gaps = "".join(steps(1 + 30 * n, 30, n * n * 20_000) for n in range(3))
    seen = run(
        write(tmp_path, "train.log", gaps), "--policy", policy(tmp_path, "  restart: {maxRestarts: 1}\n")
    )
    assert [(one["outcome"], one["restarts_left"]) for one in seen["story"]] == [
        ("Verifying", 0),
        ("Exhausted", 0),
    ]


# ---------------------------------------------------------------- what logs look like


@pytest.mark.parametrize(
    "prefix",
    ["[default{}]: ", "[rank {}] ", "[1,{}]<stdout>:", "{}: ", "2025-03-21T02:00:00.1Z stdout F [rank{}]: "],
)
def test_ranks_are_told_apart_by_the_prefix_of_their_lines(run: Run, tmp_path: Path, prefix: str) -> None:
    line = "this iteration hardware time is {} and e2e time is 2000.0 ms.\n"
    text = "".join(
        prefix.format(rank) + line.format(500.0 * (rank + 1)) for _ in range(30) for rank in range(3)
    )
    seen = run(write(tmp_path, "train.log", text))
    assert [(times["iterations"], times["ratio"]) for times in seen["ranks"]] == [
        (30, pytest.approx(0.25)),
        (30, pytest.approx(0.5)),
        (30, pytest.approx(0.75)),
    ]


def test_a_number_that_is_no_rank_makes_no_ranks(run: Run, tmp_path: Path) -> None:
    assert run(write(tmp_path, "train.log", "[rank 99999] of the list\n" + HARDWARE * 3))["size"] == 1


def test_a_container_log_is_known_by_itself_and_gives_the_time(run: Run, tmp_path: Path) -> None:
    text = "".join(
        f"2016-10-06T00:{n // 60:02}:{n % 60:02}.669794202Z stdout F completed step: {n}, seconds: 1.0\n"
        for n in [*range(40), *range(1000, 1010)]
    )
    seen = run(write(tmp_path, "0.log", text))
    assert seen["logs"][0]["cri"] is True
    assert seen["start_s"] == pytest.approx(1475712000.67, abs=0.01)
    assert [one["reason"] for one in seen["story"]] == ["Hang"]


def test_compressed_logs_and_standard_input_are_read_like_files(run: Run, tmp_path: Path) -> None:
    text = steps(1, 30, 0) + OOM
    plain = run(write(tmp_path, "train.log", text))
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(text.encode()))
    packed = run(tmp_path / "train.log.gz")
    piped = subprocess.run(
        [sys.executable, "-m", "sentinel", "replay", "-", "-o", "json"],
        input=text.encode(),
        capture_output=True,
        check=True,
        timeout=180,
    )
    del plain["logs"], packed["logs"]
    from_pipe = json.loads(piped.stdout)
    del from_pipe["logs"]
    assert plain == packed == from_pipe


def test_a_log_whose_beginning_was_given_back_to_the_disk_is_read_from_where_it_begins(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file:
        file.seek(1 << 20)
        file.write(b"half a line\n" + steps(5, 10, 0).encode())
    assert run(path)["job"]["first_step"] == 5


def test_names_order_and_options_tell_ranks(run: Run, tmp_path: Path) -> None:
    ten = [write(tmp_path, f"job-worker-{n}.txt", steps(n + 1, 1, 0)) for n in range(11)]
    named = run(*sorted(ten))  # worker-10 comes before worker-2
    assert [times["last_step"] for times in named["ranks"]] == list(range(1, 12))
    a, b = write(tmp_path, "a.txt", steps(7, 1, 0)), write(tmp_path, "b.txt", steps(8, 1, 0))
    assert [times["last_step"] for times in run(b, a)["ranks"]] == [8, 7]
    assert [times["last_step"] for times in run("-r", f"1={b}", "-r", f"0={a}")["ranks"]] == [7, 8]
    streams = [
        write(tmp_path, f"{n}/{name}.log", steps(9, 1, 0)) for n in (0, 1) for name in ("stderr", "stdout")
    ]
    assert [times["iterations"] for times in run(*streams)["ranks"]] == [2, 2]
    gap = run("-r", f"2={b}", a)
    assert gap["size"] == 3
    assert "no log of rank 1" in gap["notes"]


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom sentinel.cli import main\nmain(['replay', *sys.argv[1:]])\n"
        "print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')), file=sys.stderr)"
    )
    noise = (
        "[2025-03-21 00:00:01] rank 0 fetched shard 17 from the cache in 0.25 s, nothing else to tell\n" * 300
    )
    peaks = []
    for blocks in (20, 600):
        path = tmp_path / f"{blocks}.log"
        with path.open("w") as file:
            for n in range(blocks):
                file.write(noise + steps(n * 5 + 1, 5, n * 5))
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=100
        )
        peaks.append(int(done.stderr.split("VmHWM:")[1].split()[0]))
    assert peaks[1] - peaks[0] < 8_000  # kB, where the second log is 16 MB larger


# ---------------------------------------------------------------- whose log it is


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["0.log", "1.log", "10.log", *(f"{n}.log" for n in range(2, 10))], [0, 1, 10, *range(2, 10)]),
        (["job-1.out", "job-0.out"], [1, 0]),
        (["worker-7.txt.gz", "worker-3.txt"], [7, 3]),  # said by name: others' logs are lost
        (["slurm-4711.out", "slurm-4712.out"], [0, 1]),  # numbers of Slurm's jobs
        (["node-17.log", "node-40.log"], [0, 1]),
        (["1/stdout.log", "1/stderr.log", "0/stdout.log"], [1, 1, 0]),
        (["rank-1.log", "rank-1.err"], [0, 1]),
    ],
)
def test_ranks_are_told_by_names_that_can_be_those_of_ranks(
    tmp_path: Path, names: list[str], ranks: list[int]
) -> None:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(HARDWARE)
    logs, _ = replay._open([str(tmp_path / name) for name in names], [])
    assert [log.rank for log in logs] == ranks


# ---------------------------------------------------------------- bad input


def test_every_log_that_cannot_be_read_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path, "good.log", steps(1, 3, 0))
    (tmp_path / "core").write_bytes(b"\x7fELF\0\0\0\1")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 100_000)[:20])
    bad = [tmp_path / "missing.log", tmp_path / "core", tmp_path / "cut.gz", tmp_path]
    assert main(["replay", str(good), *map(str, bad)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    said = shown.err.splitlines()
    assert [path for path in bad if any(str(path) + ":" in line for line in said)] == bad
    assert "No such file" in said[0]
    assert "binary" in said[1]
    assert "folder" in said[3]


def test_an_empty_log_is_refused_but_one_silent_rank_is_only_noted(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write(tmp_path, "rank-1.log", "")
    assert main(["replay", str(empty)]) == 1
    assert f"{empty}: empty" in capsys.readouterr().err
    assert f"{empty}: empty" in run(write(tmp_path, "rank-0.log", steps(1, 3, 0)), empty)["notes"]


def test_a_log_that_tells_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(write(tmp_path, "notes.txt", "hello\nworld\n"))]) == 1
    assert "no iteration and no known line" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-r", "x=a.log"],
        ["a.log", "--exit-code", "999"],
        ["a.log", "--signal", "SIGNOTHING"],
        ["a.log", "--exit-code", "1", "--signal", "9"],
        ["-", "-"],
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *arguments]) == 64
    assert capsys.readouterr().err.startswith("sentinel: ")


def test_a_wrong_policy_is_refused_with_its_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path, "train.log", HARDWARE)
    assert main(["replay", str(log), "--policy", str(policy(tmp_path, "  hang: {after: 10}\n"))]) == 78
    assert "hang.after" in capsys.readouterr().err


def test_nothing_is_written_and_no_line_steers_the_terminal(tmp_path: Path) -> None:
    state = tmp_path / "state"
    log = write(tmp_path, "train.log", steps(1, 8, 0) + OOM.replace("CUDA", "\x07\x1b]0;owned\x07CUDA"))
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "replay", str(log)],
        env={**os.environ, "SENTINEL_STATE_DIR": str(state), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0
    assert "cuda-oom" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.log"]


RECORDS = Path(__file__).parents[1] / "cluster/records"


def test_flight_recorders_alone_name_the_rank_and_the_operation(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run("--flight-recorder", RECORDS / "different")["stuck"]
    assert (found["kind"], found["ranks"], found["group"], found["seq"]) == (
        "different",
        [3],
        "default_pg",
        4,
    )
    assert main(["replay", "--flight-recorder", str(tmp_path)]) == 1
    assert main(["replay", "--flight-recorder", str(tmp_path / "gone")]) == 1
    assert "gone: No such file or directory" in capsys.readouterr().err


def test_a_damaged_file_beside_the_records_of_flight_recorders_is_passed_over(
    run: Run, tmp_path: Path
) -> None:
    for record in (RECORDS / "different").iterdir():
        (tmp_path / record.name).write_bytes(record.read_bytes())
    packed = gzip.compress(b"a line\n" * 1000)
    (tmp_path / "old.log.gz").write_bytes(packed[:10] + b"\xff" * 20 + packed[30:])
    assert run("--flight-recorder", tmp_path)["stuck"]["ranks"] == [3]


def test_flight_recorders_beside_logs_decide_with_them(run: Run, tmp_path: Path) -> None:
    logs = [
        write(tmp_path, f"rank-{rank}.log", steps(1, 9, 7200) + WATCHDOG.format(rank)) for rank in range(4)
    ]
    seen = run(*logs, "--flight-recorder", RECORDS / "absent")
    assert seen["ended"]["verdict"]["rank"] == 2
    assert "rank 2 did not take part in all_reduce 4" in seen["ended"]["verdict"]["sentence"]
