"""A loss or a gradient norm that is no number is told where it stays so: some steps of mixed precision are normal."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentinel.core.now import Now
from sentinel.core.reports import LOSS_LOST, LOSS_SOUND, NORM_LOST, LogMatch
from sentinel.logs.losses import LEAST_NORMS, LEAST_REPORTS
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet

NOW = Now(mono_s=5.0, wall_s=1_750_000_000.0)
# epfLLM/Megatron-LLM issue 33, pytorch/torchtitan pull request 3393, transformers trainer.py
MEGATRON = " iteration {step:8}/  500000 | elapsed time per iteration (ms): 812.5 | lm loss: {loss} | loss scale: 1.0 |"
TITAN = "step: {step}  loss: {loss}  grad_norm: nan  memory: 66.91GiB(37.51%)  tps: 10,050"
TRAINER = "{{'loss': {loss}, 'grad_norm': nan, 'learning_rate': 4.9e-05, 'epoch': 0.{step}}}"


def told(
    rules: RuleSet,
    path: Path,
    lines: Sequence[str],
    *,
    at_once: int = 1 << 19,
    ranks: int = 1,
    rule: str = LOSS_LOST,
) -> list[LogMatch]:
    path.write_text("".join(f"{line}\n" for line in lines))
    log = RankLog(path, rules)
    log.expect(ranks)
    found: list[LogMatch] = []
    while True:
        batch = log.poll(NOW, at_once)
        found += [match for match in batch.matches if match.rule == rule]
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


def test_a_loss_that_was_told_as_lost_and_is_a_number_again_is_told_once_also_by_a_later_reader(
    shipped: RuleSet, tmp_path: Path
) -> None:
    few = lines(MEGATRON, ["2.3", *["nan"] * (LEAST_REPORTS - 1), "2.2", "2.2"])
    assert told(shipped, tmp_path / "a", few, rule=LOSS_SOUND) == [], "nothing was told that is not so"
    path = tmp_path / "b"
    written = lines(MEGATRON, ["2.3", *["nan"] * 9, "2.2", "2.1", *["nan"] * 9, "2.2"])
    for at_once in (1 << 19, 100):
        sound = told(shipped, path, written, at_once=at_once, rule=LOSS_SOUND)
        assert [match.step for match in sound] == [820, 831]
    path.write_text("".join(f"{line}\n" for line in written[:10]))
    first = RankLog(path, shipped)
    assert [match.rule for match in first.poll(NOW).matches if match.step] == [LOSS_LOST]
    position = first.position
    first.close()
    path.write_text("".join(f"{line}\n" for line in written[:12]))
    later = RankLog(path, shipped, position=position)
    assert [match.rule for match in later.poll(NOW).matches if match.step] == [LOSS_SOUND]
    later.close()


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


@pytest.mark.parametrize("at_once", [1 << 19, 100])
def test_the_last_step_before_a_nan_loss_is_told_by_how_far_apart_its_reports_are(
    at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    def good(form: str, losses: Sequence[str], every: int, ranks: int = 1) -> int | None:
        written = [form.format(step=800 + every * k, loss=loss) for k, loss in enumerate(losses)]
        [match] = told(shipped, tmp_path / "log", written, at_once=at_once, ranks=ranks)
        return match.good_step

    sound_then_nan = ["2.31", "2.30", "2.29", *["nan"] * 9]
    assert good(TITAN, sound_then_nan, every=1) == 802
    assert good(MEGATRON, sound_then_nan, every=10) == 820
    assert good(TITAN, ["nan"] * 9, every=1000) == 0, "nothing shows that it was a number before"
    assert good(TRAINER, sound_then_nan, every=1) is None
    epochs = [line for _ in range(4) for line in (TITAN.format(step=k, loss="nan") for k in (50, 100))]
    [match] = told(shipped, tmp_path / "b", epochs, at_once=at_once)
    assert match.good_step is None, "steps that begin anew tell nothing of checkpoints"


# What an epoch's own steps are told in: torch examples, Keras, icefall, GluonCV's, a bar over one epoch's loader.
IN_EPOCHS = [
    "epoch 3 step {k} loss: {loss}",
    "Epoch [3/10], Step [{k}], Loss: {loss}",
    "{k}/1000 ━━━━━━━━━━━━━━━━━━━━ 50s 50ms/step - accuracy: 0.1 - loss: {loss}",
    "Epoch 3, batch {k}, loss[loss={loss}, over 100 frames.] loss: {loss}",
]


@pytest.mark.parametrize("at_once", [1 << 19, 300])
@pytest.mark.parametrize("form", IN_EPOCHS)
def test_steps_that_each_epoch_counts_from_its_beginning_tell_no_good_step(
    form: str, at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    losses = {k: "2.31" if k < 60 else "nan" for k in range(40, 200, 10)}
    written = [form.format(k=k, loss=loss) for k, loss in losses.items()]
    [match] = told(shipped, tmp_path / "log", written, at_once=at_once)
    assert match.good_step is None


@pytest.mark.parametrize("at_once", [1 << 19, 100])
def test_steps_that_fell_back_once_tell_no_good_step_any_more_also_to_a_later_reader(
    at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    sound = [TITAN.format(step=k, loss="2.31") for k in (10, 20, 30, 10, 20)]
    lost = [TITAN.format(step=k, loss="nan") for k in range(30, 130, 10)]
    [match] = told(shipped, tmp_path / "a", [*sound, *lost], at_once=at_once)
    assert (match.step, match.good_step) == (30, None)
    path = tmp_path / "b"
    path.write_text("".join(f"{line}\n" for line in sound))
    first = RankLog(path, shipped)
    first.poll(NOW)
    position = first.position
    first.close()
    with path.open("a") as log:
        log.write("".join(f"{line}\n" for line in lost))
    later = RankLog(path, shipped, position=position)
    [match] = [match for match in later.poll(NOW).matches if match.rule == LOSS_LOST]
    later.close()
    assert match.good_step is None
    ranks = [TITAN.format(step=k + back, loss="2.31") for k in range(0, 90, 10) for back in (9, 0)]
    beside = [TITAN.format(step=k, loss="nan") for k in range(100, 200, 10)]
    [match] = told(shipped, tmp_path / "c", [*ranks, *beside], at_once=at_once, ranks=2)
    assert match.good_step == 90, "a rank that tells a step later than another has not gone back"


@pytest.mark.parametrize("epoch", ["0.25", "1.0", "12.5"])
def test_a_fraction_of_an_epoch_beside_a_step_says_nothing_against_it(
    epoch: str, shipped: RuleSet, tmp_path: Path
) -> None:
    losses = ["2.31", "2.30", *["nan"] * 9]
    written = [f"step: {800 + 10 * k} loss: {loss} epoch: {epoch}" for k, loss in enumerate(losses)]
    [match] = told(shipped, tmp_path / "log", written)
    assert match.good_step == 810


@pytest.mark.parametrize("at_once", [1 << 19, 400, 40])
def test_a_loss_that_is_told_without_its_step_has_that_of_the_bar_before_it(
    at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    """As transformers' ProgressCallback writes it: the bar, the loss above it, the bar anew."""
    written = []
    for step in range(1, 31):
        written.append(f" {step}%|#   | {step}/100 [00:{step:02}<01:40,  1.00s/it]")
        if step % 2 == 0:
            written += [
                "",
                f"{{'loss': {'2.1' if step < 20 else 'nan'}, 'grad_norm': 1.0, 'learning_rate': 1e-05}}",
            ]
    [match] = told(shipped, tmp_path / "log", written, at_once=at_once)
    assert (match.step, match.good_step) == (None, 18)


