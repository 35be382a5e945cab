"""Looks at stacks: what of them says that a job stands still, and what that it may be well."""

from collections.abc import Callable

import pytest

from sentinel.core.stacks.stillness import Looks

COLLECTIVE = ("all_reduce (torch/distributed/distributed_c10d.py:4181)", "main (train.py:12)")
BACKWARD = ("_engine_run_backward (torch/autograd/graph.py:1113)", "main (train.py:13)")
LOADS = ("_try_get_data (torch/utils/data/dataloader.py:1293)", "main (train.py:11)")
OWN = ("score (evaluate.py:30)", "main (train.py:20)")
LOCKED = ("wait (threading.py:327)", "result (concurrent/futures/_base.py:451)", "main (train.py:40)")

SPINS = {"state": "R", "cpu": 20.0, "main_cpu": 20.0, "places": 1}
Rank = Callable[[int], str]


def stands(
    number: int = 0,
    frames: tuple[str, ...] = COLLECTIVE,
    *,
    pid: int = 0,
    state: str = "S in futex_do_wait",
    cpu: float = 0.1,
    main_cpu: float = 0.1,
    helpers: float = 0.1,
    io: int = 1000,
    sleeps: int = 0,
    all_sleeps: int = 0,
    places: int = 0,
    thread: str = "",
) -> Rank:
    """One rank, as look after look (20 s apart) sees it; `cpu` and the like are what it uses between two."""

    def text(look: int) -> str:
        used = f"CPU {50 + look * cpu:.2f} s (main thread {40 + look * main_cpu:.2f} s), "
        used += f"helpers' CPU {look * helpers:.2f} s, I/O {look * io} bytes, "
        used += f"{look * sleeps} sleeps ({look * all_sleeps} of all threads)"
        sampled = f", samples in {places} place{'s' * (places > 1)}" if places else ""
        stack = ['Thread 1 (idle): "MainThread"', *(f"    {frame}" for frame in frames)]
        stack += ['Thread 2 (idle): "Thread-1"', f"    {thread.format(look=look)}"] if thread else []
        body = stack if frames else ["no Python stack: Failed to find python version from target process"]
        return "\n".join([f"rank {number}: pid {pid or 100 + number} ({state}), {used}{sampled}", *body])

    return text


def still_s(*ranks: Rank, looks: int = 4) -> tuple[float, str]:
    """For how long nothing moved, and why not longer."""
    seen = Looks()
    for look in range(looks):
        seen.fold([rank(look) for rank in ranks], 100.0 + 20 * look, 50.0, ranks=len(ranks))
    return seen.still_s, seen.doubt


@pytest.mark.parametrize(
    "ranks",
    [
        [stands(), stands(1)],
        [stands(), stands(1, BACKWARD)],
        [stands(frames=LOCKED)],
        [stands(frames=LOCKED, all_sleeps=400, thread="wait (threading.py:331)")],  # threads of gloo poll
        [stands(frames=())],  # no Python: it sleeps in a lock, and uses no CPU time
        [stands(state="S in ep_poll")],  # a collective over the network
        [stands(state="D in nfs_wait_on_request")],
        [stands(cpu=5.0, all_sleeps=400)],  # whatever its monitors and the threads of NCCL do meanwhile
        [stands(frames=BACKWARD, cpu=20.0, all_sleeps=400)],  # the thread that waits for the GPU spins
        [stands(**SPINS), stands(1, **SPINS)],  # as NCCL's
        [stands(frames=BACKWARD, **SPINS)],
    ],
)
def test_ranks_that_wait_in_a_collective_or_a_lock_stand_still(ranks: list[Rank]) -> None:
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
        (
            stands(1, LOADS, state="S in poll_schedule_timeout"),
            "rank 1 may wait for something outside the job",
        ),
        # A thread of its own that works, or waits for the network, may open the lock.
        (stands(1, LOCKED, cpu=5.0), "rank 1 may wait for something outside the job, in main (train.py:40)"),
        (
            stands(1, LOCKED, sleeps=40),
            "rank 1 may wait for something outside the job, in main (train.py:40)",
        ),
        (
            stands(1, LOCKED, thread="score (evaluate.py:{look})"),
            "rank 1 may wait for something outside the job",
        ),
        (
            stands(1, LOCKED, thread="readinto (socket.py:705)"),
            "rank 1 may wait for something outside the job",
        ),
        (stands(1, (), all_sleeps=40), "rank 1 may wait for something outside the job; no stack can be had"),
        (stands(1, sleeps=40, all_sleeps=40), "rank 1 may wait for something outside the job, in all_reduce"),
        (stands(1, COLLECTIVE, **SPINS | {"places": 3}), "rank 1 may go round, in all_reduce"),
        (stands(1, COLLECTIVE, **SPINS | {"places": 0}), "rank 1 could not be sampled, in all_reduce"),
        (stands(1, BACKWARD, sleeps=100, **SPINS), "rank 1 may go round, in _engine_run_backward"),
        (stands(1, helpers=15.0), "rank 1 has helper processes that compute"),
        (stands(1, io=200 << 20), "rank 1 reads or writes"),
        (stands(1, (), **SPINS), "rank 1 may compute; no stack can be had (Failed to find python version"),
        (
            stands(1, (), state="S in ep_poll"),
            "rank 1 may wait for something outside the job; no stack can be had",
        ),
        (lambda look: stands(1, pid=200 + look)(look), "rank 1 is another process than before"),
        (lambda look: stands(1 + look % 2)(look), "its ranks have not all been silent for long"),
        (lambda look: stands(0)(look), "two processes call themselves by the same number"),
        (lambda look: "rank 1: gone", "only 2 of 3 ranks could be looked at"),
        (lambda look: "", "only 2 of 3 ranks could be looked at"),
        (
            lambda look: (stands(1, OWN) if look % 2 else ELSEWHERE)(look),
            "rank 1 moves: it stood in score (evaluate.py:31), then in score (evaluate.py:30)",
        ),
        (
            lambda look: stands(1, ("forward (model.py:9)", f"score (evaluate.py:{look})"))(look),
            "rank 1 moves: it comes to forward (model.py:9) by different ways",
        ),
        # As the agents of an older release write it.
        (
            lambda look: stands(1)(look).replace(" s (main", " (main"),
            "rank 1 is on a node whose agent does not tell enough",
        ),
    ],
)
def test_one_rank_that_may_be_at_work_is_enough(rank: Rank, why: str) -> None:
    length, doubt = still_s(stands(), rank, stands(7))
    assert length == 0.0
    assert doubt.startswith(why), doubt


