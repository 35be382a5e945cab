"""The stacks of all ranks of a hung job → the rank for which the others wait, and where they do."""

import re

import pytest
from msgspec import structs

from sentinel.core.model import Cause, Symptom, Verdict
from sentinel.core.stacks.verdict import named
from tests.core.hung_ranks import in_call, rank, stacks

HUNG = Verdict(
    symptom=Symptom.HANG, cause=Cause.UNKNOWN, failure="hang", scope="job", sentence="The job hangs.", rank=0
)


OF_JOB = structs.replace(HUNG, rank=None)


def said(texts: list[str], size: int) -> str:
    """By stacks, of a job of which logs do not tell who it was."""
    return named(OF_JOB, texts, size).sentence.removeprefix("The job hangs.").strip()


ALL_REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:4181)"
BARRIER = "barrier (torch/distributed/distributed_c10d.py:4181)"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "loop",
            f"Rank 1 stands in spin (train.py:8); all 2 others wait for it in {ALL_REDUCE}, called at train.py:12.",
        ),
        (
            "data_loader",
            "Rank 1 waits in _MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1293), "
            "called at ddp.py:12; the other waits for it in _engine_run_backward (torch/autograd/graph.py:1113), "
            "called at ddp.py:13.",
        ),
        (
            "torch-1.13",
            "Rank 1 stands in loops (ranks.py:32); the other waits for it in backward "
            "(torch/autograd/__init__.py:197), called at ranks.py:82.",
        ),
    ],
)
def test_the_rank_that_did_not_come_is_named_with_where_it_stands(name: str, told: str) -> None:
    v = named(HUNG, stacks(name), 1)
    assert (v.rank, v.worker) == (0, 1)
    assert v.sentence == f"The job hangs. {told}"


def test_the_one_that_a_signal_has_stopped_is_named_wherever_it_stands() -> None:
    waiting, spinning, other = stacks("loop")
    stopped = re.sub(r"pid (\d+) \(\S", r"pid \1 (T", other)
    v = named(HUNG, [waiting, stopped], 1)
    assert (v.rank, v.worker) == (0, 2)
    assert re.search(
        r"Rank 2 \(pid \d+\) is stopped by a signal, in all_reduce .*; the other waits for it in all_reduce ",
        v.sentence,
    )
    alone = named(HUNG, [waiting, spinning, stopped], 1).sentence
    assert alone.endswith(f") is stopped by a signal, in {ALL_REDUCE}, called at train.py:12.")
    blind = "rank 2: pid 7 (T)\nno Python stack: no permission"
    assert (
        "Rank 2 (pid 7) is stopped by a signal; the other waits" in named(HUNG, [waiting, blind], 1).sentence
    )
    assert named(HUNG, [stopped, stopped], 1) == HUNG


def test_the_others_are_told_by_where_they_wait_the_most_first_and_never_at_length() -> None:
    spins = rank(3, "spin (data.py:8)\n<module> (train.py:61)", where="R", thread="active+gil")
    waiting = [in_call(n, "all_reduce", 88) for n in range(4, 16)] + [
        in_call(n, "barrier", 101) for n in (0, 1)
    ]
    told = said([*waiting, in_call(2, "all_reduce", 70), spins], 16)
    assert told == (
        f"Rank 3 stands in spin (data.py:8); all 15 others wait for it: 12 (ranks 4-15) in {ALL_REDUCE}, called at "
        f"train.py:88, 2 (ranks 0, 1) in {BARRIER}, called at train.py:101, 1 elsewhere."
    )
    deep = "/home/somebody/" + "experiments/" * 30
    far = f"{'a_long_name_of_a_function' * 9} ({deep}data.py:8)\n<module> ({deep}train.py:61)"
    many = [
        in_call(n, "all_reduce", n % 500).replace("(train.py", f"({deep}train.py") for n in range(1, 4000, 2)
    ]
    sentence = said([rank(0, far, where="R", thread="active+gil"), *many], 2001)
    assert len(sentence) < 600, sentence
    assert "data.py:8)" in sentence


def test_by_which_rank_logs_name_stacks_add_where_it_stands_once() -> None:
    verdict = structs.replace(HUNG, rank=1)
    told = named(verdict, stacks("loop"), 3)
    assert (told.rank, told.worker) == (1, None)
    assert "Rank 1 stands in spin (train.py:8); all 2 others wait" in told.sentence
    assert named(told, stacks("loop"), 3) == told
    by_launcher = named(structs.replace(HUNG, worker=1), stacks("loop"), 1)
    assert "Rank 1 stands in spin" in by_launcher.sentence
    of_two_launchers = structs.replace(HUNG, rank=1)  # its number is not one of those that the stacks have
    assert named(of_two_launchers, stacks("loop"), 2) == of_two_launchers


