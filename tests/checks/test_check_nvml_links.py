"""PCIe, NVLink and fabric of GPUs as NVML tells of them."""

import json
from typing import Any

import pytest

from sentinel.checks.base import Kept
from sentinel.checks.nvidia.links import fabric_faults
from sentinel.checks.nvidia.nvml_sample import Fabric
from sentinel.core.health import Severity

FIRST, SECOND = "GPU 0000:18:00.0", "GPU 0000:2a:00.0"


def test_a_pcie_link_below_its_width_or_speed_under_load_is_fatal_when_it_lasts(
    sample: Any, cards: Any
) -> None:
    cards.set(gpu0_pcie_width=8, gpu1_pcie_gen=3)
    assert sample() == {}
    assert sample() == {}
    found = sample()
    assert found[FIRST, "pcie-link"].severity is Severity.FATAL
    assert "x8 of x16" in found[FIRST, "pcie-link"].evidence[0]
    assert "generation 3 of 5" in found[SECOND, "pcie-link"].evidence[0]
    cards.set(gpu1_util=0, gpu1_pstate=8)  # idle: nothing says that it is well again
    assert (SECOND, "pcie-link") in sample()
    cards.set(gpu0_pcie_width=None, gpu1_pcie_gen=None)
    assert sample() == {}


def test_a_link_that_never_was_better_nor_any_peers_may_be_built_so_and_is_only_told(
    sample: Any, cards: Any
) -> None:
    cards.set(gpus_pcie_width=8)
    found = sample.until(2)
    assert [finding.severity for finding in found.values()] == [Severity.WARNING, Severity.WARNING]
    cards.set(gpu0_pcie_width=16)
    found = sample()
    assert list(found) == [(SECOND, "pcie-link")]
    assert found[SECOND, "pcie-link"].severity is Severity.FATAL
    saved = sample.kept.saved
    sample.kept.close()
    sample.kept = Kept(saved=saved)  # another agent of this boot
    cards.set(gpu0_pcie_width=8)
    assert sample.until(2)[FIRST, "pcie-link"].severity is Severity.FATAL


def test_an_idle_card_may_lower_its_link(sample: Any, cards: Any) -> None:
    cards.set(gpus_util=0, gpus_pstate=8, gpus_pcie_gen=1)
    assert sample.until(5) == {}
    cards.set(gpus_util=99, gpus_pstate=0)  # it wakes, and the link follows
    assert sample() == {}
    cards.set(gpus_pcie_gen=5)
    assert sample.until(2) == {}


def test_many_replays_warn_and_few_do_not(sample: Any, cards: Any) -> None:
    cards.set(gpu0_replays=100_000)
    sample.until(2)  # nobody knows when those were
    cards.set(gpu0_replays=100_008)
    assert sample.until(2) == {}
    cards.set(gpu0_replays=100_100)
    finding = sample.until(2)[FIRST, "pcie-replays"]
    assert finding.severity is Severity.WARNING
    cards.set(gpu0_replays=0)  # the driver was loaded again
    assert sample.until(12) == {}


def test_a_counter_that_started_again_hides_nothing_that_comes_after(sample: Any, cards: Any) -> None:
    cards.set(gpu0_replays=100_000)
    sample()
    cards.set(gpu0_replays=3)
    assert sample.until(1.5) == {}
    cards.set(gpu0_replays=500)
    assert "497 replays" in sample.until(1.5)[FIRST, "pcie-replays"].evidence[0]


def test_an_nvlink_that_went_down_is_fatal(sample: Any, cards: Any) -> None:
    sample()
    cards.set(gpu1_link2=0)
    finding = sample.until(1.0)[SECOND, "nvlink-down"]
    assert finding.severity is Severity.WARNING
    finding = sample.until(1.5)[SECOND, "nvlink-down"]
    assert finding.severity is Severity.FATAL
    assert "links 2; 3 are active" in finding.evidence[0]
    cards.set(gpu1_link2=1)
    assert sample.until(1.5) == {}


