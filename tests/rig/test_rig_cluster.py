"""`make cluster` shows a person a running cluster, and nothing of it stays, however it ends."""

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gate.rights import needs_root
from tests.rig.processes import until
from tests.rig.warden import cgroup_roots, marked


def sysctls() -> list[str]:
    """Of the machine: those that a kubelet sets."""
    names = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
    return [Path("/proc/sys", name).read_text() for name in names]


class Shown:
    """The command, running, and what it printed."""

    def __init__(self, repo: Path, out: Path) -> None:
        self.sysctls = sysctls()
        with open(out, "w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.rig"],
                cwd=repo,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        until(
            lambda: "Ctrl-C ends" in out.read_text() or self.process.poll() is not None, out.read_text, 300.0
        )
        self.text = out.read_text()
        self.folder = Path(self.found(r"export KUBECONFIG=(/tmp/rig\w+)/"))

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.text)
        assert match, self.text
        return match[1]

    def kubectl(self, *words: str) -> str:
        kubeconfig = f"--kubeconfig={self.folder}/admin.kubeconfig"
        command = [self.found(r"kubectl=(\S+)"), kubeconfig, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout

    def remains(self) -> list[object]:
        """What there is of it on this machine."""
        links = Path("/sys/class/net").glob(f"{self.folder.name}*")
        mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if self.folder.name in line]
        files = [self.folder] if self.folder.exists() else []
        return [*marked(self.folder).items(), *cgroup_roots(self.folder.name), *links, *mounts, *files]


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.fixture
@needs_root
def shown(repo: Path, tmp_path: Path) -> Iterator[Shown]:
    made = Shown(repo, tmp_path / "out")
    yield made
    made.process.kill()
    made.process.wait()


def test_it_shows_a_gpu_break_and_a_job_go_on_elsewhere_and_ends_with_ctrl_c(shown: Shown) -> None:
    names = set(shown.kubectl("get", "nodes", "-o", "name").split())
    assert names == {"node/real-1", "node/real-2", "node/real-3"}
    assert sysctls() == shown.sysctls
    assert "sentinel" in page(shown.found(r"\n    (http://\S+)    # the page")).lower()
    prometheus = shown.found(r"\n    (http://\S+/)    # Prometheus")
    query = f"{prometheus}api/v1/query?query=sum(sentinel_nodes)"
    until(lambda: '"3"' in page(query), lambda: page(query))

    breaks = shown.found(r"\n    (\S+kernel-says real-\d .*)")
    node = breaks.split()[1]
    subprocess.run(["sh", "-c", breaks], check=True)
    until(lambda: "SchedulingDisabled" in shown.kubectl("get", "node", node), "it is not cordoned")
    look = ("get", "incidents", "-o", "jsonpath={.items[*].spec.phase}")
    until(
        lambda: shown.kubectl(*look) == "Recovered", lambda: shown.kubectl("get", "incidents", "-o", "yaml")
    )
    pods = ("get", "pods", "-l", "job-name=train", "--field-selector=status.phase=Running")
    where = shown.kubectl(*pods, "-o", "jsonpath={.items[*].spec.nodeName}").split()
    assert len(where) == 2
    assert node not in where
    mails = Path(shown.found(r"\n    (\S+/mails)"))
    until(lambda: sum(f" {node}" in one.read_text() for one in mails.glob("*.eml")), "nobody got mail of it")

    release = shown.found(rf"\n    (\$kubectl annotate node {node} .*)").replace("$kubectl", "")
    shown.kubectl(*shlex.split(release))
    until(lambda: "SchedulingDisabled" not in shown.kubectl("get", "node", node), "it is not released")
    shown.process.send_signal(signal.SIGINT)
    assert shown.process.wait(180) == 0
    assert shown.remains() == []


def test_killed_it_leaves_nothing_either_though_its_api_server_hangs(shown: Shown) -> None:
    assert len(shown.remains()) > 10
    subprocess.run(["sh", "-c", shown.found(r"(kill -STOP \d+);")], check=True)
    shown.process.kill()
    shown.process.wait()
    until(lambda: not shown.remains(), lambda: str(shown.remains()))
