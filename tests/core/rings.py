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
    micro: int = 8  # micro-batches of an iteration
    lengths: float = 0.0  # sigma (lognormal) of batches: one length for each replica and iteration
    checkpoint_every: int = 0  # iterations
    checkpoint_ms: float = 4000.0
    first_ms: float = 5000.0  # on top of the first iteration: memory, communicators, kernels to choose
    overlap: float = 0.0  # share of the last backward pass in which gradients are already reduced
    load_ms: float = 250.0  # that a rank's loader takes for the batches of an iteration
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


QUIET = Noise(spread=0, transfer=0, wander=0, fabric=0, load=0, hiccup=0, lag_ms=0)


def layers(stage: int, stages: int) -> float:
    """What a stage computes, in layers. One in the middle (of two: the last) has a layer less."""
    less = stages > 1 and stage == stages // 2
    return LAYERS - less + (stage == 0) * EMBEDDING + (stage == stages - 1) * LOSS


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
        self.wander = self.fabric = 0.0
        self.now = [0.0] * layout.ranks  # of each rank's process: when it began the iteration
        self.loaded = [0.0] * layout.ranks  # when the newest batch was there
        self.begun = [deque([0.0] * program.prefetch, program.prefetch) for _ in range(layout.ranks)]
        self.faulty = _Faulty(layout, ())

    def _about_one(self, sigma: float) -> float:
        return max(1 + sigma * self.draw.gauss(0, 1), 0.2)

    def _drift(self, value: float, sigma: float) -> float:
        return 0.98 * value + math.sqrt(1 - 0.98**2) * sigma * self.draw.gauss(0, 1)

    def _transfers(self, ms: dict[int, NearFar]) -> dict[int, float]:
        return {
            key: max(near, far * (1 + self.fabric)) * self._about_one(self.noise.transfer)
            for key, (near, far) in ms.items()
        }

    def iteration(self, step: int, counts: Counts) -> list[Iteration]:
        layout, program, noise, draw = self.layout, self.program, self.noise, self.draw
        ranks = range(layout.ranks)
        active = [fault for fault in self.faults if fault.at(step)]
        if active != self.faulty.active:
            self.faulty = _Faulty(layout, active)
        self.wander, self.fabric = (
            self._drift(self.wander, noise.wander),
            self._drift(self.fabric, noise.fabric),
        )
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
            lines.append(Iteration(START_S + noticed / 1000, step, shown, round(e2e_ms, 1)))
            self.now[rank] = noticed
        return lines

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
            load_ms = program.load_ms * self.faulty.loader[rank] * speed[host_of(rank)]
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
        stages = layout.pipeline
        ring_ms, hop_ms = self._transfers(self.faulty.tensor), self._transfers(self.faulty.hop)
        stalled, stalled_micro, stall_ms = stall
        free, between = list(first), [0.0] * layout.ranks
        forward = []
        for rank in range(layout.ranks):
            _, stage, replica = layout.place(rank)
            forward.append(layers(stage, stages) * LAYER_MS * length[replica] * kernel[rank])
        for replica in range(layout.data):
            groups = [range(r, r + size) for r in (layout.rank(0, s, replica) for s in range(stages))]
            share = length[replica]
            ring_of = [ring_ms[group[0]] * share for group in groups]
            hops = [[hop_ms.get(rank, 0.0) * share for rank in group] for group in groups]
            costs = [[[x * forward[rank] for rank in group] for group in groups] for x in (1, 2)]
            ready = [[first[rank] for rank in group] for group in groups]
            inside = [[0.0] * size for _ in groups]
            done: list[float] = []
            for stage, back, micro, needed in schedule(stages, self.program.micro):
                begin, cost = ready[stage], costs[back][stage]
                if needed >= 0:
                    sent = done[needed]
                    begin = [max(b, sent + hop) for b, hop in zip(begin, hops[stage + back], strict=True)]
                if stall_ms and micro == stalled_micro and not back:
                    group = groups[stage]
                    cost = [
                        ms + stall_ms * (host_of(r) == stalled) for ms, r in zip(cost, group, strict=True)
                    ]
                end = max(map(add, begin, cost)) + ring_of[stage]
                inside[stage] = [ms + end - b for ms, b in zip(inside[stage], begin, strict=True)]
                ready[stage] = [end] * size
                done.append(end)
            for stage, group in enumerate(groups):
                for t, rank in enumerate(group):
                    free[rank], between[rank] = ready[stage][t], inside[stage][t]
        return free, forward, between


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
