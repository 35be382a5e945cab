"""A training whose loss becomes NaN: what it saves from then on is NaN too. Prints as nanoGPT, saves as the Trainer.

diverge.py STEP first|always [LAST]    NaN from STEP on, where the first start comes there, or each one
"""

import json
import os
import sys
import time

from sentinel.integrations.checkpoints import newest_checkpoint

at, when = int(sys.argv[1]), sys.argv[2]
last = int(sys.argv[3]) if sys.argv[3:] else None
found = newest_checkpoint(".")
state = {"step": 0, "nan": False}
if found is not None:
    with open(os.path.join(found, "trainer_state.json")) as file:
        state = json.load(file)
with open("starts.jsonl", "a") as file:
    there = sorted(name for name in os.listdir(".") if name.startswith("checkpoint-"))
    told = {name: value for name, value in os.environ.items() if name.startswith("SENTINEL_")}
    pid = os.getpid()
    file.write(
        json.dumps({"rank": 0, "pid": pid, "from": state["step"], "there": there, "told": told}) + "\n"
    )
while state["step"] != last:
    state["step"] += 1
    if state["step"] == at and (when == "always" or "SENTINEL_RESUME" not in os.environ):
        state["nan"] = True
    print(
        f"iter {state['step']}: loss {'nan' if state['nan'] else '2.3100'}, time 20.00ms, mfu 17.00%",
        flush=True,
    )
    if state["step"] % 5 == 0:
        folder = f"checkpoint-{state['step']}"
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "trainer_state.json.new"), "w") as file:
            json.dump(state, file)
        os.replace(file.name, os.path.join(folder, "trainer_state.json"))
    time.sleep(0.02)
