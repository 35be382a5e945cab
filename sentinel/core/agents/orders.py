"""What a controller asks of the agents on a job's nodes. Travels as msgpack in `transport.wire.Order`.

On Kubernetes a rank of the controller is one training pod: it has one log, one exit and one node. What runs in it
may be several ranks of the program (torchrun starts one for each GPU); those are the agent's to find.
"""

from enum import StrEnum

from msgspec import Struct

from sentinel.core.model import ProtectedJob

FOLLOW = "follow"  # kind of an Order whose body is Follow; it stands for as long as the pods are there
ASK = "ask"  # kind of an Order whose body is Ask; it is done once, and stands until its Answer has come


class What(StrEnum):
    """What is asked of the pods of one job."""

    HANDLERS = "handlers"  # do the ranks catch `signal`?
    SIGNAL = "signal"  # send it to those that do
    DRAIN = "drain"  # read their logs, and the kernel's, to the end
    STACKS = "stacks"  # where do they stand?
    FILES = "files"  # which are there that `pattern` names? As the first rank of the first of these pods sees them
    RELEASE = "release"  # end what keeps their containers after their commands have ended
    PROCESSES = "processes"  # what is left of them, of a pod that does not end


class PodRank(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One training pod: its container that trains, and which of that container's starts is meant."""

    rank: int
    namespace: str
    pod: str
    uid: str
    container: str
    container_id: str  # without the runtime's name: as its control group is named
    hold: bool = False  # the container runs the wrapper of core/job/hold.py
    restarts: int = 0  # of the container, by the kubelet: each start has a log file of its own

    def log_path(self, folder: str) -> str:
        """Where the kubelet keeps the log: `folder` is /var/log/pods."""
        return f"{folder}/{self.namespace}_{self.pod}_{self.uid}/{self.container}/{self.restarts}.log"


class Follow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """These pods are the job's running incarnation; of the job only what the agent needs is told."""

    job: ProtectedJob
    pods: tuple[PodRank, ...]
    # The agent ends all processes of these pods when it reached nobody for so long; None: it does not.
    self_fence_s: float | None = None


class Ask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: What
    job: str
    incarnation: int
    pods: tuple[PodRank, ...]
    signal: str = ""  # SIGUSR1
    pattern: str = ""  # a path or glob, from the working directory of the rank
    first: bool = False  # only the first rank of the first of these pods
