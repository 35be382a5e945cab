"""Epochs: each leader's number, above those of all before it; by it late writes of earlier ones are refused. Pure."""

from msgspec import Struct

# What is above a known epoch by more is no leader's: a take-over each 10 s, which is the Lease's time, would need 115
# days for it. A person wrote it, or a disk lost it.
NEAR = 1_000_000
MAX_COUNT = 2**31 - 1  # of a Lease
MAX_TOLD = 2_000_000_000  # what stands elsewhere leaves room to count on
AGAIN_S = 3600.0
MOST_UNBELIEVED = 1000


LEASE, AGENT = "the Lease", "the agent of node"


class Where(Struct, frozen=True):
    """Where an epoch stands. `kind`: a resource's plural, LEASE, or AGENT, which has told it."""

    kind: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        return " ".join(
            filter(None, (self.kind, f"{self.namespace}/{self.name}" if self.namespace else self.name))
        )


def agent_of(node: str) -> Where:
    return Where(AGENT, node)


def later(epoch: int, ours: int) -> bool:
    """Is it that of a leader after ours?"""
    return ours < epoch <= ours + NEAR


class Epochs:
    """The highest that this process has met, on whatever object. Whoever takes the Lease begins above it."""

    def __init__(self) -> None:
        self.top = 0
        self.where: Where | None = None
        self.unbelieved: dict[Where, int] = {}  # what stands there, which no leader can have had
        self._told_s: dict[str, float] = {}

    def met(self, epoch: int, where: Where, most: int = MAX_TOLD) -> bool:
        """False: no leader can have had it, and it is not followed."""
        if epoch > min(self.top + NEAR, most):
            if len(self.unbelieved) < MOST_UNBELIEVED:
                self.unbelieved[where] = epoch
            return False
        self.forget(where)
        if epoch > self.top:
            self.top, self.where = epoch, where
        return True

    def forget(self, where: Where) -> None:
        """It is gone, or stands there no more."""
        self.unbelieved.pop(where, None)

    def may_tell(self, node: str, now_s: float) -> bool:
        """Each node's agent is believed once an hour: a broken one cannot keep the cluster without a leader."""
        while self._told_s and now_s - (oldest := next(iter(self._told_s.items())))[1] >= AGAIN_S:
            del self._told_s[oldest[0]]
        if node in self._told_s:
            return False
        self._told_s[node] = now_s
        return True
