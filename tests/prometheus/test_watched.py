"""Alerts and dashboards at real controllers and agents with faults, by a real Prometheus, to the mail that goes out.

Each alert goes all the way, here or in test_node_alerts.py or test_job_alerts.py: test_rules.py asks for that.
"""

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sentinel.metrics import measures
from sentinel.metrics.declared import DECLARATIONS
from tests.bench.bench_agent import tree
from tests.checks.sysfs_tree import Tree
from tests.e2e.agent_node import XID_79, Node
from tests.e2e.box import Box, Running
from tests.kubernetes.conftest import LEADER, NAMESPACE, PAUSE, install
from tests.kubernetes.jobs_site import NODES, JobSite, Ranks
from tests.kubernetes.local_fleet import Page
from tests.notify.mail_world import MailServer
from tests.prometheus.test_dashboards import expressions
from tests.prometheus.test_rules import script
from tests.prometheus.watched import CLUSTER, OnCall, Watched, filled
from tests.rig.operators.flow import template
from tests.rig.processes import free_port
from tests.test_metrics import promtool as promtool_check
from tests.waits import until

SHOWN = {
    "SentinelAgentSilent",
    "SentinelCapacityLost",
    "SentinelIsolationHeldBack",
    "SentinelJobBudgetSpent",
    "SentinelJobGivenUp",
    "SentinelMailNotSent",
    "SentinelNoStandby",
    "SentinelNobodyLeads",
    "SentinelNodesNotHeard",
    "SentinelPaused",
    "SentinelSettingsRefused",
}
# Panels of what does not happen here, and of what may be over between two scrapes; other tests are about them.
QUIET = {
    "Calls of the program that powers silent nodes off",
    "Checks that could not look",
    "Effects that failed",
    "Iterations repeated",
    "Mails",
    "Oldest of these writes",
    "Records",
    "Writes to nodes and records",
}
LATER = {"Agents without a controller", "Nodes silent", "Paused"}  # what happens once all else was looked at
NOTHING = "none"  # what a panel says that has no reason to be empty
OWNER = "owner@example.com"
POOL = "a100"
ALL = dict.fromkeys(("cluster", "owner", "pool"), ".*")
SAVES = "time_to_save_seconds"  # test_one_machine.py has one


