"""The wrapper that keeps a container for a look inside after its command has ended in error: docs/hold.md. Pure.

It is deploy/optional/hold.yaml, run as `sh /sentinel/hold -- COMMAND …`. While it keeps the container it has a child
`sh /sentinel/hold --held CODE SECONDS`: the process list says how the command ended, whatever the job's log says.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from sentinel.core.job.kinds import Role
from sentinel.core.job.limits import made_anew
from sentinel.core.job.paths import Json, label, read, text
from sentinel.core.job.state import Seen, ended_pod, groups_of
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.reports import RankExit, signal_of

NAME = "hold"  # of the wrapper's file, wherever it is mounted
RUNS, HELD = "--", "--held"


def runs(argv: Sequence[str]) -> bool:
    """Is this the command line of a wrapper, which is no rank and no launcher but stands for its command?"""
    return len(argv) > 3 and _is_wrapper(argv[1]) and argv[2] == RUNS


def held_code(argv: Sequence[str]) -> int | None:
    """With what its command ended, if this is the child by which a wrapper says so."""
    if len(argv) != 5 or not _is_wrapper(argv[1]) or argv[2] != HELD:
        return None
    code = argv[3]
    return int(code) if code.isascii() and code.isdecimal() and len(code) < 4 else None


def _is_wrapper(path: str) -> bool:
    return path.rpartition("/")[2] == NAME


def rank_exit(rank: int, incarnation: int, at_s: float, code: int) -> RankExit:
    signal = signal_of(code)
    told = None if signal is not None else code
    return RankExit(rank=rank, incarnation=incarnation, at_s=at_s, code=told, signal=signal)


def available(containers: Iterable[Json]) -> bool:
    """Can each of these containers be held? They are those that train, of a job's pods or of its templates of ranks
    (`state.main_container`). False where there is none."""
    found = [wraps(container) for container in containers]
    return bool(found) and all(found)


def wraps(container: Json) -> bool:
    """Does a container run the wrapper? A command that stands only in its image is not seen."""
    words = [word for name in ("command", "args") for word in _words(container, name)]
    if any(_is_wrapper(word) and after == RUNS for word, after in pairwise(words)):
        return True
    return any(f"/{NAME} {RUNS} " in word for word in words)  # in a shell's line


def _words(container: Json, name: str) -> list[str]:
    value = read(container, name)
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def kept(seen: Seen) -> frozenset[str]:
    """The uids of its pods that have failed and stay, with their logs, for as long as nobody stops the job: its kind
    makes no others in their place, and the kubelet starts nothing in them again."""
    failed = [pod for pod in seen.pods if ended_pod(pod) == "failed"]
    return frozenset(
        text(pod, "metadata.uid")
        for pod in failed
        if read(pod, "metadata.deletionTimestamp") is None
        and not made_anew(seen, label(pod, seen.row.role_label), len(failed))
    )


def keeps(seen: Seen) -> bool:
    """Would its kind leave a pod that fails as it is, of whatever group of ranks?"""
    groups = [group.name for group in groups_of(seen.row, seen.job) if group.role is Role.RANK]
    return bool(groups) and not any(made_anew(seen, name, 1) for name in groups)


def hold_until_wall_s(job: ProtectedJob, now: Now) -> float | None:
    """How long a job that failed just now is kept for a look inside; None: its policy does not ask for it."""
    return None if job.policy.debug_hold_s is None else now.wall_s + job.policy.debug_hold_s
