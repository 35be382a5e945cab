"""`kill -9` of Sentinel at random instants and in each phase of a recovery: nothing is doubled, lost or miscounted."""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sentinel.core.model import Phase
from sentinel.core.recovery.budget import MOST_PER_HOUR
from tests.chaos.world import ChaosJob, MailServer, check_mails, kill, seeded
from tests.waits import until

RANDOM_KILLS = int(os.environ.get("CHAOS_KILLS") or 200)
LEAST = 10  # kills in each phase
JOBS = 3  # at a time
FAULTS = MOST_PER_HOUR - 2  # of one job; then another takes its place
LONGEST_LIFE_S = 5.0  # of a Sentinel that is killed at a random instant; coming up takes 0.5 s and more
AIM_S = 20.0  # the phase that is aimed at comes in this time, or the kill falls somewhere else
# Detected is passed within one save: a record is first written when its recovery has begun, so that a kill before
# it finds plain running. It can therefore not be aimed at.
AIMS = (Phase.PRECHECKING, Phase.SAVING, Phase.STOPPING, Phase.STARTING, Phase.VERIFYING, None)
CHOSEN_ONLY = (Phase.SAVING,)


class Tormentor:
    """Hurts one job after the other and kills its Sentinel again and again; whatever is alive then is looked at from
    outside."""

    def __init__(
        self,
        start: Callable[[int], ChaosJob],
        rng: random.Random,
        kills: Counter[Phase | None],
        lock: threading.Lock,
    ) -> None:
        self.rng = rng
        self.jobs: list[ChaosJob] = []
        self._start = start
        self._kills, self._lock = kills, lock  # shared: where the record stood at each kill
        self._moves = 0

    @property
    def job(self) -> ChaosJob:
        return self.jobs[-1]

    def run(self, random_kills: int) -> None:
        self._next()
        for _ in range(random_kills):
            self._life(None, self.rng.uniform(0.0, LONGEST_LIFE_S))
        while lacking := self._lacking():
            self._life(self.rng.choice(lacking), AIM_S)
        self._rest()

    def _next(self) -> None:
        self.jobs.append(self._start(len(self.jobs)))
        self._moves = 0
        self.job.run()
        until(lambda: self.job.stepping(1), f"{self.job.name} steps")

    def _rest(self) -> None:
        """The books of the job are right, its mails are told, `stop` leaves nothing."""
        job = self.job
        until(job.settled, job.told)
        until(job.mail_is_told, "the last mail is sent")
        job.check_at_rest()
        job.stop()
        job.check_nothing_left()

    def _lacking(self) -> list[Phase | None]:
        """The phases that were not met often enough."""
        with self._lock:
            return [phase for phase in AIMS if self._kills[phase] < LEAST]

    def _life(self, aim: Phase | None, lasts_s: float) -> None:
        """One Sentinel from its successor's point of view: a fault comes, then the kill."""
        if len(self.job.hit) >= FAULTS:
            self._rest()
            self._next()
        job = self.job
        aimed = lasts_s == AIM_S
        deadline = time.monotonic() + lasts_s
        hurt_at = time.monotonic() + (0.0 if aimed else self.rng.uniform(-lasts_s, lasts_s))
        while time.monotonic() < deadline:
            if time.monotonic() >= hurt_at and (aim is not None or not aimed) and self._hurt(aim):
                hurt_at = deadline
            if aimed and job.open_phase() == aim:
                break
            time.sleep(0.002 if aimed else 0.02)
        job.kill_sentinel()
        with self._lock:
            self._kills[job.open_phase()] += 1
        job.check_books()
        job.take_over(adopt=self.rng.random() < 0.2)

    def _hurt(self, aim: Phase | None) -> bool:
        """A fault for the running incarnation, if it has none yet. Some strike while a recovery is verified."""
        job = self.job
        phase = job.open_phase()
        record = job.record()
        if record.incarnation in job.hit:
            if phase is Phase.SAVING and self.rng.random() < 0.02:  # joins the recovery that is under way
                kill(job.pid_of(record.incarnation, 0) or 0)
            return False
        if phase is Phase.VERIFYING and self.rng.random() < 0.1 and job.stepping(record.incarnation):
            job.hurt(record.incarnation, "killed", self.rng.randrange(2))
            return True
        if phase is not None or not job.settled():
            return False
        kinds = ["gpu"] if aim in CHOSEN_ONLY else ["killed", "killed", "stopped", "hang", "gpu", "gpu"]
        # Slow again before anybody saw it fast would rightly be told only: the restart did not help.
        if self._moves < 2 and aim is None and record.fast_incarnation == record.incarnation:
            kinds.append("slow")
        kind = self.rng.choice(kinds)
        self._moves += kind == "slow"
        job.hurt(record.incarnation, kind, self.rng.randrange(2))
        return True


def histogram(kills: Counter[Phase | None]) -> str:
    lines = []
    for phase in (None, *(p for p in Phase if kills[p] or p in AIMS or p is Phase.DETECTED)):
        name = "plain running" if phase is None else phase.value
        note = "  (never stands in a record)" if phase is Phase.DETECTED else ""
        lines.append(
            f"{name:>14} {kills[phase]:4} {'#' * (kills[phase] // max(1, sum(kills.values()) // 200))}{note}"
        )
    return "\n".join(lines)


@pytest.mark.timeout(900 + 5 * RANDOM_KILLS)
def test_a_sentinel_killed_at_any_instant_is_taken_over_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, rng = seeded()
    state = tmp_path / "state"
    server = MailServer()
    kills: Counter[Phase | None] = Counter()
    lock = threading.Lock()

    def start(line: int, number: int) -> ChaosJob:
        return ChaosJob(f"job{line}-{number}", tmp_path, state, server.port)

    tormentors = [
        Tormentor(partial(start, line), random.Random(rng.random()), kills, lock) for line in range(JOBS)
    ]
    errors: list[BaseException] = []

    def torment(one: Tormentor, count: int) -> None:
        try:
            one.run(count)
        except BaseException as error:  # noqa: BLE001  raised again below
            errors.append(error)

    shares = [RANDOM_KILLS // JOBS + (number < RANDOM_KILLS % JOBS) for number in range(JOBS)]
    threads = [threading.Thread(target=torment, args=pair) for pair in zip(tormentors, shares, strict=True)]
    begun = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with capsys.disabled():
            print(
                f"\nCHAOS_SEED={seed}: {sum(kills.values())} kills in {time.monotonic() - begun:.0f} s, by phase:"
            )
            print(histogram(kills))
        if errors:
            raise errors[0]
        jobs = [job for one in tormentors for job in one.jobs]
        repeats = check_mails(server, jobs)
        with capsys.disabled():
            faults = Counter(kind for job in jobs for kind in job.hit.values())
            print(f"faults: {dict(faults)}; mails: {len(server.taken)}, of them {repeats} repeats of an id")
        assert all(kills[phase] >= LEAST for phase in AIMS)
    finally:
        for one in tormentors:
            for job in one.jobs:
                job.end()
        server.close()
