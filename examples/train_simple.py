"""One process, no ranks, no libraries: the least that a program does to be resumed and not just restarted.

    sentinel run -- python examples/train_simple.py --state /tmp/line.json

It fits a line to noisy points by gradient descent. Its whole state is one JSON file, which is also the
proof of a save: the policy names it as `fileAppears`.
"""

import argparse
import json
import os
import random
import signal
import time
from pathlib import Path

RATE = 0.05
BATCH = 16

save_asked = False


def ask_for_save(_number: int, _frame: object) -> None:
    global save_asked
    save_asked = True


def save(path: Path, state: dict[str, float]) -> None:
    partial = path.with_suffix(".partial")
    with open(partial, "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())  # else a power cut could leave the new name on an empty file
    os.replace(partial, path)


def train_step(state: dict[str, float]) -> float:
    """One step on points of y = 3x - 1 plus noise; the points depend on the step alone. Returns the loss."""
    rng = random.Random(state["step"])
    xs = [rng.uniform(-1, 1) for _ in range(BATCH)]
    errors = [state["slope"] * x + state["offset"] - (3 * x - 1 + rng.gauss(0, 0.1)) for x in xs]
    state["slope"] -= RATE * 2 * sum(error * x for error, x in zip(errors, xs, strict=True)) / BATCH
    state["offset"] -= RATE * 2 * sum(errors) / BATCH
    state["step"] += 1
    return sum(error**2 for error in errors) / BATCH


def main() -> None:
    global save_asked
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, default=Path("line.json"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=0.0, help="pause in each step")
    args = parser.parse_args()

    signal.signal(signal.SIGUSR1, ask_for_save)
    state = {"step": 0, "slope": 0.0, "offset": 0.0}
    if args.state.exists():
        state = json.loads(args.state.read_text())
        print(f"resumed from step {state['step']}", flush=True)
    while state["step"] < args.steps:
        begun_s = time.perf_counter()
        loss = train_step(state)
        time.sleep(args.step_ms / 1000)
        # As torchtitan prints it: the step, and tokens (here points) per second.
        points_per_s = BATCH / (time.perf_counter() - begun_s)
        print(f"step: {state['step']}  loss: {loss:.6f}  tps: {points_per_s:,.0f}", flush=True)
        if save_asked or state["step"] in (args.steps, args.steps // 2):
            save_asked = False
            save(args.state, state)
            print(f"saved checkpoint step {state['step']}", flush=True)


if __name__ == "__main__":
    main()