def test_of_one_that_waits_alone_in_another_collective_it_is_said_that_it_went_another_way() -> None:
    others = [in_call(n, "all_reduce", 88) for n in range(16) if n != 3]
    v = named(OF_JOB, [*others, in_call(3, "barrier", 101)], 16)
    assert v.rank == 3
    assert v.sentence == (
        f"The job hangs. Rank 3 waits in {BARRIER}, called at train.py:101, where no other rank does; all 15 others "
        f"wait in {ALL_REDUCE}, called at train.py:88: it went another way, or did not get through the one before."
    )


def test_of_two_groups_that_wait_in_different_collectives_nobody_is_accused() -> None:
    half = [in_call(n, "all_reduce", 88) for n in range(8)] + [
        in_call(n, "barrier", 101) for n in range(8, 16)
    ]
    v = named(OF_JOB, half, 16)
    assert (v.rank, v.worker) == (None, None)
    assert v.sentence == (
        f"The job hangs. Ranks 0-7 wait in {ALL_REDUCE}, called at train.py:88, ranks 8-15 in {BARRIER}, called at "
        "train.py:101: they wait for each other."
    )
    assert named(v, half, 16) == v  # once
    two = named(OF_JOB, [in_call(0, "all_reduce", 88), in_call(1, "barrier", 101)], 2)
    assert two.rank is None
    assert two.sentence.startswith("The job hangs. Rank 0 waits in all_reduce (")


@pytest.mark.parametrize(
    "odd",
    [
        in_call(3, "all_reduce", 101),  # `if rank == 3:` may come to the same one by a line of its own
        in_call(3, "broadcast", 101),  # whose first rank goes on before the others
        in_call(3, "recv", 101),
        in_call(3, "batch_isend_irecv", 101),
        in_call(3, "_wait_for_something", 101),
        rank(3, "synchronize (torch/cuda/__init__.py:1162)\n<module> (train.py:101)"),
        rank(3, "_engine_run_backward (torch/autograd/graph.py:869)\n<module> (train.py:101)"),
        rank(
            3,
            "barrier (torch/distributed/distributed_c10d.py:1)\n"
            "reduce (megatron/core/tensor_parallel/mappings.py:9)\n<module> (train.py:101)",
        ),
        rank(
            3,
            "barrier (torch/distributed/distributed_c10d.py:1)\n"
            "_step (torch/distributed/pipelining/schedules.py:9)\n<module> (train.py:101)",
        ),
    ],
)
def test_where_ranks_need_not_meet_it_is_shown_who_waits_where_and_nobody_is_accused(odd: str) -> None:
    v = named(OF_JOB, [odd, *(in_call(n, "all_reduce", 88) for n in (0, 1, 2))], 4)
    assert (v.rank, v.worker, v.sentence) == (None, None, OF_JOB.sentence)
    assert v.evidence[0] == f"ranks 0-2 wait in {ALL_REDUCE}, called at train.py:88"
    assert v.evidence[1].startswith("rank 3 waits in ")
    assert v.evidence[1].endswith(", called at train.py:101")


def test_where_some_were_not_seen_nobody_went_another_way() -> None:
    seen = [*(in_call(n, "all_reduce", 88) for n in (0, 1, 2)), in_call(3, "barrier", 101)]
    for texts, size in ((seen, 8), (seen[1:], 3)):
        v = named(OF_JOB, texts, size)
        assert (v.rank, v.sentence) == (None, OF_JOB.sentence)