# ---------------------------------------------------------------- gradient norms

# bigscience-workshop/Megatron-DeepSpeed issue 396 (no loss is printed once it is NaN), SY-Xuan/Pink issue 6 (the
# Trainer prints 0 for a loss that is NaN), torchtitan, fairseq issue 940, microsoft/unilm issue 598, Swin-Transformer.
NO_LOSS = (
    " iteration {k:8}/  250000 | elapsed time per iteration (ms): 4247.9 | learning rate: 2.999E-04 | loss scale: 1.0 "
    "| grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NO_NUMBER = "{{'loss': 0.0, 'grad_norm': {norm}, 'learning_rate': 4.9e-05, 'epoch': 0.{k}}}"
SOUND = "[titan] INFO - step: {k}  loss:  7.62585  grad_norm: {norm}  memory: 66.91GiB(37.51%)  tps: 10,050"


def norms(form: str, values: Sequence[str], first: int = 500, every: int = 1) -> list[str]:
    return [form.format(k=first + every * k, norm=value) for k, value in enumerate(values)]


@pytest.mark.parametrize("at_once", [1 << 19, 100])
@pytest.mark.parametrize(("form", "step"), [(NO_LOSS, 502), (NO_NUMBER, None), (SOUND, 502)])
def test_a_gradient_norm_that_stays_nan_is_told_once_with_its_first_step(
    form: str, step: int | None, at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    written = norms(form, ["0.75", "0.74", *["nan"] * (LEAST_NORMS + 50)])
    [match] = told(shipped, tmp_path / "log", written, at_once=at_once, rule=NORM_LOST)
    assert (match.failure, match.step) == ("nan-loss", step)
    assert match.line.strip() == written[2].strip()
    assert told(shipped, tmp_path / "log", written, at_once=at_once) == []


@pytest.mark.parametrize("at_once", [1 << 19, 100])
@pytest.mark.parametrize("form", [NO_LOSS, NO_NUMBER, SOUND])
@pytest.mark.parametrize("between", ["0.71", "inf"])
def test_norms_of_steps_that_a_loss_scaler_leaves_out_are_normal(
    form: str, between: str, at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    some = ["nan"] * (LEAST_NORMS - 1)
    written = norms(form, ["0.7", *some, between, *some, between, "nan"])
    assert told(shipped, tmp_path / "log", written, at_once=at_once, rule=NORM_LOST) == []
    overflows = norms(form, ["0.7", *["inf"] * 300])
    assert told(shipped, tmp_path / "log", overflows, at_once=at_once, rule=NORM_LOST) == []


@pytest.mark.parametrize("at_once", [1 << 19, 100])
def test_a_norm_that_is_nan_beside_a_sound_loss_from_the_beginning_or_over_many_steps_says_nothing(
    at_once: int, shipped: RuleSet, tmp_path: Path
) -> None:
    never = norms(SOUND, ["nan"] * 300)
    assert told(shipped, tmp_path / "a", never, at_once=at_once, rule=NORM_LOST) == [], "nobody computes it"
    averages = norms(SOUND, ["0.7", *["nan"] * 300], every=2000)
    assert told(shipped, tmp_path / "b", averages, at_once=at_once, rule=NORM_LOST) == []
    apart = [line for k in range(300) for line in (f"step {k} loss: 2.31", "grad_norm: nan")]
    assert told(shipped, tmp_path / "c", apart, at_once=at_once, rule=NORM_LOST) == []


@pytest.mark.parametrize(
    "form",
    [
        "Epoch: [115]  [{k}/1299]  loss: 0.0  loss_scale: 8192.0 (8646.06)  grad_norm: 0.3922 (nan)",
        "Evaluating: step {k} grad_norm: nan",
        "step {k} grad_norm: nan, skipping this batch",
        "step {k}: gradient overflow, grad_norm: nan",
        "step {k} max_grad_norm: nan",
        "step {k} avg grad_norm: 0.7 grad_norm_before: nan",
        " iteration {k} | loss scale: 1.0 | grad norm: nan | number of skipped iterations:  10 |",
        " iteration {k} | loss scale: 1.0 | number of nan iterations:   0 |",
    ],
)
def test_other_words_with_nan_are_no_gradient_norm(form: str, shipped: RuleSet, tmp_path: Path) -> None:
    written = [form.format(k=k) for k in range(300)]
    assert told(shipped, tmp_path / "log", written, rule=NORM_LOST) == []


@pytest.mark.parametrize(
    "form",
    [
        "2020-07-17 07:11:02 | INFO | train_inner | epoch 001:   {k} / 160368 ppl=1, num_updates={k}, gnorm=nan",
        "Train: [1/300][{k}/1251] time 0.6 grad_norm nan (nan)",
        "mmengine - INFO - Iter(train) [{k}/2046]  lr: 1.0e-04  grad_norm: nan",
        "step {k} | train/grad_norm: nan",
        "step {k} gradient norm = nan",
        "step {k} gradient_norm: tensor(nan, device='cuda:0')",
        "step:[{k}/19], overflow cond: False, loss_scale: 1.0, global_norm: [nan]",
        '{{"step": {k}, "grad_norm": NaN}}',
        "STEP {k} step {k} GRAD_NORM: nan",
        "step {k} grad_norm: NAN",
    ],
)
def test_a_gradient_norm_is_read_in_the_ways_it_is_printed(
    form: str, shipped: RuleSet, tmp_path: Path
) -> None:
    written = [form.format(k=k) for k in range(200, 500)]
    assert len(told(shipped, tmp_path / "log", written, rule=NORM_LOST)) == 1


HISTORY = "{'loss': nan, 'grad_norm': nan}, "  # as a Trainer's whole log_history is printed


@pytest.mark.parametrize("word", ["5f", "a.", "norm ", "loss ", "grad_norm: ", " ", "x_", HISTORY])
def test_a_long_line_beside_lines_with_nan_takes_no_time(word: str, shipped: RuleSet, tmp_path: Path) -> None:
    began_s = time.process_time()
    written = ["step 1 loss: nan", word * (40_000 // len(word)), "step 2 grad_norm: nan"]
    assert told(shipped, tmp_path / "log", written) == []
    assert time.process_time() - began_s < 5.0


def test_a_gradient_norm_beside_a_loss_that_is_told_as_lost_is_not_told_too(
    shipped: RuleSet, tmp_path: Path
) -> None:
    written = lines(TITAN, ["2.31", *["nan"] * 300])
    assert len(told(shipped, tmp_path / "log", written)) == 1
    assert told(shipped, tmp_path / "log", written, rule=NORM_LOST) == []


def test_norms_of_the_same_step_by_several_ranks_are_one(shipped: RuleSet, tmp_path: Path) -> None:
    few = norms(SOUND, ["0.7", *["nan"] * (LEAST_NORMS - 1)])
    eight = [f"[rank{rank}]: {line}" for line in few for rank in range(8)]
    assert told(shipped, tmp_path / "log", eight, ranks=8, rule=NORM_LOST) == []
    unnumbered = [line for line in norms(NO_NUMBER, ["nan"] * (LEAST_NORMS - 1)) for _ in range(8)]
    assert told(shipped, tmp_path / "b", unnumbered, ranks=8, rule=NORM_LOST) == []
