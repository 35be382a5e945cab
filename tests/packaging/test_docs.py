"""The documentation can be found and says what the code does."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sentinel.cli import main as sentinel
from sentinel.integrations.times import Times


def test_the_index_links_every_document_and_no_link_is_dead(repo: Path) -> None:
    index = (repo / "docs/index.md").read_text()
    for document in (repo / "docs").glob("*.md"):
        assert document.name == "index.md" or f"({document.name})" in index, document.name


@pytest.mark.parametrize(
    "document",
    ["README.md", "CHANGELOG.md", *sorted(p.name for p in (Path(__file__).parents[2] / "docs").glob("*.md"))],
)
def test_links_lead_somewhere(repo: Path, document: str) -> None:
    path = repo / document if (repo / document).exists() else repo / "docs" / document
    text = re.sub(r"`[^`\n]*`", "", path.read_text())  # in code it is no link
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{document} links to {target}"


def test_every_exit_code_of_a_run_is_in_the_documentation(repo: Path) -> None:
    from sentinel.local_run import exit_codes

    codes = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")}
    documented = {
        int(code) for code in re.findall(r"^\| (\d+) \|", (repo / "docs/exit-codes.md").read_text(), re.M)
    }
    assert codes
    assert codes <= documented


def test_the_policies_that_are_shown_are_valid(repo: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (repo / "README.md").read_text(), re.S)
    assert blocks
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.yaml").write_text(block)
    command = [sys.executable, "-m", "sentinel", "validate", *map(str, tmp_path.glob("*.yaml"))]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def printed(capsys: pytest.CaptureFixture[str], times_ms: Iterable[tuple[float, float]]) -> str:
    """What the function of `sentinel.integrations` prints of iterations with these (data, whole) times."""
    now_s = 0.0
    times = Times(lambda: True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sentinel.integrations.times.time.perf_counter", lambda: now_s)
        for step, (data_ms, whole_ms) in enumerate(times_ms, 1):
            times.begin()
            now_s += data_ms / 1000
            times.batch_ready()
            now_s += (whole_ms - data_ms) / 1000
            times.end(step)
    return capsys.readouterr().out


def test_the_policy_of_the_readme_moves_a_job_whose_ratio_grew_and_none_for_what_it_always_was(
    repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that does nothing but compute is over the threshold from its first step, as train_torch.py is."""
    (policy,) = re.findall(r"```yaml\n(.*?)```", (repo / "README.md").read_text(), re.S)
    (tmp_path / "readme.yaml").write_text(policy)

    def decided(data_ms: Callable[[int], float]) -> list[str]:
        (tmp_path / "rank-0.log").write_text(
            printed(capsys, ((data_ms(step), 1000.0) for step in range(400)))
        )
        command = ["replay", str(tmp_path / "rank-0.log"), "--policy", str(tmp_path / "readme.yaml")]
        assert sentinel([*command, "--exit-code", "0", "-o", "json"]) == 0
        return [one.get("reason", one.get("end", "")) for one in json.loads(capsys.readouterr().out)["story"]]

    assert decided(lambda step: 20.0 + step % 7) == ["Succeeded"]
    assert decided(lambda step: 400.0 if step < 200 else 100.0) == ["Slow", "Succeeded"]


def test_every_command_that_the_readme_names_exists(repo: Path) -> None:
    from sentinel.cli import COMMANDS

    named = set(re.findall(r"(?:^    |`)sentinel ([a-z]+)", (repo / "README.md").read_text(), re.M))
    assert named <= COMMANDS.keys()