class World:
    """Two controllers, an agent on each of three nodes, a job on two of them; the third has real-looking cards."""

    def __init__(self, site: JobSite, folder: Path) -> None:
        self.site, self.folder = site, folder
        for number in range(3):
            label = {"metadata": {"labels": {"sentinel.dev/pool": POOL}}}
            site.admin.patch(f"/api/v1/nodes/{NODES}-{number}", label)
        self.logs = folder / "pods"
        self.ranks = Ranks(site, self.logs)
        self.page = f"127.0.0.1:{free_port()}"  # of the leader, which people were told of
        site.settings = {
            "listen": self.page,
            "pageUrl": f"http://{self.page}/",
            "fleet": {
                "isolations": {"atATime": {"atLeast": 1, "share": 0.01}},
                "agentSilent": "30s",
                "fence": {"command": ["/bin/true"], "after": "24h"},
            },
            "mail": {
                "host": "127.0.0.1",
                "port": 1,
                "tls": "none",
                "sender": "s@example.com",
                "admins": [OWNER],
            },
        }
        self.leader = site.controller("one")
        self.leader.said("leads, epoch", 60.0)
        site.settings["listen"] = "127.0.0.1:0"
        self.standby = site.controller("two")
        self.agents: dict[str, tuple[Node, Running]] = {}
        self.skipped: list[str] = []  # of what the machine of the tests shows too little
        for number in range(3):
            name = f"{NODES}-{number}"
            self.agents[name] = self._agent(name)

    def _agent(self, name: str) -> tuple[Node, Running]:
        node = self.site.agent_on(name, self.leader, self.standby)
        env = tree(node.machine.folder / "cards")
        node.box.env |= env
        node.machine.sysfs = sysfs = node.machine.folder / "cards" / "sys"
        for module in ("nvidia", "ib_core", "ib_uverbs"):
            (sysfs / "module" / module).mkdir(parents=True)
        Tree(sysfs.parent).netdev("eth0", address="0000:60:00.0")
        settings = node.settings(podLogs=str(self.logs), network={"interfaces": ["eth0"]})
        if not self.skipped:
            found = json.loads(node.box.sentinel("check", "--settings", settings, "--output=json").stdout)
            self.skipped = [one["check"] for one in found["checks"] if one["state"] == "unknown"]
        node.settings(skipChecks=self.skipped)
        return node, self.site.started(node)

    def wear(self, name: str) -> None:
        """Traffic and errors on the cards of a node."""
        root = self.agents[name][0].machine.folder / "cards"
        machine = Tree(root)
        for counter in ("port_rcv_data", "port_xmit_data", "symbol_error", "link_downed"):
            machine.counter("mlx5_0/1", counter, 10**6)
        ethernet = machine.sysfs / "class/net/eth0"
        for file in ("statistics/rx_errors", "statistics/tx_errors", "carrier_changes"):
            (ethernet / file).write_text("1000\n")
        scenario = root / "scenario"
        told = re.sub(r"^(\S+\.ecc(?:_corrected)?) 0$", r"\1 3", scenario.read_text(), flags=re.M)
        scenario.write_text(told)

    def targets(self) -> dict[str, list[str]]:
        def place(url: str) -> str:
            return url.removeprefix("http://").rstrip("/")

        pages = [place(Page(one).url) for one in (self.leader, self.standby)]
        agents = [
            place(agent.err.rpartition("findings on ")[2].split()[0]) for _, agent in self.agents.values()
        ]
        return {"controllers": pages, "agents": agents}


@contextmanager
def watched_world(folder: Path) -> Iterator[World]:
    """At a control plane of its own."""
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok
    from tests.rig.processes import Rig

    (folder / "control-plane").mkdir()
    with Rig(folder / "control-plane") as rig:
        plane = ControlPlane(rig)
        install(plane)
        kwok = Kwok(plane)
        kwok.nodes(NODES, 3)
        box = Box(folder / "box")
        try:
            yield World(JobSite(plane, kwok, box, folder), folder)
        finally:
            box.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with watched_world(tmp_path_factory.mktemp("watched")) as made:
        yield made


def gang() -> dict[str, Any]:
    pods = template(NODES)
    pods["spec"] |= {"restartPolicy": "Never"}
    pods["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    spec = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": pods}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def dashboards() -> dict[str, dict[str, Any]]:
    return {name: json.loads(text) for name, text in script("dashboards").texts().items()}


def panel(dashboard: str, title: str) -> str:
    (found,) = [one for one in dashboards()[f"sentinel-{dashboard}.json"]["panels"] if one["title"] == title]
    return str(found["targets"][0]["expr"])


def test_faults_reach_the_dashboards_and_the_mail_of_the_person_on_call(world: World, tmp_path: Path) -> None:
    site = world.site
    with MailServer() as server, Watched(tmp_path / "watch", world.targets(), server.port) as watch:
        site.until(watch.up)

        def shown(what: Any, why: Any) -> None:
            until(
                what,
                lambda: (
                    f"{why() if callable(why) else why}\n{watch.firing()}\n{watch.story()}\n{site.story()}"
                ),
                every_s=0.3,
            )

        _a_young_cluster_is_no_blank(watch, shown)
        site.protect(restart={"maxRestarts": 1}, maxDuration="24h")
        site.create(gang())
        site.until(site.state("running"))
        world.ranks.start()
        try:
            _story(world, watch, shown)
            _dashboards_show_it(world, watch, shown)
            _what_is_scraped_is_well_formed_and_only_agents_tell_of_single_cards_and_ranks(world)
        finally:
            world.ranks.end()
        _mails_tell_it(world, watch, server, shown)


