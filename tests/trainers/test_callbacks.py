"""What trainers do with a save that the callbacks ask for, where they have a will of their own. One process each."""

import os
import subprocess
from pathlib import Path

BEST = """
import os, signal, sys, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from sentinel.integrations.transformers import SentinelCallback, newest_checkpoint
class Asks(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == 10:  # the step after which it evaluates, and finds nothing better
            os.kill(os.getpid(), signal.SIGUSR1)
scores = iter([2.0, 1.0])
rows = [{"input_ids": torch.arange(8), "labels": index % 2} for index in range(40)]
size = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
args = TrainingArguments(
    output_dir=sys.argv[1], max_steps=14, per_device_train_batch_size=1, use_cpu=True, report_to=[],
    eval_strategy="steps", eval_steps=5, save_strategy="best", metric_for_best_model="score",
)
Trainer(
    BertForSequenceClassification(BertConfig(**size)), args, train_dataset=rows, eval_dataset=rows[:2],
    compute_metrics=lambda _: {"score": next(scores, 0.0)}, callbacks=[SentinelCallback(times="none"), Asks()],
).train()
os.mkdir(sys.argv[1] + "/checkpoint-99")  # cut off
print("newest", os.path.basename(newest_checkpoint(sys.argv[1])), newest_checkpoint(sys.argv[1] + "/none"))
"""
IN_BACKGROUND = """
import os, signal, sys, threading, lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from sentinel.integrations import lightning as ours
folder, anothers, never = sys.argv[1:]
is_there, waited_for = ours._is_there, threading.Semaphore(0)
def asked(path):
    ours.WRITTEN_S = 0.0 if os.path.basename(path) == never else 300.0
    waited_for.release()
    return is_there(path)
ours._is_there = asked
class Slow(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        waited_for.acquire()
        if os.path.basename(path) == never:
            return
        super().save_checkpoint(checkpoint, path + ".part", storage_options)
        print("written", os.path.basename(path), flush=True)
        os.rename(path + ".part", path)
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, index):
        if index in (3, 6, 9):
            os.kill(os.getpid(), signal.SIGUSR1)
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
os.mkdir(folder)
open(os.path.join(folder, anothers), "w").close()  # another training's
lightning.Trainer(
    accelerator="cpu", devices=1, max_steps=12, logger=False, enable_progress_bar=False,
    plugins=[AsyncCheckpointIO(Slow())],
    callbacks=[ModelCheckpoint(dirpath=folder, save_top_k=0), ours.SentinelCallback(times="none")],
).fit(Model(), torch.utils.data.DataLoader(torch.ones(40, 2), num_workers=0))
print("left", *sorted(os.listdir(folder)))
"""
PATIENCE = """
from datetime import timedelta
from torch.distributed.constants import default_pg_nccl_timeout  # None where PyTorch is built without NCCL
from sentinel.integrations.lightning import WRITTEN_S
assert 2 * timedelta(seconds=WRITTEN_S) <= (default_pg_nccl_timeout or timedelta(minutes=10)), WRITTEN_S
"""


def printed(venv: Path, repo: Path, tmp_path: Path, program: str, *words: str) -> list[str]:
    done = subprocess.run(
        [venv / "bin/python", "-c", program, str(tmp_path / "out"), *words],
        env={**os.environ, "PYTHONPATH": str(repo), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    kinds = ("saved checkpoint", "written", "left", "newest")
    return [line for line in done.stdout.splitlines() if line.startswith(kinds)]


def test_a_trainer_that_keeps_only_the_best_saves_one_step_later(
    venv: Path, repo: Path, tmp_path: Path
) -> None:
    lines = printed(venv, repo, tmp_path, BEST)
    assert lines == ["saved checkpoint step 5", "saved checkpoint step 11", "newest checkpoint-11 None"]


def own(step: int | str) -> str:
    return f"last-sentinel-step={step}.ckpt"


def test_nothing_is_proved_before_it_is_written_and_only_its_own_is_removed(
    venv: Path, repo: Path, tmp_path: Path
) -> None:
    assert printed(venv, repo, tmp_path, IN_BACKGROUND, own(90000), "none") == [
        f"written {own(4)}",
        "saved checkpoint step 4",
        f"written {own(7)}",
        "saved checkpoint step 7",
        f"written {own(10)}",
        "saved checkpoint step 10",
        f"left {own(10)} {own(90000)}",
    ]


def test_a_file_of_the_same_step_from_before_proves_nothing_and_stays(
    venv: Path, repo: Path, tmp_path: Path
) -> None:
    lines = printed(venv, repo, tmp_path, IN_BACKGROUND, own(4), "none")
    assert lines[:2] == [f"written {own('4-v1')}", "saved checkpoint step 4"]
    assert lines[-1] == f"left {own(10)} {own(4)}"


def test_a_save_that_did_not_come_is_not_proved_and_replaces_none(
    venv: Path, repo: Path, tmp_path: Path
) -> None:
    assert printed(venv, repo, tmp_path, IN_BACKGROUND, own(90000), own(7)) == [
        f"written {own(4)}",
        "saved checkpoint step 4",
        f"written {own(10)}",
        "saved checkpoint step 10",
        f"left {own(10)} {own(90000)}",
    ]


def test_ranks_wait_for_a_proof_for_less_than_nccl_allows(venv: Path, repo: Path, tmp_path: Path) -> None:
    printed(venv, repo, tmp_path, PATIENCE)
