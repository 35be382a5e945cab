"""What people see of a cluster's controllers: numbers, health, mail. At a real API server and a real mail server."""

import json
import os
import re
import signal
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import Any

import pytest

from sentinel.cluster.kubernetes.events import PER_OBJECT
from sentinel.web.page import MOST_FINDINGS
from tests.chaos.fleet_nodes import XID_48, SimNode
from tests.e2e.agent_node import XID_79
from tests.e2e.box import Running
from tests.kubernetes.conftest import LEADER, NAMESPACE, install, run
from tests.kubernetes.flood import EACH, REPORTS, Flood
from tests.kubernetes.local_fleet import AUDIENCE, Fleet, Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.proxy import Fault, Proxy
from tests.notify.hooks import Hook, texts
from tests.notify.mail_world import MailServer, closed_port
from tests.waits import eventually


@pytest.fixture
def fleet(fleet: Fleet) -> Fleet:
    fleet.settings = {"listen": "127.0.0.1:0"}
    return fleet


def test_the_numbers_of_the_leader_are_those_of_the_records_and_the_standby_leads_nothing(
    fleet: Fleet,
) -> None:
    leader = fleet.controller("seen-one")
    leader.said("leads, epoch")
    standby = fleet.controller("seen-two")
    one, two = Page(leader), Page(standby)
    node = fleet.agent("seen-a", leader, standby)
    fleet.plane.node("seen-b")
    fleet.until(lambda: one.number("nodes", pool="", state="not-heard") == 1)
    node.machine.log(XID_79)
    fleet.until(lambda: one.number("nodes", pool="", state="isolated") == 1)

    numbers = one.numbers()

    def number(name: str, **labels: str) -> float | None:
        return numbers.get((f"sentinel_{name}", tuple(sorted(labels.items()))))

    (record,) = fleet.records("seen-a")
    assert number("quarantines", kind="fault", state="active", mode="enforce") == 1
    assert number("fleet_findings", component="gpu", severity="fatal", code="XID 79") == 1
    assert number("decisions_total", reason=record["reason"]) == 1
    assert number("effects_total", effect="isolate") == 1
    at_once = {"brake": "isolations", "window": "at-a-time", "pool": ""}
    assert (number("brake_used", **at_once), number("brake_limit", **at_once)) == (1, 2)
    assert number("brake_held_back", brake="at-a-time") == 0
    assert number("leading") == 1
    assert number("leaderships_total") == 1
    assert number("leader_epoch") == record["epoch"]
    assert (number("round_seconds_count", scope="changed") or 0) > 0
    assert number("watch_objects", kind="nodes") == len(fleet.admin.get("/api/v1/nodes")["items"])
    assert (number("api_request_seconds_count", method="PATCH", outcome="ok") or 0) > 0
    assert number("transport_agents") == 1
    assert (number("transport_reports_total", outcome="new") or 0) > 0
    assert (number("transport_received_bytes_total") or 0) > 100
    assert (number("certificate_expiry_timestamp_seconds", certificate="serving") or 0) > 1.7e9
    fleet.until(lambda: (one.number("events_written_total") or 0) > 0)
    assert number("effect_failures_total", effect="isolate", kind="temporary") == 0

    assert two.number("leading") == 0
    fleet.until(lambda: two.number("leader_epoch") == record["epoch"])
    assert two.number("nodes", pool="", state="isolated") is None
    assert two.number("leaderships_total") == 0
    fleet.until(lambda: two.get("/readyz") == (200, "ok\n"))
    assert two.get("/healthz") == one.get("/healthz") == one.get("/readyz") == (200, "ok\n")

    os.kill(leader.pid, signal.SIGKILL)
    standby.said("leads, epoch")
    fleet.until(lambda: two.number("nodes", pool="", state="isolated") == 1)
    assert two.number("leading") == 1
    assert two.number("leader_epoch") == record["epoch"] + 1
    fleet.admin.patch("/api/v1/nodes/seen-a", {"spec": {"unschedulable": False}})
    fleet.until(lambda: two.number("quarantines", kind="fault", state="overridden", mode="enforce") == 1)


