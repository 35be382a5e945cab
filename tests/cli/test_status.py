"""`sentinel status` on real state files, beside a real page of a living Sentinel."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from sentinel.cli import status
from sentinel.cluster.local.processes import read_proc
from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import JobEvent, JobState, Launch, Phase
from sentinel.local_run import presence
from sentinel.service.control import Presence, write_presence
from sentinel.web.view import View
from tests.cli.watched import LONG, STEERING, Watched, steered
from tests.waits import until
from tests.web import samples
from tests.web.test_server import Running


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with one running and one ended job."""
    store = LocalStore(tmp_path / "state.db")
    store.save(
        jobs=(
            samples.job(),
            samples.job(name="bert", state=JobState.SUCCEEDED, degraded=(), sentence="Done.", exit_code=0),
        ),
        incidents=(samples.incident(1, Phase.EXHAUSTED), samples.incident(2)),
        events=samples.events(),
    )
    store.close()
    for name in ("llama-7b", "bert"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    return tmp_path


def run(state: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    status.add_arguments(parser)
    return status.main(parser.parse_args(["--state-dir", str(state), *words]))


def protect(state: Path, name: str, url: str, start_ticks: int | None = None) -> None:
    """Say that this test's process protects the job."""
    proc = read_proc(os.getpid())
    assert proc is not None
    ticks = proc.start_ticks if start_ticks is None else start_ticks
    write_presence(state / "jobs" / name, Presence(pid=proc.pid, start_ticks=ticks, url=url))


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_all_jobs_stand_in_one_table_unfinished_first(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(state) == 0
    head, llama, bert, *rest = lines(capsys)
    assert head.split()[:4] == ["NAME", "STATE", "RUN", "STEP"]
    assert llama.startswith("llama-7b   running")
    assert "2 used, 3 left" in llama
    assert "nobody: run `sentinel attach llama-7b`" in llama
    assert bert.startswith("bert       succeeded")
    assert "nobody" not in bert
    assert "  llama-7b: The state file cannot be written: no space left on device." in rest


def test_one_job_is_told_with_its_whole_story(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state, "llama-7b") == 0
    text = capsys.readouterr().out
    for told in (
        "Incident llama-7b-0002 · Recovered",
        "GPU 0000:18:00.0 fell off the bus (XID 79), which ended rank 2.",
        "gpu (gpu-lost), seen as: rank lost",
        "Reset or reseat the GPU",
        "873 iterations, 1m 04s, 256 GPU-seconds",
        "Rank 2 was killed by signal 9.",
        "NVRM: Xid (PCI:0000:18:00): 79",
        "iteration 41000, proved by saved checkpoint",
        "Incident llama-7b-0001 · Exhausted",
        "4 ranks run.",
    ):
        assert told in text, told
    assert "secret-token" not in text


def test_where_the_ranks_stood_is_told_with_the_innermost_calls(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "\n".join(
        ["rank 0: S", "Thread 7 (idle)", *(f"    call_{number} (a.py:1)" for number in range(20))]
    )
    incident = structs.replace(
        samples.incident(3), stacks=(deep, "rank 1: T\nThread 8\n    \x1b]0;gone\x07 (b.py:2)")
    )
    store = LocalStore(state / "state.db")
    store.save(incidents=(incident,))
    store.close()
    assert run(state, "llama-7b") == 0
    text = capsys.readouterr().out
    for told in ("  Stacks\n    rank 0: S\n", "call_9 (a.py:1)", "… 10 more lines", "    rank 1: T\n"):
        assert told in text, told
    assert "call_10" not in text
    assert not set("\x1b\x07") & set(text)


def test_what_a_log_said_cannot_steer_the_terminal(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(state, "llama-7b")
    text = capsys.readouterr().out
    assert "<script>alert(1)</script>" in text
    assert not set("\x1b\x07\u202e") & set(text)


def test_a_living_sentinel_is_asked_for_live_numbers(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = Running(samples.view)
    try:
        protect(state, "llama-7b", running.server.url)
        assert run(state, "llama-7b", "-o", "json") == 0
        view = msgspec.json.decode(capsys.readouterr().out, type=View)
        assert view == samples.view()
        assert run(state) == 0
        cells = lines(capsys)[1]
        assert all(told in cells for told in ("41874", "3.33 s", "0.66", "pid 99"))
    finally:
        running.end()


def test_a_page_that_does_not_answer_leaves_what_is_recorded(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protect(state, "llama-7b", "http://127.0.0.1:1")
    assert run(state) == 0
    llama = lines(capsys)[1]
    assert f"pid {os.getpid()} (does not answer)" in llama
    assert "41200" in llama


def test_the_page_of_another_job_on_that_port_is_not_believed(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Running(lambda: samples.view(name="other"))
    try:
        protect(state, "llama-7b", running.server.url)
        assert run(state) == 0
        assert lines(capsys)[1].startswith("llama-7b")
    finally:
        running.end()


def test_a_reused_pid_protects_nobody(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    protect(state, "llama-7b", "http://127.0.0.1:1", start_ticks=1)
    run(state)
    assert "nobody: run" in lines(capsys)[1]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\xfe"])
def test_a_damaged_presence_file_is_nobody(
    state: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "jobs" / "llama-7b" / "sentinel.json").write_bytes(content)
    assert run(state) == 0
    assert "nobody: run" in lines(capsys)[1]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "nonsense", "http://127.0.0.1:99999", "http://:80", ""]
)
def test_an_address_that_serves_nothing_is_no_answer(url: str) -> None:
    assert presence.fetch(url, "/") is None


def test_json_of_all_jobs_is_a_list(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state, "-o", "json") == 0
    assert [job["name"] for job in json.loads(capsys.readouterr().out)] == ["llama-7b", "bert"]


def test_an_unknown_job_is_answered_with_the_known_ones(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(state, "llama\x1b[2J") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "known jobs: bert, llama-7b" in told.err
    assert "\x1b" not in told.err


def test_nothing_is_made_where_there_is_no_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none") == 0
    assert capsys.readouterr().out == f"No jobs in {tmp_path / 'none'}.\n"
    assert run(tmp_path / "none", "-o", "json") == 0
    assert capsys.readouterr().out == "[]\n"
    assert run(tmp_path / "none", "x") == 1
    assert "there are no jobs" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_damaged_state_file_is_told_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state.db").write_bytes(b"this is no database" * 1000)
    assert run(tmp_path) == 0
    assert "state.db" in capsys.readouterr().err
    assert (tmp_path / "state.db").read_bytes() == b"this is no database" * 1000


LONGEST = "n" * 63  # a name on one machine; no other characters are taken for one
PROGRAM = (
    "import argparse, sys; from sentinel.cli import status; parser = argparse.ArgumentParser();"
    "status.add_arguments(parser); sys.exit(status.main(parser.parse_args()))"
)


def test_watch_shows_it_again_until_the_reader_leaves(state: Path) -> None:
    """A closed pipe ends it without a traceback."""
    command = [sys.executable, "-c", PROGRAM, "--state-dir", str(state), "--watch", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.stdout.close()
        assert json.loads(first)[0]["name"] == json.loads(second)[0]["name"] == "llama-7b"
        assert process.stderr.read() == b""
        assert process.wait(180) == 0


def test_on_a_terminal_the_picture_is_renewed_in_place_and_fits(state: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "--state-dir", str(state), "--watch", "llama-7b"]
    watched = Watched(command, columns=60, rows=12, env=dict(os.environ))
    first = watched.until("Ctrl-C ends it")
    assert first[0].startswith("Job")
    assert "llama-7b" in first[0]
    assert len(first) <= 12
    assert "more lines" in watched.lines[-1] or "…" in watched.lines[-1]
    seen = watched.pictures
    while watched.pictures < seen + 2:
        assert watched.until("llama-7b")[0] == first[0], "it stays where it is"
    assert watched.bytes.count(b"\x1b[2J") == 1, "no flicker: the screen is emptied once"
    assert watched.end() == 130


@pytest.mark.parametrize("words", [(), ("bert",), ("-o", "json")])
def test_hostile_text_of_a_job_reaches_no_terminal_that_watches(state: Path, words: tuple[str, ...]) -> None:
    """Of its command, its log, and what was found on its machine; however long."""
    found = structs.replace(samples.finding(), entity=LONG, code=STEERING, summary=LONG, evidence=(LONG,))
    event = JobEvent(job="bert", wall_s=samples.WALL_S, reason=STEERING, sentence=LONG, warning=True)
    launch = Launch(command=("python", STEERING, LONG), cwd=LONG, env={}, nproc=1)
    said = {"reason": STEERING, "sentence": LONG, "degraded": (LONG, STEERING), "save_note": LONG}
    broken = samples.incident(7, line=LONG)
    verdict = structs.replace(broken.verdict, sentence=LONG, advice=STEERING, failure=STEERING, entity=LONG)
    incident = structs.replace(broken, id=f"bert-0007{STEERING}", job="bert", verdict=verdict, sentence=LONG)
    store = LocalStore(state / "state.db")
    store.save(
        jobs=[samples.job(name=name, launch=launch, **said) for name in ("bert", LONGEST)],
        incidents=[incident],
        events=[event],
        findings=[found],
    )
    store.close()
    command = [sys.executable, "-c", PROGRAM, "--state-dir", str(state), "--watch", *words]
    watched = Watched(command, columns=100, rows=30, env=dict(os.environ))
    if words == ("-o", "json"):
        until(lambda: watched.bytes.count(b"\n") >= 2, "no second picture")
        seen = {job["name"] for job in json.loads(watched.bytes.splitlines()[0])}
        assert seen == {"llama-7b", "bert", LONGEST}, "a program reads what was said"
    else:
        shown = watched.until("Ctrl-C ends it")
        assert len(shown) <= 30
        until(lambda: watched.pictures >= 2, "no second picture")
        assert watched.bytes.count(b"\x1b[2J") == 1
    assert not steered(watched.bytes)
    assert watched.end() == 130
    assert not steered(watched.bytes)


def test_status_imports_no_page_no_policy_reader_and_no_metrics(state: Path) -> None:
    """It is typed by hand and used in scripts: its start-up time is that of its imports."""
    program = f"""
import sys
sys.argv = ["status", "--state-dir", {str(state)!r}]
try:
    exec({PROGRAM!r})
except SystemExit as end:
    assert end.code == 0
heavy = {{"aiohttp", "pydantic", "yaml", "jinja2", "prometheus_client", "http.client", "hyperscan", "numpy"}}
sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")


def test_of_many_ended_jobs_the_newest_are_shown_and_how_many_more_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LocalStore(tmp_path / "state.db")
    jobs = [samples.job(name="llama-7b", created_wall_s=1.0)]  # runs, and is older than all the others
    for number in range(25):
        name = f"done-{number}"
        jobs.append(
            samples.job(name=name, state=JobState.SUCCEEDED, degraded=(), created_wall_s=100.0 + number)
        )
    store.save(jobs=jobs)
    store.close()
    assert run(tmp_path) == 0
    shown = lines(capsys)
    names = [line.split()[0] for line in shown if line.startswith(("done-", "llama"))]
    assert names == ["llama-7b", *(f"done-{number}" for number in range(24, 4, -1))]
    assert "5 more have ended: `sentinel status --all` shows them." in shown
    assert run(tmp_path, "--all") == 0
    shown = lines(capsys)
    assert sum(line.startswith(("done-", "llama")) for line in shown) == 26
    assert not any("more have ended" in line for line in shown)
    assert run(tmp_path, "-o", "json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 26, "a program gets all"
    assert run(tmp_path, "done-0") == 0
