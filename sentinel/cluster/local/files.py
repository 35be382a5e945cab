"""Files that a path or glob names, as a process sees them: below its root, in its own mounts, from its own folder.

A job's owner chooses the path, and the job what stands there: neither `..` nor a link leads out of the root. A path is
made one without links first, and that is opened name by name, following none; where something was changed between, it
is not found. The file alone is also a program, which imports only what every Python has loaded: it looks into another
process's mounts with that process's own rights, so that a look that hangs can be killed.
"""

import errno
import fnmatch
import glob
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

Names = tuple[str, ...]  # a path below the root, without links
MAX_ENTRIES = 20_000  # of a checkpoint that is a folder
MAX_LINKS = 40  # in one path, as the kernel
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unseen(Exception):
    """It cannot be told which files there are; the text says why."""


class Tree:
    """Everything below a root. Close it."""

    def __init__(self, root: int) -> None:
        """`root`: a descriptor, which stays the caller's."""
        self._root = os.dup(root)

    def close(self) -> None:
        os.close(self._root)

    def resolved(self, base: Names, path: str) -> Names:
        """The path, from `base`, without links. Raises OSError where it leads nowhere."""
        todo = path.split("/")[::-1]
        done = [] if path.startswith("/") else list(base)
        links = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                del done[-1:]  # of the root it is the root
                continue
            target = self._link((*done, name))
            if target is None:
                done.append(name)
                continue
            if (links := links + 1) > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done.clear()
            todo += target.split("/")[::-1]
        return tuple(done)

    def open(self, names: Names, flags: int = _PATH) -> int:
        opened = os.dup(self._root)
        try:
            for name in names:
                below = os.open(name, _PATH, dir_fd=opened)
                os.close(opened)
                opened = below
            if flags == _PATH:
                return opened
            other = os.open(".", flags, dir_fd=opened)
        except OSError:
            os.close(opened)
            raise
        os.close(opened)
        return other

    def _link(self, names: Names) -> str | None:
        opened = self.open(names)
        try:
            if not stat.S_ISLNK(os.fstat(opened).st_mode):
                return None
            return os.readlink("", dir_fd=opened)
        finally:
            os.close(opened)

    # ------------------------------------------------------------ globs

    def matches(self, base: Names, pattern: str) -> Iterator[tuple[str, Names]]:
        """(as the pattern writes it, where it is) of all that is there."""
        found: list[tuple[str, Names]] = [("/", ()) if pattern.startswith("/") else ("", base)]
        for part in pattern.split("/"):
            if part not in ("", "."):
                found = list(self._below(found, part))
        return iter(found)

    def _below(self, above: list[tuple[str, Names]], part: str) -> Iterator[tuple[str, Names]]:
        for shown, names in above:
            try:
                there = self._listed(names, part) if glob.has_magic(part) else [part]
            except OSError:  # no folder, or gone
                continue
            for name in there:
                try:
                    where = self.resolved(names, name)
                except OSError:
                    continue
                yield os.path.join(shown, name), where

    def _listed(self, names: Names, part: str) -> list[str]:
        opened = self.open(names, _LIST)
        try:
            all_names = os.listdir(opened)
        finally:
            os.close(opened)
        hidden = part.startswith(".")
        return fnmatch.filter([name for name in all_names if hidden or not name.startswith(".")], part)

    # ------------------------------------------------------------ sizes

    def size_of(self, names: Names) -> tuple[int, int]:
        """Bytes and the newest mtime in ns; a folder's are those of all that is in it."""
        opened = self.open(names)
        try:
            found = os.fstat(opened)
        finally:
            os.close(opened)
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size, found.st_mtime_ns
        size, newest, entries = 0, found.st_mtime_ns, 0
        todo = [names]
        while todo and entries <= MAX_ENTRIES:
            folder = todo.pop()
            opened = self.open(folder, _LIST)
            try:
                for name in os.listdir(opened):
                    entries += 1
                    below = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    if stat.S_ISDIR(below.st_mode):
                        todo.append((*folder, name))
                    else:
                        size, newest = size + below.st_size, max(newest, below.st_mtime_ns)
            finally:
                os.close(opened)
        return size, newest


def files(cwd: str, pattern: str) -> dict[str, tuple[int, int]]:
    """Path -> (bytes, newest mtime in ns) of what the pattern names, from `cwd`. Raises Unseen."""
    root = os.open("/", _ROOT)
    try:
        return files_below(root, cwd, pattern)
    finally:
        os.close(root)


def files_below(root: int, cwd: str, pattern: str, most: int | None = None) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    tree = Tree(root)
    try:
        base = () if pattern.startswith("/") else tree.resolved((), cwd)
        for shown, names in tree.matches(base, pattern):
            try:
                found[os.path.join(cwd, shown)] = tree.size_of(names)
            except OSError:  # gone between the listing and the look
                continue
            if most is not None and len(found) > most:
                raise Unseen(f"{pattern} names more than {most} files")
    except OSError as error:
        raise Unseen(f"{cwd}: {error.strerror}") from None
    finally:
        tree.close()
    return found


def files_of(pid: int, pattern: str, most: int) -> dict[str, tuple[int, int]]:
    """The same as process `pid` sees it. It may be another one by now: who asks looks at its start time afterwards."""
    try:
        cwd = _below_root(os.readlink(f"/proc/{pid}/cwd"), os.readlink(f"/proc/{pid}/root"))
        rights = _rights(pid)
        opened = os.open(f"/proc/{pid}/root", _ROOT)
    except PermissionError:
        raise Unseen(f"pid {pid}: not permitted: a look into its files needs CAP_SYS_PTRACE") from None
    except OSError as error:
        raise Unseen(f"pid {pid}: {error.strerror}") from None
    try:
        try:
            _take(rights)
        except PermissionError:
            raise Unseen(
                "not permitted: to look as the rank's user needs CAP_SETUID and CAP_SETGID"
            ) from None
        return files_below(opened, cwd, pattern, most)
    finally:
        if rights is not None:
            os.seteuid(0)
        os.close(opened)


def _below_root(path: str, root: str) -> str:
    """/proc tells both from our root, or each from the root of the process's mounts, where ours does not hold it."""
    return path.removeprefix(root) or "/" if root != "/" and f"{path}/".startswith(f"{root}/") else path


def _rights(pid: int) -> tuple[int, int, list[int]] | None:
    """Its user, group and groups for files; None: we are not root and take nobody's."""
    if os.geteuid() != 0:
        return None
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    groups = [int(word) for word in lines["Groups"].split()]
    return int(lines["Uid"].split()[3]), int(lines["Gid"].split()[3]), groups


def _take(rights: tuple[int, int, list[int]] | None) -> None:
    """A server of files may refuse root, and nobody sees more by this than the job itself."""
    if rights is not None:
        os.seteuid(0)
        os.setgroups(rights[2])
        os.setegid(rights[1])
        os.seteuid(rights[0])


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"files": files_of(request["pid"], request["pattern"], request["most"])}
    except Unseen as why:
        return {"unseen": str(why)}


def main() -> None:
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answer(json.loads(line))).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
