"""What faults have cost, over a change of leader: the dashboard says what the records say, each fault once."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.kubernetes.jobs_site import JobSite
from tests.prometheus.test_watched import ALL, World, gang, panel, watched_world
from tests.prometheus.watched import Watched, filled

GPUS = 16


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with watched_world(tmp_path_factory.mktemp("leaders")) as made:
        yield made


def shown(watch: Watched, title: str) -> float:
    return watch.value(filled(panel("cost", title), ALL)) or 0.0


def break_and_recover(world: World) -> None:
    site = world.site
    before = len(site.incidents())
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 1)
    site.until(lambda: len(site.incidents()) == before + 1 and site.phases()[-1:] == ["Recovered"])


def lost_hours(site: JobSite) -> float:
    return float(sum(one["lost"]["gpuSeconds"] for one in site.incidents() if "lost" in one)) / 3600


def at(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def test_what_was_lost_under_two_leaders_is_what_the_records_say(world: World, tmp_path: Path) -> None:
    site = world.site
    with Watched(tmp_path / "watch", world.targets(), 1) as watch:
        site.until(watch.up)
        site.protect(restart={"maxRestarts": 10})
        site.create(gang())
        site.until(site.state("running"))
        world.ranks.start()
        try:
            break_and_recover(world)
            site.until(lambda: shown(watch, "GPU-hours lost") == pytest.approx(lost_hours(site)))
            world.leader.kill()
            world.standby.said("leads, epoch")
            site.until(lambda: watch.value("sum(sentinel_leading)") == 1)
            # None is lost with a leader. The next one counts when it has read the records.
            site.until(lambda: watch.value("count(sentinel_kept_recoveries)"))
            site.until(lambda: shown(watch, "GPU-hours lost") == pytest.approx(lost_hours(site)))
            break_and_recover(world)
        finally:
            world.ranks.end()
        before_hours = site.incidents()[0]["lost"]["gpuSeconds"] / 3600
        hours = lost_hours(site)
        assert hours > before_hours
        site.until(lambda: shown(watch, "GPU-hours lost") == pytest.approx(hours))
        assert shown(watch, "Incidents") == len(site.incidents()) == 2
        repeated = sum(one["lost"].get("steps", 0) for one in site.incidents())
        assert shown(watch, "Iterations repeated") == repeated
        mean_s = sum(one["lost"]["seconds"] for one in site.incidents()) / 2
        assert shown(watch, "Fault to new iteration") == pytest.approx(mean_s)
        assert watch.value(f"sum({filled(panel('cost', 'Restarts by cause'), ALL)})") == 2

        site.finish()
        site.until(site.state("succeeded"))
        record = site.record()
        assert record["endedGpus"] == GPUS
        wall_s = at(record["ended"]) - at(record["created"])
        wall = 'max(sentinel_kept_job_gpu_seconds{time="wall"})'
        site.until(lambda: watch.value(wall) == pytest.approx(GPUS * wall_s, abs=GPUS * 0.01))
        ettr = (watch.value('max(sentinel_kept_job_gpu_seconds{time="productive"})') or 0.0) / GPUS / wall_s
        site.until(lambda: shown(watch, "ETTR") == pytest.approx(ettr, rel=0.001))
        lost_s = sum(one["lost"]["seconds"] for one in site.incidents())
        assert (wall_s - 2 * lost_s) / wall_s < ettr < 1.0
        site.admin.delete(
            f"/apis/batch/v1/namespaces/{site.space}/jobs/train", propagationPolicy="Background"
        )
        site.until(lambda: watch.value("absent(sentinel_job_state)") == 1)
        assert shown(watch, "ETTR") == pytest.approx(ettr, rel=0.001), "it is gone, its record is kept"
        assert shown(watch, "GPU-hours lost") == pytest.approx(hours)