def test_a_controller_whose_api_server_is_away_lives_and_is_not_ready(fleet: Fleet) -> None:
    text = fleet.kubeconfig.read_text()
    fleet.kubeconfig.write_text(text.replace(fleet.plane.url, "https://127.0.0.1:1"))
    fleet.box.env |= {"POD_NAME": "alone", "POD_IP": "127.0.0.1"}
    settings = fleet.folder / "alone.yaml"
    settings.write_text(
        "apiVersion: sentinel.dev/v1alpha1\nkind: Settings\nlisten: 127.0.0.1:0\n"
        f"stateDir: {fleet.folder}/alone\n"
    )
    words = ["controller", "--kubeconfig", str(fleet.kubeconfig), "--agents", "127.0.0.1:0"]
    running = fleet.box.start(*words, "--settings", str(settings))
    page = Page(running)
    assert page.get("/healthz") == (200, "ok\n")
    assert page.get("/readyz") == (503, "the API server has not answered yet\n")
    assert page.number("leading") == 0
    fleet.until(lambda: page.number("api_request_seconds_count", method="GET", outcome="Unavailable"))
    running.send(signal.SIGTERM)
    assert running.code() == 0


def test_what_keeps_a_leader_from_its_work_is_said_measured_and_said_to_be_over(
    fleet: Fleet, behind: Proxy
) -> None:
    """A right that is missing, a node that cannot be marked, and a clock that is an hour behind those of the nodes."""
    fleet.goes_through(behind)
    leader = fleet.controller("troubled")
    leader.said("leads, epoch")
    page = Page(leader)
    fleet.until(lambda: page.get("/readyz") == (200, "ok\n"))
    behind.faults = [
        Fault(method="PATCH", path="/nodes/late-0", times=10_000, answer=500),
        Fault(method="GET", path="/quarantines", times=10_000, answer=403),
        Fault(method="WATCH", path="/quarantines", times=10_000, answer=403),
    ]
    behind.cut_watches()
    names = [f"late-{number}" for number in range(3)]
    for name in names:
        fleet.plane.node(name)
    told = (
        "in trouble for 20 s: quarantines: ",
        "in trouble for 20 s: the mark of late-0 cannot be written: ",
        "in trouble for 20 s: this controller's clock is 3600 s behind those of 3 of 3 nodes",
    )

    async def story() -> None:
        bundle = str(fleet.bundle(fleet.folder / "ca.crt"))
        address = f"127.0.0.1:{fleet.ports[leader.pid]}"
        nodes = [SimNode(name, "", fleet.folder, (address,), bundle, skew_s=3600.0) for name in names]
        for node in nodes:
            node.start(fleet.plane.node_token(NAMESPACE, "sentinel-agent", node.name, audience=AUDIENCE))
        nodes[0].breaks(XID_48)
        for text in told:
            await eventually(lambda text=text: text in leader.err, lambda: leader.err)
        status, ready = page.get("/readyz")
        assert status == 503
        assert "quarantines: " in ready
        assert "this controller's clock" in ready
        assert abs((page.number("agents_clock_offset_seconds") or 0.0) - 3600.0) < 10.0
        behind.faults = []
        for node in nodes:
            await node.stop()

    run(story())
    for text in told:
        over = text.partition(": ")[2]
        fleet.until(lambda over=over: re.search(rf"over after \d+ s: {re.escape(over)}", leader.err))
    fleet.until(lambda: page.get("/readyz") == (200, "ok\n"))


def test_what_waits_to_be_written_is_told_by_who_leads_alone(fleet: Fleet, behind: Proxy) -> None:
    standby = fleet.kubeconfig
    fleet.goes_through(behind)
    leader = fleet.controller("queue-one")
    leader.said("leads, epoch")
    fleet.kubeconfig = standby
    two = Page(fleet.controller("queue-two"))
    one = Page(leader)
    fleet.until(lambda: one.number("works", effect="show", state="running") == 0)
    behind.faults = [Fault(method="PATCH", path="/nodes/queue-a", times=10_000, hold=True)]
    fleet.agent("queue-a", leader).machine.log(XID_79)

    def of_node(page: Page, name: str, **labels: str) -> dict[str, float]:
        """By effect, without those of which there is nothing."""
        wanted = {*labels.items()}
        return {
            dict(told)["effect"]: found
            for (metric, told), found in page.numbers().items()
            if metric == f"sentinel_{name}" and wanted <= {*told} and found
        }

    def held_s() -> float:
        return max(of_node(one, "works_oldest_seconds", state="running").values(), default=0.0)

    fleet.until(lambda: held_s() > 1.0)
    assert of_node(one, "works", state="running")
    assert of_node(one, "works_failing") == {}

    behind.faults = [Fault(method="PATCH", path="/nodes/queue-a", times=10_000, answer=500)]
    behind.release()
    fleet.until(lambda: of_node(one, "works_failing"))
    fleet.until(lambda: of_node(one, "works", state="resting"))
    assert not any(name.startswith("sentinel_works") for name, _ in two.numbers()), "it stands by"

    behind.faults += [Fault(path=LEADER, times=10_000, answer=500)]
    leader.said("leads no more")
    assert not any(name.startswith("sentinel_works") for name, _ in one.numbers())
    fleet.until(lambda: two.number("works", effect="isolate", state="waiting") == 0)
    fleet.until(lambda: fleet.isolated("queue-a"))
    fleet.until(lambda: not of_node(two, "works_failing"))


