"""A storm: 500 of 600 nodes lose a card in one moment, with 100 jobs on them. How many mails go out, and to whom.

A real controller with open brakes, so that each node is told, at a real control plane with 600 fake nodes (kwok), as
many light agents, and a real SMTP server. Ten owners have five jobs each, one has fifty; a job has five nodes, and a
rank of each ends with its card. The nodes that are left have room for 20 jobs; the others wait 30 s for room and are
given up. Counted is what the server took until nothing waits: the threads of an incident are the mails that its single
mails answer, or are. The last of it is told by a digest, a minute after the one before. Beside a number stands how many
mails it would be without digests.
"""

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.harness import Row, at_most, wait_until
from tests.waits import until

if TYPE_CHECKING:
    from tests.bench.fleet_world import Crowd
    from tests.kubernetes.local_fleet import Fleet
    from tests.rig.api import Object
    from tests.rig.kwok import Kwok

ADMIN = "admins@example.com"
MANY_JOBS, RANKS = "many-jobs@example.com", 5
SPARE = 0.2  # of as many nodes as fail
EVERY_S, WITHIN_S = 2.0, 900.0
AT_ONCE = 16
PER_HOUR = 20  # mails to one address: the default
MANY = {key: {"atLeast": 100_000} for key in ("atATime", "perWindow")}
CUSTOM = "/apis/sentinel.dev/v1alpha1"


def owned(quick: bool) -> dict[str, int]:
    """Jobs by their owner's address."""
    few = {f"owner-{number:02}@example.com": 5 for number in range(1 if quick else 10)}
    return few | {MANY_JOBS: 10 if quick else 50}


