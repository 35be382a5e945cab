"""The fleet in numbers for a scrape of the leader: nodes by state, findings, quarantines, brakes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set

from sentinel.core.fleet import brakes, rounds
from sentinel.core.fleet.brakes import Use
from sentinel.core.fleet.model import Brake, FleetPicture, Kind, Mode, NodeQuarantine, State
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.fleet.silence import hearing
from sentinel.core.health import Severity
from sentinel.core.now import Now
from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics
from sentinel.util.works import STATES as WORK_STATES
from sentinel.util.works import Works

FLEET = (
    declared.NODES,
    declared.NODE_GPUS,
    declared.FLEET_FINDINGS,
    declared.NODE_FINDING,
    declared.QUARANTINE,
    declared.QUARANTINES,
    declared.NETWORK_INCIDENTS,
    declared.BRAKE_LIMIT,
    declared.BRAKE_USED,
    declared.BRAKE_HELD,
    declared.UNJUDGED,
    declared.AGENTS_CLOCK,
    declared.WORKS,
    declared.WORKS_FAILING,
    declared.WORKS_OLDEST,
)
# What the leader does to nodes and their records, each node's one after the other.
EFFECTS = (
    *("isolate", "save", "settle", "claim", "show", "condition", "remove", "fence"),
    *("order", "answer", "mail-record", "record-status", "prune"),
)
WHYS = ("incomplete", "leases-new", "agents-wait", "mass-silence")
IN_SERVICE, NOT_HEARD = "in-service", "not-heard"
# Of a node with several, the first counts.
STATES = ("isolated", "held-back", "unreachable", "agent-silent", "observed", NOT_HEARD, IN_SERVICE)


def measure(
    metrics: Metrics,
    picture: FleetPicture,
    records: Mapping[str, NodeQuarantine],
    settings: FleetSettings,
    now: Now,
    plain: Set[str] = frozenset(),
) -> None:
    """`plain`: nodes that are known to have no findings. About 5 ms for 10 000 nodes: whoever scrapes often gets what
    was counted a moment ago."""
    pools = _pools(picture)
    _nodes(metrics, picture, records, pools)
    _findings(metrics, picture, plain, pools)
    held = sorted((one for one in records.values() if one.state.open), key=lambda one: -one.since_wall_s)
    open_ones: dict[tuple[str, ...], float] = {
        (
            one.node,
            pools.get(one.pool, one.pool),
            one.kind.value,
            one.state.value,
            one.mode.value,
            one.reason,
        ): one.since_wall_s
        for one in held[: declared.MAX_NODES]
    }
    metrics.show(declared.QUARANTINE, open_ones)
    kept = Counter((one.kind.value, one.state.value, one.mode.value) for one in records.values())
    every = {(kind.value, state.value, mode.value): 0 for kind in Kind for state in State for mode in Mode}
    metrics.replace(declared.QUARANTINES, every | kept)
    metrics.replace(declared.NETWORK_INCIDENTS, {(): len(rounds.incidents(records, settings, now))})
    _brakes(metrics, picture, records, settings, now)


def measure_works(metrics: Metrics, works: Works) -> None:
    """How full the queue of writes is. Each scrape counts anew: it fills and empties within seconds."""
    counts = {(effect, state): 0 for effect in EFFECTS for state in WORK_STATES}
    oldest_s = dict.fromkeys(counts, 0.0)
    for one in works.standing():
        key = (one.effect, one.state)
        counts[key] = counts.get(key, 0) + 1
        oldest_s[key] = max(oldest_s.get(key, 0.0), one.for_s)
    failing = Counter((one.effect,) for one in works.failing)
    metrics.replace(declared.WORKS, counts)
    metrics.replace(declared.WORKS_OLDEST, oldest_s)
    metrics.replace(declared.WORKS_FAILING, {(effect,): 0 for effect in EFFECTS} | failing)


def unjudged(
    picture: FleetPicture,
    records: Mapping[str, NodeQuarantine],
    settings: FleetSettings,
    now: Now,
    quiet: Set[str] = frozenset(),
) -> dict[str, str]:
    """Why less is decided than could be, in sentences. `quiet`: see rounds.decide."""
    found = {}
    if not picture.complete:
        found["incomplete"] = "Not all nodes and pods are known: one that is missing is not taken for gone."
    if now.mono_s - picture.watching_since_mono_s < max(settings.lease_s, settings.agent_silent_s):
        found["leases-new"] = "The kubelets' leases are not watched for long enough: no silence is judged."
    if picture.crowded_mono_s and now.mono_s - picture.crowded_mono_s < settings.agent_silent_s:
        found["agents-wait"] = "Agents waited to be let in: which of them are silent is not judged yet."
    if mass := hearing(picture, settings, now, quiet).mass:
        found["mass-silence"] = mass
    return found


def forget(metrics: Metrics) -> None:
    """This controller leads no more: the numbers are another one's."""
    for declaration in FLEET:
        metrics.replace(declaration, {})


