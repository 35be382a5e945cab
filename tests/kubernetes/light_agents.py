"""Agents of fake nodes in one process: the real client, and no checks. Their ranks catch every signal, and by default
save at it.

    python -m tests.kubernetes.light_agents CONTROLLERS BUNDLE FOLDER

FOLDER has one folder for each node, in which its token lies; the spools come beside them. A file `found.json` there is
what a check of that node finds, `ranks.json` (Ranks) what the logs of ranks there say: told each time it is written,
`saves.json` (Saves) how ranks there save, `forged.json` (Report) what the agent tells besides, once.
`signalled` is made when they were told to, `looked` when somebody asked for
their files, `spoken` when what ranks say was told of those of a job.
"""

import asyncio
import itertools
import re
import sys
import uuid
from pathlib import Path

import msgspec

from sentinel.core.agents.orders import ASK, FOLLOW, Ask, Follow, What
from sentinel.core.health import CheckResult, CheckState, Finding
from sentinel.core.policy_model import PROOF_RULE
from sentinel.core.reports import Answer, Iteration, LogMatch, RankExit, RankReport, Report
from sentinel.transport.client import Client, ClientSettings
from sentinel.transport.wire import Orders
from sentinel.util.clock import system_now

EVERY_S = 5.0
FOUND = "found.json"
RANKS = "ranks.json"
SAVES = "saves.json"
FORGED = "forged.json"
SIGNALLED = "signalled"
LOOKED = "looked"
SPOKEN = "spoken"
RANKS_S = 0.5  # between two looks at it
STEP_MS = 1000.0


class Ranks(msgspec.Struct):
    """`count` iterations with so much hardware time, and how often their launcher has started them again. `job`: the
    end of the name of the only job that it is about. `code`: with what they ended, in containers that are kept.

    `step`: of the first of them, where the log names steps. `line`: printed last, `ago_s` ago, and told where a rule of
    the job's policy matches it. `anew`: by each start of the job of which nothing was told yet."""

    hardware_ms: float = 500.0
    count: int = 0
    restarts: int = 0
    job: str = ""
    code: int | None = None
    step: int | None = None
    line: str = ""
    ago_s: float = 0.0
    anew: bool = False


class Saves(msgspec.Struct):
    """`line`: what they print when they have saved; "": they never do. `files`: those of their store, each with its
    size and time; `refuses`: why nobody can look there."""

    line: str = "saved checkpoint at step 7"
    files: dict[str, tuple[int, int]] = {}
    refuses: str = ""


def answered(id: str, ask: Ask, folder: Path) -> tuple[Answer, tuple[LogMatch, ...]]:
    ranks = tuple(pod.rank for pod in ask.pods)
    if ask.what is What.HANDLERS:
        return Answer(order=id, capable=dict.fromkeys(ranks, True)), ()
    file = folder / SAVES
    saves = msgspec.json.decode(file.read_bytes(), type=Saves) if file.exists() else Saves()
    if ask.what is What.FILES and saves.refuses:
        return Answer(order=id, refused=dict.fromkeys(ranks, saves.refuses)), ()
    if ask.what is What.FILES:
        (folder / LOOKED).touch()
        return Answer(order=id, files=saves.files), ()
    if ask.what is not What.SIGNAL:
        return Answer(order=id), ()
    (folder / SIGNALLED).touch()
    now_s = system_now().mono_s
    saved = tuple(
        LogMatch(
            rule=PROOF_RULE,
            failure="proof",
            rank=rank,
            incarnation=ask.incarnation,
            at_s=now_s,
            line=saves.line,
            job=ask.job,
        )
        for rank in ranks
        if saves.line
    )
    return Answer(order=id, sent=ranks), saved


def gpus(folder: Path, at_s: float) -> CheckResult:
    found = folder / FOUND
    if not found.exists():
        return CheckResult(check="gpus", state=CheckState.OK, at_mono_s=at_s)
    finding = msgspec.json.decode(found.read_bytes(), type=Finding)
    seen = msgspec.structs.replace(finding, seen_mono_s=at_s)
    return CheckResult(check="gpus", state=CheckState.FOUND, findings=(seen,), at_mono_s=at_s)


def told(ranks: Ranks, follow: Follow, at_s: float) -> list[RankReport]:
    steps = [
        Iteration(
            at_s,
            None if ranks.step is None else ranks.step + number,
            ranks.hardware_ms,
            max(STEP_MS, ranks.hardware_ms),
        )
        for number in range(ranks.count)
    ]
    job = follow.job
    return [
        RankReport(
            job=job.name,
            incarnation=job.incarnation,
            rank=pod.rank,
            iterations=steps,
            restarts=ranks.restarts,
        )
        for pod in follow.pods
        if job.name.endswith(ranks.job)
    ]


