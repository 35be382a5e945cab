"""Whose log a file is, by its name."""

import re
from collections.abc import Collection

# How ranks are called in file names; the second is torchrun's --log-dir: ATTEMPT/RANK/stderr.log
NAMED = re.compile(r"(?:rank|worker|task|proc)[-_. ]?(\d{1,4})(?!\d)(?=[^/]*$)", re.IGNORECASE)
_STREAM = re.compile(r"(?:^|/)(\d{1,4})/std(?:out|err)\.log(?:\.gz)?$")
# It may as well be the number of a run, of a Slurm job or of a node.
_BARE = re.compile(r"(?:^|[-_./])(\d{1,4})\.(?:log|out|err|txt)(?:\.gz)?$")


def rank_of_name(path: str, *, bare: bool = False) -> int | None:
    """The rank that a name tells, such as rank-3.log, job-worker-3.txt or 3/stderr.log; `bare`: job-3.log too."""
    patterns = (_STREAM, NAMED, _BARE) if bare else (_STREAM, NAMED)
    found = next((match for pattern in patterns if (match := pattern.search(path))), None)
    return int(found[1]) if found else None


def is_stream_of_rank(path: str) -> bool:
    """One of torchrun's two logs of a rank, ATTEMPT/RANK/stdout.log and stderr.log."""
    return _STREAM.search(path) is not None


def one_each(ranks: Collection[int], paths: Collection[str]) -> bool:
    """Whether each of these logs is another rank's, or one of its two streams."""
    return len(set(ranks)) == len(paths) or all(map(is_stream_of_rank, paths))


def without_gaps(ranks: Collection[int]) -> bool:
    """Whether these numbers can be ranks of one job, of which some logs may be lost."""
    return max(ranks, default=0) < 2 * len(set(ranks))


def in_order(name: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts names as people count: rank-2 before rank-10."""
    parts = re.split(r"(\d+)", name)
    return tuple(zip(parts[::2], map(int, [*parts[1::2], "0"]), strict=True))
