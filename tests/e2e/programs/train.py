"""A training job for tests: pure Python, starts in milliseconds, saves at SIGUSR1, breaks when it is told to.

Orders stand in `orders.RANK` of the working directory (read once and removed), or come by `--at STEP:ORDER`:

    exit N | raise TEXT | signal N | sleep | spin | say TEXT | slow MS | ratio HARDWARE_MS | write PATH | eat | deaf

Every start is noted in `starts.jsonl`, every save signal in `signals.jsonl`.
"""

import argparse
import json
import os
import signal
import sys
import time

asked = False
RANK = int(os.environ.get("RANK", "0"))
TOLD = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
)


def note(name, **fields):
    with open(name, "a") as file:
        file.write(json.dumps({"rank": RANK, "pid": os.getpid(), **fields}) + "\n")


def ask(number, _frame):
    global asked
    asked = True
    note("signals.jsonl", signal=number, kind="rank")


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def load():
    try:
        with open("checkpoint.json") as file:
            return json.load(file)["step"]
    except (OSError, ValueError):
        return 0


def save(step):
    if RANK == 0:
        partial = f"checkpoint.partial.{os.getpid()}"  # two jobs of one test may share a folder
        with open(partial, "w") as file:
            json.dump({"step": step}, file)
        os.replace(partial, "checkpoint.json")


def meet(step, peers):
    """Wait for the other ranks at this step, as a collective does."""
    run = os.environ["SENTINEL_RUN"]
    with open(f"at.{run}.{RANK}.partial", "w") as file:
        file.write(str(step))
    os.replace(f"at.{run}.{RANK}.partial", f"at.{run}.{RANK}")
    for peer in peers:
        while True:
            try:
                with open(f"at.{run}.{peer}") as file:
                    if int(file.read()) >= step:
                        break
            except OSError:
                pass
            time.sleep(0.002)


def obey(order, state):
    what, _, value = order.strip().partition(" ")
    if what == "exit":
        sys.exit(int(value))
    elif what == "raise":
        raise ImportError(value)
    elif what == "signal":
        os.kill(os.getpid(), int(value))
    elif what == "sleep":
        time.sleep(600)
    elif what == "spin":
        while True:
            pass
    elif what == "say":
        say(value)
    elif what == "slow":
        state["step_ms"] = float(value)
    elif what == "ratio":
        state["hardware_ms"] = float(value)
    elif what == "write":
        with open(value, "w") as file:
            file.write("x" * 65536)
            file.flush()
            os.fsync(file.fileno())
    elif what == "eat":
        kept = []
        while True:
            kept.append(bytearray(1 << 20))
    elif what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        raise SystemExit(f"unknown order {order!r}")


def orders(step, at):
    path = f"orders.{RANK}"
    try:
        os.replace(path, path + ".taken")
        with open(path + ".taken") as file:
            yield file.read()
    except OSError:
        pass
    yield from (order for when, order in at if when == step)


def load_data(kind):
    """Forked helpers that inherit this program's signal handler, as data loaders do."""
    import multiprocessing

    program = os.getpid()

    def wait():
        signal.signal(signal.SIGUSR1, lambda *_: note("signals.jsonl", kind="loader"))
        while os.getppid() == program:
            time.sleep(0.05)

    context = multiprocessing.get_context("fork")
    for _ in range(kind):
        context.Process(target=wait, daemon=True).start()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--hardware-ms", type=float, default=2201.521)
    parser.add_argument("--e2e-ms", type=float, default=3317.794921875)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--save", choices=("say", "silent", "lock", "never", "end", "none"), default="say")
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--together", action="store_true", help="ranks wait for each other at each step")
    parser.add_argument("--at", action="append", default=[], help="STEP:ORDER")
    args = parser.parse_args()
    global asked
    at = [(int(when), order) for when, _, order in (text.partition(":") for text in args.at)]
    if args.save != "none":
        signal.signal(signal.SIGUSR1, ask)
    step = load()
    env = {k: v for k, v in os.environ.items() if k in TOLD or k.startswith("SENTINEL_")}
    note("starts.jsonl", env=env, resumed=step, argv=sys.argv[1:])
    if args.loaders:
        load_data(args.loaders)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    peers = [peer for peer in range(world) if args.together and peer != RANK]
    state = {"step_ms": args.step_ms, "hardware_ms": args.hardware_ms}
    while step < args.steps:
        step += 1
        if peers:
            meet(step, peers)
        for order in orders(step, at):
            obey(order, state)
        time.sleep(state["step_ms"] / 1000)
        say(
            f" iteration {step:8d}/ {args.steps:8d} | elapsed time per iteration (ms): {args.e2e_ms} | "
            "this iteration hardware time is "
            f"{state['hardware_ms']} and e2e time is {args.e2e_ms} ms."
        )
        if args.save_every and step % args.save_every == 0:
            save(step)
        if asked and args.save != "never":
            asked = False
            if args.save == "lock" and RANK == 0:
                open("saving.lock", "w").close()
                time.sleep(0.3)
            save(step)
            if args.save == "lock" and RANK == 0:
                os.unlink("saving.lock")
            if args.save == "say":
                say(f"wrote the model of step {step}")
            if args.save == "end":
                return


main()