def in_trouble(controller: Running, told: str) -> bool:
    """Be it that a part of it was found and told before."""
    return re.search(rf"in trouble for \d+ s: {re.escape(told)}", controller.err) is not None


def over(leader: Running, told: str) -> bool:
    return re.search(rf"over after \d+ s: {re.escape(told)}", leader.err) is not None


def test_custom_resources_that_are_not_installed_or_not_any_more_are_told_by_leader_and_standby(
    fleet: Fleet,
) -> None:
    leader = fleet.controller("kinds-one")
    leader.said("leads, epoch")
    standby = fleet.controller("kinds-two")
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    told = (
        "jobpolicies.sentinel.dev, incidents.sentinel.dev are not installed: no job is protected, no job is "
        "recovered; `kubectl apply -f deploy/crds` installs them"
    )
    try:
        for name in ("jobpolicies", "incidents"):
            fleet.admin.delete(f"{kinds}/{name}.sentinel.dev")
        for one in (leader, standby):
            fleet.until(lambda one=one: in_trouble(one, told))  # type: ignore[misc]
            assert Page(one).get("/readyz") == (503, f"{told}\n")
            fleet.until(lambda one=one: Page(one).number("watch_synced", kind="jobpolicies") == 0)  # type: ignore[misc]
    finally:
        install(fleet.plane)
    for one in (leader, standby):
        fleet.until(lambda one=one: over(one, told))  # type: ignore[misc]
        fleet.until(lambda one=one: Page(one).get("/readyz") == (200, "ok\n"))  # type: ignore[misc]
        fleet.until(lambda one=one: Page(one).number("watch_synced", kind="jobpolicies") == 1)  # type: ignore[misc]


def test_an_epoch_that_no_controller_can_have_had_is_told_until_it_is_gone(fleet: Fleet) -> None:
    leader = fleet.controller("epochs")
    leader.said("leads, epoch")
    page = Page(leader)
    node = fleet.agent("ep-a", leader)
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("ep-a"))
    fleet.plane.node("ep-b")
    note = {"metadata": {"annotations": {"sentinel.dev/epoch": "999999999"}}}
    fleet.admin.patch("/api/v1/nodes/ep-b", note)
    told = (
        "nodes ep-b bears epoch 999999999, which no controller can have had: it is not followed, and the next write "
        "there takes it away"
    )
    fleet.until(lambda: f"in trouble for 20 s: {told}" in leader.err)
    assert page.number("degraded_modes") == 1
    assert page.get("/readyz") == (200, "ok\n"), "it does its work"
    fleet.admin.delete("/api/v1/nodes/ep-b")
    fleet.until(lambda: over(leader, told))
    fleet.until(lambda: page.number("degraded_modes") == 0)

    # What an agent of another cluster, or one with a broken disk, has served.
    fleet.plane.node("ep-c")
    broken = fleet.agent_on("ep-c", leader)
    (broken.folder / "controller").mkdir(parents=True)
    (broken.folder / "controller" / "epoch").write_text("999999999\n")
    fleet.started(broken)
    asked = (
        "the agent of node ep-c bears epoch 999999999, which no controller can have had, and obeys none below it: "
        "remove the file controller/epoch from its state folder and restart it"
    )
    fleet.until(lambda: f"in trouble for 20 s: {asked}" in leader.err)


# ---------------------------------------------------------------- mail


ADMIN = "admins@example.com"
XID_79_IS = "XID 79 of GPU 0000:18:00.0"


def mail_to(port: int) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port, "tls": "none", "sender": "s@example.com", "admins": [ADMIN]}


