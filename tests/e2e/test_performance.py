"""Performance detection on a job that prints `this iteration hardware time is 2201.521 and e2e time is 3317.79 ms.`"""

import signal

from tests.e2e.box import Box, train
from tests.waits import until

FAST = ("--step-ms", "10", "--save-every", "1")  # 10 ms between lines; the times in the lines are what counts
RESUME = {"maxResumes": 4, "gracefulStop": "2s", "checkpoint": {"proof": {"logPattern": "wrote the model"}}}


def end(job: object) -> None:
    job.send(signal.SIGINT)  # type: ignore[attr-defined]
    assert job.code() == 130  # type: ignore[attr-defined]


def test_a_ratio_over_the_threshold_is_told_and_one_under_it_is_left_alone(box: Box) -> None:
    """2201.521 / 3317.794921875 = 0.6635: over 0.66, under 0.67."""
    fast = train("--step-ms", "10")
    told = box.run(*fast, name="told", policy=box.policy(performance={"maxHardwareRatio": 0.66}))
    alone = box.run(*fast, name="alone", policy=box.policy(performance={"maxHardwareRatio": 0.67}))
    incident = box.phase("KeptRunning", name="told")
    assert incident.verdict.symptom == "slow"
    assert "0.66" in incident.verdict.sentence
    seen = box.log(name="alone").count("hardware time")
    until(lambda: box.log(name="alone").count("hardware time") > seen + 60)
    assert box.incidents("alone") == []
    # Alert: the job went on, once told.
    assert len(box.incidents("told")) == 1
    assert box.job("told").incarnation == 1  # type: ignore[union-attr]
    end(told)
    end(alone)


def test_a_restart_that_did_not_help_is_not_repeated(box: Box) -> None:
    policy = box.policy(
        resume=RESUME, performance={"maxHardwareRatio": 0.66, "over": 10, "action": "RescheduleAndAlert"}
    )
    job = box.run(*train(*FAST), policy=policy, options=("--nproc", "2"))
    box.phase("Recovered")
    first = box.incidents()[0]
    assert first.kind == "chosen"
    assert first.save is not None
    assert "wrote the model" in first.save.proved_by
    assert first.lost is not None
    assert first.lost.resumed_from is not None
    assert first.lost.resumed_from >= (first.save.step or 0)
    notice = box.phase("KeptRunning")
    assert "did not help" in notice.sentence
    record = box.job()
    assert record is not None
    assert (record.incarnation, record.used) == (2, 1)
    assert record.performance_frozen
    assert len(box.starts) == 4
    end(job)


def test_a_job_that_waits_for_its_data_is_told_of_and_never_restarted(box: Box) -> None:
    asked = {"minHardwareRatio": 0.7, "maxHardwareRatio": 0.9, "over": 10, "action": "RescheduleAndAlert"}
    policy = box.policy(resume=RESUME, performance=asked)
    job = box.run(*train(*FAST), policy=policy)
    incident = box.phase("KeptRunning")
    assert incident.verdict.symptom == "starved"
    assert box.job().incarnation == 1  # type: ignore[union-attr]
    end(job)


def test_a_rank_slower_than_its_peers_is_named(box: Box) -> None:
    policy = box.policy(performance={"over": 10})
    job = box.run(*train(*FAST, "--hardware-ms", "1500"), policy=policy, options=("--nproc", "3"))
    until(lambda: box.log(2).count("hardware time is") > 30)  # what it usually takes
    box.order(2, "ratio 3000")
    incident = box.phase("KeptRunning")
    assert incident.verdict.symptom == "straggler"
    assert incident.verdict.rank == 2
    assert "ank 2" in incident.verdict.sentence
    end(job)


def test_a_single_slow_iteration_is_no_slow_job(box: Box) -> None:
    policy = box.policy(performance={"maxHardwareRatio": 0.9, "over": 10, "stragglerRatio": "off"})
    job = box.run(*train(*FAST), policy=policy)
    box.stepping(lines=30)
    box.order(0, "ratio 3300")
    until(lambda: "time is 3300" in box.log())
    box.order(0, "ratio 2201.521")
    until(lambda: box.log().count("hardware time is 2201") > 60)
    assert box.incidents() == []
    end(job)
