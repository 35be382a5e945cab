"""Looks at stacks: what of them says that a job stands still, and what that it may be well."""

from collections.abc import Callable

import pytest

from sentinel.core.stillness import Looks

COLLECTIVE = ("all_reduce (torch/distributed/distributed_c10d.py:4181)", "main (train.py:12)")
BACKWARD = (
    "_engine_run_backward (torch/autograd/graph.py:1113)",
    "backward (torch/_tensor.py:623)",
    "main (train.py:13)",
)
LOADS = (
    "_PollLikeSelector.select (selectors.py:415)",
    "_try_get_data (torch/utils/data/dataloader.py:1293)",
    "main (train.py:11)",
)
OWN = ("score (evaluate.py:30)", "main (train.py:20)")
LOCKED = ("wait (threading.py:327)", "result (concurrent/futures/_base.py:451)", "main (train.py:40)")

SPINS = {"state": "R", "cpu": 20.0}


def stands(
    number: int = 0,
    frames: tuple[str, ...] = COLLECTIVE,
    *,
    pid: int = 0,
    state: str = "S in futex_do_wait",
    cpu: float = 0.1,
    helpers: float = 0.1,
    io: int = 1000,
    sleeps: int = 0,
    places: int | None = None,
    thread: tuple[str, ...] = (),
) -> Callable[[int], str]:
    """One rank, as look after look (20 s apart) sees it; `cpu` and the like are what it uses between two."""

    def text(look: int) -> str:
        sampled = 1 if places is None and state == "R" else places
        used = f"CPU {50 + look * cpu:.2f} s, helpers' CPU {look * helpers:.2f} s, I/O {look * io} bytes, "
        used += f"{look * sleeps} sleeps" + (f", samples in {sampled} places" if sampled else "")
        stack = ['Thread 1 (idle): "MainThread"', *(f"    {frame}" for frame in frames)]
        if thread:
            stack += ['Thread 2 (idle): "Trains"', *(f"    {frame}" for frame in thread)]
        body = stack if frames else ["no Python stack: Failed to find python version from target process"]
        return "\n".join([f"rank {number}: pid {pid or 100 + number} ({state}), {used}", *body])

    return text


def still_s(*ranks: Callable[[int], str], looks: int = 4) -> tuple[float, str]:
    """For how long nothing moved, and why not longer."""
    seen = Looks()
    for look in range(looks):
        seen.fold([rank(look) for rank in ranks], 100.0 + 20 * look, 50.0)
    return seen.still_s, seen.doubt


@pytest.mark.parametrize(
    "ranks",
    [
        [stands(), stands(1)],
        [stands(), stands(1, BACKWARD)],
        [stands(), stands(1, LOADS, state="S in poll_schedule_timeout")],
        [stands(frames=LOCKED)],
        [stands(frames=())],  # no Python: it sleeps in a lock, and uses no CPU time
        [stands(state="S in ep_poll")],  # a collective over the network
        [stands(state="D in nfs_wait_on_request")],
        [stands(**SPINS), stands(1, **SPINS)],  # as NCCL's: at the GPU
        [stands(frames=BACKWARD, **SPINS)],
        [stands(frames=OWN, **SPINS), stands(1, OWN, **SPINS)],  # `loss.item()` in all of them
        [stands(frames=("main_loop (ray/_private/worker.py:900)",), thread=COLLECTIVE, **SPINS)],
    ],
)
def test_ranks_that_wait_in_a_collective_or_a_lock_stand_still(ranks: list[Callable[[int], str]]) -> None:
    assert still_s(*ranks) == (60.0, "")


ELSEWHERE = stands(1, ("score (evaluate.py:31)", "main (train.py:20)"))


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        (stands(1, OWN, **SPINS), "rank 1 may compute, in score (evaluate.py:30)"),
        (
            stands(1, OWN, state="S in hrtimer_nanosleep"),
            "rank 1 may wait for something outside the job, in score",
        ),
        (stands(1, COLLECTIVE, places=3, **SPINS), "rank 1 may go round, through all_reduce"),
        (stands(1, COLLECTIVE, places=0, **SPINS), "rank 1 may go round, through all_reduce"),  # no samples
        (stands(1, BACKWARD, sleeps=100, **SPINS), "rank 1 may go round, through _engine_run_backward"),
        (stands(1, helpers=15.0), "rank 1 has helper processes that compute"),
        (stands(1, LOADS, helpers=15.0), "rank 1 has helper processes that compute"),
        (stands(1, io=200 << 20), "rank 1 reads or writes"),
        (stands(1, (), **SPINS), "rank 1 shows no stack (Failed to find python version"),
        (stands(1, (), state="S in ep_poll"), "rank 1 shows no stack"),
        (lambda look: stands(1, pid=200 + look)(look), "rank 1 is another process than before"),
        (lambda look: stands(1 + look)(look), "other processes than before are there"),
        (
            lambda look: (stands(1, OWN) if look % 2 else ELSEWHERE)(look),
            "rank 1 moves: it stood in score (evaluate.py:31), then in score (evaluate.py:30)",
        ),
        (
            lambda look: stands(1, ("forward (model.py:9)", f"score (evaluate.py:{look})"))(look),
            "rank 1 moves: it comes to forward (model.py:9) by different ways",
        ),
    ],
)
def test_one_rank_that_may_be_at_work_is_enough(rank: Callable[[int], str], why: str) -> None:
    length, doubt = still_s(stands(), rank, stands(7))
    assert length == 0.0
    assert doubt.startswith(why), doubt


def test_who_is_told_nothing_does_not_believe_in_a_hang() -> None:
    assert still_s(lambda look: "")[0] == 0.0
    assert still_s(lambda look: "rank 0: gone")[0] == 0.0
    seen = Looks()
    for at_s in (100.0, 120.0, 140.0):
        seen.fold([], at_s, 50.0)
    assert (seen.still_s, seen.doubt) == (0.0, "nobody tells where its processes stand")


def test_what_stood_still_counts_from_the_last_move() -> None:
    seen = Looks()
    moves = [
        stands(frames=OWN),
        stands(frames=COLLECTIVE),
        stands(frames=COLLECTIVE),
        stands(frames=COLLECTIVE),
    ]
    for look, rank in enumerate(moves):
        seen.fold([rank(look)], 20.0 * (look + 1), 5.0)
    assert (seen.count, seen.still_s) == (3, 40.0)
    assert "moves" in seen.doubt


def test_looks_of_an_older_silence_do_not_count() -> None:
    seen = Looks()
    for look in range(4):
        seen.fold([stands()(look)], 20.0 * (look + 1), 5.0)
    seen.fold([stands()(4)], 100.0, 90.0)
    assert (seen.count, seen.still_s) == (1, 0.0)


def test_ranks_that_still_make_iterations_are_not_asked() -> None:
    seen = Looks()
    for look in range(4):
        seen.fold([stands()(look), stands(1, OWN, **SPINS)(look)], 20.0 * (look + 1), 5.0, going=[1])
    assert seen.still_s == 60.0


def test_a_text_without_numbers_proves_nothing() -> None:
    """As the agents of an older release write it: who goes round in an evaluation may pass there each time."""
    bare = '\nThread 1 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:4181)\n'
    assert still_s(lambda look: "rank 0: pid 7 (S in futex_do_wait)" + bare)[0] == 0.0
