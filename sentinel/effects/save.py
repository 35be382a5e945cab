"""Let a job save its checkpoint: the signal, then the proof."""

import asyncio
import re
from collections.abc import Callable

from msgspec import Struct

from sentinel.clock import Clock
from sentinel.cluster.base import Cluster
from sentinel.core.model import Checkpoint, LogMatch, SaveResult
from sentinel.effects.proof import FileProof

POLL_S = 0.1
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
    proof = checkpoint.proof
    file_proof = FileProof(cwd, proof) if proof is not None and not proof.log_pattern else None
    if file_proof is not None:
        await file_proof.begin()
    # Where the job is one launcher, its ranks are those that it started.
    ranks = sorted(cluster.save_capable(job, incarnation, checkpoint.signal)) or sorted(alive)
    if checkpoint.ranks == "first":
        ranks = ranks[:1]
    sent = cluster.signal_ranks(job, incarnation, ranks, checkpoint.signal)
    if not sent.sent:
        why = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(sent.refused.items()))
        return _skipped(f"no rank takes {checkpoint.signal} ({why or 'no rank found'})")
    started_s = clock().mono_s
    while True:
        ended = all_ended()
        proved = _line(watch) if file_proof is None else await file_proof.proved(ended)
        took_s = clock().mono_s - started_s
        if proved:
            found = _STEP.search(watch.line.line) if watch.line else None
            step = int(found.group(1)) if found else last_step()
            result = SaveResult(proved_by=proved, step=step, ranks=sent.sent, took_s=took_s)
            return SaveOutcome(result, True, f"The save was proved in {took_s:.1f} s by {proved}.")
        if ended:
            return _ended(checkpoint, SaveResult(step=last_step(), ranks=sent.sent, took_s=took_s))
        if took_s >= checkpoint.timeout_s:
            return _timed_out(checkpoint, sent.sent, took_s, last_step(), file_proof)
        try:
            await asyncio.wait_for(watch.arrived.wait(), POLL_S)
        except TimeoutError:
            pass


def _line(watch: ProofWatch) -> str:
    return f"rank {watch.line.rank}'s line {watch.line.line.strip()!r}" if watch.line else ""


def _ended(checkpoint: Checkpoint, result: SaveResult) -> SaveOutcome:
    """Nothing runs any more, so there is nothing to keep running: it counts, and the record says what is known."""
    proof = "no proof was asked for" if checkpoint.proof is None else "the named proof did not come"
    return SaveOutcome(result, True, f"The ranks ended by themselves after the signal; {proof}.")


def _skipped(why: str) -> SaveOutcome:
    return SaveOutcome(SaveResult(skipped=why), False, f"Not saved: {why}.")


def _timed_out(
    checkpoint: Checkpoint,
    ranks: tuple[int, ...],
    took_s: float,
    step: int | None,
    file_proof: FileProof | None,
) -> SaveOutcome:
    result = SaveResult(ranks=ranks, took_s=took_s, step=step)
    if checkpoint.proof is None:
        return SaveOutcome(
            result,
            True,
            f"The ranks had {took_s:.0f} s to save; no proof was asked for, so nothing proved it.",
        )
    counts = checkpoint.if_unproved == "move"
    why = file_proof.missing() if file_proof is not None else ""
    text = f"The save was not proved within {checkpoint.timeout_s:.0f} s{why}."
    return SaveOutcome(result, counts, text)
