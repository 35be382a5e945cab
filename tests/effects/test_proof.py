"""A save is proved by files that are complete, or that went."""

import asyncio
from pathlib import Path

import pytest

from sentinel.cluster.local.files import files
from sentinel.controller.effects import proof
from sentinel.controller.effects.proof import STABLE_S, FileProof, checkpoint_folder
from sentinel.core.now import Now
from sentinel.core.policy_model import Proof
from sentinel.core.reports import Files
from sentinel.util.errors import TemporaryError

LOOKS = 8  # while a file stands unchanged for STABLE_S


class Subject(FileProof):
    """On real files, with a clock that goes on between looks."""

    def __init__(self, folder: Path, given: Proof) -> None:
        self.now_s = 100.0
        self.looks = 0
        self.answer: asyncio.Future[Files] | None = None
        super().__init__(self.look, str(folder), given, lambda: Now(self.now_s, 0.0))
        self.folder = str(folder)

    async def look(self, pattern: str) -> Files:
        self.looks += 1
        return files(self.folder, pattern) if self.answer is None else await self.answer

    async def later(self, ended: bool = False) -> str:
        self.now_s += STABLE_S / (LOOKS - 2)
        return await self.proved(ended)

    async def often(self, count: int) -> list[str]:
        return [await self.later() for _ in range(count)]


def test_a_file_that_stood_before_the_signal_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "step-1.pt").write_bytes(b"old")

    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="*.pt"))
        await subject.begin()
        assert set(await subject.often(3 * LOOKS)) == {""}

    asyncio.run(scenario())


def test_a_file_counts_when_it_has_stopped_growing(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="*.pt"))
        await subject.begin()
        new = tmp_path / "step-2.pt"
        for size in range(1, 3 * LOOKS):
            new.write_bytes(b"x" * size)
            assert await subject.later() == ""
        assert (await subject.often(LOOKS))[-1].startswith(str(new))

    asyncio.run(scenario())


def test_a_checkpoint_that_is_a_folder_grows_with_what_is_put_into_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="global_step*"))
        await subject.begin()
        folder = tmp_path / "global_step5" / "rank0"
        folder.mkdir(parents=True)
        shard = folder / "model.pt"
        for size in range(1, 3 * LOOKS):
            shard.write_bytes(b"x" * size)
            assert await subject.later() == ""
        assert "global_step5" in (await subject.often(LOOKS))[-1]

    asyncio.run(scenario())


def test_with_nobody_left_to_write_a_new_file_counts_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="model.pt"))
        await subject.begin()
        (tmp_path / "model.pt").write_bytes(b"whole")
        assert "model.pt" in await subject.later(ended=True)

    asyncio.run(scenario())


def test_a_marker_that_a_save_makes_and_removes_proves_it_by_going(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_gone="saving"))
        await subject.begin()
        assert await subject.later() == ""
        (tmp_path / "saving").touch()
        assert await subject.later() == ""
        (tmp_path / "saving").unlink()
        assert await subject.later() == f"{tmp_path / 'saving'}, which went"

    asyncio.run(scenario())


def test_a_file_system_that_does_not_answer_holds_nobody_up_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "LOOK_S", 0.05)

    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="model.pt"))
        subject.answer = asyncio.get_running_loop().create_future()  # a look that hangs in the kernel
        await subject.begin()
        assert await subject.often(2) == ["", ""]
        assert subject.looks == 1
        assert "does not answer" in await subject.missing()
        subject.answer.set_result({})
        assert await subject.later() == ""
        assert await subject.missing() == ""

    asyncio.run(scenario())


def test_why_nobody_can_look_is_said_until_somebody_can(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="model.pt"))
        subject.answer = asyncio.get_running_loop().create_future()
        subject.answer.set_exception(TemporaryError("its agent is away"))
        await subject.begin()
        assert await subject.later() == ""
        assert await subject.missing() == ": its agent is away"
        subject.answer = None
        assert await subject.later() == ""
        assert await subject.missing() == ""

    asyncio.run(scenario())


def test_what_is_slow_to_look_at_is_looked_at_less_often(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="model.pt"))

        async def slow(pattern: str) -> Files:
            subject.now_s += 1.0
            subject.looks += 1
            return {}

        subject._look = slow
        await subject.begin()
        for _ in range(30):
            subject.now_s += 0.5
            await subject.proved(False)
        assert 2 < subject.looks < 6

    asyncio.run(scenario())


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = Subject(tmp_path, Proof(file_appears="no/such/*.pt"))
        await subject.begin()
        assert await subject.missing() == f": {tmp_path}/no/such does not exist"
        (tmp_path / "no/such").mkdir(parents=True)
        assert await subject.missing() == ""

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        (Proof(file_appears="ckpt/step-*.pt"), "/job/ckpt"),
        (Proof(file_appears="/nfs/ckpt/step-*/done/*.pt"), "/nfs/ckpt"),
        (Proof(file_gone="saving.lock"), "/job"),
        (Proof(log_pattern="saved"), ""),
        (None, ""),
    ],
)
def test_the_folder_of_the_checkpoints_is_told_by_what_proves_them(given: Proof | None, folder: str) -> None:
    assert checkpoint_folder("/job", given) == folder
