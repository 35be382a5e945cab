"""The container image that deploy/ names is made without a builder or a registry; on a base of one's own as well."""

import fcntl
import gzip
import hashlib
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom

from scripts.image import __main__ as command
from scripts.image import archive as images
from scripts.image import contents
from scripts.image.base import own_arch, read_base
from scripts.image.layers import Tree
from tests.gate.rights import TO_MOUNT
from tests.rig.installed import sentinel_image
from tests.waits import until


def read(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def unpacked(archive: Path, folder: Path) -> Path:
    """The root of a container's files."""
    folder.mkdir()
    for layer in json.loads(read(archive, "manifest.json"))[0]["Layers"]:
        data = read(archive, layer)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # not in each Python 3.11
            tar.extractall(folder)
    return folder


def test_it_holds_all_that_sentinel_needs_and_nothing_of_this_machine(tmp_path: Path, repo: Path) -> None:
    archive = sentinel_image()
    root = unpacked(archive, tmp_path / "root")
    config = json.loads(read(archive, json.loads(read(archive, "manifest.json"))[0]["Config"]))
    command = [word.lstrip("/") for word in config["config"]["Entrypoint"]]
    assert (root / command[0]).exists()
    assert f"/{Path(command[0]).parent}" in config["config"]["Env"][0].removeprefix("PATH=").split(":")
    env = dict(line.split("=", 1) for line in config["config"]["Env"])
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert chroot is not None
    user = [chroot, "--userspec=65532:65532"] if os.geteuid() == 0 else ["unshare", *TO_MOUNT, chroot]
    inside = [*user, str(root), f"/{command[0]}"]
    for words in (["--version"], ["agent", "--help"], ["controller", "--help"]):
        subprocess.run([*inside, *words], env=env, check=True, capture_output=True)
    home = str(repo).encode()
    ours = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    assert not [path for path in ours if path.suffix != ".so" and home in path.read_bytes()]
    index = json.loads(read(archive, "index.json"))["manifests"][0]
    assert index["annotations"]["io.containerd.image.name"] == "localhost/sentinel:0.1.0"


def test_the_same_sources_make_the_same_image_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing that was kept of an earlier build, and by a Python at another path."""
    first, again = sentinel_image(), tmp_path / "again.tar"
    others = shutil.ignore_patterns(".*", "build", "tests", "__pycache__")
    shutil.copytree(contents.REPO, tmp_path / "elsewhere", ignore=others)
    monkeypatch.setattr(contents, "REPO", tmp_path / "elsewhere")
    (tmp_path / "venv").symlink_to(Path(sys.executable).parents[1])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    monkeypatch.setattr(images, "workshop", lambda given: tmp_path / "work")
    images.make(say=lambda text: None).write(images.NAME, again)
    layers = [json.loads(read(one, "manifest.json"))[0]["Layers"] for one in (first, again)]
    assert layers[0] == layers[1]
    assert read(first, "index.json") == read(again, "index.json")


def test_a_library_of_this_machine_that_was_renewed_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an image and its bill would tell of different ones."""
    library = tmp_path / "libssl.so.3"
    library.write_bytes(b"old")
    monkeypatch.setattr("scripts.image.base.needed", lambda binary: [("libc.so.6", f"{tmp_path}/libc.so.6")])
    before = images.workshop(None)
    assert images.workshop(None) == before
    library.write_bytes(b"newer")
    renewed = images.workshop(None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len({before, renewed, images.workshop(None)}) == 3, "without binutils nothing is made slim"


def as_docker_saves(archive: Path, to: Path) -> None:
    """Only Docker's manifest, and layers compressed, as older `docker save` and `crane pull` write them."""
    manifest = json.loads(read(archive, "manifest.json"))[0]
    config = json.loads(read(archive, manifest["Config"]))
    config["rootfs"]["diff_ids"] = config["rootfs"]["diff_ids"][:1]  # the Python and its libraries
    config["config"] = {"Env": config["config"]["Env"]}
    made = {"Config": "config.json", "RepoTags": ["python:own"], "Layers": ["layer.tar.gz"]}
    layer = gzip.compress(read(archive, manifest["Layers"][0]), compresslevel=1)
    with tarfile.open(to, "w") as tar:
        for name, data in (
            ("manifest.json", json.dumps([made]).encode()),
            ("config.json", json.dumps(config).encode()),
            ("layer.tar.gz", layer),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def test_it_stands_on_a_base_of_ones_own(tmp_path: Path) -> None:
    base = tmp_path / "base.tar"
    as_docker_saves(sentinel_image(), base)
    found = read_base(base)
    assert os.path.basename(found.python) == f"python{found.version}"
    lower = [layer.diff_id for layer in found.layers]
    extra = Tree()
    extra.file("opt/sentinel/note", b"on it")
    images.Image(found, [extra.layer()]).write("gpu-ops/sentinel:1", tmp_path / "on-it.tar")
    again = read_base(tmp_path / "on-it.tar")
    assert [layer.diff_id for layer in again.layers][:-1] == lower
    assert json.loads(read(tmp_path / "on-it.tar", "manifest.json"))[0]["RepoTags"] == ["gpu-ops/sentinel:1"]


@pytest.mark.parametrize("what", [b"", b"no archive", "other"])
def test_what_is_no_base_is_refused_with_a_reason(tmp_path: Path, what: Any, capsys: Any) -> None:
    base = tmp_path / "base.tar"
    if isinstance(what, bytes):
        base.write_bytes(what)
    else:
        with tarfile.open(base, "w") as tar:
            tar.addfile(tarfile.TarInfo("readme"))
    assert command.main([str(tmp_path / "out.tar"), "--base", str(base)]) == 1
    assert str(base) in capsys.readouterr().err
    assert not (tmp_path / "out.tar").exists()


# ---------------------------------------------------------------- what is in it


def test_it_is_small_and_holds_no_tool_that_an_intruder_would_look_for(tmp_path: Path) -> None:
    root = unpacked(sentinel_image(), tmp_path / "root")
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 150e6
    unwanted = {
        "apt",
        "apt-get",
        "dpkg",
        "pip",
        "pip3",
        "cc",
        "gcc",
        "ld",
        "sh",
        "bash",
        "busybox",
        "curl",
        "wget",
    }
    assert not unwanted & {path.name for path in files}
    assert not [
        path for path in root.rglob("*") if path.is_dir() and path.name in ("pip", "ensurepip", "setuptools")
    ]


def test_it_runs_as_nobody_and_says_what_it_is() -> None:
    archive = sentinel_image()
    config = json.loads(read(archive, json.loads(read(archive, "manifest.json"))[0]["Config"]))["config"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    top = json.loads(read(archive, "manifest.json"))[0]["Layers"][1]
    with tarfile.open(fileobj=io.BytesIO(read(archive, top))) as tar:
        state = tar.getmember("var/lib/sentinel")
        assert (state.uid, state.gid, state.mode) == (65532, 65532, 0o755)


def test_its_bill_of_materials_names_every_package_and_library(tmp_path: Path) -> None:
    root = unpacked(sentinel_image(), tmp_path / "root")
    text = (root / "opt/sentinel/sbom.cdx.json").read_text()
    bill = Bom.from_json(json.loads(text))  # type: ignore[attr-defined]
    assert bill.validate()
    told = {str(part.purl).partition("?")[0] for part in bill.components if part.purl}
    for folder in root.rglob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        if name != "sentinel_gpu":
            assert f"pkg:pypi/{name.replace('_', '-').replace('.', '-').lower()}@{version}" in told
    names = {part.name for part in bill.components}
    assert "python" in names
    assert any(one.startswith("pkg:deb/debian/libssl") for one in told), "by the package that brought it"
    assert not [name for name in names if "tk8" in name or "x11" in name], "not of what was left out"


def test_its_size_is_told_by_part() -> None:
    lines = images.make(say=lambda text: None).sizes().splitlines()
    sizes = {line[11:]: float(line[:6]) for line in lines}
    assert {"cryptography", "Sentinel", "unpacked"} <= sizes.keys()
    assert sum(size for name, size in sizes.items() if name != "unpacked") == pytest.approx(
        sizes["unpacked"], abs=1
    )


# ---------------------------------------------------------------- with other tools, for other machines


def steps_of(containerfile: Path) -> dict[str, list[str]]:
    """Instruction -> what it is given in the last stage; RUN: in all of them."""
    found: dict[str, list[str]] = {}
    text = re.sub(r"^#.*\n", "", containerfile.read_text(), flags=re.M).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        instruction, _, words = line.partition(" ")
        if instruction == "FROM":
            found = {"RUN": found.get("RUN", [])}
        found.setdefault(instruction, []).append(words)
    return found


def test_the_containerfile_makes_the_same(tmp_path: Path, repo: Path) -> None:
    archive, steps = sentinel_image(), steps_of(repo / "Containerfile")
    config = json.loads(read(archive, json.loads(read(archive, "manifest.json"))[0]["Config"]))["config"]
    assert f"{json.loads(steps['ENTRYPOINT'][0])}" == f"{config['Entrypoint']}"
    assert json.loads(steps["CMD"][0]) == config["Cmd"]
    assert steps["USER"] == [config["User"]]
    assert dict(re.findall(r'(\S+)="([^"]*)"', steps["LABEL"][0])) == config["Labels"]
    env = dict(word.split("=", 1) for word in steps["ENV"][0].split())
    wanted = dict(line.split("=", 1) for line in config["Env"])
    assert wanted.pop("LD_LIBRARY_PATH") in env.pop("LD_LIBRARY_PATH").split(":")
    assert env == wanted
    (made,) = steps["RUN"]
    tool = made.partition("&& ")[2].replace("/made", str(tmp_path / "made"))
    assert steps["COPY"] == ["--from=made /made /"]
    subprocess.run(tool, shell=True, check=True, cwd=repo, capture_output=True)
    assert files_of(tmp_path / "made") == files_of(unpacked(archive, tmp_path / "root"))


def files_of(root: Path) -> dict[str, tuple[int, bytes]]:
    """Path -> rights, and the digest of a file, where a link leads, or nothing for a folder."""
    found = {}
    for path in root.rglob("*"):
        what = os.readlink(path).encode() if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink():
            what = hashlib.sha256(path.read_bytes()).digest()
        found[str(path.relative_to(root))] = (path.lstat().st_mode, what)
    return found


def test_a_base_for_other_machines_is_taken_only_when_it_is_said(tmp_path: Path, capsys: Any) -> None:
    base, other = tmp_path / "base.tar", {"amd64": "arm64", "arm64": "amd64"}[own_arch()]
    manifest = json.loads(read(sentinel_image(), "manifest.json"))[0]
    config = json.loads(read(sentinel_image(), manifest["Config"]))
    config |= {
        "architecture": other,
        "rootfs": {**config["rootfs"], "diff_ids": config["rootfs"]["diff_ids"][:1]},
    }
    files = Tree()
    files.file("config.json", json.dumps(config).encode())
    files.file("layer.tar", read(sentinel_image(), manifest["Layers"][0]))
    files.file("manifest.json", json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]).encode())
    base.write_bytes(files.layer().data)
    assert command.main([str(tmp_path / "out.tar"), "--base", str(base)]) == 1
    assert f"it is of {other}" in capsys.readouterr().err
    image = images.make(base=base, arch=other, say=lambda text: None)
    assert image.config()["architecture"] == other
    machine = {"amd64": 62, "arm64": 183}[other]  # e_machine of ELF, bytes 18 and 19
    with tarfile.open(fileobj=io.BytesIO(image.layers[1].data)) as tar:
        compiled = [one for one in tar if re.search(r"\.so($|\.)", one.name)]
        assert len(compiled) > 15
        for entry in compiled:
            file = tar.extractfile(entry)
            assert file is not None
            assert int.from_bytes(file.read(20)[18:], "little") == machine, entry.name


# ---------------------------------------------------------------- the first process of a container

WORK = "import os, signal, sys, time\nfrom sentinel.cli.first_process import stand_before\nstand_before()\n"


@contextmanager
def as_first(work: str, command: Sequence[str] = (), **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """A program, or this command, that begins as process 1 of a namespace; what it prints."""
    words = ["--pid", "--fork", "--kill-child"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    begun = ["unshare", *words, *(command or [sys.executable, "-u", "-c", WORK + work])]
    process = subprocess.Popen(begun, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    """Those that have ended and were not waited for among them."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def first(process: "subprocess.Popen[str]") -> int:
    """Its number out here."""
    return children(process.pid)[0]


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_first_process_of_a_container_passes_signals_on_and_ends_with_its_child() -> None:
    work = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint(os.getpid())\nsignal.pause()"
    with as_first(work) as process:
        assert line_of(process) == "2"
        os.kill(first(process), signal.SIGTERM)
        assert process.wait(60) == 7


def test_a_child_that_dies_of_a_signal_says_so_through_the_first_process() -> None:
    with as_first("os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(60) == 128 + 9


def test_the_first_process_buries_whatever_lost_its_parent() -> None:
    work = """
if os.fork() == 0:
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
os.wait()
print("has an orphan")
signal.pause()
"""
    with as_first(work) as process:
        assert line_of(process) == "has an orphan"
        until(lambda: len(children(first(process))) == 2)
        _, orphan = sorted(children(first(process)))
        os.kill(orphan, signal.SIGKILL)
        until(lambda: len(children(first(process))) == 1)
        assert process.poll() is None


def test_the_command_itself_stands_before_its_work_as_the_first_process(tmp_path: Path) -> None:
    """The image's entrypoint: a child does the work, and what it ends with is passed on."""
    command = [sys.executable, "-c", contents.COMMAND, "agent", "--settings", str(tmp_path / "settings.yaml")]
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings"}
    (tmp_path / "settings.yaml").write_text(
        json.dumps({**head, "stateDir": str(tmp_path / "state"), "listen": ""})
    )
    with as_first("", command) as process:
        until(lambda: children(process.pid) and children(first(process)))
        (work,) = children(first(process))
        until(lambda: list((tmp_path / "state").rglob("*")))
        assert b"agent" in Path(f"/proc/{work}/cmdline").read_bytes().split(b"\0")
        os.kill(first(process), signal.SIGTERM)
        assert process.wait(120) == 0


def test_control_c_reaches_the_work_once() -> None:
    work = """
signal.signal(signal.SIGINT, lambda *_: print("told"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("waits")
while True:
    signal.pause()
"""
    terminal, inside = pty.openpty()
    with as_first(work, stdin=inside, start_new_session=True, preexec_fn=lambda: take(inside)) as process:
        os.close(inside)
        assert line_of(process) == "waits"
        os.write(terminal, b"\x03")
        assert line_of(process) == "told"
        os.kill(first(process), signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.read() == ""
    os.close(terminal)


def test_a_terminal_that_does_not_speak_to_the_first_process_is_no_trouble() -> None:
    terminal, inside = pty.openpty()
    with as_first("sys.exit(7)", stdin=inside, start_new_session=True) as process:
        assert process.wait(60) == 7
    for descriptor in (terminal, inside):
        os.close(descriptor)


def take(terminal: int) -> None:
    """As the one that the keys of this terminal speak to."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