@pytest.mark.parametrize(
    ("rank", "doubt"),
    [
        (stands(1, OWN), ""),
        (stands(1, LOADS, state="S in hrtimer_nanosleep"), ""),
        # A shell around what runs elsewhere.
        (stands(1, (), state="S in do_wait"), "rank 1 may wait for something outside the job"),
        (
            stands(1, ("wait (subprocess.py:1264)", "main (start.py:4)"), state="S in do_wait"),
            "rank 1 may wait for something outside",
        ),
        (stands(1, OWN, thread="readinto (socket.py:705)"), "rank 1 may wait for something outside the job"),
        (
            stands(1, OWN, thread="score (evaluate.py:{look})"),
            "rank 1 may wait for something outside the job",
        ),
        (stands(1, OWN, cpu=5.0), "rank 1 may wait for something outside the job"),  # other threads of it
        (stands(1, OWN, main_cpu=5.0, cpu=5.0), "rank 1 may compute"),
        # It asks again and again.
        (stands(1, OWN, sleeps=40), "rank 1 may wait for something outside the job"),
        (stands(1, OWN, helpers=15.0), "rank 1 has helper processes that compute"),
        (stands(1, OWN, io=200 << 20), "rank 1 reads or writes"),
    ],
)
def test_where_the_owner_names_a_time_who_uses_no_cpu_stands_still_whatever_it_waits_for(
    rank: Rank, doubt: str
) -> None:
    seen = Looks()
    for look in range(4):
        seen.fold([stands()(look), rank(look)], 100.0 + 20 * look, 50.0, ranks=2, named=True)
    assert seen.doubt.startswith(doubt)
    assert (seen.still_s > 0) == (not doubt)


def test_what_stood_still_counts_from_the_last_move() -> None:
    seen = Looks()
    moves = [stands(frames=OWN), stands(), stands(), stands()]
    for look, rank in enumerate(moves):
        seen.fold([rank(look)], 20.0 * (look + 1), 5.0, ranks=1)
    assert (seen.count, seen.still_s) == (3, 40.0)
    assert "moves" in seen.doubt


def test_looks_of_an_older_silence_do_not_count() -> None:
    seen = Looks()
    for look in range(4):
        seen.fold([stands()(look)], 20.0 * (look + 1), 5.0, ranks=1)
    seen.fold([stands()(4)], 100.0, 90.0, ranks=1)
    assert (seen.count, seen.still_s) == (1, 0.0)


def test_ranks_that_still_make_iterations_are_not_asked() -> None:
    seen = Looks()
    for look in range(4):
        texts = [stands()(look), stands(1, OWN, **SPINS)(look)]
        seen.fold(texts, 20.0 * (look + 1), 5.0, ranks=1, going=[1])
    assert seen.still_s == 60.0
