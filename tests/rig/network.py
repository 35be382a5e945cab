"""What joins real nodes, their pods and this machine: one bridge, in which all are neighbours."""

import fcntl
import random
import subprocess
import threading

from tests.rig.processes import Rig, RigError

# Addresses are out of 198.18.0.0/15, reserved for benchmarks of networks (RFC 2544): nobody's real network is hidden.
PODS_OF_A_NODE = 40
TAKING = "/run/sentinel-test-rig.lock"
MOST_NODES = 6


class Network:
    """The warden removes it with the rig, by its name."""

    def __init__(self, rig: Rig) -> None:
        self.name = rig.folder.name
        ip("link", "add", self.name, "type", "bridge")
        with open(TAKING, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other rigs choose theirs by the routes too
            routes = ip("-4", "route", "show", "table", "all")
            free = [
                f"198.18.{n}" for n in range(256) if f" 198.18.{n}." not in f" {routes}".replace("\n", " ")
            ]
            self.prefix = random.choice(free)
            self.address = f"{self.prefix}.1"
            ip("address", "add", f"{self.address}/24", "dev", self.name)
            ip("link", "set", self.name, "address", hardware_address(self.address), "up")
        self._numbers = set(range(1, MOST_NODES + 1))
        self._taking = threading.Lock()  # nodes may be started side by side

    def take_number(self) -> int:
        """Of a node, which says its addresses; RigError where all are taken."""
        if not self._numbers:
            raise RigError(f"a network has addresses for {MOST_NODES} nodes")
        with self._taking:
            number = min(self._numbers)
            self._numbers.remove(number)
            return number

    def give_back(self, number: int) -> None:
        self._numbers.add(number)


def hardware_address(address: str) -> str:
    """A fixed one for a bridge: of itself it takes that of one of its ports, and changes it as they come and go.

    Neighbours then talk to an address that is gone, for up to a minute.
    """
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RigError(f"ip {' '.join(words)}: {done.stderr.strip()} (real nodes need root)")
    return done.stdout
