"""For Hugging Face's Trainer, and what builds on it (TRL, Axolotl):

    from sentinel.integrations.transformers import SentinelCallback

    trainer = Trainer(..., callbacks=[SentinelCallback()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))

The Trainer saves as it always does, into its `output_dir`, whatever its `save_strategy`.
"""

from typing import Any

from transformers import TrainerCallback

from sentinel.integrations import SaveOnSignal


class SentinelCallback(TrainerCallback):  # type: ignore[misc]  # of a package that need not be there
    """Options are those of `SaveOnSignal`. Make it before the Trainer, in the main thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._saver = SaveOnSignal(*args, **options)
        self._evaluated = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saver.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saver.batch_ready()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._saver.should_save(state.global_step):
            control.should_save = True

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluated += 1
        self._saver.evaluating(state.global_step, self._evaluated)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluated = 0
        self._saver.begin()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The saves that the Trainer makes by itself are told too."""
        self._saver.saved(state.global_step)
