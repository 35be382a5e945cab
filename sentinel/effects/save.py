"""Let a job save its checkpoint: the signal, then the proof."""

import asyncio
import glob
import os
import re
from collections.abc import Callable

from msgspec import Struct

from sentinel.clock import Clock
from sentinel.cluster.base import Cluster
from sentinel.core.model import Checkpoint, LogMatch, Proof, SaveResult

POLL_S = 0.1
# A file that is still written changes its size, but a writer may pause (for the next tensor, a busy disk): this
# many equal looks in a row, 2 s, call it complete.
STABLE_LOOKS = 20
_STEP = re.compile(r"(?:step|iteration|iter)\D{0,3}(\d{1,12})", re.IGNORECASE)


class SaveOutcome(Struct, frozen=True):
    result: SaveResult
    counts: bool
    sentence: str


class ProofWatch:
    """Collects the log lines that match the policy's proof pattern. The controller feeds it."""

    def __init__(self) -> None:
        self.line: LogMatch | None = None
        self.arrived = asyncio.Event()

    def feed(self, match: LogMatch) -> None:
        if self.line is None:
            self.line = match
            self.arrived.set()


async def save(
    cluster: Cluster,
    job: str,
    incarnation: int,
    alive: set[int],
    size: int,
    checkpoint: Checkpoint,
    cwd: str,
    watch: ProofWatch,
    last_step: Callable[[], int | None],
    all_ended: Callable[[], bool],
    clock: Clock,
) -> SaveOutcome:
    """Signal the ranks and wait for the proof, at most `checkpoint.timeout_s`.

    The result counts when the named proof came, or, where the policy names none, when the ranks ended by
    themselves or had the whole time (and the record says that nothing proved it).
    """
    if all_ended():  # taken up again after a crash
        return _ended(checkpoint, SaveResult(step=last_step()))
    if len(alive) < size:
        return _skipped("a rank is lost: a collective save would hang")
    before = _look(cwd, checkpoint.proof)
    ranks = sorted(alive)[:1] if checkpoint.ranks == "first" else sorted(alive)
    sent = cluster.signal_ranks(job, incarnation, ranks, checkpoint.signal)
    if not sent.sent:
        why = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(sent.refused.items()))
        return _skipped(f"no rank takes {checkpoint.signal} ({why or 'no rank found'})")
    started_s = clock().mono_s
    stable = _Stable()
    while True:
        ended = all_ended()
        proved = _proved(checkpoint.proof, watch, cwd, before, stable, ended)
        took_s = clock().mono_s - started_s
        if proved:
            found = _STEP.search(watch.line.line) if watch.line else None
            step = int(found.group(1)) if found else last_step()
            result = SaveResult(proved_by=proved, step=step, ranks=sent.sent, took_s=took_s)
            return SaveOutcome(result, True, f"The save was proved in {took_s:.1f} s by {proved}.")
        if ended:
            return _ended(checkpoint, SaveResult(step=last_step(), ranks=sent.sent, took_s=took_s))
        if took_s >= checkpoint.timeout_s:
            return _timed_out(checkpoint, sent.sent, took_s, last_step(), cwd)
        try:
            await asyncio.wait_for(watch.arrived.wait(), POLL_S)
        except TimeoutError:
            pass


def _ended(checkpoint: Checkpoint, result: SaveResult) -> SaveOutcome:
    """Nothing runs any more, so there is nothing to keep running: it counts, and the record says what is known."""
    proof = "no proof was asked for" if checkpoint.proof is None else "the named proof did not come"
    return SaveOutcome(result, True, f"The ranks ended by themselves after the signal; {proof}.")


def _skipped(why: str) -> SaveOutcome:
    return SaveOutcome(SaveResult(skipped=why), False, f"Not saved: {why}.")


def _timed_out(
    checkpoint: Checkpoint, ranks: tuple[int, ...], took_s: float, step: int | None, cwd: str
) -> SaveOutcome:
    result = SaveResult(ranks=ranks, took_s=took_s, step=step)
    if checkpoint.proof is None:
        return SaveOutcome(
            result,
            True,
            f"The ranks had {took_s:.0f} s to save; no proof was asked for, so nothing proved it.",
        )
    counts = checkpoint.if_unproved == "move"
    text = f"The save was not proved within {checkpoint.timeout_s:.0f} s{_missing_folder(cwd, checkpoint.proof)}."
    return SaveOutcome(result, counts, text)


# ---------------------------------------------------------------- proof by files


class _Stable:
    def __init__(self) -> None:
        self.seen: tuple[str, int, int] | None = None
        self.looks = 0


def _files(cwd: str, pattern: str) -> dict[str, tuple[int, int]]:
    """path -> (size, mtime in ns) of what the owner's path or glob names."""
    found: dict[str, tuple[int, int]] = {}
    for path in glob.glob(os.path.join(cwd, pattern)):
        try:
            stat = os.stat(path)
        except OSError:  # gone between the listing and the look
            continue
        found[path] = (stat.st_size, stat.st_mtime_ns)
    return found


def _missing_folder(cwd: str, proof: Proof) -> str:
    """Said where the folder of the file to come is not there: no save can be proved by it."""
    folder = os.path.dirname(os.path.join(cwd, proof.file_appears))
    missing = proof.file_appears and not glob.has_magic(folder) and not os.path.isdir(folder)
    return f": {folder} does not exist" if missing else ""


def _look(cwd: str, proof: Proof | None) -> dict[str, tuple[int, int]]:
    if proof is None or proof.log_pattern:
        return {}
    return _files(cwd, proof.file_appears or proof.file_gone)


def _proved(
    proof: Proof | None,
    watch: ProofWatch,
    cwd: str,
    before: dict[str, tuple[int, int]],
    stable: _Stable,
    ended: bool,
) -> str:
    """What proves the save, or an empty text while nothing does. `ended`: nobody writes any more."""
    if proof is None:
        return ""
    if proof.log_pattern:
        return f"rank {watch.line.rank}'s line {watch.line.line.strip()!r}" if watch.line else ""
    if proof.file_gone:
        now = _files(cwd, proof.file_gone)
        before.update(now)  # a marker that a save makes and removes counts as much as one that stood before
        gone = sorted(path for path in before if path not in now)
        return f"{gone[0]}, which went" if gone else ""
    fresh = [
        (path, *stat) for path, stat in _files(cwd, proof.file_appears).items() if before.get(path) != stat
    ]
    if not fresh:
        return ""
    newest = max(fresh, key=lambda entry: entry[2])
    stable.looks = stable.looks + 1 if newest == stable.seen else 0
    stable.seen = newest
    return f"{newest[0]} ({newest[1]} bytes, complete)" if ended or stable.looks >= STABLE_LOOKS else ""
