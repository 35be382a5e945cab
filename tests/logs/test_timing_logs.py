"""Whole logs: steps go on, and what is printed in between is none. Lines are of timing_lines.toml's sources."""

import re
import tomllib
from pathlib import Path

import pytest

from sentinel.core.now import Now
from sentinel.core.timing.performance import RankTiming
from sentinel.core.timing.statistics import Histogram
from sentinel.logs.reader import RankLog
from sentinel.logs.ruleset import RuleSet
from sentinel.logs.text import plain

NOW = Now(mono_s=5.0, wall_s=1_750_000_000.0)
LINES = tomllib.loads((Path(__file__).parent / "timing_lines.toml").read_text())["line"]
NONE = [
    line
    for line in (Path(__file__).parent / "not_iterations.txt").read_text().splitlines()
    if not line.startswith("# ")
]


def every_ten_seconds(lines: list[str], rank: RankTiming, rules: RuleSet, path: Path) -> None:
    """Each of `lines` is printed and read ten seconds after the one before."""
    path.write_text("")
    log = RankLog(path, rules)
    for n, line in enumerate(lines):
        with path.open("a") as file:
            file.write(line)
        rank.caught_up = True
        rank.fold(log.poll(Now(mono_s=100.0 + 10 * n, wall_s=NOW.wall_s)).iterations)


def told(text: str, rules: RuleSet, path: Path) -> list[tuple[int | None, float | None]]:
    path.write_text(text)
    return [(one.step, one.e2e_ms) for one in RankLog(path, rules).poll(NOW).iterations]


def steps(text: str, rules: RuleSet, path: Path) -> list[int | None]:
    return [step for step, _ in told(text, rules, path)]


@pytest.mark.parametrize("line", NONE)
def test_what_is_no_iteration_is_none_however_often_it_comes(
    line: str, shipped: RuleSet, tmp_path: Path
) -> None:
    assert told(f"{line}\n" * 3, shipped, tmp_path / "log") == []
    for form in shipped.formats:
        assert form.literal not in line.encode() or form.parse(line.encode()) is None, form.row.id


@pytest.mark.parametrize("loss", [b"nan", b"-1.5", b"1.5e-05", b"123456"])
def test_a_line_is_read_whatever_its_loss_and_however_far_it_has_come(loss: bytes, shipped: RuleSet) -> None:
    """Iterations that seem to stop are a hang."""
    forms = {form.row.id: form for form in shipped.formats}
    for entry in LINES:
        line = re.sub(
            rb"(?i)(loss\w*\W{1,3})[-+]?\d[\d.]*(?:e[-+]\d+)?",
            rb"\g<1>" + loss,
            plain(entry["line"].encode()),
        )
        assert forms[entry["format"]].parse(line) is not None, line
        line = re.sub(rb"(?<![\d.:])[1-9]\d*(?=[/\]:,; |)]|$)", b"123456", line)
        assert forms[entry["format"]].parse(line) is not None, line


IMAGENET = """\
Epoch: [0][0/5005]\tTime 203.582 (203.582)\tData 196.425 (196.425)\tLoss 6.9348 (6.9348)\tPrec@1 0.391 (0.391)
Epoch: [0][5000/5005]\tTime 0.550 (12.315)\tData 0.001 (11.761)\tLoss 6.7401 (6.8409)\tPrec@1 0.781 (0.274)
Test: [1460/2500]       Time 0.036 (0.039)      Loss 2.6388 (0.9189)    Acc@1 45.000 (76.451)   Acc@5 55.000 (93.474)
Test: [1470/2500]       Time 0.036 (0.039)      Loss 1.0036 (0.9248)    Acc@1 85.000 (76.360)   Acc@5 90.000 (93.402)
 * Acc@1 76.130 Acc@5 92.862
Epoch: [1][  10/5005]\tTime  0.540 ( 0.372)\tData  0.002 ( 0.073)\tLoss 6.9802e+00 (7.0827e+00)\tAcc@1   0.00 (  0.08)
"""


def test_imagenet_goes_on_across_epochs_and_its_test_counts_nothing(shipped: RuleSet, tmp_path: Path) -> None:
    assert told(IMAGENET, shipped, tmp_path / "log") == [(0, 203582.0), (5000, 550.0), (5015, 540.0)]


LLAMA2_C = """\
490 | loss 5.7543 | lr 4.900000e-05 | 8060.78ms | mfu 0.21%
Created a PretokDataset with rng seed 42
step 500: train loss 5.7373, val loss 5.9544
saving checkpoint to out
wrote out/model.bin
500 | loss 6.0091 | lr 5.000000e-05 | 870067.53ms | mfu 0.19%
510 | loss 5.2391 | lr 4.999939e-05 | 8175.64ms | mfu 0.19%
"""


