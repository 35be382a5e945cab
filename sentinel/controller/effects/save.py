"""Let a job save its checkpoint: the signal, then the proof."""

import asyncio
import re
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import structs

from sentinel.cluster.base import Cluster
from sentinel.controller.effects.proof import FileProof
from sentinel.core.model import SaveResult
from sentinel.core.policy_model import Checkpoint
from sentinel.core.recovery.events import SaveEnded
from sentinel.core.reports import LogMatch
from sentinel.util.clock import Clock
from sentinel.util.errors import TemporaryError

POLL_S = 0.1
REACH_S = (
    15.0  # for an agent that is just being replaced; with its answer still within the slack of the phase
)
_STEP = re.compile(r"(?:step|iteration|iter)\D{0,3}(\d{1,12})", re.IGNORECASE)


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
) -> SaveEnded:
    """Signal the ranks and wait for the proof, at most `checkpoint.timeout_s`.

    The result counts when the named proof came, or, where the policy names none, when the ranks ended by
    themselves or had the whole time (and the record says that nothing proved it).
    """
    if all_ended():  # taken up again after a crash
        return _ended(checkpoint, SaveResult(step=last_step()))
    if len(alive) < size:
        return _skipped("a rank is lost: a collective save would hang")
    proof = checkpoint.proof
    file_proof: FileProof | None = None
    if proof is not None and not proof.log_pattern:
        look = partial(cluster.files, job, incarnation, cwd)
        file_proof = FileProof(look, cwd, proof, clock)
        await file_proof.begin()
    try:
        saved = await _saved(
            cluster, job, incarnation, alive, checkpoint, watch, file_proof, last_step, all_ended, clock
        )
        return structs.replace(saved, ended=all_ended())
    finally:
        if file_proof is not None:
            file_proof.close()


async def _saved(
    cluster: Cluster,
    job: str,
    incarnation: int,
    alive: set[int],
    checkpoint: Checkpoint,
    watch: ProofWatch,
    file_proof: FileProof | None,
    last_step: Callable[[], int | None],
    all_ended: Callable[[], bool],
    clock: Clock,
) -> SaveEnded:
    begun_s = clock().mono_s
    while True:
        try:
            capable = await cluster.save_capable(job, incarnation, checkpoint.signal)
            break
        except TemporaryError as error:  # a save without some of the ranks is none
            if clock().mono_s - begun_s >= REACH_S:
                return _skipped(str(error))
        await asyncio.sleep(POLL_S)
    # Where the job is one launcher, its ranks are those that it started.
    ranks = told_to_save(capable or alive, checkpoint)
    sent = await cluster.signal_ranks(job, incarnation, ranks, checkpoint.signal)
    if not sent.sent:
        why = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(sent.refused.items()))
        why = f"no rank takes {checkpoint.signal} ({why or 'no rank found'})"
        return _skipped(why, asked=any(capable.get(rank, True) for rank in ranks))
    started_s = clock().mono_s
    while True:
        ended = all_ended()
        proved = _line(watch) if file_proof is None else await file_proof.proved(ended)
        took_s = clock().mono_s - started_s
        if proved:
            found = _STEP.search(watch.line.line) if watch.line else None
            step = int(found.group(1)) if found else last_step()
            result = SaveResult(proved_by=proved, step=step, ranks=sent.sent, took_s=took_s)
            return SaveEnded(result, True, f"The save was proved in {took_s:.1f} s by {proved}.")
        if ended:
            return _ended(checkpoint, SaveResult(step=last_step(), ranks=sent.sent, took_s=took_s))
        if took_s >= checkpoint.timeout_s:
            why = await file_proof.missing() if file_proof is not None else ""
            return _timed_out(checkpoint, sent.sent, took_s, last_step(), why)
        try:
            async with asyncio.timeout(POLL_S):
                await watch.arrived.wait()
        except TimeoutError:
            pass


def told_to_save(ranks: Iterable[int], checkpoint: Checkpoint) -> list[int]:
    return sorted(ranks)[: 1 if checkpoint.ranks == "first" else None]


def _line(watch: ProofWatch) -> str:
    return f"rank {watch.line.rank}'s line {watch.line.line.strip()!r}" if watch.line else ""


def _ended(checkpoint: Checkpoint, result: SaveResult) -> SaveEnded:
    """Nothing runs any more, so there is nothing to keep running: it counts, and the record says what is known."""
    proof = "no proof was asked for" if checkpoint.proof is None else "the named proof did not come"
    return SaveEnded(result, True, f"The ranks ended by themselves after the signal; {proof}.", ended=True)


def _skipped(why: str, *, asked: bool = False) -> SaveEnded:
    return SaveEnded(SaveResult(skipped=why), False, f"Not saved: {why}.", asked=asked)


def _timed_out(
    checkpoint: Checkpoint,
    ranks: tuple[int, ...],
    took_s: float,
    step: int | None,
    why: str,
) -> SaveEnded:
    result = SaveResult(ranks=ranks, took_s=took_s, step=step)
    if checkpoint.proof is None:
        return SaveEnded(
            result,
            True,
            f"The ranks had {took_s:.0f} s to save; no proof was asked for, so nothing proved it.",
        )
    counts = checkpoint.if_unproved == "move"
    text = f"The save was not proved within {checkpoint.timeout_s:.0f} s{why}."
    return SaveEnded(result, counts, text)
