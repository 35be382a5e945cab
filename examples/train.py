"""A small model that really trains, data-parallel over ranks, and saves when it is asked to.

    sentinel run --nproc 2 -- python examples/train.py --checkpoints /tmp/spirals

It shows all that a training program needs so that Sentinel can protect it well:

- it saves at the next step boundary after SIGUSR1 and says `saved checkpoint step N`;
- a checkpoint is whole or absent: written beside its final name, synced, then renamed;
- it loads the newest checkpoint at its start and says from which step it goes on;
- each step prints its number, its hardware time and its end-to-end time.

The model (an MLP that tells two spirals apart) is made with numpy, and the gradients of the ranks are
averaged over TCP at MASTER_ADDR:MASTER_PORT. As with NCCL, a rank whose peer has died fails, and a rank
whose peer is silent waits until `--collective-timeout`. Batches depend on the step alone, so a run that
was interrupted ends with the same loss as one that was not.
"""

import argparse
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tiny matrices: more threads only wait for one another
import numpy as np

HIDDEN = 48
BATCH = 256  # of all ranks together
LEARNING_RATE, BETA1, BETA2 = 0.01, 0.9, 0.999  # Adam
KEEP = 3  # checkpoints


# ---------------------------------------------------------------- data and model


def spirals(count: int, seed: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """`count` points (count, 2) on two interleaved spirals with noise, and which spiral (count,) 0 or 1."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, count)
    along = rng.uniform(0.25, 1.0, count)
    angle = 3.0 * np.pi * along + np.pi * label
    points = np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1)
    return points * 2.0 + rng.normal(0.0, 0.02, (count, 2)), label.astype(np.float64)


class Model:
    """An MLP 2 → HIDDEN → HIDDEN → 1 with Adam. All parameters live in one flat vector, so that the
    gradients of all layers travel in one message and a checkpoint is three arrays."""

    shapes = ((2, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        parts = [rng.normal(0, shape[0] ** -0.5, shape) * (len(shape) > 1) for shape in self.shapes]
        self.flat = np.concatenate([part.ravel() for part in parts])
        self.first_moment = np.zeros_like(self.flat)
        self.second_moment = np.zeros_like(self.flat)

    def _layers(self) -> Iterator[np.ndarray]:
        at = 0
        for shape in self.shapes:
            size = int(np.prod(shape))
            yield self.flat[at : at + size].reshape(shape)
            at += size

    def loss_and_gradient(self, points: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        """Mean cross-entropy over the batch, and its gradient as a flat vector."""
        w1, b1, w2, b2, w3, b3 = self._layers()
        h1 = np.tanh(points @ w1 + b1)
        h2 = np.tanh(h1 @ w2 + b2)
        logit = (h2 @ w3 + b3)[:, 0]
        loss = float(np.mean(np.logaddexp(0.0, logit) - labels * logit))

        d_logit = (1.0 / (1.0 + np.exp(-logit)) - labels)[:, None] / len(labels)
        d_h2 = d_logit @ w3.T * (1.0 - h2**2)
        d_h1 = d_h2 @ w2.T * (1.0 - h1**2)
        parts = (points.T @ d_h1, d_h1.sum(0), h1.T @ d_h2, d_h2.sum(0), h2.T @ d_logit, d_logit.sum(0))
        return loss, np.concatenate([part.ravel() for part in parts])

    def update(self, gradient: np.ndarray, step: int) -> None:
        self.first_moment = BETA1 * self.first_moment + (1 - BETA1) * gradient
        self.second_moment = BETA2 * self.second_moment + (1 - BETA2) * gradient**2
        first = self.first_moment / (1 - BETA1**step)
        second = self.second_moment / (1 - BETA2**step)
        self.flat -= LEARNING_RATE * first / (np.sqrt(second) + 1e-8)


# ---------------------------------------------------------------- ranks


class Ranks:
    """The ranks of one incarnation of the job. Rank 0 adds up in the order of ranks: sums are reproducible."""

    def __init__(self, rank: int, world: int, timeout_s: float) -> None:
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        self.peers: dict[int, socket.socket] = {}
        if world == 1:
            return
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if rank == 0:
            with socket.create_server(address, backlog=world) as server:
                server.settimeout(timeout_s)
                while len(self.peers) < world - 1:
                    peer, _ = server.accept()
                    self._add(peer)
        else:
            self._add(self._connect(address), 0)

    def _add(self, peer: socket.socket, rank: int | None = None) -> None:
        peer.settimeout(self.timeout_s)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if rank is None:
            (rank,) = struct.unpack("!I", self._receive(peer, 4, "a new rank"))
        else:
            peer.sendall(struct.pack("!I", self.rank))
        self.peers[rank] = peer

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return socket.create_connection(address, timeout=self.timeout_s)
            except ConnectionRefusedError:  # rank 0 does not listen yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _receive(self, peer: socket.socket, count: int, whom: str) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                got = peer.recv_into(view)
            except TimeoutError:
                silence = f"no data from {whom} for {self.timeout_s:g} s"
                raise TimeoutError(f"collective operation timeout: {silence}") from None
            if not got:
                raise ConnectionResetError(f"Connection reset by peer: {whom} has gone")
            view = view[got:]
        return data

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean of `values` over all ranks, the same bits on each. Every rank must call it."""
        if self.world == 1:
            return values
        if self.rank == 0:
            total = values.copy()
            for rank in sorted(self.peers):
                total += np.frombuffer(self._receive(self.peers[rank], values.nbytes, f"rank {rank}"))
            total /= self.world
            for peer in self.peers.values():
                peer.sendall(total.tobytes())
            return total
        self.peers[0].sendall(values.tobytes())
        return np.frombuffer(self._receive(self.peers[0], values.nbytes, "rank 0"))


# ---------------------------------------------------------------- checkpoints


def save(folder: Path, model: Model, step: int) -> None:
    """Writes a checkpoint that is whole or absent, whatever happens meanwhile, and drops old ones."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.npz"
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, flat=model.flat, first=model.first_moment, second=model.second_moment, step=step)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    for old in sorted(folder.glob("step-*.npz"))[:-KEEP]:
        old.unlink()


def load_newest(folder: Path, model: Model) -> int:
    """Loads the newest checkpoint into the model. Returns its step, 0 where there is none."""
    paths = sorted(folder.glob("step-*.npz"))
    if not paths:
        return 0
    with np.load(paths[-1]) as saved:
        model.flat, model.first_moment, model.second_moment = saved["flat"], saved["first"], saved["second"]
        return int(saved["step"])


# ---------------------------------------------------------------- faults, for demonstrations


class Faults:
    """Takes faults from a control file, each once: `RANK slow FACTOR`, `RANK hang sleep|spin`.

    Who writes the file renames it into place, so that it is never seen in part. A slow rank's hardware
    time grows by FACTOR until its process ends, as on a GPU that is throttled.
    """

    def __init__(self, control: Path | None, rank: int) -> None:
        self.control, self.rank, self.slow = control, rank, 1.0

    def look(self) -> None:
        if self.control is None:
            return
        try:
            words = self.control.read_text().split()
        except FileNotFoundError:  # there is none, or the rank that it is for has just taken it
            return
        if not words or int(words[0]) != self.rank:
            return
        self.control.unlink()
        if words[1] == "slow":
            self.slow = float(words[2])
        elif words[1:] == ["hang", "sleep"]:
            time.sleep(1e6)
        elif words[1:] == ["hang", "spin"]:
            while True:
                pass


# ---------------------------------------------------------------- the loop


class Pace:
    """Makes a step of this tiny model last as long as one of a large model: `step_ms` in all, of which
    `hardware_share` is hardware time. 0 ms: as fast as it goes."""

    def __init__(self, step_ms: float, hardware_share: float) -> None:
        self.hardware_s = step_ms / 1000 * hardware_share
        self.rest_s = step_ms / 1000 * (1 - hardware_share)

    @staticmethod
    def wait(since_s: float, total_s: float) -> None:
        time.sleep(max(0.0, since_s + total_s - time.perf_counter()))


class SaveRequest:
    """Notes SIGUSR1. The save itself waits for the end of the step: within it nothing is consistent."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGUSR1, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self.asked = True


def train(args: argparse.Namespace, ranks: Ranks, save_request: SaveRequest) -> None:
    model = Model()
    start = load_newest(args.checkpoints, model)
    if start:
        print(f"resumed from step {start}", flush=True)
    faults = Faults(args.control, ranks.rank)
    pace = Pace(args.step_ms, args.hardware_share)
    share = slice(ranks.rank * BATCH // ranks.world, (ranks.rank + 1) * BATCH // ranks.world)
    loss = float("nan")
    for step in range(start + 1, args.steps + 1):
        begun_s = time.perf_counter()
        faults.look()
        points, labels = spirals(BATCH, (1, step))
        Pace.wait(begun_s, pace.rest_s)

        hardware_s = time.perf_counter()
        loss, gradient = model.loss_and_gradient(points[share], labels[share])
        Pace.wait(hardware_s, pace.hardware_s * faults.slow)
        # The wish to save travels with the gradients, so that all ranks save after the same step.
        mean = ranks.mean(np.concatenate([gradient, [loss, float(save_request.asked)]]))
        model.update(mean[:-2], step)
        loss = float(mean[-2])
        ended_s = time.perf_counter()

        hardware_ms, e2e_ms = (ended_s - hardware_s) * 1000, (ended_s - begun_s) * 1000
        # As torchtitan prints it: the step, and tokens (here points) per second.
        print(f"step: {step}  loss: {loss:.6f}  tps: {BATCH / (ended_s - begun_s):,.0f}")
        print(
            f"this iteration hardware time is {hardware_ms:.3f} and e2e time is {e2e_ms:.3f} ms.", flush=True
        )
        if mean[-1] > 0 or step % args.checkpoint_every == 0 or step == args.steps:
            save_request.asked = False
            if ranks.rank == 0:
                save(args.checkpoints, model, step)
                print(f"saved checkpoint step {step}", flush=True)
    if ranks.rank == 0:
        points, labels = spirals(2000, (2, 0))
        test_loss, _ = model.loss_and_gradient(points, labels)
        print(json.dumps({"done": args.steps, "loss": loss, "test_loss": test_loss}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="their folder")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-ms", type=float, default=0.0, help="stretch each step to this; 0: do not")
    parser.add_argument("--hardware-share", type=float, default=0.5, help="of --step-ms, 0..1")
    parser.add_argument("--collective-timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--control", type=Path, help="file that faults are taken from; see Faults")
    args = parser.parse_args()
    save_request = SaveRequest()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    train(args, Ranks(rank, world, args.collective_timeout), save_request)


if __name__ == "__main__":
    main()