def test_that_all_wait_in_one_place_is_said() -> None:
    texts = [in_call(n, "all_reduce", 88) for n in range(4)]
    assert said(texts, 4) == f"All 4 ranks wait in {ALL_REDUCE}, called at train.py:88."
    assert said(texts, 8) == f"All 4 ranks that were seen wait in {ALL_REDUCE}, called at train.py:88."
    backward = [
        rank(n, "_engine_run_backward (torch/autograd/graph.py:1)\nmain (train.py:9)") for n in range(2)
    ]
    assert said(backward, 2).startswith("All 2 ranks stand in _engine_run_backward (")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rank 2: gone", "has ended"),
        ("rank 2: pid 7 (Z)\nno Python stack: it is not there", "has ended (pid 7)"),
        (
            rank(2, "wait (threading.py:1)\n_shutdown (threading.py:1590)"),
            "ends, in _shutdown (threading.py:1590)",
        ),
        (
            rank(2, "join (multiprocessing/process.py:1)\n_exit_function (multiprocessing/util.py:360)"),
            "ends, in _exit_function (multiprocessing/util.py:360)",
        ),
        (
            rank(2, "destroy_process_group (torch/distributed/distributed_c10d.py:9)\nmain (train.py:120)"),
            "ends, in destroy_process_group (torch/distributed/distributed_c10d.py:9), called at train.py:120",
        ),
    ],
)
def test_the_only_one_that_has_ended_or_ends_is_the_one_for_which_the_others_wait(
    text: str, told: str
) -> None:
    waiting = [in_call(0, "all_reduce", 88), in_call(1, "all_reduce", 88)]
    v = named(OF_JOB, [*waiting, text], 3)
    assert v.rank == 2
    assert v.sentence == (
        f"The job hangs. Rank 2 {told}; all 2 others wait for it in {ALL_REDUCE}, called at train.py:88."
    )
    for another in (text.replace("rank 2:", "rank 3:"), stacks("loop")[1].replace("rank 1:", "rank 3:")):
        assert named(OF_JOB, [*waiting, text, another], 4).rank is None


def loader(helpers: str, number: int = 1) -> str:
    frames = (
        "Queue.get (multiprocessing/queues.py:113)\n_try_get_data (torch/utils/data/dataloader.py:1293)\n"
    )
    return f"{rank(number, frames + 'main (train.py:61)')}\n{helpers}".strip()


IDLE = """helper pid 811 (S in do_poll.constprop.0), python3.11
      poll (multiprocessing/connection.py:257)
      _worker_loop (torch/utils/data/_utils/worker.py:300)
"""
READS = """helper pid 812 (D in nfs_wait_bit_killable), python3.11
      read (codecs.py:322)
      read_image (data.py:20)
      _worker_loop (torch/utils/data/_utils/worker.py:349)
"""
BLIND = "helper pid 813 (D in nfs_wait_bit_killable), python3.11\n      not read: no permission\n"


@pytest.mark.parametrize(
    ("helpers", "told"),
    [
        (
            READS + IDLE,
            ", its worker (pid 812, D in nfs_wait_bit_killable) stands in read_image (data.py:20)",
        ),
        (
            IDLE + READS.replace("D in nfs_wait_bit_killable", "S in fifo_open"),
            ", its worker (pid 812, S in fifo_open) stands in read_image (data.py:20)",
        ),
        (BLIND, ", its worker (pid 813, D in nfs_wait_bit_killable, python3.11) is not through"),
        (IDLE, ""),
        ("", ""),
    ],
)
def test_of_the_rank_that_waits_for_a_worker_it_is_said_where_that_stands(helpers: str, told: str) -> None:
    texts = [in_call(0, "all_reduce", 88), loader(helpers)]
    assert said(texts, 2) == (
        "Rank 1 waits in _try_get_data (torch/utils/data/dataloader.py:1293), called at train.py:61"
        f"{told}; the other waits for it in {ALL_REDUCE}, called at train.py:88."
    )


def test_a_program_that_the_rank_runs_is_its_child() -> None:
    frames = "wait (subprocess.py:1264)\nrun (subprocess.py:548)\nbuild (kernels.py:30)\nmain (train.py:5)"
    texts = [
        in_call(0, "all_reduce", 88),
        f"{rank(1, frames)}\nhelper pid 9 (R), cc1plus\n      not read: no Python",
    ]
    assert "Rank 1 stands in build (kernels.py:30), its child (pid 9, R, cc1plus) is not through;" in said(
        texts, 2
    )
    # Of one that waits for something else, what it has started tells nothing.
    texts[1] = texts[1].replace("wait (subprocess.py:1264)\n    run (subprocess.py:548)\n", "")
    assert "child" not in said(texts, 2)


def test_a_rank_that_is_stuck_in_the_kernel_is_said_to_be() -> None:
    writes = rank(1, "write (data.py:8)\n<module> (train.py:61)", where="D in percpu_rwsem_wait")
    told = said([in_call(0, "all_reduce", 88), writes], 2)
    assert told.startswith(
        "Rank 1 (pid 7001, stuck in the kernel, in percpu_rwsem_wait) stands in write (data.py:8);"
    )


