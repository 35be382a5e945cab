"""The wheel that users install carries the data that the source tree keeps beside the package."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built as a packager would, unpacked as an installer would."""
    out = tmp_path_factory.mktemp("wheel")
    repo = Path(__file__).parents[2]
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(repo),
    ]
    subprocess.run(build, check=True, timeout=180, stdin=subprocess.DEVNULL)
    (wheel,) = out.glob("sentinel_gpu-*.whl")
    zipfile.ZipFile(wheel).extractall(out / "site")
    return out / "site"


def run_installed(site: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=site, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", ["rules", "examples"])
def test_an_installed_sentinel_finds_its_own_copy_of_the_data(installed: Path, repo: Path, kind: str) -> None:
    found = Path(
        run_installed(installed, f"from sentinel.rules.tables import data_dir; print(data_dir({kind!r}))")
    )
    assert found == installed / "sentinel" / "_data" / kind
    shipped = {path.name for path in found.iterdir()}
    tracked = subprocess.run(
        ["git", "ls-files", kind], cwd=repo, capture_output=True, text=True
    ).stdout.split()
    assert {Path(name).parts[1] for name in tracked} <= shipped


def test_the_source_tree_uses_its_own_data(repo: Path) -> None:
    from sentinel.rules.tables import data_dir

    assert data_dir("rules") == repo / "rules"


def test_the_command_is_named_sentinel(installed: Path) -> None:
    (entry_points,) = installed.glob("sentinel_gpu-*.dist-info/entry_points.txt")
    assert "sentinel = sentinel.cli:main" in entry_points.read_text()


def test_tests_and_benches_stay_out_of_the_wheel(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {"sentinel"}