def subjects(server: MailServer) -> list[str]:
    return [str(mail["Subject"]) for _, mail in server.mails]


def plain(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    assert body is not None
    return " ".join(body.get_content().split())


def states(fleet: Fleet, *names: str) -> list[str]:
    """Of the mails of these nodes, as their records say."""
    found = [mail for name in names for record in fleet.records(name) for mail in record.get("mails", [])]
    return [mail.get("state", "waiting") for mail in found]


def test_administrators_are_told_of_an_isolation_of_the_brake_and_of_the_return_once_also_after_a_takeover(
    fleet: Fleet,
) -> None:
    with MailServer() as server:
        fleet.settings |= {"mail": mail_to(server.port)}
        leader = fleet.controller("mail-one")
        leader.said("leads, epoch")
        standby = fleet.controller("mail-two")
        page = Page(leader)
        names = ["mail-a", "mail-b", "mail-c"]
        nodes = [fleet.agent(name, leader, standby) for name in names]
        for node in nodes[:2]:
            node.machine.log(XID_79)
        fleet.until(lambda: len(server.mails) == 2)
        nodes[2].machine.log(XID_79)
        fleet.until(lambda: len(server.mails) == 3)
        out = next(mail for _, mail in server.mails if "mail-a" in str(mail["Subject"]))
        assert "mail-a: taken out of service - XID 79" in str(out["Subject"])
        for said in ("fallen off the bus", "kubectl uncordon mail-a", "sentinel release mail-a", "restarted"):
            assert said in plain(out)
        held = next(mail for _, mail in server.mails if "mail-c" in str(mail["Subject"]))
        assert "stays in service though it should not" in str(held["Subject"])
        assert "as many nodes as are allowed" in plain(held)

        fleet.admin.patch("/api/v1/nodes/mail-a", {"spec": {"unschedulable": False}})
        # The uncordon makes room for the one that was held back.
        fleet.until(lambda: len(server.mails) == 5)
        back = next(mail for _, mail in server.mails if "given back by a person's" in str(mail["Subject"]))
        assert back["In-Reply-To"] == out["Message-ID"]
        assert any("mail-c: taken out of service" in one for one in subjects(server))
        fleet.until(lambda: states(fleet, *names) == ["sent"] * 5)
        assert page.number("mails_sent_total", about="nodes") == 5
        assert page.number("mails_waiting", about="nodes") == 0

        os.kill(leader.pid, signal.SIGKILL)
        standby.said("leads, epoch")
        # What is new afterwards is told, and nothing that was told before.
        fleet.admin.patch("/api/v1/nodes/mail-b", {"spec": {"unschedulable": False}})
        fleet.until(lambda: len(server.mails) > 5)
        standby.send(signal.SIGTERM)
        assert standby.code() == 0
        assert len({mail["Message-ID"] for _, mail in server.mails}) == len(server.mails) == 6
        assert states(fleet, *names) == ["sent"] * 6

        fleet.settings["mail"]["perHour"] = 6  # the hour is used up, by leaders before this one
        third = fleet.controller("mail-three")
        third.said("leads, epoch")
        fleet.admin.patch("/api/v1/nodes/mail-c", {"spec": {"unschedulable": False}})
        fleet.until(lambda: Page(third).number("mails_waiting", about="nodes") == 1)
        third.send(signal.SIGTERM)  # a mail on its way would be there when it has ended
        assert third.code() == 0
        assert len(server.mails) == 6


def test_a_leader_that_is_killed_before_its_mail_went_leaves_it_to_its_successor(fleet: Fleet) -> None:
    port = closed_port()
    fleet.settings |= {"mail": mail_to(port)}
    leader = fleet.controller("kill-one")
    leader.said("leads, epoch")
    page = Page(leader)
    node = fleet.agent("kill-a", leader)
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("kill-a"))  # a mail server that is away holds nothing up
    fleet.until(lambda: (page.number("mail_failures_total", about="nodes") or 0) > 0)
    assert page.number("mails_waiting", about="nodes") == 1
    assert states(fleet, "kill-a") == ["waiting"]
    os.kill(leader.pid, signal.SIGKILL)
    with MailServer() as server:
        fleet.settings |= {"mail": mail_to(server.port)}
        successor = fleet.controller("kill-two")
        fleet.until(lambda: server.mails)
        assert subjects(server) == [f"[sentinel] kill-a: taken out of service - {XID_79_IS}"]
        fleet.until(lambda: states(fleet, "kill-a") == ["sent"])
        fleet.admin.patch("/api/v1/nodes/kill-a", {"spec": {"unschedulable": False}})
        fleet.until(lambda: len(server.mails) == 2)
        fleet.until(lambda: states(fleet, "kill-a") == ["sent", "sent"])
        fleet.until(lambda: Page(successor).number("mails_sent_total", about="nodes") == 2)