def test_an_nvlink_that_went_down_while_no_agent_ran_is_seen(sample: Any, cards: Any) -> None:
    sample()
    saved = sample.kept.saved
    sample.kept.close()
    sample.kept = Kept(saved=saved)
    cards.set(gpu1_link2=0)
    assert (SECOND, "nvlink-down") in sample()


def test_nvlinks_are_waited_for_while_a_driver_that_was_loaded_anew_joins_the_fabric(
    sample: Any, cards: Any
) -> None:
    sample()
    cards.set(gpu1_link2=0, gpu1_fabric_state=2)
    assert sample.until(4.5)[SECOND, "nvlink-down"].severity is Severity.WARNING
    assert sample.until(2)[SECOND, "nvlink-down"].severity is Severity.FATAL


def test_what_lasts_goes_on_over_a_restart_of_the_agent(sample: Any, cards: Any) -> None:
    cards.set(gpu0_fabric_state=2, gpu1_pcie_width=8)
    sample.until(6)
    saved = json.loads(json.dumps(sample.kept.saved))
    sample.kept.close()
    sample.kept = Kept(saved=saved)
    cards.set(gpu1_util=0, gpu1_pstate=8)  # an idle link says nothing, for or against
    found = sample()
    assert found[FIRST, "fabric-not-up"].severity is Severity.FATAL
    assert found[SECOND, "pcie-link"].severity is Severity.FATAL


def test_fewer_nvlinks_than_the_peers_from_the_start_are_told(sample: Any, cards: Any) -> None:
    cards.set(gpu0_link0=0, gpu0_link1=0)
    finding = sample()[FIRST, "nvlink-missing"]
    assert finding.severity is Severity.WARNING
    assert "2 of 4 are active" in finding.evidence[0]
    cards.set(gpu0_link0=1, gpu0_link1=1)
    assert sample.until(1.5) == {}


def test_cards_without_nvlink_or_with_none_in_use_are_healthy(sample: Any, cards: Any) -> None:
    cards.set(**{f"gpus_link{link}": 0 for link in range(4)})
    assert sample() == {}
    cards.set(**{f"gpus_link{link}": None for link in range(4)}, gpus_field91=None)
    assert sample.until(2) == {}


def test_nvlink_errors_warn_from_five_on(sample: Any, cards: Any) -> None:
    """The totals of Hopper and older cards, and the counters for each link of Blackwell."""
    cards.set(gpus_field52=70, gpus_field45=0)
    for link in range(4):
        cards.field(1, 208, 10, link)
    assert sample() == {}
    cards.set(gpu0_field52=74)
    cards.field(1, 208, 14, link=3)
    assert sample.until(1.5) == {}
    cards.set(gpu0_field52=75)
    cards.field(1, 208, 11, link=0)
    found = sample.until(1.5)
    assert found[FIRST, "nvlink-errors"].severity is Severity.WARNING
    assert "replay 5 in" in found[FIRST, "nvlink-errors"].evidence[0]
    assert "receive 5 in" in found[SECOND, "nvlink-errors"].evidence[0]
    assert sample.until(12) == {}


def test_a_failed_recovery_of_an_nvlink_is_fatal(sample: Any, cards: Any) -> None:
    for link in range(4):
        cards.field(0, 214, 0, link)
    sample()
    cards.field(0, 214, 1, link=1)
    assert sample.until(1.5)[FIRST, "nvlink-recovery-failed"].severity is Severity.FATAL
    assert sample.until(12) == {}


