"""`sentinel explain`: what was given is told apart, and the first cause is named with its file and line."""

import gzip
import json
import os
import random
import subprocess
import sys
import time
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli import main
from sentinel.explain import read as explain_read
from sentinel.logs.kernel_prefix import split_prefix
from tests.cli.test_replay import WATCHDOG, megatron, steps
from tests.cli.test_replay_kernel import FORMS, STORY

LOGS = Path(__file__).parent.parent / "logs"
ENDS = tomllib.loads((LOGS / "ends.toml").read_text())["end"]
KERNEL_LINES = [
    split_prefix(row["text"]).text for row in tomllib.loads((LOGS / "kernel_lines.toml").read_text())["line"]
]
OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4142, name=python, GPU has fallen off the bus."
CUDA = "RuntimeError: CUDA error: unspecified launch failure\n"
TRACEBACK = f'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n{CUDA}'
Explain = Callable[..., dict[str, Any]]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    def run(*words: object, code: int = 0) -> dict[str, Any]:
        assert main(["explain", *map(str, words), "-o", "json"]) == code
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return run


def kernel_logs(answer: dict[str, Any]) -> list[str]:
    return [path for kernel in answer["kernels"] for path in kernel["logs"]]


def codes(answer: dict[str, Any]) -> list[str]:
    return [fault["code"] for kernel in answer["kernels"] for fault in kernel["faults"]]


def kernel_line(at: str, text: str) -> str:
    return f"2025-03-21T{at}.500000 gpu-7 kernel: {text}\n"


def a_run(folder: Path, *, kernel: str = kernel_line("01:00:08", OFF_THE_BUS), end: str = TRACEBACK) -> Path:
    """Two ranks that make ten iterations in ten seconds; then rank 1 fails."""
    folder.mkdir(exist_ok=True)
    (folder / "rank-0.log").write_text(steps(100, 10, 3600))
    (folder / "rank-1.log").write_text(steps(100, 10, 3600) + end)
    if kernel:
        (folder / "kern.log").write_text(kernel)
    return folder


def test_a_folder_is_one_story_the_kernels_line_first_then_what_it_did_to_the_job(
    tmp_path: Path, explain: Explain
) -> None:
    answer = explain(a_run(tmp_path / "run"))
    (job,) = answer["jobs"]
    assert (job["ranks"], job["iterations"], job["last_step"]) == (2, 20, 109)
    assert job["sentence"] == (
        "Rank 1 was lost after iteration 109: CUDA error after GPU 0000:3b:00.0 fell off the bus (XID 79)."
    )
    verdict = job["verdict"]
    assert (verdict["cause"], verdict["scope"], verdict["rank"]) == ("gpu", "node", 1)
    assert (job["again"], job["restart"]) == ("yes", "yes, without GPU 0000:3b:00.0")
    assert job["change"] == verdict["advice"] != ""
    first, then = job["lines"]
    assert (Path(first["path"]).name, first["number"], first["stamped"]) == ("kern.log", 1, True)
    assert (first["what"], first["text"]) == ("GPU 0000:3b:00.0 XID 79", OFF_THE_BUS)
    assert (Path(then["path"]).name, then["number"], then["stamped"]) == ("rank-1.log", 13, False)
    assert then["what"] == "illegal-access, exception"
    assert job["notes"] == ["that rank 1 used GPU 0000:3b:00.0 is assumed: no log says which card it had"]
    assert codes(answer) == ["XID 79"]
    assert answer["skipped"] == []


def test_without_the_kernels_word_it_is_what_the_job_says(tmp_path: Path, explain: Explain) -> None:
    (job,) = explain(a_run(tmp_path / "run", kernel=""))["jobs"]
    assert (job["verdict"]["failure"], job["again"]) == ("illegal-access", "once")
    assert job["restart"] == "once: if it comes again it is the program's own"


PREEMPTED = (
    "slurmstepd: error: *** JOB 4711 ON gpu-7 CANCELLED AT 2025-03-21T01:00:10 DUE TO PREEMPTION ***\n"
)
FULL = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
IMPORT = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n"
HUB = (
    "Traceback (most recent call last):\nrequests.exceptions.ConnectionError: HTTPSConnectionPool("
    "host='api.wandb.ai', port=443): Max retries exceeded with url: /graphql\n"
)