def test_a_mail_server_that_comes_back_gets_what_waited_and_without_one_mails_are_filed(fleet: Fleet) -> None:
    port = closed_port()
    fleet.settings |= {"mail": mail_to(port)}
    leader = fleet.controller("wait-one")
    leader.said("leads, epoch")
    node = fleet.agent("wait-a", leader)
    node.machine.log(XID_79)
    page = Page(leader)
    fleet.until(lambda: (page.number("mail_failures_total", about="nodes") or 0) > 0)
    with MailServer(port=port) as server:
        fleet.until(lambda: server.mails)
        fleet.until(lambda: states(fleet, "wait-a") == ["sent"])
    leader.send(signal.SIGTERM)
    assert leader.code() == 0

    del fleet.settings["mail"]
    other = fleet.controller("file-one")
    other.said("leads, epoch")
    fleet.admin.patch("/api/v1/nodes/wait-a", {"spec": {"unschedulable": False}})
    fleet.until(lambda: states(fleet, "wait-a") == ["sent", "sent"])
    (filed,) = (fleet.folder / "file-one" / "outbox").iterdir()
    assert filed.name.startswith("wait-a-0001.Uncordoned.")
    log = (fleet.folder / "file-one" / "controller.log").read_text()
    assert json.dumps(fleet.records("wait-a")[0]["sentence"]) in log


def told_until(fleet: Fleet) -> str:
    return str(fleet.admin.get(LEADER)["metadata"]["annotations"].get("sentinel.dev/summary", ""))


def test_the_summary_of_the_day_comes_once_also_where_it_was_due_while_nobody_led(fleet: Fleet) -> None:
    due = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
    with MailServer() as server:

        def summaries() -> list[EmailMessage]:
            return [mail for _, mail in server.mails if mail["X-Sentinel-Stage"] == "summary"]

        fleet.settings |= {"mail": mail_to(server.port)}
        first = fleet.controller("sum-one")  # it was never asked for one
        first.said("leads, epoch")
        fleet.settings["mail"]["summary"] = {"at": f"{due:%H:%M}"}
        others = [fleet.controller("sum-two"), fleet.controller("sum-three")]
        node = fleet.agent("sum-a", first, *others)
        node.machine.log(XID_79)
        fleet.until(lambda: states(fleet, "sum-a") == ["sent"])
        assert told_until(fleet) == ""
        os.kill(first.pid, signal.SIGKILL)
        # The first leader ever has nothing to tell of what was before it: here one told it two hours ago.
        before = {"sentinel.dev/summary": f"{due - timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"}
        fleet.admin.patch(LEADER, {"metadata": {"annotations": before}})

        fleet.until(summaries)
        (mail,) = summaries()
        assert mail["Subject"].startswith("[sentinel] summary: 1 node isolated")
        assert f"from {due - timedelta(hours=2):%a %d %b %H:%M} to {due:%a %d %b %H:%M}." in plain(mail)
        assert "isolated: sum-a since " in plain(mail)
        fleet.until(lambda: told_until(fleet) == f"{due:%Y-%m-%dT%H:%M:%SZ}")

        second = next(one for one in others if "leads, epoch" in one.err)
        os.kill(second.pid, signal.SIGKILL)
        (third,) = set(others) - {second}
        third.said("leads, epoch")
        fleet.admin.patch("/api/v1/nodes/sum-a", {"spec": {"unschedulable": False}})
        fleet.until(lambda: states(fleet, "sum-a") == ["sent", "sent"])
        third.send(signal.SIGTERM)
        assert third.code() == 0
        assert len(summaries()) == 1
        assert told_until(fleet) == f"{due:%Y-%m-%dT%H:%M:%SZ}"


# ---------------------------------------------------------------- ten thousand findings

FLOODED = 20  # nodes
OPEN = {key: {"atLeast": 1000, "share": 1.0} for key in ("atATime", "perWindow")}
PATHS = ("/healthz", "/metrics", "/", "/nodes", "/nodes/flood-00")


