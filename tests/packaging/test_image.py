"""The container image that deploy/ names is made without a builder or a registry; on a base of one's own as well."""

import gzip
import io
import json
import os
import runpy
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.gate.rights import TO_MOUNT
from tests.rig.installed import sentinel_image

MAKER = runpy.run_path(str(Path(__file__).parents[2] / "scripts/image.py"))


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
            tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # not known to Debian's Python 3.11
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


def test_the_same_sources_make_the_same_image(tmp_path: Path) -> None:
    MAKER["make"](tmp_path / "again.tar", say=lambda text: None)
    first, again = (read(one, "index.json") for one in (sentinel_image(), tmp_path / "again.tar"))
    assert first == again


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
    found = MAKER["read_base"](base)
    assert os.path.basename(found.python) == f"python{found.version}"
    lower = [layer.diff_id for layer in found.layers]
    extra = MAKER["Tree"]()
    extra.file("opt/sentinel/note", b"on it")
    MAKER["write"](found, [extra.layer()], "gpu-ops/sentinel:1", tmp_path / "on-it.tar")
    again = MAKER["read_base"](tmp_path / "on-it.tar")
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
    assert MAKER["main"]([str(tmp_path / "out.tar"), "--base", str(base)]) == 1
    assert str(base) in capsys.readouterr().err
    assert not (tmp_path / "out.tar").exists()