@pytest.mark.parametrize(
    ("at", "end"),
    [
        ("00:20:00", TRACEBACK),  # long before
        ("00:59:58", TRACEBACK),  # just before: the job began after it
        ("01:00:05", TRACEBACK),  # the rank made iterations after it
        ("01:00:15", TRACEBACK),  # after the end
        ("02:00:00", TRACEBACK),  # long after
        *(("01:00:08", end) for end in (PREEMPTED, FULL, IMPORT, HUB)),
    ],
)
def test_a_fault_of_another_time_or_beside_an_end_that_no_card_makes_is_not_blamed(
    tmp_path: Path, explain: Explain, at: str, end: str
) -> None:
    folder = a_run(tmp_path / "run", kernel=kernel_line(at, OFF_THE_BUS), end=end)
    answer = explain(folder)
    (job,) = answer["jobs"]
    assert job["verdict"]["cause"] != "gpu"
    assert "assumed" not in json.dumps(job["notes"])
    assert codes(answer) == ["XID 79"], "it is told all the same"
    (folder / "kern.log").unlink()
    (alone,) = explain(folder)["jobs"]
    assert alone["verdict"] == job["verdict"]


@pytest.mark.parametrize(
    ("code", "failure"),
    [(79, "gpu-hardware"), (119, "gpu-hardware"), (48, "gpu-ecc"), (94, "gpu-ecc"), (74, "nvlink")],
)
def test_each_fault_of_a_card_is_named_as_in_a_job_that_runs(
    tmp_path: Path, explain: Explain, code: int, failure: str
) -> None:
    text = f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=4142, name=python, it failed"
    (job,) = explain(a_run(tmp_path / "run", kernel=kernel_line("01:00:08", text)))["jobs"]
    assert (job["verdict"]["failure"], job["verdict"]["entity"]) == (failure, "GPU 0000:3b:00.0")


@pytest.mark.parametrize("code", [31, 13, 43])
def test_what_may_be_the_programs_own_changes_nothing_about_its_verdict(
    tmp_path: Path, explain: Explain, code: int
) -> None:
    text = f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=4142, name=python, Ch 00000008"
    answer = explain(a_run(tmp_path / "run", kernel=kernel_line("01:00:09", text)))
    (job,) = answer["jobs"]
    assert (job["verdict"]["failure"], job["again"]) == ("illegal-access", "once")
    assert "before" not in job["verdict"]["confidence"], "its own end is no past of it"
    assert [line["what"] for line in job["lines"]] == [
        f"GPU 0000:3b:00.0 XID {code}",
        "illegal-access, exception",
    ]


def test_a_fault_that_comes_again_counts_when_it_came_last(tmp_path: Path, explain: Explain) -> None:
    before = kernel_line("01:00:01", OFF_THE_BUS).replace("2025-03-21", "2025-03-20")
    folder = a_run(tmp_path / "run", kernel=before + kernel_line("01:00:08", OFF_THE_BUS))
    (job,) = explain(folder)["jobs"]
    assert job["verdict"]["cause"] == "gpu"
    assert job["lines"][0]["at_s"] > job["start_s"]


def test_of_logs_of_several_kernels_no_card_is_taken_for_a_ranks(tmp_path: Path, explain: Explain) -> None:
    folder = a_run(tmp_path / "run")
    (folder / "kern-gpu-8.log").write_text(kernel_line("01:00:07", OFF_THE_BUS).replace("gpu-7", "gpu-8"))
    answer = explain(folder)
    (job,) = answer["jobs"]
    assert job["verdict"]["failure"] == "illegal-access"
    assert job["notes"] == ["logs of several kernels: which rank ran on which of their nodes no log says"]
    assert [kernel["logs"] for kernel in answer["kernels"]] == [
        [str(folder / "kern-gpu-8.log")],
        [str(folder / "kern.log")],
    ]
    (folder / "kern-gpu-8.log").rename(folder / "kern.log.1")  # of the same kernel, an older one
    assert len(explain(folder)["kernels"]) == 1