def _a_young_cluster_is_no_blank(watch: Watched, until: Any) -> None:
    """No job yet, no fault yet: whatever is empty says by itself why it may be."""
    chosen = {"job_name": "none", "node": f"{NODES}-0", **ALL}

    def blank() -> list[str]:
        return [
            f"{name}: {one['title']}"
            for name, found in dashboards().items()
            for one in found["panels"]
            if one["fieldConfig"]["defaults"]["noValue"] == NOTHING
            and not any(watch.story_of(filled(target["expr"], chosen)) for target in one["targets"])
        ]

    until(lambda: not blank(), blank)


def _story(world: World, watch: Watched, until: Any) -> None:
    site = world.site
    # A fleet on which nothing is wrong fires nothing, even without the minutes that each alert waits.
    until(lambda: watch.value("sum(rate(sentinel_rank_iterations_total[10s]))"), "no iterations are told")
    until(lambda: watch.value("max(sentinel_job_step_time_seconds)") == 0.25, "no step time is told")
    until(lambda: not watch.firing(), "a healthy fleet is not silent")

    bad, other = (pod["spec"]["nodeName"] for pod in site.pods())
    world.agents[bad][0].machine.log(XID_79)
    until(lambda: watch.value('sum(sentinel_nodes{state="isolated"})') == 1, "the node is not isolated")
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 1)
    until(lambda: site.phases()[-1:] == ["Recovered"], "the job does not recover")
    until(lambda: watch.value("sum(sentinel_kept_node_lost_gpu_seconds)"), "no GPU time is lost to the node")
    with watch.away():  # what happens meanwhile is told when it is back
        world.agents[other][0].machine.log(XID_79)
        site.until(lambda: site.records(other))
    site.until(watch.up)
    until(lambda: "SentinelIsolationHeldBack" in watch.firing(), "the brake is not told")
    # To Prometheus no counter has begun anew meanwhile: rates over the time that it missed are right.
    # Those of a job begin with its ranks, which were restarted just before.
    counters = [one.name for one in DECLARATIONS if one.kind == "counter" and "job_name" not in one.labels]
    assert [name for name in counters if watch.value(f"sum(resets({name}[5m]))")] == []
    assert watch.value("sum(increase(sentinel_decisions_total[5m]))")
    until(lambda: watch.value("sum(sentinel_mails_waiting)"), "no mail waits")