def _pools(picture: FleetPicture) -> Mapping[str, str]:
    """Under which name each is told: the largest under their own."""
    sizes = brakes.sizes(picture) or {"": 0}
    largest = {*sorted(sizes, key=lambda pool: (-sizes[pool], pool))[: declared.MAX_POOLS]}
    return {pool: pool if pool in largest else declared.OTHER for pool in sizes}


def _findings(metrics: Metrics, picture: FleetPicture, plain: Set[str], pools: Mapping[str, str]) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    bad = []
    for name in picture.nodes.keys() - plain:
        pool = pools[picture.nodes[name].pool]
        for one in picture.nodes[name].findings:
            counts[one.component.value, one.severity.value, one.code] += 1
            if one.severity.order >= Severity.DEGRADED.order:
                key = (name, pool, one.component.value, one.severity.value, one.code)
                bad.append((-one.severity.order, key))
    metrics.replace(declared.FLEET_FINDINGS, counts)
    bad.sort()
    metrics.show(declared.NODE_FINDING, {key: 1.0 for _, key in bad[: declared.MAX_NODES]})


def _nodes(
    metrics: Metrics,
    picture: FleetPicture,
    records: Mapping[str, NodeQuarantine],
    pools: Mapping[str, str],
) -> None:
    worst: dict[str, str] = {
        name: NOT_HEARD for name, node in picture.nodes.items() if node.agent_mono_s is None
    }
    for record in records.values():
        if record.state.open and record.node in picture.nodes:
            worst[record.node] = min(worst.get(record.node, IN_SERVICE), _state(record), key=STATES.index)
    nodes: dict[tuple[str, ...], float] = {(pool, state): 0.0 for pool in pools.values() for state in STATES}
    gpus = dict(nodes)
    for name, node in picture.nodes.items():
        key = pools[node.pool], worst.get(name, IN_SERVICE)
        nodes[key] += 1
        gpus[key] += node.gpus
    metrics.show(declared.NODES, nodes)
    metrics.show(declared.NODE_GPUS, gpus)


def _state(record: NodeQuarantine) -> str:
    if record.isolating:
        return "isolated"
    if record.state is State.HELD:
        return "held-back"
    if record.kind is Kind.SILENCE:
        return "agent-silent" if record.reason == "AgentSilent" else "unreachable"
    return "observed"


def _brakes(
    metrics: Metrics,
    picture: FleetPicture,
    records: Mapping[str, NodeQuarantine],
    settings: FleetSettings,
    now: Now,
) -> None:
    uses = brake_uses(picture, records.values(), settings, now)[: declared.MAX_SERIES]
    metrics.replace(declared.BRAKE_LIMIT, {(brake, use.window, use.pool): use.limit for brake, use in uses})
    metrics.replace(declared.BRAKE_USED, {(brake, use.window, use.pool): use.used for brake, use in uses})
    held = Counter((one.held_by.value,) for one in records.values() if one.state.open and one.held_by)
    none = {(brake.value,): 0 for brake in Brake if brake}
    metrics.replace(declared.BRAKE_HELD, none | held)


def brake_uses(
    picture: FleetPicture, records: Iterable[NodeQuarantine], settings: FleetSettings, now: Now
) -> list[tuple[str, Use]]:
    """How much of each brake is used: those of all nodes first, since pools may be too many to tell of."""
    records = list(records)
    tallies = {
        "isolations": brakes.isolations(Kind.FAULT, records, picture, settings, now),
        "full-disks": brakes.isolations(Kind.DISK, records, picture, settings, now),
        "removals": brakes.removals(records, picture, settings, now),
    }
    return sorted(
        ((brake, use) for brake, tally in tallies.items() for use in tally.uses()),
        key=lambda one: (bool(one[1].pool), -one[1].used, one[1].pool),
    )