def test_what_cannot_be_put_on_one_clock_is_said(tmp_path: Path, explain: Explain) -> None:
    folder = a_run(tmp_path / "run", kernel=f"[12345.678901] {OFF_THE_BUS}\n")
    (job,) = explain(folder)["jobs"]
    assert job["verdict"]["failure"] == "illegal-access"
    assert "tells the time since a boot alone" in job["notes"][0]
    (folder / "kern.log").write_text(kernel_line("03:00:08", OFF_THE_BUS))
    (job,) = explain(folder)["jobs"]
    assert job["notes"] == [
        "GPU 0000:3b:00.0 XID 79 is 2 h off its end to the minute: is one clock another time zone's?"
    ]


def test_of_a_log_that_just_stops_it_is_told_what_may_have_stopped_it(
    tmp_path: Path, explain: Explain
) -> None:
    (job,) = explain(a_run(tmp_path / "run", end=""))["jobs"]
    assert job["verdict"] is None
    assert job["notes"] == ["GPU 0000:3b:00.0 XID 79 came 0.5 s before its last line"]


def test_a_node_that_started_anew_after_the_last_line_is_told(tmp_path: Path, explain: Explain) -> None:
    booted = kernel_line("01:01:00", "Linux version 6.8.0-45-generic")
    folder = a_run(tmp_path / "run", kernel=kernel_line("00:50:00", "usb 1-1: new device") + booted, end="")
    (job,) = explain(folder)["jobs"]
    assert job["verdict"] is None
    assert job["notes"] == [f"the node of {folder / 'kern.log'} started anew 52 s after its last line"]


def test_a_log_without_times_and_a_kernel_log_are_not_put_on_one_clock(
    tmp_path: Path, explain: Explain
) -> None:
    (tmp_path / "job.log").write_text("iteration 1\n" + TRACEBACK)
    (tmp_path / "kern.log").write_text(kernel_line("01:00:08", OFF_THE_BUS))
    answer = explain(tmp_path)
    (job,) = answer["jobs"]
    assert job["verdict"]["failure"] == "illegal-access"
    assert [line["at_s"] for line in job["lines"]] == [None]
    assert "which of it and the kernel's log came first is not known" in job["notes"][0]
    assert codes(answer) == ["XID 79"]


def test_every_known_end_is_the_log_of_a_job_and_is_explained_as_everywhere(
    tmp_path: Path, explain: Explain
) -> None:
    """As tests/logs/test_ends.py has it, where an exit without a signal is what ended it."""
    ends = {f"job{chr(97 + number // 26)}{chr(97 + number % 26)}.out": end for number, end in enumerate(ENDS)}
    for name, end in ends.items():
        (tmp_path / name).write_text(end["log"].lstrip("\n"))
    answer = explain(tmp_path, "--exit-code", "1")
    assert (kernel_logs(answer), len(answer["jobs"])) == ([], len(ends))
    wrong = {}
    for job in answer["jobs"]:
        end = ends[Path(job["logs"][0]).name]
        if "signal" not in end and job["verdict"]["failure"] != end["failure"]:
            wrong[end["name"]] = job["verdict"]["failure"]
    assert wrong == {}


def test_every_known_kernel_line_is_a_kernel_log_in_each_form(tmp_path: Path, explain: Explain) -> None:
    forms = (
        "[ 1234.567890] {}",
        "<4>[ 1234.567890] {}",
        "Nov 26 03:12:07 gpu-7 kernel: [ 1234.567890] {}",
        "2026-11-26T03:12:07.123456+00:00 gpu-7 kernel: {}",
        "2026-11-26T03:12:07,123456+00:00 {}",
        "[Thu Nov 26 03:12:07 2026] {}",
        "4,1234,1234567890,-;{}",
    )
    for number, line in enumerate(KERNEL_LINES):
        for kind, form in enumerate(forms):
            (tmp_path / f"{number}-of-{kind}.txt").write_text(form.format(line) + "\n")
    answer = explain(tmp_path)
    assert [job["logs"] for job in answer["jobs"]] == []
    assert len(kernel_logs(answer)) == len(KERNEL_LINES) * len(forms)


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_saved_kernel_logs_are_known(form: str, tmp_path: Path, explain: Explain) -> None:
    path = tmp_path / "saved"
    path.write_text("".join(FORMS[form](*line) + "\n" for line in STORY))
    assert kernel_logs(explain(path)) == [str(path)]