def test_a_stage_that_waits_for_the_next_one_is_not_blamed() -> None:
    passes = rank(
        1, "_communicate (megatron/core/pipeline_parallel/p2p_communication.py:9)\nmain (train.py:3)"
    )
    v = named(OF_JOB, [in_call(0, "all_reduce", 88), passes], 2)
    assert (v.rank, v.sentence) == (None, OF_JOB.sentence)
    asks = rank(1, "send (requests/adapters.py:9)\nmain (train.py:3)")  # another host
    assert named(OF_JOB, [in_call(0, "all_reduce", 88), asks], 2).rank == 1


def test_of_ranks_that_sentinel_started_itself_it_is_the_rank() -> None:
    v = named(structs.replace(HUNG, rank=None), stacks("loop"), 3)
    assert (v.rank, v.worker) == (1, None)


def test_who_is_named_already_stays_so() -> None:
    for verdict in (structs.replace(HUNG, worker=2), structs.replace(HUNG, rank=2)):
        assert named(verdict, stacks("loop"), 3) == verdict


def test_nobody_is_named_where_the_stacks_do_not_tell() -> None:
    waiting, spinning, last = stacks("loop")
    again = spinning.replace("rank 1:", "rank 2:")
    for known in (
        [],
        [spinning],
        [waiting, waiting, spinning],  # two call themselves by one number
        [waiting, spinning, again],
        [spinning, again],
        [waiting, spinning, "rank 2: gone"],
        [waiting, spinning, "rank 2: pid 7 (D)\nno Python stack: Permission denied"],
        [
            waiting,
            last,
            "rank 1: its launcher, below which no rank is seen: pid 7 (S)\nno Python stack: not Python",
        ],
    ):
        v = named(HUNG, known, 1)
        assert (v.rank, v.worker, v.sentence) == (0, None, HUNG.sentence)


def test_who_may_wait_for_the_gpu_is_not_blamed() -> None:
    _, backward, item = stacks("gpu")
    for texts in ([item, backward], stacks("gpu")):  # `loss.item()` has no frame of its own
        v = named(HUNG, texts, 1)
        assert (v.worker, v.sentence) == (None, HUNG.sentence)
    assert "rank 2 stands in <module> (gpu.py:63)" in v.evidence


def test_who_runs_python_while_the_others_are_in_the_backward_pass_is_the_one_they_wait_for() -> None:
    _, spinning, _ = stacks("loop")  # (active+gil): who waits for a GPU is (active)
    backward = stacks("data_loader")[0]
    verdict = named(HUNG, [backward, spinning], 1)
    assert verdict.worker == 1
    assert (
        "Rank 1 stands in spin (train.py:8); the other waits for it in _engine_run_backward"
        in verdict.sentence
    )


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


def test_of_ranks_that_were_not_all_seen_none_is_named() -> None:
    spins = rank(0, "log (train.py:61)", where="R", thread="active+gil")
    texts = [spins, *(in_call(n, "all_reduce", 88) for n in (1, 2, 3))]
    v = named(OF_JOB, texts, 8)
    assert (v.rank, v.sentence) == (None, OF_JOB.sentence)
    assert named(OF_JOB, texts, 4).rank == 0


def test_a_rank_that_may_wait_for_its_gpu_is_not_named_whatever_the_others_wait_in() -> None:
    """`loss.item()` for a log of rank 0: the collectives of the others are in one line with its work."""
    fetches = rank(0, "log_loss (train.py:77)\nmain (train.py:61)", where="R", thread="active")
    waiting = [in_call(n, "barrier", 101) for n in range(1, 8)]
    assert named(OF_JOB, [fetches, *waiting], 8).rank is None
    sleeps = rank(0, "log_loss (train.py:77)\nmain (train.py:61)")
    assert named(OF_JOB, [sleeps, *waiting], 8).rank == 0


BACKWARD = "_engine_run_backward (torch/autograd/graph.py:869)\n<module> (train.py:90)"


