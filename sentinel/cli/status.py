"""`sentinel status [NAME]`: all jobs of this machine in a table, or one of them with its whole story.

With --kubeconfig or --cluster it is about the nodes of a cluster, and so it is where this machine has no jobs and
something says how to reach a cluster (cli/fleet_status.py).

What stands in the records is joined with live numbers from the page of the Sentinel that protects the
job, if one does (without a page: from its control socket). Nothing is changed: the state file is opened read-only.
"""

import argparse
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from sentinel.cli import reach
from sentinel.cluster.local.store import LocalStore
from sentinel.console.tables import complain, put_json, silence_stdout, table, unknown_job
from sentinel.console.watching import WATCH_S, Shown
from sentinel.core.model import ProtectedJob
from sentinel.local_run import presence
from sentinel.service.control import ask
from sentinel.settings import Settings
from sentinel.status.job_show import details, restarts
from sentinel.status.job_target import add_namespace
from sentinel.util.clock import boot_id, system_now
from sentinel.util.errors import PermanentError
from sentinel.web.view import Protector, View, build_view
from sentinel.web.words import NONE, duration, milliseconds, number, printable, ratio

ENDED_SHOWN = 20


class _UnknownJob(Exception):
    """The message lists the jobs that are known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="one job, with its incidents and events; or one node, with its records. "
        "Of a cluster a job is NAMESPACE/NAME or NAMESPACE/KIND/NAME",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--watch", action="store_true", help=f"show it again every {WATCH_S:.0f} s until Ctrl-C"
    )
    parser.add_argument("--state-dir", metavar="DIR", default="", help="where Sentinel keeps its state")
    parser.add_argument(
        "--cluster", action="store_true", help="the nodes of a cluster, also where this machine has jobs"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="all nodes and jobs that matter, however many; on one machine all jobs that have ended, "
        f"not the newest {ENDED_SHOWN} alone",
    )
    parser.add_argument(
        "-A", "--all-namespaces", dest="every_namespace", action="store_true", help="jobs of all namespaces"
    )
    add_namespace(parser)
    reach.add_cluster(parser)


def main(args: argparse.Namespace) -> int:
    """0: shown; 1: there is no such job or node, or the state cannot be read; 69, 77: see docs/exit-codes.md."""
    state_dir = Settings(state_dir=args.state_dir).state_path
    if _of_cluster(args, state_dir):
        from sentinel.cli import fleet_status

        return fleet_status.main(args)
    shown = Shown(WATCH_S if args.watch else 0.0)
    every = args.all or args.output == "json"  # a program gets all that there is
    try:
        while True:
            views, left_out, troubles = collect(state_dir, args.name, None if every else ENDED_SHOWN)
            if args.output == "json":
                put_json(_json(views, one=args.name is not None))
                for trouble in troubles:
                    complain(trouble)
            else:
                lines = _text(views, state_dir, one=args.name is not None, left_out=left_out)
                shown.show(lines, troubles, system_now().wall_s)
            if not args.watch:
                return 0
            time.sleep(WATCH_S)
    except (_UnknownJob, PermanentError) as error:
        complain(str(error))
        return 1
    except BrokenPipeError:
        silence_stdout()
        return 0
    except KeyboardInterrupt:
        shown.end()
        return 130


def _of_cluster(args: argparse.Namespace, state_dir: Path) -> bool:
    if args.cluster or args.every_namespace:
        return True
    return not args.state_dir and reach.of_cluster(args, state_dir, args.name or "")


def collect(
    state_dir: Path, name: str | None = None, ended: int | None = None
) -> tuple[list[View], int, tuple[str, ...]]:
    """Views of all jobs (unfinished first, then the newest), or of one; how many ended ones are left out, of which only
    the newest `ended` are wanted; and what is wrong with the store.

    Raises PermanentError for the state file of a newer Sentinel.
    """
    store = LocalStore(state_dir / "state.db", read_only=True)
    try:
        jobs = store.jobs()
        if name is not None and name not in {job.name for job in jobs}:
            known = unknown_job(name, (job.name for job in jobs), str(state_dir))
            raise _UnknownJob("; ".join((known, *store.degraded)))  # a job may be in what cannot be read
        wanted = [job for job in jobs if name in (None, job.name)]
        wanted.sort(key=lambda job: (job.state.final, -job.created_wall_s, job.name))
        if name is None and ended is not None:
            running = sum(not job.state.final for job in wanted)
            wanted = wanted[: running + ended]
        views = [_view(job, store, state_dir) for job in wanted]
        return views, 0 if name is not None else len(jobs) - len(wanted), store.degraded
    finally:
        store.close()


def _view(job: ProtectedJob, store: LocalStore, state_dir: Path) -> View:
    found = presence.read(state_dir / "jobs" / job.name)
    if found is not None and found.url:
        answer = presence.fetch(found.url, "/api/v1/status")
        try:
            live = msgspec.json.decode(answer, type=View) if answer else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            live = None  # a Sentinel of another version: the records have to do
        if live is not None and live.name == job.name:
            return live
    if found is not None and not found.url:  # it was told to serve no page
        told = ask(state_dir / "jobs" / job.name, {"do": "view"}, presence.ANSWER_S)
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            return msgspec.convert(told["view"] if told and told.get("ok") else None, View)
    return build_view(
        job,
        now=system_now(),
        boot_id=boot_id(),
        incidents=store.incidents(job.name),
        events=store.events(job.name),
        findings=store.findings(),
        protector=Protector(pid=found.pid, url=found.url) if found else None,
    )


def _json(views: list[View], *, one: bool) -> str:
    return msgspec.json.encode(views[0] if one else views).decode() + "\n"


def _text(views: list[View], state_dir: Path, *, one: bool, left_out: int) -> list[str]:
    if one:
        return details(views[0], _protected_by(views[0]))
    if not views:
        return [f"No jobs in {printable(str(state_dir))}."]
    lines = _overview(views)
    if left_out:
        lines += ["", f"{left_out} more have ended: `sentinel status --all` shows them."]
    return lines


def _protected_by(view: View) -> str:
    if view.protector is None:
        return NONE if view.state.final else f"nobody: run `sentinel attach {view.name}`"
    told = f"pid {view.protector.pid}"
    if view.protector.healthy or not view.protector.url:
        return told
    age_s = view.protector.loop_age_s
    return f"{told} (does not answer)" if age_s is None else f"{told} (stands still for {duration(age_s)})"


def _overview(views: Iterable[View]) -> list[str]:
    heads = (
        "NAME",
        "STATE",
        "RUN",
        "STEP",
        "STEP TIME",
        "RATIO",
        "RESTARTS",
        "TIME LEFT",
        "PROTECTED BY",
        "DEGRADED",
    )
    rows = [
        (
            view.name,
            view.state.value,
            str(view.incarnation),
            number(view.step),
            milliseconds(view.step_ms),
            ratio(view.ratio),
            restarts(view.restarts.used, view.restarts.left),
            duration(view.time_left_s),
            _protected_by(view),
            str(len(view.degraded)) if view.degraded else "",
        )
        for view in views
    ]
    lines = table(heads, rows, right=("RUN", "STEP", "STEP TIME", "RATIO", "TIME LEFT"))
    told = [f"{view.name}: {mode}" for view in views for mode in view.degraded]
    return [*lines, "", "Degraded:", *(f"  {printable(line)}" for line in told)] if told else lines