@pytest.mark.parametrize(
    "text",
    [
        '{"msg": "step 1", "time": "2026-11-27T03:12:07Z", "level": "info"}\n' * 3,
        '{"pri": "info", "msg": "step 1"}\n' * 3,
        "[12.000001] step 1\n" * 3,
        "2026-11-27T03:12:07Z INFO compiled a kernel: mm\n" * 3,
        "2026-11-27T03:12:07Z stdout F iteration 1\n" * 3,
        "2026-11-27 03:12:07,123 INFO step 1\n" * 3,
        "[1700000000.123456] [gpu-7:42:0]  ucp_context.c:1470 UCX  WARN  UCP version is incompatible\n" * 3,
        "[2026-11-27 03:12:07] iteration 1\n" * 3,
        megatron(1, "01:00:00") * 3,
    ],
)
def test_what_only_bears_a_time_is_the_log_of_a_job(text: str, tmp_path: Path, explain: Explain) -> None:
    (tmp_path / "out").write_text(text + "\n")
    answer = explain(tmp_path / "out", code=0 if "elapsed time" in text else 1)
    assert (kernel_logs(answer), len(answer["jobs"])) == ([], 1)


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (("rank-0.log", "rank-1.log"), [2]),
        (("llama-worker-0.txt", "llama-worker-1.txt", "llama-worker-2.txt"), [3]),
        (("rank_1.log", "rank_3.log", "rank_2.log"), [4]),  # that of rank 0 is missing
        (("a-rank-0.log", "a-rank-1.log", "b-rank-0.log", "b-rank-1.log"), [2, 2]),
        (("rank-0.log", "rank-1.log", "launcher.log"), [1, 2]),
        (("slurm-123.out", "slurm-124.out"), [1, 1]),
        (("slurm-4815162_0.out", "slurm-4815162_1.out"), [1, 1]),
        (("run-1.log", "run-2.log"), [1, 1]),
        (("gpu-7.log", "gpu-8.log"), [1, 1]),
        (("task-41.log", "task-977.log"), [1, 1]),
        (("train.out", "train.err"), [1]),
    ],
)
def test_which_logs_are_one_job(
    names: tuple[str, ...], sizes: list[int], tmp_path: Path, explain: Explain
) -> None:
    for name in names:
        (tmp_path / name).write_text(steps(1, 5, 3600))
    assert sorted(job["ranks"] for job in explain(tmp_path)["jobs"]) == sizes
    assert sorted(job["ranks"] for job in explain(*(tmp_path / name for name in names))["jobs"]) == sizes


def test_torchruns_folders_are_the_ranks_of_one_job_and_its_stderr_needs_no_times(
    tmp_path: Path, explain: Explain
) -> None:
    for rank in range(3):
        place = tmp_path / f"attempt_0/{rank}"
        place.mkdir(parents=True)
        (place / "stdout.log").write_text(steps(1, 5, 3600))
        (place / "stderr.log").write_text(TRACEBACK if rank == 1 else "\n")
    (job,) = explain(tmp_path)["jobs"]
    assert (job["ranks"], job["verdict"]["rank"], job["again"]) == (3, 1, "once")
    (line,) = job["lines"]
    assert (line["path"], line["number"]) == (str(tmp_path / "attempt_0/1/stderr.log"), 3)


def test_of_600_ranks_the_one_that_says_nothing_is_found(tmp_path: Path, explain: Explain) -> None:
    for rank in range(600):
        text = WATCHDOG.format(rank) if rank != 7 else "\n"
        (tmp_path / f"rank-{rank}.log").write_text(steps(1, 2, 3600) + text)
    (job,) = explain(tmp_path)["jobs"]
    assert (job["ranks"], job["verdict"]["failure"], job["verdict"]["rank"]) == (600, "nccl-timeout", 7)


