"""`sentinel controller` where it cannot begin: what is wrong, what to do, and the exit code."""

from pathlib import Path

import pytest

from sentinel.cli import main


@pytest.mark.parametrize(
    ("state", "words", "code", "said"),
    [
        ("blocked", (), 73, "blocked/state: Not a directory: settings have stateDir"),
        ("state", (), 69, "/none: name one by --kubeconfig or $KUBECONFIG"),
        ("state", ("--agents", "8443"), 78, "--agents: '8443': expected HOST:PORT"),
    ],
)
def test_it_says_why_it_cannot_begin(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    state: str,
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    (tmp_path / "blocked").touch()
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"apiVersion: sentinel.dev/v1alpha1\nkind: Settings\nlisten: ''\nstateDir: {tmp_path / state}/state\n"
    )
    command = ["controller", "--kubeconfig", str(tmp_path / "none"), "--settings", str(settings), *words]
    assert main(command) == code
    assert said in capfd.readouterr().err


def test_a_fencing_program_that_is_not_there_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"apiVersion: sentinel.dev/v1alpha1\nkind: Settings\nlisten: ''\nstateDir: {tmp_path}/state\n"
        f"fleet: {{fence: {{command: [{tmp_path}/fence-node]}}}}\n"
    )
    assert main(["controller", "--kubeconfig", str(tmp_path / "none"), "--settings", str(settings)]) == 78
    said = f"fleet.fence.command: {tmp_path}/fence-node: No such file or directory"
    assert said in capfd.readouterr().err
