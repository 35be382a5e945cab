"""What a program does that makes no iteration, by the words of its log and the functions in which it stands. Pure."""

import re
from collections.abc import Sequence

# By the names of functions in transformers, Lightning, accelerate, torch, deepspeed, Megatron and usual scripts. Data
# are prepared or fetched for an iteration too: by other names.
_PREPARES = re.compile(
    r"(?:^|_)(?:build|download|load|prepare)_(?:\w+_)?data(?:set|sets)?(?:_|$)|^download_and_prepare$"
)
_DATASETS = re.compile(r"(?:^|/)datasets/(?:arrow_dataset|builder)\.py")
_SAVES = re.compile(r"(?:^|_)(?:save|state_dict)(?:_|$)")
_EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|evaluation|predict|prediction|test|val|valid|validate|validation)(?:_|$)"
    r"|^(?:estimate_loss|compute_metrics|gather_for_metrics)$"
)
_EVALUATION_LOOP = re.compile(r"/loops/evaluation_loop\.py")
# Within these an iteration is made, whatever is around them: `cross_validate`.
_ITERATES = re.compile(r"(?:^|_)(?:train|training|fit|backward)(?:_|$)")
_STEPS = {"training_step", "train_step", "train_batch", "forward_backward", "backward"}
# The first is either, of transformers; the others belong to an iteration (Stable-Baselines3, usual programs).
_NO_PAUSES = {"_maybe_log_save_evaluate", "evaluate_actions", "is_valid"}
FRAME_LENGTH = 200  # of one that is kept

_EVALUATING, _SAVING, _PREPARING = "evaluating", "saving", "preparing data"
# Of the words of a line the first decides: "Loading validation data", "Saving predictions".
_WORDS = re.compile(
    r"(?i)(?<![a-z])(?:(eval\w*|valid|validat\w*|val|tests?|testing|predict\w*|inference)"
    r"|(saves?|saving|writes?|writing|checkpointing)"
    r"|(map|mapping|filter|filtering|tokeni[sz]\w*|download\w*|prepar\w*|pre-?process\w*|shuffl\w*|pack\w*|extract\w*"
    r"|caching|indexing|generating \w+ split)"
    r"|(compil\w*|autotun\w*|capturing)"
    r"|(load|loading))(?![a-z])"
)
_CALLED = (_EVALUATING, _SAVING, _PREPARING, "compiling", "loading")


def told_by(line: str) -> str:
    """What a line of a log says that the program does: one of _CALLED; "": it does not say."""
    found = _WORDS.search(line)
    return _CALLED[found.lastindex - 1] if found and found.lastindex else ""


def frame_of(frames: Sequence[re.Match[str]]) -> str:
    """The frame of an evaluation, a save or a preparation of data. `frames`, with their `function` and `file`: the
    innermost first; the first whose name tells decides. "": it is in none."""
    functions = [_bare(frame["function"]) for frame in frames]
    if any(function in _STEPS for function in functions):
        return ""
    fetches = "__getitem__" in functions
    for frame, function in zip(frames, functions, strict=True):
        by_file, by_name = _by_file(frame["file"]), _by_name(function)
        sure = by_file or (by_name == _PREPARING and not fetches)
        if not sure and _ITERATES.search(function):
            return ""
        if sure or by_name in (_SAVING, _EVALUATING):
            return frame[0].strip()[:FRAME_LENGTH]
    return ""


def done_in(frame: str) -> str:
    """What is done in a frame that `frame_of` gave: one of _CALLED."""
    function, _, file = frame.partition(" (")
    return _by_name(_bare(function)) or _by_file(file)


def _bare(function: str) -> str:
    return function.rpartition(".")[2]


def _by_file(file: str) -> str:
    if _DATASETS.search(file):
        return _PREPARING
    return _EVALUATING if _EVALUATION_LOOP.search(file) else ""


def _by_name(function: str) -> str:
    if _PREPARES.search(function):
        return _PREPARING
    if function in _NO_PAUSES:
        return ""
    if _SAVES.search(function):
        return _SAVING
    return _EVALUATING if _EVALUATES.search(function) else ""
