"""The brakes: how many nodes may be isolated, how many jobs stopped, how many nodes' pods removed by force. Pure.

Everything is counted from records, so that a new leader counts the same. A brake re-arms by itself: what stands ends,
what was done leaves the window.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from sentinel.core.fleet.model import Brake, FleetPicture, Kind, Mode, NodeQuarantine, State
from sentinel.core.fleet.settings import Allowance, FleetSettings
from sentinel.core.now import Now


class Act(Struct, frozen=True):
    """Something that counts. `standing`: it lasts (an isolation that is not `proven`), so it also counts at a time."""

    pool: str
    at_wall_s: float  # when it was begun; 0: not by us
    mode: Mode = Mode.ENFORCE
    standing: bool = False


class Use(Struct, frozen=True):
    """How much of one allowance is used, of what is enforced. `pool`: "" for all nodes."""

    window: str  # at-a-time | per-window
    pool: str
    used: int
    limit: int


class Tally:
    """The acts of one kind, counted in all and per pool.

    What was only observed takes no room from what is enforced; what is observed counts both, as if all were enforced.
    """

    def __init__(
        self,
        whole: Allowance,
        per_pool: Allowance,
        sizes: Mapping[str, int],
        acts: Iterable[Act],
        now: Now,
    ) -> None:
        self._whole = whole
        self._per_pool = per_pool
        self._sizes = sizes
        self._all = sum(sizes.values())
        self._now = now
        self._counts: Counter[tuple[Mode, str, str]] = Counter()
        for act in acts:
            self.add(act)

    def add(self, act: Act) -> None:
        for mode in Mode:
            if mode is Mode.ENFORCE and act.mode is Mode.OBSERVE:
                continue
            if act.standing:
                self._counts[mode, "standing", ""] += 1
                self._counts[mode, "standing in", act.pool] += 1
            # A time to come is of a clock that was set back: it counts.
            if act.at_wall_s > self._now.wall_s - self._whole.window_s and act.at_wall_s:
                self._counts[mode, "begun", ""] += 1
            if act.at_wall_s > self._now.wall_s - self._per_pool.window_s and act.at_wall_s:
                self._counts[mode, "begun in", act.pool] += 1

    def brake(self, pool: str, mode: Mode) -> Brake:
        """What holds one more back; NONE: there is room."""
        whole, per_pool, counts = self._whole, self._per_pool, self._counts
        size = self._sizes.get(pool, 0)
        if whole.at_a_time and counts[mode, "standing", ""] >= whole.at_a_time.of(self._all):
            return Brake.AT_A_TIME
        if per_pool.at_a_time and counts[mode, "standing in", pool] >= per_pool.at_a_time.of(size):
            return Brake.POOL_AT_A_TIME
        if counts[mode, "begun", ""] >= whole.per_window.of(self._all):
            return Brake.PER_WINDOW
        if counts[mode, "begun in", pool] >= per_pool.per_window.of(size):
            return Brake.POOL_PER_WINDOW
        return Brake.NONE

    def uses(self) -> Iterator[Use]:
        """Of all nodes, then of each pool."""
        scopes = [(self._whole, "standing", "begun", "", self._all)]
        scopes += [
            (self._per_pool, "standing in", "begun in", pool, size)
            for pool, size in self._sizes.items()
            if pool
        ]
        for allowance, standing, begun, pool, size in scopes:
            counts = self._counts
            if allowance.at_a_time:
                yield Use(
                    "at-a-time", pool, counts[Mode.ENFORCE, standing, pool], allowance.at_a_time.of(size)
                )
            yield Use("per-window", pool, counts[Mode.ENFORCE, begun, pool], allowance.per_window.of(size))


def sizes(picture: FleetPicture) -> dict[str, int]:
    """Nodes of each pool."""
    return dict(Counter(node.pool for node in picture.nodes.values()))


def isolations(
    kind: Kind,
    records: Iterable[NodeQuarantine],
    picture: FleetPicture,
    settings: FleetSettings,
    now: Now,
) -> Tally:
    """Isolations for findings, or those for full disks. What a person holds is his own doing and counts nowhere."""
    whole, per_pool = (
        (settings.disks, settings.pool_disks)
        if kind is Kind.DISK
        else (settings.isolations, settings.pool_isolations)
    )
    since_wall_s = now.wall_s - max(whole.window_s, per_pool.window_s)
    acts = (
        Act(record.pool, record.acted_wall_s, record.mode, unproven(record, settings, now))
        for record in records
        if record.kind is kind and (record.acted_wall_s > since_wall_s or record.state is State.ACTIVE)
    )
    return Tally(whole, per_pool, sizes(picture), acts, now)


def unproven(record: NodeQuarantine, settings: FleetSettings, now: Now) -> bool:
    """Does this isolation count at a time? A repair takes days: what stood for hours, and nobody took back, is no
    mistake that a brake could still bound, and neither is what a person has acknowledged."""
    if record.state is not State.ACTIVE or record.acknowledged:
        return False
    stood_s = now.wall_s - (record.acted_wall_s or record.since_wall_s)
    return stood_s < settings.proven_after_s  # a time to come is of a clock that was set back: it counts


def removals(
    records: Collection[NodeQuarantine], picture: FleetPicture, settings: FleetSettings, now: Now
) -> Tally:
    """Removals by force and calls of the fencing program. All those of one record and mode are one act, the newest."""
    acts = [
        Act(record.pool, at_wall_s, mode)
        for record in records
        for mode in Mode
        if (at_wall_s := _newest_force(record, mode))
    ]
    return Tally(settings.removals, settings.pool_removals, sizes(picture), acts, now)


def has_room(record: NodeQuarantine, mode: Mode, settings: FleetSettings, now: Now) -> bool:
    """Did this silence take room of the brake for removals within its window? More of them take no more."""
    window_s = min(settings.removals.window_s, settings.pool_removals.window_s)
    return 0.0 <= now.wall_s - _newest_force(record, mode) < window_s


def _newest_force(record: NodeQuarantine, mode: Mode) -> float:
    """When pods were last removed by force in this mode, or the fencing program called; 0: never."""
    times = [removal.at_wall_s for removal in record.removals if removal.mode is mode]
    if record.fence is not None and record.fence.mode is mode:
        times.append(record.fence.begun_wall_s)
    return max(times, default=0.0)
