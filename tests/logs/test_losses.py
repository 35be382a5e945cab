"""A loss that is no number is told where it stays so: a step that mixed precision leaves out is normal."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sentinel.core.now import Now
from sentinel.core.reports import LOSS_LOST, LogMatch
from sentinel.logs.losses import LEAST_REPORTS
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet

NOW = Now(mono_s=5.0, wall_s=1_750_000_000.0)
# epfLLM/Megatron-LLM issue 33, pytorch/torchtitan pull request 3393, transformers trainer.py
MEGATRON = " iteration {step:8}/  500000 | elapsed time per iteration (ms): 812.5 | lm loss: {loss} | loss scale: 1.0 |"
TITAN = "step: {step}  loss: {loss}  grad_norm: nan  memory: 66.91GiB(37.51%)  tps: 10,050"
TRAINER = "{{'loss': {loss}, 'grad_norm': nan, 'learning_rate': 4.9e-05, 'epoch': 0.{step}}}"


def told(
    rules: RuleSet, path: Path, lines: Sequence[str], *, at_once: int = 1 << 19, ranks: int = 1
) -> list[LogMatch]:
    path.write_text("".join(f"{line}\n" for line in lines))
    log = RankLog(path, rules)
    log.expect(ranks)
    found: list[LogMatch] = []
    while True:
        batch = log.poll(NOW, at_once)
        found += [match for match in batch.matches if match.rule == LOSS_LOST]
        if batch.caught_up:
            log.close()
            return found


def lines(form: str, losses: Sequence[str], first: int = 810) -> list[str]:
    return [form.format(step=first + k, loss=loss) for k, loss in enumerate(losses)]


@pytest.mark.parametrize("at_once", [1 << 19, 100])
@pytest.mark.parametrize(("form", "step"), [(MEGATRON, 812), (TITAN, 812), (TRAINER, None)])
@pytest.mark.parametrize("word", ["nan", "inf"])
def test_a_loss_that_stays_no_number_is_told_once_with_its_first_step(
    form: str, step: int | None, word: str, at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    losses = ["2.31", "2.30", *[word] * 40]
    [match] = told(shipped, tmp_path / "log", lines(form, losses), at_once=at_once)
    assert (match.failure, match.step) == ("nan-loss", step)
    assert match.line.strip() == lines(form, losses)[2].strip()


def test_steps_that_mixed_precision_leaves_out_are_normal(shipped: RuleSet, tmp_path: Path) -> None:
    some = ["nan"] * (LEAST_REPORTS - 1)
    assert told(shipped, tmp_path / "a", lines(MEGATRON, ["2.3", *some, "2.2", *some, "2.1"])) == []
    again = lines(MEGATRON, ["2.3", *["nan"] * 9, "2.2", *["nan"] * 9])
    assert [match.step for match in told(shipped, tmp_path / "b", again)] == [811, 821]


def test_reports_of_the_same_step_by_several_ranks_are_one(shipped: RuleSet, tmp_path: Path) -> None:
    eight = [f"[rank{rank}]: {line}" for line in lines(TITAN, ["nan"] * 4) for rank in range(8)]
    assert told(shipped, tmp_path / "a", eight, ranks=8) == []
    unnumbered = [line for line in lines(TRAINER, ["nan"] * 4) for _ in range(8)]
    assert told(shipped, tmp_path / "b", unnumbered, ranks=8) == []


def test_losses_of_evaluations_and_best_ones_are_not_those_of_the_training(
    shipped: RuleSet, tmp_path: Path
) -> None:
    for other in ("val loss: nan", "validation loss = nan", "best loss: inf", "test loss: nan"):
        assert told(shipped, tmp_path / "log", [f"epoch {k} {other}" for k in range(20)]) == [], other
    mixed = [f"step {k} loss: 2.{k} val loss: nan" for k in range(20)]
    assert told(shipped, tmp_path / "log", mixed) == []


@pytest.mark.parametrize(
    "form",
    [
        "Evaluating: step {k} loss: nan",
        "Validation [{k}/20] loss: nan",
        "Test: [{k}/391] Time 0.1 Loss nan (nan)",
        "[val] epoch {k} loss: nan",
        '{{"_type": "x", "step": {k}, "loss": nan, "mode": "eval"}}',
        "trial {k} finished, loss: nan",
        "EarlyStopping counter: {k}, loss: nan",
        "step {k} loss: nan, skipping this batch",
        "step {k}: gradient overflow, loss: nan",
        "step: {k} loss: nan, reducing loss scale to 512",
        "step {k} aux\nloss: nan\nmain_loss: 2.31",
        "step {k} loss: nan\ntotal_loss: 2.31",
        "step {k} loss: nan\ntrain/loss: 2.31",
    ],
)
def test_a_line_of_something_else_or_a_loss_beside_a_sound_one_says_nothing(
    form: str, shipped: RuleSet, tmp_path: Path
) -> None:
    assert told(shipped, tmp_path / "log", [form.format(k=k) for k in range(40)]) == []


@pytest.mark.parametrize(
    "form",
    [
        "step {k} train_loss: nan",
        "step: {k} train/loss: nan",
        "iter: {k} total_loss: nan lr: 0.01",
        "Train: [1/300][{k}/1251] time 0.6 loss nan (nan) grad_norm nan (nan)",
        "Epoch: [1][{k}/5004]\tTime  0.5 ( 0.5)\tLoss nan (nan)",
        "iter {k}: loss nan, time 561.94ms",
        "| {k} | train loss nan | ppl nan",
        "step {k} loss: tensor(nan, device='cuda:0')",
        "|    loss     | nan       |",
        "iteration {k} | lm loss: nan | loss scale: 1.0 | number of skipped iterations: 0 |",
        "step:[{k}/19], loss: nan, overflow cond: False, loss_scale: 1.0, global_norm: [nan]",
        "step: {k} val_loss: 4.1 loss: nan load_balancing_loss: 1.1",
    ],
)
def test_a_loss_is_read_in_the_ways_it_is_printed(form: str, shipped: RuleSet, tmp_path: Path) -> None:
    assert len(told(shipped, tmp_path / "log", [form.format(k=k) for k in range(40)])) == 1


def test_steps_that_begin_anew_in_each_epoch_are_counted_on(shipped: RuleSet, tmp_path: Path) -> None:
    epochs = [line for _ in range(4) for line in (TITAN.format(step=k, loss="nan") for k in (50, 100))]
    assert len(told(shipped, tmp_path / "a", epochs)) == 1
    behind = [TITAN.format(step=k, loss="nan") for k in (2, 1, 2, 1, 3, 2, 3)]
    assert told(shipped, tmp_path / "b", behind, ranks=2) == []