def test_an_evaluation_in_between_is_no_step(shipped: RuleSet, tmp_path: Path) -> None:
    assert steps(LLAMA2_C, shipped, tmp_path / "log") == [490, 500, 510]
    nanogpt = "step 0: train loss 10.9, val loss 10.9\n" + "".join(
        f"iter {n}: loss 5.4983, time 33785.52ms, mfu 0.96%\n" for n in (340, 350)
    )
    assert steps(nanogpt, shipped, tmp_path / "log") == [340, 350]


def test_timm_goes_on_and_its_test_counts_nothing(shipped: RuleSet, tmp_path: Path) -> None:
    text = (
        "Train: 0 [  50/10009 (  0%)]  Loss:  6.927 (6.9180)  Time: 1.462s,   87.53/s  (1.896s,   67.51/s)\n"
        "Test: [   0/390]  Time: 2.346 (2.346)  Loss:  6.9 (6.9)  Acc@1:  0.0 (  0.0)  Acc@5:  0.0 (  0.0)\n"
        "Train: 1 [   0/10009 (  0%)]  Loss:  6.527 (6.5270)  Time: 1.500s,   87.53/s  (1.896s,   67.51/s)\n"
    )
    assert told(text, shipped, tmp_path / "log") == [(50, 1462.0), (10009, 1500.0)]


