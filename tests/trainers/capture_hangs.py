"""Runs programs/hangs.py and keeps what Sentinel's own looks at its sixteen ranks have told: stacks/sixteen.json.xz.

    .venv/bin/python -m tests.trainers.capture_hangs TORCH_PYTHON [KIND …]

TORCH_PYTHON has torch. It takes half an hour of two cores, as root: a mount that never answers is part of it. Each run
is looked at twice, with as much time between as HangWatch asks for stillness. Kinds that are named are taken
again, and the others kept.
"""

import asyncio
import contextlib
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sentinel.cluster.local.processes import read_proc
from sentinel.cluster.local.stacks import collect
from tests.waits import eventually

PROGRAM = Path(__file__).parent / "programs" / "hangs.py"
KEPT = Path(__file__).parents[1] / "core" / "stacks" / "sixteen.json.xz"
LOOKS, APART_S, SETTLES_S, STARTS_S = 2, 74.0, 5.0, 180.0
AT_ONCE = 5
HANGS = ("groups", "evaluation", "loader", "lock", "loop", "stop", "gil", "mismatch", "early", "save")
PAUSES = (
    *("checkpoint", "evaluates", "compile", "download", "cache"),
    *("garbage", "start", "slow-data", "unpack", "decomposition"),
)
Key = tuple[str, int, int]  # kind, rank, way
RANKS = (3, 0, 15, 6, 11)
HERE = re.compile(r"^(Process \d+: ).*$|^(Python v\S+) \(.*\)$", re.M)


def cases() -> list[Key]:
    each = [(kind, RANKS[way], way) for way in range(4) for kind in HANGS]
    return each + [(kind, RANKS[way], way) for way in range(5) for kind in PAUSES]


async def capture(address: str, one_look: asyncio.Lock, kind: str, rank: int, way: int) -> dict[str, Any]:
    told, asked = await asyncio.open_unix_connection(address)
    try:
        asked.write(f"{kind} {rank} {way}\n".encode())
        both = [await asyncio.wait_for(told.readline(), STARTS_S) for _ in range(2)]
        pids = json.loads(next(line for line in both if line.startswith(b"[")))
        await _lives_on(told, SETTLES_S)
        looks = []
        loop = asyncio.get_running_loop()
        first_s = loop.time()
        for look in range(LOOKS):
            await _lives_on(told, first_s + look * APART_S - loop.time())
            async with one_look:
                at_s = loop.time()
                first_s = at_s if look == 0 else first_s
                procs = {n: read_proc(pid) for n, pid in enumerate(pids)}
                texts = await collect({n: proc for n, proc in procs.items() if proc and not proc.dead})
            looks.append(
                {"at_s": round(at_s - first_s, 1), "texts": [HERE.sub(_bare, text) for text in texts]}
            )
    finally:
        asked.close()
    return {"kind": kind, "rank": rank, "way": way, "looks": looks}


async def _lives_on(told: asyncio.StreamReader, for_s: float) -> None:
    """ValueError if the program ends meanwhile."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(told.read(1), max(0.0, for_s))
        raise ValueError("the program has ended")


def _bare(match: re.Match[str]) -> str:
    return f"{match[1]}python hangs.py" if match[1] else match[2]


async def main(python: str, kinds: list[str]) -> None:
    known = json.loads(lzma.decompress(KEPT.read_bytes()))["cases"] if KEPT.exists() else []
    found = {(c["kind"], c["rank"], c["way"]): c for c in known if c["kind"] not in kinds}
    wanted = [case for case in cases() if case not in found and (not kinds or case[0] in kinds)]
    with tempfile.TemporaryDirectory() as place, open(f"{place}/errors", "w+b") as errors:
        address = f"{place}/hangs"
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        program = await asyncio.create_subprocess_exec(
            *(python, PROGRAM.name, address), cwd=PROGRAM.parent, env=env, stderr=errors
        )
        try:
            ready = lambda: os.path.exists(address) or program.returncode is not None  # noqa: E731
            await eventually(ready, "torch is imported", STARTS_S)
            if program.returncode is not None:
                errors.seek(0)
                raise SystemExit(f"{PROGRAM.name} ended:\n{errors.read().decode()}")
            await _capture(python, address, wanted, found)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                program.kill()
            await program.wait()


async def _capture(python: str, address: str, wanted: list[Key], found: dict[Key, dict[str, Any]]) -> None:
    asked = await asyncio.create_subprocess_exec(
        *(python, "-c", "import torch; print(torch.__version__)"), stdout=subprocess.PIPE
    )
    torch, _ = await asked.communicate()
    source = {
        "torch": torch.decode().strip(),
        "py-spy": version("py-spy"),
        "program": "tests/trainers/programs/hangs.py, KIND RANK WAY",
        "command": "python -m tests.trainers.capture_hangs TORCH_PYTHON",
    }
    one_look = asyncio.Lock()  # as many at once would not be through in their time
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(case: Key) -> None:
        async with gate:
            try:
                found[case] = await capture(address, one_look, *case)
            except (OSError, TimeoutError, StopIteration, ValueError) as error:
                print(*case, "not captured:", repr(error), flush=True)
                return
        print(*case, flush=True)
        kept = {
            "source": source,
            "here": _here(),
            "cases": [found[case] for case in cases() if case in found],
        }
        KEPT.write_bytes(lzma.compress(json.dumps(kept, indent=0).encode(), preset=9))

    await asyncio.gather(*map(one, wanted))


def _here() -> list[int]:
    lines = PROGRAM.read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("  # here")]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