class Storm:
    def __init__(self, fleet: "Fleet", kwok: "Kwok", owned: dict[str, int]) -> None:
        self.fleet, self.admin, self.kwok = fleet, fleet.admin, kwok
        self.owned, self.jobs = owned, sum(owned.values())

    def submit(self) -> None:
        """All jobs, until each of them runs on its nodes."""
        from tests.kubernetes.jobs_site import policy
        from tests.rig.operators.flow import template

        failing = self.jobs * RANKS
        self.kwok.nodes("train", failing + int(failing * SPARE))
        pods = template("train")
        pods["spec"]["restartPolicy"] = "Never"
        pods["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
        spec = {"completionMode": "Indexed", "parallelism": RANKS, "completions": RANKS, "template": pods}
        for owner, count in self.owned.items():
            space = owner.partition("@")[0]
            named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            asked = policy(space, owner={"emails": [owner]}, precheck={"wait": "30s"})
            self.admin.apply([named, asked])
            for name in (f"train-{one}" for one in range(count)):
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
                self.admin.apply([job], namespace=space)
        wait_until(lambda: len(self.ranks()) == failing, WITHIN_S, "all jobs to run")

    def ranks(self) -> "list[Object]":
        found = self.admin.items("/api/v1/pods", labelSelector="job-name")
        return [pod for pod in found if pod["status"].get("phase") == "Running"]

    @contextlib.contextmanager
    def agents(self, port: int) -> "Iterator[Crowd]":
        """The nodes with jobs come first."""
        from tests.bench.fleet_world import Crowd
        from tests.kubernetes.conftest import NAMESPACE
        from tests.kubernetes.local_fleet import AUDIENCE

        def token(node: str) -> tuple[str, str]:
            return node, plane.node_token(NAMESPACE, "sentinel-agent", node, audience=AUDIENCE)

        plane = self.fleet.plane
        used = {pod["spec"]["nodeName"] for pod in self.ranks()}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            tokens = list(
                pool.map(token, sorted(self.kwok.ready("train"), key=lambda name: name not in used))
            )
        bundle = self.fleet.bundle(plane.rig.folder / "ca.crt")
        crowd = Crowd(plane.rig, bundle, tokens, EVERY_S, "keep", port)
        try:
            crowd.do("grow", len(tokens))
            yield crowd
        finally:
            crowd.close()

    def strike(self, crowd: "Crowd") -> None:
        lost = {
            (pod["metadata"]["namespace"], pod["metadata"]["labels"]["job-name"]): pod["metadata"]["name"]
            for pod in self.ranks()
        }
        crowd.do("fault", 0, self.jobs * RANKS)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for ended in [pool.submit(self.kwok.end_pod, space, pod, 1) for (space, _), pod in lost.items()]:
                ended.result()

    def records(self, kind: str) -> "list[Object]":
        return [one["spec"] for one in self.admin.items(f"{CUSTOM}/{kind}")]

    def unsettled(self) -> str:
        """What is not over: each job up again or given up, each node told, no mail waiting."""
        incidents, nodes = self.records("incidents"), self.records("quarantines")
        over = {one["job"] for one in incidents if one["phase"] in ("Recovered", "Failed")}
        mails = [mail for one in (*incidents, *nodes) for mail in one.get("mails", [])]
        told = {one["node"] for one in nodes if one.get("mails")}
        waiting = sum(mail["state"] == "waiting" for mail in mails)
        if len(over) == self.jobs and len(told) == self.jobs * RANKS and not waiting:
            return ""
        return f"{len(over)} of {self.jobs} jobs are over, {len(told)} nodes told, {waiting} mails wait"


def rows(storm: Storm, took: "list[tuple[list[str], EmailMessage]]", took_s: float) -> list[Row]:
    records = [*storm.records("incidents"), *storm.records("quarantines")]
    mails = [mail for one in records for mail in one["mails"]]
    singles = Counter(address for mail in mails for address in mail.get("done", ()))
    got = Counter(address for addresses, _ in took for address in addresses)
    copies = Counter((str(mail["Message-ID"]), to) for addresses, mail in took for to in addresses)
    threads: dict[str, set[str]] = {}
    for _, mail in took:
        about = mail["X-Sentinel-Incident"] or mail["X-Sentinel-Quarantine"]
        if about and mail["X-Sentinel-Stage"] != "digest":
            threads.setdefault(str(about), set()).add(str(mail["In-Reply-To"] or mail["Message-ID"]))
    few = max((address for address in storm.owned if address != MANY_JOBS), key=lambda one: got[one])

    def count(what: str, goal: float, address: str) -> Row:
        beside = ("a mail for each thing told", float(singles[address]))
        return at_most(what, goal, float(got[address]), "mails", beside)

    return [
        at_most("threads of one incident, most", 1.0, float(max(map(len, threads.values()))), "threads"),
        at_most(
            f"mails in all, {len(storm.owned)} owners and the administrators",
            float(PER_HOUR * (len(storm.owned) + 1)),
            float(len(took)),
            "mails",
            ("a mail for each thing told", float(len(mails))),
        ),
        count("mails to the administrators", 10.0, ADMIN),
        count(f"mails to the owner of {storm.owned[MANY_JOBS]} jobs", float(PER_HOUR), MANY_JOBS),
        count(f"mails to an owner of {storm.owned[few]} jobs, most", float(PER_HOUR), few),
        at_most("mails that came twice", 0.0, float(sum(copies.values()) - len(copies)), "mails"),
        at_most(
            "things that nobody was told of",
            0.0,
            float(sum(not mail.get("done") for mail in mails)),
            "things",
        ),
        at_most("the storm → the last of it is told", 240.0, took_s, "s"),
    ]


def run(quick: bool = False) -> list[Row]:
    from tests.e2e.box import Box
    from tests.kubernetes.conftest import install
    from tests.kubernetes.local_fleet import Fleet, Page
    from tests.notify.mail_world import MailServer
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok
    from tests.rig.processes import Rig

    with Rig() as rig, tempfile.TemporaryDirectory() as folder, MailServer() as server:
        plane = ControlPlane(rig)
        install(plane)
        fleet = Fleet(plane, Box(Path(folder) / "box"), Path(folder))
        mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "sender": "s@example.com"}
        fleet.settings |= {
            "listen": "127.0.0.1:0",
            "mail": {**mail, "admins": [ADMIN]},
            "fleet": {"isolations": MANY, "poolIsolations": MANY, "causeNodes": 100_000},
        }
        storm = Storm(fleet, Kwok(plane), owned(quick))
        try:
            storm.submit()
            leader = fleet.controller("one")
            leader.said("leads, epoch", 60.0)
            page = Page(leader)

            def stepping() -> bool:
                told = page.numbers()
                return sum(name == "sentinel_job_step_time_seconds" for name, _ in told) == storm.jobs

            with storm.agents(fleet.ports[leader.pid]) as crowd:
                wait_until(stepping, WITHIN_S, "all jobs to step")
                begun_s = time.monotonic()
                storm.strike(crowd)
                until(lambda: not storm.unsettled(), storm.unsettled, WITHIN_S, 1.0, TimeoutError)
                return rows(storm, list(server.mails), time.monotonic() - begun_s)
        finally:
            fleet.box.close()
