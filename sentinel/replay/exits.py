"""How ranks ended, as far as a launcher's line in an old log says it."""

import re

from sentinel.core.policy_model import LogRule
from sentinel.core.reports import RankExit

# Launchers that tell how a rank ended. Their patterns are matched with the log rules.
EXIT_RULES = (
    LogRule(
        id="replay-torchrun-exit",
        pattern=r"failed \(exitcode: -?\d+\) local_rank: \d+",
        failure="activity:exit",
        source="torch.distributed.elastic multiprocessing/api.py",
        literal="failed (exitcode: ",
    ),
    LogRule(
        id="replay-srun-exit",
        pattern=r"srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code \d+|Killed|Segm|Aborted|Bus error)",
        failure="activity:exit",
        source="Slurm srun",
        literal="srun: error: ",
    ),
)
_TORCHRUN = re.compile(r"\(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5})")
_SRUN = re.compile(
    r"tasks? (\d[\d,-]{0,100}): (?:Exited with exit code (\d{1,3})|(Killed|Segmentation|Aborted|Bus error))"
)
TEARDOWN = (9, 15)  # after a first end these are the launcher's doing
_SIGNALS = {"Killed": 9, "Segmentation": 11, "Aborted": 6, "Bus error": 7}


def exits_told(line: str, at_s: float) -> list[RankExit]:
    """How a launcher's line says that ranks ended."""
    if found := _TORCHRUN.search(line):
        code, gone = int(found.group(1)), int(found.group(2))
        return [_exit(gone, code, at_s)]
    found = _SRUN.search(line)
    if found is None:
        return []
    code = int(found.group(2)) if found.group(2) else -_SIGNALS[found.group(3)]
    return [_exit(gone, code, at_s) for gone in _ranks(found.group(1))]


def _exit(rank: int, code: int, at_s: float) -> RankExit:
    """A negative code is a signal, as Python's subprocess tells it."""
    if code < 0:
        return RankExit(rank=rank, incarnation=1, at_s=at_s, signal=-code)
    return RankExit(rank=rank, incarnation=1, at_s=at_s, code=code)


def _ranks(text: str) -> list[int]:
    """ "0,2-5" as Slurm writes sets of tasks."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), min(int(last) if last.isdigit() else int(first), 65_536) + 1)
    return found
