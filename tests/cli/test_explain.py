"""`sentinel explain`: what was given is told apart, and the first cause is named with its file and line."""

import gzip
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli import main
from tests.cli.test_replay import WATCHDOG, megatron, steps
from tests.cli.test_replay_kernel import FORMS, STORY

LOGS = Path(__file__).parent.parent / "logs"
ENDS = tomllib.loads((LOGS / "ends.toml").read_text())["end"]
KERNEL_LINES = [row["text"] for row in tomllib.loads((LOGS / "kernel_lines.toml").read_text())["line"]]
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
    assert [fault["code"] for fault in answer["faults"]] == ["XID 79"]
    assert answer["skipped"] == []


def test_without_the_kernels_word_it_is_what_the_job_says(tmp_path: Path, explain: Explain) -> None:
    (job,) = explain(a_run(tmp_path / "run", kernel=""))["jobs"]
    assert (job["verdict"]["failure"], job["again"]) == ("illegal-access", "once")
    assert job["restart"] == "once: if it comes again it is the program's own"


@pytest.mark.parametrize(
    ("at", "end"),
    [
        ("00:20:00", TRACEBACK),  # long before
        ("02:00:00", TRACEBACK),  # long after
        ("01:00:08", "Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n"),
    ],
)
def test_a_fault_of_another_time_or_beside_a_mistake_of_the_program_is_not_blamed(
    tmp_path: Path, explain: Explain, at: str, end: str
) -> None:
    answer = explain(a_run(tmp_path / "run", kernel=kernel_line(at, OFF_THE_BUS), end=end))
    (job,) = answer["jobs"]
    assert job["verdict"]["cause"] != "gpu"
    assert "GPU 0000:3b:00.0" not in json.dumps(job["notes"])
    assert [fault["code"] for fault in answer["faults"]] == ["XID 79"], "it is told all the same"


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
    assert len(answer["faults"]) == 1


def test_every_known_end_is_the_log_of_a_job_and_is_explained_as_everywhere(
    tmp_path: Path, explain: Explain
) -> None:
    """As tests/logs/test_ends.py has it, where an exit without a signal is what ended it."""
    ends = {f"job{chr(97 + number // 26)}{chr(97 + number % 26)}.out": end for number, end in enumerate(ENDS)}
    for name, end in ends.items():
        (tmp_path / name).write_text(end["log"].lstrip("\n"))
    answer = explain(tmp_path, "--exit-code", "1")
    assert (answer["kernel_logs"], len(answer["jobs"])) == ([], len(ends))
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
    assert len(answer["kernel_logs"]) == len(KERNEL_LINES) * len(forms)


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_saved_kernel_logs_are_known(form: str, tmp_path: Path, explain: Explain) -> None:
    path = tmp_path / "saved"
    path.write_text("".join(FORMS[form](*line) + "\n" for line in STORY))
    assert explain(path)["kernel_logs"] == [str(path)]


@pytest.mark.parametrize(
    "text",
    [
        '{"msg": "step 1", "time": "2026-11-27T03:12:07Z", "level": "info"}\n' * 3,
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
    assert (answer["kernel_logs"], len(answer["jobs"])) == ([], 1)


def test_files_whose_names_tell_ranks_are_one_job_and_others_are_jobs_of_their_own(
    tmp_path: Path, explain: Explain
) -> None:
    folder = a_run(tmp_path / "run", kernel="")
    (job,) = explain(folder / "rank-0.log", folder / "rank-1.log")["jobs"]
    assert job["ranks"] == 2
    for name in ("train-a.out", "train-b.out"):
        (tmp_path / name).write_text(steps(1, 5, 3600))
    assert [one["ranks"] for one in explain(tmp_path / "train-a.out", tmp_path / "train-b.out")["jobs"]] == [
        1,
        1,
    ]
    assert sorted(one["ranks"] for one in explain(tmp_path)["jobs"]) == [1, 1, 2]


def test_torchruns_folders_are_the_ranks_of_one_job(tmp_path: Path, explain: Explain) -> None:
    for rank in range(3):
        place = tmp_path / f"attempt_0/{rank}"
        place.mkdir(parents=True)
        (place / "stdout.log").write_text(steps(1, 5, 3600))
        (place / "stderr.log").write_text(WATCHDOG.format(rank) if rank else "\n")
    (job,) = explain(tmp_path)["jobs"]
    assert (job["ranks"], job["verdict"]["failure"]) == (3, "nccl-timeout")


def test_packed_logs_are_read_and_what_is_no_log_is_named(tmp_path: Path, explain: Explain) -> None:
    (tmp_path / "rank-0.log.gz").write_bytes(gzip.compress((steps(1, 5, 3600) + TRACEBACK).encode()))
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\0\0\0\0" * 100)
    (tmp_path / "kern.log.xz").write_bytes(b"\xfd7zXZ\0rest")
    (tmp_path / "empty.log").write_text("")
    (tmp_path / ".hidden.log").write_text(TRACEBACK)
    (tmp_path / "link.log").symlink_to("nowhere")
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


def test_nothing_that_is_known_is_said_and_ends_with_one(
    tmp_path: Path, explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("hello\n")
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
    assert (answer["jobs"][0]["verdict"], answer["faults"]) == (None, [])
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


def test_standard_input_is_the_log_of_a_job(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "explain", "-", "-o", "json"],
        input=steps(1, 5, 3600) + TRACEBACK,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"SENTINEL_STATE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["verdict"]["failure"], job["lines"][0]["number"]) == ("illegal-access", None)


def test_what_the_job_had_lived_through_before_is_told_after_it(tmp_path: Path, explain: Explain) -> None:
    """A launcher that started its ranks again: the last end is the one that is asked for."""
    first = steps(1, 10, 3600) + TRACEBACK
    (tmp_path / "rank-0.log").write_text(first + steps(5, 10, 3700) + "MemoryError\n")
    (job,) = explain(tmp_path)["jobs"]
    assert job["last_step"] == 14
    assert any("CUDA" in one or "GPU memory" in one for one in job["earlier"]), job
