"""The example of one process: killed at any time it goes on from its last whole save."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.waits import until


def command(state: Path, *arguments: str) -> list[str]:
    program = Path(__file__).parents[2] / "examples" / "train_simple.py"
    return [sys.executable, str(program), "--state", str(state), *arguments]


def test_a_killed_run_that_was_asked_to_save_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    state, log = tmp_path / "line.json", tmp_path / "log"
    with open(log, "w") as out:
        first = subprocess.Popen(command(state, "--step-ms=5"), stdout=out)
        until(lambda: "step: 3 " in log.read_text())
        first.send_signal(signal.SIGUSR1)
        until(state.exists)
        first.kill()
        first.wait()
    saved = json.loads(state.read_text())["step"]
    second = subprocess.run(command(state), capture_output=True, text=True, check=True, timeout=180)
    assert second.stdout.startswith(f"resumed from step {saved}\n")
    whole = tmp_path / "whole.json"
    subprocess.run(command(whole), check=True, capture_output=True, timeout=180)
    end = json.loads(state.read_text())
    assert end == json.loads(whole.read_text())
    assert abs(end["slope"] - 3) < 0.1
    assert abs(end["offset"] + 1) < 0.1