def test_packed_logs_are_read_and_what_is_no_log_is_named(tmp_path: Path, explain: Explain) -> None:
    (tmp_path / "rank-0.log.gz").write_bytes(gzip.compress((steps(1, 5, 3600) + TRACEBACK).encode()))
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\0\0\0\0" * 100)
    (tmp_path / "kern.log.xz").write_bytes(b"\xfd7zXZ\0rest")
    (tmp_path / "empty.log").write_text("")
    (tmp_path / ".hidden.log").write_text(TRACEBACK)
    (tmp_path / "link.log").symlink_to("nowhere")
    (tmp_path / "again.log.gz").symlink_to("rank-0.log.gz")  # told once
    os.mkfifo(tmp_path / "pipe.log")
    answer = explain(tmp_path)
    (job,) = answer["jobs"]
    assert (job["verdict"]["failure"], job["lines"][0]["number"]) == ("illegal-access", 8)
    why = {Path(one["path"]).name: one["why"] for one in answer["skipped"]}
    assert why == {
        "model.pt": "binary, not a log",
        "kern.log.xz": "packed by xz: unpack it first (xz -dc)",
        "empty.log": "empty",
        "link.log": "No such file or directory",
    }


def test_of_a_packed_log_that_was_cut_off_what_there_is_counts(tmp_path: Path, explain: Explain) -> None:
    packed = gzip.compress((steps(1, 2000, 3600) + TRACEBACK).encode(), 0)
    (tmp_path / "train.log.gz").write_bytes(packed[: len(packed) // 2])
    kernel = gzip.compress((kernel_line("01:00:08", OFF_THE_BUS) * 2000).encode(), 0)
    (tmp_path / "kern.log.gz").write_bytes(kernel[: len(kernel) // 2])
    answer = explain(tmp_path)
    (job,) = answer["jobs"]
    assert 100 < job["iterations"] < 2000
    assert "train.log.gz is cut off; what could be unpacked was read" in job["notes"][0]
    assert codes(answer) == ["XID 79"]


def test_of_a_damaged_packed_log_it_is_said_what_is_wrong(
    tmp_path: Path, explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = gzip.compress(steps(1, 50, 3600).encode())
    (tmp_path / "train.log.gz").write_bytes(packed[:10] + b"\xff" * 200)
    (skipped,) = explain(tmp_path, code=1)["skipped"]
    assert "invalid block type" in skipped["why"]
    assert main(["replay", str(tmp_path / "train.log.gz")]) == 1
    assert "train.log.gz: Error -3 while decompressing data: invalid block type" in capsys.readouterr().err


def test_a_kernel_log_of_a_machine_that_lost_its_power_is_read(tmp_path: Path, explain: Explain) -> None:
    (tmp_path / "kern.log").write_bytes(b"\0" * 4000 + kernel_line("01:00:08", OFF_THE_BUS).encode() * 3)
    assert codes(explain(tmp_path)) == ["XID 79"]


@pytest.mark.parametrize("before", [b"\0" * 4000, b"\0" * 200_000])
@pytest.mark.parametrize("between", [b"", b"\0" * 3000])
def test_a_log_of_a_job_whose_machine_lost_its_power_is_read(
    tmp_path: Path, explain: Explain, before: bytes, between: bytes
) -> None:
    (tmp_path / "train.log").write_bytes(
        before + b"rest of a line\n" + steps(1, 5, 3600).encode() + between + TRACEBACK.encode() + b"\0" * 900
    )
    (job,) = explain(tmp_path)["jobs"]
    assert (job["iterations"], job["verdict"]["failure"]) == (5, "illegal-access")


@pytest.mark.parametrize("code", ["utf-16", "gbk", "latin-1"])
def test_a_log_in_another_code_is_text(tmp_path: Path, explain: Explain, code: str) -> None:
    words = "größe übergeben\n" if code == "latin-1" else "训练 开始 epoch 1\n"
    (tmp_path / "train.log").write_bytes((words + steps(1, 5, 3600) + TRACEBACK).encode(code))
    (job,) = explain(tmp_path)["jobs"]
    assert (job["iterations"], job["verdict"]["failure"]) == (5, "illegal-access")


@pytest.mark.parametrize(
    "share", [random.Random(7).randbytes(5000), bytes(range(256)) * 20], ids=["packed", "any"]
)
def test_packed_data_is_no_text(tmp_path: Path, explain: Explain, share: bytes) -> None:
    (tmp_path / "shard-0").write_bytes(share)
    (skipped,) = explain(tmp_path, code=1)["skipped"]
    assert skipped["why"] == "binary, not a log"


def test_of_a_kernel_log_that_breaks_off_what_stands_before_counts(tmp_path: Path, explain: Explain) -> None:
    packing = zlib.compressobj(wbits=31)
    lines = (kernel_line("01:00:08", OFF_THE_BUS) * 3000).encode()
    whole = packing.compress(lines) + packing.flush(zlib.Z_FULL_FLUSH)
    (tmp_path / "kern.log.gz").write_bytes(whole + b"\xff" * 5000)  # there is no such kind of block
    answer = explain(tmp_path)
    assert (codes(answer), answer["skipped"]) == (["XID 79"], [])
    (note,) = answer["notes"]
    assert note.startswith(f"{tmp_path / 'kern.log.gz'}: damaged: Error -3 while decompressing data: ")
    assert note.endswith("; what stands before that was read")


def test_a_copy_of_an_old_syslog_that_kept_its_time_is_on_one_clock_with_its_job(
    tmp_path: Path, explain: Explain
) -> None:
    (tmp_path / "train.log").write_text(steps(1, 8, 3600) + TRACEBACK)
    path = tmp_path / "messages"
    path.write_text(f"Mar 21 01:00:08 gpu-7 kernel: [  12.5] {OFF_THE_BUS}\n")
    os.utime(path, (time.time(), time.mktime((2025, 4, 2, 0, 0, 0, 0, 0, -1))))
    (job,) = explain(tmp_path)["jobs"]
    assert job["verdict"]["failure"] == "gpu-hardware"


def test_a_syslog_of_all_programs_is_a_kernel_log(tmp_path: Path, explain: Explain) -> None:
    other = "Mar 21 01:00:00 gpu-7 sshd[42]: Accepted publickey for anna\n" * 5
    (tmp_path / "syslog").write_text(
        other + f"Mar 21 01:00:08 gpu-7 kernel: [  12.5] {OFF_THE_BUS}\n" + other
    )
    answer = explain(tmp_path)
    assert (answer["jobs"], codes(answer)) == ([], ["XID 79"])


def test_a_pipe_is_not_waited_for_and_what_it_is_for_is_said(tmp_path: Path, explain: Explain) -> None:
    os.mkfifo(tmp_path / "pipe")
    (skipped,) = explain(tmp_path / "pipe", code=1)["skipped"]
    assert skipped["why"] == "a pipe; give what it holds as standard input: … | sentinel explain -"


def test_more_files_than_may_be_open_are_counted(
    tmp_path: Path, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_read, "MAX_FILES", 3)
    for number in "abcde":
        (tmp_path / f"{number}.log").write_text(steps(1, 5, 3600))
    answer = explain(tmp_path)
    assert len(answer["jobs"]) == 3
    (skipped,) = answer["skipped"]
    assert skipped["why"] == f"more than 3 files: those from {tmp_path / 'd.log'} on were not read"


def test_of_more_ranks_than_may_be_open_the_first_are_read(
    tmp_path: Path, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_read, "MAX_FILES", 11)
    for rank in range(30):
        (tmp_path / f"rank-{rank}.log").write_text(steps(1, 5, 3600) + (TRACEBACK if rank == 10 else ""))
    answer = explain(tmp_path)
    (job,) = answer["jobs"]
    assert (job["ranks"], job["verdict"]["rank"]) == (11, 10)
    assert f"those from {tmp_path / 'rank-11.log'} on were not read" in answer["skipped"][0]["why"]


def test_the_line_is_where_it_ends_and_not_where_it_is_quoted(tmp_path: Path, explain: Explain) -> None:
    (tmp_path / "a.log").write_text(f"on_error='{CUDA.strip()}'\n" + steps(1, 5, 3600) + TRACEBACK)
    (job,) = explain(tmp_path)["jobs"]
    assert [line["number"] for line in job["lines"]] == [9]


def test_an_end_that_no_line_tells_is_not_explained_by_what_a_policy_says(
    tmp_path: Path, explain: Explain
) -> None:
    (tmp_path / "a.log").write_text(steps(1, 5, 3600) + "srun: Job step aborted: Waiting up to 32 seconds.\n")
    (job,) = explain(tmp_path)["jobs"]
    assert job["sentence"] == "Its log does not say why it ended; `--exit-code N` tells what it ended with."
    assert (job["restart"], job["change"]) == ("", "")


def test_nothing_that_is_known_is_said_and_ends_with_one(
    tmp_path: Path, explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("hello\n")
    assert main(["explain", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().out == f"nothing is known in: {tmp_path / 'out'}\n"
    (job,) = explain(tmp_path / "out", code=1)["jobs"]
    assert (job["verdict"], job["sentence"]) == (None, "Its log tells of no failure.")
    assert explain(tmp_path / "gone", code=1)["skipped"] == [
        {"path": str(tmp_path / "gone"), "why": "No such file or directory"}
    ]
    assert main(["explain", "-", "-"]) == 64
    assert "only once" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["explain", "x", "--exit-code", "256"])


def test_a_healthy_log_and_a_kernel_log_without_a_fault_say_so(
    tmp_path: Path, explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank-0.log").write_text(steps(1, 50, 3600))
    (tmp_path / "dmesg").write_text(
        "[    1.000000] Linux version 6.8.0\n[    2.000000] usb 1-1: new device\n"
    )
    answer = explain(tmp_path)
    assert (answer["jobs"][0]["verdict"], codes(answer)) == (None, [])
    assert main(["explain", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "Its log tells of no failure." in text
    assert "dmesg: no fault is known in it." in text


def test_hostile_lines_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b[2J\u202e"
    (tmp_path / f"rank-0{bad}.log").write_text(
        f"Traceback (most recent call last):\nRuntimeError: CUDA error: {bad}\n"
    )
    assert main(["explain", str(tmp_path)]) == 0
    assert not {"\x1b", "\u202e"} & set(capsys.readouterr().out)


def test_the_text_says_cause_restart_and_what_to_do_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "run"]) == 0
    text = capsys.readouterr().out
    for said in (
        "run/rank-0.log, run/rank-1.log: 2 ranks, 20 iterations, the last is step 109, over 9.0s\n",
        "  cause      gpu; class gpu-hardware; of the node, rank 1\n",
        "  restart    yes, without GPU 0000:3b:00.0\n",
        "  to do      Keep the GPU out of use",
        "run/kern.log:1  GPU 0000:3b:00.0 XID 79\n",
        "run/rank-1.log:13  illegal-access, exception\n        RuntimeError: CUDA error",
        "run/kern.log: 1 distinct fault, the worst first\n",
    ):
        assert said in text, f"{said!r} not in\n{text}"


@pytest.mark.parametrize("text", [steps(1, 5, 3600) + TRACEBACK, kernel_line("01:00:08", OFF_THE_BUS)])
def test_standard_input_is_either(tmp_path: Path, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "explain", "-", "-o", "json"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"SENTINEL_STATE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if "Traceback" in text:
        (job,) = answer["jobs"]
        assert (job["verdict"]["failure"], job["lines"][0]["number"]) == ("illegal-access", None)
    else:
        assert (answer["jobs"], codes(answer)) == ([], ["XID 79"])


def test_what_the_job_had_lived_through_before_is_told_after_it(tmp_path: Path, explain: Explain) -> None:
    """A launcher that started its ranks again: the last end is the one that is asked for."""
    first = steps(1, 10, 3600) + TRACEBACK
    (tmp_path / "rank-0.log").write_text(first + steps(5, 10, 3700) + "MemoryError\n")
    (job,) = explain(tmp_path)["jobs"]
    assert job["last_step"] == 14
    assert any("CUDA" in one or "GPU memory" in one for one in job["earlier"]), job


# ---------------------------------------------------------------- flight recorders

RECORDS = Path(__file__).parents[1] / "cluster/records"
TIMED_OUT = "this iteration hardware time is 10.5 and e2e time is 20.5 ms.\n" * 3 + WATCHDOG.format(0)
MISSING = (
    "Rank 2 did not take part in all_reduce 4 of group default_pg, in which 3 ranks wait, called at step "
)


def timed_out(folder: Path) -> Path:
    for rank in range(4):
        (folder / f"rank-{rank}.log").write_text(TIMED_OUT)
        record = (RECORDS / "absent" / f"rank-{rank}").read_bytes()
        (folder / f"flight-rank-{rank}").write_bytes(gzip.compress(record) if rank == 3 else record)
    return folder


def test_a_folder_of_records_alone_tells_who_is_missing(
    explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = explain(RECORDS / "absent")
    (records,) = answer["records"]
    assert (answer["jobs"], records["ranks"]) == ([], [0, 1, 2, 3])
    assert (records["stuck"]["kind"], records["stuck"]["ranks"]) == ("absent", [2])
    assert main(["explain", str(RECORDS / "absent")]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{RECORDS / 'absent'}: flight recorders of ranks 0-3\n\n{MISSING}")


def test_records_beside_its_logs_explain_a_job_that_only_says_that_it_waited(
    tmp_path: Path, explain: Explain
) -> None:
    (job,) = explain(timed_out(tmp_path))["jobs"]
    assert (job["verdict"]["rank"], job["verdict"]["failure"]) == (2, "nccl-timeout")
    assert MISSING[1:] in job["sentence"]


def test_records_of_another_folder_are_not_those_of_one_of_two_jobs(tmp_path: Path, explain: Explain) -> None:
    for name in ("one", "two", "records"):
        (tmp_path / name).mkdir()
    timed_out(tmp_path / "one")
    for record in (tmp_path / "one").glob("flight-*"):
        record.rename(tmp_path / "records" / record.name)
    (tmp_path / "two" / "other.log").write_text(TIMED_OUT)
    answer = explain(tmp_path)
    assert all(MISSING[1:] not in job["sentence"] for job in answer["jobs"])
    assert answer["records"][0]["stuck"]["ranks"] == [2]


def test_records_of_each_start_are_those_of_its_own_logs(tmp_path: Path, explain: Explain) -> None:
    for name, kind in (("1", "different"), ("2", "absent")):
        (tmp_path / name).mkdir()
        timed_out(tmp_path / name)
        for rank in range(4):
            record = (RECORDS / kind / f"rank-{rank}").read_bytes()
            (tmp_path / name / f"flight-rank-{rank}").write_bytes(record)
    told = {job["logs"][0].split("/")[-2]: job["verdict"]["rank"] for job in explain(tmp_path)["jobs"]}
    assert told == {"1": 3, "2": 2}


def test_a_log_that_names_what_records_hold_is_a_log(tmp_path: Path, explain: Explain) -> None:
    (tmp_path / "train.log").write_text('{"pg_status": "up", "pg_config": {"host": "db"}}\n' + TRACEBACK)
    answer = explain(tmp_path / "train.log")
    assert (len(answer["jobs"]), answer["records"]) == (1, [])


def test_a_record_that_asks_for_code_is_refused_by_name(tmp_path: Path, explain: Explain) -> None:
    timed_out(tmp_path)
    asks = b"\x80\x02}q\x00(X\x09\x00\x00\x00pg_configcposix\nsystem\nX\x02\x00\x00\x00idu."
    (tmp_path / "flight-rank-2").write_bytes(asks)
    (records,) = explain(tmp_path)["records"]
    assert records["ranks"] == [0, 1, 3]
    assert records["notes"] == [
        f"{tmp_path}/flight-rank-2: it asks for posix.system, which no flight recorder writes: not read"
    ]