@pytest.mark.parametrize(
    "holds_up",
    [
        rank(3, "locked (data.py:8)\nmain (train.py:61)"),
        rank(3, "wait (threading.py:327)\nget (queue.py:171)\nlocked (data.py:8)\nmain (train.py:61)"),
        rank(3, "locked (data.py:8)\nmain (train.py:61)", where="S in hrtimer_nanosleep"),
        rank(3, "locked (data.py:8)\nmain (train.py:61)", where="D in fuse_get_req", thread="active"),
    ],
)
def test_who_sleeps_in_a_lock_of_its_own_is_named_where_all_others_sleep_in_the_backward_pass(
    holds_up: str,
) -> None:
    waiting = [rank(n, BACKWARD) for n in (0, 1, 2)]
    told = named(OF_JOB, [holds_up, *waiting], 4)
    assert told.rank == 3
    assert " stands in locked (data.py:8); all 3 others sleep in _engine_run_backward " in told.sentence


@pytest.mark.parametrize(
    ("holds_up", "others"),
    [
        # It may wait for its GPU, which it shares with the collectives of the others.
        (rank(3, "log_loss (data.py:8)", where="S in poll_schedule_timeout"), BACKWARD),
        (rank(3, "log_loss (data.py:8)", thread="active"), BACKWARD),
        # A stage of a pipeline too, or none of its own lines is seen.
        (
            rank(
                3,
                "exchange (data.py:8)\nstep (megatron/core/pipeline_parallel/schedules.py:5)\nmain (train.py:61)",
            ),
            BACKWARD,
        ),
        (
            rank(3, "locked (data.py:8)", where="D in io_schedule", thread="active"),
            BACKWARD.replace(
                "<module> (", "step (megatron/core/pipeline_parallel/schedules.py:5)\n<module> ("
            ),
        ),
        # For other ranks, by a library.
        (rank(3, "get (ray/_private/worker.py:8)\nmain (train.py:61)"), BACKWARD),
        # The others may be stages of a pipeline.
        (
            rank(3, "locked (data.py:8)"),
            BACKWARD.replace(
                "<module> (", "step (megatron/core/pipeline_parallel/schedules.py:5)\n<module> ("
            ),
        ),
    ],
)
def test_who_may_wait_for_the_others_or_its_gpu_is_not_named_while_they_are_in_the_backward_pass(
    holds_up: str, others: str
) -> None:
    assert named(OF_JOB, [holds_up, *(rank(n, others) for n in (0, 1, 2))], 4).rank is None


def test_where_others_compute_in_the_backward_pass_nobody_is_named() -> None:
    computes = rank(0, BACKWARD, where="R", thread="active")
    others = [rank(n, BACKWARD) for n in (1, 2)]
    stuck = rank(3, "locked (data.py:8)", where="D in io_schedule", thread="active")
    for odd in (rank(3, "locked (data.py:8)"), stuck, in_call(3, "barrier", 101)):
        assert named(OF_JOB, [computes, *others, odd], 4).rank is None
        assert named(OF_JOB, [rank(0, BACKWARD), *others, odd], 4).rank == 3


@pytest.mark.parametrize("call", ["barrier", "all_gather_single", "all_reduce"])
def test_who_waits_alone_in_a_collective_while_all_others_sleep_in_the_backward_pass_went_another_way(
    call: str,
) -> None:
    told = said([in_call(3, call, 101), *(rank(n, BACKWARD) for n in (0, 1, 2))], 4)
    assert told == (
        f"Rank 3 waits in {call} (torch/distributed/distributed_c10d.py:4181), called at train.py:101, where no other "
        "rank does; all 3 others sleep in _engine_run_backward (torch/autograd/graph.py:869), called at train.py:90: "
        "it went another way, or is through that pass, which they are not."
    )
    for odd in ("broadcast", "recv"):
        assert said([in_call(3, odd, 101), *(rank(n, BACKWARD) for n in (0, 1, 2))], 4) == ""
    two = [*(in_call(n, call, 101) for n in (2, 3)), *(rank(n, BACKWARD) for n in (0, 1))]
    assert said(two, 4) == ""


def test_a_rank_that_saves_for_all_is_told_and_not_named() -> None:
    saves = rank(0, "_save_checkpoint (trainer.py:77)\nmain (train.py:61)", where="D in io_schedule")
    v = named(OF_JOB, [saves, *(in_call(n, "barrier", 101) for n in range(1, 8))], 8)
    assert v.rank is None
    assert "stands in _save_checkpoint (trainer.py:77)" in v.sentence
    for by_its_state, told in ((0, v.sentence), (1, OF_JOB.sentence)):
        verdict = structs.replace(OF_JOB, rank=by_its_state)
        texts = [saves, *(in_call(n, "barrier", 101) for n in range(1, 8))]
        assert named(verdict, texts, 8) == structs.replace(verdict, sentence=told)
