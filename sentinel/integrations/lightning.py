"""For Lightning's Trainer:

    from sentinel.integrations.lightning import SentinelCallback

    keeper = ModelCheckpoint(dirpath="checkpoints", save_last=True)
    trainer = Trainer(callbacks=[keeper, SentinelCallback()])
    trainer.fit(model, ckpt_path="last")

Asked to save, it writes `last-sentinel-step=N.ckpt` beside the checkpoints of ModelCheckpoint, where `ckpt_path="last"`
finds the newest, and removes the one before.
"""

import os
import sys
from glob import escape, glob
from typing import Any

from sentinel.integrations import SaveOnSignal

# Lightning's older name is a package of its own, whose Trainer knows nothing of the newer one's callbacks.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning.callbacks import Callback
else:
    from lightning.pytorch.callbacks import Callback


class SentinelCallback(Callback):  # type: ignore[misc]  # of a package that need not be there
    """Options are those of `SaveOnSignal`. Make it before the Trainer, in the main thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._arguments, self._options = args, options
        self._catch()

    def _catch(self) -> None:
        self._saver = SaveOnSignal(*self._arguments, **self._options)
        self._pid = os.getpid()
        self._step = -1

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy in another process, which catches the signal anew in `setup`."""
        return {"_arguments": self._arguments, "_options": self._options, "_pid": 0}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if (
            self._pid != os.getpid()
        ):  # a strategy that starts its ranks as copies of this process, or forks them
            self._catch()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step
        self._saver.begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._saver.batch_ready()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step
        if step == self._step:  # gradients are gathered over several batches
            return
        self._step = step
        if self._saver.should_save(step):
            self._save(trainer, step)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        total = trainer.num_val_batches[dataloader_idx]
        self._saver.evaluating(trainer.global_step, batch_idx + 1, total if isinstance(total, int) else None)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._saver.begin()

    def _save(self, trainer: Any, step: int) -> None:
        keeper = trainer.checkpoint_callback
        folder = getattr(keeper, "dirpath", None) or trainer.default_root_dir
        path = os.path.join(folder, f"last-sentinel-step={step}.ckpt")
        trainer.save_checkpoint(path)
        self._saver.saved(step)
        if trainer.is_global_zero:
            self._remove(
                trainer, [one for one in glob(f"{escape(folder)}/last-sentinel-step=*.ckpt") if one != path]
            )

    def _remove(self, trainer: Any, paths: list[str]) -> None:
        for path in paths:
            try:
                trainer.strategy.remove_checkpoint(path)
            except OSError as error:
                print(f"an older checkpoint could not be removed: {error}", file=sys.stderr)
