"""An agent on a machine that is a tree, for tests of the agent and of those whom it reports to."""

import json
import urllib.error
import urllib.request
from typing import Any

from tests.checks.conftest import Machine
from tests.e2e.box import Box, Running
from tests.waits import until

XID_79 = "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:2a:00): 31, pid=77, name=train, MMU Fault"


class Node:
    """An agent on a machine that is a tree: started, asked, killed and started again."""

    def __init__(self, box: Box) -> None:
        self.box = box
        folder = box.folder / "machine"
        folder.mkdir()
        self.machine = Machine(folder)
        self.settings(listen="127.0.0.1:0")
        self.folder = box.state / "agent"

    def settings(self, **changes: Any) -> str:
        tree = {"sysfs": str(self.machine.sysfs), "kernelLog": str(self.machine.kmsg)}
        return self.box.settings(**tree, **changes)

    def start(self) -> Running:
        agent = self.box.start("agent", "--settings", self.settings())
        agent.said("findings on http")
        return agent

    def get(self, agent: Running, path: str) -> tuple[int, str]:
        url = agent.err.rpartition("findings on ")[2].split()[0]
        try:
            with urllib.request.urlopen(url + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def codes(self, agent: Running) -> set[str]:
        return {one["code"] for one in json.loads(self.get(agent, "/findings")[1])["findings"]}

    def wait_code(self, agent: Running, code: str, *, gone: bool = False) -> None:
        until(lambda: (code in self.codes(agent)) is not gone, lambda: f"{self.codes(agent)}\n{agent.err}")