def _dashboards_show_it(world: World, watch: Watched, until: Any) -> None:
    """Each query returns numbers; what is shown is what the records say."""
    site = world.site
    record = site.record()
    (isolated,) = [one for one in world.agents if site.isolated(one)]
    chosen = {"job_name": record["name"], "node": isolated, **ALL}
    chosen |= {"cluster": CLUSTER, "pool": POOL, "owner": OWNER}

    def empty() -> list[str]:
        return [
            f"{name}: {expr}"
            for name, found in dashboards().items()
            for expr in expressions(found)
            if SAVES not in expr and not watch.story_of(filled(expr, chosen))
        ]

    until(lambda: not empty(), lambda: "\n".join(empty()))
    world.wear(isolated)
    until(lambda: _zeros(watch, chosen) <= QUIET | LATER, lambda: _zeros(watch, chosen) - QUIET - LATER)
    _variables_offer_what_is_there_and_select(world, watch, chosen)

    def shown(dashboard: str, title: str) -> float | None:
        return watch.value(filled(panel(dashboard, title), chosen))

    assert shown("fleet", "Nodes isolated") == len([one for one in world.agents if site.isolated(one)]) == 1
    until(lambda: shown("job", "Incidents") == len(site.incidents()), "not all incidents are shown")
    incidents = site.incidents()
    hours = sum(one["lost"]["gpuSeconds"] for one in incidents if "lost" in one) / 3600
    until(lambda: shown("cost", "GPU-hours lost") == pytest.approx(hours), "other GPU-hours are shown")
    (mine,) = [one for one in site.records(isolated) if one["state"] == "active"]
    since_s = datetime.fromisoformat(mine["since"][:19] + "+00:00").timestamp()
    before_s = time.time() - since_s
    out_for_s = shown("node", "Out of service for") or 0.0
    assert before_s - 2.0 <= out_for_s <= time.time() - since_s + 2.0
    node, agent = world.agents[isolated]

    def stands() -> int:
        standing = json.loads(node.get(agent, "/findings")[1])["findings"]
        return len([one for one in standing if one["severity"] != "info"])

    until(lambda: shown("node", "Findings") == stands() > 0, stands)
    holder = site.admin.get(LEADER)["spec"]["holderIdentity"]
    until(lambda: shown("itself", "Leaders") == 1, "not one leads")
    leads = watch.value(f'sentinel_leading{{instance="{world.page}"}}')
    assert (leads, holder.partition("-")[0]) == (1, "one"), "the one with the lease"
    until(lambda: shown("job", "Time of an iteration") == 0.25, "another time of an iteration is shown")
    for title, each in (("Time of an iteration by rank", 0.25), ("Hardware ratio by rank", 0.8)):
        ranks = watch.values(filled(panel("job", title), chosen))
        assert ranks == [pytest.approx(each, rel=0.01)] * 2, title
    lost = [one for one in incidents if "lost" in one and one["verdict"].get("entity") == isolated]
    on_node = sum(one["lost"]["gpuSeconds"] for one in lost)
    by_node = watch.value(filled(panel("cost", "GPU-hours lost by node"), chosen))
    assert on_node > 0
    assert by_node == pytest.approx(on_node / 3600)
    by_owner = watch.value(filled(panel("cost", "GPU-hours lost by owner"), chosen))
    assert by_owner == pytest.approx(hours)

    def waiting() -> int:
        records = [*site.incidents(), *(one for name in world.agents for one in site.records(name))]
        return sum(mail["state"] == "waiting" for one in records for mail in one.get("mails", ()))

    until(lambda: shown("itself", "Mails that wait") == waiting() > 0, "other mails wait")


def _zeros(watch: Watched, chosen: dict[str, str]) -> set[str]:
    """Panels of which a query has told nothing but 0 until now."""
    return {
        one["title"]
        for found in dashboards().values()
        for one in found["panels"]
        for target in one["targets"]
        if SAVES not in target["expr"]
        and not any(any(told) for _, told in watch.story_of(filled(target["expr"], chosen)))
    }


def _variables_offer_what_is_there_and_select(world: World, watch: Watched, chosen: dict[str, str]) -> None:
    offered = {
        one["name"]: watch.choices(one["query"])
        for found in dashboards().values()
        for one in found["templating"]["list"]
        if one["type"] == "query"
    }
    there = {"job_name": [chosen["job_name"]], "node": sorted(world.agents), "owner": [OWNER]}
    there |= {"cluster": [CLUSTER], "pool": [POOL]}
    assert {name: sorted(found) for name, found in offered.items()} == there
    blind = [
        f"{name}: {one}: {expr}"
        for name, found in dashboards().items()
        for expr in expressions(found)
        for one in chosen
        if f"${one}" in expr and watch.story_of(filled(expr, {**chosen, one: "nobody"}))
    ]
    assert not blind, "whatever is chosen, it shows the same:\n" + "\n".join(blind)
    other = next(one for one in world.agents if one != chosen["node"])
    hottest = panel("node", "Hottest GPU")
    assert watch.value(filled(hottest, chosen)) is not None
    assert watch.value(filled(hottest, {**chosen, "node": other})) is not None
    isolated = panel("node", "Why it was out of service")
    assert watch.story_of(filled(isolated, chosen))


