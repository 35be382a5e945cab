"""The simulator of timing lines keeps to physics: who is slow, who waits for it, and what shows neither."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from statistics import fmean, median

import pytest

from sentinel.core.reports import Iteration
from tests.core import rings
from tests.core.rings import (
    QUIET,
    Counts,
    Fault,
    Layout,
    Noise,
    Program,
    SlowCard,
    SlowData,
    SlowHost,
    SlowLink,
    SlowNic,
    hosts,
    links,
    simulate,
)

Lines = dict[int, list[Iteration]]
ALL: list[Counts] = ["compute", "tensor", "all", None]
LAYOUTS = [
    Layout(8, 8, 1),
    Layout(8, 2, 4),
    Layout(2, 4, 8),
    Layout(1, 8, 8),
    Layout(1, 1, 64),
    Layout(64, 1, 1),
]
SMALL = [Layout(4, 1, 1), Layout(2, 2, 2), Layout(1, 1, 8), Layout(1, 1, 1), Layout(1, 2, 8)]
AFTER_MS = 0.21  # two roundings, each to 0.1 ms


def hardware(lines: Lines, step: int = -1) -> dict[int, float]:
    return {rank: each[step].hardware_ms or 0.0 for rank, each in lines.items()}


def e2e(lines: Lines, step: int = -1) -> dict[int, float]:
    return {rank: each[step].e2e_ms or 0.0 for rank, each in lines.items()}


def quiet(
    layout: Layout, *faults: Fault, counts: Counts = "compute", iterations: int = 3, **program: int
) -> Lines:
    """A run without any noise."""
    settings = Program(first_ms=0, load_ms=0, **program)
    return simulate(
        layout, iterations, seed=1, faults=faults, counts=counts, jitter=0, program=settings, noise=QUIET
    )


def changed(layout: Layout, *faults: Fault, counts: Counts) -> set[int]:
    """Ranks whose hardware time these faults change."""
    sound, ill = (hardware(quiet(layout, *which, counts=counts)) for which in ((), faults))
    return {rank for rank in sound if abs(ill[rank] - sound[rank]) > AFTER_MS}


@pytest.mark.parametrize("layout", [*LAYOUTS, *SMALL])
def test_a_slow_card_shows_in_its_own_compute_time_alone_and_in_all_iterations_alike(layout: Layout) -> None:
    slow = layout.ranks // 3
    sound, ill = (simulate(layout, 30, seed=4, faults=f) for f in ([], [SlowCard(slow, 1.5, since=10)]))
    for rank in ill:
        computed = [line.hardware_ms for line in ill[rank]]
        usual = [line.hardware_ms for line in sound[rank]]
        if rank != slow:
            assert computed == usual
        else:
            assert computed[:10] == usual[:10]
            assert computed[10:] == pytest.approx([ms * 1.5 for ms in usual[10:] if ms], abs=AFTER_MS)
    longer = [ill[rank][-1].e2e_ms - sound[rank][-1].e2e_ms for rank in ill]  # type: ignore[operator]
    assert max(longer) - min(longer) < AFTER_MS
    assert min(longer) > 50


@pytest.mark.parametrize("layout", [*LAYOUTS, *SMALL])
def test_a_slow_link_shows_in_no_compute_time_and_in_every_iteration(layout: Layout) -> None:
    sound = e2e(quiet(layout))
    for kind in {kind for kind, _, _ in links(layout)}:
        a, b = next((a, b) for each, a, b in links(layout) if each == kind)
        fault = SlowLink(ranks=(b, a), factor=40.0)
        assert changed(layout, fault, counts="compute") == set()
        longer = {ms - sound[rank] for rank, ms in e2e(quiet(layout, fault)).items()}
        assert len(longer) == 1, kind
        assert longer.pop() > 1, kind


def test_a_ring_is_closed() -> None:
    for layout in Layout(1, 1, 64), Layout(64, 1, 1):
        assert e2e(quiet(layout, SlowLink(ranks=(0, 63), factor=2.0)))[30] > e2e(quiet(layout))[30] + 50


def test_a_link_that_nobody_uses_may_be_slow() -> None:
    layout = Layout(8, 2, 4)
    used = {frozenset(link) for _, *link in links(layout)}
    assert frozenset((0, 17)) not in used
    assert quiet(layout, SlowLink(ranks=(0, 17), factor=3.0)) == quiet(layout)
    within = Layout(8, 1, 1)
    assert quiet(within, SlowNic(0, 3.0)) == quiet(within)
    stages = Layout(8, 4, 1)
    assert quiet(stages, SlowLink(hosts=(0, 2), factor=3.0)) == quiet(stages)


def test_one_network_card_is_slow_for_its_own_rank() -> None:
    layout = Layout(8, 2, 1)
    own = SlowLink(ranks=(1, 9), factor=5.0)
    assert quiet(layout, SlowNic(0, 5.0, rank=1), counts="tensor") == quiet(layout, own, counts="tensor")


def test_a_link_that_is_hardly_slower_hardly_matters() -> None:
    layout = Layout(2, 4, 1)
    for _, a, b in links(layout):
        fault = SlowLink(ranks=(a, b), factor=1.01)
        assert e2e(quiet(layout, fault))[0] == pytest.approx(e2e(quiet(layout))[0], rel=0.002)


def test_tensor_counting_spreads_a_slow_card_over_its_tensor_group_only() -> None:
    layout = Layout(4, 4, 4)
    group = set(layout.tensor_group(21))
    assert group == {20, 21, 22, 23}
    assert changed(layout, SlowCard(21, 1.3), counts="tensor") == group
    within = hardware(quiet(layout, SlowCard(21, 1.3), counts="tensor"))
    assert len({within[rank] for rank in group}) == 1
    assert changed(layout, SlowLink(ranks=(21, 22), factor=3.0), counts="tensor") == group
    assert changed(layout, SlowLink(ranks=(21, 25), factor=3.0), counts="tensor") == set()  # gradients


def test_all_counting_spreads_a_slow_card_over_everybody() -> None:
    layout = Layout(4, 4, 4)
    assert changed(layout, SlowCard(21, 1.3), counts="all") == set(range(64))


def test_a_tensor_group_waits_for_the_one_of_it_that_gets_its_micro_batches_late() -> None:
    """So with tensor counting all show a slow transfer between stages but the one that suffers it."""
    layout = Layout(4, 2, 1)
    assert changed(layout, SlowLink(ranks=(1, 5), factor=5.0), counts="tensor") == set(range(8)) - {1, 5}


def test_a_rank_that_gets_its_data_late_makes_its_tensor_group_wait() -> None:
    layout = Layout(4, 1, 2)
    late = SlowData(rank=2, extra_ms=90.0)
    assert changed(layout, late, counts="compute") == set()
    assert changed(layout, late, counts="tensor") == {0, 1, 3}
    assert changed(layout, late, counts="all") == set(range(8)) - {2}
    assert e2e(quiet(layout, late))[7] == pytest.approx(e2e(quiet(layout))[7] + 90, abs=AFTER_MS)


def test_unequal_stages_differ_in_compute_but_not_in_iterations() -> None:
    layout = Layout(2, 4, 8)
    lines = quiet(layout)
    by_stage = [{hardware(lines)[rank] for rank in range(start, start + 16)} for start in range(0, 64, 16)]
    first, second, third, last = (one for (one,) in by_stage)
    assert third < second < first < last
    assert len(set(e2e(lines).values())) == 1


@pytest.mark.parametrize("layout", [*LAYOUTS, *SMALL])
def test_one_micro_batch_goes_down_the_stages_and_back(layout: Layout) -> None:
    far = {kind for kind, a, b in links(layout) if hosts(layout)[a] != hosts(layout)[b]}
    tensor_ms = rings.TENSOR_MS["tensor" in far] * (layout.tensor > 1)
    gradient_ms = rings.GRADIENT_MS["data" in far] * (layout.data - 1) / layout.data
    hop_ms = rings.HOP_MS["pipeline" in far]
    work = [rings.layers(stage, layout.pipeline) for stage in range(layout.pipeline)]
    at = sum(work) * (rings.LAYER_MS + tensor_ms) + hop_ms * (len(work) - 1)
    ends = []
    for own in reversed(work):
        at += own * (2 * rings.LAYER_MS + tensor_ms)
        ends.append(at + own * gradient_ms)
        at += hop_ms
    total = max(ends) + rings.OPTIMIZER_MS + rings.BARRIER_MS
    assert e2e(quiet(layout, micro=1))[0] == pytest.approx(total, abs=AFTER_MS)


def test_each_further_micro_batch_costs_what_the_slowest_stage_takes() -> None:
    layout = Layout(8, 8, 1)
    slowest = rings.layers(7, 8) * (3 * rings.LAYER_MS + 2 * rings.TENSOR_MS[0])
    times = [e2e(quiet(layout, micro=micro))[0] for micro in range(16, 20)]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([slowest] * 3, abs=AFTER_MS)


@pytest.mark.parametrize(("stages", "micro"), [(1, 3), (4, 2), (4, 16), (8, 8)])
def test_a_stage_holds_as_many_micro_batches_as_there_are_stages_from_it_on(stages: int, micro: int) -> None:
    order = rings.schedule(stages, micro)
    for stage in range(stages):
        passes = [(back, m) for at, back, m, _ in order if at == stage]
        assert sorted(passes) == [(back, m) for back in (0, 1) for m in range(micro)]
        held = accumulate(-1 if back else 1 for back, _ in passes)
        assert max(held) == min(stages - stage, micro)


@pytest.mark.parametrize(("ranks", "shown_ms"), [(8, 0.0), (16, 9.8 * (8 * 15 / 16 - 2 * 2.5))])
def test_gradients_may_be_reduced_behind_the_last_backward_pass(ranks: int, shown_ms: float) -> None:
    alone = e2e(quiet(Layout()))[0]
    hidden = Program(first_ms=0, load_ms=0, overlap=1.0)
    lines = simulate(Layout(1, 1, ranks), 2, seed=1, jitter=0, noise=QUIET, program=hidden)
    assert e2e(lines)[0] == pytest.approx(alone + shown_ms, abs=AFTER_MS)


def test_prefetching_hides_a_slow_loader_for_as_long_as_it_keeps_up() -> None:
    layout = Layout(1, 1, 16)

    def run(factor: float) -> list[float]:
        lines = simulate(layout, 60, seed=3, faults=[SlowData(host=1, factor=factor, since=20)], counts="all")
        shares = [line.hardware_ms / line.e2e_ms for line in lines[12][-10:]]  # type: ignore[operator]
        assert (fmean(shares) < 0.9) == (factor > 3)
        assert all(line.hardware_ms > 0.98 * line.e2e_ms for line in lines[3][-10:])  # type: ignore[operator]
        return [line.e2e_ms or 0.0 for line in lines[12]]

    usual, hidden, late = run(1.0), run(2.0), run(4.0)
    assert median(hidden[20:]) == pytest.approx(median(usual[20:]), rel=0.01)
    assert late[20:22] == pytest.approx(usual[20:22], rel=0.01)  # it had loaded ahead
    assert fmean(late[-20:]) == pytest.approx(
        16 * 30 * 4, rel=0.15
    )  # four times as long as loading usually takes


@pytest.mark.parametrize(
    "fault", [SlowHost(3, 1.4), SlowNic(3, 3.0), SlowLink(hosts=(3, 2), factor=3.0), SlowCard(30, 2.0)]
)
def test_a_fault_lasts_from_its_first_iteration_to_its_end(fault: Fault) -> None:
    layout = Layout(8, 1, 8)
    kind, told = type(fault), {name: getattr(fault, name) for name in fault.__struct_fields__}
    ill = quiet(layout, kind(**{**told, "since": 3, "until": 6}), iterations=9)
    usual = e2e(quiet(layout))[0]
    assert [line.e2e_ms != usual for line in ill[60]] == [False] * 3 + [True] * 3 + [False] * 3
    assert e2e(quiet(layout, fault), step=0)[0] == ill[0][4].e2e_ms  # from the very start


def test_a_slow_host_is_eight_slow_cards() -> None:
    layout = Layout(2, 4, 8)
    assert changed(layout, SlowHost(3, 1.1), counts="compute") == {
        r for r in range(64) if hosts(layout)[r] == 3
    }
    assert quiet(layout, SlowHost(3, 1.1)) == quiet(layout, *(SlowCard(rank, 1.1) for rank in range(24, 32)))


def test_a_replica_computes_longer_for_longer_batches() -> None:
    layout = Layout(2, 1, 4)
    lines = simulate(layout, 5, seed=1, jitter=0, noise=QUIET, program=Program(lengths=0.2))
    for step in range(5):
        computed = list(hardware(lines, step).values())
        assert computed[::2] == computed[1::2]
        assert len(set(computed)) == 4


def test_a_moment_in_which_a_host_stands_still_shows_in_no_kernel() -> None:
    layout = Layout(4, 2, 2)
    still = Noise(hiccup=1.0, hiccup_ms=300.0)
    usual, held = (simulate(layout, 20, seed=2, noise=noise) for noise in (Noise(hiccup=0), still))
    assert [hardware(held, k) for k in range(20)] == [hardware(usual, k) for k in range(20)]
    assert median(e2e(held, k)[0] for k in range(1, 20)) > 150 + median(
        e2e(usual, k)[0] for k in range(1, 20)
    )


def test_a_checkpoint_is_a_pause_of_all_that_no_card_sees() -> None:
    lines = simulate(Layout(2, 2, 2), 12, seed=1, counts="all", program=Program(checkpoint_every=5))
    for each in lines.values():
        outside = [line.e2e_ms - line.hardware_ms for line in each]  # type: ignore[operator]
        assert [k for k, ms in enumerate(outside) if ms > 2000] == [0, 5, 10]


def every_run() -> Iterator[tuple[Layout, Counts, Lines]]:
    faults = [
        SlowCard(1, 3.0, since=5),
        SlowData(host=0, extra_ms=500.0, factor=9.0, since=8),
        SlowLink(ranks=(0, 1), factor=3.0, since=2),
        SlowNic(0, 3.0, since=7, until=15),
    ]
    noise = Noise(hiccup=0.2, lag_ms=5.0, transfer=0.5, fabric=0.3, load=0.5)
    for layout in [*LAYOUTS, *SMALL]:
        for counts in ALL:
            program = Program(lengths=0.3, checkpoint_every=6)
            lines = simulate(
                layout, 20, seed=5, faults=faults, counts=counts, jitter=0.1, noise=noise, program=program
            )
            yield layout, counts, lines


def test_no_time_is_negative_and_no_hardware_time_longer_than_its_iteration() -> None:
    for layout, counts, lines in every_run():
        assert list(lines) == list(range(layout.ranks))
        for each in lines.values():
            assert [line.step for line in each] == list(range(20))
            for before, line in pairwise(each):
                assert (line.at_s - before.at_s) * 1000 == pytest.approx(line.e2e_ms, abs=0.06)
            for line in each:
                assert line.e2e_ms is not None
                if counts is None:
                    assert line.hardware_ms is None
                else:
                    assert line.hardware_ms is not None
                    assert 0 < line.hardware_ms <= line.e2e_ms


def test_an_agent_reads_what_was_printed_since_it_last_did() -> None:
    layout = Layout(8, 2, 1)
    usual, polled = (simulate(layout, 20, seed=5, noise=Noise(poll_s=poll_s)) for poll_s in (0.0, 3.0))
    for rank, each in polled.items():
        for printed, read in zip(usual[rank], each, strict=True):
            assert 0 <= read.at_s - printed.at_s < 3.0
            assert read.e2e_ms == printed.e2e_ms
        assert len({line.at_s for line in each}) < 15
    assert {line.at_s for line in polled[0]} == {line.at_s for line in polled[7]}
    assert {line.at_s for line in polled[0]}.isdisjoint(line.at_s for line in polled[8])


def test_who_counts_more_counts_longer() -> None:
    for layout in LAYOUTS:
        by = {counts: simulate(layout, 10, seed=5, counts=counts) for counts in ALL}
        for rank in range(layout.ranks):
            for step in range(10):
                kernels, passes, device = (by[c][rank][step].hardware_ms or 0 for c in ALL[:3])
                # The passes are without the optimizer.
                assert kernels - 1.2 * rings.OPTIMIZER_MS < passes < device
                assert by[None][rank][step].e2e_ms == by["all"][rank][step].e2e_ms


def test_the_same_seed_gives_the_same() -> None:
    layout = Layout(2, 4, 8)
    assert simulate(layout, 20, seed=9) == simulate(layout, 20, seed=9)
    assert simulate(layout, 20, seed=9) != simulate(layout, 20, seed=10)
