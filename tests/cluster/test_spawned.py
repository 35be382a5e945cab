"""Ranks that a program has started as torch.multiprocessing does, with a stand-in for torch's module."""

import sys
from pathlib import Path

import pytest

from sentinel.cluster.local import stacks
from sentinel.cluster.local.processes import read_proc, scan, started
from sentinel.core.stacks.reading import Head, read_head
from tests.cluster.local_jobs import Site, with_site
from tests.waits import eventually

# torch's own names: `_wrap` is what each process runs, `start_processes` waits for them.
SPAWN = """
import multiprocessing

def _wrap(fn, i, args, error_file):
    fn(i, *args)

def start_processes(fn, args=(), nprocs=1, start_method="spawn"):
    context = multiprocessing.get_context(start_method)
    processes = [context.Process(target=_wrap, args=(fn, i, args, "")) for i in reversed(range(nprocs))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""
PROGRAM = """
import multiprocessing, sys, threading
from torch.multiprocessing.spawn import start_processes

def waits(number=None):
    print("ready", flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    method = sys.argv[1]
    multiprocessing.get_context(method).Process(target=waits).start()  # one that is no rank
    start_processes(waits, (), 2, method)
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine starts py-spy slowly."""
    monkeypatch.setattr(stacks, "EACH_S", 60.0)
    monkeypatch.setattr(stacks, "TOTAL_S", 120.0)


async def begun(site: Site, method: str) -> int:
    """The pid of the program, all of whose processes wait."""
    package = site.root / "torch" / "multiprocessing"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "spawn.py").write_text(SPAWN)
    (site.root / "train.py").write_text(PROGRAM)
    await site.start((sys.executable, "train.py", method))
    await eventually(lambda: site.log().count("ready") == 3, site.log)
    return site.cluster.find_ranks("job", 1)[0].pid


async def heads(site: Site) -> list[Head]:
    return [head for text in await site.cluster.stacks("job", 1, [0]) if (head := read_head(text))]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_have_the_numbers_that_they_were_given_whatever_was_started_first(
    method: str, tmp_path: Path
) -> None:
    @with_site
    async def looked_at(site: Site) -> None:
        top = await begun(site, method)
        proc = read_proc(top)
        assert proc is not None
        pids = [child.pid for child in started(proc, scan())][-2:]
        found: list[Head] = []

        async def seen() -> bool:
            found[:] = await heads(site)
            return len(found) == 2

        await eventually(seen, lambda: str(found))
        assert [(head.number, head.pid) for head in found] == [(0, pids[1]), (1, pids[0])]

    looked_at(tmp_path)