def test_a_link_that_tells_nothing_for_a_while_has_no_new_errors(sample: Any, cards: Any) -> None:
    for link in range(4):
        cards.field(0, 214, link, link)  # failed recoveries of long ago
    sample()
    cards.field(0, 214, None, link=3)
    assert sample.until(1.5) == {}
    cards.field(0, 214, 3, link=3)
    assert sample.until(1.5) == {}
    cards.set(gpu0_field91=3)  # the driver lists one link less
    assert list(sample.until(1.5)) == [(FIRST, "nvlink-missing")]
    cards.set(gpu0_field91=4)
    assert sample.until(1.5) == {}
    cards.field(0, 214, 4, link=3)
    assert sample.until(1.5)[FIRST, "nvlink-recovery-failed"].severity is Severity.FATAL


def test_flit_crc_errors_count_only_at_a_high_rate(sample: Any, cards: Any) -> None:
    cards.set(gpus_field38=0)
    sample()
    cards.set(gpu0_field38=5000, gpu1_field38=50_000)
    assert [entity for entity, _ in sample.until(1.5)] == [SECOND]


def test_a_card_that_does_not_join_the_fabric_is_told_and_then_fatal(sample: Any, cards: Any) -> None:
    cards.set(gpu0_fabric_state=2)
    finding = sample()[FIRST, "fabric-not-up"]
    assert finding.severity is Severity.WARNING  # it takes minutes after a boot
    assert "in progress" in finding.evidence[0]
    assert sample.until(5)[FIRST, "fabric-not-up"].severity is Severity.FATAL
    cards.set(gpu0_fabric_state=3)
    assert sample() == {}


def test_a_card_alone_does_not_need_its_fabric(sample: Any, machine: Any, nvml: Any) -> None:
    machine.add_pci("0000:18:00.0")
    nvml("0000:18:00.0").set(gpu0_fabric_state=1)
    assert sample.until(6)[FIRST, "fabric-not-up"].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fabric_mask": 0x1A9}, "bandwidth"),
        ({"fabric_mask": 0x19A}, "route unhealthy"),
        ({"fabric_mask": 0x16A}, "access timeout"),
        ({"fabric_mask": 0x5AA}, "insufficient NVLinks"),
        ({"fabric_mask": 0x81AA}, "fabric manager disconnected"),
        ({"fabric_mask": 0xFAA}, "incorrect configuration 15"),
        ({"fabric_summary": 2}, "unhealthy"),
        ({"fabric_summary": 3}, "limited capacity"),
        ({"fabric_status": 999}, "status 999"),
    ],
)
def test_a_fabric_that_is_not_healthy_is_fatal_and_named(
    sample: Any, cards: Any, values: dict[str, int], words: str
) -> None:
    cards.set(**{f"gpu1_{key}": value for key, value in values.items()})
    finding = sample()[SECOND, "fabric-unhealthy"]
    assert finding.severity is Severity.FATAL
    assert words in finding.evidence[0]
    cards.set(**{f"gpu1_{key}": None for key in values})
    assert sample() == {}


def test_a_fabric_that_recovers_its_routes_is_waited_for(sample: Any, cards: Any) -> None:
    cards.set(gpu1_fabric_mask=0x1A6)
    finding = sample.until(4)[SECOND, "fabric-unhealthy"]
    assert (finding.severity, "route recovery" in finding.evidence[0]) == (Severity.WARNING, True)
    assert sample.until(2)[SECOND, "fabric-unhealthy"].severity is Severity.FATAL
    cards.set(gpu1_fabric_mask=0x1A5)  # and less bandwidth, which is a fault at once
    assert sample()[SECOND, "fabric-unhealthy"].severity is Severity.FATAL
    cards.set(gpu1_fabric_mask=0x1AA)
    assert sample() == {}


def test_a_driver_that_knows_only_the_older_fabric_structure_is_asked_by_that(
    sample: Any, cards: Any
) -> None:
    cards.set(fabric_version=2, gpu0_fabric_mask=0x1A9)
    assert list(sample()) == [(FIRST, "fabric-unhealthy")]


def test_a_fabric_that_tells_no_health_is_healthy() -> None:
    assert fabric_faults(Fabric(state=3)) == []
