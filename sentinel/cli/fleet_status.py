"""`sentinel status` of a cluster: read from its nodes, quarantines and records of jobs, so it needs no controller.

Without a name and a namespace it is about all nodes and all jobs, with -n or -A about jobs alone.
"""

import argparse
import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from sentinel.cli import reach
from sentinel.console.tables import complain, put_json, silence_stdout
from sentinel.console.watching import Shown
from sentinel.util.clock import system_now

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.core.now import Now
    from sentinel.web.fleet_view import JobsView, LeaderView


def main(args: argparse.Namespace) -> int:
    from sentinel.console.watching import WATCH_S
    from sentinel.util.errors import TemporaryError

    shown = Shown(WATCH_S if args.watch else 0.0)

    async def work(client: "Client") -> int:
        while True:
            try:
                with (
                    contextlib.nullcontext()
                    if shown.anything
                    else reach.late(f"the API server at {client.url}")
                ):
                    found = await _Status(client, args, system_now(), shown).read()
                if not found or not args.watch:
                    return 0 if found else reach.EXIT_NOT_DONE
            except TemporaryError as error:
                if not shown.anything:
                    raise
                shown.blind(f"no API server answers at {client.url}: {error}")
            await asyncio.sleep(WATCH_S)

    try:
        return reach.asked(args, work)
    except BrokenPipeError:
        silence_stdout()
        return 0
    except KeyboardInterrupt:
        shown.end()
        return 130


class _Status:
    """One look. False: what was asked for is not there, and that was said."""

    def __init__(self, client: "Client", args: argparse.Namespace, now: "Now", shown: Shown) -> None:
        self.client, self.args, self.now, self.shown = client, args, now, shown
        self.name: str = args.name or ""

    async def read(self) -> bool:
        if self.name and (self.args.namespace or "/" in self.name):
            return await self._job()
        if self.name:
            return await self._node()
        if self.args.namespace or self.args.every_namespace:
            return await self._jobs()
        return await self._everything()

    async def _everything(self) -> bool:
        import msgspec

        from sentinel.cluster.kubernetes.errors import Forbidden
        from sentinel.status import fleet_read, fleet_show, jobs_show

        try:
            view = await fleet_read.view(self.client, reach.namespace_of(self.args), self.now.wall_s)
        except Forbidden:
            if own := self.client.namespace():
                complain(
                    f"you may not read nodes: the jobs of namespace {own} alone (-n NAMESPACE: of another)"
                )
                self.args.namespace = own
                return await self._jobs()
            raise
        assert view is not None
        jobs, troubles = await self._all_jobs()
        body: dict[str, Any] = {**msgspec.to_builtins(view), "jobs": msgspec.to_builtins(jobs)}
        every = self.args.all
        of_jobs = [] if jobs is None else jobs_show.overview(jobs, every=every)
        lines = fleet_show.overview(view, self.now.wall_s, every=every, besides=of_jobs[:1]) + of_jobs[1:]
        self._put(body, lines, (*view.troubles, *troubles))
        return True

    async def _all_jobs(self) -> "tuple[JobsView | None, list[str]]":
        from sentinel.cluster.kubernetes.errors import Forbidden
        from sentinel.status import jobs_read

        try:
            jobs = await jobs_read.jobs(self.client, self.now)
        except Forbidden as error:
            return None, [f"jobs of all namespaces may not be read (-n NAMESPACE: of one): {error}"]
        return jobs, jobs.troubles

    async def _jobs(self) -> bool:
        import msgspec

        from sentinel.status import fleet_show, jobs_read, jobs_show

        namespace = "" if self.args.every_namespace else self.args.namespace
        jobs = await jobs_read.jobs(self.client, self.now, namespace)
        leader, troubles = await self._leader()
        body = {"leader": msgspec.to_builtins(leader), **msgspec.to_builtins(jobs)}
        lines = [] if troubles else [fleet_show.led(leader)]
        self._put(body, [*lines, *jobs_show.overview(jobs, every=self.args.all)], (*jobs.troubles, *troubles))
        return True

    async def _node(self) -> bool:
        import msgspec

        from sentinel.cluster.kubernetes.errors import Forbidden
        from sentinel.status import fleet_read, fleet_show

        try:
            view = await fleet_read.view(
                self.client, reach.namespace_of(self.args), self.now.wall_s, self.name
            )
        except Forbidden:  # who may read jobs alone
            return await self._job()
        if view is None:
            where = f"in the cluster at {self.client.url}"
            return await self._job(besides=f"no node {self.name} {where}, no quarantine of it")
        lines = fleet_show.details(view, self.name, self.now.wall_s)
        self._put(msgspec.to_builtins(view), lines, view.troubles)
        return True

    async def _job(self, besides: str = "") -> bool:
        import msgspec

        from sentinel.status import job_target, jobs_read, jobs_show

        try:
            target = job_target.target_of(self.client, self.name, self.args.namespace)
        except ValueError as error:
            complain(str(error))
            return False
        found, why = await jobs_read.one(self.client, target, self.now)
        if found is None:
            complain(f"there is {besides}, and {why.removeprefix('there is ')}" if besides else why)
            return False
        found.leader, troubles = await self._leader()
        self._put(
            msgspec.to_builtins(found), jobs_show.details(found, self.now), (*found.troubles, *troubles)
        )
        return True

    async def _leader(self) -> "tuple[LeaderView | None, list[str]]":
        from sentinel.cluster.kubernetes.errors import Forbidden
        from sentinel.status import fleet_read

        try:
            return await fleet_read.leader_of(self.client, reach.namespace_of(self.args), self.now.wall_s), []
        except Forbidden as error:
            return None, [f"who leads may not be read: {error}"]

    def _put(self, body: Any, lines: list[str], troubles: tuple[str, ...] | list[str]) -> None:
        import msgspec

        if self.args.output == "json":
            put_json(msgspec.json.encode(body).decode() + "\n")
            for trouble in troubles:
                complain(trouble)
        else:
            self.shown.show(lines, troubles, self.now.wall_s)
