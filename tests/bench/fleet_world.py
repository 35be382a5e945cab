"""A real control plane with what `deploy/` ships, controllers in processes of their own, and crowds of agents."""

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import jwt
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.bench import fleet_slices
from tests.bench.fleet_bulk import Bulk, node_name
from tests.bench.harness import cpu_seconds, process_tree, pss_bytes, wait_until
from tests.kubernetes.conftest import NAMESPACE, kubeconfig, manifests
from tests.rig.control_plane import ISSUER, ControlPlane
from tests.rig.processes import Daemon, Rig, free_port

ROOT = Path(__file__).parents[2]
AUDIENCE = "sentinel-controller"
_MANY = {"atLeast": 100_000}
_ALLOWED = {"atATime": _MANY, "perWindow": _MANY}  # the brakes are open
LEASE_EVERY_S = 10.0  # of a kubelet
RENEWALS_PER_S = 1000  # at most: a fleet of more than ten thousand takes longer for its round
WITHIN_S = 120.0
SAID = 4000  # characters that are shown of what agents printed, since its file goes


class Controller:
    def __init__(
        self, world: "World", name: str, *, agent_silent: str = "1m", looked_at: bool = False
    ) -> None:
        """`looked_at`: `begin_look` and `look` work."""
        self.port = free_port()
        folder = world.rig.folder / name
        folder.mkdir()
        self.log = folder / "controller.log"
        fleet = {
            "isolations": _ALLOWED,
            "poolIsolations": _ALLOWED,
            "causeNodes": 100_000,
            "agentSilent": agent_silent,
        }
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings", "listen": "127.0.0.1:0"}
        document = {**head, "stateDir": str(folder), "fleet": fleet}
        (folder / "settings.yaml").write_text(json.dumps(document))
        self._slices = folder / "slices"
        looks = ("-m", "tests.bench.fleet_slices", str(self._slices)) if looked_at else ()
        self._daemon: Daemon = world.rig.daemon(
            name,
            *world.python,
            *looks,
            "-m",
            "sentinel",
            "controller",
            f"--kubeconfig={world.kubeconfig}",
            f"--agents=127.0.0.1:{self.port}",
            f"--settings={folder}/settings.yaml",
            env={"POD_NAME": name, "POD_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        )
        self.wait("serves agents on port")

    @property
    def pid(self) -> int:
        return self._daemon.pid

    @property
    def said(self) -> str:
        return self._daemon.log.read_text(errors="replace")

    def wait(self, text: str) -> None:
        self._daemon.wait(lambda: text in self.said)

    def cpu_s(self) -> float:
        return cpu_seconds(process_tree(self.pid))

    def memory_bytes(self) -> int:
        return pss_bytes(process_tree(self.pid))

    def begin_look(self) -> None:
        """At how long its event loop is held."""
        fleet_slices.turn(self.pid)

    def look(self) -> fleet_slices.Looked:
        """Since it began."""
        fleet_slices.turn(self.pid)
        wait_until(self._slices.exists, WITHIN_S, "what was seen of the event loop")
        return fleet_slices.Looked(self._slices)

    def kill(self) -> None:
        self._daemon.kill()

    def stop(self) -> None:
        self._daemon.stop()

    def events(self, event: str) -> list[dict[str, Any]]:
        """Lines of its log about one kind of event, also those of the file before."""
        found = []
        for path in (self.log.with_name("controller.log.1"), self.log):
            for line in path.read_text().splitlines() if path.exists() else ():
                if event in line:
                    found.append(json.loads(line))
        return [one for one in found if one["event"] == event]


class Crowd:
    """A process full of agents. Each call is one of its orders."""

    def __init__(
        self, rig: Rig, bundle: Path, tokens: Iterable[tuple[str, str]], every_s: float, how: str, *ports: int
    ) -> None:
        """`tokens`: of each agent its node and its token. `ports`: of the controllers."""
        rows = rig.folder / f"tokens-{uuid.uuid4().hex}"
        told = [f"{node} {token}\n" for node, token in tokens]
        self.size = len(told)
        rows.write_text("".join(told))
        words = [",".join(map(str, ports)), bundle, rows, every_s, how]
        self._log = open(rig.logs / "agents.log", "ab")  # noqa: SIM115 - closed with the crowd
        self.process = subprocess.Popen(
            # Behind everybody else on these cores: elsewhere each agent has cores of its own.
            ["nice", "-n", "10", sys.executable, "-m", "tests.bench.fleet_agents", *map(str, words)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, *words: object) -> None:
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write(" ".join(map(str, words)) + "\n")
        stdin.flush()

    def answer(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        if not line:
            said = Path(self._log.name).read_text(errors="replace")[-SAID:]
            raise RuntimeError(f"a process of agents has ended; the last that these said:\n{said}")
        return line[1:]

    def do(self, *words: object) -> list[str]:
        self.ask(*words)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


class World:
    """A context manager. Nodes' kubelets renew their leases for as long as it lives."""

    def __init__(self) -> None:
        self.python: list[str] = [sys.executable]  # what controllers are run by
        self.rig = Rig()
        try:
            self.plane = ControlPlane(self.rig, controllers=False, scheduler=False)
            self.admin = self.plane.admin
            for pattern in ("crds/*.yaml", "namespace.yaml", "rbac.yaml", "admission.yaml"):
                self.admin.apply(manifests(pattern))
            self.controller_token = token = self.plane.token(NAMESPACE, "sentinel-controller")
            self._header = jwt.get_unverified_header(token)
            path = self.rig.folder / "controller.kubeconfig"
            self.kubeconfig = kubeconfig(path, self.plane.url, token, self.plane.identities.ca)
        except BaseException:
            self.rig.close()
            raise
        self.bulk = Bulk(self.plane)
        self._key = load_pem_private_key(self.plane.service_account_key.read_bytes(), None)
        self._ended = threading.Event()
        self._kubelets = threading.Thread(target=self._renew, name="kubelets")
        self._kubelets.start()

    def __enter__(self) -> "World":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._kubelets.join()
        self.rig.close()

    def _renew(self) -> None:
        """A few leases at a time; each goes round in LEASE_EVERY_S."""
        turn = 0
        while not self._ended.wait(0.2):
            parts = max(int(LEASE_EVERY_S / 0.2), len(self.bulk.uids) // int(RENEWALS_PER_S * 0.2))
            self.bulk.renew(range(turn % parts, len(self.bulk.uids), parts))
            turn += 1

    def crowd(self, rows: range, every_s: float, how: str, *controllers: Controller) -> Crowd:
        tokens = ((node_name(k), self.token(k)) for k in rows)
        return Crowd(self.rig, self.bundle(), tokens, every_s, how, *(one.port for one in controllers))

    def token(self, number: int) -> str:
        """What the API server would sign for an agent's pod on this node, by the API server's key."""
        now_s = int(time.time())
        node = {"name": node_name(number), "uid": self.bulk.uids[number]}
        pod = {"name": f"sentinel-agent-{number}", "uid": str(uuid.uuid4())}
        account = {"name": "sentinel-agent", "uid": str(uuid.uuid4())}
        claims = {
            "iss": ISSUER,
            "aud": [AUDIENCE],
            "sub": f"system:serviceaccount:{NAMESPACE}:sentinel-agent",
            "iat": now_s,
            "nbf": now_s,
            "exp": now_s + 3600,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {"namespace": NAMESPACE, "node": node, "pod": pod, "serviceaccount": account},
        }
        key: Any = self._key
        return jwt.encode(claims, key, algorithm=self._header["alg"], headers={"kid": self._header["kid"]})

    def bundle(self) -> Path:
        """What agents trust: the ConfigMap that the controller keeps."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"
        wait_until(lambda: self.admin.find(path) is not None, WITHIN_S, "the controller's certificates")
        file = self.rig.folder / "ca.crt"
        file.write_text(self.admin.get(path)["data"]["ca.crt"])
        return file