def matches(ranks: Ranks, follow: Follow, at_s: float) -> list[LogMatch]:
    job = follow.job
    return [
        LogMatch(
            rule=rule.id,
            failure=rule.failure,
            rank=pod.rank,
            incarnation=job.incarnation,
            at_s=at_s - ranks.ago_s,
            line=ranks.line,
            job=job.name,
        )
        for rule in job.policy.log_rules
        for pod in follow.pods
        if re.search(rule.pattern, ranks.line) and job.name.endswith(ranks.job)
    ]


def ends(ranks: Ranks, follow: Follow, at_s: float) -> list[tuple[str, RankExit]]:
    if ranks.code is None:
        return []
    job = follow.job
    return [
        (job.name, RankExit(rank=pod.rank, incarnation=job.incarnation, at_s=at_s, code=ranks.code))
        for pod in follow.pods
        if job.name.endswith(ranks.job)
    ]


async def agent(folder: Path, controllers: str, bundle: str) -> None:
    boot = folder / "boot_id"  # of the node: another process of the same boot has the same one
    if not boot.exists():
        boot.write_text(str(uuid.uuid4()))
    settings = ClientSettings(
        node=folder.name,
        boot_id=boot.read_text(),
        addresses=(controllers,),
        token_path=str(folder / "token"),
        bundle_path=bundle,
        folder=str(folder),
    )
    done: set[str] = set()
    follows: list[Follow] = []
    numbers = itertools.count(1)

    def obey(orders: Orders) -> None:
        ours = [order for order in orders.items if order.kind == FOLLOW]
        follows[:] = [msgspec.msgpack.decode(order.body, type=Follow) for order in ours]
        for order in orders.items:
            if order.kind == ASK and order.id not in done:
                done.add(order.id)
                send(*answered(order.id, msgspec.msgpack.decode(order.body, type=Ask), folder))

    def send(answer: Answer | None = None, saved: tuple[LogMatch, ...] = ()) -> None:
        now = system_now()
        checks = (
            CheckResult(check="disk", state=CheckState.OK, at_mono_s=now.mono_s),
            gpus(folder, now.mono_s),
        )
        report = Report(
            node=folder.name, boot_id=settings.boot_id, sequence=next(numbers), now=now, checks=checks
        )
        if answer is not None:
            report = msgspec.structs.replace(report, checks=(), answers=(answer,), matches=saved)
        client.send(report)

    async def speak() -> None:
        spoken = 0  # told once to all that are followed then
        told_to: set[tuple[str, int]] = set()  # these starts of jobs have been told of
        while True:
            if (forged := folder / FORGED).exists():
                lie = msgspec.json.decode(forged.read_bytes(), type=Report)
                forged.unlink()
                more = {"sequence": next(numbers), "now": system_now(), "boot_id": settings.boot_id}
                client.send(msgspec.structs.replace(lie, node=folder.name, **more))
            file = folder / RANKS
            if follows and file.exists():
                written = file.stat().st_mtime_ns
                ranks = msgspec.json.decode(file.read_bytes(), type=Ranks)
                starts = {(one.job.name, one.job.incarnation): one for one in follows}
                new = [one for start, one in starts.items() if start not in told_to]
                hears = new if ranks.anew else follows * (written != spoken)
                spoken, told_to = written, told_to | set(starts)
                if hears:
                    say(ranks, hears)
                    (folder / SPOKEN).touch()
            await asyncio.sleep(RANKS_S)

    def say(ranks: Ranks, hears: list[Follow]) -> None:
        now = system_now()
        client.send(
            Report(
                node=folder.name,
                boot_id=settings.boot_id,
                sequence=next(numbers),
                now=now,
                ranks=tuple(one for follow in hears for one in told(ranks, follow, now.mono_s)),
                matches=tuple(one for follow in hears for one in matches(ranks, follow, now.mono_s)),
                exits=tuple(one for follow in hears for one in ends(ranks, follow, now.mono_s)),
            )
        )

    client = Client(settings, obey)
    running = asyncio.create_task(client.run())
    speaking = asyncio.create_task(speak())
    while not running.done() and not speaking.done():
        send()
        print(folder.name, client.status.address, flush=True)
        await asyncio.wait({running, speaking}, timeout=EVERY_S, return_when=asyncio.FIRST_COMPLETED)
    speaking.cancel()
    running.result()


async def main(controllers: str, bundle: str, folder: Path) -> None:
    async with asyncio.TaskGroup() as group:
        for one in sorted(folder.iterdir()):
            group.create_task(agent(one, controllers, bundle))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
