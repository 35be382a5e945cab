"""For Lightning's Trainer:

    from sentinel.integrations.lightning import SentinelCallback

    keeper = ModelCheckpoint(dirpath="checkpoints", save_last=True)
    trainer = Trainer(callbacks=[keeper, SentinelCallback()])
    trainer.fit(model, ckpt_path="last")

Asked to save, it writes `last-sentinel-step=N.ckpt` beside the checkpoints of ModelCheckpoint, where `ckpt_path="last"`
finds the newest, and removes the one that it wrote before. Where that name is taken, it is `…=N-v1.ckpt`.
"""

import itertools
import os
import sys
import time
from typing import Any

from sentinel.integrations import SaveOnSignal

# Lightning's older name is a package of its own, whose Trainer knows nothing of the newer one's callbacks.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning.callbacks import Callback
else:
    from lightning.pytorch.callbacks import Callback

NAME = "last-sentinel-step="
# A plugin that writes in the background may take so long. The other ranks wait for the proof in a collective, which
# PyTorch ends after 600 s with NCCL where the program says nothing else.
WRITTEN_S = 300.0


class SentinelCallback(Callback):  # type: ignore[misc]  # of a package that need not be there
    """Options are those of `SaveOnSignal`. Make it before the Trainer, in the main thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._arguments, self._options = args, options
        self._catch()

    def _catch(self) -> None:
        self._saver = SaveOnSignal(*self._arguments, **self._options)
        self._pid = os.getpid()
        self._step = -1
        self._newest = ""
        self._asked = False

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy in another process, which catches the signal anew in `setup`."""
        return {"_arguments": self._arguments, "_options": self._options, "_pid": 0}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if (
            self._pid != os.getpid()
        ):  # a strategy that starts its ranks as copies of this process, or forks them
            self._catch()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = self._steps(trainer, pl_module)
        came_from = str(trainer.ckpt_path or "")
        self._newest = came_from if os.path.basename(came_from).startswith(NAME) else ""
        if trainer.is_global_zero:
            for warning in self._warnings(trainer):
                print(f"SentinelCallback: {warning}", file=sys.stderr, flush=True)
        self._saver.begin()

    def _warnings(self, trainer: Any) -> list[str]:
        found = []
        folder = self._folder(trainer)
        if getattr(trainer.checkpoint_callback, "dirpath", None) is None:
            found.append(f'saves go to {folder}, where ckpt_path="last" does not look: add a ModelCheckpoint')
        elif "://" in folder:
            found.append(f'ckpt_path="last" finds nothing in {folder}: give the newest path yourself')
        environment = getattr(trainer.strategy, "cluster_environment", None)
        requeues = getattr(environment, "auto_requeue", False)  # only Slurm's has it
        if (
            requeues
            and (getattr(environment, "requeue_signal", None) or self._saver.number) == self._saver.number
        ):
            found.append(
                "Lightning requeues no more on this signal: give SLURMEnvironment(requeue_signal=…) another"
            )
        return found

    def _steps(self, trainer: Any, pl_module: Any) -> int:
        """What all ranks count alike. A model that steps its optimizers itself may do it on one rank alone."""
        if pl_module.automatic_optimization:
            return int(trainer.global_step)
        return int(trainer.fit_loop.total_batch_idx) + 1

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._saver.batch_ready()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        step = self._steps(trainer, pl_module)
        if step == self._step:  # gradients are gathered over several batches
            return
        self._step = step
        if self._saver.should_save(step):
            self._save(trainer, step)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        if not self._asked:  # which is told already
            self._saver.saving(max(0, self._step))

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, _: Any, __: Any, index: int, *___: Any
    ) -> None:
        self._saver.evaluating(max(0, self._step), index + 1)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._saver.begin()

    def _folder(self, trainer: Any) -> str:
        return str(getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir)

    def _free_path(self, trainer: Any, step: int) -> str:
        """Of a file that is not there: one from before would pass for the one that is still being written."""
        start = os.path.join(self._folder(trainer), f"{NAME}{step}")
        path = f"{start}.ckpt"
        for count in itertools.count(1) if trainer.is_global_zero else ():
            if not os.path.exists(path):
                break
            path = f"{start}-v{count}.ckpt"
        return str(trainer.strategy.broadcast(path))  # another rank's view of a network file system may lag

    def _save(self, trainer: Any, step: int) -> None:
        path = self._free_path(trainer, step)
        self._asked = True
        trainer.save_checkpoint(path)
        self._asked = False
        there = not trainer.is_global_zero or _is_there(path)
        self._saver.saved(step, proved=there)
        if not there:
            return
        before, self._newest = self._newest, path
        if trainer.is_global_zero and before not in ("", path):
            try:
                trainer.strategy.remove_checkpoint(before)
            except OSError as error:
                print(f"the checkpoint before could not be removed: {error}", file=sys.stderr, flush=True)


def _is_there(path: str) -> bool:
    """Checkpoints get their name when they are whole. AsyncCheckpointIO returns before they are."""
    end_s = time.monotonic() + WRITTEN_S
    while "://" not in path and not os.path.exists(path):
        if time.monotonic() > end_s:
            print(f"{path} was not written within {WRITTEN_S:.0f} s", file=sys.stderr, flush=True)
            return False
        time.sleep(0.1)
    return True
