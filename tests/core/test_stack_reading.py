"""Stacks of all ranks of a hung job → the rank for which the others wait.

`stacks/` was printed by py-spy 0.4 of two programs under torchrun (torch 2.15, gloo): in `loop` rank 1 spins while the
others stand in an all_reduce, in `data_loader` its loader gives no batch while rank 0 is in the backward pass of
DistributedDataParallel. `gpu` was printed of three programs (torch 2.11, an H200) behind a kernel that never ends:
`torch.cuda.synchronize()`, a backward pass that is in it, and the launch of another kernel, which blocks too.
`torch-1.13` is Debian's torch with the program of tests/trainers, of which rank 1 loops.
"""

import re
from pathlib import Path

import pytest
from msgspec import structs

from sentinel.core.model import Cause, Symptom, Verdict
from sentinel.core.stack_reading import named, read

HERE = Path(__file__).parent / "stacks"
HUNG = Verdict(
    symptom=Symptom.HANG, cause=Cause.UNKNOWN, failure="hang", scope="job", sentence="The job hangs.", rank=0
)


def stacks(name: str) -> list[str]:
    text = (HERE / f"{name}.txt").read_text()
    return [part.rstrip() for part in re.split(r"^(?=rank )", text, flags=re.MULTILINE) if part]


@pytest.mark.parametrize(
    ("name", "place", "where"),
    [
        ("loop", "spin (train.py:8)", "all others wait for it in all_reduce (torch/distributed/"),
        (
            "data_loader",
            "_MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1293)",
            "the other waits for it in _engine_run_backward (torch/autograd/graph.py",
        ),
        (
            "torch-1.13",
            "loops (ranks.py:32)",
            "the other waits for it in backward (torch/autograd/__init__.py",
        ),
    ],
)
def test_the_rank_that_did_not_come_is_named_with_where_it_stands(name: str, place: str, where: str) -> None:
    v = named(HUNG, stacks(name), 1)
    assert (v.rank, v.worker) == (0, 1)
    assert f"Rank 1 stands in {place}; {where}" in v.sentence


def test_the_one_that_a_signal_has_stopped_is_named_wherever_it_stands() -> None:
    waiting, _, other = stacks("loop")
    stopped = re.sub(r"pid (\d+) \(\S", r"pid \1 (T", other)
    v = named(HUNG, [waiting, stopped], 1)
    assert (v.rank, v.worker) == (0, 2)
    assert re.search(r"Rank 2 \(pid \d+\) is stopped by a signal\.$", v.sentence), v.sentence
    assert named(HUNG, [stopped, stopped], 1) == HUNG


def test_of_ranks_that_sentinel_started_itself_it_is_the_rank() -> None:
    v = named(structs.replace(HUNG, rank=None), stacks("loop"), 3)
    assert (v.rank, v.worker) == (1, None)


def test_who_is_named_already_stays_so() -> None:
    for verdict in (structs.replace(HUNG, worker=2), structs.replace(HUNG, rank=2)):
        assert named(verdict, stacks("loop"), 3) == verdict


def test_nobody_is_named_where_the_stacks_do_not_tell() -> None:
    loop = stacks("loop")
    waiting, spinning, _ = loop
    for known in (
        [],
        [spinning],
        [waiting, waiting],  # all of them wait
        [spinning, spinning, waiting],
        [waiting, spinning, "rank 2: gone"],
        [waiting, spinning, "rank 2: pid 7 (D)\nno Python stack: Permission denied"],
    ):
        assert named(HUNG, known, 1) == HUNG


def test_who_may_wait_for_the_gpu_is_not_blamed() -> None:
    _, backward, item = stacks("gpu")
    assert named(HUNG, [item, backward], 1) == HUNG  # `loss.item()` has no frame of its own


def test_who_runs_python_while_the_others_are_in_the_backward_pass_is_the_one_they_wait_for() -> None:
    _, spinning, _ = stacks("loop")  # (active+gil): who waits for a GPU is (active)
    backward = stacks("data_loader")[0]
    verdict = named(HUNG, [backward, spinning], 1)
    assert verdict.worker == 1
    assert (
        "Rank 1 stands in spin (train.py:8); the other waits for it in _engine_run_backward"
        in verdict.sentence
    )


def test_who_waits_for_a_gpu_may_wait_for_others_and_a_call_without_a_frame_tells_nothing() -> None:
    told = [stack for text in stacks("gpu") if (stack := read(text)) is not None]
    assert [stack.waits.partition(" ")[0] for stack in told] == ["synchronize", "_engine_run_backward", ""]
    assert not any(stack.surely for stack in told)
    assert told[1].others[0] == "Slow.backward (gpu.py:79)"
    assert named(HUNG, stacks("gpu"), 3) == HUNG


