"""The table of failure classes as triage sees it, and the lines of evidence that it shows."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from sentinel.core.health import Finding
from sentinel.core.model import Budget, Cause, Restartable
from sentinel.core.reports import LogMatch, RankExit
from sentinel.core.signals import TimingSignal, names

# The classes that the core names itself and that log rules may name: the table must hold each one.
AGREED = frozenset(
    {
        "gpu-hardware",
        "gpu-ecc",
        "nvlink",
        "cuda-oom",
        "host-oom",
        "nccl-timeout",
        "nccl-abort",
        "illegal-access",
        "segfault",
        "connection",
        "storage-full",
        "storage-io",
        "nan-loss",
        "import-error",
        "syntax-error",
        "shape-mismatch",
        "user-exception",
        "exception",
        "rank-exit",
        "aborted",
        "end-abort",
        "preempted",
        "time-limit",
        "terminated",
        "dataloader",
        "checkpoint-corrupt",
        "rendezvous",
        "disk-quota",
        "killed",
        "exit-unknown",
        "unknown",
        "hang",
        "slow",
        "starved",
        "straggler",
        "slowdown",
        "start-failed",
        "not-found",
        "network",
        "user-exit",
        "unreachable",
        "port-in-use",
        "locked-memory",
        # what a pod tells: core/job/pod_end.py, core/job/pod_wait.py
        "pod-preempted",
        "pod-evicted",
        "taint-eviction",
        "node-pressure",
        "storage-limit",
        "node-shutdown",
        "node-lost",
        "pod-deleted",
        "pod-rejected",
        "pod-deadline",
        "probe-failed",
        "init-failed",
        "container-start",
        "container-lost",
        "image-pull",
        "config-missing",
        "mount-failed",
        "unschedulable",
    }
)

# A mail shows at most this much.
MAX_LINES, MAX_CHARACTERS = 10, 300


class FailureClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of rules/failures.toml.

    `role`: a root explains an incident; a generic line (a bare exception) does where nothing better is
    said; a symptom tells that ranks waited in vain; a cascade tells that another rank died; a report is a
    launcher's word on the end of a process; an abort explains an end by SIGABRT that nothing else does.
    `sentence` is a clause after "Rank 3 was lost: "; {entity}, {exit} and {code} are filled in.
    """

    id: str
    title: str  # short, as in "CUDA error after GPU ... fell off the bus"
    cause: Cause
    scope: Literal["node", "job"]
    budget: Budget
    restart: Restartable
    role: Literal["root", "generic", "symptom", "cascade", "report", "abort"]
    sentence: str
    advice: str
    source: str
    codes: dict[str, str] = {}  # finding codes ("SXID *": of a kind) that mean this class -> a phrase, or ""
    actions: tuple[str, ...] = ()  # GPU findings with these actions whose code no class claims
    components: tuple[str, ...] = ()  # findings of these components whose code no class claims
    signals: tuple[int, ...] = ()  # a rank killed by one of these signals
    exit_codes: tuple[int, ...] = ()
    follows: bool = (
        False  # where it comes again tells whether it follows the job or the place: core/triage/past.py
    )
    by_card: bool = False  # a job whose card failed may end so, and its log need not say more

    @property
    def complains(self) -> bool:
        """Who says this was well, and tells of others that they are gone or were waited for in vain."""
        return self.role in ("symptom", "cascade")


REPORT = "rank-exit"  # the class of a launcher's word that a process ended by itself
ABORTED = "aborted"  # that of its word that one ended by SIGABRT

# The class of a line that says of the next exception that it follows from another one. No row of a case has it.
CHAINED = "chained"


class Row(Struct, frozen=True, gc=False):
    """A log line with the class that its rule named."""

    cls: FailureClass
    match: LogMatch
    chained: bool = False  # an exception that followed from the one before it


def same_entity(one: str, other: str) -> bool:
    """Whether two names mean one thing: PCI addresses come with 4 or 8 digits of domain, and without ".0"."""
    return bool(one) and _address(one) == _address(other)


def _address(entity: str) -> str:
    kind, _, name = entity.rpartition(" ")
    name = name.lower().removesuffix(".0")
    domain, colon, rest = name.partition(":")
    if colon and len(domain) == 8 and domain.startswith("0000"):
        name = f"{domain[4:]}:{rest}"
    return f"{kind} {name}"


def clean(text: str) -> str:
    """One line of untrusted text without control characters, at most MAX_CHARACTERS long."""
    shown = "".join(c if c.isprintable() else " " for c in text[: MAX_CHARACTERS + 1]).strip()
    return shown if len(shown) <= MAX_CHARACTERS else shown[: MAX_CHARACTERS - 1] + "…"


def evidence_lines(
    rank: int | None,
    failure: str,
    finding: Finding | None,
    rows: Sequence[Row],
    lost: Sequence[RankExit],
    signal: TimingSignal | None,
) -> tuple[str, ...]:
    """What the verdict rests on, the strongest first, each line with its source."""
    lines: list[str] = []
    if finding is not None:
        lines += [f"{finding.check}: {clean(text)}" for text in (finding.evidence or (finding.summary,))[:3]]
    own = [row for row in rows if row.match.rank == rank]
    own.sort(key=lambda row: row.cls.id != failure)
    lines += [f"rank {row.match.rank}: {clean(row.match.line)}" for row in own[:3] if row.match.line]
    lines += [f"rank {e.rank}: {clean(e.evidence or e.describe())}" for e in lost if e.rank == rank]
    if signal is not None:
        lines += [clean(text) for text in signal.evidence]
    lines += _others(rank, rows)
    lines += _other_exits(rank, lost)
    return tuple(dict.fromkeys(lines))[:MAX_LINES]


def _others(rank: int | None, rows: Sequence[Row]) -> list[str]:
    """One line for each class of message that the other ranks gave."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.match.rank != rank:
            groups.setdefault(row.cls.id, []).append(row)
    said = []
    for group in groups.values():
        who = names([row.match.rank for row in group])
        said.append(f"{who}: {clean(group[0].match.line) or group[0].cls.title}")
    return said


def _other_exits(rank: int | None, lost: Sequence[RankExit]) -> list[str]:
    groups: dict[str, list[int]] = {}
    for exit_ in lost:
        if exit_.rank != rank:
            groups.setdefault(exit_.describe(), []).append(exit_.rank)
    return [f"{names(ranks)}: {words}" for words, ranks in groups.items()]


def problems_of(table: Mapping[str, FailureClass]) -> list[str]:
    """What is wrong with a table that is well formed: missing classes, templates that cannot be filled."""
    found = [f"class {name!r} is missing" for name in sorted(AGREED - table.keys())]
    for cls in table.values():
        try:
            cls.sentence.format(entity="", exit="", code="")
        except (KeyError, IndexError, ValueError) as error:
            found.append(
                f"class {cls.id!r}: sentence: {error!r}; only {{entity}}, {{exit}}, {{code}} are filled in"
            )
    claimed: dict[str, str] = {}
    for cls in table.values():
        for key in (
            *cls.codes,
            *cls.actions,
            *(f"signal {n}" for n in cls.signals),
            *(f"exit code {n}" for n in cls.exit_codes),
        ):
            if key in claimed:
                found.append(f"class {cls.id!r}: {key} is already claimed by {claimed[key]!r}")
            claimed[key] = cls.id
    return found