def test_ten_thousand_hostile_findings_in_a_minute_reach_everybody_once_and_in_few_words(
    fleet: Fleet,
) -> None:
    names = [f"flood-{number:02}" for number in range(FLOODED)]
    hook = Hook()
    with MailServer() as server:
        fleet.settings |= {
            "mail": mail_to(server.port),
            "webhooks": [{"name": "pager", "url": hook.url}],
            "fleet": {"isolations": OPEN, "poolIsolations": OPEN},
        }
        leader = fleet.controller("flood-one")
        leader.said("leads, epoch")
        page = Page(leader)
        for name in names:
            fleet.plane.node(name)
        fleet.until(lambda: page.number("nodes", pool="", state="not-heard") == FLOODED)
        tokens = {
            name: fleet.plane.node_token(NAMESPACE, "sentinel-agent", name, audience=AUDIENCE)
            for name in names
        }
        flood = Flood(fleet.ports[leader.pid], fleet.bundle(fleet.folder / "ca.crt"), tokens)
        flood.start()
        while flood.is_alive():  # it answers all the time
            assert [page.get(path)[0] for path in PATHS] == [200] * len(PATHS)
        assert flood.took_s > 0, "not all of it was taken"
        fleet.until(lambda: all(fleet.isolated(name) for name in names))
        fleet.until(lambda: page.number("mails_sent_total", about="nodes") == FLOODED)
        assert page.number("mails_waiting", about="nodes") == 0
        # What came together is told together: each node in one of a few mails, to people and to programs.
        told = [plain(mail) for _, mail in server.mails]
        assert len(told) <= FLOODED / 2
        assert [sum(f"{name}: " in one for one in told) for name in names] == [1] * FLOODED
    ids = [str(mail["Message-ID"]).strip("<>") for _, mail in server.mails]
    assert [body["id"] for body in hook.bodies()] == ids
    hook.close()

    # No number is lost, and no sink grows with what agents tell.
    fleet.until(lambda: counted(page) == FLOODED * REPORTS * EACH)
    events = fleet.admin.items("/apis/events.k8s.io/v1/namespaces/default/events")
    notes = [one["note"] for one in events if one["regarding"]["name"] in names]
    assert FLOODED <= len(notes) <= FLOODED * PER_OBJECT
    assert all(len(json.dumps(fleet.records(name))) < 20_000 for name in names)
    pages = {path: page.get(path)[1] for path in PATHS}
    assert max(map(len, pages.values())) < 150_000, {path: len(text) for path, text in pages.items()}
    assert f"and {REPORTS * EACH - MOST_FINDINGS} more" in pages["/nodes/flood-00"]

    # What it says steers no reader.
    anna = Person(fleet.plane, "seen-anna", bind(fleet.plane, "seen-anna", "sentinel-operator"))
    terminal = anna.says("status").stdout + anna.says("status", "flood-00").stdout
    assert "gnp.exe" in terminal
    assert "gnp.exe" in "".join(notes)
    for text in (terminal, *notes, *told, *pages.values(), *texts(hook.bodies())):
        assert not {"\u202e", "\u2028", "\x1b", "\x00"} & set(text)
    assert not any("<script>alert" in text for text in pages.values())


def counted(page: Page) -> float:
    return sum(value for (name, _), value in page.numbers().items() if name == "sentinel_fleet_findings")


def test_settings_that_change_under_a_controller_are_told_of_until_they_are_back(fleet: Fleet) -> None:
    """It reads them when it begins: whoever edits a ConfigMap must know that nothing comes of it."""
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    file = fleet.folder / "one.yaml"
    before = file.read_text()
    file.write_text(json.dumps({**json.loads(before), "fleet": {"mode": "observe"}}))
    controller.said("its settings were changed, and count when it is started again")
    page = Page(controller)

    def in_force() -> list[float]:
        return [n for (name, _), n in page.numbers().items() if name == "sentinel_settings_in_force"]

    assert in_force() == [0.0]
    file.write_text("kind: Settings\nfleet: {mod: observe}\n")
    controller.said("its settings were changed, and it would not begin with these: ")
    assert in_force() == [0.0]
    file.write_text(before)
    fleet.until(lambda: controller.err.count("over after") == 2)
    assert in_force() == [1.0]
