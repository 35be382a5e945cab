"""Heat, throttling and pace of GPUs as NVML tells of them."""

from typing import Any

from sentinel.core.health import Severity

FIRST, SECOND = "GPU 0000:18:00.0", "GPU 0000:2a:00.0"


def test_heat_is_judged_by_the_cards_own_limit(sample: Any, cards: Any) -> None:
    cards.set(gpu0_temperature=86)
    assert sample() == {}
    cards.set(gpu0_temperature=87)
    assert "limit 87" in sample()[FIRST, "gpu-temperature"].evidence[0]
    cards.set(gpu0_temperature=60)
    assert sample() == {}


def test_memory_and_margin_are_judged_by_the_cards_own_limits(sample: Any, cards: Any) -> None:
    cards.set(gpu0_field82=94, gpu1_margin=-1)
    assert sample() == {}
    cards.set(gpu0_field82=95, gpu1_margin=-2)
    found = sample()
    assert "95 °C, limit 95 °C" in found[FIRST, "gpu-memory-temperature"].evidence[0]
    assert "-2 °C left, limit -2 °C" in found[SECOND, "gpu-temperature-margin"].evidence[0]
    cards.set(gpu0_field82=60, gpu1_margin=20)
    assert sample() == {}


def test_a_hardware_slowdown_in_six_of_ten_minutes_is_degraded_with_its_evidence(
    sample: Any, cards: Any
) -> None:
    """By the card's counter of nanoseconds: half of each interval here, which a glance at the bits would miss."""
    ns = 0
    sample()
    for minute in range(9):
        for _ in range(2):
            ns += 21_000_000_000  # 42 s of each minute
            cards.set(gpu0_field270=ns, gpu0_temperature=85)
            found = sample()
        assert ((FIRST, "hw-slowdown") in found) == (minute >= 8), minute
    finding = found[FIRST, "hw-slowdown"]
    assert finding.severity is Severity.DEGRADED
    assert "6.3 of the last 10 min; now reasons 0x0, 85 °C, 650 W, 1755 MHz" in finding.evidence[0]
    assert list(found) == [(FIRST, "hw-slowdown")]
    cards.set(gpu0_temperature=60)
    assert (FIRST, "hw-slowdown") in sample.until(4)  # not at once: it would flap
    assert sample.until(4) == {}


def test_a_short_slowdown_is_no_fault(sample: Any, cards: Any) -> None:
    sample()
    cards.set(gpu0_field270=int(100e9))
    assert sample.until(5) == {}


def test_without_counters_the_reason_bits_stand_for_the_time_between_samples(sample: Any, cards: Any) -> None:
    cards.set(
        gpus_field269=None, gpus_field270=None, gpus_field271=None, gpu0_reasons=0x80, gpu1_reasons=0x20
    )
    assert sample.until(5) == {}
    found = sample.until(2)
    assert found[FIRST, "hw-slowdown"].severity is Severity.DEGRADED
    assert found[SECOND, "sw-thermal-slowdown"].severity is Severity.WARNING
    cards.set(gpus_reasons=0, gpu0_reasons=None, gpu1_reasons=None)
    assert sample.until(9) == {}


def test_a_power_cap_is_told_where_the_limit_was_lowered(sample: Any, cards: Any) -> None:
    cards.set(gpus_field74=None, gpus_reasons=0x4, gpu0_power_limit=500_000)
    found = sample.until(8)
    assert found[FIRST, "power-capped"].severity is Severity.WARNING
    assert "limit 500 W of 700 W" in found[FIRST, "power-capped"].evidence[0]
    assert (SECOND, "power-capped") not in found  # working hard at the usual limit is as designed
    cards.set(gpus_reasons=0, gpu0_power_limit=None)
    assert sample.until(10) == {}


def test_a_power_cap_is_told_where_one_card_alone_has_it(sample: Any, eight_cards: Any) -> None:
    eight_cards.set(gpus_field74=None, gpu3_reasons=0x4)
    found = sample.until(8)
    assert [code for _, code in found] == ["power-capped"]
    eight_cards.set(gpus_reasons=0x4)
    assert sample.until(6) == {}  # now all have it: they work hard


def test_a_card_slower_than_peers_that_agree_is_told(sample: Any, eight_cards: Any) -> None:
    eight_cards.set(gpu2_sm_clock=1200, gpu4_power=300_000, gpu6_gpm5=20)
    assert sample.until(5) == {}  # not for long enough
    found = sample.until(1)
    assert [(entity, code) for entity, code in found] == [
        ("GPU 0000:1a:00.0", "slow-clock"),
        ("GPU 0000:1c:00.0", "slow-power"),
        ("GPU 0000:1e:00.0", "slow-tensor"),
    ]
    assert (
        "1200 MHz on average over 10 min, peers 1755 MHz"
        in found["GPU 0000:1a:00.0", "slow-clock"].evidence[0]
    )
    eight_cards.set(gpu2_sm_clock=None, gpu4_power=None, gpu6_gpm5=None)
    assert sample.until(11) == {}


def test_cards_that_do_different_work_are_not_compared(sample: Any, eight_cards: Any) -> None:
    for index in range(8):
        eight_cards.set(
            **{f"gpu{index}_sm_clock": 1000 + 100 * index, f"gpu{index}_power": 300_000 + 50_000 * index}
        )
        eight_cards.set(**{f"gpu{index}_gpm5": 10 * index})
    assert sample.until(7) == {}
