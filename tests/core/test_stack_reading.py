"""Where one rank stands, and the processes that it has started, by what py-spy prints of them."""

import pytest

from sentinel.core.stacks.reading import own_frames, read
from tests.core.hung_ranks import rank, stacks


def test_who_waits_for_a_gpu_may_wait_for_others_and_a_call_without_a_frame_tells_nothing() -> None:
    told = [stack for text in stacks("gpu") if (stack := read(text)) is not None]
    assert [stack.waits.partition(" ")[0] for stack in told] == ["synchronize", "_engine_run_backward", ""]
    assert not any(stack.surely for stack in told)
    assert told[1].others[0] == "Slow.backward (gpu.py:79)"


@pytest.mark.parametrize(
    ("frames", "called"),
    [
        ("all_reduce (torch/distributed/distributed_c10d.py:3)\nmain (train.py:88)", "train.py:88"),
        (
            "all_gather (torch/distributed/distributed_c10d.py:3)\ngather (accelerate/utils/operations.py:9)\n"
            "evaluate (/home/me/job/eval.py:5)\nmain (train.py:7)",
            "/home/me/job/eval.py:5",
        ),
        (
            "wait (threading.py:3)\nget (/usr/lib/python3/dist-packages/foo/bar.py:9)\nmain (train.py:7)",
            "train.py:7",
        ),
        ("spin (train.py:8)\n<module> (train.py:16)", ""),  # it is there itself
        ("all_reduce (torch/distributed/distributed_c10d.py:3)\nmain (torch/distributed/run.py:9)", ""),
    ],
)
def test_the_line_of_the_program_is_the_innermost_that_no_library_has(frames: str, called: str) -> None:
    found = read(rank(0, frames))
    assert found is not None
    assert found.called == called


HELPERS = """helper pid 812 (D in nfs_wait_bit_killable), python3.11
      read (data.py:20)
      __getitem__ (data.py:9)
      _worker_loop (torch/utils/data/_utils/worker.py:349)
helper pid 813 (S in do_poll.constprop.0), python3.11
      poll (multiprocessing/connection.py:257)
      _worker_loop (torch/utils/data/_utils/worker.py:300)
helper pid 814 (R), cc1plus
      not read: Failed to get process executable name (is it gone?)
"""


def test_the_processes_that_a_rank_waits_for_are_read_and_are_no_threads_of_its_own() -> None:
    waits = rank(1, "_try_get_data (torch/utils/data/dataloader.py:1293)\nmain (ddp.py:12)")
    alone, found = read(waits), read(f"{waits}\n{HELPERS}")
    assert alone is not None
    assert found is not None
    assert (found.frames, found.others, found.talks) == (alone.frames, alone.others, alone.talks)
    assert [(one.pid, one.state, one.channel, one.program) for one in found.helpers] == [
        (812, "D", "nfs_wait_bit_killable", "python3.11"),
        (813, "S", "do_poll.constprop.0", "python3.11"),
        (814, "R", "", "cc1plus"),
    ]
    assert [(one.place, one.waits_for_work) for one in found.helpers] == [
        ("read (data.py:20)", False),
        ("_worker_loop (torch/utils/data/_utils/worker.py:300)", True),
        ("", False),
    ]
    assert alone.helpers == ()


def test_what_a_fork_keeps_of_its_parents_stack_is_not_where_the_child_stands() -> None:
    dump = rank(
        0,
        """wait (threading.py:320)
        Queue.get (multiprocessing/queues.py:103)
        worker (multiprocessing/pool.py:114)
        BaseProcess.run (multiprocessing/process.py:108)
        BaseProcess._bootstrap (multiprocessing/process.py:314)
        Popen._launch (multiprocessing/popen_fork.py:71)
        main (train.py:61)""",
    )
    assert [frame.partition(" ")[0] for frame in own_frames(dump)] == [
        "wait",
        "Queue.get",
        "worker",
        "BaseProcess.run",
    ]


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
    found = read(rank(0, frames))
    assert found is not None
    assert found.pause.startswith(where)
    assert bool(found.pause) == bool(where)
