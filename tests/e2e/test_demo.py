"""`sentinel demo` as a person runs it: every fault is real, so this is also a test of the whole."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.waits import until

WITHOUT_RESTARTS = """\
import sys
from sentinel.cli import main
from sentinel.demo import job
job.POLICY = job.POLICY.replace("maxResumes: 10", "maxResumes: 0")
sys.exit(main(["demo"]))
"""


def run_demo(temporary: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=temporary,
        capture_output=True,
        text=True,
        timeout=180,
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder in their arguments or environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue
        if entry.name != str(os.getpid()) and any(os.fsencode(folder) in text for text in texts):
            found.append(texts[0].replace(b"\0", b" ").decode(errors="replace"))
    return found


def assert_nothing_is_left(folder: Path) -> None:
    until(lambda: not processes_of(folder), lambda: str(processes_of(folder)))
    assert list(folder.iterdir()) == []


def test_every_fault_is_recovered_and_told_and_the_loss_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "-m", "sentinel", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("fault        ")[2].splitlines()[1:5]
    assert [re.split(r"\s{2,}", line)[0] for line in table] == [
        "rank killed",
        "slow phase",
        "hang",
        "GPU lost",
    ]
    for line in table:
        _, detected, recovered, lost, restarts, subject = re.split(r"\s{2,}", line)
        assert 0 <= float(detected.removesuffix(" s")) <= float(recovered.removesuffix(" s"))
        assert int(lost) < 60
        assert int(restarts) >= 1
        assert subject.startswith("[sentinel] demo: recovered after ")
    losses = re.findall(r"(?:unseen data|undisturbed): (\d\.\d{6})", done.stdout)
    assert len(losses) == 2
    assert losses[0] == losses[1]
    assert "\x1b" not in done.stdout  # no colour where nobody looks
    assert_nothing_is_left(tmp_path)


def test_a_fault_that_is_not_recovered_fails_the_demo_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "-c", WITHOUT_RESTARTS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^rank killed +\S+ s +never", done.stdout, re.MULTILINE)
    assert "The end of what `sentinel run` printed" in done.stdout
    assert_nothing_is_left(tmp_path)
