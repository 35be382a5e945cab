"""What a program does that makes no iteration, by the words of its log and the functions in which it stands. Pure."""

import re
from collections.abc import Sequence

# By the names of functions in transformers, Lightning, accelerate, torch, deepspeed, Megatron and usual scripts. Data
# are prepared or fetched for an iteration too: by other names.
_PREPARES = re.compile(r"(?:^|_)(?:build|download|load|prepare)_(?:\w+_)?data(?:set|sets)?(?:_|$)")
_DATASETS = re.compile(r"(?:^|/)datasets/(?:arrow_dataset|builder)\.py")
_DOWNLOADS = "download_and_prepare"
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
_WORD_ENDS = r"(?![\w/.=-])"
_AT_THE_BEGINNING, _ANYWHERE = r"(?i)^[\W\d_]*(?:", r"(?i)(?<![\w/.=-])(?:"
# What a line says. Nouns only where it begins with them: behind other words they are as often what is counted, set or
# named ("val loss", "eval_interval: 250", "gpu-test-3").
_WORDS = [
    (what, re.compile(f"{where}{words}){_WORD_ENDS}"))
    for what, where, words in (
        (
            _EVALUATING,
            _AT_THE_BEGINNING,
            "eval|evaluation|val|validation|test|prediction|inference|sanity checking",
        ),
        (_EVALUATING, _ANYWHERE, "evaluating|validating|testing|predicting"),
        (_SAVING, _ANYWHERE, "saving|writing|checkpointing"),
        (
            _PREPARING,
            _ANYWHERE,
            r"(?-i:Map|Filter)|mapping|filtering|tokeni[sz]ing|running tokenizer|downloading|preparing|pre-?processing"
            r"|shuffling|packing|grouping|flattening|extracting|resolving data|generating \w+ split"
            r"|building(?= .*dataset)",
        ),
        ("compiling", _ANYWHERE, "compiling|autotuning|capturing"),
        ("loading", _ANYWHERE, "loading"),
    )
]


def told_by(line: str) -> str:
    """What a line of a log says that the program does, by the first word that tells; "": it does not say."""
    found = [(match.start(), what) for what, pattern in _WORDS if (match := pattern.search(line))]
    return min(found)[1] if found else ""


def frame_of(frames: Sequence[re.Match[str]]) -> str:
    """The frame of an evaluation, a save or a preparation of data. `frames`, with their `function` and `file`: the
    innermost first; the first whose name tells decides. "": it is in none."""
    functions = [_bare(frame["function"]) for frame in frames]
    if any(function in _STEPS for function in functions):
        return ""
    fetches = "__getitem__" in functions
    for frame, function in zip(frames, functions, strict=True):
        if _by_file(frame["file"]) or (_PREPARES.search(function) and not fetches):
            return frame[0].strip()[:FRAME_LENGTH]
        if _ITERATES.search(function):
            return ""
        if _by_name(function):
            return frame[0].strip()[:FRAME_LENGTH]
    return ""


def done_in(frame: str) -> str:
    """What is done in a frame that `frame_of` gave; "": the frame was too long to tell."""
    function, _, file = frame.partition(" (")
    name = _bare(function)
    if _PREPARES.search(name):
        return _PREPARING
    return _by_name(name) or _by_file(file)


def _bare(function: str) -> str:
    return function.rpartition(".")[2]


def _by_file(file: str) -> str:
    if _DATASETS.search(file):
        return _PREPARING
    return _EVALUATING if _EVALUATION_LOOP.search(file) else ""


def _by_name(function: str) -> str:
    if function == _DOWNLOADS:
        return _PREPARING
    if function in _NO_PAUSES:
        return ""
    if _SAVES.search(function):
        return _SAVING
    return _EVALUATING if _EVALUATES.search(function) else ""
