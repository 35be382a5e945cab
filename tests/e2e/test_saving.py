"""Saving: who is asked, what proves it, and what follows where nothing does."""

import contextlib
import os
import pty
import re
import signal
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.box import SENTINEL, Box, Running, train
from tests.waits import until

PROOFS = {
    "say": {"logPattern": r"wrote the model of step \d+"},
    "silent": {"fileAppears": "checkpoint.json"},
    "lock": {"fileGone": "saving.lock"},
}
SLOW = {"maxHardwareRatio": 0.66, "over": 10, "action": "RescheduleAndAlert"}  # the job prints 0.6635


def resume(proof: dict[str, str] | None = None, graceful_stop: str = "1s", **more: Any) -> dict[str, Any]:
    checkpoint = {"timeout": "20s", **({"proof": proof} if proof else {}), **more}
    return {"maxResumes": 3, "gracefulStop": graceful_stop, "checkpoint": checkpoint}


@pytest.mark.parametrize("how", ["say", "silent", "lock"])
def test_a_save_is_proved_by_a_line_a_file_that_appears_or_one_that_goes(box: Box, how: str) -> None:
    job = box.run(
        *train("--save", how), policy=box.policy(resume=resume(PROOFS[how])), options=("--nproc", "2")
    )
    box.stepping()
    box.ranks(2)
    job.send(signal.SIGTERM)
    assert job.code() == 75
    incident = box.phase("Ended")
    assert incident.save is not None
    assert {"say": "wrote the model", "silent": "checkpoint.json", "lock": "saving.lock"}[
        how
    ] in incident.save.proved_by
    record = box.job()
    assert record is not None
    assert record.checkpoint is not None
    assert record.checkpoint.proof == incident.save.proved_by
    assert (box.work / "checkpoint.json").exists()
    assert incident.save.ranks == (0, 1)


def page(job: Running) -> Callable[[str], float]:
    """The numbers on the page of this run, which it serves."""
    url = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", job.err)).group()  # type: ignore[union-attr]

    def number(name: str) -> float:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return sum(
            one.value for family in families for one in family.samples if one.name == f"sentinel_{name}"
        )

    return number


def test_forked_data_loaders_that_inherit_the_handler_get_no_signal(box: Box) -> None:
    job = box.run(
        *train("--loaders", "2"), policy=box.policy(resume=resume(PROOFS["say"])), options=("--nproc", "2")
    )
    box.stepping()
    until(
        lambda: len(box.processes()) >= 8, lambda: str(box.processes())
    )  # us, supervisor, 2 ranks, 4 loaders
    job.send(signal.SIGTERM)
    assert job.code() == 75
    assert box.phase("Ended").save.proved_by  # type: ignore[union-attr]
    assert {s["kind"] for s in box.noted("signals")} == {"rank"}
    box.empty()


def test_all_ranks_of_a_launcher_are_asked_and_the_launcher_is_not(box: Box) -> None:
    launcher = 'for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 "$@" & done; wait'
    job = box.run("sh", "-c", launcher, "-", *train(), policy=box.policy(resume=resume(PROOFS["say"])))
    box.stepping(lines=10)
    box.ranks(2)
    job.send(signal.SIGTERM)
    assert job.code() == 75
    incident = box.phase("Ended")
    assert incident.save is not None
    assert incident.save.ranks == (0, 1)
    box.empty()


def test_a_program_without_a_handler_is_said_and_never_signalled(box: Box) -> None:
    job = box.run(*train("--save", "none"), policy=box.policy(resume=resume(PROOFS["say"])))
    job.said("not save-capable: rank 0 does not catch SIGUSR1")
    assert box.status()["save_note"].startswith("not save-capable")
    job.send(signal.SIGTERM)
    assert job.code() == 75
    incident = box.phase("Ended")
    assert incident.save is not None
    assert "does not catch SIGUSR1" in incident.save.skipped
    assert "User defined signal" not in box.log()


def test_without_a_named_proof_ranks_that_end_count_and_the_record_says_that_nothing_proved_it(
    box: Box,
) -> None:
    job = box.run(*train("--save", "end"), policy=box.policy(resume=resume()))
    box.stepping()
    job.send(signal.SIGTERM)
    assert job.code() == 75  # the exit code 0 of the ranks is no success of the job
    incident = box.phase("Ended")
    assert incident.save is not None
    assert not incident.save.proved_by
    assert any("no proof was asked for" in step.sentence for step in incident.steps)
    assert box.job().state == "stopped"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("unproved", "phase", "starts"), [("keep", "KeptRunning", 1), ("move", "Recovered", 2)]
)
def test_a_save_that_nothing_proves_keeps_the_job_or_moves_it_as_asked(
    box: Box, unproved: str, phase: str, starts: int
) -> None:
    asked = resume(PROOFS["say"], timeout="1s", ifUnproved=unproved)
    program = train("--save", "never", "--save-every", "1", "--step-ms", "10")
    job = box.run(*program, policy=box.policy(resume=asked, performance=SLOW))
    incident = box.phase(phase)
    assert any("not proved within 1 s" in step.sentence for step in incident.steps)
    assert len(box.starts) == starts
    box.stepping(incarnation=starts)
    job.send(signal.SIGINT)
    assert job.code() == 130


