"""A simulator of what the ranks of a synchronous training job print: one line per rank and iteration.

It knows who waits for whom, and no more: pipeline stages pass micro-batches on (1F1B), the ranks of a tensor group
wait for each other in each of them, then each data group reduces its gradients in a ring, each rank runs its optimizer,
and a barrier ends the iteration for all. Times are in ms, of cards and links of a usual kind (NVLink inside of a
host, one network card for each GPU between hosts). Nothing is measured here, so no number is evidence of a real job.

The draws of a seed do not depend on faults or on what is counted: the same seed with a fault is the same run with it.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from functools import cache
from operator import add
from typing import Literal

from msgspec import Struct

from sentinel.core.reports import Iteration
from tests.core.ring_faults import (
    Fault,
    Layout,
    SlowCard,
    SlowData,
    SlowHost,
    SlowLink,
    SlowNic,
    host_of,
    hosts,
    links,
    ring,
)

__all__ = ["QUIET", "Counts", "Fault", "Layout", "Noise", "Program", "hosts", "links", "simulate"]
__all__ += ["SlowCard", "SlowData", "SlowHost", "SlowLink", "SlowNic"]

# "compute": kernels of computation. "tensor": what lies between events around the forward and backward passes, so
# also tensor-parallel communication and the waiting in it. "all": from a rank's first kernel to the end of the
# iteration, whatever it waits for. None: no hardware time is printed.
Counts = Literal["compute", "tensor", "all"] | None

LAYERS = 8  # of a stage
LAYER_MS = 2.5  # forward pass of a layer, one micro-batch; the backward pass takes twice as long
EMBEDDING, LOSS = 0.3, 1.5  # of the first and the last stage, in layers
OPTIMIZER_MS, BARRIER_MS = 12.0, 0.3
NearFar = tuple[float, float]  # inside of a host, between hosts
TENSOR_MS: NearFar = (0.3, 2.0)  # all-reduces of a layer, in either pass
HOP_MS: NearFar = (0.3, 1.5)  # a micro-batch from stage to stage
GRADIENT_MS: NearFar = (1.0, 8.0)  # of a layer, in a long ring
START_S = 1000.0


class Program(Struct, frozen=True, kw_only=True):
    micro: int = 16  # micro-batches of an iteration; with few of them, many stages stand idle for long
    lengths: float = 0.0  # sigma (lognormal) of batches: one length for each replica and iteration
    checkpoint_every: int = 0  # iterations
    checkpoint_ms: float = 4000.0
    first_ms: float = 5000.0  # on top of the first iteration: memory, communicators, kernels to choose
    overlap: float = 0.0  # share of the last backward pass in which gradients are already reduced
    load_ms: float = 30.0  # that a rank's loader takes for a micro-batch
    prefetch: int = 4  # iterations ahead


class Noise(Struct, frozen=True, kw_only=True):
    """Beside the jitter of kernels. Numbers are sigmas, as shares, where not said otherwise."""

    spread: float = 0.01  # of cards among each other, for good
    transfer: float = 0.02
    wander: float = 0.005  # slow, of all kernels alike
    fabric: float = 0.03  # slow, of all transfers between hosts alike
    load: float = 0.2  # of a host's loaders
    hiccup: float = 1 / 200  # probability in an iteration that one host stands still for a moment
    hiccup_ms: float = 150.0  # median
    lag_ms: float = 0.2  # mean, until a rank's process notices the end of an iteration
    poll_s: float = 0.0  # an agent reads what its ranks print every so often: `at_s` is then


QUIET = Noise(spread=0, transfer=0, wander=0, fabric=0, load=0, hiccup=0, lag_ms=0)


def layers(stage: int, stages: int) -> float:
    """What a stage computes, in layers. The last has one less, for its loss; so has one in the middle, since the number
    of layers cannot be divided by that of stages."""
    last = stage == stages - 1
    less = stages > 1 and (last or (stages > 2 and stage == stages // 2))
    return LAYERS - less + (stage == 0) * EMBEDDING + last * LOSS


@cache
def schedule(stages: int, micro: int) -> list[tuple[int, int, int, int]]:
    """1F1B, in an order in which all that is needed comes before: the stage, whether backward, the micro-batch, and the
    index here of the work of another stage that has to come first, or -1."""
    todo = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, micro)
        steady = [op for m in range(micro - ahead) for op in ((0, ahead + m), (1, m))]
        todo.append([(0, m) for m in range(ahead)] + steady + [(1, m) for m in range(micro - ahead, micro)])
    order: list[tuple[int, int, int, int]] = []
    place: dict[tuple[int, int, int], int] = {}
    while any(todo):
        for stage, ops in enumerate(todo):
            while ops:
                back, m = ops[0]
                source = stage + 1 if back else stage - 1
                if not 0 <= source < stages:
                    needed = -1
                elif (needed := place.get((source, back, m), -1)) < 0:
                    break
                place[stage, back, m] = len(order)
                order.append((stage, back, m, needed))
                ops.pop(0)
    return order


class _Faulty:
    """What faults make of cards, links and loaders. Links: the slowest near one and the slowest far one, in ms."""

    def __init__(self, layout: Layout, active: Sequence[Fault]) -> None:
        ranks, stages, data = range(layout.ranks), layout.pipeline, layout.data
        self.active = active
        self.card = [math.prod(fault.card(rank) for fault in active) for rank in ranks]
        told = [[fault.loading(rank) for fault in active] for rank in ranks]
        self.loader = [math.prod(factor for factor, _ in each) for each in told]
        self.extra_ms = [sum(extra_ms for _, extra_ms in each) for each in told]
        self.tensor: dict[int, NearFar] = {}  # by the first rank of its group, as `gradient`
        self.gradient: dict[int, NearFar] = {}
        self.hop: dict[int, NearFar] = {}  # by the later of the two
        for rank in ranks:
            tensor, stage, replica = layout.place(rank)
            own = layers(stage, stages)
            if not tensor:
                self.tensor[rank] = self._slowest(ring(layout.tensor_group(rank)), TENSOR_MS, own)
            if not replica:
                share = own * (data - 1) / data
                self.gradient[rank] = self._slowest(ring(layout.data_group(rank)), GRADIENT_MS, share)
            if stage:
                self.hop[rank] = self._slowest([(rank - layout.tensor * data, rank)], HOP_MS, 1.0)

    def _slowest(self, through: list[tuple[int, int]], ms: NearFar, share: float) -> NearFar:
        worst = [0.0, 0.0]
        for a, b in through:
            far = host_of(a) != host_of(b)
            worst[far] = max(worst[far], ms[far] * share * math.prod(f.link(a, b) for f in self.active))
        return worst[0], worst[1]


class _Job:
    def __init__(
        self,
        layout: Layout,
        faults: Sequence[Fault],
        jitter: float,
        program: Program,
        noise: Noise,
        seed: int,
    ) -> None:
        self.layout, self.faults, self.jitter, self.program, self.noise = (
            layout,
            faults,
            jitter,
            program,
            noise,
        )
        self.draw = random.Random(seed)
        self.cards = [self._about_one(noise.spread) for _ in range(layout.ranks)]
        places = [layout.place(rank) for rank in range(layout.ranks)]
        self.layer_ms = [layers(stage, layout.pipeline) * LAYER_MS for _, stage, _ in places]
        self.replica = [replica for _, _, replica in places]
        self.wander = self.fabric = 0.0
        self.now = [0.0] * layout.ranks  # of each rank's process: when it began the iteration
        self.loaded = [0.0] * layout.ranks  # when the newest batch was there
        self.begun = [deque([0.0] * program.prefetch, program.prefetch) for _ in range(layout.ranks)]
        self.faulty = _Faulty(layout, ())

    def _about_one(self, sigma: float) -> float:
        return max(1 + sigma * self.draw.gauss(0, 1), 0.2)

    def _drift(self, value: float, sigma: float) -> float:
        return 0.98 * value + math.sqrt(1 - 0.98**2) * sigma * self.draw.gauss(0, 1)

    def _fabric(self, ms: dict[int, NearFar]) -> dict[int, float]:
        return {key: max(near, far * (1 + self.fabric)) for key, (near, far) in ms.items()}

    def _transfers(self, ms: dict[int, NearFar]) -> dict[int, float]:
        return {key: each * self._about_one(self.noise.transfer) for key, each in self._fabric(ms).items()}

    def iteration(self, step: int, counts: Counts) -> list[Iteration]:
        layout, program, noise, draw = self.layout, self.program, self.noise, self.draw
        ranks = range(layout.ranks)
        active = [fault for fault in self.faults if fault.at(step)]
        if active != self.faulty.active:
            self.faulty = _Faulty(layout, active)
        self.wander = self._drift(self.wander, noise.wander)
        self.fabric = self._drift(self.fabric, noise.fabric)
        sigma = program.lengths
        length = [math.exp(sigma * draw.gauss(0, 1) - sigma**2 / 2) for _ in range(layout.data)]
        kernel = [
            self.cards[rank] * self.faulty.card[rank] * (1 + self.wander) * self._about_one(self.jitter)
            for rank in ranks
        ]
        stall = self._stall()
        first = self._first_kernel(step)
        free, forward, between = self._passes(length, kernel, stall, first)
        gradient = self._transfers(self.faulty.gradient)
        reduced = list(free)
        for leader, ms in gradient.items():
            group = layout.data_group(leader)
            begin = max(free[rank] - program.overlap * 2 * forward[rank] for rank in group)
            end = max(begin + ms, *(free[rank] for rank in group))
            for rank in group:
                reduced[rank] = end
        end = max(reduced[rank] + OPTIMIZER_MS * kernel[rank] for rank in ranks) + BARRIER_MS
        lines = []
        for rank in ranks:
            noticed = end + (draw.expovariate(1 / noise.lag_ms) if noise.lag_ms else 0.0)
            hardware: float | None = None
            if counts == "compute":
                hardware = 3 * program.micro * forward[rank] + OPTIMIZER_MS * kernel[rank]
            elif counts:
                hardware = between[rank] if counts == "tensor" else end - first[rank]
            e2e_ms = noticed - self.now[rank]
            shown = None if hardware is None else round(hardware, 1)
            lines.append(Iteration(self._read_s(rank, noticed), step, shown, round(e2e_ms, 1)))
            self.now[rank] = noticed
        return lines

    def _read_s(self, rank: int, printed: float) -> float:
        at_s, poll_s = START_S + printed / 1000, self.noise.poll_s
        if not poll_s:
            return at_s
        phase_s = host_of(rank) * 0.3 % 1 * poll_s  # each agent began at its own time
        return math.ceil((at_s - phase_s) / poll_s) * poll_s + phase_s

    def _stall(self) -> tuple[int, int, float]:
        """The host that stands still, in which micro-batch, for how many ms."""
        draw = self.draw
        happens = draw.random() < self.noise.hiccup
        host, micro = draw.randrange(host_of(self.layout.ranks - 1) + 1), draw.randrange(self.program.micro)
        ms = self.noise.hiccup_ms * draw.lognormvariate(0, 0.5)
        return host, micro, ms if happens else 0.0

    def _first_kernel(self, step: int) -> list[float]:
        """When each rank has its batch and begins."""
        program = self.program
        pause = program.first_ms if not step else 0.0
        if program.checkpoint_every and step and not step % program.checkpoint_every:
            pause += program.checkpoint_ms
        pause *= self._about_one(0.1)
        speed = [self._about_one(self.noise.load) for _ in range(host_of(self.layout.ranks - 1) + 1)]
        first = []
        for rank, queue in enumerate(self.begun):
            load_ms = program.micro * program.load_ms * self.faulty.loader[rank] * speed[host_of(rank)]
            self.loaded[rank] = max(self.loaded[rank], queue[0]) + load_ms
            begun = max(self.now[rank] + pause, self.loaded[rank]) + self.faulty.extra_ms[rank]
            queue.append(begun)
            first.append(begun)
        return first

    def _passes(
        self, length: list[float], kernel: list[float], stall: tuple[int, int, float], first: list[float]
    ) -> tuple[list[float], list[float], list[float]]:
        """Of each rank: when its last backward pass ends, what a forward pass computes, and the time in all passes."""
        layout, size = self.layout, self.layout.tensor
        free, between = list(first), [0.0] * layout.ranks
        forward = [
            ms * length[d] * card for ms, d, card in zip(self.layer_ms, self.replica, kernel, strict=True)
        ]
        rings, hops = self._transfers(self.faulty.tensor), self._fabric(self.faulty.hop)
        stalled, stalled_micro, stall_ms = stall
        for replica, share in enumerate(length):
            groups = []
            for stage in range(layout.pipeline):
                leader = layout.rank(0, stage, replica)
                ranks = range(leader, leader + size)
                wobble = share * self._about_one(self.noise.transfer)
                stalls = [stall_ms * (host_of(rank) == stalled) for rank in ranks]
                hops_ms = [hops.get(rank, 0.0) * wobble for rank in ranks]
                mine = slice(leader, leader + size)
                groups.append(_Group(first[mine], forward[mine], rings[leader] * share, hops_ms, stalls))
            done: list[float] = []
            for stage, back, micro, needed in schedule(layout.pipeline, self.program.micro):
                group, stalls_now = groups[stage], bool(stall_ms) and micro == stalled_micro and not back
                if needed < 0:
                    done.append(group.work(back, None, 0.0, stalls_now))
                else:
                    done.append(group.work(back, groups[stage + back], done[needed], stalls_now))
            for stage, group in enumerate(groups):
                leader = layout.rank(0, stage, replica)
                free[leader : leader + size] = [group.free] * size
                between[leader : leader + size] = [group.together + apart for apart in group.apart]
        return free, forward, between


class _Group:
    """The ranks of a stage that share a tensor ring, in one iteration: no pass of theirs ends before the others' do."""

    def __init__(
        self, first: list[float], forward: list[float], ring_ms: float, hops: list[float], stalls: list[float]
    ) -> None:
        self.first, self.forward, self.ring_ms, self.hops, self.stalls = first, forward, ring_ms, hops, stalls
        self.slowest = max(forward)
        self.even = min(hops) == max(hops)  # all get a micro-batch at the same time
        self.free = -1.0  # when their last pass ended; -1: they had none
        self.together, self.apart = (
            0.0,
            [0.0] * len(first),
        )  # time in passes: that all had, that each had beside

    def work(self, back: int, border: "_Group | None", sent: float, stalls: bool) -> float:
        """A pass of one micro-batch, which came at `sent` across a border between stages; returns its end."""
        if self.free >= 0 and not stalls and (border is None or border.even):
            begin = self.free if border is None else max(self.free, sent + border.hops[0])
            end = begin + (1 + back) * self.slowest + self.ring_ms
            self.together += end - begin
        else:
            each = self.first if self.free < 0 else [self.free] * len(self.first)
            if border is not None:
                each = [max(free, sent + hop) for free, hop in zip(each, border.hops, strict=True)]
            cost = [(1 + back) * ms for ms in self.forward]
            if stalls:
                cost = list(map(add, cost, self.stalls))
            end = max(map(add, each, cost)) + self.ring_ms
            self.apart = [ms + end - begin for ms, begin in zip(self.apart, each, strict=True)]
        self.free = end
        return end


def simulate(
    layout: Layout,
    iterations: int,
    *,
    seed: int,
    faults: Sequence[Fault] = (),
    counts: Counts = "compute",
    jitter: float = 0.01,
    program: Program | None = None,
    noise: Noise | None = None,
) -> dict[int, list[Iteration]]:
    """What each rank prints, rounded to 0.1 ms as trainers do. Steps count from 0, as those of faults do."""
    job = _Job(layout, faults, jitter, program or Program(), noise or Noise(), seed)
    lines = [job.iteration(step, counts) for step in range(iterations)]
    return {rank: [line[rank] for line in lines] for rank in range(layout.ranks)}
