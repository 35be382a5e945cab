"""The fleet in numbers: of each pool by itself, and of no more pools than a scrape can bear."""

from sentinel.controller.nodes import numbers as fleet_numbers
from sentinel.metrics.declared import MAX_POOLS
from sentinel.metrics.registry import Metrics
from tests.core.fleet_world import World, a_finding
from tests.test_metrics import scrape


def told(world: World) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> values of its labels, by their names -> value."""
    metrics = Metrics()
    fleet_numbers.measure(metrics, world.picture, world.records, world.settings, world.now)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for (name, labels), value in scrape(metrics).items():
        key = tuple(text for _, text in labels)
        found.setdefault(name.removeprefix("sentinel_"), {})[key] = value
    return found


def test_nodes_gpus_findings_and_isolations_are_told_with_their_pool() -> None:
    world = World(("a1", "a2"), pool="a")
    world.join("b1", pool="b")
    world.join("none")
    for name in world.picture.nodes:
        world.change(name, gpus=8)
    world.shows("a1", a_finding())
    world.decide()
    found = told(world)
    assert {key: value for key, value in found["nodes"].items() if value} == {
        ("a", "isolated"): 1,
        ("a", "in-service"): 1,
        ("b", "in-service"): 1,
        ("", "in-service"): 1,
    }
    assert found["nodes"]["b", "isolated"] == 0
    assert (found["gpus"]["a", "isolated"], found["gpus"]["", "in-service"]) == (8, 8)
    assert [key for key in found["node_finding"] if "a" in key] == list(found["node_finding"]) != []
    assert [key for key in found["quarantine_since_timestamp_seconds"] if "a" in key] != []


def test_of_too_many_pools_the_smallest_are_one_and_no_node_is_lost() -> None:
    world = World()
    world.leave("n1")
    for number in range(MAX_POOLS + 3):
        world.join(f"n{number}", pool=f"p{number:03}")
        world.join(f"m{number}", pool="large")
    nodes = told(world)["nodes"]
    assert len({pool for pool, _ in nodes}) == MAX_POOLS + 1
    assert sum(nodes.values()) == 2 * (MAX_POOLS + 3)
    assert nodes["large", "in-service"] == MAX_POOLS + 3
    assert nodes["other", "in-service"] == 4


def test_a_cluster_without_nodes_has_no_nodes_in_any_state() -> None:
    world = World(())
    assert set(told(world)["nodes"].values()) == {0}
