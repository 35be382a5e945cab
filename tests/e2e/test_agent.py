"""`sentinel agent`: real processes; kill -9, new settings, a hung NVML, rubbish in the state file, a full disk."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentinel.agent import state as node_state
from tests.checks.conftest import Scenario, build_stub, nvml  # noqa: F401
from tests.e2e.agent_node import XID_31, XID_79, Node
from tests.e2e.box import SENTINEL, Box
from tests.gate.rights import needs_root
from tests.waits import until


@pytest.fixture
def node(box: Box) -> Node:
    return Node(box)


def test_findings_survive_kill_9_and_what_was_logged_meanwhile_is_seen_once(node: Node) -> None:
    agent = node.start()
    node.machine.log(XID_79)
    node.wait_code(agent, "XID 79")
    until(lambda: b"XID 79" in (node_state.read(node.folder) or b""))
    agent.kill()
    node.machine.log(XID_31)
    node.machine.kmsg.write_bytes(
        node.machine.kmsg.read_bytes().partition(b"\n")[2]
    )  # the ring forgot the first
    again = node.start()
    node.wait_code(again, "XID 31")
    found = {one["code"]: one for one in json.loads(node.get(again, "/findings")[1])["findings"]}
    assert {code: found[code].get("count", 1) for code in ("XID 79", "XID 31")} == {"XID 79": 1, "XID 31": 1}


def test_a_person_ends_a_finding_and_it_stays_ended(node: Node) -> None:
    """A broken memory module outlives a boot: only who has replaced it knows that it is well."""
    agent = node.start()
    node.machine.log("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)")
    node.wait_code(agent, "memory-uncorrected")
    done = node.box.sentinel(
        "release", "--here", "--settings", node.settings(), "CPU_SrcID#0_MC#0_Chan#0_DIMM#0"
    )
    assert (done.returncode, "ended by a person" in done.stderr) == (0, True)
    assert "memory-uncorrected" not in node.codes(agent)
    unknown = node.box.sentinel("release", "--here", "--settings", node.settings(), "GPU 0000:99:00.0")
    assert (unknown.returncode, "no finding of" in unknown.stderr) == (1, True)
    agent.send(signal.SIGTERM)
    assert agent.code() == 0
    again = node.start()
    assert "memory-uncorrected" not in node.codes(again)
    again.send(signal.SIGTERM)
    assert again.code() == 0
    nobody = node.box.sentinel("release", "--here", "--settings", node.settings(), "GPU 0000:99:00.0")
    assert (nobody.returncode, "no agent runs here" in nobody.stderr) == (1, True)


def test_it_ends_quickly_and_cleanly_and_a_second_one_is_refused(node: Node) -> None:
    agent = node.start()
    second = node.box.start("agent", "--settings", node.settings())
    assert second.code() == 73
    assert f"an agent already runs here (process {agent.pid}, http://" in second.err
    agent.send(signal.SIGTERM)
    assert agent.code() == 0
    assert not (node.folder / "sentinel.json").exists()
    node.start()


def test_new_settings_are_taken_and_bad_ones_refused_until_they_are_mended(node: Node) -> None:
    agent = node.start()
    node.machine.log(XID_79)
    node.wait_code(agent, "XID 79")
    good = Path(node.settings(disk={"warnFreeShare": 0.9999}))
    agent.said("new settings are in force")
    node.wait_code(agent, "disk-space")
    assert "XID 79" in node.codes(agent)
    text = good.read_text()
    good.write_text(text + "nonsense: 1\n")
    agent.send(signal.SIGHUP)
    agent.said("new settings refused, the old ones stay in force")
    status, said = node.get(agent, "/healthz")
    assert status == 503
    assert "nonsense" in said
    assert "settings-refused" in node.codes(agent)
    assert "sentinel_settings_in_force 0" in node.get(agent, "/metrics")[1]
    good.write_text(text)
    agent.send(signal.SIGHUP)
    until(lambda: node.get(agent, "/healthz") == (200, "ok\n"), lambda: agent.err)
    assert "settings-refused" not in node.codes(agent)
    assert "disk-space" in node.codes(agent)


def test_shapes_that_are_confirmed_come_into_force_without_a_restart(node: Node) -> None:
    agent = node.start()
    assert node.box.sentinel("check", "--settings", node.settings(), "--learn").returncode == 0
    agent.send(signal.SIGHUP)
    node.wait_code(agent, "shape-unconfirmed")
    assert node.box.sentinel("check", "--settings", node.settings(), "--confirm").returncode == 0
    agent.send(signal.SIGHUP)
    node.wait_code(agent, "shape-unconfirmed", gone=True)


@pytest.mark.parametrize(
    "rubbish", [b"", b"\0" * 4096, b'{"version":1,"saved_wall_s":0,"checks":{"book":7}}']
)
def test_rubbish_in_the_state_file_is_set_aside(node: Node, rubbish: bytes) -> None:
    node.folder.mkdir(parents=True)
    (node.folder / node_state.FILE).write_bytes(rubbish)
    agent = node.start()
    agent.said("state.json is damaged")
    assert (node.folder / f"{node_state.FILE}.damaged").read_bytes() == rubbish
    assert node.get(agent, "/healthz") == (200, "ok\n")


@pytest.fixture
@needs_root
def full_disk(box: Box) -> Iterator[Path]:
    """A small file system as the state directory."""
    box.state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(box.state)], check=True)
    yield box.state
    box.close()
    subprocess.run(["umount", "-l", str(box.state)], check=True)


def test_a_full_disk_is_told_and_over_when_there_is_room_again(full_disk: Path, node: Node) -> None:
    agent = node.start()
    ballast = full_disk / "ballast"
    node.machine.log(XID_79)

    def full() -> bool:
        """A save that was under way leaves room again for the next one: until no save comes through."""
        with contextlib.suppress(OSError), open(ballast, "ab", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        node.machine.log(XID_79)
        return "state-not-saved" in node.codes(agent)

    until(full, lambda: agent.err)
    node.wait_code(agent, "XID 79")
    status, said = node.get(agent, "/healthz")
    assert (status, "No space left" in said) == (503, True)
    ballast.unlink()
    node.wait_code(agent, "state-not-saved", gone=True)
    assert node.get(agent, "/healthz") == (200, "ok\n")


@pytest.fixture
def card(node: Node, nvml: Callable[..., Scenario]) -> Scenario:  # noqa: F811
    """The card of the node, as its NVML says."""
    node.machine.add_pci("0000:18:00.0")
    scenario = nvml("0000:18:00.0")
    node.box.env |= {key: os.environ[key] for key in ("LD_LIBRARY_PATH", "SENTINEL_STUB_NVML")}
    return scenario


def test_a_hung_nvml_is_a_finding_and_the_agent_stays_well(node: Node, card: Scenario) -> None:
    agent = node.start()
    until(lambda: "DCGM_FI_DEV_GPU_TEMP{" in node.get(agent, "/metrics")[1])
    card.values["hang"] = 1
    card.event(0, 8, 31)  # an Xid asks for a sample at once, and that one hangs
    node.wait_code(agent, "nvml-hangs")
    assert node.get(agent, "/healthz") == (200, "ok\n")
    card.set(hang=0)
    agent.send(signal.SIGTERM)
    assert agent.code() == 0


def test_who_asks_now_hears_within_his_time_that_the_cards_do_not_answer(node: Node, card: Scenario) -> None:
    """As the prolog of a job does: such a node gets no job."""
    card.set(hang=1)
    words = ("check", "nvml", "--within", "1s", "-o", "json", "--settings", node.settings())
    done = node.box.sentinel(*words)
    assert done.returncode == 2, done.stdout
    (nvml_check,) = json.loads(done.stdout)["checks"]
    (found,) = nvml_check["findings"]
    assert (found["code"], found["severity"]) == ("check-hangs", "degraded")
    assert found["evidence"] == ["no answer within 1 s"]
    refused = node.box.sentinel("check", "--within", "soon")
    assert (refused.returncode, "expected a duration with its unit" in refused.stderr) == (2, True)


QUICK = """
import sentinel.service.health as health
health.BEAT_S = 0.2
health.Watchdog.__init__.__defaults__ = (5.0, 0.05)
"""


def test_an_agent_that_is_well_is_not_taken_for_frozen(node: Node, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(QUICK)
    node.box.env["PYTHONPATH"] = str(tmp_path)
    agent = node.start()
    time.sleep(7.0)
    assert node.get(agent, "/healthz") == (200, "ok\n")
    agent.send(signal.SIGTERM)
    assert agent.code() == 0


def test_an_agent_that_was_frozen_says_so_when_it_is_back(node: Node) -> None:
    node.folder.mkdir(parents=True)
    (node.folder / "frozen.txt").write_text("Thread 0x1 (most recent call first):\n")
    agent = node.start()
    agent.said("the agent before was frozen and ended; where it hung:")
    assert (node.folder / "frozen.txt.old").read_text().startswith("Thread")


def test_a_port_that_is_taken_is_told_and_tried_again(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        agent = node.box.start("agent", "--settings", node.settings(listen=listen))
        agent.said("warning: agent cannot-listen")
    agent.said(f"findings on http://{listen}")
    agent.said("over: agent cannot-listen")
    assert node.get(agent, "/healthz") == (200, "ok\n")


def test_the_numbers_of_the_checks_are_served(node: Node) -> None:
    agent = node.start()
    node.machine.log(XID_79)
    node.wait_code(agent, "XID 79")
    text = node.get(agent, "/metrics")[1]
    for line in (
        'sentinel_findings{component="gpu",severity="fatal"} 1',
        'sentinel_finding{component="gpu",entity="GPU 0000:18:00.0",code="XID 79",severity="fatal",',
        'sentinel_check_timeouts_total{check="kernel"} 0',
        'sentinel_check_last_result_age_seconds{check="kernel"}',
        'sentinel_check_runs_total{check="disk"}',
        "sentinel_event_loop_lag_seconds",
    ):
        assert line in text, text


def test_without_permission_it_runs_and_says_what_it_cannot_see(node: Node) -> None:
    node.machine.kmsg.chmod(0)
    words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    agent = node.box.start_words(*words, SENTINEL, "agent", "--settings", node.settings())
    agent.said("cannot tell of kernel")
    agent.said("not permitted, needs CAP_SYSLOG")
    agent.said("findings on http")
