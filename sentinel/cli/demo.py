"""`sentinel demo`: trains a small real model on two ranks, breaks it on purpose, and shows each recovery.

Nothing is staged but the faults: the program under `examples/` learns, `sentinel run` protects it, and all
that is shown comes from its records and its mails. Everything lives in a directory of its own.
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from sentinel.core.model import Incident, Phase, Stage, Symptom
from sentinel.demo.job import DemoJob, bare_run
from sentinel.demo.view import View

STEADY_STEPS = 50  # of an incarnation before the next fault: enough for a baseline of what is normal
LAST_STAGES = (
    Stage.RECOVERED.value,
    Stage.GAVE_UP.value,
    Stage.NOTICE.value,
)  # one of them ends each incident
PATIENCE_S = 90.0  # for anything that is waited for: a machine under load is slow, not broken


class Fault(Struct, frozen=True):
    """One way to break the job. `symptom` is what Sentinel must see in it."""

    name: str
    what: str
    symptom: Symptom
    inject: Callable[[DemoJob], None]


def _kill_rank(job: DemoJob) -> None:
    os.kill(job.rank_pid(1), signal.SIGKILL)


def _slow_rank(job: DemoJob) -> None:
    job.order("1 slow 8")


def _hang_rank(job: DemoJob) -> None:
    job.order("1 hang spin")


def _lose_gpu(job: DemoJob) -> None:
    # The line that NVIDIA's driver prints for XID 79, as in its XID catalogue.
    job.kernel_says(
        f"NVRM: Xid (PCI:{job.gpus[1][:-2]}): 79, pid={job.rank_pid(1)}, name=python, "
        "GPU has fallen off the bus."
    )


FAULTS = (
    Fault("rank killed", "kill -9 of rank 1", Symptom.RANK_LOST, _kill_rank),
    Fault("slow phase", "rank 1's hardware time grows eightfold", Symptom.SLOW, _slow_rank),
    Fault("hang", "rank 1 spins and steps no more", Symptom.HANG, _hang_rank),
    Fault("GPU lost", "the kernel log says that rank 1's GPU fell off the bus", Symptom.FINDING, _lose_gpu),
)


class Shown(Struct, frozen=True, kw_only=True):
    """What became of one fault. Seconds count from the fault; None: it did not happen."""

    fault: str
    detected_s: float | None = None
    recovered_s: float | None = None
    incident: Incident | None = None
    restarts: int = 0
    subject: str = ""

    @property
    def recovered(self) -> bool:
        return self.recovered_s is not None


class DemoError(Exception):
    """The demonstration could not go on. The message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", metavar="DIR", help="keep all files of the demonstration in this new directory"
    )


def _wait(job: DemoJob, condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if job.ended() is not None:
            raise DemoError(f"`sentinel run` ended with {job.ended()} while the demo waited for {what}")
        if time.monotonic() > deadline_s:
            raise DemoError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.02)


def _show_fault(job: DemoJob, fault: Fault, view: View) -> Shown:
    """Breaks the job in one way and follows the recovery to its end."""
    _wait(job, lambda: job.steps_of_this_start() >= STEADY_STEPS, "the job to step steadily")
    known = {incident.id for incident in job.incidents()}
    view.fault(fault.name, fault.what, job.step())
    at_wall_s = time.time()
    fault.inject(job)
    found: list[Incident] = []
    told = 0

    def is_over() -> bool:
        nonlocal told
        found[:] = [i for i in job.incidents() if i.id not in known and i.verdict.symptom == fault.symptom]
        if not found:
            return False
        for step in found[0].steps[told:]:
            view.step(step.wall_s - at_wall_s, step.phase.value, step.sentence)
        told = len(found[0].steps)
        return found[0].phase.final

    try:
        _wait(job, is_over, f"the recovery from: {fault.name}")
    except DemoError as error:
        view.trouble(str(error))
    if not found:
        return Shown(fault=fault.name)
    incident = found[0]
    recovered = incident.phase == Phase.RECOVERED and incident.closed_wall_s is not None
    return Shown(
        fault=fault.name,
        detected_s=incident.opened_wall_s - at_wall_s,
        recovered_s=(incident.closed_wall_s or 0.0) - at_wall_s if recovered else None,
        incident=incident,
        restarts=job.record().used,
    )


def _with_mail(job: DemoJob, shown: Shown) -> Shown:
    """Adds the subject of the last mail about the incident; mails are sent beside the recovery."""
    if shown.incident is None:
        return shown
    deadline_s = time.monotonic() + 15
    subjects: dict[str, str] = {}
    while time.monotonic() < deadline_s:
        subjects = job.mail_subjects(shown.incident.id)
        if subjects.keys() & set(LAST_STAGES) or not shown.incident.phase.final:
            break
        time.sleep(0.05)
    subject = next((subjects[stage] for stage in LAST_STAGES if stage in subjects), "")
    return Shown(
        fault=shown.fault,
        detected_s=shown.detected_s,
        recovered_s=shown.recovered_s,
        incident=shown.incident,
        restarts=shown.restarts,
        subject=subject,
    )


def _run(folder: Path, view: View) -> bool:
    begun_s = time.monotonic()
    job = DemoJob(folder)
    rows: list[Shown] = []
    code: int | None = None
    with contextlib.ExitStack() as stack:
        stack.callback(job.end)
        undisturbed = bare_run(folder / "undisturbed", stack)
        job.start()
        view.started(job.command_line(), str(folder))
        try:
            for fault in FAULTS:
                rows.append(_show_fault(job, fault, view))
                if not rows[-1].recovered:
                    break
            rows = [_with_mail(job, row) for row in rows]
            code = job.wait(PATIENCE_S) if all(row.recovered for row in rows) else job.ended()
        except DemoError as error:
            view.trouble(str(error))
        expected = undisturbed()
    missing = [Shown(fault=fault.name) for fault in FAULTS[len(rows) :]]
    view.summary([*rows, *missing])
    view.result(job.result(), expected, code, time.monotonic() - begun_s)
    view.mail(job.newest_mail())
    good = code == 0 and not missing and all(row.recovered for row in rows)
    if not good:
        view.output(job.run_output())
    return good


def main(args: argparse.Namespace) -> int:
    """0: every fault was recovered and the job ended well. 1: not so. 2: the demo cannot run here."""
    if importlib.util.find_spec("numpy") is None:
        print("sentinel demo trains with numpy: pip install 'sentinel-gpu[demo]'", file=sys.stderr)
        return 2
    view = View()
    with contextlib.ExitStack() as stack:
        if args.keep:
            folder = Path(args.keep).absolute()
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                print(f"sentinel demo: --keep {args.keep}: {error.strerror}", file=sys.stderr)
                return 2
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sentinel-demo-")))
        try:
            return 0 if _run(folder, view) else 1
        except KeyboardInterrupt:
            return 130
