"""Files that a path or glob names: found as a shell finds them, and never outside of the root."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.cluster.local.files import Unseen, files, files_below

SECRET = "the host's own"


class Root:
    """A root in a folder, with a secret beside it and one in the machine's own root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "root"
        self.folder.mkdir()
        (folder / "secret").write_text(SECRET)
        self._fd = os.open(self.folder, os.O_PATH)

    def make(self, path: str, text: str = "x") -> None:
        where = self.folder / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)

    def link(self, path: str, target: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).symlink_to(target)

    def look(self, pattern: str, cwd: str = "/", most: int | None = None) -> dict[str, int]:
        """Path -> bytes."""
        return {path: size for path, (size, _) in files_below(self._fd, cwd, pattern, most).items()}

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    made = Root(tmp_path)
    yield made
    made.close()


def test_paths_and_globs_are_found_from_the_working_directory(root: Root) -> None:
    root.make("job/ckpt/step-1.pt", "1")
    root.make("job/ckpt/step-20.pt", "22")
    root.make("job/ckpt/.hidden.pt")
    root.make("data/x.pt", "333")
    assert root.look("ckpt/step-*.pt", "/job") == {"/job/ckpt/step-1.pt": 1, "/job/ckpt/step-20.pt": 2}
    assert root.look("ckpt/step-1.pt", "/job") == {"/job/ckpt/step-1.pt": 1}
    assert root.look("./ckpt//step-?.pt", "/job") == {"/job/ckpt/step-1.pt": 1}
    assert root.look("*/step-[12]*.pt", "/job") == root.look("ckpt/*.pt", "/job")
    assert root.look("ckpt/.h*", "/job") == {"/job/ckpt/.hidden.pt": 1}
    assert root.look("/data/*", "/job") == {"/data/x.pt": 3}
    assert root.look("../data/*.pt", "/job") == {"/job/../data/x.pt": 3}
    assert root.look("nothing/*", "/job") == root.look("ckpt/step-1.pt/x", "/job") == {}


def test_a_folder_is_as_large_as_all_that_is_in_it(root: Root) -> None:
    root.make("ckpt/a", "12")
    root.make("ckpt/deep/er/b", "345")
    (below,) = root.look("ckpt").values()
    assert below == 5
    root.link("ckpt/deep/loop", "..")
    root.link("ckpt/away", "../../secret")
    assert root.look("ckpt")["/ckpt"] - below == len("..") + len("../../secret")  # of the links alone


def test_links_are_followed_within_the_root_and_lead_nowhere_else(root: Root, tmp_path: Path) -> None:
    root.make("vol/step-7/model.pt", "77")
    root.link("latest", "/vol/step-7")  # as the process sees it, from its own root
    root.link("vol/again", "../latest")
    assert root.look("latest/*.pt") == {"/latest/model.pt": 2}
    assert root.look("vol/again/model.pt") == {"/vol/again/model.pt": 2}
    assert root.look("latest/../step-7/model.pt") == {"/latest/../step-7/model.pt": 2}  # as the kernel goes

    root.link("up", "../secret")
    root.link("far", "../../../../../../../../../etc/passwd")
    root.link("outside", str(tmp_path / "secret"))
    root.link("etc", "/etc")
    root.link("self", os.path.join("/proc", str(os.getpid()), "root", "etc", "passwd"))
    for pattern in ("up", "far", "outside", "etc/*", "self", "../secret", "../../*/passwd", "/../secret"):
        assert root.look(pattern, "/vol/step-7") == {}, pattern
        assert root.look(pattern) == {}, pattern
    assert "/etc" not in root.look("*")


def test_a_circle_of_links_ends(root: Root) -> None:
    root.link("a", "b")
    root.link("b", "a")
    root.link("self", "self/x")
    assert root.look("a") == root.look("self/*") == root.look("a/../../x") == {}


def test_nobody_escapes_by_changing_a_folder_to_a_link_in_between(root: Root, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.pt").write_text(SECRET)
    root.make("real/model.pt", "x")
    (root.folder / "turn").symlink_to("real")
    end = threading.Event()

    def flip() -> None:
        new = root.folder / "new"
        while not end.is_set():
            for target in (str(tmp_path / "out"), "real", "../out"):
                new.symlink_to(target)
                os.replace(new, root.folder / "turn")
            os.replace(root.folder / "real", root.folder / "moved")
            os.replace(root.folder / "moved", root.folder / "real")

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        sizes = {size for _ in range(1500) for size in root.look("turn/*.pt").values()}
    finally:
        end.set()
        flipping.join()
    assert sizes <= {1}


def test_too_many_are_refused_and_so_is_a_folder_that_is_not_there(root: Root) -> None:
    for number in range(5):
        root.make(f"{number}.pt")
    assert len(root.look("*.pt", most=5)) == 5
    with pytest.raises(Unseen, match="more than 4"):
        root.look("*.pt", most=4)
    with pytest.raises(Unseen, match="/gone"):
        root.look("*.pt", "/gone")


def test_nothing_is_opened_that_a_look_could_wait_for(root: Root) -> None:
    os.mkfifo(root.folder / "pipe")
    assert root.look("pipe") == {"/pipe": 0}


def test_on_this_machine_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.pt").write_text("123")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = files(str(tmp_path / "link"), "*.pt")
    assert {path: size for path, (size, _) in found.items()} == {str(tmp_path / "link" / "x.pt"): 3}