def test_the_bar_of_transformers_counts_and_its_dicts_and_evaluation_do_not(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = (
        "  4%|▍         | 1/23 [00:07<02:39,  7.23s/it]\n"
        "{'loss': 1.2607, 'learning_rate': 6.31578947368421e-06, 'epoch': 0.03}\n"
        "  9%|▉         | 2/23 [00:14<02:32,  7.23s/it]\n"
        "***** Running Evaluation *****\n"
        " 50%|█████     | 2/4 [00:01<00:01,  4.00it/s]\n"
        "{'eval_loss': 1.1, 'eval_runtime': 2.2, 'epoch': 0.03}\n"
        " 13%|█▎        | 3/23 [00:21<02:24,  7.23s/it]\n"
    )
    assert steps(text, shipped, tmp_path / "log") == [1, 2, 3]


def test_a_yolo_counts_on_through_a_validation_that_is_longer_than_an_epoch(
    shipped: RuleSet, tmp_path: Path
) -> None:
    bar = "    {}/300      2.95G     0.3137     0.3809     0.7961          3        640: {}%|███| {}/246 "
    bar += "[02:17<00:00,  1.79it/s]\n"
    val = "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 90%|██| "
    val += "{}/983 [02:55<00:00,  5.60it/s]\n"
    text = bar.format(1, 99, 245) + bar.format(1, 100, 246) + val.format(900) + val.format(983)
    text += bar.format(2, 1, 1) + bar.format(2, 1, 2)
    assert steps(text, shipped, tmp_path / "log") == [245, 246, 247, 248]


def test_what_a_script_prints_counts_from_its_second_line_on(shipped: RuleSet, tmp_path: Path) -> None:
    for line in (
        "step: {} loss: 0.5",
        "[step {}] lr=0.1, loss=0.3",
        "Step {}/100, time: 0.3s, loss 0.2",
        "iter {} | loss 0.7 | best 0.4 | val_loss 0.6",
        "step {} time 0.5s loss 0.1 (1% complete)",
        "/home/u/tests/train.py:12 INFO step {} loss 0.5",
    ):
        text = "".join(line.format(n) + "\n" for n in (5, 10, 15))
        assert steps(text, shipped, tmp_path / "log") == [10, 15], line
    assert steps("step 5 loss 0.5\n" * 9, shipped, tmp_path / "log") == []
    assert steps("".join(f"step {n // 4} loss 0.5\n" for n in range(16)), shipped, tmp_path / "log") == [
        1,
        2,
        3,
    ]


def test_batches_that_begin_anew_have_no_number_and_those_of_a_known_epoch_go_on(
    shipped: RuleSet, tmp_path: Path
) -> None:
    """A step that goes back would be a wrong step time, and progress that is none."""
    for line in (
        "[{e}, {n:5d}] loss: 2.173\n",
        "Epoch {e} Batch {n} Loss 2.1\n",
        "  batch {n} loss: 0.5\n",
        "[{n}/400] loss: 0.5\n",
        "Training loss (for one batch) at step {n}: 0.5\n",
    ):
        text = "".join(line.format(e=e, n=n) for e in (1, 2) for n in (100, 200, 300))
        assert set(steps(text, shipped, tmp_path / "log")) == {None}, line
        assert len(steps(text, shipped, tmp_path / "log")) >= 5, line
    for line, first in (
        ("[{z}/2][{n}/400]\tLoss_D: 1.3\tLoss_G: 3.6\n", [100]),
        ("===> Epoch[{e}]({n}/400): Loss: 0.5\n", [100]),
        ("Epoch {e}/2, batch {n}/400, loss 0.5\n", []),
    ):
        text = "".join(line.format(e=e, z=e - 1, n=n) for e in (1, 2) for n in (100, 200, 300))
        assert steps(text, shipped, tmp_path / "log") == [*first, 200, 300, 500, 600, 700], line


def test_the_time_between_lines_is_right_where_the_batches_begin_anew(
    shipped: RuleSet, tmp_path: Path
) -> None:
    rank = RankTiming(0, 8, Histogram(), [])
    lines = [f"Epoch {1 + n // 3} Batch {100 * (n % 3)} Loss 0.5\n" for n in range(24)]
    every_ten_seconds(lines, rank, shipped, tmp_path / "log")
    assert rank.stats is not None
    assert rank.stats.step_ms == rank.stats.step_low_ms == pytest.approx(10_000.0)
    assert rank.steps_told is False


def test_epochs_of_the_tutorial_on_ddp_count_once_whatever_gpus_print_them(
    shipped: RuleSet, tmp_path: Path
) -> None:
    text = "".join(
        f"[GPU{gpu}] Epoch {n} | Batchsize: 32 | Steps: 32\n" for n in range(4) for gpu in range(4)
    )
    assert steps(text, shipped, tmp_path / "log") == [1, 2, 3]


def test_epochs_count_where_nothing_finer_is_told(shipped: RuleSet, tmp_path: Path) -> None:
    epochs = [f"Epoch {n}, train loss: 0.5, val loss: 0.6\n" for n in range(1, 5)]
    assert steps("".join(epochs), shipped, tmp_path / "log") == [2, 3, 4]
    finer = [f"epoch {n} step {10 * n + k} loss 0.5\n" for n in range(1, 5) for k in (1, 2)]
    text = "".join(finer[2 * n] + finer[2 * n + 1] + epochs[n] for n in range(4))
    assert steps(text, shipped, tmp_path / "log") == [12, 21, 22, 31, 32, 41, 42]


def test_an_epoch_lends_no_step(shipped: RuleSet, tmp_path: Path) -> None:
    line = "this iteration hardware time is 1.5 and e2e time is 2.5 ms.\n"
    text = "".join(line + line + f"Epoch {n} loss 0.5\n" for n in range(1, 4))
    assert steps(text, shipped, tmp_path / "log") == [None] * 6
    text = "".join(f"step {n} loss 0.5\n" + line for n in range(1, 4))
    assert steps(text, shipped, tmp_path / "log") == [1, 2, 3]


def test_a_bar_that_was_none_of_the_training_soon_gives_way(shipped: RuleSet, tmp_path: Path) -> None:
    text = "".join(f" 33%|███ | {n}/600 [01:11<01:58,  4.00it/s]\n" for n in (199, 200))
    text += "".join(f"step {n} loss 0.5\n" for n in range(1, 10))
    assert steps(text, shipped, tmp_path / "log") == [199, 200, 6, 7, 8, 9]


def test_a_line_every_fifty_steps_gives_the_time_of_a_step(shipped: RuleSet, tmp_path: Path) -> None:
    rank = RankTiming(0, 4, Histogram(), [])
    lines = [f"Epoch 1 | step {50 * n} | loss 0.5 | 10 samples/s\n" for n in range(14)]
    every_ten_seconds(lines, rank, shipped, tmp_path / "log")
    assert rank.last_step == 650
    assert rank.step_ms == pytest.approx(200.0)


def test_the_line_that_deepspeed_prints_at_the_start_is_no_iteration(
    shipped: RuleSet, tmp_path: Path
) -> None:
    def line(step: int) -> str:
        return f"[INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]\n"

    path = tmp_path / "log"
    assert steps(line(0), shipped, path) == []
    assert steps(line(0) + line(0), shipped, path) == [], "another engine of the same program"
    assert steps(line(0) + "loading\n" + line(10) + line(20), shipped, path) == [10, 20]
    assert steps(line(500) + line(0), shipped, path) == [0], "an epoch that counts anew"


def test_jobs_that_print_one_number_in_each_epoch_make_iterations(shipped: RuleSet, tmp_path: Path) -> None:
    text = "".join(f"epoch: {epoch} step: 1875, loss is 0.5\n" for epoch in range(1, 6))
    assert len(steps(text, shipped, tmp_path / "log")) == 5