def _what_is_scraped_is_well_formed_and_only_agents_tell_of_single_cards_and_ranks(world: World) -> None:
    agents = [node.get(agent, "/metrics")[1] for node, agent in world.agents.values()]
    controllers = [Page(one).get("/metrics")[1] for one in (world.leader, world.standby)]
    foreign = {name for name, row in measures.rows().items() if row.source}
    for text in (*controllers, *agents):
        said = promtool_check(text.encode())
        assert [line for line in said if line.split(" ", 1)[0] not in foreign] == []

    def labels(texts: list[str]) -> set[str]:
        return {
            label
            for text in texts
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for label in sample.labels
        }

    single = {"rank", "gpu", "UUID", "pci_bus_id", "device", "entity"}
    assert labels(agents) >= {"rank", "gpu", "UUID", "entity"}
    assert not labels(controllers) & single
    assert any("sentinel_job_iteration{" in text for text in controllers), "there is a job"


def _mails_tell_it(world: World, watch: Watched, server: MailServer, until: Any) -> None:
    site = world.site
    used = {one["spec"]["nodeName"] for one in site.pods()}
    idle = [one for one in world.agents if one not in used and not site.isolated(one)] or sorted(used)
    os.kill(world.agents[idle[0]][1].pid, signal.SIGKILL)  # its kubelet lives on
    site.kwok.nodes("unheard", 1)  # a node without an agent
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 1)
    until(lambda: "SentinelJobGivenUp" in watch.firing(), "the end of the job is not told")
    until(lambda: "SentinelMailNotSent" in watch.firing(), "mails that wait are not told")

    on_call = OnCall(server, world.page)

    def told(*alerts: str, since: int = 0) -> None:
        for alert in alerts:
            until(lambda alert=alert: on_call.told(alert, since), f"no mail of {alert}")

    # While somebody leads: what nobody says any more is over for Prometheus, perhaps before it is mailed.
    told("SentinelIsolationHeldBack", "SentinelJobGivenUp", "SentinelMailNotSent")
    told("SentinelCapacityLost", "SentinelJobBudgetSpent", "SentinelNodesNotHeard", "SentinelAgentSilent")
    site.admin.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "sentinel-pause", "namespace": NAMESPACE},
            "data": {"by": "anna"},
        }
    )
    told("SentinelPaused")
    before = len(server.mails)
    site.admin.delete(PAUSE)
    until(lambda: on_call.told_over("SentinelPaused", before), "the end of the pause is not told")
    (site.folder / "one.yaml").write_text("kind: Settings\nnonsense: true\n")  # the leader's
    told("SentinelSettingsRefused")
    # Without the minutes that it waits it is mailed also while Prometheus has scraped only one of both, at its begin.
    before = len(server.mails)
    os.kill(world.standby.pid, signal.SIGKILL)
    told("SentinelNoStandby", since=before)
    _the_link_leads_to_what_to_do(on_call.mailed("SentinelMailNotSent")[0])
    os.kill(world.leader.pid, signal.SIGKILL)
    until(lambda: "SentinelNobodyLeads" in watch.firing(), "nobody leads, and nobody is told")
    told("SentinelNobodyLeads")
    assert site.record()["name"] in on_call.mailed("SentinelJobGivenUp")[0]
    chosen = {"job_name": site.record()["name"], "node": idle[0], **ALL}
    until(lambda: not _zeros(watch, chosen) & LATER, lambda: _zeros(watch, chosen) & LATER)
    assert on_call.knows == SHOWN


def _the_link_leads_to_what_to_do(mail: str) -> None:
    """Without a sign-in. Alertmanager's own template tells annotations as text: mail readers make links of it."""
    (link,) = set(re.findall(r"https?://[^\s<>\"']+/runbooks#\w+", mail))
    page, _, section = link.partition("#")
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        text = answer.read().decode()
    found = text.partition(f'<section id="{section}">')[2].partition("</section>")[0]
    assert "<h2>SentinelMailNotSent</h2>" in found
    assert "repair the server" in found
