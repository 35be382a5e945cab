"""Which checkpoint a restarted program may resume from. Needs nothing but Python."""

import os
import re

BAD_STEPS = "SENTINEL_BAD_STEPS"  # docs/resume.md


def may_resume_from(step: int) -> bool:
    """False of a checkpoint of a step at which the loss was NaN, as Sentinel told this start of the program."""
    found = re.fullmatch(r"(\d+)-(\d+)", os.environ.get(BAD_STEPS, ""))
    return found is None or not int(found[1]) <= step <= int(found[2])


def newest_checkpoint(folder: str) -> str | None:
    """The newest whole `checkpoint-STEP` in `folder` that may be resumed from, None where there is none.

    Of Hugging Face's Trainer, which writes into the folder itself, its state last: one that was cut off before it has
    none, and a training that began with it would fail each time.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = [int(found[1]) for name in names if (found := re.fullmatch(r"checkpoint-(\d+)", name))]
    usable = sorted(filter(may_resume_from, steps), reverse=True)
    paths = [os.path.join(folder, f"checkpoint-{step}") for step in usable]
    return next((path for path in paths if os.path.exists(os.path.join(path, "trainer_state.json"))), None)
