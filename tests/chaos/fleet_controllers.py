"""The two controllers of a fault run: real programs, each with a way of its own to the API server."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos import hasty as hasty_program
from tests.chaos.fleet_audit import Limits
from tests.e2e.box import SENTINEL, Box, Running
from tests.kubernetes.conftest import NAMESPACE, kubeconfig
from tests.kubernetes.proxy import Proxy
from tests.rig.processes import free_port

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane


def settings(folder: Path, limits: Limits, more: Mapping[str, Any]) -> Path:
    def allowance(at_a_time: int, per_window: int) -> dict[str, Any]:
        counts = {"atATime": at_a_time, "perWindow": per_window}
        limited = {key: {"atLeast": count, "share": 0.0001} for key, count in counts.items()}
        return {**limited, "window": f"{limits.window_s:g}s"}

    def removals(per_window: int) -> dict[str, Any]:
        return {"perWindow": {"atLeast": per_window, "share": 0}, "window": f"{limits.window_s:g}s"}

    fleet = {
        "isolations": allowance(limits.at_a_time, limits.per_window),
        "poolIsolations": allowance(limits.pool_at_a_time, limits.pool_per_window),
        "disks": allowance(limits.disks, 100),
        "poolDisks": allowance(limits.disks, 100),
        "removals": removals(limits.removals),
        "poolRemovals": removals(limits.pool_removals),
        "causeNodes": 100_000,  # its faults are many and of few kinds
        "releaseAfter": "1s",
        "diskReleaseAfter": "1s",
        "repeatLimit": 6,
        "repeatWindow": f"{limits.keep_s:g}s",
        "lease": "20s",
        "agentSilent": "30s",
        **more,
    }
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings", "listen": ""}
    path = folder / f"{folder.name}.yaml"
    path.write_text(json.dumps({**head, "stateDir": str(folder / "state"), "fleet": fleet}))
    return path


class Controller:
    """One of the two: its own way to the API server, the same name and port after each restart."""

    def __init__(
        self,
        plane: "ControlPlane",
        box: Box,
        folder: Path,
        name: str,
        limits: Limits,
        fleet: Mapping[str, Any] | None = None,
        *,
        hasty: bool = False,
    ) -> None:
        """`fleet`: more of its settings. `hasty`: it calls nodes silent after hasty.SILENT_S."""
        folder.mkdir()
        self.name, self.box = name, box
        self.proxy = Proxy(plane.url, plane.identities.ca)
        token = plane.token(NAMESPACE, "sentinel-controller", seconds=86400)
        self.port = free_port()
        self.words = [
            *((sys.executable, hasty_program.__file__) if hasty else (SENTINEL,)),
            "controller",
            *("--kubeconfig", str(kubeconfig(folder / "kubeconfig", self.proxy.url, token))),
            *("--agents", f"127.0.0.1:{self.port}", "--settings", str(settings(folder, limits, fleet or {}))),
        ]
        self.runs: Running | None = None
        self.frozen = False

    def start(self) -> None:
        self.box.env |= {"POD_NAME": self.name, "POD_IP": "127.0.0.1"}
        self.runs = self.box.start_words(*self.words)

    def kill(self) -> None:
        assert self.runs is not None
        self.runs.kill()

    def freeze(self, freeze: bool) -> None:
        assert self.runs is not None
        os.kill(self.runs.pid, signal.SIGSTOP if freeze else signal.SIGCONT)
        self.frozen = freeze

    def end(self) -> None:
        if self.runs is not None:
            self.runs.kill()
        self.proxy.close()
