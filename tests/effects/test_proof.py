"""A save is proved by files that are complete, or that went."""

import asyncio
from pathlib import Path

import pytest

from sentinel.core.model import Proof
from sentinel.effects import proof
from sentinel.effects.proof import STABLE_LOOKS, FileProof, checkpoint_folder


async def looks(subject: FileProof, count: int) -> list[str]:
    return [await subject.proved(ended=False) for _ in range(count)]


def test_a_file_that_stood_before_the_signal_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "step-1.pt").write_bytes(b"old")

    async def scenario() -> None:
        subject = FileProof(str(tmp_path), Proof(file_appears="*.pt"))
        await subject.begin()
        assert set(await looks(subject, STABLE_LOOKS + 5)) == {""}

    asyncio.run(scenario())


def test_a_file_counts_when_it_has_stopped_growing(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = FileProof(str(tmp_path), Proof(file_appears="*.pt"))
        await subject.begin()
        new = tmp_path / "step-2.pt"
        for size in range(1, STABLE_LOOKS + 5):
            new.write_bytes(b"x" * size)
            assert await subject.proved(ended=False) == ""
        assert (await looks(subject, STABLE_LOOKS))[-1].startswith(str(new))

    asyncio.run(scenario())


def test_a_checkpoint_that_is_a_folder_grows_with_what_is_put_into_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = FileProof(str(tmp_path), Proof(file_appears="global_step*"))
        await subject.begin()
        folder = tmp_path / "global_step5" / "rank0"
        folder.mkdir(parents=True)
        shard = folder / "model.pt"
        for size in range(1, STABLE_LOOKS + 5):
            shard.write_bytes(b"x" * size)
            assert await subject.proved(ended=False) == ""
        assert "global_step5" in (await looks(subject, STABLE_LOOKS))[-1]

    asyncio.run(scenario())


def test_with_nobody_left_to_write_a_new_file_counts_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = FileProof(str(tmp_path), Proof(file_appears="model.pt"))
        await subject.begin()
        (tmp_path / "model.pt").write_bytes(b"whole")
        assert "model.pt" in await subject.proved(ended=True)

    asyncio.run(scenario())


def test_a_marker_that_a_save_makes_and_removes_proves_it_by_going(tmp_path: Path) -> None:
    async def scenario() -> None:
        subject = FileProof(str(tmp_path), Proof(file_gone="saving"))
        await subject.begin()
        assert await subject.proved(ended=False) == ""
        (tmp_path / "saving").touch()
        assert await subject.proved(ended=False) == ""
        (tmp_path / "saving").unlink()
        assert await subject.proved(ended=False) == f"{tmp_path / 'saving'}, which went"

    asyncio.run(scenario())


def test_a_file_system_that_does_not_answer_holds_nobody_up_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "LOOK_S", 0.05)

    async def scenario() -> None:
        subject = FileProof(str(tmp_path), Proof(file_appears="model.pt"))
        subject._look = asyncio.get_running_loop().create_future()  # a look that hangs in the kernel
        await subject.begin()
        assert await looks(subject, 2) == ["", ""]
        assert "does not answer" in subject.missing()
        subject._look.set_result({})
        assert await subject.proved(ended=False) == ""
        assert subject.missing() == ""

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