def test_nobody_is_asked_to_save_when_a_rank_is_lost(box: Box) -> None:
    """And none of the times to save is 0 s for it."""
    box.settings(listen="127.0.0.1:0")
    job = box.run(
        *train("--save-every", "1"), policy=box.policy(resume=resume(PROOFS["say"])), options=("--nproc", "2")
    )
    number = page(job)
    box.stepping()
    os.kill(box.ranks(2)[1], signal.SIGKILL)
    box.phase("Recovered")
    until(lambda: number("time_to_recover_seconds_count") == 1)
    assert number("time_to_save_seconds_count") == 0
    assert box.noted("signals") == []
    job.send(signal.SIGINT)
    assert job.code() == 130


def test_a_rank_that_is_lost_while_the_others_save_ends_the_wait(box: Box) -> None:
    job = box.run(
        *train("--save", "never"),
        policy=box.policy(resume=resume(PROOFS["say"], timeout="1h")),
        options=("--nproc", "2"),
    )
    box.stepping()
    pids = box.ranks(2)
    job.send(signal.SIGTERM)
    until(lambda: len(box.noted("signals")) == 2)
    os.kill(pids[1], signal.SIGKILL)
    assert job.code() == 75
    incident = box.phase("Ended")
    assert incident.save is not None
    assert "lost" in incident.save.skipped
    box.empty()


def test_ctrl_c_on_the_terminal_saves_as_stop_does_and_reaches_no_rank_itself(box: Box) -> None:
    """The terminal sends SIGINT to all in its foreground: a rank that got it would end without a save."""
    policy = box.policy(resume=resume(PROOFS["say"], timeout="1h"))
    words = ("run", "--name", "job", "--nproc", "2", "--policy", policy, "--settings", box.settings())
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(box.work)
        os.execve(SENTINEL, [SENTINEL, *words, "--", *train()], box.env)
    shown = bytearray()
    threading.Thread(target=drained, args=(terminal, shown), daemon=True).start()
    box.stepping()
    box.ranks(2)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    until(lambda: b"saves first, at most 1h, then 1s to end; Ctrl-C again kills it at once" in shown)
    os.close(terminal)
    incident = box.phase("Ended")
    assert incident.save is not None
    assert "wrote the model" in incident.save.proved_by
    assert box.job().checkpoint.proof == incident.save.proved_by  # type: ignore[union-attr]
    assert {(s["kind"], s["signal"]) for s in box.noted("signals")} == {("rank", signal.SIGUSR1)}
    box.empty()


def drained(terminal: int, shown: bytearray) -> None:
    with contextlib.suppress(OSError):  # its last writer has ended
        while part := os.read(terminal, 65536):
            shown += part


def test_ctrl_c_waits_for_a_save_no_longer_than_its_time(box: Box) -> None:
    policy = box.policy(resume=resume(PROOFS["say"], timeout="1s"))
    job = box.run(*train("--save", "never"), policy=policy)
    box.stepping()
    job.send(signal.SIGINT)
    assert job.code() == 130
    incident = box.phase("Ended")
    assert any("not proved within 1 s" in step.sentence for step in incident.steps), box.story()
    box.empty()


@pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_the_first_ctrl_c_leaves_a_save_its_time_and_the_second_one_kills(
    box: Box, first: int, code: int
) -> None:
    """Also where something else asked first, which the caller is told."""
    policy = box.policy(resume=resume(PROOFS["say"], graceful_stop="1h", timeout="1h"))
    job = box.run(*train("--save", "never", "--at", "1:deaf"), policy=policy, options=("--nproc", "2"))
    box.stepping()
    job.send(first)
    box.phase("Saving")
    until(lambda: len(box.noted("signals")) == 2, box.story)
    if first != signal.SIGINT:
        job.send(signal.SIGINT)
    job.said("Ctrl-C again")
    assert len(box.ranks(2)) == 2
    job.interrupt_again()
    assert job.code() == code
    assert box.job().state == "stopped"  # type: ignore[union-attr]
    box.empty()


def test_the_restarted_program_is_told_that_it_resumes_and_from_what(box: Box) -> None:
    policy = box.policy(resume=resume(PROOFS["say"]), performance=SLOW)
    box.settings(listen="127.0.0.1:0")
    job = box.run(*train("--step-ms", "10"), policy=policy)
    number = page(job)
    incident = box.phase("Recovered")
    assert incident.save is not None

    def measured() -> bool:
        """Just what the records say of how long the saves took; it may have begun another one meanwhile."""
        took_s = [one.save.took_s for one in box.incidents() if one.save is not None]
        told = number("time_to_save_seconds_count"), number("time_to_save_seconds_sum")
        return min(took_s) > 0 and told == (len(took_s), pytest.approx(sum(took_s)))

    until(measured)
    assert "SENTINEL_RESUME" not in box.starts[0]["env"]
    env, saved = box.starts[1]["env"], incident.save
    assert (env["SENTINEL_RESUME"], env["SENTINEL_RESTARTS"]) == ("1", "1")
    assert env["SENTINEL_CHECKPOINT_STEP"] == str(saved.step)
    assert env["SENTINEL_CHECKPOINT_PROOF"] == saved.proved_by
    assert box.starts[1]["resumed"] == saved.step
    job.send(signal.SIGINT)
    assert job.code() == 130
