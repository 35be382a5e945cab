"""A run on one machine, which Prometheus scrapes like any other: what the dashboards show of it."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import Box, train
from tests.e2e.test_saving import PROOFS, SLOW, resume
from tests.prometheus.test_dashboards import FILES, expressions, read
from tests.prometheus.watched import Watched, filled
from tests.waits import until

ALL = dict.fromkeys(("cluster", "owner", "pool"), ".*")
SAVES = "time_to_save_seconds"  # what only a run with a save tells


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path / "box")
    yield made
    made.close()


def test_the_dashboard_of_a_job_and_how_long_its_saves_took_are_shown(box: Box, tmp_path: Path) -> None:
    box.settings(listen="127.0.0.1:0")
    never_proved = resume(PROOFS["say"], timeout="10s")
    policy = box.policy(resume=never_proved, performance=SLOW, maxDuration="24h")
    words = ("--step-ms", "20", "--save", "never", "--hardware-ms", "1000")
    job = box.run(*train(*words), policy=policy)
    place = until(lambda: re.search(r"http://(127\.0\.0\.1:\d+)", job.err)).group(1)  # type: ignore[union-attr]
    with Watched(tmp_path / "watch", {"runs": [place]}, 1) as watch:
        until(watch.up, watch.story)
        until(lambda: watch.value(f"sentinel_{SAVES}_count") == 0, watch.story)
        box.order(0, "ratio 2900")
        box.phase("KeptRunning")
        record = box.job()
        assert record is not None
        chosen = {"job_name": record.name, "node": "none", **ALL}
        documents = {path.stem: read(path) for path in FILES}
        wanted = [one for document in documents.values() for one in expressions(document) if SAVES in one]
        wanted += expressions(documents["sentinel-job"])

        def empty() -> list[str]:
            return [one for one in wanted if not watch.story_of(filled(one, chosen))]

        until(lambda: not empty(), lambda: "\n".join([*empty(), watch.story(), box.story()]), every_s=0.5)
        took_s = [one.save.took_s for one in box.incidents() if one.save is not None]
        assert len(took_s) == watch.value(f"sentinel_{SAVES}_count") == 1
        assert watch.value(f"sentinel_{SAVES}_sum") == pytest.approx(took_s[0])
    job.send(signal.SIGINT)
    assert job.code() == 130
