"""An hour in which Prometheus is away: no alert is made of it, none is lost by it, and Sentinel does not notice."""

import gc
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from sentinel.metrics.registry import Metrics
from tests.prometheus.test_rules import (
    AGENT,
    FAULTS,
    FILES,
    HEALTHY,
    JOB,
    LEADER,
    RULES,
    Series,
    alerts,
    promtool,
)
from tests.test_metrics import FULL, A, every_call, scrape

END_M = 2400
FIRING = 'group by (alertname) (ALERTS{alertstate="firing"})'
ABSENT = {"SentinelNobodyLeads"}  # what a Prometheus says that runs and reaches nobody
# What is said of something that happened once, and for how long after it.
FOR_AN_HOUR = {"SentinelJobGivenUp", "SentinelException"}
FOR_TWO = {"SentinelFenceFails", "SentinelMailGivenUp", "SentinelReportsDropped"}
FOR_SIX = {"SentinelJobRestartsAgainAndAgain"}


def samples(notation: str) -> list[str]:
    """Of promtool's short form, one a minute; the last part goes on until END_M."""
    made: list[str] = []
    parts = notation.split()
    for part in parts:
        value, step, times = re.fullmatch(r"([^+x]+)(?:\+(\d+))?(?:x(\d+))?", part).groups()  # type: ignore[union-attr]
        count = END_M - len(made) if part is parts[-1] else int(times or 0) + (value != "_")
        if value in ("_", "stale"):
            made += [value] if value == "stale" else ["_"] * count
        else:
            made += [str(int(value) + int(step) * number) if step else value for number in range(count)]
    return made


def story(
    name: str, series: Series, away_m: range, fires: dict[int, set[str]], *more: dict[str, Any]
) -> dict[str, Any]:
    """Nothing is scraped in the minutes `away_m`; `fires`: which alerts, by minute."""

    def kept(notation: str) -> str:
        return " ".join("_" if minute in away_m else one for minute, one in enumerate(samples(notation)))

    asked = [
        {
            "expr": FIRING,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in sorted(names)],
        }
        for minute, names in fires.items()
    ]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": kept(values)} for one, values in series.items()],
        "promql_expr_test": [*asked, *more],
    }


def run(tmp_path: Path, *stories: dict[str, Any]) -> None:
    document = {
        "rule_files": [str(RULES / name) for name in FILES],
        "evaluation_interval": "5m",
        "group_eval_order": ["sentinel.recording", "sentinel.fleet", "sentinel.jobs", "sentinel.itself"],
        "tests": list(stories),
    }
    file = tmp_path / "gaps.test.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    promtool("test", "rules", str(file))


def together(*names: str) -> Series:
    """These faults at once, each that is of a job with a job of its own."""
    made = dict(HEALTHY)
    for name in names:
        of_a_job = any(JOB in series for series in FAULTS[name].series)
        every = {one: text for one, text in HEALTHY.items() if JOB in one} if of_a_job else {}
        for series, values in {**every, **FAULTS[name].series}.items():
            made[series.replace(JOB, f"{JOB}-{name}")] = values
    return made


OLD: Series = {  # what was over and told long before
    f'sentinel_job_state{{{LEADER},job_name="failed-yesterday",state="error"}}': "1x3000",
    f'sentinel_exceptions_total{{{AGENT},place="check"}}': "3x3000",
}


def test_after_an_hour_away_nothing_fires_on_a_healthy_fleet(tmp_path: Path) -> None:
    silent: dict[int, set[str]] = {minute: set() for minute in (2000, 2065, 2080, 2110, 2130, 2190)}
    run(tmp_path, story("healthy", HEALTHY | OLD, range(2001, 2061), {**silent, 2030: ABSENT}))


def test_what_happened_while_it_was_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    once = FOR_AN_HOUR | FOR_TWO | FOR_SIX
    mails = {
        "expr": "sum by (about) (increase(sentinel_mails_given_up_total[2h]))",
        "eval_time": "1990m",
        "exp_samples": [{"labels": '{about="nodes"}', "value": 6}],
    }
    # All of it happens after 1900: in the gap.
    fires = {1890: set[str](), 1990: once}
    run(tmp_path, story("meanwhile", together(*once) | OLD, range(1898, 1986), fires, mails))


def test_what_was_wrong_before_and_still_is_fires_again(tmp_path: Path) -> None:
    every = set(alerts()) - {"SentinelNobodyLeads", "SentinelNoStandby"}
    waits = {name: alerts()[name].get("for", "0m") for name in every}
    minutes = {name: int(text[:-1]) * (60 if text[-1] == "h" else 1) for name, text in waits.items()}

    def by(minute: int, *over: str) -> set[str]:
        """It is back at 2061, and first looked at 2065."""
        return {name for name in every if minutes[name] <= minute - 2065} - set(over)

    fires = {
        2000: every,
        2030: ABSENT | FOR_TWO | FOR_SIX,
        2080: by(2080, *FOR_AN_HOUR),
        2110: by(2110, *FOR_AN_HOUR, *FOR_TWO),
        2310: by(2310, *FOR_AN_HOUR, *FOR_TWO, *FOR_SIX),
    }
    assert "SentinelPaused" in fires[2310]
    run(tmp_path, story("still", together(*every) | OLD, range(2001, 2061), fires))


def test_a_sentinel_that_is_gone_is_told_whether_or_not_somebody_saw_it_go(tmp_path: Path) -> None:
    gone = dict.fromkeys((2020, 2070, 2390), ABSENT)
    series = together("SentinelIsolationHeldBack") | OLD
    run(tmp_path, story("gone", series, range(2001, END_M), {2000: {"SentinelIsolationHeldBack"}, **gone}))


# ---------------------------------------------------------------- what Sentinel has of it


def held_bytes(root: object) -> int:
    """All that only `root` leads to."""
    seen, todo = {}, [root]
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen[id(one)] = one
            todo += gc.get_referents(one)
    return sum(sys.getsizeof(one) for one in seen.values())


COUNTED = ("_total", "_count", "_sum", "_bucket")


def test_numbers_that_nobody_asks_for_take_no_room_and_go_on_counting() -> None:
    """An hour of rounds, 15 s each: `asked` is scraped after every one of them, `alone` after none."""
    asked, alone = Metrics(), Metrics()
    for metrics in (asked, alone):
        every_call(metrics)
    before, room = scrape(alone), held_bytes(alone)
    for number in range(240):
        for metrics in (asked, alone):
            every_call(metrics)
            metrics.job(A, structs.replace(FULL, iteration=100 + number, step_ms=1000.0 + number))
        asked.render()
    assert held_bytes(alone) < 1.1 * room
    after = scrape(alone)
    assert after == scrape(asked)
    assert after.keys() == before.keys(), "no series came and none went"
    counted = {key for key in after if key[0].endswith(COUNTED)}
    assert [key for key in counted if after[key] < before[key]] == []
    decisions = "sentinel_decisions_total", (("reason", "NoRoom"),)
    assert after[decisions] - before[decisions] == 240
    took = "sentinel_time_to_save_seconds_count", ()
    assert after[took] - before[took] == 240
