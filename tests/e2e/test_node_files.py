"""An agent looks for the files of a save where its rank writes them: in mounts, a root and a folder of its own."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from sentinel.agent import files as node_files
from sentinel.agent.files import NodeFiles
from sentinel.cluster.local.processes import read_proc
from sentinel.controller.effects.proof import FileProof
from sentinel.core.agents.orders import What
from sentinel.core.policy_model import Proof
from sentinel.core.reports import Answer, Files
from sentinel.util.clock import system_now
from sentinel.util.errors import TemporaryError
from tests.e2e import test_node_jobs
from tests.e2e.agent_node import Node
from tests.e2e.test_node_jobs import Pod, Site, serving
from tests.transport.world import World, go
from tests.waits import eventually

node, world = test_node_jobs.node, test_node_jobs.world

# A root of its own on a file system that only it has mounted, and a user of its own whose folder nobody else may enter.
RANK = """
import os, signal, sys, time
os.chroot(sys.argv[1])
os.mkdir("/roots", 0o700)
os.mkdir("/roots/own")
for folder in ("/ckpt", "/job"):
    os.mkdir(folder, 0o700)
    os.chown(folder, 65534, 65534)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.chdir("/job")
def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("x" * 100)
def grow(*_):
    write("/ckpt/step-2.pt", "a")
write("/ckpt/step-1.pt")
write("saving")
os.symlink("/etc/passwd", "evil")
os.symlink("/ckpt", "latest")
signal.signal(signal.SIGUSR1, grow)
signal.signal(signal.SIGUSR2, lambda *_: os.unlink("saving"))
write("ready")
while True:
    signal.pause()
"""


class RootedPod(Pod):
    def __init__(self, logs: Path, root: Path) -> None:
        super().__init__(0, logs)
        self.root = root

    def run(self) -> None:
        inside = 'echo $$ >"$0/cgroup.procs" && mount -t tmpfs tmpfs "$1" && exec "$2" -ISc "$3" "$1"'
        words = ["unshare", "--mount", "sh", "-c", inside, self.group, self.root, sys.executable, RANK]
        self.processes.append(subprocess.Popen(words))


class Rank:
    """The one rank of a job, through the controller's end."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.numbers = itertools.count()

    async def asked(self, what: What, **more: str) -> Answer:
        return await self.site.answer(self.site.ask(f"ask-{next(self.numbers)}", what, **more))

    async def signal(self, name: str) -> None:
        assert (await self.asked(What.SIGNAL, signal=name)).sent == (0,)

    async def look(self, pattern: str) -> Files:
        answer = await self.asked(What.FILES, pattern=pattern)
        for why in answer.refused.values():
            raise TemporaryError(why)
        return answer.files

    async def sizes(self, pattern: str) -> dict[str, int]:
        return {path: size for path, (size, _) in (await self.look(pattern)).items()}

    async def proved(self, proof: FileProof) -> str:
        return str(await eventually(lambda: proof.proved(False), "nothing proves it"))


async def started(site: Site, root: Path) -> Rank:
    root.mkdir()
    pod = RootedPod(site.logs, root)
    site.pods.append(pod)
    pod.run()
    await eventually(lambda: pod.pids())
    rank = Rank(site)

    async def ready() -> bool:
        try:
            return "/job/ready" in await rank.look("ready")
        except TemporaryError:  # it has just begun
            return False

    await eventually(ready, "the rank does not begin")
    return rank


def test_a_save_is_proved_by_files_that_only_the_rank_can_see(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            rank = await started(site, tmp_path / "root")
            assert list((tmp_path / "root").iterdir()) == []
            proof = FileProof(rank.look, ".", Proof(file_appears="latest/step-*.pt"), system_now)
            await proof.begin()
            assert await proof.proved(False) == ""
            await rank.signal("SIGUSR1")
            assert await rank.proved(proof) == "/job/latest/step-2.pt (100 bytes, complete)"

            gone = FileProof(rank.look, ".", Proof(file_gone="saving"), system_now)
            await gone.begin()
            assert await gone.proved(False) == ""
            await rank.signal("SIGUSR2")
            assert await rank.proved(gone) == "/job/saving, which went"

            missing = FileProof(rank.look, ".", Proof(file_appears="no/such/*.pt"), system_now)
            await missing.begin()
            assert await missing.missing() == ": no/such does not exist"

    go(story())


def test_a_look_stays_in_the_ranks_own_root_and_a_rank_that_is_gone_is_said_to_be(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            rank = await started(site, tmp_path / "root")
            assert await rank.sizes("*") == {
                "/job/ready": 100,
                "/job/saving": 100,
                "/job/latest": 100,  # a folder, by what is in it
            }
            assert set(await rank.sizes("/*")) == {"/ckpt", "/job"}
            assert await rank.sizes("/roots/*") == {}  # it is root's, and looked for as the rank could
            outside = os.path.join("/proc", "1", "root", "etc", "passwd")
            for pattern in ("evil", "/etc/passwd", "../../../../../etc/passwd", outside):
                assert await rank.sizes(pattern) == {}, pattern
            for pod in site.pods:
                pod.processes[0].kill()
                pod.processes[0].wait(180)
            with pytest.raises(TemporaryError, match="gone"):
                await rank.look("*")

    go(story())


def test_a_look_has_an_end_in_time_and_in_what_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        subject = NodeFiles()
        me = read_proc(os.getpid())
        assert me is not None
        try:
            (tmp_path / "one").touch()
            assert await subject.look("job", me, f"{tmp_path}/*") == {
                f"{tmp_path}/one": (0, (tmp_path / "one").stat().st_mtime_ns)
            }
            monkeypatch.setattr(node_files, "LOOK_S", 0.5)
            child = subject._children["job"].pid
            assert child is not None
            os.kill(child, signal.SIGSTOP)  # as a file system does that does not answer
            said = await asyncio.gather(
                subject.look("job", me, "/nfs/*"), subject.look("other", me, f"{tmp_path}/*")
            )
            assert said[0] == "the file system of /nfs/* does not answer"
            assert list(said[1]) == [f"{tmp_path}/one"]
            monkeypatch.undo()
            assert await subject.look("job", me, f"{tmp_path}/o*") == said[1]

            for number in range(500):
                (tmp_path / f"{number:0250d}").touch()
            assert await subject.look("job", me, f"{tmp_path}/0*") == (
                f"{tmp_path}/0* names too many files for one answer"
            )
            assert await subject.look("job", me, f"{tmp_path}/*") == f"{tmp_path}/* names more than 500 files"
            gone = structs.replace(me, start_ticks=me.start_ticks + 1)
            assert await subject.look("job", gone, "*") == "gone"
        finally:
            subject.close()

    go(story())