def test_what_a_rank_does_in_a_forward_pass_below_a_distributed_wrapper_is_its_own() -> None:
    waiting, spinning, _ = stacks("loop")
    below = spinning.replace(
        "    <module> (train.py:16)",
        "    _call_impl (torch/nn/modules/module.py:1775)\n"
        "    forward (torch/distributed/fsdp/fully_sharded_data_parallel.py:854)\n    <module> (train.py:16)",
    )
    assert named(HUNG, [waiting, below], 1).worker == 1


def test_of_anything_but_a_hang_nothing_is_said() -> None:
    lost = structs.replace(HUNG, symptom=Symptom.RANK_LOST)
    assert named(lost, stacks("loop"), 1) == lost


# Innermost first, as py-spy prints them; by Python 3.11 and newer with the class.
@pytest.mark.parametrize(
    ("frames", "where"),
    [
        (
            """gather_object (torch/distributed/distributed_c10d.py:3)
            Trainer.evaluation_loop (transformers/trainer.py:9)
            Trainer._maybe_log_save_evaluate (transformers/trainer.py:8)
            Trainer._inner_training_loop (transformers/trainer.py:7)""",
            "Trainer.evaluation_loop",
        ),
        (
            """_save (torch/serialization.py:4)
            save (torch/serialization.py:3)
            Trainer._save_checkpoint (transformers/trainer.py:9)
            Trainer.train (transformers/trainer.py:7)""",
            "_save (torch/ser",
        ),
        (
            """barrier (torch/distributed/distributed_c10d.py:3)
            Strategy.barrier (lightning/pytorch/strategies/ddp.py:3)
            Trainer.save_checkpoint (lightning/pytorch/trainer/trainer.py:9)
            ModelCheckpoint.on_train_epoch_end (lightning/pytorch/callbacks/model_checkpoint.py:3)
            _FitLoop.run (lightning/pytorch/loops/fit_loop.py:7)""",
            "Trainer.save_checkpoint",
        ),
        (
            """__next__ (lightning/pytorch/loops/fetchers.py:3)
            run (lightning/pytorch/loops/evaluation_loop.py:9)
            _fit_impl (lightning/pytorch/trainer/trainer.py:7)""",
            "run (lightning/",
        ),
        (
            """all_gather (torch/distributed/distributed_c10d.py:3)
            Accelerator.gather_for_metrics (accelerate/accelerator.py:9)
            main (train.py:7)""",
            "Accelerator.gather_for_metrics",
        ),
        (
            """FullyShardedDataParallel.state_dict (torch/distributed/fsdp/api.py:3)
            main (train.py:7)""",
            "FullyShardedDataParallel.state_dict",
        ),
        ("estimate_loss (train.py:3)\n<module> (train.py:7)", "estimate_loss"),
        ("Dataset._map_single (datasets/arrow_dataset.py:3)\nmain (train.py:7)", "Dataset._map_single"),
        (
            "barrier (dist.py:1)\nLM.prepare_data (data.py:3)\nTrainer.fit (lightning/trainer.py:7)",
            "LM.prepare",
        ),
        ("training_step (train.py:1)\ncross_validate (train.py:3)", ""),
        (
            """synchronize (torch/cuda/__init__.py:1)
            Trainer._prepare_inputs (transformers/trainer.py:3)
            Trainer.training_step (transformers/trainer.py:7)""",
            "",
        ),
        (
            """_engine_run_backward (torch/autograd/graph.py:1)
            backward (torch/autograd/__init__.py:3)
            evaluate_and_train (train.py:7)""",
            "",
        ),
        (
            """_nested_gather (transformers/trainer.py:1)
            Trainer._maybe_log_save_evaluate (transformers/trainer.py:3)
            Trainer.train (transformers/trainer.py:7)""",
            "",
        ),
        ("checkpoint (torch/utils/checkpoint.py:1)\nforward (model.py:3)\nmain (train.py:7)", ""),
        (
            "_MultiProcessingDataLoaderIter._get_data (torch/utils/data/dataloader.py:1)\nmain (train.py:7)",
            "",
        ),
        ("evaluate_loss (model.py:3)\nLM.training_step (model.py:9)\nTrainer.fit (trainer.py:7)", ""),
        ("ActorCriticPolicy.evaluate_actions (policies.py:3)\nPPO.train (ppo.py:7)", ""),
        ("load_data (data.py:3)\nShards.__getitem__ (data.py:9)\ntrain_epoch (train.py:7)", ""),
        ("build_val_dataset (d.py:3)\nShards.__getitem__ (d.py:9)\nmain (train.py:7)", "build_val_dataset"),
        (
            "download_and_prepare (d.py:3)\nShards.__getitem__ (d.py:9)\nmain (train.py:7)",
            "download_and_prepare",
        ),
    ],
)
def test_an_evaluation_a_save_and_a_preparation_of_data_are_known_by_the_innermost_function_that_tells(
    frames: str, where: str
) -> None:
    stack = "".join(f"\n    {frame.strip()}" for frame in frames.splitlines())
    found = read(f'rank 0: pid 7 (S)\nThread 7 (idle): "MainThread"{stack}')
    assert found is not None
    assert found.pause.startswith(where)
    assert bool(found.pause) == bool(where)
