"""A rank stops (SIGSTOP) → Sentinel has detected it → all ranks step again, with no call in the program.

At the fastest setting (`hang.after: 1s`), and at the adaptive default, which waits for at least 120 s: a false
alarm costs more than a late one. What is above the configured wait is Sentinel's own. Stacks are taken before
anything is killed. Beside it stands what was measured for ft_launcher 0.7.0 at its fastest settings with calls
in the user's code: 1.0 s to detect. That figure is quoted, it was not taken in this run.
"""

import os
import signal
import statistics
import time

from tests.bench.harness import Row, at_most, wait_until
from tests.bench.subject import COMMAND, Subject

FT_LAUNCHER = ("ft_launcher 0.7.0, quoted", 1.0)
STEPS_BEFORE = 60


def stop_and_time(subject: Subject, incarnation: int, within_s: float) -> tuple[float, float]:
    """Seconds from SIGSTOP of rank 1 to the incident, and to the first step of the next incarnation."""
    log = subject.log(incarnation, 1)
    wait_until(
        lambda: log.exists() and log.read_bytes().count(b"step:") >= STEPS_BEFORE, 60, "the job to step"
    )
    known = {incident.id for incident in subject.incidents()}
    at_s = time.time()
    os.kill(subject.ranks()[1], signal.SIGSTOP)
    again = subject.log(incarnation + 1, 1)
    wait_until(lambda: again.exists() and b"step:" in again.read_bytes(), within_s, "the job to step again")
    stepped_s = time.time() - at_s
    found = [incident for incident in subject.incidents() if incident.id not in known]
    assert [incident.verdict.symptom.value for incident in found] == ["hang"], found
    return found[0].opened_wall_s - at_s, stepped_s


def run(quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    with Subject(COMMAND, spec={"hang": {"after": "1s"}}) as subject:
        times = [stop_and_time(subject, n, 30.0) for n in range(1, 3 if quick else 8)]
    detected = statistics.median(time for time, _ in times)
    stepping = statistics.median(time for _, time in times)
    rows.append(at_most("hang, after 1s: stop → detected", 1.5, detected, "s", FT_LAUNCHER))
    rows.append(at_most("hang, after 1s: stop → stepping again", 3.0, stepping, "s"))
    if not quick:
        with Subject(COMMAND) as subject:
            detected, stepping = stop_and_time(subject, 1, 240.0)
        rows.append(at_most("hang, adaptive: stop → detected", 125.0, detected, "s"))
        rows.append(at_most("hang, adaptive: stop → stepping again", 127.0, stepping, "s"))
    return rows
