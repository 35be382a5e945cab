"""For Hugging Face's Trainer, and what builds on it (TRL, Axolotl):

    from sentinel.integrations.transformers import SentinelCallback, newest_checkpoint

    trainer = Trainer(..., callbacks=[SentinelCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

The Trainer saves as it always does, into its `output_dir`, whatever its `save_strategy`.
"""

from typing import Any

from transformers import TrainerCallback

from sentinel.integrations import SaveOnSignal
from sentinel.integrations.checkpoints import newest_checkpoint

__all__ = ["SentinelCallback", "newest_checkpoint"]


class SentinelCallback(TrainerCallback):  # type: ignore[misc]  # of a package that need not be there
    """Options are those of `SaveOnSignal`. Make it before the Trainer, in the main thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._saver = SaveOnSignal(*args, **options)
        self._owed = False
        self._evaluated = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saver.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saver.batch_ready()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation in the same step may take the wish to save back (`save_strategy="best"`): it is owed then."""
        asked = self._saver.should_save(state.global_step)
        if control.should_save and not asked:
            self._saver.saving(state.global_step)
        self._owed = self._owed or asked
        control.should_save = control.should_save or self._owed

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluated += 1
        self._saver.evaluating(state.global_step, self._evaluated)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluated = 0
        self._saver.begin()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self._evaluated = 0

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The saves that the Trainer makes by itself are told too."""
        self._owed = False
        self._saver.saved(state.global_step)
